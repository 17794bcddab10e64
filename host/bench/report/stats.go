package report

import (
	"math"
	"slices"
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

// middle is the median of sorted samples: of an even number the mean of the two.
func middle(s []float64) float64 { return (s[(len(s)-1)/2] + s[len(s)/2]) / 2 }

// quotient is the ratio of samples to others that were taken in turns with them, each to
// its own, and nil where one of them is no positive number. It is the estimate of Hodges
// and Lehmann, and its bounds are those of Wilcoxon's test: of logarithms, so that twice
// and half are as far away. Whatever slowed both of a pair drops out.
func quotient(samples, beside []float64) *Span {
	logs := make([]float64, len(samples))
	for i, v := range samples {
		if logs[i] = math.Log(v / beside[i]); !finite(logs[i]) {
			return nil
		}
	}
	var means []float64 // of each two, and of each with itself
	for i, a := range logs {
		for _, b := range logs[i:] {
			means = append(means, (a+b)/2)
		}
	}
	slices.Sort(means)
	n := float64(len(logs))
	low := max(0, int(n*(n+1)/4-0.5-1.96*math.Sqrt(n*(n+1)*(2*n+1)/24)))
	at := func(v float64) float64 { return round(math.Exp(v)) }
	return &Span{Low: at(means[low]), Middle: at(middle(means)), High: at(means[len(means)-1-low])}
}

// joined is how far, as a factor, the bound of a value is from it that comes of two
// others, whose bounds are so far from them by chances of their own.
func joined(a, b float64) float64 { return math.Exp(math.Hypot(math.Log(a), math.Log(b))) }

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
