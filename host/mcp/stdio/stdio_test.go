package stdio

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// peer is the client's end of a connection.
type peer struct {
	t    *testing.T
	conn sdk.Connection
	in   *io.PipeWriter
	out  *bufio.Scanner
}

func connect(t *testing.T, drain time.Duration) *peer {
	t.Helper()
	r, w := io.Pipe()
	out, answers := io.Pipe()
	c, err := New(r, answers, drain).Connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); w.Close(); out.Close() })
	sc := bufio.NewScanner(out)
	sc.Buffer(nil, 1<<20)
	return &peer{t, c, w, sc}
}

// send sends lines, and ends the input where end is set.
func (p *peer) send(end bool, lines ...string) {
	go func() {
		for _, l := range lines {
			if _, err := io.WriteString(p.in, l+"\n"); err != nil {
				return
			}
		}
		if end {
			p.in.Close()
		}
	}()
}

func (p *peer) answer() map[string]any {
	p.t.Helper()
	if !p.out.Scan() {
		p.t.Fatalf("no answer: %v", p.out.Err())
	}
	var m map[string]any
	if err := json.Unmarshal(p.out.Bytes(), &m); err != nil {
		p.t.Fatalf("%q: %v", p.out.Text(), err)
	}
	return m
}

func (p *peer) read() (jsonrpc.Message, error) {
	ctx, cancel := context.WithTimeout(p.t.Context(), 10*time.Second)
	defer cancel()
	return p.conn.Read(ctx)
}

func call(id int) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"ping"}`, id)
}

func idOf(n int) jsonrpc.ID {
	id, _ := jsonrpc.MakeID(float64(n))
	return id
}

// TestWrongLines: each is answered, and what follows is served.
func TestWrongLines(t *testing.T) {
	for name, c := range map[string]struct {
		line string
		code float64
	}{
		"no JSON":            {"hello", jsonrpc.CodeParseError},
		"cut off":            {`{"jsonrpc":`, jsonrpc.CodeParseError},
		"two values":         {"{} {}", jsonrpc.CodeParseError},
		"a batch":            {"[" + call(1) + "]", jsonrpc.CodeInvalidRequest},
		"another protocol":   {`{"id":1,"method":"ping"}`, jsonrpc.CodeInvalidRequest},
		"a number":           {"7", jsonrpc.CodeInvalidRequest},
		"an id of a kind":    {`{"jsonrpc":"2.0","id":{},"method":"ping"}`, jsonrpc.CodeInvalidRequest},
		"a method of a kind": {`{"jsonrpc":"2.0","id":1,"method":7}`, jsonrpc.CodeInvalidRequest},
		"endless":            {strings.Repeat("x", MaxLine+2), jsonrpc.CodeInvalidRequest},
	} {
		t.Run(name, func(t *testing.T) {
			p := connect(t, time.Minute)
			p.send(false, c.line, "", call(5))
			got := make(chan jsonrpc.Message, 1)
			go func() {
				m, _ := p.read()
				got <- m
			}()
			a := p.answer()
			if e, _ := a["error"].(map[string]any); e["code"] != c.code || a["jsonrpc"] != "2.0" {
				t.Errorf("answered %v, want code %v", a, c.code)
			}
			if id, there := a["id"]; !there || id != nil {
				t.Errorf("the id of the answer is %v, want null", id)
			}
			if m, ok := (<-got).(*jsonrpc.Request); !ok || m.ID != idOf(5) {
				t.Errorf("the next message is %+v", m)
			}
		})
	}
}

// TestLongestLine: MaxLine is taken, to the byte.
func TestLongestLine(t *testing.T) {
	p := connect(t, time.Minute)
	frame := `{"jsonrpc":"2.0","id":1,"method":"x","params":""}`
	p.send(false, strings.Replace(frame, `""`, `"`+strings.Repeat("y", MaxLine-len(frame))+`"`, 1))
	m, err := p.read()
	if r, ok := m.(*jsonrpc.Request); err != nil || !ok || len(r.Params) != MaxLine-len(frame)+2 {
		t.Errorf("%T, %v", m, err)
	}
}

// TestLastLine: it needs no end of its own.
func TestLastLine(t *testing.T) {
	p := connect(t, time.Minute)
	go func() {
		io.WriteString(p.in, call(1))
		p.in.Close()
	}()
	if m, err := p.read(); err != nil || m.(*jsonrpc.Request).ID != idOf(1) {
		t.Errorf("%v, %v", m, err)
	}
}

// TestEndWaitsForAnswers: the end of the input is told when all is answered.
func TestEndWaitsForAnswers(t *testing.T) {
	p := connect(t, time.Minute)
	p.send(true, call(1), call(2), `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	for range 3 {
		if _, err := p.read(); err != nil {
			t.Fatal(err)
		}
	}
	ended := make(chan error, 1)
	go func() {
		_, err := p.read()
		ended <- err
	}()
	for n := 1; n <= 2; n++ {
		select {
		case err := <-ended:
			t.Fatalf("it ended with %d answers: %v", n-1, err)
		case <-time.After(20 * time.Millisecond):
		}
		go p.conn.Write(t.Context(), &jsonrpc.Response{ID: idOf(n), Result: json.RawMessage("{}")})
		if a := p.answer(); a["id"] != float64(n) {
			t.Errorf("answer %v", a)
		}
	}
	if err := <-ended; !errors.Is(err, io.EOF) {
		t.Errorf("%v, want the end", err)
	}
}

// TestEndIsBounded: answers that do not come are not waited for without end.
func TestEndIsBounded(t *testing.T) {
	p := connect(t, 10*time.Millisecond)
	p.send(true, call(1))
	p.read()
	if _, err := p.read(); !errors.Is(err, io.EOF) {
		t.Errorf("%v, want the end", err)
	}
}

