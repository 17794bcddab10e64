package model

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	// tries bounds how often one question is put.
	tries = 5
	// firstWait is the pause after a first failure, twice as long after each further
	// one, and maxWait the longest. A provider that says how long decides itself.
	firstWait = 500 * time.Millisecond
	maxWait   = 8 * time.Second
)

// Patient asks again when that can help, and waits between as long as the provider
// wants, within what is left. The zero value of its functions will not do.
type Patient struct {
	Client Client
	// Left is how much time there is; it is asked before each pause.
	Left func() time.Duration
	// Waits, which may be nil, is told before each pause, of which failure and how long.
	Waits func(err *Error, pause time.Duration)
}

// Ask is Client.Ask, and gives how often the question was put.
func (p Patient) Ask(ctx context.Context, q Question, on func(bytes int)) (*Answer, int, error) {
	for n := 1; ; n++ {
		a, err := p.Client.Ask(ctx, q, on)
		var e *Error
		if err == nil || !errors.As(err, &e) {
			return a, n, err
		}
		pause, err := p.pause(e, n)
		if err != nil {
			return nil, n, err
		}
		if p.Waits != nil {
			p.Waits(e, pause)
		}
		if err := wait(ctx, pause); err != nil {
			return nil, n, err
		}
	}
}

// pause is how long to wait after the n-th failure, or the error to end with.
func (p Patient) pause(e *Error, n int) (time.Duration, error) {
	if !e.temporary() {
		return 0, e
	}
	if n == tries {
		return 0, fmt.Errorf("%w; it was asked %d times", e, tries)
	}
	pause := min(firstWait<<(n-1), maxWait)
	if e.RetryAfter >= 0 {
		pause = e.RetryAfter
	}
	if left := p.Left(); pause >= left {
		return 0, fmt.Errorf("%w; it would be asked again after %v, and %v are left", e, pause.Round(time.Millisecond), left.Round(time.Millisecond))
	}
	return pause, nil
}

// wait returns after d, or with the cause of ctx when that ends before.
func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
