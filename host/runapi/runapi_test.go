package runapi

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	agentapi "github.com/pybox/pybox/agent/api"
	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/guestrun"
	"github.com/pybox/pybox/host/policy"
	"github.com/pybox/pybox/host/recall"
	"github.com/pybox/pybox/host/receipt"
	"github.com/pybox/pybox/host/receipts"
	"github.com/pybox/pybox/host/runs"
	"github.com/pybox/pybox/host/spool"
)

// bound is how long any wait of these tests may take.
const bound = 30 * time.Second

// server is a Handler behind a socket, with a service of the test's.
type server struct {
	t      *testing.T
	h      *Handler
	socket string
	client *api.Client
	files  *spool.Spool

	begin func(runs.Request) (Run, error)
	vmErr error
	kept  map[string]*receipt.Receipt
	users atomic.Int32
	used  atomic.Int32

	mu        sync.Mutex
	cancelled map[string]context.CancelCauseFunc
}

func serve(t *testing.T, begin func(runs.Request) (Run, error)) *server {
	t.Helper()
	files, err := spool.Open(filepath.Join(t.TempDir(), "files"), time.Now)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(files.Close)
	s := &server{t: t, begin: begin, files: files, kept: map[string]*receipt.Receipt{}, cancelled: map[string]context.CancelCauseFunc{}}
	s.h = New(Options{VM: s, Files: files, Receipts: s, Wait: 5 * time.Second, Log: slog.New(slog.DiscardHandler)})
	dir, err := os.MkdirTemp("", "runapi") // short enough for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	s.socket = filepath.Join(dir, "s")
	l, err := net.Listen("unix", s.socket)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	for pattern, handle := range s.h.Routes() {
		mux.HandleFunc(pattern, handle)
	}
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0)}
	done := make(chan struct{})
	go func() { defer close(done); srv.Serve(l) }()
	t.Cleanup(func() { srv.Close(); <-done })
	s.client = api.NewClient(s.socket)
	return s
}

func (s *server) Runs(context.Context) (Service, error) { return s, s.vmErr }
func (s *server) Now() Service                          { return s }
func (s *server) Images(context.Context) ([]api.Image, error) {
	return []api.Image{{Name: "stdlib", SHA256: "ab", Bytes: 3}}, s.vmErr
}
func (s *server) Use() func() {
	s.users.Add(1)
	return func() { s.users.Add(-1); s.used.Add(1) }
}
func (s *server) Begin(r runs.Request) (Run, error) { return s.begin(r) }
func (s *server) Active() []api.ActiveRun {
	return []api.ActiveRun{{ID: "a", Image: "stdlib", Program: "main.py", State: "running"}}
}
func (s *server) Cancel(id string, cause error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.cancelled[id]
	if c != nil {
		c(cause)
	}
	return c != nil
}
func (s *server) List(limit int) ([]api.ReceiptSummary, error) {
	return []api.ReceiptSummary{{ID: fmt.Sprint(limit)}}, nil
}
func (s *server) Get(id string) (*receipt.Receipt, error) {
	switch r := s.kept[id]; {
	case id == "broken":
		return nil, errors.New("its file is damaged")
	case r == nil:
		return nil, fmt.Errorf("%w: %s", receipts.ErrNotFound, id)
	default:
		return r, nil
	}
}

func (s *server) ctx() context.Context {
	ctx, cancel := context.WithTimeout(s.t.Context(), bound)
	s.t.Cleanup(cancel)
	return ctx
}

// fakeRun is a run whose course is a function.
type fakeRun struct {
	id     string
	output int64
	do     func(ctx context.Context, sink runs.Sink) error
	leaves func(*receipt.Receipt) // adds what it leaves
}

func (r *fakeRun) ID() string            { return r.id }
func (r *fakeRun) Limits() policy.Limits { return policy.Limits{OutputBytes: r.output} }
func (r *fakeRun) Elapsed() time.Duration {
	return 1500 * time.Microsecond
}
func (r *fakeRun) Do(ctx context.Context, sink runs.Sink) (*receipt.Receipt, error, error) {
	if ctx.Err() != nil {
		return nil, nil, fmt.Errorf("the run was not begun: %w", context.Cause(ctx))
	}
	rec, err := r.carryOut(ctx, sink)
	if sink.Ended != nil {
		sink.Ended(rec, nil, err)
	}
	return rec, nil, err
}

func (r *fakeRun) carryOut(ctx context.Context, sink runs.Sink) (*receipt.Receipt, error) {
	if err := sink.Event(api.Event{Event: api.EventAccepted, ID: r.id}); err != nil {
		return nil, err
	}
	if r.do != nil {
		if err := r.do(ctx, tapped(sink)); err != nil {
			return nil, err
		}
	}
	rec := newReceipt(r.id)
	if r.leaves != nil {
		r.leaves(rec)
	}
	return rec, nil
}

// tapped is a sink of a fake, which has everything heard that it takes.
func tapped(s runs.Sink) runs.Sink {
	if s.Heard == nil {
		return s
	}
	event, output := s.Event, s.Output
	s.Event = func(e api.Event) error { s.Heard(e, 0, nil); return event(e) }
	s.Output = func(ms float64, n int, b []byte) error { s.Heard(api.Event{}, n, b); return output(ms, n, b) }
	return s
}

func newReceipt(id string) *receipt.Receipt {
	return &receipt.Receipt{Schema: receipt.Schema, Run: receipt.Run{ID: id}, Ending: receipt.Ending{How: receipt.HowExited, By: receipt.ByProgram, Evidence: []string{"<it> & ended"}}}
}

// program accepts every request as a run that goes as do says.
func program(do func(ctx context.Context, sink runs.Sink) error) func(runs.Request) (Run, error) {
	return func(r runs.Request) (Run, error) {
		id := r.ID
		if id == "" {
			id = "0123abcd"
		}
		return &fakeRun{id: id, output: 1 << 20, do: do}, nil
	}
}

func text(s string) api.Source { return api.Source{Text: &s} }

