package daemon

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// TestStrayRequestInPieces: who sends the body of a request that is no part of the API
// only after its header is told so, and not cut off in the middle.
func TestStrayRequestInPieces(t *testing.T) {
	srv := httptest.NewServer(problems(http.NewServeMux()))
	defer srv.Close()
	c, err := net.Dial("tcp", srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	if _, err := io.WriteString(c, "PUT /v1/runs HTTP/1.1\r\nHost: pybox\r\nConnection: close\r\nContent-Length: 2\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	answer := make(chan *http.Response, 1)
	go func() {
		defer close(answer)
		if resp, err := http.ReadResponse(bufio.NewReader(c), nil); err == nil {
			answer <- resp
		}
	}()
	select {
	case <-answer:
		t.Fatal("it answered before it had the body")
	case <-time.After(50 * time.Millisecond): // it is waiting
	}
	if _, err := io.WriteString(c, "{}"); err != nil {
		t.Fatal(err)
	}
	if resp := <-answer; resp == nil || resp.StatusCode != http.StatusNotFound {
		t.Fatalf("no answer, or another: %+v", resp)
	}
}
