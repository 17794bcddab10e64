package provider

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pybox/pybox/host/repair/model"
	"github.com/pybox/pybox/host/repair/modeltest"
	"github.com/pybox/pybox/host/repair/wire"
)

// secret is a key that must be nowhere but in one header.
const secret = "sk-proj-0123456789abcdef"

func env(pairs ...string) func(string) string {
	m := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i]] = pairs[i+1]
	}
	return func(k string) string { return m[k] }
}

func TestChoose(t *testing.T) {
	const openaiKey, anthropicKey = "OPENAI_API_KEY", "ANTHROPIC_API_KEY"
	for _, c := range []struct {
		name string
		wish Wish
		want string // provider, server, and where the key is from
	}{
		{"by a key", Wish{Getenv: env(openaiKey, secret)}, "openai https://api.openai.com/v1 OPENAI_API_KEY"},
		{"by the other key", Wish{Getenv: env(anthropicKey, secret)}, "anthropic https://api.anthropic.com ANTHROPIC_API_KEY"},
		{"by the model", Wish{Model: "claude-x", Getenv: env(openaiKey, secret, anthropicKey, secret)}, "anthropic https://api.anthropic.com ANTHROPIC_API_KEY"},
		{"by another model", Wish{Model: "gpt-x", Getenv: env(openaiKey, secret, anthropicKey, secret)}, "openai https://api.openai.com/v1 OPENAI_API_KEY"},
		{"by a variable", Wish{Getenv: env("ANTHROPIC_BASE_URL", "http://localhost:1/v1/")}, "anthropic http://localhost:1 "},
		{"by the host", Wish{BaseURL: "https://api.anthropic.com/v1", Getenv: env(anthropicKey, secret)}, "anthropic https://api.anthropic.com ANTHROPIC_API_KEY"},
		{"Ollama", Wish{BaseURL: "http://127.0.0.1:11434", Getenv: env()}, "openai http://127.0.0.1:11434/v1 "},
		{"IPv6", Wish{BaseURL: "http://[::1]:8080/v1", Getenv: env(openaiKey, secret)}, "openai http://[::1]:8080/v1 "},
		{"the model's name beats what most speak", Wish{BaseURL: "https://gw.example/anthropic", Model: "Claude-x", Getenv: env(openaiKey, secret, anthropicKey, secret)}, "anthropic https://gw.example/anthropic "},
		{"a name that says nothing", Wish{BaseURL: "http://127.0.0.1:4000", Model: "qwen", Getenv: env(anthropicKey, secret)}, "openai http://127.0.0.1:4000/v1 "},
		{"large letters", Wish{BaseURL: "https://API.Anthropic.com:443", Getenv: env(openaiKey, secret, anthropicKey, secret)}, "anthropic https://api.anthropic.com:443 ANTHROPIC_API_KEY"},
		{"a dot", Wish{BaseURL: "https://api.anthropic.com.", Getenv: env(openaiKey, secret, anthropicKey, secret)}, "anthropic https://api.anthropic.com ANTHROPIC_API_KEY"},
		{"another's server", Wish{BaseURL: "https://a.example", Getenv: env(openaiKey, secret)}, "openai https://a.example/v1 "},
		{"another's server, said", Wish{Provider: "openai", BaseURL: "https://a.example", Getenv: env(openaiKey, secret)}, "openai https://a.example/v1 OPENAI_API_KEY"},
		{"named twice", Wish{BaseURL: "https://a.example/v1/", Getenv: env(openaiKey, secret, "OPENAI_BASE_URL", "https://A.example")}, "openai https://a.example/v1 OPENAI_API_KEY"},
		{"named twice, the other", Wish{BaseURL: "https://a.example/v1/", Getenv: env(anthropicKey, secret, "ANTHROPIC_BASE_URL", "https://a.example/v1")}, "anthropic https://a.example ANTHROPIC_API_KEY"},
		{"an empty variable names nothing", Wish{BaseURL: "https://a.example", Getenv: env(openaiKey, secret, "OPENAI_BASE_URL", "")}, "openai https://a.example/v1 "},
		{"by a variable, with its key", Wish{Getenv: env(openaiKey, secret, "OPENAI_BASE_URL", "https://a.example")}, "openai https://a.example/v1 OPENAI_API_KEY"},
		{"a router", Wish{Model: "claude-x", Getenv: env(openaiKey, secret, anthropicKey, secret, "OPENAI_BASE_URL", "https://a.example")}, "openai https://a.example/v1 OPENAI_API_KEY"},
		{"no router", Wish{Model: "claude-x", Getenv: env(openaiKey, secret, anthropicKey, secret, "OPENAI_BASE_URL", "https://api.openai.com/v1")}, "anthropic https://api.anthropic.com ANTHROPIC_API_KEY"},
		{"Ollama with a key set", Wish{BaseURL: "http://127.0.0.1:11434", Model: "gpt-oss", Getenv: env(openaiKey, secret)}, "openai http://127.0.0.1:11434/v1 "},
		{"a name that looks local", Wish{BaseURL: "http://localhost.evil.example", Getenv: env(openaiKey, secret)}, "openai http://localhost.evil.example/v1 "},
		{"said", Wish{Provider: "anthropic", BaseURL: "http://127.0.0.1:4000/proxy", Getenv: env(openaiKey, secret)}, "anthropic http://127.0.0.1:4000/proxy "},
		{"a flag beats a variable", Wish{BaseURL: "https://a.example/x/", Getenv: env(openaiKey, secret, "OPENAI_BASE_URL", "https://b.example")}, "openai https://a.example/x "},
		{"plain without a key", Wish{BaseURL: "http://gpu:8000/v1", Getenv: env()}, "openai http://gpu:8000/v1 "},
	} {
		p, err := Choose(c.wish)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if got := fmt.Sprintf("%s %s %s", p.Name, p.Server(), p.KeyFrom); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
		if says := strings.Contains(p.String(), "--provider "+p.Name+" has that of"); says != (p.Unsent != "") || says && p.KeyFrom != "" {
			t.Errorf("%s: %s", c.name, p)
		}
		if strings.Contains(p.String()+fmt.Sprint(p.Why), secret) {
			t.Errorf("%s: shows the key: %s", c.name, p)
		}
	}
}

