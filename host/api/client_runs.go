package api

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"

	"github.com/pybox/pybox/host/receipt"
)

// maxLine bounds one event of a stream, in bytes. A receipt is the longest.
const maxLine = 8 << 20

// ErrStream: the daemon's stream of events is not one.
var ErrStream = errors.New("the daemon's events are not what this version expects (is another version running? run 'pybox vm restart')")

// Outcome is a run that came to its end.
type Outcome struct {
	// Receipt is without output, which the events brought. Never nil.
	Receipt *receipt.Receipt
	// NotKept is why the daemon could not store the receipt; empty: it did.
	NotKept string
}

// Run runs a program. on, which must not be nil, gets every event but that of the
// receipt and that of a problem, in order, from the goroutine of Run; an error of
// its own ends the connection, which cancels a run without an id of the client's,
// and is returned. Errors: a *Problem when there was no run; ErrNoDaemon, ErrHungUp
// when the daemon went away before the end; ErrStream; the cause of ctx.
func (c *Client) Run(ctx context.Context, r RunRequest, on func(Event) error) (*Outcome, error) {
	body, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("the request: %w", err)
	}
	// The connection ends with this function, however it is left.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	resp, err := c.send(ctx, http.MethodPost, PathRuns, "application/json", MediaEvents, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if media, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); media != MediaEvents {
		return nil, fmt.Errorf("%w: the answer is %.100q", ErrStream, resp.Header.Get("Content-Type"))
	}
	out, err := readEvents(resp.Body, on)
	var said *Problem
	var own *onError
	switch {
	case err == nil, errors.As(err, &said): // the last event came, whatever became of ctx meanwhile
		return out, err
	case errors.As(err, &own):
		return nil, own.err
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	}
	return nil, err
}

// onError is an error of the caller's function.
type onError struct{ err error }

func (e *onError) Error() string { return e.err.Error() }

// readEvents reads a stream to its last event.
func readEvents(r io.Reader, on func(Event) error) (*Outcome, error) {
	sc := bufio.NewScanner(r)
	sc.Buffer(make([]byte, 0, 64<<10), maxLine)
	for sc.Scan() {
		var e Event
		if err := json.Unmarshal(sc.Bytes(), &e); err != nil {
			if cut := sc.Err(); cut != nil { // it is the line that was cut off
				return nil, hungUp(cut)
			}
			return nil, fmt.Errorf("%w: %w", ErrStream, err)
		}
		switch e.Event {
		case EventReceipt:
			return outcome(e)
		case EventProblem:
			if e.Problem == nil || e.Problem.Type == "" {
				return nil, fmt.Errorf("%w: a problem without its type", ErrStream)
			}
			return nil, e.Problem
		case EventOutput:
			if _, err := e.Output(); err != nil {
				return nil, err
			}
		case "":
			return nil, fmt.Errorf("%w: an event without its name", ErrStream)
		}
		if err := on(e); err != nil {
			return nil, &onError{err}
		}
	}
	switch err := sc.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return nil, fmt.Errorf("%w: a line is longer than %d bytes", ErrStream, maxLine)
	case err != nil:
		return nil, hungUp(err)
	}
	return nil, fmt.Errorf("%w: its events end in the middle of the run", ErrHungUp)
}

func hungUp(err error) error {
	return fmt.Errorf("%w in the middle of the run (%w)", ErrHungUp, err)
}

func outcome(e Event) (*Outcome, error) {
	switch {
	case e.Receipt == nil:
		return nil, fmt.Errorf("%w: there is no receipt in the event of one", ErrStream)
	case e.Receipt.Schema != receipt.Schema:
		return nil, fmt.Errorf("%w: the receipt is a %.100q and not a %q", ErrStream, e.Receipt.Schema, receipt.Schema)
	}
	return &Outcome{Receipt: e.Receipt, NotKept: e.NotKept}, nil
}

