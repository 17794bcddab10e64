// Package reply writes the answers of the daemon's API and reads its requests' bodies:
// JSON, problem details (RFC 9457), and a deadline for each piece, so that a client
// that neither reads nor sends holds nothing for long. It knows nothing of what the
// answers say.
package reply

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pybox/pybox/host/api"
)

const (
	// WriteWait is how long a client may take to read a piece of pieceBytes.
	WriteWait  = time.Minute
	pieceBytes = 64 << 10
)

// Writer writes to a client under deadlines. One goroutine at a time may write;
// Hurry and Until may be called meanwhile.
type Writer struct {
	w  http.ResponseWriter
	rc *http.ResponseController

	mu    sync.Mutex
	wait  time.Duration
	until time.Time // zero: no end
}

// NewWriter makes a Writer on w, with deadlines of WriteWait.
func NewWriter(w http.ResponseWriter) *Writer {
	return &Writer{w: w, rc: http.NewResponseController(w), wait: WriteWait}
}

// Write implements io.Writer. An error means that the client is gone, or too slow.
func (w *Writer) Write(b []byte) (int, error) {
	n := 0
	for {
		piece := b[n:min(n+pieceBytes, len(b))]
		w.arm()
		m, err := w.w.Write(piece)
		n += m
		if err != nil || n == len(b) {
			return n, err
		}
	}
}

// Flush sends what was written.
func (w *Writer) Flush() error {
	w.arm()
	return w.rc.Flush()
}

// arm sets the deadline of what comes next.
func (w *Writer) arm() {
	w.mu.Lock()
	defer w.mu.Unlock()
	at := time.Now().Add(w.wait)
	if !w.until.IsZero() && at.After(w.until) {
		at = w.until
	}
	w.rc.SetWriteDeadline(at) // not supported by writers of tests alone
}

// Hurry shortens the time for each piece, that of one in progress too.
func (w *Writer) Hurry(wait time.Duration) {
	w.mu.Lock()
	w.wait = min(w.wait, wait)
	w.mu.Unlock()
	w.arm()
}

// Until bounds everything that is written, that in progress too; the earliest of
// several counts.
func (w *Writer) Until(t time.Time) {
	w.mu.Lock()
	if w.until.IsZero() || t.Before(w.until) {
		w.until = t
	}
	w.mu.Unlock()
	w.arm()
}

// JSON answers v.
func JSON(w http.ResponseWriter, v any) {
	send(w, "application/json", http.StatusOK, v)
}

// Problem answers p, with its status. One that is for want of room says when to ask again.
func Problem(w http.ResponseWriter, p *api.Problem) {
	if p.Status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	send(w, "application/problem+json", p.Status, p)
}

func send(w http.ResponseWriter, media string, status int, v any) {
	var b bytes.Buffer
	if err := json.NewEncoder(&b).Encode(v); err != nil { // no type of ours
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", media)
	w.Header().Set("Content-Length", strconv.Itoa(b.Len())) // else one that is flushed is in pieces
	out := NewWriter(w)
	out.arm()
	w.WriteHeader(status)
	out.Write(b.Bytes()) // a client that is gone is no fault of ours
}

// BadRequest is the problem of a request that nobody could answer.
func BadRequest(format string, a ...any) *api.Problem {
	return &api.Problem{Type: api.ProblemBadRequest, Title: "bad request", Status: http.StatusBadRequest, Detail: fmt.Sprintf(format, a...)}
}

// TooLarge is that of a body of more than limit bytes.
func TooLarge(limit int64, next string) *api.Problem {
	p := BadRequest("the body is larger than %d bytes", limit)
	p.Status, p.Title, p.Next = http.StatusRequestEntityTooLarge, "too large", next
	return p
}

// ErrSlow: the client did not send its body in time. It is its own problem, which
// nobody changes.
var ErrSlow = &api.Problem{Type: api.ProblemBadRequest, Title: "too slow", Status: http.StatusRequestTimeout, Detail: "the body did not come in time"}

// Body is a request's body under a deadline that moves: each piece may take stall,
// and everything total. More than limit bytes are an *http.MaxBytesError; a client
// that is too slow is ErrSlow.
func Body(w http.ResponseWriter, r *http.Request, limit int64, stall, total time.Duration) io.Reader {
	return &body{
		r: http.MaxBytesReader(w, r.Body, limit), rc: http.NewResponseController(w),
		stall: stall, until: time.Now().Add(total),
	}
}

type body struct {
	r     io.Reader
	rc    *http.ResponseController
	stall time.Duration
	until time.Time
	err   error
}

// Read implements io.Reader. After the end of the body it leaves the connection's
// deadline alone, which is the server's again.
func (b *body) Read(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	at := time.Now().Add(b.stall)
	if at.After(b.until) {
		at = b.until
	}
	b.rc.SetReadDeadline(at)
	n, err := b.r.Read(p)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = ErrSlow
	}
	b.err = err
	return n, err
}

// maxMembers bounds the members of an object and of an array in a request, maxDepth how
// deep they nest. No request of the API has more: as many inputs as a ceiling can allow.
const (
	maxMembers = 1024
	maxDepth   = 8
)

// Strict refuses what encoding/json takes without a word: a name that comes twice in
// an object, and one that is a field's in another case, as "ID" for "id". It also
// refuses what has more than maxMembers or maxDepth, before anything is made of it.
// What is not JSON is left to who reads it.
func Strict(body []byte) *api.Problem {
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	var p *api.Problem
	if err := strict(dec, "the body", maxDepth); errors.As(err, &p) {
		return p
	}
	return nil
}

// strict reads one value, which nests depth deep at most; what names it in messages.
func strict(dec *json.Decoder, what string, depth int) error {
	t, err := dec.Token()
	open, is := t.(json.Delim)
	switch {
	case err != nil || !is:
		return err
	case depth == 0:
		return BadRequest("%s: JSON that nests deeper than any request", what)
	}
	seen := map[string]bool{}
	for n := 0; dec.More(); n++ {
		if n == maxMembers {
			return BadRequest("%s: more than the %d members that it may have", what, maxMembers)
		}
		member := what
		if open == '{' {
			if member, err = name(dec, seen); err != nil {
				return err
			}
		}
		if err := strict(dec, member, depth-1); err != nil {
			return err
		}
	}
	_, err = dec.Token() // its end
	return err
}

// name reads the name of a member.
func name(dec *json.Decoder, seen map[string]bool) (string, error) {
	t, err := dec.Token()
	if err != nil {
		return "", err
	}
	s := t.(string) // of an object
	switch {
	case strings.ContainsFunc(s, func(r rune) bool { return !(r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '_') }):
		return "", BadRequest("the body has an unknown field %.80q", s)
	case seen[s]:
		return "", BadRequest("the body has %.80q twice in one object", s)
	}
	seen[s] = true
	return s, nil
}

// Discard reads at most limit bytes of what comes of a body that is not wanted, for
// a moment: many clients look for an answer only when they have sent everything. One
// that waits to be told to send gets its answer at once (RFC 9110, section 10.1.1).
func Discard(w http.ResponseWriter, r *http.Request, limit int64) {
	if r.Header.Get("Expect") != "" {
		return
	}
	b := body{r: io.LimitReader(r.Body, limit), rc: http.NewResponseController(w), stall: discardStall, until: time.Now().Add(discardWait)}
	io.Copy(io.Discard, &b)
}

// discardStall and discardWait bound the time for a body that is not wanted.
const (
	discardStall = time.Second
	discardWait  = 10 * time.Second
)
