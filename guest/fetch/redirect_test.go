package fetch

import (
	"bytes"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
)

// What an address has behind its '?' may be a key, which the next server is not told.
func TestRedirectsTellNoReferer(t *testing.T) {
	var told atomic.Value
	f := newFetcher(t, serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/second":
			told.Store(r.Header.Get("Referer"))
			whole(w, r)
		case "/first":
			http.Redirect(w, r, "/second", http.StatusFound)
		default:
			http.Redirect(w, r, "/first?key=SECRET", http.StatusFound)
		}
	}))
	mustGet(t, f, itemOf(content))
	if got := told.Load(); got != "" {
		t.Errorf("the next server was told %q", got)
	}
}

func TestRedirectToNoAddress(t *testing.T) {
	var requests atomic.Int32
	f := newFetcher(t, serve(t, func(w http.ResponseWriter, _ *http.Request) {
		requests.Add(1)
		w.Header().Set("Location", "https://h:bad/?token=SECRET"+strings.Repeat("x", 30_000))
		w.WriteHeader(http.StatusFound)
	}))
	_, err := f.Get(t.Context(), itemOf(content))
	if !errors.Is(err, ErrRedirect) || strings.Contains(err.Error(), "SECRET") || len(err.Error()) > 1000 || requests.Load() != 1 {
		t.Errorf("%d requests, %.300v", requests.Load(), err)
	}
}

func TestDigest(t *testing.T) {
	f := newFetcher(t, serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(bytes.ToUpper(content)) }))
	if _, err := f.Get(t.Context(), itemOf(content)); !errors.Is(err, ErrDigest) || !errors.Is(err, ErrContent) {
		t.Error(err)
	}
	f = newFetcher(t, serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(append(bytes.Clone(content), 0)) }))
	if _, err := f.Get(t.Context(), itemOf(content)); errors.Is(err, ErrDigest) || !errors.Is(err, ErrContent) {
		t.Error(err)
	}
}

func TestRequests(t *testing.T) {
	for code, want := range map[int]struct {
		err       error
		transient bool
	}{200: {}, 206: {}, 404: {ErrGone, false}, 403: {ErrStatus, false}, 503: {ErrStatus, true}, 429: {ErrStatus, true}} {
		err := StatusError(&http.Response{StatusCode: code, Header: http.Header{}}, "")
		if want.err == nil && err != nil || !errors.Is(err, want.err) || IsTransient(err) != want.transient {
			t.Errorf("%d: %v", code, err)
		}
	}
	if err := RequestError(t.Context(), errors.New("broken")); !errors.Is(err, ErrConnect) || !IsTransient(err) {
		t.Error(err)
	}
}
