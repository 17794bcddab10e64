package apitest

import (
	"bufio"
	"net"
	"net/http"
)

// answer is a ResponseWriter that keeps what is written to it.
type answer struct {
	http.ResponseWriter
	status   int
	body     capture
	failed   bool // the client did not get it all
	hijacked bool
}

// Unwrap is what http.ResponseController asks for.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (a *answer) WriteHeader(status int) {
	if a.status == 0 {
		a.status = status
	}
	a.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (a *answer) Write(b []byte) (int, error) {
	n, err := a.ResponseWriter.Write(b)
	_, _ = a.body.Write(b[:n])
	a.failed = a.failed || err != nil
	return n, err
}

// Hijack is what http.ResponseController asks for.
func (a *answer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, rw, err := http.NewResponseController(a.ResponseWriter).Hijack()
	a.hijacked = err == nil
	return c, rw, err
}
