package apitest

import (
	"io"
	"net/http"
)

// Transport shows the Checker what a client asks and is answered, once it has read that
// or closed it.
func (c *Checker) Transport(next http.RoundTripper) http.RoundTripper { return &transport{c, next} }

type transport struct {
	c    *Checker
	next http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	body := &capture{}
	if r.Body != nil {
		r = r.Clone(r.Context())
		r.Body = struct {
			io.Reader
			io.Closer
		}{io.TeeReader(r.Body, body), r.Body}
	}
	resp, err := t.next.RoundTrip(r)
	if err != nil || r.Method == http.MethodHead {
		return resp, err
	}
	resp.Body = &answerBody{ReadCloser: resp.Body, done: func(answer *capture, whole bool) {
		sent, cutRequest := body.kept()
		given, cutAnswer := answer.kept()
		t.c.Check(Exchange{
			Method: r.Method, Path: r.URL.Path, Query: r.URL.RawQuery, RequestHeader: r.Header, Request: sent,
			Status: resp.StatusCode, Header: resp.Header, Answer: given, Cut: !whole || cutAnswer || cutRequest,
		})
	}}
	return resp, nil
}

// answerBody keeps what is read of it.
type answerBody struct {
	io.ReadCloser
	read capture
	done func(answer *capture, whole bool) // nil: it was called
}

// Read implements io.Reader.
func (b *answerBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	_, _ = b.read.Write(p[:n])
	if err != nil {
		b.end(err == io.EOF)
	}
	return n, err
}

// Close implements io.Closer.
func (b *answerBody) Close() error {
	b.end(false)
	return b.ReadCloser.Close()
}

func (b *answerBody) end(whole bool) {
	if b.done != nil {
		b.done(&b.read, whole)
		b.done = nil
	}
}
