//go:build linux

package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/api/apitest"
	"github.com/pybox/pybox/host/receipt"
)

// TestE2EAPI speaks to the daemon as others would: with curl, with an HTTP client,
// and with bytes that are no HTTP.
func TestE2EAPI(t *testing.T) {
	p := newPerson(t, "")
	p.config("[vm]\nidle_stop = \"5m\"\n[api]\nlisten = \"127.0.0.1:0\"\n")
	p.must("vm", "start")
	for _, c := range []struct {
		name string
		test func(*testing.T, *person)
	}{
		{"record and events", testRecordAndEvents},
		{"hanging up", testHangingUp},
		{"asking again", testAskingAgain},
		{"over TCP", testOverTCP},
		{"problems", testProblems},
		{"hostile clients", testHostileClients},
		{"files", testFiles},
		{"large files", testLargeFiles},
		{"other users", testOtherUsers},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := p.in(t)
			c.test(t, p)
			p.expectIdle()
		})
	}
	t.Run("documentation", func(t *testing.T) { testDocumentation(t, p.in(t)) }) // stops the VM
}

// post asks for a run and gives the answer, whose body is closed with the test.
func (p *person) post(ctx context.Context, accept string, r api.RunRequest) (*http.Response, error) {
	p.t.Helper()
	b, err := json.Marshal(r)
	if err != nil {
		p.t.Fatal(err)
	}
	return p.send(ctx, http.MethodPost, api.PathRuns, accept, bytes.NewReader(b))
}

// send makes a request on a connection of its own.
func (p *person) send(ctx context.Context, method, path, accept string, body io.Reader) (*http.Response, error) {
	p.t.Helper()
	socket := p.status().Daemon.Socket
	tr := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}
	req, err := http.NewRequestWithContext(ctx, method, "http://pybox"+path, body)
	if err != nil {
		p.t.Fatal(err)
	}
	if accept != "" {
		req.Header.Set("Accept", accept)
	}
	resp, err := p.checked(tr).RoundTrip(req)
	if err == nil {
		p.t.Cleanup(func() { resp.Body.Close() })
	}
	return resp, err
}

// checked holds what goes over tr to the description of the API.
func (p *person) checked(tr http.RoundTripper) http.RoundTripper {
	p.t.Helper()
	c, err := apitest.New(p.t.Errorf)
	if err != nil {
		p.t.Fatal(err)
	}
	return c.Transport(tr)
}

// testAskingAgain: a client that lost its connection asks for the same run again, while it
// goes on and after its end, and gets its output and its files; it ran once.
func testAskingAgain(t *testing.T, p *person) {
	client := p.client()
	r := request("import time\nprint('begun', flush=True)\ntime.sleep(1)\nopen('out.txt', 'w').write(str(time.time_ns()))\nprint('done', b'\\xff')")
	r.ID, r.Collect = "again", true
	ctx, hangUp := context.WithCancel(t.Context())
	defer hangUp()
	_, err := client.Run(ctx, r, func(e api.Event) error {
		if e.Event == api.EventOutput {
			hangUp()
		}
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("hung up: %v", err)
	}
	var contents []string
	for range 2 {
		resp, err := p.post(t.Context(), "", r)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK || resp.Header.Get("PyBox-Replay") != "true" {
			t.Fatalf("%s, %v, %v: %s", resp.Status, resp.Header, err, body)
		}
		rec := readReceipt(t, body)
		if out := rec.Program.Stdout.Text; out == nil || *out != "begun\ndone b'\\xff'\n" || len(rec.Program.Files) != 1 {
			t.Fatalf("asked again: %s", body)
		}
		f, err := client.File(t.Context(), rec.Program.Files[0].File)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(f)
		f.Close()
		if err != nil {
			t.Error(err)
		}
		contents = append(contents, string(b))
	}
	if contents[0] != contents[1] || contents[0] == "" {
		t.Errorf("it ran more than once: %q", contents)
	}
	var problem *api.Problem
	r.Args = []string{"other"}
	if _, err := client.Run(t.Context(), r, func(api.Event) error { return nil }); !errors.As(err, &problem) || problem.Type != api.ProblemExists {
		t.Errorf("another request with that id: %v", err)
	}
}

// testOverTCP: the port lets in who has the token, and nobody else, and runs programs.
func testOverTCP(t *testing.T, p *person) {
	base := "http://" + p.status().Daemon.Listen
	secret, err := os.ReadFile(filepath.Join(p.home, "api-token"))
	if err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(filepath.Join(p.home, "api-token")); err != nil || st.Mode() != 0o600 {
		t.Errorf("the token's file: %v, %v", st, err)
	}
	tr := p.checked(&http.Transport{DisableKeepAlives: true})
	for name, c := range map[string]struct {
		token, origin string
		want          int
	}{
		"let in":     {token: strings.TrimSpace(string(secret)), want: 200},
		"no token":   {want: 401},
		"a web page": {token: strings.TrimSpace(string(secret)), origin: "http://localhost:1", want: 403},
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, base+api.PathRuns, strings.NewReader(`{"program": {"text": "print(6*7)"}, "limits": {"timeout_ms": 30000}}`))
		if err != nil {
			t.Fatal(err)
		}
		if c.token != "" {
			req.Header.Set("Authorization", "Bearer "+c.token)
		}
		if c.origin != "" {
			req.Header.Set("Origin", c.origin)
		}
		resp, err := tr.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != c.want || bytes.Contains(body, []byte(`"42\n"`)) != (c.want == 200) {
			t.Errorf("%s: %s %v %s", name, resp.Status, err, body)
		}
	}
}

