// Package modeltest is a model's server for tests: it speaks the wire formats of
// OpenAI and Anthropic as their documentation shows them, streaming, and answers what
// a test tells it to, however wrong. It understands nothing that it is asked.
package modeltest

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"
)

// Server answers each question with the next of its replies, and with the last one from
// then on.
type Server struct {
	*httptest.Server
	mu       sync.Mutex
	replies  []Reply
	requests []Request
}

// Request is what was asked.
type Request struct {
	Path   string
	Header http.Header
	// Body is JSON; Text is all of its text that a model would read.
	Body map[string]any
	Text string
	// At is when it came.
	At time.Time
}

// Reply writes an answer.
type Reply func(w http.ResponseWriter, r *http.Request)

// New starts a server, which ends with the test.
func New(t testing.TB, replies ...Reply) *Server {
	s := &Server{replies: replies}
	s.Server = httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(s.Close)
	return s
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	b, _ := io.ReadAll(io.LimitReader(r.Body, 8<<20))
	q := Request{Path: r.URL.Path, Header: r.Header.Clone(), At: time.Now()}
	_ = json.Unmarshal(b, &q.Body)
	q.Text = text(q.Body["system"]) + text(q.Body["messages"])
	s.mu.Lock()
	n := len(s.requests)
	s.requests = append(s.requests, q)
	reply := s.replies[min(n, len(s.replies)-1)]
	s.mu.Unlock()
	reply(w, r)
}

// text is all strings in a value of JSON that stand where text does.
func text(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case []any:
		var all []string
		for _, e := range v {
			all = append(all, text(e))
		}
		return strings.Join(all, "\n")
	case map[string]any:
		return text(v["content"]) + text(v["text"])
	}
	return ""
}

// Requests are all so far.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Request(nil), s.requests...)
}

// Block is code as a model is asked to give it.
func Block(code string) string { return "```python\n" + strings.TrimSuffix(code, "\n") + "\n```" }

// pieces cuts an answer into what a stream brings at a time.
func pieces(text string) (all []string) {
	for len(text) > 7 {
		n := 7
		for n < len(text) && !utf8.RuneStart(text[n]) {
			n++
		}
		all, text = append(all, text[:n]), text[n:]
	}
	return append(all, text)
}

func quote(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return string(b)
}

func stream(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
}

// OpenAI answers with text in the format of OpenAI's chat completions, ended by finish:
// "stop", "length", "content_filter".
func OpenAI(text, finish string) Reply {
	return func(w http.ResponseWriter, _ *http.Request) {
		stream(w)
		for _, p := range pieces(text) {
			io.WriteString(w, OpenAIChunk(`{"content":`+quote(p)+`}`, "null"))
			w.(http.Flusher).Flush()
		}
		io.WriteString(w, OpenAIChunk(`{}`, quote(finish)))
		io.WriteString(w, `data: {"id":"chatcmpl-123","object":"chat.completion.chunk","created":1694268190,"model":"gpt-4o-mini","system_fingerprint":"fp_44709d6fcb","choices":[],"usage":{"prompt_tokens":100,"completion_tokens":20,"total_tokens":120,"prompt_tokens_details":{"cached_tokens":0,"audio_tokens":0},"completion_tokens_details":{"reasoning_tokens":0,"audio_tokens":0,"accepted_prediction_tokens":0,"rejected_prediction_tokens":0}}}`+"\n\n")
		io.WriteString(w, "data: [DONE]\n\n")
	}
}

// OpenAIChunk is one event of OpenAI's stream; delta and finish are JSON.
func OpenAIChunk(delta, finish string) string {
	return fmt.Sprintf(`data: {"id":"chatcmpl-123","object":"chat.completion.chunk","created":1694268190,"model":"gpt-4o-mini","system_fingerprint":"fp_44709d6fcb","choices":[{"index":0,"delta":%s,"logprobs":null,"finish_reason":%s}],"usage":null}`, delta, finish) + "\n\n"
}

