// Package wire is the HTTP below the providers' own libraries, which bound too
// little: it sends a key to one server only, follows no redirect, ends an answer that
// is too large or stalls, and makes errors of what is not an answer. It knows no
// provider's format but that of their errors, which all have a message.
package wire

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/pybox/pybox/host/repair/model"
)

const (
	// maxBody bounds an answer as it is sent: an event has a few hundred bytes around
	// a few of text.
	maxBody = 64 << 20
	// maxErrorBody bounds what is read of an answer that is an error.
	maxErrorBody = 64 << 10
	// maxHeader bounds the header of an answer.
	maxHeader = 64 << 10
	// maxRetryAfter keeps a time far from overflow.
	maxRetryAfter = 24 * time.Hour
)

// Limits are those that tests lower.
type Limits struct {
	// Idle is how long an answer that has begun may bring nothing. How long it may take
	// to begin is bounded by the request's context: a model may think for minutes.
	Idle time.Duration
}

// Usual are the limits for real providers, which send something every few seconds.
var Usual = Limits{Idle: 60 * time.Second}

// NewClient makes a client for the server of base alone.
func NewClient(base *url.URL, l Limits) *http.Client {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxResponseHeaderBytes = maxHeader
	return &http.Client{Transport: &transport{next: t, base: base, limits: l}}
}

// transport gives answers with a status of 200 to 299, and *model.Error for all else.
type transport struct {
	next   http.RoundTripper
	base   *url.URL
	limits Limits
}

var errElsewhere = errors.New("a request for another server than the one that was named")

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != t.base.Scheme || r.URL.Host != t.base.Host {
		return nil, &model.Error{Kind: model.Rejected, RetryAfter: -1, Err: errElsewhere}
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	resp, err := t.next.RoundTrip(r.WithContext(ctx))
	if err != nil {
		cancel(nil)
		return nil, err
	}
	body := newBody(resp.Body, ctx, cancel, t.limits.Idle)
	if resp.StatusCode/100 != 2 {
		defer body.Close()
		return nil, refusal(resp, body)
	}
	resp.Body = body
	return resp, nil
}

// refusal is what an answer says that is none.
func refusal(resp *http.Response, body io.Reader) *model.Error {
	e := &model.Error{Status: resp.StatusCode, RetryAfter: retryAfter(resp.Header, time.Now()), NoRetry: resp.Header.Get("x-should-retry") == "false"}
	switch s := resp.StatusCode; {
	case s/100 == 3:
		e.Kind, e.Detail = model.Redirect, redirect(resp)
		return e
	case s == http.StatusTooManyRequests:
		e.Kind = model.Busy
	case s == http.StatusUnauthorized, s == http.StatusForbidden:
		e.Kind = model.Denied
	case s >= 500, s == http.StatusRequestTimeout, s == http.StatusConflict:
		e.Kind = model.Server
	default:
		e.Kind = model.Rejected
	}
	b, _ := io.ReadAll(io.LimitReader(body, maxErrorBody)) // what came of it will do
	e.Detail = Message(b)
	return e
}

// redirect says where an answer sends to, without what a path or query may hold.
func redirect(resp *http.Response) string {
	to, err := resp.Location()
	if err != nil {
		return "it does not say where"
	}
	return fmt.Sprintf("to %s://%s; if that is right, name it as the base URL", to.Scheme, to.Host)
}

// Message finds what an error in JSON says, however a provider wraps it: a member
// "message" of the member "error", or either of them alone. All else it gives as it is.
func Message(b []byte) string {
	var v struct {
		Error   json.RawMessage `json:"error"`
		Message string          `json:"message"`
	}
	text := string(b)
	if json.Unmarshal(b, &v) == nil {
		var inner struct {
			Message string `json:"message"`
		}
		var plain string
		switch {
		case json.Unmarshal(v.Error, &inner) == nil && inner.Message != "":
			text = inner.Message
		case json.Unmarshal(v.Error, &plain) == nil && plain != "":
			text = plain
		case v.Message != "":
			text = v.Message
		}
	}
	return text
}

// retryAfter reads how long a server wants to be left alone (RFC 9110, 10.2.3, and the
// header in milliseconds that some providers have); negative: it does not say.
func retryAfter(h http.Header, now time.Time) time.Duration {
	for _, k := range []struct {
		name string
		unit time.Duration
	}{{"Retry-After-Ms", time.Millisecond}, {"Retry-After", time.Second}} {
		v := h.Get(k.name)
		if n, err := strconv.ParseFloat(v, 64); err == nil && !math.IsNaN(n) {
			return time.Duration(min(max(n, 0), float64(maxRetryAfter/k.unit)) * float64(k.unit))
		}
	}
	if at, err := http.ParseTime(h.Get("Retry-After")); err == nil {
		return min(max(at.Sub(now), 0), maxRetryAfter)
	}
	return -1
}

// body is a bounded answer that must go on.
type body struct {
	io.ReadCloser
	ctx    context.Context
	cancel context.CancelCauseFunc
	idle   time.Duration
	timer  *time.Timer
	left   int64
}

func newBody(rc io.ReadCloser, ctx context.Context, cancel context.CancelCauseFunc, idle time.Duration) *body {
	stalled := &model.Error{Kind: model.Stalled, RetryAfter: -1, Detail: fmt.Sprintf("nothing came for %v", idle)}
	return &body{ReadCloser: rc, ctx: ctx, cancel: cancel, idle: idle, left: maxBody, timer: time.AfterFunc(idle, func() { cancel(stalled) })}
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, &model.Error{Kind: model.TooLarge, RetryAfter: -1, Detail: fmt.Sprintf("more than %d bytes came", int64(maxBody))}
	}
	n, err := b.ReadCloser.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	if n > 0 {
		b.timer.Reset(b.idle)
	}
	var stalled *model.Error
	if err != nil && err != io.EOF && errors.As(context.Cause(b.ctx), &stalled) {
		err = stalled
	}
	return n, err
}

// Close implements io.Closer.
func (b *body) Close() error {
	b.timer.Stop()
	err := b.ReadCloser.Close()
	b.cancel(nil)
	return err
}

// KindOf tells a format that nobody can read from a connection that broke.
func KindOf(err error) model.Kind {
	var syntax *json.SyntaxError
	var mistyped *json.UnmarshalTypeError
	if errors.As(err, &syntax) || errors.As(err, &mistyped) || errors.Is(err, bufio.ErrTooLong) {
		return model.Stream
	}
	return model.Network
}