// request is a run of source with time enough.
func request(source string) api.RunRequest {
	return api.RunRequest{Program: api.Source{Text: &source}, Limits: api.Limits{TimeoutMS: new(30_000.0)}}
}

// testRecordAndEvents: a run gives the same receipt whichever way it is asked for,
// and the one that is kept.
func testRecordAndEvents(t *testing.T, p *person) {
	r := request("import sys\nprint('grün')\nsys.stdout.buffer.write(b'\\xff')\nprint('aside', file=sys.stderr)\nprint(sys.stdin.read(), sys.argv[1:])\nsys.exit(3)")
	r.Args, r.Env, r.Stdin = []string{"a b", ""}, []string{"A=b"}, &api.Source{Text: new("input")}
	resp, err := p.post(t.Context(), "", r)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "application/json" {
		t.Fatalf("%s, %v, %v: %s", resp.Status, resp.Header, err, body)
	}
	record := readReceipt(t, body)
	want := [2]string{"grün\n\xffinput ['a b', '']\n", "aside\n"}
	for i, s := range []*receipt.Stream{&record.Program.Stdout, &record.Program.Stderr} {
		if b, asText := content(t, *s); string(b) != want[i] || asText != (i == 1) {
			t.Errorf("stream %d of the record: %q, as text: %t", i+1, b, asText)
		}
		s.Text, s.Base64 = nil, nil
	}
	client := p.client()
	if kept, err := client.Receipt(t.Context(), record.Run.ID); err != nil || !reflect.DeepEqual(kept, record) {
		t.Errorf("the record\n%+v\nis not what is kept\n%+v, %v", record, kept, err)
	}

	// The lines themselves: what a client sees that is not ours.
	r.Watch = true
	if resp, err = p.post(t.Context(), "text/html;q=0.5, "+api.MediaEvents, r); err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != api.MediaEvents {
		t.Fatalf("%s, %v", resp.Status, resp.Header)
	}
	var got [2]string
	var names []string
	var last api.Event
	for d := json.NewDecoder(resp.Body); ; {
		var e api.Event
		if err := d.Decode(&e); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if e.MS < last.MS {
			t.Errorf("%s at %g ms after %s at %g", e.Event, e.MS, last.Event, last.MS)
		}
		if names, last = append(names, e.Event), e; e.Event == api.EventOutput {
			b, err := e.Output()
			if err != nil {
				t.Error(err)
			}
			got[map[string]int{"stdout": 0, "stderr": 1}[e.Stream]] += string(b)
		}
	}
	if got != want {
		t.Errorf("output of the events: %q, want %q", got, want)
	}
	rest := slices.Compact(slices.Clone(names))
	for _, name := range []string{api.EventAccepted, api.EventAdmitted, api.EventStage, api.EventCheck, api.EventStarted, api.EventExited, api.EventReceipt} { // output may follow the exit
		at := slices.Index(rest, name)
		if at < 0 {
			t.Fatalf("no %s after what comes before it in %v", name, names)
		}
		rest = rest[at:]
	}
	if names[0] != api.EventAccepted || len(rest) != 1 || last.Receipt == nil || last.NotKept != "" {
		t.Fatalf("events %v, the last %+v", names, last)
	}
	events := last.Receipt
	expectValid(t, events)
	if kept, err := client.Receipt(t.Context(), events.Run.ID); err != nil || !reflect.DeepEqual(kept, events) {
		t.Errorf("the receipt of the events\n%+v\nis not what is kept\n%+v, %v", events, kept, err)
	}
	// Two runs of one program differ in what was measured alone.
	for what, both := range map[string][2]any{
		"configured": {record.Configured, events.Configured}, "program": {record.Program, events.Program}, "ending": {record.Ending, events.Ending},
		"exit": {record.Observed.Engine.Exit, events.Observed.Engine.Exit}, "cleanup": {record.Cleanup, events.Cleanup},
	} {
		if !reflect.DeepEqual(both[0], both[1]) {
			t.Errorf("%s of the record: %+v; of the events: %+v", what, both[0], both[1])
		}
	}
	list, err := client.Receipts(t.Context(), 2)
	if err != nil || len(list) != 2 || list[0].ID != events.Run.ID || list[1].ID != record.Run.ID || list[0].ExitCode != 3 {
		t.Errorf("the list: %+v, %v", list, err)
	}
}

