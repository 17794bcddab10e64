package openai

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/pybox/pybox/host/repair/model"
	"github.com/pybox/pybox/host/repair/modeltest"
	"github.com/pybox/pybox/host/repair/wire"
)

func client(t *testing.T, key string, replies ...modeltest.Reply) (*Client, *modeltest.Server) {
	t.Helper()
	s := modeltest.New(t, replies...)
	base, err := url.Parse(s.URL + "/v1/")
	if err != nil {
		t.Fatal(err)
	}
	return New(base, key, wire.Limits{Idle: 300 * time.Millisecond}), s
}

var question = model.Question{Model: "m", System: "be good", User: "repair <this>", MaxTokens: 77}

func TestAsk(t *testing.T) {
	t.Setenv("OPENAI_API_KEY", "sk-of-the-environment")
	t.Setenv("OPENAI_BASE_URL", "http://127.0.0.1:1")
	t.Setenv("OPENAI_CUSTOM_HEADERS", "X-Odd: yes")
	want := "Grüße, 世界:\n" + modeltest.Block("print('\\n')")
	c, s := client(t, "sk-given", modeltest.OpenAI(want, "stop"))
	bytes := 0
	a, err := c.Ask(t.Context(), question, func(n int) { bytes = n })
	if err != nil {
		t.Fatal(err)
	}
	if a.Text != want || a.Stop != model.StopEnd || a.Tokens != (model.Tokens{Input: 100, Output: 20}) || bytes != len(want) {
		t.Errorf("%+v, told of %d bytes", a, bytes)
	}
	r := s.Requests()[0]
	body, err := json.Marshal(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	const wantBody = `{"max_tokens":77,"messages":[{"content":"be good","role":"system"},{"content":"repair \u003cthis\u003e","role":"user"}],"model":"m","stream":true,"stream_options":{"include_usage":true}}`
	if r.Path != "/v1/chat/completions" || string(body) != wantBody {
		t.Errorf("asked %s %s", r.Path, body)
	}
	if r.Header.Get("Authorization") != "Bearer sk-given" || r.Header.Get("X-Odd") != "" {
		t.Errorf("sent %v", r.Header)
	}
}

func TestWithoutKey(t *testing.T) {
	t.Setenv("OPENAI_API_KEY", "sk-of-the-environment")
	c, s := client(t, "", modeltest.OpenAI("x", "stop"))
	if _, err := c.Ask(t.Context(), question, nil); err != nil {
		t.Fatal(err)
	}
	if h := s.Requests()[0].Header; h.Get("Authorization") != "" {
		t.Errorf("sent %v", h)
	}
}

func TestStops(t *testing.T) {
	refused := modeltest.Raw(modeltest.OpenAIChunk(`{"role":"assistant","content":"","refusal":"I can't"}`, "null") + modeltest.OpenAIChunk("{}", `"stop"`) + "data: [DONE]\n\n")
	for _, c := range []struct {
		name  string
		reply modeltest.Reply
		want  model.Stop
	}{
		{"length", modeltest.OpenAI("x", "length"), model.StopLength},
		{"filter", modeltest.OpenAI("x", "content_filter"), model.StopRefusal},
		{"refusal", refused, model.StopRefusal},
		{"tools", modeltest.OpenAI("x", "tool_calls"), model.StopOther},
		{"without usage, without the last line", modeltest.Raw(": hello\n\n" + modeltest.OpenAIChunk(`{"content":"x"}`, `"stop"`)), model.StopEnd},
	} {
		cl, _ := client(t, "", c.reply)
		a, err := cl.Ask(t.Context(), question, nil)
		if err != nil || a.Stop != c.want {
			t.Errorf("%s: %+v, %v", c.name, a, err)
		}
		if err == nil && strings.HasPrefix(c.name, "without") && !a.Tokens.Estimated {
			t.Errorf("%s: %+v is not marked as a guess", c.name, a.Tokens)
		}
	}
}

func TestFailures(t *testing.T) {
	begun := modeltest.OpenAIChunk(`{"content":"x"}`, "null")
	huge := modeltest.OpenAIChunk(`{"content":"`+strings.Repeat("x", 1<<16)+`"}`, "null")
	for _, c := range []struct {
		name   string
		reply  modeltest.Reply
		kind   model.Kind
		detail string
	}{
		{"rejected", modeltest.Status(404, nil, `{"error":{"message":"The model m does not exist","type":"invalid_request_error","code":"model_not_found"}}`), model.Rejected, "The model m does not exist"},
		{"denied", modeltest.Status(401, nil, `{"error":{"message":"Incorrect API key provided"}}`), model.Denied, "Incorrect API key"},
		{"busy", modeltest.Status(429, map[string]string{"Retry-After": "20"}, `{"error":{"message":"Rate limit reached"}}`), model.Busy, "Rate limit"},
		{"bad gateway", modeltest.Status(502, nil, "<html>bad gateway</html>"), model.Server, "bad gateway"},
		{"vLLM's form", modeltest.Status(400, nil, `{"object":"error","message":"too long","code":400}`), model.Rejected, "too long"},
		{"Ollama's form", modeltest.Status(500, nil, `{"error":"no room"}`), model.Server, "no room"},
		{"an error in the stream", modeltest.Raw(begun + `data: {"error":{"message":"overloaded"}}` + "\n\n"), model.Server, "overloaded"},
		{"no JSON", modeltest.Raw(begun + "data: {\n\n"), model.Stream, ""},
		{"another type", modeltest.Raw("data: [1]\n\n" + begun), model.Stream, ""},
		{"cut", modeltest.Raw(begun), model.Network, ""},
		{"hung up", modeltest.HangUp(begun), model.Network, ""},
		{"nothing", modeltest.Raw(""), model.Network, ""},
		{"stalled", modeltest.Stall(begun), model.Stalled, "nothing came"},
		{"huge", modeltest.Raw(strings.Repeat(huge, 20)), model.TooLarge, ""},
		{"a page", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>welcome</html>") }, model.Stream, "is that the base URL"},
		{"a server that cannot stream", modeltest.Status(200, nil, "{}"), model.Stream, "application/json"},
		{"redirect", modeltest.Status(307, map[string]string{"Location": "https://evil.example/v1/?k=v"}, ""), model.Redirect, "https://evil.example;"},
	} {
		cl, _ := client(t, "sk-given", c.reply)
		_, err := cl.Ask(t.Context(), question, nil)
		var e *model.Error
		if !errors.As(err, &e) || e.Kind != c.kind || !strings.Contains(e.Error(), c.detail) {
			t.Errorf("%s: %#v, want %s", c.name, err, c.kind)
		}
		if e != nil && c.kind == model.Busy && e.RetryAfter != 20*time.Second {
			t.Errorf("%s: %v", c.name, e.RetryAfter)
		}
	}
}

// TestGivenUp: the end of the context ends an answer, and is what is told.
func TestGivenUp(t *testing.T) {
	why := errors.New("enough")
	for _, r := range []modeltest.Reply{modeltest.Stall(""), modeltest.Stall(modeltest.OpenAIChunk(`{"content":"x"}`, "null"))} {
		c, _ := client(t, "", r)
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(50*time.Millisecond, func() { cancel(why) })
		if _, err := c.Ask(ctx, question, nil); !errors.Is(err, why) {
			t.Errorf("%v", err)
		}
	}
}

func TestModels(t *testing.T) {
	c, s := client(t, "k", modeltest.Status(200, nil, `{"object":"list","data":[{"id":"a","object":"model","created":1,"owned_by":"x"},{"id":"b","object":"model"}]}`))
	names, err := c.Models(t.Context())
	if err != nil || strings.Join(names, " ") != "a b" || s.Requests()[0].Path != "/v1/models" {
		t.Errorf("%v, %v, %+v", names, err, s.Requests())
	}
	c, _ = client(t, "k", modeltest.Status(401, nil, `{"error":{"message":"no"}}`))
	var e *model.Error
	if _, err := c.Models(t.Context()); !errors.As(err, &e) || e.Kind != model.Denied {
		t.Errorf("%v", err)
	}
}

// TestHostileStreams: whatever a server sends is an answer within bounds or an error.
// It is no fuzz target, since those have all that they use instrumented, and the library
// takes minutes for that.
func TestHostileStreams(t *testing.T) {
	begun := modeltest.OpenAIChunk(`{"content":"x"}`, "null")
	seeds := []string{
		begun + modeltest.OpenAIChunk("{}", `"stop"`) + "data: [DONE]\n\n", begun, "data: {\"error\":1}\n\n", "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":[]}}],\"usage\":{}}\n\n", "event: thread.x\ndata: {}\n\n", "data: null\n\n",
	}
	var body []byte
	s := modeltest.New(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = w.Write(body)
	})
	base, err := url.Parse(s.URL + "/v1/")
	if err != nil {
		t.Fatal(err)
	}
	c := New(base, "", wire.Usual)
	random := rand.New(rand.NewPCG(1, 2))
	answers := 0
	for range 1000 {
		body = modeltest.Mutate(random, seeds)
		a, err := c.Ask(t.Context(), question, nil)
		var e *model.Error
		switch {
		case err != nil && !errors.As(err, &e):
			t.Fatalf("%v of %q", err, body)
		case err == nil && (len(a.Text) > model.MaxText || a.Stop == "" || a.Tokens.Input < 0 || a.Tokens.Output < 0):
			t.Fatalf("%+v of %q", a, body)
		case err == nil:
			answers++
		}
	}
	if answers < 20 || answers > 980 {
		t.Errorf("%d of 1000 were answers", answers)
	}
}

