package wire

import (
	"errors"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/pybox/pybox/host/repair/model"
	"github.com/pybox/pybox/host/repair/modeltest"
)

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		name, value string
		want        time.Duration
	}{
		{"Retry-After", "", -1},
		{"Retry-After", "20", 20 * time.Second},
		{"Retry-After", "0", 0},
		{"Retry-After", "1.5", 1500 * time.Millisecond},
		{"Retry-After", "-3", 0},
		{"Retry-After", "NaN", -1},
		{"Retry-After", "soon", -1},
		{"Retry-After", "1e300", maxRetryAfter},
		{"Retry-After", "inf", maxRetryAfter},
		{"Retry-After", "Mon, 30 Nov 2026 12:00:30 GMT", 30 * time.Second},
		{"Retry-After", "Mon, 30 Nov 2026 11:00:00 GMT", 0},
		{"Retry-After", "Mon, 30 Nov 2099 12:00:00 GMT", maxRetryAfter},
		{"Retry-After-Ms", "250", 250 * time.Millisecond},
	} {
		h := http.Header{}
		h.Set(c.name, c.value)
		if got := retryAfter(h, now); got != c.want {
			t.Errorf("%s: %s: %v, want %v", c.name, c.value, got, c.want)
		}
	}
}

func TestMessage(t *testing.T) {
	for body, want := range map[string]string{
		`{"error":{"message":"a"}}`: "a", `{"error":"b"}`: "b", `{"message":"c"}`: "c", `{"error":{"code":1}}`: `{"error":{"code":1}}`,
		`{"error":null,"message":"d"}`: "d", "plain": "plain", "": "", `[1]`: "[1]", `{"error":{"message":7}}`: `{"error":{"message":7}}`,
	} {
		if got := Message([]byte(body)); got != want {
			t.Errorf("%s: %q, want %q", body, got, want)
		}
	}
}

// TestElsewhere: what is built upon this client cannot be made to ask another server.
func TestElsewhere(t *testing.T) {
	named, other := modeltest.New(t, modeltest.Status(200, nil, "{}")), modeltest.New(t, modeltest.Status(200, nil, "{}"))
	base, err := url.Parse(named.URL)
	if err != nil {
		t.Fatal(err)
	}
	c := NewClient(base, Usual)
	if resp, err := c.Get(named.URL); err != nil {
		t.Error(err)
	} else {
		resp.Body.Close()
	}
	if _, err := c.Get(other.URL); err == nil || !strings.Contains(err.Error(), errElsewhere.Error()) || len(other.Requests()) != 0 {
		t.Errorf("%v, %d requests", err, len(other.Requests()))
	}
}

// TestEndless: an error without an end is read no further than wanted.
func TestEndless(t *testing.T) {
	endless := func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(500)
		for b := []byte(strings.Repeat("x", 1<<16)); r.Context().Err() == nil; {
			if _, err := w.Write(b); err != nil {
				return
			}
		}
	}
	s := modeltest.New(t, endless)
	base, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	_, err = NewClient(base, Usual).Get(s.URL)
	var e *model.Error
	if !asError(err, &e) || len(e.Detail) != maxErrorBody {
		t.Errorf("%.200v", err)
	}
}

func asError(err error, e **model.Error) bool {
	u, ok := err.(*url.Error)
	if ok {
		*e, ok = u.Err.(*model.Error)
	}
	return ok
}

// TestSlowReader: who reads slowly is no server that stalls.
func TestSlowReader(t *testing.T) {
	s := modeltest.New(t, modeltest.Stall("data: a\n\n"))
	base, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := NewClient(base, Limits{Idle: 100 * time.Millisecond}).Post(s.URL, "text/plain", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b := make([]byte, 100)
	if _, err := resp.Body.Read(b[:3]); err != nil {
		t.Fatal(err)
	}
	<-time.After(300 * time.Millisecond) // what a busy machine does
	if n, err := resp.Body.Read(b); string(b[:n]) != "a: a\n\n" || err != nil {
		t.Errorf("%q, %v", b[:n], err)
	}
	var e *model.Error
	if _, err := resp.Body.Read(b); !errors.As(err, &e) || e.Kind != model.Stalled {
		t.Errorf("%v", err)
	}
}
