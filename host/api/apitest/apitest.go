// Package apitest holds requests and answers of the daemon's API to its OpenAPI
// description, as tests see them on either side: every answer must be described, member
// by member, and what was asked for when it was granted. It is for tests.
package apitest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/pybox/pybox/docs"
	"github.com/pybox/pybox/host/api"
)

// maxBody bounds what of a body is looked at: a longer one is not held to its schema.
const maxBody = 4 << 20

// Errorf reports what is wrong, as that of testing.TB does.
type Errorf func(format string, a ...any)

// Checker holds what it is shown to the description. It is safe for concurrent use.
type Checker struct {
	errorf Errorf
	doc    document
	routes map[string]*regexp.Regexp // by their paths

	mu       sync.Mutex
	compiler *jsonschema.Compiler
	schemas  map[string]*jsonschema.Schema // by where they stand
	seen     map[string]bool               // "METHOD PATH STATUS" that were shown
}

// document is the part of the description that is looked at here.
type document struct {
	Paths      map[string]map[string]operation `json:"paths"`
	Components struct {
		Responses map[string]response `json:"responses"`
	} `json:"components"`
}

type operation struct {
	Parameters  []parameter         `json:"parameters"`
	RequestBody *content            `json:"requestBody"`
	Responses   map[string]response `json:"responses"`
}

type parameter struct {
	Name     string `json:"name"`
	In       string `json:"in"`
	Required bool   `json:"required"`
	Schema   any    `json:"schema"`
}

type content struct {
	Required bool           `json:"required"`
	Content  map[string]any `json:"content"`
}

type response struct {
	Ref     string            `json:"$ref"`
	Headers map[string]header `json:"headers"`
	Content map[string]any    `json:"content"`
}

type header struct {
	Required bool `json:"required"`
	Schema   any  `json:"schema"`
}

// own are the headers that are to be described, beside PyBox's own: those that tell a client
// something that HTTP's own machinery does not look after.
var own = []string{"Retry-After", "Www-Authenticate", "Allow", "Repr-Digest", "Location"}

// location is the description as the compiler knows it.
const location = "openapi.json"

// New makes a Checker that reports what is wrong with errorf.
func New(errorf Errorf) (*Checker, error) {
	c := &Checker{errorf: errorf, routes: map[string]*regexp.Regexp{}, schemas: map[string]*jsonschema.Schema{}, seen: map[string]bool{}, compiler: jsonschema.NewCompiler()}
	if err := json.Unmarshal(docs.OpenAPI, &c.doc); err != nil {
		return nil, fmt.Errorf("the description: %w", err)
	}
	whole, err := jsonschema.UnmarshalJSON(bytes.NewReader(docs.OpenAPI))
	if err != nil {
		return nil, err
	}
	c.compiler.DefaultDraft(jsonschema.Draft2020)
	c.compiler.AssertFormat()
	if err := c.compiler.AddResource(location, whole); err != nil {
		return nil, err
	}
	params := regexp.MustCompile(`\\\{[a-z]+\\\}`)
	for path := range c.doc.Paths {
		c.routes[path] = regexp.MustCompile("^" + params.ReplaceAllString(regexp.QuoteMeta(path), "([^/]+)") + "$")
	}
	return c, nil
}

// Routes are the operations of the description, as "GET /v1/status".
func (c *Checker) Routes() []string {
	var all []string
	for path, ops := range c.doc.Paths {
		for method := range ops {
			all = append(all, strings.ToUpper(method)+" "+path)
		}
	}
	slices.Sort(all)
	return all
}

// Missing are the answers of the description that were not shown, as "GET /v1/status 200".
func (c *Checker) Missing() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []string
	for path, ops := range c.doc.Paths {
		for method, op := range ops {
			for status := range op.Responses {
				if key := strings.ToUpper(method) + " " + path + " " + status; !c.seen[key] {
					all = append(all, key)
				}
			}
		}
	}
	slices.Sort(all)
	return all
}

// Exchange is a request and its answer. Bodies that were longer than what is here are nil.
type Exchange struct {
	Method, Path, Query string
	RequestHeader       http.Header
	Request             []byte
	Status              int
	Header              http.Header
	Answer              []byte
	// Cut tells that the answer, or the request, is not all here.
	Cut bool
}