// TestLargeEvents: what the library makes of what comes has a bound in time and memory.
func TestLargeEvents(t *testing.T) {
	one := `data: {"choices":[` + modeltest.Many(2<<20) + `]}`
	lines := strings.ReplaceAll(one, "{},{},", "{},\r\ndata: {},\r\n\r\r\ndata: ")
	for name, body := range map[string]string{"a line": one, "a line without an end": strings.TrimSuffix(one, "]}"), "an event of many lines": lines} {
		c, _ := client(t, "", modeltest.Raw(body+"\n\n"))
		err := modeltest.Frugal(t, name, func() error {
			_, err := c.Ask(t.Context(), question, nil)
			return err
		})
		var e *model.Error
		if !errors.As(err, &e) || e.Kind != model.TooLarge {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Events that are not too large are given up between two of them.
	c, _ := client(t, "", modeltest.Raw(strings.Repeat(`data: {"choices":[`+modeltest.Many(120<<10)+`]}`+"\n\n", 400)))
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	began := time.Now()
	if _, err := c.Ask(ctx, question, nil); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 6*time.Second {
		t.Errorf("%v after %v", err, time.Since(began))
	}
	// A list of models is read to its bound, and its names are.
	for name, body := range map[string]string{
		"many": `{"data":[` + modeltest.Many(2<<20) + `]}`, "a long name": `{"data":[{"id":"` + strings.Repeat("x", 5<<10) + `"}]}`,
	} {
		c, _ := client(t, "", modeltest.Status(200, nil, body))
		err := modeltest.Frugal(t, name, func() error {
			_, err := c.Models(t.Context())
			return err
		})
		var e *model.Error
		if !errors.As(err, &e) || e.Kind != model.TooLarge {
			t.Errorf("%s: %v", name, err)
		}
	}
	c, _ = client(t, "", modeltest.Status(200, nil, `{"data":[`+modeltest.Many(1<<20-100)+`]}`))
	if err := modeltest.Frugal(t, "many, but not too many", func() error {
		names, err := c.Models(t.Context())
		if len(names) != model.MaxModels {
			t.Errorf("%d names", len(names))
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	c, _ = client(t, "", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>welcome</html>") })
	var e *model.Error
	if _, err := c.Models(t.Context()); !errors.As(err, &e) || e.Kind != model.Stream || !strings.Contains(e.Detail, "base URL") {
		t.Errorf("%v", err)
	}
}
