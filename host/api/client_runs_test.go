package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// serve answers every request as f says, and gives a client.
func serve(t *testing.T, f http.HandlerFunc) *Client {
	t.Helper()
	dir, err := os.MkdirTemp("", "api") // short enough for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: f}
	go srv.Serve(l)
	t.Cleanup(func() { srv.Close() })
	return NewClient(socket)
}

// says answers with a stream of these lines.
func says(lines ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", MediaEvents)
		for _, l := range lines {
			io.WriteString(w, l)
		}
	}
}

const (
	accepted = `{"event": "accepted", "id": "a"}` + "\n"
	last     = `{"event": "receipt", "receipt": {"schema": "pybox.receipt/v1"}, "not_kept": "why"}` + "\n"
)

func TestRun(t *testing.T) {
	var seen []string
	on := func(e Event) error { seen = append(seen, e.Event); return nil }
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		if r.Method != "POST" || r.URL.Path != PathRuns || r.Header.Get("Accept") != MediaEvents || string(b) != `{"program":{"text":"x"}}` {
			t.Errorf("%s %s %v %s", r.Method, r.URL, r.Header, b)
		}
		says(accepted, "{\"event\": \"of the future\", \"more\": 1}\n", `{"event": "output", "stream": "stderr", "base64": "/w=="}`+"\r\n", last, "rubbish")(w, r)
	})
	text := "x"
	o, err := c.Run(t.Context(), RunRequest{Program: Source{Text: &text}}, on)
	if err != nil || o.Receipt == nil || o.NotKept != "why" || strings.Join(seen, " ") != "accepted of the future output" {
		t.Errorf("%+v, %v, %q", o, err, seen)
	}
}

func TestRunOfAHostileDaemon(t *testing.T) {
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		want   error
		says   string
	}{
		"no line":               {says(), ErrHungUp, "middle of the run"},
		"no end":                {says(accepted), ErrHungUp, "middle of the run"},
		"half a line":           {says(accepted, last[:20]), ErrStream, ""},
		"not JSON":              {says("hello\n"), ErrStream, ""},
		"no name":               {says("{}\n"), ErrStream, "name"},
		"null":                  {says("null\n"), ErrStream, "name"},
		"a receipt of nothing":  {says(`{"event": "receipt"}`), ErrStream, "no receipt"},
		"a receipt to come":     {says(`{"event": "receipt", "receipt": {"schema": "pybox.receipt/v2"}}`), ErrStream, "v2"},
		"a problem of nothing":  {says(`{"event": "problem"}`), ErrStream, "type"},
		"a problem of no type":  {says(`{"event": "problem", "problem": {}}`), ErrStream, "type"},
		"output of nothing":     {says(`{"event": "output", "stream": "stdout"}`), ErrStream, "text and base64"},
		"output of two":         {says(`{"event": "output", "stream": "stdout", "text": "", "base64": ""}`), ErrStream, ""},
		"output of no stream":   {says(`{"event": "output", "stream": "3", "text": ""}`), ErrStream, ""},
		"output that is not 64": {says(`{"event": "output", "stream": "stdout", "base64": "!"}`), ErrStream, ""},
		"endless line":          {endless("x"), ErrStream, "longer than"},
		"plain text":            {func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, last) }, ErrStream, "text/plain"},
		"success of no kind":    {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) }, ErrStream, ""},
		"no answer":             {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, ErrHungUp, ""},
		"hangs up": {func(w http.ResponseWriter, r *http.Request) {
			says(accepted)(w, r)
			http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}, ErrHungUp, "middle of the run"},
		"hangs up in a line": {func(w http.ResponseWriter, r *http.Request) {
			says(accepted, last[:20])(w, r)
			http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}, ErrHungUp, "middle of the run"},
		"a failure of no kind": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(500)
			io.WriteString(w, strings.Repeat("x\x1b[2J", 10_000))
		}, nil, "500"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			o, err := serve(t, c.answer).Run(ctx, RunRequest{}, func(Event) error { return nil })
			if err == nil || o != nil || c.want != nil && !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) || len(err.Error()) > 2000 || strings.Contains(err.Error(), "\x1b") {
				t.Errorf("%+v, %.300v; want %v that says %q", o, err, c.want, c.says)
			}
		})
	}
}