// ask sends a request and gives the status, the problem if it is one, and the body.
func (s *server) ask(method, path, body string, header ...string) (*http.Response, api.Problem, []byte) {
	s.t.Helper()
	hc := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", s.socket)
	}}}
	req, err := http.NewRequestWithContext(s.ctx(), method, "http://pybox"+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := hc.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	var p api.Problem
	if resp.Header.Get("Content-Type") == "application/problem+json" {
		if err := json.Unmarshal(b, &p); err != nil || p.Status != resp.StatusCode || p.Title == "" || p.Detail == "" {
			s.t.Errorf("a problem that is none: %s %q", resp.Status, b)
		}
	}
	return resp, p, b
}

func TestRequestsAreReadStrictly(t *testing.T) {
	s := serve(t, func(runs.Request) (Run, error) {
		t.Error("a bad request came through")
		return nil, agentapi.ErrRequest
	})
	source := func(member string) string { return `{"program": {` + member + `}}` }
	limits := func(member string) string { return `{"program": {"text": ""}, "limits": {` + member + `}}` }
	for name, c := range map[string]struct {
		body   string
		status int
		want   string
	}{
		"nothing":              {"", 400, "empty"},
		"not JSON":             {"print(1)", 400, "not the JSON of a run"},
		"half":                 {`{"program": {"text": "`, 400, "in the middle"},
		"null":                 {"null", 400, "program: want exactly one"},
		"array":                {"[]", 400, "JSON"},
		"no program":           {"{}", 400, "program: want exactly one of text, base64 and file, not 0"},
		"two values":           {`{"program": {"text": ""}} {}`, 400, "more than one"},
		"rubbish behind":       {`{"program": {"text": ""}} x`, 400, "more than one"},
		"unknown field":        {`{"program": {"text": ""}, "tiemout": 1}`, 400, `"tiemout"`},
		"unknown limit":        {limits(`"cpu": 1`), 400, `"cpu"`},
		"no source":            {source(``), 400, "not 0"},
		"empty file":           {source(`"file": ""`), 400, "not 0"},
		"text and base64":      {source(`"text": "", "base64": ""`), 400, "not 2"},
		"three":                {source(`"text": "", "base64": "", "file": "x"`), 400, "not 3"},
		"stdin of two":         {`{"program": {"text": ""}, "stdin": {"text": "", "file": "x"}}`, 400, "stdin: want exactly one"},
		"stdin with a name":    {`{"program": {"text": ""}, "stdin": {"text": "", "name": "x"}}`, 400, "stdin.name"},
		"base64":               {source(`"base64": "!"`), 400, "program.base64"},
		"base64 without end":   {source(`"base64": "QQ"`), 400, "program.base64"},
		"base64 with bits":     {source(`"base64": "QR=="`), 400, "program.base64"},
		"base64 in lines":      {source(`"base64": "QUFB\nQUFB"`), 400, "line breaks"},
		"base64 for URLs":      {source(`"base64": "__-_"`), 400, "program.base64"},
		"not UTF-8":            {source("\"text\": \"\xff\""), 400, "UTF-8"},
		"half a character":     {source(`"text": "\ud83d"`), 400, `\ud83d`},
		"the other half":       {source(`"text": "\\\\ \ude00"`), 400, `\ude00`},
		"two first halves":     {source(`"text": "\uD83D\uD83D"`), 400, `\uD83D`},
		"missing file":         {source(`"file": "0123456789abcdef0123456789abcdef"`), 404, "program.file"},
		"time of words":        {limits(`"timeout_ms": "1s"`), 400, "limits.timeout_ms"},
		"time beyond floats":   {limits(`"timeout_ms": 1e999`), 400, "limits.timeout_ms"},
		"time beyond a time":   {limits(`"timeout_ms": 1e300`), 400, "limits.timeout_ms"},
		"the same below":       {limits(`"timeout_ms": -1e300`), 400, "limits.timeout_ms"},
		"memory beyond":        {limits(`"memory_bytes": 9223372036854775808`), 400, "limits.memory_bytes"},
		"part of a byte":       {limits(`"memory_bytes": 1.5`), 400, "limits.memory_bytes"},
		"part of a process":    {limits(`"pids": 1e-1`), 400, "limits.pids"},
		"cpus beyond":          {limits(`"cpus": -1e999`), 400, "limits.cpus"},
		"NaN":                  {limits(`"cpus": NaN`), 400, "JSON"},
		"large program":        {source(`"text": "` + strings.Repeat("x", api.MaxInline+1) + `"`), 413, "program.text"},
		"large base64":         {source(`"base64": "` + strings.Repeat("AAAA", api.MaxInline/3+1) + `"`), 413, "program.base64"},
		"large body":           {source(`"text": "` + strings.Repeat("x", maxBody) + `"`), 413, "larger than"},
		"deep":                 {`{"program": ` + strings.Repeat("[", 100_000), 400, "JSON"},
		"two programs":         {`{"program": {"text": "a"}, "program": {"name": "b"}}`, 400, `"program" twice`},
		"two texts":            {source(`"text": "a", "text": "b"`), 400, `"text" twice`},
		"two by an escape":     {source(`"text": "a", "te\u0078t": "b"`), 400, `"text" twice`},
		"another case":         {`{"PROGRAM": {"text": ""}}`, 400, `"PROGRAM"`},
		"another case of some": {limits(`"timeout_mS": 1`), 400, `"timeout_mS"`},
		"a letter that folds":  {`{"program": {"text": ""}, "\u017ftdin": {"text": ""}}`, 400, `"ſtdin"`},
		"many arguments":       {`{"program": {"text": ""}, "args": [` + strings.Repeat(`"",`, 1024) + `""]}`, 400, "args: more than"},
		"deep in a field":      {`{"program": {"text": ` + strings.Repeat("[", 4_000_000), 400, "JSON"},
		"arguments of numbers": {`{"program": {"text": ""}, "args": [1]}`, 400, "args"},
	} {
		t.Run(name, func(t *testing.T) {
			resp, p, b := s.ask("POST", api.PathRuns, c.body)
			typ := api.ProblemBadRequest
			if c.status == 404 {
				typ = api.ProblemFile
			}
			if resp.StatusCode != c.status || p.Type != typ || !strings.Contains(p.Detail, c.want) || len(b) > 2000 {
				t.Errorf("got %s %.300q, want %d that says %q", resp.Status, b, c.status, c.want)
			}
			if c.status == 413 && !strings.Contains(p.Next, api.PathFiles) {
				t.Errorf("does not say what to do: %q", b)
			}
		})
	}
	if n := s.users.Load(); n != 0 {
		t.Errorf("%d users are left", n)
	}
}

