package reply

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/pybox/pybox/host/api"
)

const bound = 30 * time.Second

// dial connects to a server whose every request f answers; the result of f comes
// through the channel.
func dial(t *testing.T, f func(http.ResponseWriter, *http.Request) error) (net.Conn, <-chan error) {
	t.Helper()
	done := make(chan error, 1)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { done <- f(w, r) }))
	t.Cleanup(srv.Close)
	c, err := net.Dial("tcp", srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(bound))
	return c, done
}

func wait(t *testing.T, done <-chan error) error {
	t.Helper()
	select {
	case err := <-done:
		return err
	case <-time.After(bound):
		t.Fatal("it did not end")
		return nil
	}
}

func get(c net.Conn) { io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n") }

// flood writes until that fails.
func flood(w *Writer) error {
	for {
		if _, err := w.Write(make([]byte, 1<<20)); err != nil {
			return err
		}
	}
}

func TestWriterBoundsEachPiece(t *testing.T) {
	c, done := dial(t, func(w http.ResponseWriter, _ *http.Request) error {
		out := NewWriter(w)
		out.wait = 100 * time.Millisecond
		return flood(out)
	})
	get(c)
	if err := wait(t, done); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a client that does not read: %v", err)
	}
}

// A client that reads slowly but steadily gets everything, although the whole takes
// longer than a piece may.
func TestWriterIsPatientWithTheSlow(t *testing.T) {
	const size = 8 << 20
	c, done := dial(t, func(w http.ResponseWriter, _ *http.Request) error {
		out := NewWriter(w)
		out.wait = time.Second
		_, err := out.Write(make([]byte, size))
		return err
	})
	get(c)
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	from, n, buf := time.Now(), 0, make([]byte, 1<<20)
	for err == nil {
		var m int
		m, err = io.ReadFull(resp.Body, buf)
		n += m
		if time.Since(from) < 1500*time.Millisecond {
			time.Sleep(200 * time.Millisecond) // it is slow
		}
	}
	if n != size {
		t.Errorf("%d bytes came, %v", n, err)
	}
	if err := wait(t, done); err != nil {
		t.Error(err)
	}
}

func TestHurryAndUntil(t *testing.T) {
	for name, hasten := range map[string]func(*Writer){
		"hurry": func(w *Writer) { w.Hurry(50 * time.Millisecond) },
		"until": func(w *Writer) { w.Until(time.Now().Add(50 * time.Millisecond)) },
	} {
		t.Run(name, func(t *testing.T) {
			made := make(chan *Writer, 1)
			c, done := dial(t, func(w http.ResponseWriter, _ *http.Request) error {
				out := NewWriter(w)
				if name == "until" {
					hasten(out)
				}
				made <- out
				return flood(out)
			})
			get(c)
			out := <-made
			if name == "hurry" {
				c.Read(make([]byte, 1)) // it is writing
				hasten(out)
			}
			if err := wait(t, done); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestBody(t *testing.T) {
	read := func(limit int64, stall, total time.Duration) func(http.ResponseWriter, *http.Request) error {
		return func(w http.ResponseWriter, r *http.Request) error {
			b := Body(w, r, limit, stall, total)
			_, err := io.ReadAll(b)
			if _, again := b.Read(make([]byte, 1)); err != nil && !errors.Is(again, err) || err == nil && again != io.EOF {
				return fmt.Errorf("first %w, then %w", err, again)
			}
			return err
		}
	}
	head := "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n"
	var big *http.MaxBytesError
	c, done := dial(t, read(10, bound, bound))
	io.WriteString(c, head+"0123456789")
	if err := wait(t, done); err != nil {
		t.Errorf("a whole body: %v", err)
	}
	c, done = dial(t, read(9, bound, bound))
	io.WriteString(c, head+"0123456789")
	if err := wait(t, done); !errors.As(err, &big) {
		t.Errorf("a large one: %v", err)
	}
	c, done = dial(t, read(10, 50*time.Millisecond, bound))
	io.WriteString(c, head+"012")
	if err := wait(t, done); !errors.Is(err, ErrSlow) {
		t.Errorf("one that stalls: %v", err)
	}
	c, done = dial(t, read(10, bound, 50*time.Millisecond))
	io.WriteString(c, head+"012")
	if err := wait(t, done); !errors.Is(err, ErrSlow) {
		t.Errorf("one that takes too long: %v", err)
	}
	c, done = dial(t, read(10, bound, bound))
	io.WriteString(c, head+"012")
	c.Close()
	if err := wait(t, done); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("one that breaks off: %v", err)
	}
}

// The deadline of a body ends with it: a long answer after it is not cut off.
func TestBodyLeavesTheConnectionAlone(t *testing.T) {
	c, done := dial(t, func(w http.ResponseWriter, r *http.Request) error {
		if _, err := io.ReadAll(Body(w, r, 10, 50*time.Millisecond, 50*time.Millisecond)); err != nil {
			return err
		}
		select {
		case <-r.Context().Done():
			return r.Context().Err()
		case <-time.After(300 * time.Millisecond):
			return nil
		}
	})
	io.WriteString(c, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\na")
	if err := wait(t, done); err != nil {
		t.Errorf("the request ended: %v", err)
	}
}

func TestDiscard(t *testing.T) {
	const size = 4 << 20
	refuse := func(w http.ResponseWriter, r *http.Request) error {
		Discard(w, r, 16<<20)
		Problem(w, BadRequest("no: %d", 1))
		return nil
	}
	c, _ := dial(t, refuse)
	// It looks for the answer only when everything is sent, and wants the connection closed.
	fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n", size)
	if _, err := c.Write(make([]byte, size)); err != nil {
		t.Fatalf("it was cut off: %v", err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	var p api.Problem
	if err := json.NewDecoder(resp.Body).Decode(&p); err != nil || resp.StatusCode != 400 || p.Type != api.ProblemBadRequest || p.Detail != "no: 1" {
		t.Errorf("%s %+v, %v", resp.Status, p, err)
	}
	c, _ = dial(t, refuse)
	from := time.Now()
	io.WriteString(c, "POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 10\r\n\r\n")
	if resp, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || resp.StatusCode != 400 || time.Since(from) >= discardStall {
		t.Errorf("one that asks first: %+v, %v, after %v", resp, err, time.Since(from))
	}
}

func TestJSON(t *testing.T) {
	w := httptest.NewRecorder()
	JSON(w, map[string]int{"a": 1})
	if w.Code != 200 || strings.TrimSpace(w.Body.String()) != `{"a":1}` || w.Header().Get("Content-Type") != "application/json" {
		t.Errorf("%+v", w)
	}
}

// A client that is sent away for want of room is told when to ask again, and no other.
func TestProblemTellsWhenToAskAgain(t *testing.T) {
	for status, want := range map[int]string{http.StatusServiceUnavailable: "1", http.StatusBadGateway: "", http.StatusForbidden: ""} {
		w := httptest.NewRecorder()
		Problem(w, &api.Problem{Type: api.ProblemBusy, Title: "no room", Status: status})
		if got := w.Header().Get("Retry-After"); got != want || w.Code != status {
			t.Errorf("%d: Retry-After %q, want %q", w.Code, got, want)
		}
	}
}