// testHangingUp: a client that closes its connection cancels its run, unless the run
// has a name of the client's.
func testHangingUp(t *testing.T, p *person) {
	client := p.client()
	for _, id := range []string{"", "named"} {
		r := request(forever)
		r.ID = id
		ctx, hangUp := context.WithCancel(t.Context())
		resp, err := p.post(ctx, api.MediaEvents, r)
		if err != nil {
			t.Fatal(err)
		}
		var run string
		d := json.NewDecoder(resp.Body)
		for beats := 0; beats < 2; { // it lives
			var e api.Event
			if err := d.Decode(&e); err != nil {
				t.Fatal(err)
			}
			if e.ID != "" {
				run = e.ID
			}
			if e.Event == api.EventOutput {
				beats++
			}
		}
		hangUp()
		why := "closed its connection"
		if id != "" {
			// Whoever looks at once would find it in any case: another run goes
			// through meanwhile.
			if out, err := client.Run(t.Context(), request("print('other')"), func(api.Event) error { return nil }); err != nil || out.Receipt.ExitCode() != 0 {
				t.Errorf("another run: %+v, %v", out, err)
			}
			if all, err := client.Runs(t.Context()); err != nil || len(all) != 1 || all[0].ID != run || all[0].State != "running" {
				t.Errorf("runs in progress: %+v, %v; want %s", all, err, run)
			}
			if err := client.CancelRun(t.Context(), run); err != nil {
				t.Error(err)
			}
			why = "asked for the run to be cancelled"
		}
		got := p.awaitReceipt(run)
		if e := got.Ending; e.How != receipt.HowCancelled || e.By != receipt.ByClient || !strings.Contains(strings.Join(e.Evidence, "\n"), why) {
			t.Errorf("%q: ending %+v", id, e)
		}
		p.expectIdle()
		p.expectRemoved(p.kept(run))
		var problem *api.Problem
		if err := client.CancelRun(t.Context(), run); !errors.As(err, &problem) || problem.Type != api.ProblemNotFound {
			t.Errorf("cancelled again: %v", err)
		}
	}
}

