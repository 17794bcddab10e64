package box

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/pybox/pybox/agent/api"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
	"github.com/pybox/pybox/agent/collect"
	"github.com/pybox/pybox/agent/runner"
)

// Bounds of what a client sends.
const (
	// partTimeout is how long a client may be silent while it sends files.
	partTimeout = time.Minute
	// maxPart bounds one part of a file or of standard input, in bytes.
	maxPart = 256 << 10
)

// upload is the input that a client sends.
type upload struct {
	in      Input
	program string
	// maxFiles and maxBytes bound what comes beside the program.
	maxFiles, maxBytes int64
	// known gets what was written.
	known *collect.Known
	// stdinFollows is what the client's go said.
	stdinFollows bool

	sums                []*agentv1.FileSum
	seen                map[string]bool
	count, bytes, names int64
}

// next waits a bounded time for the client's next part.
func (u *upload) next(ctx context.Context) (*agentv1.RunRequest, error) {
	ctx, cancel := context.WithTimeout(ctx, partTimeout)
	defer cancel()
	part, err := u.in.Next(ctx)
	if err != nil {
		return nil, fmt.Errorf("wait for the client's files: %w", err)
	}
	return part, nil
}

// files implements input: everything up to the client's go.
func (u *upload) files(ctx context.Context, c *runner.Conn) ([]*agentv1.FileSum, error) {
	for {
		part, err := u.next(ctx)
		if err != nil {
			return u.sums, err
		}
		switch p := part.GetPart().(type) {
		case *agentv1.RunRequest_Go:
			u.stdinFollows = p.Go.GetStdin()
			return u.sums, hasProgram(u.sums, u.program)
		case *agentv1.RunRequest_File:
			if err := u.admit(p.File); err != nil {
				return u.sums, err
			}
			sum, err := u.file(ctx, c, p.File)
			if err != nil {
				return u.sums, err
			}
			u.sums = append(u.sums, sum)
		default:
			return u.sums, fmt.Errorf("%w: a part that is neither a file nor the go", api.ErrRequest)
		}
	}
}

// admit holds a file, with those before it, to the bounds of the run.
func (u *upload) admit(f *agentv1.RunFile) error {
	name := f.GetName()
	if err := api.CheckRunFile(f); err != nil {
		return err
	}
	if u.seen[name] {
		return fmt.Errorf("%w: two files have the name %q", api.ErrRequest, api.Text(name, 100))
	}
	if u.seen == nil {
		u.seen = map[string]bool{}
	}
	u.seen[name] = true
	if u.names += int64(len(name)); u.names > api.MaxNames || len(u.seen) > api.MaxInputs {
		return fmt.Errorf("%w: more than %d files, or their names have more than %d bytes together", api.ErrRequest, api.MaxInputs, api.MaxNames)
	}
	if name == u.program && !f.GetFolder() {
		return nil
	}
	if u.count++; u.count > u.maxFiles {
		return fmt.Errorf("%w: more than %d files and folders beside the program, which is this run's limit", api.ErrRequest, u.maxFiles)
	}
	if f.GetBytes() > u.maxBytes-u.bytes {
		return fmt.Errorf("%w: the files beside the program have more than %d bytes together, which is this run's limit", api.ErrRequest, u.maxBytes)
	}
	u.bytes += f.GetBytes()
	return nil
}

// file writes one file of the client.
func (u *upload) file(ctx context.Context, c *runner.Conn, f *agentv1.RunFile) (*agentv1.FileSum, error) {
	sum := &agentv1.FileSum{Name: f.GetName(), Bytes: f.GetBytes()}
	if f.GetFolder() {
		u.known.Folder(f.GetName())
		return sum, c.MkdirAll(ctx, f.GetName())
	}
	mode := os.FileMode(0o644)
	if f.GetExecutable() {
		mode = 0o755
	}
	to := []io.Writer{u.known.File(f.GetName(), f.GetExecutable())}
	digest := sha256.New()
	if f.GetName() == u.program {
		// Of the others the host has one, of what it has sent. Where the processor
		// is emulated a SHA-256 takes longer than everything else together.
		to = append(to, digest)
	}
	hashed := io.MultiWriter(to...)
	var r io.Reader = &partReader{ctx: ctx, u: u, left: f.GetBytes(), hashed: hashed}
	if f.GetBulk() {
		defer context.AfterFunc(ctx, func() { _ = u.in.Bulk().Close() })()
		r = io.TeeReader(io.LimitReader(u.in.Bulk(), f.GetBytes()), hashed)
	}
	if err := c.WriteFile(ctx, f.GetName(), mode, f.GetBytes(), r); err != nil {
		return nil, err
	}
	if f.GetName() == u.program {
		sum.Sha256 = digest.Sum(nil)
	}
	return sum, nil
}

// partReader reads the data of one file out of the client's parts.
type partReader struct {
	ctx    context.Context
	u      *upload
	left   int64
	buf    []byte
	hashed io.Writer
}

// Read implements io.Reader.
func (r *partReader) Read(b []byte) (int, error) {
	for len(r.buf) == 0 {
		if r.left == 0 {
			return 0, io.EOF
		}
		part, err := r.u.next(r.ctx)
		if err != nil {
			return 0, err
		}
		p, ok := part.GetPart().(*agentv1.RunRequest_Data)
		if !ok || len(p.Data) == 0 || len(p.Data) > maxPart || int64(len(p.Data)) > r.left {
			return 0, fmt.Errorf("%w: the data of a file is not what was announced", api.ErrRequest)
		}
		r.buf = p.Data
		r.left -= int64(len(p.Data))
		_, _ = r.hashed.Write(p.Data) // hashes do not fail
	}
	n := copy(b, r.buf)
	r.buf = r.buf[n:]
	return n, nil
}

// stdin implements input: the client's parts after the go, at the program's pace.
func (u *upload) stdin(ctx context.Context, w *os.File) {
	defer w.Close()
	if !u.stdinFollows {
		return
	}
	// A program that does not read must not hold this up when it ends.
	defer context.AfterFunc(ctx, func() { _ = w.SetWriteDeadline(time.Unix(1, 0)) })()
	for {
		part, err := u.in.Next(ctx)
		if err != nil {
			return
		}
		p, ok := part.GetPart().(*agentv1.RunRequest_Stdin)
		if !ok || len(p.Stdin) == 0 || len(p.Stdin) > maxPart {
			return
		}
		if _, err := w.Write(p.Stdin); err != nil {
			return // the program has closed it: as with any pipe
		}
	}
}

// given is an input that is at hand: one program.
type given struct {
	name string
	text []byte
}

func (g given) files(ctx context.Context, c *runner.Conn) ([]*agentv1.FileSum, error) {
	if err := c.WriteFile(ctx, g.name, 0o644, int64(len(g.text)), bytes.NewReader(g.text)); err != nil {
		return nil, err
	}
	sum := sha256.Sum256(g.text)
	return []*agentv1.FileSum{{Name: g.name, Bytes: int64(len(g.text)), Sha256: sum[:]}}, nil
}

func (given) stdin(_ context.Context, w *os.File) { _ = w.Close() }

// errNoProgram: the client sent no file of the program's name.
var errNoProgram = errors.New("the program is not among the files")

// hasProgram looks for the program among what was written.
func hasProgram(sums []*agentv1.FileSum, program string) error {
	for _, s := range sums {
		if s.GetName() == program && s.GetSha256() != nil {
			return nil
		}
	}
	return fmt.Errorf("%w: %s", errNoProgram, api.Text(program, 100))
}