// Check holds e to the description.
func (c *Checker) Check(e Exchange) {
	path, op, ok := c.find(e.Method, e.Path)
	if !ok {
		c.unknown(e)
		return
	}
	where := strings.ToUpper(e.Method) + " " + path
	status := fmt.Sprint(e.Status)
	r, ok := op.Responses[status]
	if !ok {
		c.errorf("%s answers %s, which is not described: %.300q", where, status, e.Answer)
		return
	}
	c.mu.Lock()
	c.seen[where+" "+status] = true
	c.mu.Unlock()
	at := "/paths/" + escape(path) + "/" + strings.ToLower(e.Method) + "/responses/" + status
	if r.Ref != "" {
		at = strings.TrimPrefix(r.Ref, "#")
		r = c.doc.Components.Responses[strings.TrimPrefix(r.Ref, "#/components/responses/")]
	}
	for name, h := range r.Headers {
		c.header(where, at, name, h, e)
	}
	for name := range e.Header {
		if (strings.HasPrefix(name, "Pybox-") || slices.Contains(own, name)) && !described(r.Headers, name) {
			c.errorf("%s: the header %s of the answer %s is not described", where, name, status)
		}
	}
	c.answer(where, at, r, e)
	if e.Status < 300 {
		c.request(where, path, op, e)
	}
}

// header holds a header that is described to its schema.
func (c *Checker) header(where, at, name string, h header, e Exchange) {
	values := e.Header.Values(name)
	switch {
	case len(values) == 0:
		if h.Required {
			c.errorf("%s: an answer %d without the header %s", where, e.Status, name)
		}
	case len(values) > 1:
		c.errorf("%s: an answer %d with %d headers %s", where, e.Status, len(values), name)
	default:
		c.validate(fmt.Sprintf("%s: the header %s of an answer %d", where, name, e.Status), at+"/headers/"+escape(name)+"/schema", asJSON(values[0], h.Schema))
	}
}

// asJSON is a value outside of a body as the JSON that its schema is for.
func asJSON(value string, schema any) []byte {
	if m, ok := schema.(map[string]any); ok && (m["type"] == "integer" || m["type"] == "boolean") {
		return []byte(value)
	}
	text, _ := json.Marshal(value)
	return text
}

func described(headers map[string]header, name string) bool {
	for h := range headers {
		if http.CanonicalHeaderKey(h) == name {
			return true
		}
	}
	return false
}

// find gives the operation of a request.
func (c *Checker) find(method, path string) (string, operation, bool) {
	for p, re := range c.routes {
		if op, ok := c.doc.Paths[p][strings.ToLower(method)]; ok && re.MatchString(path) {
			return p, op, true
		}
	}
	return "", operation{}, false
}

// unknown holds the answer to a request that is not part of the API to what is said of
// those: a problem.
func (c *Checker) unknown(e Exchange) {
	if !slices.Contains([]int{401, 403, 404, 405, 503}, e.Status) {
		c.errorf("%s %.80q is not described, and the answer is %d", e.Method, e.Path, e.Status)
		return
	}
	if !e.Cut && e.Method != http.MethodHead {
		c.validate(fmt.Sprintf("%s %.80q", e.Method, e.Path), "/components/schemas/Problem", e.Answer)
	}
}

// answer holds the body of an answer to its schema.
func (c *Checker) answer(where, at string, r response, e Exchange) {
	if len(r.Content) == 0 {
		if len(e.Answer) > 0 {
			c.errorf("%s: an answer %d has a body: %.100q", where, e.Status, e.Answer)
		}
		return
	}
	media, _, _ := mime.ParseMediaType(e.Header.Get("Content-Type"))
	if _, ok := r.Content[media]; !ok {
		c.errorf("%s: an answer %d is %q, which is not described", where, e.Status, e.Header.Get("Content-Type"))
		return
	}
	schema := at + "/content/" + escape(media) + "/schema"
	switch {
	case media == api.MediaEvents:
		for line := range bytes.Lines(e.Answer) {
			if bytes.HasSuffix(line, []byte("\n")) { // else it was cut off
				c.validate(where+": an event", schema, line)
			}
		}
	case e.Cut:
	case strings.HasSuffix(media, "json"):
		c.validate(fmt.Sprintf("%s: the answer %d", where, e.Status), schema, e.Answer)
	}
}