func TestRefusals(t *testing.T) {
	for _, c := range []struct {
		name, say string
		wish      Wish
	}{
		{"nothing", "OPENAI_API_KEY", Wish{Getenv: env()}},
		{"both", "both set", Wish{Getenv: env("OPENAI_API_KEY", secret, "ANTHROPIC_API_KEY", secret)}},
		{"unknown", "not known", Wish{Provider: "gemini", Getenv: env()}},
		{"no key", "wants a key", Wish{Model: "claude-x", Getenv: env()}},
		{"plain with a key", "others can read it", Wish{Provider: "openai", BaseURL: "http://gpu:8000/v1", Getenv: env("OPENAI_API_KEY", secret)}},
		{"plain by variable", "others can read it", Wish{Getenv: env("OPENAI_API_KEY", secret, "OPENAI_BASE_URL", "http://10.0.0.1")}},
		{"a name that looks local", "others can read it", Wish{Provider: "openai", BaseURL: "http://LOCALHOST.evil.example", Getenv: env("OPENAI_API_KEY", secret)}},
		{"password", "environment alone", Wish{BaseURL: "https://u:" + secret + "@a.example", Getenv: env()}},
		{"query", "query", Wish{BaseURL: "https://a.example/?key=" + secret, Getenv: env()}},
		{"a path that has two readings", "%XX", Wish{BaseURL: "https://a.example/x%2Fy/v1", Getenv: env()}},
		{"fragment", "query", Wish{BaseURL: "https://a.example/#" + secret, Getenv: env()}},
		{"another scheme", "not a URL", Wish{BaseURL: "ftp://a.example/" + secret, Getenv: env()}},
		{"no host", "not a URL", Wish{BaseURL: "127.0.0.1:11434", Getenv: env()}},
		{"no URL", "not a URL", Wish{BaseURL: "https://a b/" + secret, Getenv: env()}},
		{"key of two lines", "white space", Wish{Getenv: env("OPENAI_API_KEY", secret+"\n")}},
	} {
		_, err := Choose(c.wish)
		if !errors.Is(err, ErrUsage) || !strings.Contains(err.Error(), c.say) {
			t.Errorf("%s: %v", c.name, err)
		}
		if err != nil && strings.Contains(err.Error(), secret) {
			t.Errorf("%s: shows the key: %v", c.name, err)
		}
	}
}

// TestKeyStaysHere: whatever a server does with the key, it comes back in nothing.
func TestKeyStaysHere(t *testing.T) {
	long := strings.Repeat("x", maxDetail-10) + secret // the cut is in the middle of it
	for _, name := range []string{OpenAI, Anthropic} {
		answer, event := modeltest.OpenAI("```python\nkey = '"+secret+"'\n```", "stop"), `data: {"error":{"message":"`+secret+`"}}`+"\n\n"
		if name == Anthropic {
			answer, event = modeltest.Anthropic("```python\nkey = '"+secret+"'\n```", "end_turn"), `event: error`+"\n"+`data: {"type":"error","error":{"type":"api_error","message":"`+secret+`"}}`+"\n\n"
		}
		s := modeltest.New(t,
			modeltest.Status(401, nil, `{"error":{"message":"wrong key `+secret+`"}}`),
			modeltest.Status(500, nil, "Authorization: Bearer "+secret),
			modeltest.Status(400, nil, `{"error":{"message":"`+long+`"}}`),
			modeltest.Status(302, map[string]string{"Location": "https://" + secret + ".example/"}, ""),
			modeltest.Raw(event),
			answer,
			modeltest.Status(200, nil, `{"data":[{"id":"`+secret+`","type":"model"}]}`),
		)
		p, err := Choose(Wish{Provider: name, BaseURL: s.URL, Getenv: env("OPENAI_API_KEY", secret, "ANTHROPIC_API_KEY", secret)})
		if err != nil {
			t.Fatal(err)
		}
		c := p.Client(wire.Usual)
		q := model.Question{Model: "m", System: "s", User: "u", MaxTokens: 10}
		for n := range 5 {
			_, err := c.Ask(t.Context(), q, nil)
			if err == nil || strings.Contains(fmt.Sprintf("%v %#v", err, err), secret[:len(secret)-3]) {
				t.Errorf("%s, answer %d: %v", name, n, err)
			}
		}
		a, err := c.Ask(t.Context(), q, nil)
		if err != nil || a.Text != "" || a.Stop != model.StopKey || a.Tokens.Sum() == 0 {
			t.Errorf("%s: %+v, %v", name, a, err)
		}
		if names, err := c.Models(t.Context()); err == nil || len(names) != 0 || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: %q, %v", name, names, err)
		}
		for _, r := range s.Requests() {
			if !strings.Contains(fmt.Sprint(r.Header), secret) || strings.Contains(fmt.Sprint(r.Body, r.Path), secret) {
				t.Errorf("%s: asked %+v", name, r)
			}
		}
	}
}