func TestWhatTheServiceGets(t *testing.T) {
	var got runs.Request
	contents := map[string]string{}
	s := serve(t, func(r runs.Request) (Run, error) {
		got = r
		for name, f := range map[string]*runs.File{"program": &r.Program, "stdin": r.Stdin} {
			if f == nil {
				continue
			}
			c, err := f.Open()
			if err != nil {
				return nil, err
			}
			b, err := io.ReadAll(c)
			if err != nil || int64(len(b)) != f.Bytes {
				t.Errorf("%s: %d bytes of %d, %v", name, len(b), f.Bytes, err)
			}
			contents[name] = string(b)
		}
		return program(nil)(r)
	})
	file, err := s.client.StoreFile(s.ctx(), strings.NewReader("input"))
	if err != nil {
		t.Fatal(err)
	}
	_, p, b := s.ask("POST", api.PathRuns, `{"id": "mine", "image": "data", "program": {"name": "é.py", "base64": "/wCA"}, "args": ["a", "\ud83d\ude00"],
		"env": ["A=b"], "stdin": {"file": "`+file.File+`"}, "watch": true, "limits": {"timeout_ms": 1500.5, "memory_bytes": 1, "cpus": 0.25, "pids": 3, "output_bytes": 4, "files": 5, "files_bytes": 6}}`)
	if p.Type != "" {
		t.Fatalf("%s", b)
	}
	a := got.Ask
	if got.ID != "mine" || got.Image != "data" || got.Program.Name != "é.py" || len(got.Args) != 2 || got.Args[1] != "😀" || got.Env[0] != "A=b" || !got.Watch ||
		contents["program"] != "\xff\x00\x80" || contents["stdin"] != "input" || *a.Timeout != 1500500*time.Microsecond ||
		*a.MemoryBytes != 1 || *a.CPUs != 0.25 || *a.PIDs != 3 || *a.OutputBytes != 4 || *a.Files != 5 || *a.FilesBytes != 6 {
		t.Errorf("got %+v, %+v, %q", got, a, contents)
	}
	if _, p, _ := s.ask("POST", api.PathRuns, `{"program": {"file": "`+file.File+`"}}`); p.Type != api.ProblemFile {
		t.Errorf("a file served two runs: %+v", p)
	}
	if _, p, _ := s.ask("POST", api.PathRuns, `{"program": {"text": ""}}`); p.Type != "" || got.Stdin != nil || got.Ask.Timeout != nil || contents["program"] != "" {
		t.Errorf("an empty program: %+v, %+v", p, got)
	}
}

func TestProblems(t *testing.T) {
	for name, c := range map[string]struct {
		err    error
		status int
		typ    string
	}{
		"request": {fmt.Errorf("%w: id", agentapi.ErrRequest), 400, api.ProblemBadRequest},
		"invalid": {fmt.Errorf("%w: memory", policy.ErrInvalid), 400, api.ProblemBadRequest},
		"ceiling": {fmt.Errorf("memory is %w", policy.ErrCeiling), 403, api.ProblemCeiling},
		"image":   {fmt.Errorf("%w: x", runs.ErrImage), 404, api.ProblemImage},
		"exists":  {fmt.Errorf("%w: x", runs.ErrExists), 409, api.ProblemExists},
		"closed":  {runs.ErrClosed, 409, api.ProblemStopping},
		"busy":    {runs.ErrBusy, 503, api.ProblemBusy},
		"no room": {fmt.Errorf("%w to keep what it leaves: %w", runs.ErrBusy, spool.ErrNoRoom), 503, api.ProblemBusy},
		"taken":   {fmt.Errorf("%w: x", guestrun.ErrNotTaken), 502, api.ProblemNotRun},
		"files":   {fmt.Errorf("%w: x", guestrun.ErrFiles), 502, api.ProblemNotRun},
		"deleted": {errDeleted, 409, api.ProblemNotRun},
		"start":   {&api.Problem{Type: api.ProblemStart, Title: "x", Detail: "y", Status: 502}, 502, api.ProblemStart},
		"other":   {errors.New("a bug"), 500, api.ProblemInternal},
	} {
		t.Run(name, func(t *testing.T) {
			check := func(how string, err error) {
				var p *api.Problem
				if !errors.As(err, &p) || p.Type != c.typ || p.Status != c.status || !strings.Contains(p.Detail, c.err.Error()) {
					t.Errorf("%s: got %v %+v, want %d %s", how, err, p, c.status, c.typ)
				}
			}
			s := serve(t, func(runs.Request) (Run, error) { return nil, c.err })
			_, err := s.client.Run(s.ctx(), api.RunRequest{Program: text("")}, func(api.Event) error { return nil })
			check("before the run", err)
			s.begin = program(func(context.Context, runs.Sink) error { return c.err })
			_, p, _ := s.ask("POST", api.PathRuns, `{"program": {"text": ""}}`)
			check("in place of a record", &p)
			accepted := false
			_, err = s.client.Run(s.ctx(), api.RunRequest{Program: text("")}, func(e api.Event) error {
				accepted = accepted || e.Event == api.EventAccepted
				return nil
			})
			check("as an event", err)
			if !accepted {
				t.Error("the problem did not come as an event")
			}
			s.vmErr = c.err
			_, err = s.client.Run(s.ctx(), api.RunRequest{Program: text("")}, func(api.Event) error { return nil })
			check("from the VM", err)
			_, err = s.client.Images(s.ctx())
			check("of the images", err)
		})
	}
}

func TestSpoolProblems(t *testing.T) {
	h := New(Options{Log: slog.New(slog.DiscardHandler)})
	for err, want := range map[error]int{spool.ErrTooMuch: 429, spool.ErrFull: 507, spool.ErrNotFound: 404, spool.ErrClosed: 409, errMemory: 503, errRequests: 503} {
		if p := h.problem(fmt.Errorf("why: %w", err)); p.Status != want || p.Type == "" || p.Next == "" {
			t.Errorf("%v: %+v, want %d", err, p, want)
		}
	}
}

// Where what earlier runs left takes all the room, a client is told to delete it, and not
// to wait for runs that have ended.
func TestNoRoomForFiles(t *testing.T) {
	h := New(Options{Log: slog.New(slog.DiscardHandler)})
	p := h.problem(fmt.Errorf("%w to keep what it leaves: %w", runs.ErrBusy, spool.ErrNoRoom))
	if p.Status != 503 || !strings.Contains(p.Next, "DELETE /v1/files/ID") {
		t.Errorf("%+v", p)
	}
}