// Output is the piece of output in an EventOutput, byte for byte. The error matches
// ErrStream.
func (e Event) Output() ([]byte, error) {
	switch {
	case e.Event != EventOutput, e.Stream != "stdout" && e.Stream != "stderr", (e.Text == nil) == (e.Base64 == nil):
		return nil, fmt.Errorf("%w: a piece of output on %.20q has not one of text and base64", ErrStream, e.Stream)
	case e.Text != nil:
		return []byte(*e.Text), nil
	}
	b, err := base64.StdEncoding.DecodeString(*e.Base64)
	if err != nil {
		return nil, fmt.Errorf("%w: a piece of output: %w", ErrStream, err)
	}
	return b, nil
}

// StoreFile stores what r gives, at most MaxStdinBytes, for one run, in pieces: r may
// be larger than memory.
func (c *Client) StoreFile(ctx context.Context, r io.Reader) (StoredFile, error) {
	var f StoredFile
	err := c.exchange(ctx, http.MethodPost, PathFiles, "application/octet-stream", r, &f)
	return f, err
}

// File gives the bytes of a file that a run left, by the id that the receipt of its
// answer has; the caller closes them. It can be called more than once, until the file
// is forgotten. Reads end with the context; where the daemon goes away in the middle
// their error matches ErrHungUp. A *Problem of type ProblemFile tells that there is no
// such file, or not any more.
func (c *Client) File(ctx context.Context, id string) (io.ReadCloser, error) {
	resp, err := c.send(ctx, http.MethodGet, PathFiles+"/"+url.PathEscape(id), "", "application/octet-stream", nil)
	if err != nil {
		return nil, err
	}
	return fileBody{ctx, resp.Body}, nil
}

// fileBody is the body of an answer that is a file.
type fileBody struct {
	ctx  context.Context
	body io.ReadCloser
}

// Read implements io.Reader.
func (f fileBody) Read(b []byte) (int, error) {
	n, err := f.body.Read(b)
	switch {
	case err == nil || err == io.EOF:
	case f.ctx.Err() != nil:
		err = context.Cause(f.ctx)
	default:
		err = fmt.Errorf("%w in the middle of a file (%w)", ErrHungUp, err)
	}
	return n, err
}

// Close implements io.Closer.
func (f fileBody) Close() error { return f.body.Close() }

// ForgetFile gives up a stored file, or one that a run left: nobody needs it any more.
// A *Problem of type ProblemFile tells that there was none.
func (c *Client) ForgetFile(ctx context.Context, id string) error {
	return c.exchange(ctx, http.MethodDelete, PathFiles+"/"+url.PathEscape(id), "", nil, nil)
}

// CancelRun cancels a run in progress, whose own answer then tells how it ended. A
// *Problem of type ProblemNotFound tells that there was none.
func (c *Client) CancelRun(ctx context.Context, id string) error {
	return c.exchange(ctx, http.MethodDelete, PathRuns+"/"+url.PathEscape(id), "", nil, nil)
}

// Runs lists the runs in progress, oldest first.
func (c *Client) Runs(ctx context.Context) ([]ActiveRun, error) {
	var r Runs
	err := c.exchange(ctx, http.MethodGet, PathRuns, "", nil, &r)
	return r.Runs, err
}

// Images lists the images that a run can name.
func (c *Client) Images(ctx context.Context) ([]Image, error) {
	var i Images
	err := c.exchange(ctx, http.MethodGet, PathImages, "", nil, &i)
	return i.Images, err
}

// Receipts lists the newest of the kept receipts, newest first, limit of them at
// most; 0 is the daemon's default.
func (c *Client) Receipts(ctx context.Context, limit int) ([]ReceiptSummary, error) {
	path := PathReceipts
	if limit != 0 {
		path += "?limit=" + strconv.Itoa(limit)
	}
	var r Receipts
	err := c.exchange(ctx, http.MethodGet, path, "", nil, &r)
	return r.Receipts, err
}

// Receipt gives a kept receipt, which is without output.
func (c *Client) Receipt(ctx context.Context, id string) (*receipt.Receipt, error) {
	var r receipt.Receipt
	if err := c.exchange(ctx, http.MethodGet, PathReceipts+"/"+url.PathEscape(id), "", nil, &r); err != nil {
		return nil, err
	}
	if r.Schema != receipt.Schema {
		return nil, fmt.Errorf("the receipt is a %.100q and not a %q: this PyBox is too old for it, or too new", r.Schema, receipt.Schema)
	}
	return &r, nil
}
