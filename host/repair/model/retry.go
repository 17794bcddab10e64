package model

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
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
	// Tokens are what there is of them, for the question, the answer, and the tries that
	// fail.
	Tokens int64
	// Waits, which may be nil, is told before each pause, of which failure and how long.
	Waits func(err *Error, pause time.Duration)
}

// Asked is what it took to have an answer, or none.
type Asked struct {
	// Tries is how often the question was put.
	Tries int
	// Failed are the tokens of the tries that failed: a guess, as nobody tells them.
	Failed Tokens
	// Less is what the server lets an answer have of tokens, where that is less than
	// Question.MaxTokens; 0: it is not.
	Less int64
}

// ErrTokens: tries that failed have spent the tokens.
var ErrTokens = errors.New("the tokens are spent by tries that failed")

// Ask is Client.Ask, and gives what it took.
func (p Patient) Ask(ctx context.Context, q Question, on func(bytes int)) (*Answer, Asked, error) {
	var did Asked
	for failures := 1; ; {
		did.Tries++
		t := try{}
		a, err := p.Client.Ask(ctx, q, t.watch(on))
		if err == nil {
			return a, did, nil
		}
		did.Failed = did.Failed.Add(t.cost(q, err))
		var e *Error
		if !errors.As(err, &e) {
			return nil, did, err
		}
		left := p.Tokens - did.Failed.Sum() - q.Estimate()
		var pause time.Duration
		if wantsLess(e, q.MaxTokens) {
			did.Less = q.MaxTokens / 2
			q.MaxTokens = did.Less
		} else {
			if pause, err = p.pause(e, failures); err != nil {
				return nil, did, err
			}
			failures++
		}
		if left < MinAnswer {
			return nil, did, fmt.Errorf("%w: %w", ErrTokens, e)
		}
		q.MaxTokens = min(q.MaxTokens, left)
		if p.Waits != nil {
			p.Waits(e, pause)
		}
		if err := wait(ctx, pause); err != nil {
			return nil, did, err
		}
	}
}

// leastAnswer is the least to which the bound of an answer is lowered, in tokens.
const leastAnswer = 1 << 10

// wantsLess tells whether a server refused a question for its tokens, as one does whose
// model cannot give an answer of most tokens, or has no room for it beside the question.
// Each says so in other words.
func wantsLess(e *Error, most int64) bool {
	return e.Kind == Rejected && (e.Status == http.StatusBadRequest || e.Status == http.StatusUnprocessableEntity) &&
		strings.Contains(strings.ToLower(e.Detail), "token") && most/2 >= leastAnswer
}

// try is a question that is put once.
type try struct {
	begun bool // an answer has
	bytes int
}

// watch is on, and tells the try too.
func (t *try) watch(on func(bytes int)) func(int) {
	return func(n int) {
		t.begun, t.bytes = true, n
		if on != nil {
			on(n)
		}
	}
}

// cost is a guess at the tokens of a try that failed. What a server refused, or never
// began to answer, is free.
func (t *try) cost(q Question, err error) Tokens {
	var e *Error
	if !t.begun && errors.As(err, &e) {
		switch e.Kind {
		case Stalled, Stream, TooLarge: // it had begun
		default:
			return Tokens{}
		}
	}
	return Tokens{Input: q.Estimate(), Output: int64(t.bytes+3) / 4, Estimated: true}
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