func TestEventsComeAtOnce(t *testing.T) {
	next := make(chan struct{})
	s := serve(t, program(func(ctx context.Context, sink runs.Sink) error {
		for _, e := range []api.Event{{Event: api.EventAdmitted, MS: 1}, {Event: api.EventStarted, MS: 2}, {Event: api.EventExited, MS: 3, Ending: &receipt.Ending{How: "exited"}}} {
			select {
			case <-next: // the client has seen the last one
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			if err := sink.Event(e); err != nil {
				return err
			}
		}
		<-next
		return nil
	}))
	var seen []string
	out, err := s.client.Run(s.ctx(), api.RunRequest{Program: text("")}, func(e api.Event) error {
		seen = append(seen, e.Event)
		next <- struct{}{}
		return nil
	})
	if got := strings.Join(seen, " "); err != nil || got != "accepted admitted started exited" || out.Receipt.Run.ID != "0123abcd" || out.NotKept != "" {
		t.Errorf("got %q, %+v, %v", got, out, err)
	}
}

// outputs are what programs print: each piece as the service passes it on.
func outputs() map[string][]string {
	long := strings.Repeat("é€😀", 40_000)
	return map[string][]string{
		"nothing":            {},
		"text":               {"a\n", "<b> & 'c' \u2028 \x00\x1b[0m\x7f", "\"\\"},
		"cut characters":     {"\xe2", "\x82", "\xac😀"[:5], "\xf0\x9f", "\x98\x80", "x"},
		"cut at the end":     {"abc\xe2\x82"},
		"not text":           {"\xff\xfe\x00", "abc"},
		"late":               {"abc", strings.Repeat("x", 100_000), "\x80"},
		"longer than events": {long[:250_000], long[250_000:250_001], long[250_001:]},
		"bytes":              {strings.Repeat("\x80", 300_001)},
		"controls":           {strings.Repeat("\x00", 200_000)},
	}
}

func TestOutputIsTheSameByteForByte(t *testing.T) {
	for name, pieces := range outputs() {
		t.Run(name, func(t *testing.T) {
			want := strings.Join(pieces, "")
			s := serve(t, program(func(_ context.Context, sink runs.Sink) error {
				for n := 1; n <= 2; n++ {
					for _, p := range pieces {
						b := []byte(p)
						if err := sink.Output(1, n, b); err != nil {
							return err
						}
						clear(b) // it must not be kept
					}
				}
				return nil
			}))
			got := map[string]string{}
			if _, err := s.client.Run(s.ctx(), api.RunRequest{Program: text("")}, func(e api.Event) error {
				if e.Event == api.EventOutput {
					b, err := e.Output()
					got[e.Stream] += string(b)
					return err
				}
				return nil
			}); err != nil || got["stdout"] != want || got["stderr"] != want {
				t.Errorf("as events: %v; %d and %d bytes of %d", err, len(got["stdout"]), len(got["stderr"]), len(want))
			}
			resp, p, b := s.ask("POST", api.PathRuns, `{"program": {"text": ""}}`)
			var r receipt.Receipt
			if err := json.Unmarshal(b, &r); err != nil || resp.StatusCode != 200 || r.Run.ID != "0123abcd" || r.Ending.Evidence[0] != "<it> & ended" {
				t.Fatalf("the record: %s %+v %v", resp.Status, p, err)
			}
			for stream, out := range map[string]receipt.Stream{"stdout": r.Program.Stdout, "stderr": r.Program.Stderr} {
				e := api.Event{Event: api.EventOutput, Stream: stream, Text: out.Text, Base64: out.Base64}
				if got, err := e.Output(); err != nil || string(got) != want {
					t.Errorf("in the record, %s: %v; %d bytes of %d", stream, err, len(got), len(want))
				}
			}
		})
	}
}

func TestLinesOfAStreamAreBounded(t *testing.T) {
	s := serve(t, program(func(_ context.Context, sink runs.Sink) error {
		return sink.Output(1, 1, bytes.Repeat([]byte{0}, 1<<20))
	}))
	longest := 0
	resp, _, b := s.ask("POST", api.PathRuns, `{"program": {"text": ""}}`, "Accept", "text/plain, "+api.MediaEvents+";q=0.5")
	for line := range bytes.Lines(b) {
		longest = max(longest, len(line))
	}
	if longest > 512<<10 || resp.Header.Get("Content-Type") != api.MediaEvents {
		t.Errorf("a line of %d bytes, %q", longest, resp.Header)
	}
}

func TestNotKept(t *testing.T) {
	s := serve(t, func(runs.Request) (Run, error) { return &notKept{}, nil })
	out, err := s.client.Run(s.ctx(), api.RunRequest{Program: text("")}, func(api.Event) error { return nil })
	if err != nil || out.NotKept != "the disk\nis full" {
		t.Errorf("%+v, %v", out, err)
	}
	if resp, _, _ := s.ask("POST", api.PathRuns, `{"program": {"text": ""}}`); !strings.HasPrefix(resp.Header.Get(NotKept), "the disk") {
		t.Errorf("%+v", resp.Header)
	}
}

type notKept struct{ fakeRun }

func (*notKept) Do(context.Context, runs.Sink) (*receipt.Receipt, error, error) {
	return newReceipt("x"), errors.New("the disk\nis full"), nil
}

func TestHangUp(t *testing.T) {
	for name, c := range map[string]struct {
		id, accept string
		lives      bool
	}{
		"events":           {accept: api.MediaEvents},
		"record":           {},
		"events, named":    {id: "mine", accept: api.MediaEvents, lives: true},
		"record, named":    {id: "mine", lives: true},
		"half-closed, too": {},
	} {
		t.Run(name, func(t *testing.T) {
			began, gone, over := make(chan struct{}), make(chan struct{}), make(chan error, 1)
			s := serve(t, program(func(ctx context.Context, sink runs.Sink) error {
				close(began)
				if c.lives {
					<-gone
				} else {
					<-ctx.Done()
				}
				// More than a socket holds, so that it is noticed.
				err := sink.Output(1, 1, make([]byte, 4<<20))
				over <- errors.Join(context.Cause(ctx), err)
				return err
			}))
			conn, err := net.Dial("unix", s.socket)
			if err != nil {
				t.Fatal(err)
			}
			body := `{"id": "` + c.id + `", "program": {"text": ""}}`
			fmt.Fprintf(conn, "POST /v1/runs HTTP/1.1\r\nHost: x\r\nAccept: %s\r\nContent-Length: %d\r\n\r\n%s", c.accept, len(body), body)
			<-began
			conn.Close()
			close(gone)
			select {
			case err := <-over:
				if c.lives && err != nil || !c.lives && !errors.Is(err, errGone) {
					t.Errorf("the run: %v", err)
				}
			case <-time.After(bound):
				t.Fatal("the run did not end")
			}
		})
	}
}

func TestAClientThatNeverReads(t *testing.T) {
	over := make(chan error, 1)
	s := serve(t, func(r runs.Request) (Run, error) {
		if r.ID != "" {
			return program(nil)(r)
		}
		return program(func(ctx context.Context, sink runs.Sink) error {
			err := sink.Output(1, 1, make([]byte, 8<<20))
			over <- err
			return err
		})(r)
	})
	conn, err := net.Dial("unix", s.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	body := `{"program": {"text": ""}}`
	fmt.Fprintf(conn, "POST /v1/runs HTTP/1.1\r\nHost: x\r\nAccept: %s\r\nContent-Length: %d\r\n\r\n%s", api.MediaEvents, len(body), body)
	// Others are served meanwhile.
	for range 20 {
		if _, err := s.client.Run(s.ctx(), api.RunRequest{ID: "other", Program: text("")}, func(api.Event) error { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case err := <-over:
		t.Fatalf("it did not block: %v", err)
	default:
	}
	s.h.Hurry(50 * time.Millisecond) // instead of waiting for a minute
	select {
	case err := <-over:
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	case <-time.After(bound):
		t.Fatal("it holds its run")
	}
}

func TestClientsCallbackEndsTheRun(t *testing.T) {
	cause := make(chan error, 1)
	s := serve(t, program(func(ctx context.Context, sink runs.Sink) error {
		<-ctx.Done()
		cause <- context.Cause(ctx)
		return context.Cause(ctx)
	}))
	mine := errors.New("mine")
	if _, err := s.client.Run(s.ctx(), api.RunRequest{Program: text("")}, func(api.Event) error { return mine }); err != mine {
		t.Errorf("got %v", err)
	}
	if err := <-cause; !errors.Is(err, errGone) {
		t.Errorf("the run: %v", err)
	}
	ctx, cancel := context.WithCancelCause(s.ctx())
	_, err := s.client.Run(ctx, api.RunRequest{Program: text("")}, func(api.Event) error { cancel(mine); return nil })
	if !errors.Is(err, mine) {
		t.Errorf("a context that ends: %v", err)
	}
	<-cause
}

func TestMemoryForRecords(t *testing.T) {
	hold := make(chan struct{})
	s := serve(t, func(r runs.Request) (Run, error) {
		return &fakeRun{id: r.ID, output: outputMemory / 4, do: func(ctx context.Context, _ runs.Sink) error {
			select {
			case <-hold:
			case <-ctx.Done():
			}
			return nil
		}}, nil
	})
	s.h.o.Wait = 200 * time.Millisecond
	var wg sync.WaitGroup
	post := func(id string) (p api.Problem) {
		_, p, _ = s.ask("POST", api.PathRuns, `{"id": "`+id+`", "program": {"text": ""}}`)
		return p
	}
	for _, id := range []string{"a", "b"} { // half of the memory each
		wg.Go(func() {
			if p := post(id); p.Type != "" {
				t.Errorf("%s: %+v", id, p)
			}
		})
	}
	await(t, func() bool {
		free := s.h.outputs.TryAcquire(1)
		if free {
			s.h.outputs.Release(1)
		}
		return !free
	})
	if p := post("c"); p.Type != api.ProblemBusy || p.Status != 503 {
		t.Errorf("the third: %+v", p)
	}
	if _, err := s.client.Run(s.ctx(), api.RunRequest{ID: "d", Program: text("")}, func(e api.Event) error { close(hold); return nil }); err != nil {
		t.Errorf("one that takes events: %v", err)
	}
	wg.Wait()
	if p := post("e"); p.Type != "" {
		t.Errorf("later: %+v", p)
	}
}

// A run that waits for memory can be cancelled, and does not keep the daemon.
func TestWaitingForMemoryEnds(t *testing.T) {
	for name, end := range map[string]func(*server){
		"deleted": func(s *server) {
			if err := s.client.CancelRun(s.ctx(), "mine"); err != nil {
				t.Error(err)
			}
		},
		"hurried": func(s *server) { s.h.Hurry(time.Second) },
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, program(nil))
			s.h.o.Wait = bound
			if !s.h.outputs.TryAcquire(outputMemory) {
				t.Fatal("no memory")
			}
			got := make(chan api.Problem, 1)
			go func() {
				_, p, _ := s.ask("POST", api.PathRuns, `{"id": "mine", "program": {"text": ""}}`)
				got <- p
			}()
			await(t, func() bool { s.h.mu.Lock(); defer s.h.mu.Unlock(); return s.h.waiting["mine"] != nil })
			end(s)
			if p := <-got; p.Status != 409 || p.Type != api.ProblemNotRun && p.Type != api.ProblemStopping {
				t.Errorf("got %+v", p)
			}
		})
	}
}

func await(t *testing.T, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(bound); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it did not come to that")
		}
	}
}

