package guestrun

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/pybox/pybox/agent/api"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
)

// stream is a run's.
type stream = connect.BidiStreamForClient[agentv1.RunRequest, agentv1.RunEvent]

// errInput marks a standard input that failed.
var errInput = errors.New("standard input could not be read to its end")

// maxEmptyReads is how often in a row a reader may give nothing, as package bufio
// has it.
const maxEmptyReads = 100

// sender says the client's parts of a run. It runs beside what receives the
// events, since every part may have to wait for the guest, and every piece of
// content for its reader.
type sender struct {
	stream  *stream
	line    *line
	request Request
	// admitted is closed when the files may be sent.
	admitted chan struct{}
	// moved gets a token when the guest took something.
	moved chan struct{}

	// slow gets an error that matches ErrFiles when a file cannot be read in
	// time; run may not return then.
	slow chan error

	mu     sync.Mutex
	inputs []Input
	local  bool // a file's reader is waited for
}

func newSender(st *stream, l *line, r Request) *sender {
	return &sender{
		stream: st, line: l, request: r,
		admitted: make(chan struct{}), moved: make(chan struct{}, 1), slow: make(chan error, 1),
	}
}

// run sends everything until ctx ends. An error matches ErrFiles or errInput, or
// is that of ctx or of the stream, whose end as its receiver sees it tells more.
func (s *sender) run(ctx context.Context) error {
	if err := s.send(&agentv1.RunRequest{Part: &agentv1.RunRequest_Start{Start: s.request.Start}}); err != nil {
		return err
	}
	if !s.small() {
		if err := s.await(ctx); err != nil {
			return err
		}
	}
	for _, f := range s.request.Files {
		if err := s.file(ctx, f); err != nil {
			// A run that cannot have its files is given up once it has begun.
			return errors.Join(err, s.await(ctx))
		}
	}
	if err := s.send(&agentv1.RunRequest{Part: &agentv1.RunRequest_Go{Go: &agentv1.RunGo{Stdin: s.request.Stdin != nil}}}); err != nil {
		return err
	}
	if s.request.Stdin == nil {
		return nil
	}
	if err := s.await(ctx); err != nil {
		return err
	}
	return s.stdin(ctx)
}