// testProblems: each error has a status, a type and a sentence, and costs nothing.
func testProblems(t *testing.T, p *person) {
	before := p.keptIDs()
	used, err := p.client().StoreFile(t.Context(), strings.NewReader("pass"))
	if err != nil {
		t.Fatal(err)
	}
	if out, err := p.client().Run(t.Context(), api.RunRequest{ID: "taken", Program: api.Source{File: used.File}}, func(api.Event) error { return nil }); err != nil || out.Receipt.Run.ID != "taken" {
		t.Fatalf("a stored program: %+v, %v", out, err)
	}
	if r := p.newReceipt(before); r == nil || r.Run.ID != "taken" {
		t.Fatalf("kept: %+v", r)
	}
	before = p.keptIDs()
	run := func(members string) string { return `{"program": {"text": "pass"}, ` + members + `}` }
	for name, c := range map[string]struct {
		method, path, body string
		status             int
		typ                string
	}{
		"no JSON":           {"POST", api.PathRuns, "print(1)", 400, api.ProblemBadRequest},
		"empty":             {"POST", api.PathRuns, "", 400, api.ProblemBadRequest},
		"half":              {"POST", api.PathRuns, `{"program": {"text": "pa`, 400, api.ProblemBadRequest},
		"two":               {"POST", api.PathRuns, run(`"args": []`) + run(`"args": []`), 400, api.ProblemBadRequest},
		"another type":      {"POST", api.PathRuns, run(`"args": "a"`), 400, api.ProblemBadRequest},
		"unknown field":     {"POST", api.PathRuns, run(`"network": true`), 400, api.ProblemBadRequest},
		"unknown limit":     {"POST", api.PathRuns, run(`"limits": {"memory": 1}`), 400, api.ProblemBadRequest},
		"no program":        {"POST", api.PathRuns, `{}`, 400, api.ProblemBadRequest},
		"two programs":      {"POST", api.PathRuns, `{"program": {"text": "pass", "base64": ""}}`, 400, api.ProblemBadRequest},
		"no UTF-8":          {"POST", api.PathRuns, "{\"program\": {\"text\": \"\xff\"}}", 400, api.ProblemBadRequest},
		"half a character":  {"POST", api.PathRuns, `{"program": {"text": "\ud83d"}}`, 400, api.ProblemBadRequest},
		"base64":            {"POST", api.PathRuns, `{"program": {"base64": "?"}}`, 400, api.ProblemBadRequest},
		"name":              {"POST", api.PathRuns, `{"program": {"name": "../p.py", "text": ""}}`, 400, api.ProblemBadRequest},
		"orders as a name":  {"POST", api.PathRuns, `{"program": {"name": "\u001b[2J", "text": ""}}`, 400, api.ProblemBadRequest},
		"id":                {"POST", api.PathRuns, run(`"id": "../x"`), 400, api.ProblemBadRequest},
		"no time":           {"POST", api.PathRuns, run(`"limits": {"timeout_ms": 0}`), 400, api.ProblemBadRequest},
		"negative memory":   {"POST", api.PathRuns, run(`"limits": {"memory_bytes": -1}`), 400, api.ProblemBadRequest},
		"absurd time":       {"POST", api.PathRuns, run(`"limits": {"timeout_ms": 1e308}`), 400, api.ProblemBadRequest},
		"not a number":      {"POST", api.PathRuns, run(`"limits": {"cpus": NaN}`), 400, api.ProblemBadRequest},
		"above the ceiling": {"POST", api.PathRuns, run(`"limits": {"memory_bytes": 9000000000000000000}`), 403, api.ProblemCeiling},
		"long":              {"POST", api.PathRuns, run(`"limits": {"timeout_ms": 31000}`), 403, api.ProblemCeiling},
		"image":             {"POST", api.PathRuns, run(`"image": "nope"`), 404, api.ProblemImage},
		"file":              {"POST", api.PathRuns, `{"program": {"file": "00000000000000000000000000000000"}}`, 404, api.ProblemFile},
		"used file":         {"POST", api.PathRuns, `{"program": {"file": "` + used.File + `"}}`, 404, api.ProblemFile},
		"used id":           {"POST", api.PathRuns, run(`"id": "taken", "args": ["other"]`), 409, api.ProblemExists},
		"large program":     {"POST", api.PathRuns, `{"program": {"text": "` + strings.Repeat("#", api.MaxInline+1) + `"}}`, 413, api.ProblemBadRequest},
		"large body":        {"POST", api.PathRuns, `{"program": {"text": "` + strings.Repeat("#", 9<<20) + `"}}`, 413, api.ProblemBadRequest},
		"no such run":       {"DELETE", "/v1/runs/nobody", "", 404, api.ProblemNotFound},
		"no such receipt":   {"GET", "/v1/receipts/nobody", "", 404, api.ProblemNotFound},
		"outside":           {"GET", "/v1/receipts/..%2f..%2fconfig.toml", "", 404, api.ProblemNotFound},
		"limit":             {"GET", "/v1/receipts?limit=0", "", 400, api.ProblemBadRequest},
		"query":             {"GET", "/v1/receipts?limt=3", "", 400, api.ProblemBadRequest},
		"path":              {"GET", "/v1/nothing", "", 404, api.ProblemNotFound},
		"unclean path":      {"GET", "//v1/../v1/status", "", 404, api.ProblemNotFound},
		"method":            {"PUT", api.PathRuns, "{}", 405, api.ProblemNotFound},
		"stop":              {"POST", api.PathVMStop, `{"timeout_ms": -1}`, 400, api.ProblemBadRequest},
		"stop, unknown":     {"POST", api.PathVMStop, `{"now": true}`, 400, api.ProblemBadRequest},
	} {
		t.Run(name, func(t *testing.T) {
			resp, err := p.in(t).send(t.Context(), c.method, c.path, "", strings.NewReader(c.body))
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(resp.Body)
			var problem api.Problem
			if err != nil || json.Unmarshal(body, &problem) != nil || resp.Header.Get("Content-Type") != "application/problem+json" {
				t.Fatalf("%s, %v, %v: %.300q", resp.Status, resp.Header, err, body)
			}
			if resp.StatusCode != c.status || problem.Status != c.status || problem.Type != c.typ || problem.Title == "" || problem.Detail == "" {
				t.Errorf("%s: %+v; want %d %s", resp.Status, problem, c.status, c.typ)
			}
			expectClean(t, "the problem", problem.Title+problem.Detail+problem.Next)
		})
	}
	if r := p.newReceipt(before); r != nil {
		t.Errorf("a receipt was kept of what was no run: %+v", r)
	}
	if s := p.status(); s.State != api.StateRunning || s.Runs.Active != 0 {
		t.Errorf("status %+v", s)
	}
}