func TestDeleteRaces(t *testing.T) {
	s := serve(t, nil)
	s.begin = func(r runs.Request) (Run, error) {
		return &fakeRun{id: r.ID, do: func(ctx context.Context, sink runs.Sink) error {
			ctx, cancel := context.WithCancelCause(ctx)
			s.mu.Lock()
			s.cancelled[r.ID] = cancel
			s.mu.Unlock()
			if err := sink.Event(api.Event{Event: api.EventStarted}); err != nil {
				return err
			}
			<-ctx.Done()
			s.mu.Lock()
			delete(s.cancelled, r.ID)
			s.mu.Unlock()
			return context.Cause(ctx)
		}}, nil
	}
	var wg sync.WaitGroup
	for i := range 20 {
		id := fmt.Sprint("run-", i)
		started := make(chan struct{})
		wg.Go(func() {
			_, err := s.client.Run(s.ctx(), api.RunRequest{ID: id, Program: text("")}, func(e api.Event) error {
				if e.Event == api.EventStarted {
					close(started)
				}
				return nil
			})
			var p *api.Problem
			if !errors.As(err, &p) || p.Type != api.ProblemNotRun {
				t.Errorf("%s: %v", id, err)
			}
		})
		var took atomic.Int32
		for range 5 {
			wg.Go(func() {
				<-started
				err := s.client.CancelRun(s.ctx(), id)
				var p *api.Problem
				switch {
				case err == nil:
					took.Add(1)
				case !errors.As(err, &p) || p.Type != api.ProblemNotFound:
					t.Errorf("%s: %v", id, err)
				}
			})
		}
		wg.Wait()
		if took.Load() < 1 {
			t.Errorf("%s: nobody's cancellation was taken", id)
		}
	}
	if err := s.client.CancelRun(s.ctx(), "no/such run"); err == nil {
		t.Error("a run that is not there was cancelled")
	}
}