// await waits until the run is admitted.
func (s *sender) await(ctx context.Context) error {
	select {
	case <-s.admitted:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// maxEager bounds what is sent of a run that is not admitted yet, in bytes of files and
// of their names: it waits in the guest, whose memory it takes.
const maxEager = 16 << 10

// small tells whether the files are so few that waiting for the word that they may be
// sent would take longer than sending them.
func (s *sender) small() bool {
	n := int64(0)
	for _, f := range s.request.Files {
		if n += 64 + int64(len(f.Name)) + f.Bytes; n > maxEager || f.Bytes < 0 {
			return false
		}
	}
	return true
}

// send gives one part to the guest. It blocks while the guest takes nothing, until
// the stream ends.
func (s *sender) send(m *agentv1.RunRequest) error {
	if err := s.stream.Send(m); err != nil {
		return err
	}
	s.sign()
	return nil
}

// sign tells that the guest took something.
func (s *sender) sign() {
	select {
	case s.moved <- struct{}{}:
	default: // there is one
	}
}

// data gives a piece of a file to the guest, as send does.
func (s *sender) data(f *agentv1.RunFile, b []byte) error {
	if !f.GetBulk() {
		return s.send(&agentv1.RunRequest{Part: &agentv1.RunRequest_Data{Data: b}})
	}
	if _, err := s.line.Write(b); err != nil {
		return err
	}
	s.sign()
	return nil
}

// file sends one file, which must have exactly the size that it says.
func (s *sender) file(ctx context.Context, f File) error {
	m := f.message()
	m.Bulk = !f.Folder && s.line.takes(f.Bytes)
	if err := s.send(&agentv1.RunRequest{Part: &agentv1.RunRequest_File{File: m}}); err != nil {
		return err
	}
	if f.Folder {
		s.note(Input{Name: f.Name, Folder: true})
		return nil
	}
	if m.GetBulk() {
		if _, err := s.line.open(); err != nil && !s.line.dead(err) {
			return fileError(f, err)
		}
	}
	content, err := s.open(f)
	if err != nil {
		return fileError(f, err)
	}
	defer content.Close()
	sum, left := sha256.New(), f.Bytes
	piece := int64(api.MaxDataPiece)
	if m.GetBulk() {
		piece = api.BulkPiece
	}
	buf := make([]byte, min(piece, f.Bytes+1))
	for {
		n, err := s.fill(ctx, f, content, buf)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if left -= int64(n); left < 0 || err == io.EOF && left > 0 {
			return fileError(f, fmt.Errorf("it has not the %d bytes that it should have: it was changed meanwhile", f.Bytes))
		}
		if err != nil && err != io.EOF {
			return fileError(f, err)
		}
		sum.Write(buf[:n])
		if n > 0 {
			if err := s.data(m, buf[:n]); err != nil {
				return err
			}
		}
		if err == io.EOF {
			break
		}
	}
	s.note(Input{Name: f.Name, Bytes: f.Bytes, SHA256: [sha256.Size]byte(sum.Sum(nil))})
	return nil
}

// note puts down what was sent.
func (s *sender) note(i Input) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inputs = append(s.inputs, i)
}

func fileError(f File, err error) error {
	return fmt.Errorf("%w: file %q: %w", ErrFiles, f.Name, err)
}

func (s *sender) open(f File) (io.ReadCloser, error) {
	defer s.waitFor(f)()
	return f.Open()
}

// fill reads until buf is full or ctx ends. The error is io.EOF at the end, with
// the bytes before it.
func (s *sender) fill(ctx context.Context, f File, r io.Reader, buf []byte) (int, error) {
	defer s.waitFor(f)()
	n, err := io.ReadFull(contextReader{ctx, r}, buf)
	if err == io.ErrUnexpectedEOF {
		err = io.EOF
	}
	return n, err
}

// contextReader begins no read once its context has ended.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

// Read implements io.Reader.
func (r contextReader) Read(b []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(b)
}

// waitFor notes that the run waits for f, until done is called or it is too slow.
func (s *sender) waitFor(f File) (done func()) {
	set := func(waiting bool) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.local = waiting
	}
	set(true)
	late := time.AfterFunc(ReadWait, func() {
		select {
		case s.slow <- fileError(f, fmt.Errorf("reading it gave nothing for %v", ReadWait)):
		default: // once is enough
		}
	})
	return func() {
		late.Stop()
		set(false)
	}
}

// waiting tells whether the run waits for a reader of the host.
func (s *sender) waiting() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.local
}

// sentInputs gives the files that were sent whole.
func (s *sender) sentInputs() []Input {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Input(nil), s.inputs...)
}

// stdin copies standard input in the pieces that its reader gives. The program
// gets its end, whatever ended it.
func (s *sender) stdin(ctx context.Context) error {
	buf := make([]byte, api.MaxDataPiece)
	empty := 0
	for {
		n, err := s.request.Stdin.Read(buf)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if n > 0 {
			empty = 0
			if err := s.send(&agentv1.RunRequest{Part: &agentv1.RunRequest_Stdin{Stdin: buf[:n]}}); err != nil {
				return err
			}
		} else if empty++; empty >= maxEmptyReads && err == nil {
			err = io.ErrNoProgress
		}
		if err == nil {
			continue
		}
		if sendErr := s.send(&agentv1.RunRequest{Part: &agentv1.RunRequest_Stdin{}}); sendErr != nil {
			return sendErr
		}
		if err != io.EOF {
			return fmt.Errorf("%w: %w", errInput, err)
		}
		return nil
	}
}
