package api

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"slices"
	"testing"
	"time"
)

// tally is the answer of a call that notes what is done to it.
type tally struct {
	http.ResponseWriter
	did     []string
	written bytes.Buffer
	fail    error
}

func (c *tally) Write(b []byte) (int, error) {
	c.did = append(c.did, "write")
	if c.fail != nil {
		return 0, c.fail
	}
	return c.written.Write(b)
}

func (c *tally) FlushError() error                   { c.did = append(c.did, "flush"); return c.fail }
func (c *tally) SetWriteDeadline(at time.Time) error { return nil }

// answer gives the answer of a streaming call, and its context.
func answer(t *testing.T) (context.Context, *stream, *tally) {
	c := &tally{}
	s := &stream{ResponseWriter: c, control: http.NewResponseController(c), stall: time.Minute}
	return context.WithValue(t.Context(), streamKey{}, s), s, c
}

// send is what a message costs.
func send(s *stream, message string) error {
	_, err := s.Write([]byte(message))
	return errors.Join(err, s.FlushError())
}

func TestTogether(t *testing.T) {
	ctx, s, c := answer(t)
	err := Together(ctx, func() error { return errors.Join(send(s, "one "), send(s, "two "), send(s, "three ")) })
	if want := []string{"write", "flush"}; err != nil || !slices.Equal(c.did, want) {
		t.Errorf("%v, %q, want %q", err, c.did, want)
	}
	if err := send(s, "four "); err != nil {
		t.Error(err)
	}
	large := bytes.Repeat([]byte("x"), maxHeld)
	err = Together(ctx, func() error { return errors.Join(send(s, "five "), send(s, string(large)), send(s, " six")) })
	if want := "one two three four five " + string(large) + " six"; err != nil || c.written.String() != want {
		t.Errorf("%v, %d bytes came, want %d, in order", err, c.written.Len(), len(want))
	}
	// Nothing to send, or nobody to hold it.
	c.did = nil
	if err := Together(ctx, func() error { return nil }); err != nil || c.did != nil {
		t.Errorf("%v, %q", err, c.did)
	}
	for _, apart := range []context.Context{t.Context(), Apart(ctx)} {
		c.did = nil
		err := Together(apart, func() error { return errors.Join(send(s, "seven"), send(s, "eight")) })
		if err != nil || len(c.did) != 4 {
			t.Errorf("%v, %q", err, c.did)
		}
	}
}

// TestTogetherTooMuch has a last message that does not fit behind those that are held: it
// goes on its way all the same, and does not wait for the next one or the call's end.
func TestTogetherTooMuch(t *testing.T) {
	for name, sizes := range map[string][]int{
		"a small one behind a large one": {maxHeld - 200, 1000},
		"a large one behind a small one": {200, maxHeld - 100},
		"one that is never held":         {maxHeld + 1},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, s, c := answer(t)
			var sent int
			err := Together(ctx, func() error {
				for _, size := range sizes {
					sent += size
					if err := send(s, string(make([]byte, size))); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil || c.written.Len() != sent || c.did[len(c.did)-1] != "flush" {
				t.Errorf("%v, %d of %d bytes came: %q", err, c.written.Len(), sent, c.did)
			}
		})
	}
}

func TestTogetherFails(t *testing.T) {
	ctx, s, c := answer(t)
	mine := errors.New("mine")
	if err := Together(ctx, func() error { return errors.Join(send(s, "one"), mine) }); !errors.Is(err, mine) || c.written.String() != "one" {
		t.Errorf("%v, %q was sent", err, c.written.String())
	}
	c.fail = errors.New("the client is gone")
	if err := Together(ctx, func() error { return send(s, "two") }); !errors.Is(err, c.fail) {
		t.Errorf("%v, want %v", err, c.fail)
	}
	if err := send(s, "three"); !errors.Is(err, c.fail) {
		t.Errorf("%v, want %v", err, c.fail)
	}
}