// Anthropic answers with text in the format of Anthropic's messages, ended by reason:
// "end_turn", "max_tokens", "refusal".
func Anthropic(text, reason string) Reply {
	return func(w http.ResponseWriter, _ *http.Request) {
		stream(w)
		io.WriteString(w, AnthropicStart)
		for _, p := range pieces(text) {
			io.WriteString(w, AnthropicDelta(p))
			w.(http.Flusher).Flush()
		}
		io.WriteString(w, "event: content_block_stop\ndata: {\"type\": \"content_block_stop\", \"index\": 0}\n\n")
		fmt.Fprintf(w, "event: message_delta\ndata: {\"type\": \"message_delta\", \"delta\": {\"stop_reason\": %s, \"stop_sequence\":null}, \"usage\": {\"output_tokens\": 15}}\n\n", quote(reason))
		io.WriteString(w, "event: message_stop\ndata: {\"type\": \"message_stop\"}\n\n")
	}
}

// AnthropicStart is how Anthropic's stream begins: a message, thoughts that are not
// shown, a ping, and the block of the answer.
const AnthropicStart = `event: message_start
data: {"type": "message_start", "message": {"id": "msg_1nZdL29xx5MUA1yADyHTEsnR8uuvGzszyy", "type": "message", "role": "assistant", "content": [], "model": "claude-opus-4-20250514", "stop_reason": null, "stop_sequence": null, "usage": {"input_tokens": 25, "cache_read_input_tokens": 5, "output_tokens": 1}}}

event: content_block_start
data: {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}

event: ping
data: {"type": "ping"}

`

// AnthropicDelta is a piece of text of Anthropic's stream.
func AnthropicDelta(text string) string {
	return fmt.Sprintf("event: content_block_delta\ndata: {\"type\": \"content_block_delta\", \"index\": 0, \"delta\": {\"type\": \"text_delta\", \"text\": %s}}\n\n", quote(text))
}

// Status answers with an error.
func Status(code int, header map[string]string, body string) Reply {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		for k, v := range header {
			w.Header().Set(k, v)
		}
		w.WriteHeader(code)
		io.WriteString(w, body)
	}
}

// Raw answers with a stream as it is, and hangs up.
func Raw(body string) Reply {
	return func(w http.ResponseWriter, _ *http.Request) {
		stream(w)
		io.WriteString(w, body)
	}
}

// Stall begins a stream and sends no more of it, until who asks has hung up.
func Stall(body string) Reply {
	return func(w http.ResponseWriter, r *http.Request) {
		stream(w)
		io.WriteString(w, body)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}
}

// HangUp ends the connection in the middle of a stream.
func HangUp(body string) Reply {
	return func(w http.ResponseWriter, _ *http.Request) {
		stream(w)
		io.WriteString(w, body)
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}
}

// Mutate makes a stream of one of the seeds: some of its bytes and pieces are lost,
// changed, or there twice.
func Mutate(r *rand.Rand, seeds []string) []byte {
	b := []byte(seeds[r.IntN(len(seeds))])
	for range r.IntN(4) {
		at := r.IntN(len(b))
		end := min(at+1+r.IntN(20), len(b))
		switch r.IntN(4) {
		case 0:
			b[at] = byte(r.IntN(256))
		case 1:
			b = slices.Delete(b, at, end)
		case 2:
			b = slices.Insert(b, at, b[at:end]...)
		default:
			b = slices.Insert(b, at, []byte(pieceOf[r.IntN(len(pieceOf))])...)
		}
		if len(b) == 0 {
			break
		}
	}
	return b
}

// pieceOf are pieces that mean something in a stream.
var pieceOf = []string{"\n\n", "data: ", "event: error\n", "null", "[]", "{}", "-1", "1e999", `"\ud800"`, ":", "[DONE]", `{"error":{}}`}

// Frugal asks, and fails a test when that takes more of time or memory than any answer
// may.
func Frugal(t testing.TB, name string, ask func() error) error {
	t.Helper()
	const most, longest = 256 << 20, 10 * time.Second
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	began := time.Now()
	err := ask()
	took := time.Since(began)
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > most || took > longest {
		t.Errorf("%s: %d MiB in %v", name, n>>20, took)
	}
	return err
}

// Many are so many empty values of JSON in a list that n bytes are full.
func Many(n int) string { return strings.Repeat("{},", n/3) + "{}" }
