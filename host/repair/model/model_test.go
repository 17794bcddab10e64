package model

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// script is a Client that fails with its errors in turn, and answers then.
type script struct {
	errs  []error
	at    []time.Time
	delay time.Duration
	bytes int // of each answer that breaks off; -1: none begins
	asked []Question
}

func (s *script) Ask(ctx context.Context, q Question, on func(int)) (*Answer, error) {
	s.at, s.asked = append(s.at, time.Now()), append(s.asked, q)
	if s.bytes >= 0 {
		on(s.bytes)
	}
	if err := wait(ctx, s.delay); err != nil {
		return nil, err
	}
	if n := len(s.at); n <= len(s.errs) {
		return nil, s.errs[n-1]
	}
	return &Answer{Text: "done"}, nil
}

func (s *script) Models(context.Context) ([]string, error) { return nil, nil }

func always(d time.Duration) func() time.Duration { return func() time.Duration { return d } }

func TestPatience(t *testing.T) {
	busy := &Error{Kind: Busy, RetryAfter: 7 * time.Second}
	server := &Error{Kind: Server, RetryAfter: -1}
	for _, c := range []struct {
		name  string
		errs  []error
		left  time.Duration
		tries int
		took  time.Duration // of all pauses
		say   string        // of the error; empty: none
	}{
		{"at once", nil, time.Minute, 1, 0, ""},
		{"as long as it wants", []error{busy}, time.Minute, 2, 7 * time.Second, ""},
		{"at once when it says so", []error{&Error{Kind: Busy}}, time.Minute, 2, 0, ""},
		{"longer each time", []error{server, server, server}, time.Minute, 4, 3500 * time.Millisecond, ""},
		{"longer than there is", []error{busy}, 5 * time.Second, 1, 0, "again after 7s, and 5s are left"},
		{"exactly as long as there is", []error{busy}, 7 * time.Second, 1, 0, "are left"},
		{"too often", []error{server, server, server, server, server, server}, time.Hour, 5, 7500 * time.Millisecond, "asked 5 times"},
		{"not wanted", []error{&Error{Kind: Server, NoRetry: true}}, time.Minute, 1, 0, "failed"},
		{"in vain", []error{&Error{Kind: Denied, RetryAfter: -1}}, time.Minute, 1, 0, "key"},
		{"another error", []error{errors.New("odd")}, time.Minute, 1, 0, "odd"},
	} {
		synctest.Test(t, func(t *testing.T) {
			began, s := time.Now(), &script{errs: c.errs}
			waits := 0
			a, did, err := Patient{Client: s, Tokens: 1 << 20, Left: always(c.left), Waits: func(*Error, time.Duration) { waits++ }}.Ask(t.Context(), Question{}, nil)
			if did.Tries != c.tries || len(s.at) != c.tries || waits != c.tries-1 || time.Since(began) != c.took {
				t.Errorf("%s: %d tries, %d waits, in %v", c.name, did.Tries, waits, time.Since(began))
			}
			if (err == nil) != (c.say == "") || err == nil && a.Text != "done" || err != nil && !strings.Contains(err.Error(), c.say) {
				t.Errorf("%s: %+v, %v", c.name, a, err)
			}
		})
	}
}

// TestPauseGivenUp: the end of a context ends a pause too.
func TestPauseGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		why := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(2*time.Second, func() { cancel(why) })
		began := time.Now()
		_, _, err := Patient{Client: &script{errs: []error{&Error{Kind: Busy, RetryAfter: time.Minute}}}, Tokens: 1 << 20, Left: always(time.Hour)}.Ask(ctx, Question{}, nil)
		if !errors.Is(err, why) || time.Since(began) != 2*time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

func TestCounted(t *testing.T) {
	q := Question{System: "1234", User: "12345678"}
	for _, c := range []struct {
		text          string
		input, output int64
		want          Tokens
	}{
		{"text", 10, 5, Tokens{Input: 10, Output: 5}},
		{"text", 0, 0, Tokens{Input: 3, Output: 1, Estimated: true}},
		{"", 10, 0, Tokens{Input: 10}},
		{"text", -5, 5, Tokens{Input: 3, Output: 5, Estimated: true}},
		{"text", 10, 1 << 62, Tokens{Input: 10, Output: 1, Estimated: true}},
	} {
		if got := Counted(q, c.text, c.input, c.output); got != c.want {
			t.Errorf("%+v: %+v", c, got)
		}
	}
}