// testHostileClients: what clients do that mean harm, or nothing at all, reaches
// neither a run nor the status.
func testHostileClients(t *testing.T, p *person) {
	pid := p.status().Daemon.PID
	early := footprintOf(t, pid)
	r := request("import time\nfor n in range(200):\n    print('beat', n, flush=True)\n    time.sleep(0.05)")
	beat, end := make(chan struct{}), make(chan error, 1)
	var out strings.Builder
	var outcome *api.Outcome
	client := p.client()
	go func() {
		var err error
		outcome, err = client.Run(t.Context(), r, func(e api.Event) error {
			if e.Event != api.EventOutput {
				return nil
			}
			if out.Len() == 0 {
				close(beat)
			}
			b, err := e.Output()
			out.Write(b)
			return err
		})
		end <- err
	}()
	select {
	case <-beat:
	case err := <-end:
		t.Fatalf("the run ended before its first beat: %v", err)
	}

	var idle, slow []net.Conn
	for range 100 {
		idle = append(idle, p.dialled())
	}
	for range 10 {
		c := p.dialled()
		fmt.Fprint(c, "GET /v1/status HTTP/1.1\r\nHost: py")
		slow = append(slow, c)
		c = p.dialled()
		fmt.Fprintf(c, "POST /v1/runs HTTP/1.1\r\nHost: pybox\r\nContent-Length: 100\r\n\r\n{\"program\"")
	}
	refused := map[string]net.Conn{}
	for name, bytes := range map[string]string{
		"garbage":      "\x00\xff\x16\x03\x01 no HTTP at all \r\n\r\n",
		"two lengths":  "POST /v1/runs HTTP/1.1\r\nHost: pybox\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}",
		"huge":         "POST /v1/runs HTTP/1.1\r\nHost: pybox\r\nContent-Length: 99999999999999\r\n\r\n{",
		"beyond huge":  "POST /v1/runs HTTP/1.1\r\nHost: pybox\r\nContent-Length: 99999999999999999999999\r\n\r\n{",
		"long header":  "GET /v1/status HTTP/1.1\r\nHost: pybox\r\nX: " + strings.Repeat("x", 64<<10) + "\r\n\r\n",
		"bad chunk":    "POST /v1/runs HTTP/1.1\r\nHost: pybox\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff1\r\n",
		"no HTTP/1.1":  "GET /v1/status HTTP/9.9\r\nHost: pybox\r\n\r\n",
		"HTTP/2":       "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"huge program": "POST /v1/runs HTTP/1.1\r\nHost: pybox\r\nContent-Length: 60000000\r\n\r\n" + strings.Repeat("x", 1<<16),
	} {
		c := p.dialled()
		go c.Write([]byte(bytes)) // some is refused before all of it was read
		refused[name] = c
	}
	endless := p.dialled()
	go func() {
		fmt.Fprint(endless, "POST /v1/runs HTTP/1.1\r\nHost: pybox\r\nTransfer-Encoding: chunked\r\n\r\n")
		chunk := fmt.Appendf(nil, "10000\r\n%s\r\n", strings.Repeat("y", 1<<16))
		for {
			if _, err := endless.Write(chunk); err != nil {
				return
			}
		}
	}()

	began := time.Now()
	s := p.status()
	if took := time.Since(began); took > 10*time.Second { // a second, ten times wider
		t.Errorf("the status took %v", took)
	}
	if s.Runs.Active < 1 || !s.Guest.Answering {
		t.Errorf("status %+v, guest %+v; want the run in progress", s.Runs, s.Guest)
	}
	if held := footprintOf(t, pid); held.files < early.files+len(idle) {
		t.Errorf("the daemon has %d files open, %d before: the connections were not there", held.files, early.files)
	}
	if got, err := client.Run(t.Context(), request("print('through')"), func(api.Event) error { return nil }); err != nil || got.Receipt.ExitCode() != 0 {
		t.Errorf("another run: %+v, %v", got, err)
	}
	if err := <-end; err != nil {
		t.Fatal(err)
	}
	var want strings.Builder
	for n := range 200 {
		fmt.Fprintln(&want, "beat", n)
	}
	if outcome.Receipt.ExitCode() != 0 || out.String() != want.String() {
		t.Errorf("the run: %+v, output as printed: %t", outcome.Receipt.Ending, out.String() == want.String())
	}
	expectValid(t, outcome.Receipt)

	for name, c := range refused {
		answer, _ := io.ReadAll(c) // until it is hung up on
		if status := regexp.MustCompile(`^HTTP/1\.[01] (4\d\d|505) `).FindSubmatch(answer); status == nil {
			t.Errorf("%s: answered %.200q", name, answer)
		}
	}
	for _, c := range append(slow, endless) {
		if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error("a client that is slow is not hung up on")
		}
	}
	for _, c := range idle {
		c.Close()
	}
	p.eventually("a daemon without their connections", func() bool {
		return footprintOf(t, pid).files <= early.files+2
	})
	if rss := memoryOf(pid); rss > 100<<20 {
		t.Errorf("the daemon uses %d MiB", rss>>20)
	}
}

