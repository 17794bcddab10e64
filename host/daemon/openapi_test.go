package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pybox/pybox/docs"
	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/api/apitest"
	"github.com/pybox/pybox/host/daemon/daemontest"
)

// checked has whatever a daemon answers held to the description of its API.
func checked(t *testing.T) func(http.Handler) http.Handler {
	t.Helper()
	c, err := apitest.New(t.Errorf)
	if err != nil {
		t.Fatal(err)
	}
	return c.Handler
}

// get asks the daemon for something.
func (r *running) get(path string) *http.Response {
	r.t.Helper()
	c, err := apitest.New(r.t.Errorf)
	if err != nil {
		r.t.Fatal(err)
	}
	hc := &http.Client{Transport: c.Transport(&http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", r.home.Socket())
	}})}
	req, err := http.NewRequestWithContext(r.ctx(), http.MethodGet, "http://pybox"+path, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	resp, err := hc.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	return resp
}

// TestRoutesAreDescribed: what the API has the description has, and the reverse.
func TestRoutesAreDescribed(t *testing.T) {
	c, err := apitest.New(t.Errorf)
	if err != nil {
		t.Fatal(err)
	}
	d := &Daemon{o: options(t, &daemontest.Agent{})}
	if err := d.openRuns(); err != nil {
		t.Fatal(err)
	}
	defer d.files.Close()
	got := slices.Sorted(maps.Keys(d.routes()))
	if want := c.Routes(); !slices.Equal(got, want) {
		t.Errorf("the API has\n%s\nand the description\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestProblemsAreDescribed: the description names the problems and events that there are.
func TestProblemsAreDescribed(t *testing.T) {
	words := sourceWords(t)
	for _, w := range words {
		if strings.HasPrefix(w, "/v1/") || w == api.MediaEvents {
			continue
		}
		if !bytes.Contains(docs.OpenAPI, []byte(`"`+w+`"`)) {
			t.Errorf("docs/openapi.json does not name %s", w)
		}
	}
	var doc struct {
		Components struct {
			Schemas struct {
				Problem struct {
					Properties struct {
						Type struct{ Enum []string }
					}
				}
			}
		}
	}
	if err := json.Unmarshal(docs.OpenAPI, &doc); err != nil {
		t.Fatal(err)
	}
	for _, typ := range doc.Components.Schemas.Problem.Properties.Type.Enum {
		if !slices.Contains(words, typ) {
			t.Errorf("no problem is a %s", typ)
		}
	}
}

func TestServesItsDescription(t *testing.T) {
	r := run(t, options(t, &daemontest.Agent{}))
	r.start()
	resp := r.get(api.PathOpenAPI)
	defer resp.Body.Close()
	if b, err := io.ReadAll(resp.Body); err != nil || !bytes.Equal(b, docs.OpenAPI) || resp.Header.Get("Content-Type") != "application/json" {
		t.Errorf("%s, %d bytes, %v", resp.Status, len(b), err)
	}
}

// TestTheCheckFinds: a test that holds answers to the description fails where one is not
// what is described.
func TestTheCheckFinds(t *testing.T) {
	event := `{"event":"accepted","ms":1,"id":"a"}` + "\n"
	problem := http.Header{"Content-Type": {"application/problem+json"}}
	jsons := http.Header{"Content-Type": {"application/json"}}
	events := http.Header{"Content-Type": {api.MediaEvents}}
	run := []byte(`{"program":{"text":""}}`)
	busy := []byte(`{"type":"urn:pybox:busy","title":"x","detail":"y"}`)
	refused := []byte(`{"type":"urn:pybox:not-allowed","title":"x","detail":"y"}`)
	for name, e := range map[string]apitest.Exchange{
		"status":           {Method: "GET", Path: "/v1/runs", Status: 418, Header: jsons, Answer: []byte(`{}`)},
		"media":            {Method: "GET", Path: "/v1/runs", Status: 200, Header: http.Header{}, Answer: []byte(`{"runs":[]}`)},
		"member":           {Method: "GET", Path: "/v1/runs", Status: 200, Header: jsons, Answer: []byte(`{"runs":[],"more":1}`)},
		"missing member":   {Method: "GET", Path: "/v1/runs", Status: 200, Header: jsons, Answer: []byte(`{}`)},
		"query":            {Method: "GET", Path: "/v1/runs", Query: "limit=1", Status: 200, Header: jsons, Answer: []byte(`{"runs":[]}`)},
		"bad query":        {Method: "GET", Path: "/v1/receipts", Query: "limit=0", Status: 200, Header: jsons, Answer: []byte(`{"receipts":[]}`)},
		"bad id":           {Method: "DELETE", Path: "/v1/runs/A", Status: 204, Header: http.Header{}},
		"body of none":     {Method: "DELETE", Path: "/v1/runs/a", Status: 204, Header: jsons, Answer: []byte(`{}`)},
		"problem":          {Method: "DELETE", Path: "/v1/runs/a", Status: 404, Header: problem, Answer: []byte(`{"type":"urn:pybox:other","title":"x","detail":"y"}`)},
		"unknown path":     {Method: "GET", Path: "/v2", Status: 200, Header: jsons, Answer: []byte(`{}`)},
		"unknown problem":  {Method: "GET", Path: "/v2", Status: 404, Header: problem, Answer: []byte(`not found`)},
		"event":            {Method: "POST", Path: "/v1/runs", Request: run, Status: 200, Header: events, Answer: []byte(event + `{"event":"other","ms":1}` + "\n")},
		"member of event":  {Method: "POST", Path: "/v1/runs", Request: run, Status: 200, Header: events, Answer: []byte(`{"event":"started","ms":1,"id":"a"}` + "\n")},
		"header":           {Method: "POST", Path: "/v1/runs", Request: run, Status: 200, Header: http.Header{"Content-Type": {api.MediaEvents}, "Pybox-Other": {"x"}}, Answer: []byte(event)},
		"value of header":  {Method: "POST", Path: "/v1/runs", Request: run, Status: 200, Header: http.Header{"Content-Type": {api.MediaEvents}, "Pybox-Replay": {"false"}}, Answer: []byte(event)},
		"kind of header":   {Method: "GET", Path: "/v1/runs", Status: 503, Header: http.Header{"Content-Type": {"application/problem+json"}, "Retry-After": {"soon"}}, Answer: busy},
		"no header":        {Method: "GET", Path: "/v1/runs", Status: 401, Header: problem, Answer: refused},
		"common header":    {Method: "GET", Path: "/v1/runs", Status: 200, Header: http.Header{"Content-Type": {"application/json"}, "Retry-After": {"1"}}, Answer: []byte(`{"runs":[]}`)},
		"request":          {Method: "POST", Path: "/v1/runs", Request: []byte(`{"program":{"text":"","file":"x"}}`), Status: 200, Header: events, Answer: []byte(event)},
		"unknown member":   {Method: "POST", Path: "/v1/runs", Request: []byte(`{"program":{"text":""},"x":1}`), Status: 200, Header: events, Answer: []byte(event)},
		"no request":       {Method: "POST", Path: "/v1/runs", Status: 200, Header: events, Answer: []byte(event)},
		"no digest":        {Method: "GET", Path: "/v1/files/0123456789abcdef0123456789abcdef", Status: 200, Header: http.Header{"Content-Type": {"application/octet-stream"}}, Answer: []byte("x")},
		"id of no file":    {Method: "DELETE", Path: "/v1/files/x", Status: 204, Header: http.Header{}},
		"not even JSON":    {Method: "GET", Path: "/v1/status", Status: 200, Header: jsons, Answer: []byte(`{`)},
		"body not awaited": {Method: "GET", Path: "/v1/runs", Request: []byte("x"), Status: 200, Header: jsons, Answer: []byte(`{"runs":[]}`)},
	} {
		found := 0
		c, err := apitest.New(func(string, ...any) { found++ })
		if err != nil {
			t.Fatal(err)
		}
		if c.Check(e); found == 0 {
			t.Errorf("%s: nothing is found", name)
		}
	}
	c, err := apitest.New(t.Errorf)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range []apitest.Exchange{
		{Method: "POST", Path: "/v1/runs", Request: run, Status: 200, Header: events, Answer: []byte(event)},
		{Method: "GET", Path: "/v1/receipts", Query: "limit=3", Status: 200, Header: jsons, Answer: []byte(`{"receipts":[]}`)},
		{Method: "DELETE", Path: "/v1/runs/a", Status: 204, Header: http.Header{}},
		{Method: "GET", Path: "/v1/runs", Status: 503, Header: http.Header{"Content-Type": {"application/problem+json"}, "Retry-After": {"1"}}, Answer: busy},
		{Method: "GET", Path: "/v1/runs", Status: 401, Header: http.Header{"Content-Type": {"application/problem+json"}, "Www-Authenticate": {`Bearer realm="pybox"`}}, Answer: refused},
	} {
		c.Check(e)
	}
	if missing := c.Missing(); slices.Contains(missing, "POST /v1/runs 200") || !slices.Contains(missing, "GET /v1/receipts 500") {
		t.Errorf("missing are %v", missing)
	}
}

// TestEveryAnswer asks for what has an answer that no other test asks for.
func TestEveryAnswer(t *testing.T) {
	o := options(t, &daemontest.Agent{})
	c, err := apitest.New(t.Errorf)
	if err != nil {
		t.Fatal(err)
	}
	o.watch = c.Handler
	r := run(t, o)
	r.start()
	if _, _, err := r.exec(api.RunRequest{ID: "first", Program: source("print hello\nleave 3 a.txt\n"), Collect: true, Watch: true}); err != nil {
		t.Fatal(err)
	}
	stored, err := r.client.StoreFile(r.ctx(), strings.NewReader("abc"))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.client.ForgetFile(r.ctx(), stored.File); err != nil {
		t.Error(err)
	}
	list, err := r.client.Receipts(r.ctx(), 5)
	if err != nil || len(list) != 1 {
		t.Errorf("%v, %v", list, err)
	}
	if _, err := r.client.Receipt(r.ctx(), "first"); err != nil {
		t.Error(err)
	}
	if _, err := r.client.Images(r.ctx()); err != nil {
		t.Error(err)
	}
	var p *api.Problem
	if err := r.client.CancelRun(r.ctx(), "nobody"); !errors.As(err, &p) || p.Status != 404 {
		t.Error(err)
	}
	for _, path := range []string{api.PathRuns, api.PathReceipts + "?limit=0", "/v1/nothing", api.PathVMShell} {
		r.get(path).Body.Close()
	}
	if _, err := r.client.Stop(r.ctx(), api.StopRequest{TimeoutMS: 1000}); err != nil {
		t.Error(err)
	}
	want := []string{
		"DELETE /v1/files/{file} 204", "DELETE /v1/runs/{id} 404", "GET /v1/images 200", "GET /v1/receipts 200", "GET /v1/receipts 400",
		"GET /v1/receipts/{id} 200", "GET /v1/runs 200", "GET /v1/status 200", "POST /v1/files 200", "POST /v1/runs 200", "GET /v1/vm/shell 426",
		"POST /v1/vm/start 200", "POST /v1/vm/stop 200",
	}
	if err := r.wait(); err != nil { // the last answer is on its way until then
		t.Error(err)
	}
	missing := c.Missing()
	for _, w := range want {
		if slices.Contains(missing, w) {
			t.Errorf("the test did not see the answer %s", w)
		}
	}
}

// TestWhatIsNoRequest: what HTTP itself refuses is answered as the documents say.
func TestWhatIsNoRequest(t *testing.T) {
	r := run(t, options(t, &daemontest.Agent{}))
	r.start()
	for request, want := range map[string]string{
		"GET /v1/status HTTP/1.1\r\nHost: a b\r\n":                               "400",
		"GET /v1/status HTTP/1.1\r\n":                                            "400",
		"GET /v1/status HTTP/1.1\r\nHost: x\r\nExpect: more\r\n":                 "417",
		"GET /v1/status HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("x", 1<<16): "431",
		"POST /v1/runs HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n":       "501",
		"GET /v1/status HTTP/3.0\r\nHost: x\r\n":                                 "505",
	} {
		c, err := (&net.Dialer{Timeout: bound}).DialContext(t.Context(), "unix", r.home.Socket())
		if err != nil {
			t.Fatal(err)
		}
		c.SetDeadline(time.Now().Add(bound))
		io.WriteString(c, request+"\r\n\r\n")
		b, _ := io.ReadAll(c) // what is not read of the request resets the connection
		if !strings.HasPrefix(string(b), "HTTP/1.1 "+want+" ") || strings.Contains(string(b), "application/problem+json") {
			t.Errorf("%.60q: %.200q, not %s", request, b, want)
		}
		c.Close()
	}
}
