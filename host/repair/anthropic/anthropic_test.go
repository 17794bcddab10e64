package anthropic

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
	base, err := url.Parse(s.URL + "/")
	if err != nil {
		t.Fatal(err)
	}
	return New(base, key, wire.Limits{Idle: 300 * time.Millisecond}), s
}

var question = model.Question{Model: "claude-x", System: "be good", User: "repair this", MaxTokens: 77}

func TestAsk(t *testing.T) {
	t.Setenv("ANTHROPIC_API_KEY", "sk-of-the-environment")
	t.Setenv("ANTHROPIC_AUTH_TOKEN", "token-of-the-environment")
	t.Setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:1")
	t.Setenv("ANTHROPIC_CUSTOM_HEADERS", "X-Odd: yes")
	want := "Grüße, 世界:\n" + modeltest.Block("print('\\n')")
	c, s := client(t, "sk-given", modeltest.Anthropic(want, "end_turn"))
	bytes := 0
	a, err := c.Ask(t.Context(), question, func(n int) { bytes = n })
	if err != nil {
		t.Fatal(err)
	}
	if a.Text != want || a.Stop != model.StopEnd || a.Tokens != (model.Tokens{Input: 30, Output: 15}) || bytes != len(want) {
		t.Errorf("%+v, told of %d bytes", a, bytes)
	}
	r := s.Requests()[0]
	body, err := json.Marshal(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	const wantBody = `{"max_tokens":77,"messages":[{"content":[{"text":"repair this","type":"text"}],"role":"user"}],"model":"claude-x","stream":true,"system":[{"text":"be good","type":"text"}]}`
	if r.Path != "/v1/messages" || string(body) != wantBody {
		t.Errorf("asked %s %s", r.Path, body)
	}
	all, err := json.Marshal(r.Header)
	if err != nil {
		t.Fatal(err)
	}
	if h := string(all); !strings.Contains(h, "sk-given") || strings.Contains(h, "environment") || strings.Contains(h, "X-Odd") || r.Header.Get("Anthropic-Version") == "" {
		t.Errorf("sent %s", h)
	}
}

func TestWithoutKey(t *testing.T) {
	t.Setenv("ANTHROPIC_API_KEY", "sk-of-the-environment")
	c, s := client(t, "", modeltest.Anthropic("x", "end_turn"))
	if _, err := c.Ask(t.Context(), question, nil); err != nil {
		t.Fatal(err)
	}
	if h := s.Requests()[0].Header; h.Get("Authorization") != "" || h.Get("X-Api-Key") != "" {
		t.Errorf("sent %v", h)
	}
}

// TestThoughts: what a model thinks is no part of its answer.
func TestThoughts(t *testing.T) {
	thinking := `event: content_block_delta
data: {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "hidden"}}

event: content_block_delta
data: {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "EqQBCgIYAhIM1gbcDa9GJwZA2b3hGgxBdjrkzLoky3dl1pkiMOYds"}}

`
	end := "event: message_delta\ndata: {\"type\": \"message_delta\", \"delta\": {\"stop_reason\": \"end_turn\", \"stop_sequence\":null}, \"usage\": {\"output_tokens\": 15}}\n\nevent: message_stop\ndata: {\"type\": \"message_stop\"}\n\n"
	c, _ := client(t, "", modeltest.Raw(modeltest.AnthropicStart+thinking+modeltest.AnthropicDelta("seen")+end))
	a, err := c.Ask(t.Context(), question, nil)
	if err != nil || a.Text != "seen" {
		t.Errorf("%+v, %v", a, err)
	}
}

func TestStops(t *testing.T) {
	for reason, want := range map[string]model.Stop{
		"max_tokens": model.StopLength, "refusal": model.StopRefusal, "tool_use": model.StopOther, "stop_sequence": model.StopEnd,
		"model_context_window_exceeded": model.StopLength, "something_new": model.StopOther,
	} {
		c, _ := client(t, "", modeltest.Anthropic("x", reason))
		if a, err := c.Ask(t.Context(), question, nil); err != nil || a.Stop != want {
			t.Errorf("%s: %+v, %v", reason, a, err)
		}
	}
}

func TestFailures(t *testing.T) {
	begun := modeltest.AnthropicStart + modeltest.AnthropicDelta("x")
	for _, c := range []struct {
		name   string
		reply  modeltest.Reply
		kind   model.Kind
		detail string
	}{
		{"rejected", modeltest.Status(404, nil, `{"type":"error","error":{"type":"not_found_error","message":"model: claude-x"},"request_id":"req_1"}`), model.Rejected, "model: claude-x"},
		{"denied", modeltest.Status(401, nil, `{"type":"error","error":{"type":"authentication_error","message":"invalid x-api-key"}}`), model.Denied, "invalid"},
		{"busy", modeltest.Status(429, map[string]string{"retry-after": "20"}, `{"type":"error","error":{"type":"rate_limit_error","message":"slower"}}`), model.Busy, "slower"},
		{"overloaded", modeltest.Status(529, nil, `{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}`), model.Server, "Overloaded"},
		{"overloaded in the stream", modeltest.Raw(begun + "event: error\ndata: {\"type\": \"error\", \"error\": {\"type\": \"overloaded_error\", \"message\": \"Overloaded\"}}\n\n"), model.Server, "Overloaded"},
		{"too fast in the stream", modeltest.Raw("event: error\ndata: {\"type\": \"error\", \"error\": {\"type\": \"rate_limit_error\", \"message\": \"slower\"}}\n\n"), model.Busy, "slower"},
		{"wrong in the stream", modeltest.Raw("event: error\ndata: {\"type\": \"error\", \"error\": {\"type\": \"invalid_request_error\", \"message\": \"no\"}}\n\n"), model.Rejected, "no"},
		{"no JSON", modeltest.Raw(begun + "event: message_delta\ndata: {\n\n"), model.Stream, ""},
		{"cut", modeltest.Raw(begun), model.Network, ""},
		{"hung up", modeltest.HangUp(begun), model.Network, ""},
		{"nothing", modeltest.Raw(""), model.Network, ""},
		{"stalled", modeltest.Stall(begun), model.Stalled, "nothing came"},
		{"huge", modeltest.Raw(begun + modeltest.AnthropicDelta(strings.Repeat("x", model.MaxText))), model.TooLarge, ""},
		{"a page", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>welcome</html>") }, model.Stream, "is that the base URL"},
		{"a server that cannot stream", modeltest.Status(200, nil, "{}"), model.Stream, "application/json"},
		{"redirect", modeltest.Status(302, map[string]string{"Location": "http://127.0.0.1:2/x"}, ""), model.Redirect, "http://127.0.0.1:2;"},
	} {
		cl, _ := client(t, "sk-given", c.reply)
		_, err := cl.Ask(t.Context(), question, nil)
		var e *model.Error
		if !errors.As(err, &e) || e.Kind != c.kind || !strings.Contains(e.Error(), c.detail) {
			t.Errorf("%s: %#v, want %s", c.name, err, c.kind)
		}
	}
}

// TestGivenUp: the end of the context ends an answer, and is what is told.
func TestGivenUp(t *testing.T) {
	why := errors.New("enough")
	c, _ := client(t, "", modeltest.Stall(modeltest.AnthropicStart))
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(50*time.Millisecond, func() { cancel(why) })
	if _, err := c.Ask(ctx, question, nil); !errors.Is(err, why) {
		t.Errorf("%v", err)
	}
}

func TestModels(t *testing.T) {
	c, s := client(t, "k", modeltest.Status(200, nil, `{"data":[{"type":"model","id":"claude-a","display_name":"A","created_at":"2025-02-19T00:00:00Z"}],"has_more":false,"first_id":"claude-a","last_id":"claude-a"}`))
	names, err := c.Models(t.Context())
	if err != nil || strings.Join(names, " ") != "claude-a" || s.Requests()[0].Path != "/v1/models" {
		t.Errorf("%v, %v, %+v", names, err, s.Requests())
	}
}

// TestHostileStreams: whatever a server sends is an answer within bounds or an error.
// It is no fuzz target, since those have all that they use instrumented, and the library
// takes minutes for that.
func TestHostileStreams(t *testing.T) {
	begun := modeltest.AnthropicStart + modeltest.AnthropicDelta("x")
	seeds := []string{
		begun + "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":-1}}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
		begun, "event: error\ndata: {\"type\":\"error\"}\n\n", "event: error\ndata: {\n\n", "event: message_start\ndata: {\"message\":[]}\n\n", "event: x\ndata: null\n\n",
	}
	var body []byte
	s := modeltest.New(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = w.Write(body)
	})
	base, err := url.Parse(s.URL + "/")
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
	one := "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"content\":[" + modeltest.Many(2<<20) + "]}}"
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
	c, _ := client(t, "", modeltest.Raw(strings.Repeat("event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"content\":["+modeltest.Many(120<<10)+"]}}"+"\n\n", 400)))
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