// dialled is a connection that nothing waits for longer than two minutes.
func (p *person) dialled() net.Conn {
	p.t.Helper()
	c, err := net.Dial("unix", filepath.Join(p.home, "pybox.sock"))
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(2 * time.Minute)); err != nil {
		p.t.Fatal(err)
	}
	return c
}

// testOtherUsers: whoever gets to the socket is still refused, by who they are.
func testOtherUsers(t *testing.T, p *person) {
	for _, tool := range []string{"setpriv", "curl"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("SKIPPED, other users were not tried: %v", err)
		}
	}
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED, other users were not tried: that needs root")
	}
	curl := func(uid int) (out string, code int) {
		t.Helper()
		id := strconv.Itoa(uid)
		cmd := exec.CommandContext(t.Context(), "setpriv", "--reuid", id, "--regid", id, "--clear-groups", "curl", "-sS", "--max-time", "30",
			"--unix-socket", filepath.Join(p.home, "pybox.sock"), "http://pybox/v1/status")
		b, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		return string(b), cmd.ProcessState.ExitCode()
	}
	const nobody = 65534
	const noConnection = 7 // CURLE_COULDNT_CONNECT
	if out, code := curl(0); code != 0 || !strings.Contains(out, `"state":"running"`) {
		t.Fatalf("root: curl %d, %s", code, out)
	}
	if out, code := curl(nobody); code != noConnection {
		t.Errorf("the folder's mode lets nobody in: curl %d, %s", code, out)
	}
	// As if the modes were not what they are, up to the folder that is for all.
	for path := filepath.Join(p.home, "pybox.sock"); path != os.TempDir() && path != "/"; path = filepath.Dir(path) {
		st, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		mode := os.FileMode(0o755)
		if st.Mode()&os.ModeSocket != 0 {
			mode = 0o666 // who connects needs to be allowed to write
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		defer os.Chmod(path, st.Mode().Perm())
	}
	if out, code := curl(0); code != 0 {
		t.Errorf("root, with other modes: curl %d, %s", code, out)
	}
	// To curl a connection that is closed at once may be none. The daemon's log tells.
	const refused = "refused a connection"
	if log := p.must("vm", "logs"); strings.Contains(log, refused) {
		t.Errorf("somebody was refused already:\n%s", log)
	}
	if out, code := curl(nobody); code == 0 || strings.Contains(out, "state") {
		t.Errorf("nobody: curl %d, %s; want to be hung up on", code, out)
	}
	if log := p.must("vm", "logs"); strings.Count(log, refused) != 1 || !strings.Contains(log, "("+strconv.Itoa(nobody)+")") {
		t.Errorf("nobody was not refused:\n%s", log)
	}
	if s := p.status(); s.State != api.StateRunning {
		t.Errorf("status %+v", s)
	}
}

// leavesProgram takes its inputs apart and leaves of everything something.
const leavesProgram = `
import os, socket, stat, sys
print(sorted(os.path.join(d, f) for d, _, fs in os.walk(".") for f in fs), oct(os.stat("in/run.sh").st_mode & 0o111))
os.makedirs("out/deep/er")
open("out/deep/er/a.txt", "w").write("hello")
open("out/empty", "w")
open("in/same.txt", "r+").write("same")          # as it was
open("in/changed.txt", "w").write("new content")
open("Twin", "w").write("1"); open("twin", "w").write("2")
open("new\nline", "w"); open(b"\xff", "w")
os.symlink("/etc/passwd", "link"); os.mkfifo("fifo")
socket.socket(socket.AF_UNIX).bind("socket")
with open("giant", "w") as f: f.truncate(1 << 60)
open("tool", "w").write("#!"); os.chmod("tool", 0o4755)
`

