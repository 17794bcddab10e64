package report

import (
	"math"
	"strconv"
)

// rank95 is the place, from 0, of the 95th percentile among n sorted samples, by the
// nearest rank.
func rank95(n int) int { return int(math.Ceil(0.95*float64(n))) - 1 }

// bounds are the places, from 0, of the two among n sorted samples between which the
// median of all that could have been measured lies, 19 times of 20: each sample is
// above it or below like a coin's sides, so the places are those of the binomial
// distribution. It asks nothing of how the samples are distributed. Below 6 samples
// even the least and the greatest promise less; those it is then.
func bounds(n int) (low, high int) {
	below := 0.0 // the chance that at most k samples are below the median
	for k := range n / 2 {
		below += math.Exp(logChoose(n, k) - float64(n)*math.Ln2)
		if below > 0.025 {
			break
		}
		low = k
	}
	return low, n - 1 - low
}

// logChoose is the logarithm of how many ways there are to take k of n.
func logChoose(n, k int) float64 {
	log := func(m int) float64 { v, _ := math.Lgamma(float64(m + 1)); return v }
	return log(n) - log(k) - log(n-k)
}

// round keeps four significant digits: more would be noise.
func round(v float64) float64 {
	r, err := strconv.ParseFloat(strconv.FormatFloat(v, 'g', 4, 64), 64)
	if err != nil { // of no text that FormatFloat gives
		return v
	}
	return r
}