// TestGone: a client that has ended its own input and reads no more is not waited for.
func TestGone(t *testing.T) {
	out, answers, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer answers.Close()
	c, _ := New(strings.NewReader(call(1)), answers, time.Hour).Connect(t.Context())
	if _, err := c.Read(t.Context()); err != nil {
		t.Fatal(err)
	}
	if gone(answers) {
		t.Error("somebody reads and is told to be gone")
	}
	ended := make(chan error, 1)
	go func() {
		_, err := c.Read(t.Context())
		ended <- err
	}()
	select {
	case err := <-ended:
		t.Fatalf("it ended with a call without an answer: %v", err)
	case <-time.After(2 * lookEvery):
	}
	out.Close()
	select {
	case err := <-ended:
		if !errors.Is(err, io.EOF) {
			t.Errorf("%v, want the end", err)
		}
	case <-time.After(20 * time.Second):
		t.Error("it waits for nobody")
	}
}

func TestCloseEndsRead(t *testing.T) {
	p := connect(t, time.Minute)
	ended := make(chan error, 1)
	go func() {
		_, err := p.read()
		ended <- err
	}()
	p.conn.Close()
	if err := <-ended; !errors.Is(err, io.EOF) {
		t.Errorf("%v, want the end", err)
	}
}

// TestTooManyCalls: beyond the bound they are answered with an error, under their ids,
// and notifications come through all the same.
func TestTooManyCalls(t *testing.T) {
	p := connect(t, time.Minute)
	var lines []string
	for n := range maxCalls + 1 {
		lines = append(lines, call(n))
	}
	p.send(false, append(lines, `{"jsonrpc":"2.0","method":"notifications/cancelled"}`)...)
	for range maxCalls {
		if _, err := p.read(); err != nil {
			t.Fatal(err)
		}
	}
	got := make(chan jsonrpc.Message, 1)
	go func() {
		m, _ := p.read()
		got <- m
	}()
	a := p.answer()
	if e, _ := a["error"].(map[string]any); a["id"] != float64(maxCalls) || e["code"] != float64(codeBusy) {
		t.Errorf("answered %v", a)
	}
	if r := (<-got).(*jsonrpc.Request); r.Method != "notifications/cancelled" {
		t.Errorf("the next message is %+v", r)
	}
	// An answer makes room.
	go p.conn.Write(t.Context(), &jsonrpc.Response{ID: idOf(0), Result: json.RawMessage("{}")})
	p.answer()
	p.send(false, call(9999))
	if m, err := p.read(); err != nil || m.(*jsonrpc.Request).ID != idOf(9999) {
		t.Errorf("%v, %v", m, err)
	}
}

func TestTooManyBytes(t *testing.T) {
	c := &conn{calls: map[jsonrpc.ID]int{}}
	for n := range maxBytes / MaxLine {
		if why := c.admit(idOf(n), MaxLine); why != "" {
			t.Fatal(why)
		}
	}
	if why := c.admit(idOf(99), 1); !strings.Contains(why, "bytes") {
		t.Errorf("there was room: %q", why)
	}
	if why := c.admit(idOf(0), 1); why != "" {
		t.Errorf("a call whose id is in use is the SDK's to refuse: %q", why)
	}
}

// FuzzRead: whatever comes, every line of the output is one JSON value, and every read
// ends.
func FuzzRead(f *testing.F) {
	f.Add([]byte(call(1) + "\n" + call(2)))
	f.Add([]byte("[]\n{}\n\x00\n\"\xff\"\n"))
	f.Add([]byte(`{"jsonrpc":"2.0","id":"a","result":1}` + "\r\n"))
	f.Add([]byte(`{"jsonrpc":"2.0","id":1e99,"method":"x","params":[1]}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		var out strings.Builder
		c, _ := New(strings.NewReader(string(in)), &out, 0).Connect(t.Context())
		for n := 0; ; n++ {
			m, err := c.Read(t.Context())
			if err != nil {
				break
			}
			if m == nil || n > len(in) {
				t.Fatalf("message %d is %v", n, m)
			}
			if r, ok := m.(*jsonrpc.Request); ok && r.IsCall() {
				if err := c.Write(t.Context(), &jsonrpc.Response{ID: r.ID, Result: json.RawMessage("{}")}); err != nil {
					t.Fatal(err)
				}
			}
		}
		for line := range strings.Lines(out.String()) {
			if !json.Valid([]byte(line)) {
				t.Errorf("the output has %q", line)
			}
		}
	})
}

// TestIDs: an id comes back as it is, or the message is refused.
func TestIDs(t *testing.T) {
	for id, ok := range map[string]bool{
		`1`: true, `-7`: true, `9007199254740992`: true, `"a"`: true, `""`: true,
		`1.5`: false, `1e300`: false, `9007199254740993`: false, `-9007199254740993`: false, `99999999999999999999`: false, `1e2`: false,
	} {
		p := connect(t, time.Minute)
		p.send(true, `{"jsonrpc":"2.0","id":`+id+`,"method":"ping"}`)
		if !ok {
			go p.read()
			if a := p.answer(); fmt.Sprint(a["error"].(map[string]any)["code"]) != "-32600" || a["id"] != nil {
				t.Errorf("%s: %v", id, a)
			}
			continue
		}
		m, err := p.read()
		if err != nil {
			t.Errorf("%s: %v", id, err)
			continue
		}
		if b, err := json.Marshal(m.(*jsonrpc.Request).ID.Raw()); err != nil || string(b) != id {
			t.Errorf("%s came as %s, %v", id, b, err)
		}
	}
}
