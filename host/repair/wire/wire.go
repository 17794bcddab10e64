// Package wire is the HTTP below the providers' own libraries, which bound too
// little: it sends a key to one server only, follows no redirect, ends an answer that
// is too large or stalls, and makes errors of what is not an answer. A question is a
// POST, and its answer a stream of events. It knows no provider's format but those that
// all have: an error has a message, and a list of models has names.
package wire

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/pybox/pybox/host/repair/model"
)

const (
	// maxStream bounds an answer as it is sent: an event has a few hundred bytes around
	// a few of text. maxEvent bounds one event, and with it what the libraries make of it
	// before they look at their context again: up to a thousand bytes of memory of a byte.
	maxStream = 64 << 20
	maxEvent  = 128 << 10
	// maxList bounds an answer that is no stream, and maxName a model's name.
	maxList = 1 << 20
	maxName = 200
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
	stream := r.Method == http.MethodPost
	body := newBody(resp.Body, ctx, cancel, t.limits.Idle, stream)
	if resp.StatusCode/100 != 2 {
		defer body.Close()
		return nil, refusal(resp, body)
	}
	if what := resp.Header.Get("Content-Type"); stream && !isStream(what) {
		body.Close()
		return nil, t.noStream(what)
	}
	resp.Body = body
	return resp, nil
}

// isStream tells whether an answer is one of events, by its type. One that has no type
// may be.
func isStream(contentType string) bool {
	kind, _, err := mime.ParseMediaType(contentType)
	return contentType == "" || err == nil && kind == "text/event-stream"
}

// noStream is the error of an answer that is a page, or that a server gives which cannot
// stream. It may have cost as much as any, and the next would be the same.
func (t *transport) noStream(contentType string) *model.Error {
	return &model.Error{Kind: model.Stream, RetryAfter: -1, NoRetry: true, Detail: fmt.Sprintf(
		"%s answers with %.80q, and a stream of events was asked for: is that the base URL of a server for models?", t.base, contentType)}
}

// Names are the names in a list of models, at most model.MaxModels. Its error is a
// *model.Error.
func Names(b []byte) ([]string, error) {
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := json.Unmarshal(b, &list); err != nil {
		return nil, &model.Error{Kind: model.Stream, RetryAfter: -1, NoRetry: true, Detail: "it is no list of models: is that the base URL of a server for models?"}
	}
	var names []string
	for _, m := range list.Data[:min(len(list.Data), model.MaxModels)] {
		if len(m.ID) > maxName {
			return nil, &model.Error{Kind: model.TooLarge, RetryAfter: -1, Detail: fmt.Sprintf("the name of a model has more than %d bytes", maxName)}
		}
		names = append(names, m.ID)
	}
	return names, nil
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
	event  *event // that is coming; nil: it is no stream
}

func newBody(rc io.ReadCloser, ctx context.Context, cancel context.CancelCauseFunc, idle time.Duration, stream bool) *body {
	stalled := &model.Error{Kind: model.Stalled, RetryAfter: -1, Detail: fmt.Sprintf("nothing came for %v", idle)}
	b := &body{ReadCloser: rc, ctx: ctx, cancel: cancel, idle: idle, left: maxList, timer: time.AfterFunc(idle, func() { cancel(stalled) })}
	b.timer.Stop() // it runs while somebody reads
	if stream {
		b.left, b.event = maxStream, &event{}
	}
	return b
}

// event measures the event of a stream that is coming: the lines up to an empty one.
type event struct {
	bytes, line int
	last        byte
}

// take takes what has come, and tells whether no event is too large.
func (e *event) take(p []byte) bool {
	for _, c := range p {
		e.bytes++
		switch empty := e.line == 0 || e.line == 1 && e.last == '\r'; {
		case c == '\n' && empty:
			e.bytes, e.line = 0, 0
		case c == '\n':
			e.line = 0
		default:
			e.line++
		}
		e.last = c
		if e.bytes > maxEvent {
			return false
		}
	}
	return true
}

func tooLarge(what string, most int) error {
	return &model.Error{Kind: model.TooLarge, RetryAfter: -1, Detail: fmt.Sprintf("%s of more than %d bytes came", what, most)}
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	switch {
	case b.left <= 0 && b.event == nil:
		return 0, tooLarge("an answer", maxList)
	case b.left <= 0:
		return 0, tooLarge("a stream", maxStream)
	case b.ctx.Err() != nil: // what is there already is not read to its end
		return 0, b.cause(b.ctx.Err())
	}
	b.timer.Reset(b.idle)
	n, err := b.ReadCloser.Read(p[:min(int64(len(p)), b.left)])
	b.timer.Stop()
	b.left -= int64(n)
	if b.event != nil && !b.event.take(p[:n]) {
		return 0, tooLarge("an event", maxEvent)
	}
	if err != nil && err != io.EOF {
		err = b.cause(err)
	}
	return n, err
}

// cause is the error for one that a body ended with: that it stalled, if it did.
func (b *body) cause(err error) error {
	var stalled *model.Error
	if errors.As(context.Cause(b.ctx), &stalled) {
		return stalled
	}
	return err
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