// request holds a request that was granted to what may be asked for.
func (c *Checker) request(where, path string, op operation, e Exchange) {
	at := "/paths/" + escape(path) + "/" + strings.ToLower(e.Method)
	query, err := url.ParseQuery(e.Query)
	if err != nil {
		c.errorf("%s: the query %q: %v", where, e.Query, err)
	}
	values := c.routes[path].FindStringSubmatch(e.Path)[1:]
	for n, p := range op.Parameters {
		var value string
		switch p.In {
		case "path":
			value, values = values[0], values[1:]
		case "query":
			value = query.Get(p.Name)
			query.Del(p.Name)
		case "header":
			value = e.RequestHeader.Get(p.Name)
		}
		if value == "" && !p.Required {
			continue
		}
		c.validate(where+": the parameter "+p.Name, fmt.Sprintf("%s/parameters/%d/schema", at, n), asJSON(value, p.Schema))
	}
	if len(query) > 0 {
		c.errorf("%s: %v is not described", where, query)
	}
	switch _, isJSON := op.content()["application/json"]; {
	case op.RequestBody == nil && len(e.Request) > 0:
		c.errorf("%s takes a body, which is not described", where)
	case isJSON && !e.Cut && (op.RequestBody.Required || len(e.Request) > 0):
		c.validate(where+": the request", at+"/requestBody/content/application~1json/schema", e.Request)
	}
}

func (o operation) content() map[string]any {
	if o.RequestBody == nil {
		return nil
	}
	return o.RequestBody.Content
}

// validate holds JSON to the schema that stands at that place of the description.
func (c *Checker) validate(what, at string, text []byte) {
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		c.errorf("%s is no JSON: %v: %.200q", what, err, text)
		return
	}
	s, err := c.schema(at)
	if err != nil {
		c.errorf("%s: the schema at %s: %v", what, at, err)
		return
	}
	if err := s.Validate(v); err != nil {
		c.errorf("%s is not what is described: %v\n%.2000s", what, err, text)
	}
}

func (c *Checker) schema(at string) (*jsonschema.Schema, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.schemas[at]; s != nil {
		return s, nil
	}
	s, err := c.compiler.Compile(location + "#" + (&url.URL{Fragment: at}).EscapedFragment())
	if err == nil {
		c.schemas[at] = s
	}
	return s, err
}

// escape writes a member's name as a JSON pointer has it.
func escape(name string) string { return strings.NewReplacer("~", "~0", "/", "~1").Replace(name) }

// Handler shows the Checker what a handler answers.
func (c *Checker) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e := Exchange{Method: r.Method, Path: r.URL.Path, Query: r.URL.RawQuery, RequestHeader: r.Header.Clone()}
		if e.Method == http.MethodHead { // which is what GET answers, without its body
			next.ServeHTTP(w, r)
			return
		}
		body := &capture{}
		r.Body = struct {
			io.Reader
			io.Closer
		}{io.TeeReader(r.Body, body), r.Body}
		out := &answer{ResponseWriter: w}
		next.ServeHTTP(out, r)
		request, cutRequest := body.kept()
		given, cutAnswer := out.body.kept()
		if out.status == 0 && len(given) == 0 && r.Context().Err() != nil {
			return // nobody was there any more
		}
		e.Status, e.Header = out.status, out.Header()
		if e.Status == 0 {
			e.Status = http.StatusOK
		}
		if out.hijacked {
			e.Status, e.Header = http.StatusSwitchingProtocols, http.Header{}
		}
		e.Request, e.Answer = request, given
		e.Cut = cutRequest || cutAnswer || out.failed
		c.Check(e)
	})
}

// capture keeps the beginning of what is written. It is safe for concurrent use: a server
// may answer, and net/http's client show that, while the request is still being sent.
type capture struct {
	mu   sync.Mutex
	b    bytes.Buffer
	long bool
}

// Write implements io.Writer.
func (c *capture) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.long = c.long || c.b.Len()+len(b) > maxBody
	if c.long {
		return len(b), nil
	}
	return c.b.Write(b)
}

// kept is a copy of what is there by now, and whether that is less than was written.
func (c *capture) kept() (b []byte, cut bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return bytes.Clone(c.b.Bytes()), c.long
}