func TestLists(t *testing.T) {
	s := serve(t, program(nil))
	s.kept["kept-1"] = newReceipt("kept-1")
	s.kept["future"] = &receipt.Receipt{Schema: "pybox.receipt/v9"}
	if r, err := s.client.Runs(s.ctx()); err != nil || len(r) != 1 || r[0].ID != "a" {
		t.Errorf("runs: %+v, %v", r, err)
	}
	if i, err := s.client.Images(s.ctx()); err != nil || len(i) != 1 || i[0].Name != "stdlib" {
		t.Errorf("images: %+v, %v", i, err)
	}
	for limit, want := range map[int]string{0: "20", 1: "1", 1000: "1000"} {
		if r, err := s.client.Receipts(s.ctx(), limit); err != nil || len(r) != 1 || r[0].ID != want {
			t.Errorf("receipts, limit %d: %+v, %v", limit, r, err)
		}
	}
	if r, err := s.client.Receipt(s.ctx(), "kept-1"); err != nil || r.Run.ID != "kept-1" {
		t.Errorf("receipt: %+v, %v", r, err)
	}
	if _, err := s.client.Receipt(s.ctx(), "future"); err == nil || !strings.Contains(err.Error(), "v9") {
		t.Errorf("a receipt of the future: %v", err)
	}
	for path, want := range map[string]struct {
		status int
		typ    string
	}{
		"/v1/receipts?limit=0":             {400, api.ProblemBadRequest},
		"/v1/receipts?limit=1001":          {400, api.ProblemBadRequest},
		"/v1/receipts?limit=":              {400, api.ProblemBadRequest},
		"/v1/receipts?limit=1e3":           {400, api.ProblemBadRequest},
		"/v1/receipts?limit=1&limit=2":     {400, api.ProblemBadRequest},
		"/v1/receipts?limt=1":              {400, api.ProblemBadRequest},
		"/v1/receipts?limit=%zz":           {400, api.ProblemBadRequest},
		"/v1/receipts/none":                {404, api.ProblemNotFound},
		"/v1/receipts/..%2f..%2fetc":       {404, api.ProblemNotFound},
		"/v1/receipts/BIG":                 {404, api.ProblemNotFound},
		"/v1/receipts/" + longID:           {404, api.ProblemNotFound},
		"/v1/receipts/broken":              {500, api.ProblemInternal},
		"/v1/receipts/%1b%5b2Jx%00%c3%28x": {404, api.ProblemNotFound},
	} {
		if resp, p, b := s.ask("GET", path, ""); resp.StatusCode != want.status || p.Type != want.typ {
			t.Errorf("%s: %s %s", path, resp.Status, b)
		}
	}
}

var longID = strings.Repeat("a", 41)

func TestFiles(t *testing.T) {
	s := serve(t, program(nil))
	if f, err := s.client.StoreFile(s.ctx(), strings.NewReader("abc")); err != nil || len(f.File) != 32 || f.Bytes != 3 ||
		f.SHA256 != "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" {
		t.Errorf("%+v, %v", f, err)
	}
	if f, err := s.client.StoreFile(s.ctx(), strings.NewReader("")); err != nil || f.Bytes != 0 {
		t.Errorf("an empty one: %+v, %v", f, err)
	}
	// One that says that it is too large is not read.
	if answer := s.raw(fmt.Sprintf("POST /v1/files HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", spool.MaxFileBytes+1)); !strings.HasPrefix(answer, "HTTP/1.1 413") {
		t.Errorf("a large one: %.100q", answer)
	}
	failing := errors.New("mine")
	if _, err := s.client.StoreFile(s.ctx(), io.MultiReader(strings.NewReader("abc"), errReader{failing})); !errors.Is(err, failing) {
		t.Errorf("a source that fails: %v", err)
	}
	for range spool.MaxFiles - 2 {
		if _, err := s.client.StoreFile(s.ctx(), strings.NewReader("")); err != nil {
			t.Fatal(err)
		}
	}
	_, err := s.client.StoreFile(s.ctx(), strings.NewReader(strings.Repeat("x", 4<<20)))
	var p *api.Problem
	if !errors.As(err, &p) || p.Status != 429 || p.Type != api.ProblemBusy {
		t.Errorf("one too many: %v", err)
	}
}

type errReader struct{ err error }

func (e errReader) Read([]byte) (int, error) { return 0, e.err }

// raw sends bytes and reads what comes until the server ends the connection, or the
// first answer has come.
func (s *server) raw(request string) string {
	s.t.Helper()
	conn, err := net.Dial("unix", s.socket)
	if err != nil {
		s.t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(bound))
	io.WriteString(conn, request) // it may be answered before it has been read
	return readAnswer(conn)
}

func readAnswer(conn net.Conn) string {
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return fmt.Sprint("HTTP/1.1 ", resp.Status, " ", string(b), err)
}