// TestRedirect: the key goes to the server that was named, and nobody follows it
// elsewhere.
func TestRedirect(t *testing.T) {
	for _, status := range []int{301, 302, 303, 307, 308} {
		evil := modeltest.New(t, modeltest.OpenAI("x", "stop"))
		s := modeltest.New(t, modeltest.Status(status, map[string]string{"Location": evil.URL + "/v1/chat/completions"}, ""))
		for _, name := range []string{OpenAI, Anthropic} {
			p, err := Choose(Wish{Provider: name, BaseURL: s.URL, Getenv: env("OPENAI_API_KEY", secret, "ANTHROPIC_API_KEY", secret)})
			if err != nil {
				t.Fatal(err)
			}
			var e *model.Error
			if _, err := p.Client(wire.Usual).Ask(t.Context(), model.Question{Model: "m", MaxTokens: 1}, nil); !errors.As(err, &e) || e.Kind != model.Redirect {
				t.Errorf("%s, %d: %v", name, status, err)
			}
		}
		if len(s.Requests()) != 2 || len(evil.Requests()) != 0 {
			t.Errorf("%d: %d requests, and %d elsewhere", status, len(s.Requests()), len(evil.Requests()))
		}
	}
}

func TestModelOf(t *testing.T) {
	for _, c := range []struct{ body, want, say string }{
		{`{"data":[{"id":"only"}]}`, "only", ""},
		{`{"data":[]}`, "", "has none"},
		{`{"data":[{"id":"a"},{"id":"b"}]}`, "", "has 2: a, b"},
		{`{"data":[` + strings.Repeat(`{"id":"a"},`, 2000) + `{"id":"b"}]}`, "", "and 988 more"},
	} {
		s := modeltest.New(t, modeltest.Status(200, nil, c.body))
		p, err := Choose(Wish{BaseURL: s.URL, Getenv: env()})
		if err != nil {
			t.Fatal(err)
		}
		got, err := ModelOf(t.Context(), p.Client(wire.Limits{Idle: time.Second}))
		if got != c.want || (err == nil) != (c.say == "") || err != nil && (!strings.Contains(err.Error(), c.say) || !errors.Is(err, ErrUsage)) {
			t.Errorf("%.60s: %q, %v", c.body, got, err)
		}
	}
}

// TestAnswersStayWhole: no answer is altered, whatever words keys are.
func TestAnswersStayWhole(t *testing.T) {
	for key, want := range map[string]model.Stop{"none": model.StopEnd, "placeholder": model.StopKey, "another-word": model.StopEnd} {
		const says = "x = dict(placeholder=None)  # none"
		s := modeltest.New(t, modeltest.OpenAI(says, "stop"))
		p, err := Choose(Wish{BaseURL: s.URL, Getenv: env("OPENAI_API_KEY", key)})
		if err != nil {
			t.Fatal(err)
		}
		a, err := p.Client(wire.Usual).Ask(t.Context(), model.Question{Model: "m", MaxTokens: 1}, nil)
		if err != nil || a.Stop != want || a.Text != map[model.Stop]string{model.StopEnd: says}[want] {
			t.Errorf("%s: %+v, %v", key, a, err)
		}
	}
}

// TestUnsent: a key that nobody asked to be sent stays here, and a denial says how it
// would be sent.
func TestUnsent(t *testing.T) {
	s := modeltest.New(t, modeltest.Status(401, nil, `{"error":{"message":"no key, as `+secret+`"}}`))
	p, err := Choose(Wish{BaseURL: s.URL, Getenv: env("OPENAI_API_KEY", secret, "ANTHROPIC_API_KEY", secret)})
	if err != nil {
		t.Fatal(err)
	}
	_, err = p.Client(wire.Usual).Ask(t.Context(), model.Question{Model: "m", MaxTokens: 1}, nil)
	if err == nil || !strings.Contains(err.Error(), "no key, as [key]; --provider openai has that of OPENAI_API_KEY sent there") {
		t.Errorf("%v", err)
	}
	if h := fmt.Sprint(s.Requests()[0].Header); strings.Contains(h, secret) {
		t.Error(h)
	}
}