// TestFailedTriesCost: what came before an answer broke off is counted, and ends the
// tries when there is no more.
func TestFailedTriesCost(t *testing.T) {
	q := Question{System: "1234", User: "12345678", MaxTokens: 1 << 14} // 3 tokens
	cut, refused := &Error{Kind: Network, RetryAfter: 0}, &Error{Kind: Server, RetryAfter: 0, Status: 500}
	for _, c := range []struct {
		name   string
		err    error
		bytes  int // -1: the answer never began
		tokens int64
		tries  int
		failed Tokens
		spent  bool
	}{
		{"it fits", cut, 4000, 1 << 20, 5, Tokens{15, 5000, true}, false},
		{"two fit", cut, 4000, 2500, 3, Tokens{9, 3000, true}, true},
		{"none fits", cut, 200_000, 5000, 1, Tokens{3, 50_000, true}, true},
		{"it began", cut, 0, 1 << 20, 5, Tokens{15, 0, true}, false},
		{"never began", cut, -1, 300, 5, Tokens{}, false},
		{"refused", refused, -1, 300, 5, Tokens{}, false},
		{"stalled", &Error{Kind: Stalled, RetryAfter: 0}, -1, 1 << 20, 5, Tokens{15, 0, true}, false},
		{"cut off", context.DeadlineExceeded, 4000, 1 << 20, 1, Tokens{3, 1000, true}, false},
	} {
		s := &script{errs: []error{c.err, c.err, c.err, c.err, c.err}, bytes: c.bytes}
		_, did, err := Patient{Client: s, Tokens: c.tokens, Left: always(time.Hour)}.Ask(t.Context(), q, nil)
		if did.Tries != c.tries || did.Failed != c.failed || errors.Is(err, ErrTokens) != c.spent || !errors.Is(err, c.err) {
			t.Errorf("%s: %+v, %v", c.name, did, err)
		}
		for i, q := range s.asked[1:] {
			if q.MaxTokens > c.tokens-int64(i+1)*c.failed.Sum()/int64(c.tries) {
				t.Errorf("%s: try %d may have %d tokens", c.name, i+2, q.MaxTokens)
			}
		}
	}
}

// TestLess: a server whose model gives no answer as long as that is asked for less.
func TestLess(t *testing.T) {
	says := func(status int, detail string) error {
		return &Error{Kind: Rejected, Status: status, RetryAfter: -1, Detail: detail}
	}
	large := says(400, "max_tokens is too large: 16384. This model supports at most 4096 completion tokens")
	context := says(400, "This model's maximum context length is 8192 tokens. However, you requested 16500")
	for _, c := range []struct {
		errs  []error
		tries int
		less  int64
		ok    bool
	}{
		{nil, 1, 0, true},
		{[]error{large, large}, 3, 4096, true},
		{[]error{context}, 2, 8192, true},
		{[]error{says(422, "max_tokens")}, 2, 8192, true},
		{[]error{large, large, large, large, large, large}, 5, 1024, false},
		{[]error{says(400, "no such model")}, 1, 0, false},
		{[]error{says(404, "token")}, 1, 0, false},
	} {
		s := &script{errs: c.errs, bytes: -1}
		_, did, err := Patient{Client: s, Tokens: 1 << 20, Left: always(time.Hour)}.Ask(t.Context(), Question{MaxTokens: 16384}, nil)
		if did.Tries != c.tries || did.Less != c.less || (err == nil) != c.ok || did.Failed.Sum() != 0 {
			t.Errorf("%v: %+v, %v", c.errs, did, err)
		}
		if last := s.asked[len(s.asked)-1].MaxTokens; c.less != 0 && last != c.less {
			t.Errorf("%v: asked for %d", c.errs, last)
		}
	}
}