func TestRawSockets(t *testing.T) {
	s := serve(t, program(nil))
	s.h.times = times{stall: 200 * time.Millisecond, body: 2 * time.Second, file: 2 * time.Second, deliver: bound}
	const body = `{"program": {"text": ""}}`
	head := func(path string, n int) string {
		return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", path, n)
	}
	for name, c := range map[string]struct{ request, want string }{
		"whole":                   {head("/v1/runs", len(body)) + body, "HTTP/1.1 200"},
		"silent after headers":    {head("/v1/runs", len(body)), "HTTP/1.1 408"},
		"half a body":             {head("/v1/runs", len(body)) + body[:9], "HTTP/1.1 408"},
		"half a file":             {head("/v1/files", 10) + "abc", "HTTP/1.1 408"},
		"body longer than told":   {head("/v1/runs", len(body)) + body + "xxxxxxxxxxxxxxxxxxxxxxxxxxxx", "HTTP/1.1 200"},
		"body shorter, of a file": {head("/v1/files", 2) + "abcdef", "HTTP/1.1 200"},
		"no length":               {"POST /v1/runs HTTP/1.0\r\n\r\n" + body, "HTTP/1.1 400"},
		"bad chunks":              {"POST /v1/runs HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "HTTP/1.1 400"},
		"chunks":                  {"POST /v1/runs HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n19\r\n" + body + "\r\n0\r\n\r\n", "HTTP/1.1 200"},
		"huge length":             {"POST /v1/runs HTTP/1.1\r\nHost: x\r\nContent-Length: 9999999999\r\n\r\n", "HTTP/1.1 413"},
		"expects":                 {"POST /v1/files HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 999999999\r\n\r\n", "HTTP/1.1 413"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := s.raw(c.request); !strings.HasPrefix(got, c.want) {
				t.Errorf("got %.300q, want %s", got, c.want)
			}
		})
	}
	t.Run("byte by byte", func(t *testing.T) {
		conn, err := net.Dial("unix", s.socket)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(bound))
		for _, b := range []byte(head("/v1/runs", len(body)) + body) {
			if _, err := conn.Write([]byte{b}); err != nil {
				t.Fatal(err)
			}
		}
		if got := readAnswer(conn); !strings.HasPrefix(got, "HTTP/1.1 200") {
			t.Errorf("got %q", got)
		}
	})
	t.Run("trickle", func(t *testing.T) { // each byte is in time, all are not
		conn, err := net.Dial("unix", s.socket)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(bound))
		io.WriteString(conn, head("/v1/files", 1<<20))
		stop := make(chan struct{})
		go func() {
			tick := time.NewTicker(50 * time.Millisecond)
			defer tick.Stop()
			for {
				select {
				case <-tick.C:
					conn.Write([]byte("x"))
				case <-stop:
					return
				}
			}
		}()
		from := time.Now()
		got := readAnswer(conn)
		close(stop)
		if took := time.Since(from); !strings.HasPrefix(got, "HTTP/1.1 408") || took < time.Second {
			t.Errorf("got %q after %v", got, took)
		}
	})
	t.Run("200 connections", func(t *testing.T) {
		var idle []net.Conn
		for range 200 {
			conn, err := net.Dial("unix", s.socket)
			if err != nil {
				t.Fatal(err)
			}
			io.WriteString(conn, "POST /v1/runs HT")
			idle = append(idle, conn)
		}
		var wg sync.WaitGroup
		for range 200 {
			wg.Go(func() {
				if got := s.raw(head("/v1/runs", len(body)) + body); !strings.HasPrefix(got, "HTTP/1.1 200") {
					t.Errorf("got %.200q", got)
				}
			})
		}
		wg.Wait()
		for _, c := range idle {
			c.Close()
		}
	})
	await(t, func() bool { return s.users.Load() == 0 && s.h.requests.TryAcquire(requestMemory) })
}