// endless repeats s until nobody reads.
func endless(s string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", MediaEvents)
		for piece := []byte(strings.Repeat(s, 64<<10/len(s))); ; {
			if _, err := w.Write(piece); err != nil {
				return
			}
		}
	}
}

func TestRunEnds(t *testing.T) {
	mine := errors.New("mine")
	c := serve(t, endless(accepted))
	n := 0
	if _, err := c.Run(t.Context(), RunRequest{}, func(Event) error {
		if n++; n > 100 {
			return mine
		}
		return nil
	}); err != mine {
		t.Errorf("an error of the receiver: %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	if _, err := c.Run(ctx, RunRequest{}, func(Event) error { cancel(mine); return nil }); err != mine {
		t.Errorf("a context that ends: %v", err)
	}
	silent := serve(t, func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	ctx, stop := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, mine)
	defer stop()
	if _, err := silent.Run(ctx, RunRequest{}, func(Event) error { return nil }); !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, mine) {
		t.Errorf("a daemon that says nothing: %v", err)
	}
	if _, err := NewClient(filepath.Join(t.TempDir(), "none")).Run(t.Context(), RunRequest{}, func(Event) error { return nil }); !errors.Is(err, ErrNoDaemon) {
		t.Errorf("no daemon: %v", err)
	}
}

// What came is not thrown away because ctx ended at that moment.
func TestRunEndsWithItsContext(t *testing.T) {
	problem := `{"event": "problem", "problem": {"type": "urn:pybox:busy"}}` + "\n"
	for name, end := range map[string]string{"receipt": last, "problem": problem} {
		ctx, cancel := context.WithCancel(t.Context())
		o, err := serve(t, says(accepted, end)).Run(ctx, RunRequest{}, func(Event) error { cancel(); return nil })
		var p *Problem
		if name == "receipt" && (err != nil || o == nil) || name == "problem" && !errors.As(err, &p) {
			t.Errorf("%s: %+v, %v", name, o, err)
		}
	}
}

func TestProblemsOfRuns(t *testing.T) {
	problem := `{"type": "urn:pybox:busy", "title": "no room", "status": 503, "detail": "there is none"}`
	for name, answer := range map[string]http.HandlerFunc{
		"before": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(503)
			io.WriteString(w, problem)
		},
		"after": says(accepted, `{"event": "problem", "problem": `+problem+`}`),
	} {
		_, err := serve(t, answer).Run(t.Context(), RunRequest{}, func(Event) error { return nil })
		var p *Problem
		if !errors.As(err, &p) || p.Type != ProblemBusy || p.Error() != "there is none" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestEscapedPaths(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, `{"schema": "pybox.receipt/v1", "run": {"id": %q}}`, r.URL.EscapedPath())
	})
	if r, err := c.Receipt(t.Context(), "../a?b#c d"); err != nil || r.Run.ID != "/v1/receipts/..%2Fa%3Fb%23c%20d" {
		t.Errorf("%+v, %v", r, err)
	}
}

func FuzzReadEvents(f *testing.F) {
	for _, seed := range []string{accepted + last, last, "\n\n", accepted, `{"event": "problem", "problem": {"type": "x"}}`, `{"event": "output", "stream": "stdout", "text": "a"}`, "\xff"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		o, err := readEvents(strings.NewReader(string(b)), func(e Event) error {
			if e.Event == "" || e.Event == EventReceipt || e.Event == EventProblem {
				t.Errorf("the receiver got %+v", e)
			}
			if e.Event == EventOutput {
				if _, err := e.Output(); err != nil {
					t.Errorf("%v", err)
				}
			}
			return nil
		})
		var p *Problem
		switch {
		case (o == nil) == (err == nil):
			t.Errorf("%+v and %v", o, err)
		case o != nil && o.Receipt == nil:
			t.Error("no receipt")
		case err != nil && !errors.Is(err, ErrStream) && !errors.Is(err, ErrHungUp) && !errors.As(err, &p):
			t.Errorf("an error of no kind: %v", err)
		}
	})
}
