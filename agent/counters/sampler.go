package counters

import (
	"context"
	"errors"
	"time"

	"github.com/pybox/pybox/agent/cgroup"
)

// MaxSamples bounds a Series. When it is full, every second sample goes and the
// interval doubles, so that a long run has as many as a short one, evenly spread.
const MaxSamples = 600

// Series are the samples of a run, in the order of time.
type Series struct {
	Samples []Sample
	// Every is the interval between them at the end.
	Every time.Duration
	// Missed samples could not be read, the last one because of Err. A cgroup
	// that is gone ends the series and is no failure.
	Missed int
	Err    error
}

// add appends a sample.
func (s *Series) add(sample Sample) {
	if len(s.Samples) == MaxSamples {
		for i := range MaxSamples / 2 {
			s.Samples[i] = s.Samples[2*i]
		}
		s.Samples = s.Samples[:MaxSamples/2]
		s.Every *= 2
	}
	s.Samples = append(s.Samples, sample)
}

// Sampler samples one box in a goroutine of its own.
type Sampler struct {
	stop   context.CancelFunc
	ended  chan struct{}
	series Series
}

// After is time.After, or what a test puts in its place.
type After func(time.Duration) <-chan time.Time

// StartSampler samples at once and then at the interval every, which is more than
// 0, until Stop is called, ctx is done or the cgroup is gone. It calls each, when
// that is not nil, with every sample as it comes; what takes time there delays
// the next one.
func (g *Group) StartSampler(ctx context.Context, every time.Duration, after After, each func(Sample)) *Sampler {
	ctx, cancel := context.WithCancel(ctx)
	s := &Sampler{stop: cancel, ended: make(chan struct{}), series: Series{Every: every}}
	go func() {
		defer close(s.ended)
		s.run(ctx, g.Sample, after, each)
	}()
	return s
}

func (s *Sampler) run(ctx context.Context, read func() (Sample, error), after After, each func(Sample)) {
	for {
		sample, err := read()
		switch {
		case err == nil:
			s.series.add(sample)
			if each != nil {
				each(sample)
			}
		case errors.Is(err, cgroup.ErrGone):
			return
		default:
			s.series.Missed++
			s.series.Err = err
		}
		select {
		case <-after(s.series.Every):
		case <-ctx.Done():
			return
		}
	}
}

// Stop ends the sampling and returns the samples. It may be called again.
func (s *Sampler) Stop() Series {
	s.stop()
	<-s.ended
	return s.series
}