// Large requests wait for one another rather than be in memory together, and small ones
// do not wait for them.
func TestMemoryForRequests(t *testing.T) {
	hold := make(chan struct{})
	var most, now atomic.Int32
	s := serve(t, func(r runs.Request) (Run, error) {
		if r.ID != "" {
			return program(nil)(r)
		}
		return program(func(context.Context, runs.Sink) error {
			n := now.Add(1)
			defer now.Add(-1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			<-hold
			return nil
		})(r)
	})
	s.h.o.Wait = bound
	const large = 2
	full := `{"program": {"text": "` + strings.Repeat("x", smallBody) + `"}}`
	if !s.h.requests.TryAcquire(requestMemory - large*int64(len(full))) {
		t.Fatal("no memory")
	}
	var wg sync.WaitGroup
	for i := range large + 2 {
		wg.Go(func() {
			if _, p, _ := s.ask("POST", api.PathRuns, full); p.Type != "" {
				t.Errorf("%d: %+v", i, p)
			}
		})
	}
	await(t, func() bool { return now.Load() == large })
	if _, p, _ := s.ask("POST", api.PathRuns, `{"id": "small", "program": {"text": ""}}`); p.Type != "" {
		t.Errorf("a small one: %+v", p)
	}
	close(hold)
	wg.Wait()
	if n := most.Load(); n > large {
		t.Errorf("%d were there at once", n)
	}
}

// A body that does not tell its size is worth what it was once it is there.
func TestMemoryForChunkedRequests(t *testing.T) {
	hold := make(chan struct{})
	var now atomic.Int32
	s := serve(t, program(func(context.Context, runs.Sink) error {
		now.Add(1)
		<-hold
		return nil
	}))
	s.h.o.Wait = bound
	const small, most = `{"program": {"text": ""}}`, 2 * requestMemory / maxBody
	var wg sync.WaitGroup
	for i := range most {
		wg.Go(func() {
			chunked := fmt.Sprintf("POST /v1/runs HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(small), small)
			if got := s.raw(chunked); !strings.HasPrefix(got, "HTTP/1.1 200") {
				t.Errorf("%d: %.200q", i, got)
			}
		})
	}
	await(t, func() bool { return now.Load() == most })
	close(hold)
	wg.Wait()
	if !s.h.requests.TryAcquire(requestMemory) {
		t.Error("some of the memory is lost")
	}
}

// What is refused is refused before much is made of it.
func TestMemoryOfRefusedRequests(t *testing.T) {
	for _, field := range []string{`"args": [`, `"program": [`, `"env": [[`} {
		body := []byte(`{` + field + strings.Repeat(`"",`, (maxBody-100)/3) + `""]}`)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, p := decode(body)
		runtime.ReadMemStats(&after)
		if got := after.TotalAlloc - before.TotalAlloc; p == nil || got > 32<<20 {
			t.Errorf("%s: %v, and %d MiB were allocated", field, p, got>>20)
		}
	}
}

// A client that does not read holds its own answer, and that not for ever: neither the
// VM, nor the memory for what waits.
func TestSlowClients(t *testing.T) {
	for name, c := range map[string]struct {
		ends, lags bool
	}{
		"after the end": {ends: true},
		"that lag":      {lags: true},
	} {
		t.Run(name, func(t *testing.T) {
			over := make(chan error, 1)
			s := serve(t, program(func(_ context.Context, sink runs.Sink) error {
				done := make(chan error, 1)
				go func() { done <- sink.Output(1, 1, make([]byte, 8<<20)) }()
				if c.ends {
					sink.Ended(nil, nil, nil)
				}
				if c.lags {
					sink.Lags()
				}
				err := <-done
				over <- err
				return err
			}))
			s.h.times.deliver = 500 * time.Millisecond
			conn, err := net.Dial("unix", s.socket)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			body := `{"program": {"text": ""}}`
			fmt.Fprintf(conn, "POST /v1/runs HTTP/1.1\r\nHost: x\r\nAccept: %s\r\nContent-Length: %d\r\n\r\n%s", api.MediaEvents, len(body), body)
			if c.ends {
				await(t, func() bool { return s.used.Load() == 1 && s.users.Load() == 0 })
				if !s.h.Delivering() {
					t.Error("nobody tells that it has not got its answer")
				}
				select {
				case err := <-over:
					t.Errorf("it had no time: %v", err)
				default:
				}
			}
			select {
			case err := <-over:
				if !errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("got %v", err)
				}
			case <-time.After(bound):
				t.Fatal("it holds its run")
			}
			await(t, func() bool { return !s.h.Delivering() })
		})
	}
}

func TestWantsEvents(t *testing.T) {
	for accept, want := range map[string]bool{
		"": false, "*/*": false, "application/json": false, api.MediaEvents: true, "application/json, " + api.MediaEvents + ";q=0.5": true,
		api.MediaEvents + ";q=0": false, api.MediaEvents + ";q=0.0": false, api.MediaEvents + "; q=0.000": false, api.MediaEvents + ";q=0.001": true,
	} {
		if got := wantsEvents(http.Header{"Accept": {accept}}); got != want {
			t.Errorf("%q: %v", accept, got)
		}
	}
}

func TestLeavesNothing(t *testing.T) {
	s := serve(t, program(func(_ context.Context, sink runs.Sink) error { return sink.Output(1, 1, []byte("hello")) }))
	once := func() {
		s.client.Run(s.ctx(), api.RunRequest{Program: text("")}, func(api.Event) error { return errors.New("no more") })
		s.client.Run(s.ctx(), api.RunRequest{ID: "mine", Program: text("")}, func(api.Event) error { return errors.New("no more") })
		s.ask("POST", api.PathRuns, `{"program": {"text": ""}}`)
	}
	once()
	await(t, func() bool { return s.users.Load() == 0 })
	before := runtime.NumGoroutine()
	for range 30 {
		once()
	}
	await(t, func() bool { return s.users.Load() == 0 && !s.h.Delivering() && runtime.NumGoroutine() <= before+3 })
	s.h.mu.Lock()
	defer s.h.mu.Unlock()
	if len(s.h.writers) != 0 || len(s.h.waiting) != 0 {
		t.Errorf("%d writers, %d waiting", len(s.h.writers), len(s.h.waiting))
	}
}

func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		`{"id": "a", "image": "stdlib", "program": {"name": "x.py", "text": "print(1)"}, "args": ["a"], "env": ["A=b"], "stdin": {"base64": "QUFB"}, "limits": {"timeout_ms": 1.5, "cpus": 0.5}, "watch": true}`,
		`{"program": {"text": ""}, "inputs": [{"name": "d", "folder": true}, {"name": "d/a", "base64": "QUFB", "executable": true}, {"name": "b", "file": "x"}], "collect": true}`,
		`{"program": {"text": ""}, "inputs": [{"folder": true, "text": ""}, null, {}]}`, `{"inputs": [[]]}`,
		`{"program": {"text": "\ud83d\ude00\\u\\ud83d"}}`, `{"program": {"file": "x"}}`, `{"limits": {"timeout_ms": 1e999}}`, "\x00", `{"program":{"text":"\ud83d`, `\`,
	} {
		f.Add([]byte(seed))
	}
	files, err := spool.Open(filepath.Join(f.TempDir(), "files"), time.Now)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		req, p := decode(body)
		if p != nil {
			if p.Status != 400 || p.Detail == "" || len(p.Detail) > 2000 {
				t.Errorf("%+v", p)
			}
			return
		}
		// What was taken is understood in one way: it survives a round trip.
		b, err := json.Marshal(req)
		if err != nil {
			t.Fatal(err)
		}
		again, p := decode(b)
		if p != nil {
			t.Fatalf("%q: %+v", b, p)
		}
		if c, err := json.Marshal(again); err != nil || !bytes.Equal(b, c) {
			t.Errorf("%q became %q, %v", b, c, err)
		}
		c := contents{files: files}
		defer c.close()
		r, err := c.request(req)
		if err == nil && (r.Program.Open == nil || r.Program.Bytes > api.MaxInline || (r.Stdin == nil) != (req.Stdin == nil) || len(r.Inputs) != len(req.Inputs)) {
			t.Errorf("%+v", r)
		}
	})
}

func FuzzWhole(f *testing.F) {
	f.Add([]byte("a€"), 2)
	f.Add([]byte("\xf0\x9f\x98"), 3)
	f.Fuzz(func(t *testing.T, b []byte, cut int) {
		if n := recall.Whole(b); n > len(b) || len(b)-n > 3 {
			t.Errorf("%d of %q", n, b)
		}
		if cut < 0 || cut > len(b) {
			return
		}
		var k recall.Output
		k.Add(b[:cut])
		k.Add(b[cut:])
		k.End()
		if got := bytes.Join(k.Chunks(), nil); !bytes.Equal(got, b) {
			t.Errorf("%q became %q", b, got)
		}
		var out strings.Builder
		writeOutput(&out, &k)
		var back string
		if k.Text() {
			if err := json.Unmarshal([]byte(`"`+out.String()+`"`), &back); err != nil || back != string(b) {
				t.Errorf("%q became %q, %v", b, out.String(), err)
			}
		}
	})
}