// testFiles: a tree goes in, and what the program leaves comes out, or is listed with
// the reason why not.
func testFiles(t *testing.T, p *person) {
	client := p.client()
	in := func(name, text string) api.InputFile {
		return api.InputFile{Source: api.Source{Name: name, Text: &text}}
	}
	r := request(leavesProgram)
	r.Collect = true
	r.Inputs = []api.InputFile{in("in/same.txt", "same"), in("in/changed.txt", "old"), in("in/run.sh", "#!"), {Source: api.Source{Name: "in/empty"}, Folder: true}}
	r.Inputs[2].Executable = true
	var out bytes.Buffer
	o, err := client.Run(t.Context(), r, func(e api.Event) error {
		if e.Event == api.EventOutput {
			b, err := e.Output()
			out.Write(b)
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if want := "['./in/changed.txt', './in/run.sh', './in/same.txt', './main.py'] 0o1"; !strings.HasPrefix(out.String(), want) {
		t.Errorf("the program saw %q, want %q", out.String(), want)
	}
	if in := o.Receipt.Configured.Inputs; len(in) != 4 || in[0].Name != "in/changed.txt" || *in[0].SHA256 != digest("old") || !in[1].Folder {
		t.Errorf("inputs %+v", in)
	}
	want := map[string]string{ // what came back, and the reasons of the rest
		"Twin": "1", "in/changed.txt": "new content", "out": "", "out/deep": "", "out/deep/er": "", "out/deep/er/a.txt": "hello", "out/empty": "", "tool": "#!",
		"twin": receipt.FileTwin, `new\nline`: receipt.FileName, `\xff`: receipt.FileName, "link": receipt.FileLink,
		"fifo": receipt.FileSpecial, "socket": receipt.FileSpecial, "giant": receipt.FileTooLarge,
	}
	for _, f := range o.Receipt.Program.Files {
		content, ok := want[f.Name]
		delete(want, f.Name)
		switch {
		case !ok:
			t.Errorf("%+v was not left", f)
		case !f.Returned:
			if f.Reason != content {
				t.Errorf("%+v, want %s", f, content)
			}
		case f.Folder:
			if f.File != "" {
				t.Errorf("a folder has an id: %+v", f)
			}
		default:
			if got := p.fetch(client, f.File); got != content || *f.SHA256 != digest(content) || f.Executable != (f.Name == "tool") {
				t.Errorf("%+v is %q, want %q", f, got, content)
			}
			if err := client.ForgetFile(t.Context(), f.File); err != nil {
				t.Error(err)
			}
		}
	}
	if len(want) > 0 {
		t.Errorf("not listed: %v", want)
	}
	if kept := p.kept(o.Receipt.Run.ID); slices.ContainsFunc(kept.Program.Files, func(f receipt.File) bool { return f.File != "" }) {
		t.Errorf("ids are kept: %+v", kept.Program.Files)
	}
	for _, u := range o.Receipt.Unknown {
		if u.Fact == receipt.FactFiles {
			t.Errorf("unknown: %+v", u)
		}
	}
}

// fetch reads a file that a run left.
func (p *person) fetch(c *api.Client, id string) string {
	p.t.Helper()
	f, err := c.File(p.t.Context(), id)
	if err != nil {
		p.t.Fatal(err)
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	if err != nil {
		p.t.Fatal(err)
	}
	return string(b)
}

func digest(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

// noise is a content that takes no memory: the same each time, and no two pieces of it
// alike.
func noise(n int64) io.Reader { return io.LimitReader(rand.NewChaCha8([32]byte{7}), n) }

// testLargeFiles: 256 MiB go in and come out, and the daemon holds little of it.
func testLargeFiles(t *testing.T, p *person) {
	const size = 256 << 20
	const most = 128 << 20
	client := p.client()
	watching, stop := context.WithCancel(t.Context())
	defer stop()
	seen := make(chan memory, 1)
	go memory{pid: p.status().Daemon.PID}.watch(watching, seen)

	began := time.Now()
	stored, err := client.StoreFile(t.Context(), noise(size))
	if err != nil {
		t.Fatal(err)
	}
	uploaded := time.Since(began)
	// A new file of the same content needs no more memory in the box: it is renamed.
	r := request("import os; os.rename('in', 'out')")
	r.Inputs = []api.InputFile{{Source: api.Source{Name: "in", File: stored.File}}}
	r.Collect = true
	r.Limits.MemoryBytes, r.Limits.FilesBytes = new(int64(1<<30)), new(int64(size))
	began = time.Now()
	o, err := client.Run(t.Context(), r, func(api.Event) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	ran := time.Since(began)
	rec := o.Receipt
	if f := rec.Program.Files; len(f) != 1 || !f[0].Returned || f[0].Bytes != size || *f[0].SHA256 != stored.SHA256 || *rec.Configured.Inputs[0].SHA256 != stored.SHA256 {
		t.Fatalf("inputs %+v, files %+v, stored %+v, ending %+v, unknown %+v", rec.Configured.Inputs, f, stored, rec.Ending, rec.Unknown)
	}
	began = time.Now()
	f, err := client.File(t.Context(), rec.Program.Files[0].File)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	sum := sha256.New()
	if n, err := io.Copy(sum, f); err != nil || n != size || hex.EncodeToString(sum.Sum(nil)) != stored.SHA256 {
		t.Errorf("%d bytes came, %v", n, err)
	}
	fetched := time.Since(began)
	if err := client.ForgetFile(t.Context(), rec.Program.Files[0].File); err != nil {
		t.Error(err)
	}
	stop()
	m := <-seen
	t.Logf("stored in %v, run in %v (%v), fetched in %v; the daemon's RssAnon + RssFile: %d MiB at most, in %d samples",
		uploaded, ran, rec.Run.Stages, fetched, m.max>>20, m.samples)
	if m.samples < 10 || m.max > most {
		t.Errorf("the daemon had %d MiB in %d samples, want at most %d MiB", m.max>>20, m.samples, most>>20)
	}
}

// testDocumentation runs every block of docs/api.md as it stands there.
func testDocumentation(t *testing.T, p *person) {
	if _, err := exec.LookPath("curl"); err != nil {
		t.Fatalf("%v: 'scripts/deps test' installs it", err)
	}
	page, err := os.ReadFile("../../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?ms)^```sh\n(.*?)^```$").FindAllSubmatch(page, -1)
	kinds := [][]string{ // of the values that each block prints
		{"receipt 42\n"}, {"receipt ['count.py', 'a', 'b c'] 3\n"},
		{"events 0\n1\n2\n"}, {"number 42"}, {"receipt 5000050000\n"}, {"receipt", "receipt"},
		{"status", "images", "runs", "receipts"}, {"receipt 42\n"}, {"problem"}, {"status", "end"},
	}
	if len(blocks) != len(kinds) {
		t.Fatalf("docs/api.md has %d blocks, this test knows %d", len(blocks), len(kinds))
	}
	for i, b := range blocks {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		cmd := exec.CommandContext(ctx, "sh", "-eu", "-c", string(b[1]))
		cmd.Env, cmd.Dir = p.command().Env, t.TempDir()
		var errs bytes.Buffer
		cmd.Stderr = &errs
		out, err := cmd.Output()
		cancel()
		if err != nil || errs.Len() > 0 {
			t.Errorf("%v, stderr %s, of\n%s\n%s", err, errs.Bytes(), b[1], out)
		}
		expectKinds(t, string(b[1]), out, kinds[i])
	}
	p.waitStopped()
}

// expectKinds holds the JSON that a block prints to what it should be.
func expectKinds(t *testing.T, block string, out []byte, kinds []string) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(out))
	for _, kind := range kinds {
		name, says, _ := strings.Cut(kind, " ")
		if name == "events" {
			expectEvents(t, block, d, says)
			continue
		}
		var raw json.RawMessage
		if err := d.Decode(&raw); err != nil {
			t.Errorf("no %s: %v, of\n%s\n%s", name, err, block, out)
			return
		}
		strict := json.NewDecoder(bytes.NewReader(raw))
		strict.DisallowUnknownFields()
		var err error
		ok := true
		switch name {
		case "receipt":
			r := readReceipt(t, raw)
			// On a slow machine a program may come to its deadline first.
			ok = r.Program.Stdout.Text == nil || *r.Program.Stdout.Text == says || r.Ending.How == receipt.HowDeadline
		case "number":
			ok = string(raw) == says
		case "status":
			var v api.Status
			err, ok = strict.Decode(&v), v.State == api.StateRunning
		case "images":
			var v api.Images
			err = strict.Decode(&v)
			ok = slices.ContainsFunc(v.Images, func(i api.Image) bool { return i.Name == api.DefaultImage })
		case "runs":
			var v api.Runs
			err, ok = strict.Decode(&v), v.Runs != nil
		case "receipts":
			var v api.Receipts
			err, ok = strict.Decode(&v), len(v.Receipts) == 5
		case "problem":
			var v api.Problem
			err, ok = strict.Decode(&v), v.Type == api.ProblemCeiling
		case "end":
			var v api.End
			err, ok = strict.Decode(&v), v.By == "client"
		}
		if err != nil || !ok {
			t.Errorf("not the %s: %v, %s, of\n%s", kind, err, raw, block)
		}
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		t.Errorf("it prints more than %v: %v\n%s\n%s", kinds, err, block, out)
	}
}

// expectEvents reads a stream to its end.
func expectEvents(t *testing.T, block string, d *json.Decoder, says string) {
	t.Helper()
	var text strings.Builder
	for first := true; ; first = false {
		var e api.Event
		if err := d.Decode(&e); err != nil || first != (e.Event == api.EventAccepted) {
			t.Errorf("an event %+v, %v, of\n%s", e, err, block)
			return
		}
		switch e.Event {
		case api.EventOutput:
			b, err := e.Output()
			if err != nil {
				t.Error(err)
			}
			text.Write(b)
		case api.EventReceipt:
			if expectValid(t, e.Receipt); text.String() != says && e.Receipt.Ending.How != receipt.HowDeadline {
				t.Errorf("the events have %q, want %q, of\n%s", text.String(), says, block)
			}
			return
		case api.EventProblem:
			t.Errorf("%+v of\n%s", e.Problem, block)
			return
		}
	}
}
