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
}

func (s *script) Ask(ctx context.Context, _ Question, _ func(int)) (*Answer, error) {
	s.at = append(s.at, time.Now())
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
			a, tries, err := Patient{Client: s, Left: always(c.left), Waits: func(*Error, time.Duration) { waits++ }}.Ask(t.Context(), Question{}, nil)
			if tries != c.tries || len(s.at) != c.tries || waits != c.tries-1 || time.Since(began) != c.took {
				t.Errorf("%s: %d tries, %d waits, in %v", c.name, tries, waits, time.Since(began))
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
		_, _, err := Patient{Client: &script{errs: []error{&Error{Kind: Busy, RetryAfter: time.Minute}}}, Left: always(time.Hour)}.Ask(ctx, Question{}, nil)
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
