package box

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pybox/pybox/agent/api"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
)

// Bounds of what a build may leave.
const (
	maxTarFiles = 1 << 17
	maxTarDepth = 32
	maxTarChunk = 256 << 10
	// buildOutput is how much of what the program prints is passed on.
	buildOutput = 4 << 20
	// outDir is where the program of a build leaves its files.
	outDir = "out"
)

// ErrArchive marks a build whose files do not fit the bounds.
var ErrArchive = errors.New("what the build left cannot be given back")

// Build runs program, which is the agent's own and not a client's, alone in the
// guest and in a box with the limits of the request, and sends what it left in
// its folder "out" as a tar archive: folders and regular files only, sorted, with
// nothing of the box in their headers. Errors are as those of Run.
func (m *Manager) Build(ctx context.Context, r *agentv1.BuildRequest, id string, program []byte, send func(*agentv1.BuildEvent) error) error {
	end := &agentv1.BuildEnd{}
	// What the program prints and its archive come from two goroutines.
	var mu sync.Mutex
	var failed error // of the client's stream
	emit := func(e *agentv1.BuildEvent) error {
		mu.Lock()
		defer mu.Unlock()
		if failed == nil {
			failed = send(e)
		}
		return failed
	}
	archive := &chunker{hash: sha256.New(), left: r.GetMaxTarBytes(), emit: func(b []byte) error {
		return emit(&agentv1.BuildEvent{Event: &agentv1.BuildEvent_Tar{Tar: b}})
	}}
	err := m.live(api.Apart(ctx), plan{
		id: id, image: r.GetImage(), program: "build.py",
		limits: limitsOf(r.GetLimits()), timeout: time.Duration(r.GetTimeoutNs()),
		stdout: buildOutput, stderr: buildOutput, queueWait: time.Duration(r.GetTimeoutNs()),
		exclusive: true, input: given{"build.py", program},
		archive: func(ctx context.Context, work string) error { return writeTar(ctx, work, archive) },
	}, func(e *agentv1.RunEvent) error {
		if o := e.GetOutput(); o != nil {
			return emit(&agentv1.BuildEvent{Event: &agentv1.BuildEvent_Progress{Progress: o.GetData()}})
		}
		if rec := e.GetRecord(); rec != nil {
			end.Ending, end.Exit = rec.GetEnding(), rec.GetExit()
			for _, u := range rec.GetUnknown() {
				end.Ending.Evidence = append(end.Ending.Evidence, "not known: "+u.GetFact()+": "+u.GetWhy())
			}
			end.Ending.Evidence = end.Ending.Evidence[:min(len(end.Ending.Evidence), maxSentences)]
		}
		return nil
	})
	if err != nil {
		return err
	}
	end.TarBytes, end.TarSha256 = archive.sent, archive.hash.Sum(nil)
	return emit(&agentv1.BuildEvent{Event: &agentv1.BuildEvent_End{End: end}})
}

// maxSentences bounds the evidence of an ending.
const maxSentences = 16

// chunker cuts an archive into events, up to its bound.
type chunker struct {
	hash hash.Hash
	left int64
	sent int64
	emit func([]byte) error
}

// Write implements io.Writer.
func (c *chunker) Write(b []byte) (int, error) {
	if int64(len(b)) > c.left {
		return 0, fmt.Errorf("%w: the archive is larger than it may be", ErrArchive)
	}
	c.left -= int64(len(b))
	c.hash.Write(b)
	for n := 0; n < len(b); {
		piece := b[n:min(n+maxTarChunk, len(b))]
		if err := c.emit(append([]byte{}, piece...)); err != nil {
			return n, err
		}
		n += len(piece)
		c.sent += int64(len(piece))
	}
	return len(b), nil
}

// writeTar writes what lies in the folder out of work. The box is empty, so
// nothing changes meanwhile; what it left may be anything. os.Root keeps links
// from leading out, and nothing but folders and regular files is opened.
func writeTar(ctx context.Context, work string, to io.Writer) error {
	root, err := os.OpenRoot(work)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrArchive, err)
	}
	defer root.Close()
	sub, err := root.OpenRoot(outDir)
	if errors.Is(err, fs.ErrNotExist) {
		return tar.NewWriter(to).Close()
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrArchive, err)
	}
	defer sub.Close()
	w := &tarWalk{ctx: ctx, root: sub, tar: tar.NewWriter(to), buf: make([]byte, maxTarChunk)}
	if err := w.dir(".", 0); err != nil {
		return err
	}
	return w.tar.Close()
}

type tarWalk struct {
	ctx   context.Context
	root  *os.Root
	tar   *tar.Writer
	files int
	buf   []byte
}

func (w *tarWalk) dir(dir string, depth int) error {
	if depth > maxTarDepth {
		return fmt.Errorf("%w: folders more than %d deep", ErrArchive, maxTarDepth)
	}
	entries, err := fs.ReadDir(w.root.FS(), dir) // sorted
	if err != nil {
		return fmt.Errorf("%w: %w", ErrArchive, err)
	}
	for _, e := range entries {
		if err := w.ctx.Err(); err != nil {
			return err
		}
		if w.files++; w.files > maxTarFiles {
			return fmt.Errorf("%w: more than %d files", ErrArchive, maxTarFiles)
		}
		name := path.Join(dir, e.Name())
		switch {
		case e.IsDir():
			if err := w.dir(name, depth+1); err != nil {
				return err
			}
		case e.Type().IsRegular():
			if err := w.file(name); err != nil {
				return err
			}
		default:
			return fmt.Errorf("%w: %s is no regular file", ErrArchive, api.Text(name, 200))
		}
	}
	return nil
}

func (w *tarWalk) file(name string) error {
	f, err := w.root.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrArchive, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrArchive, err)
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%w: %s is no regular file", ErrArchive, api.Text(name, 200))
	}
	h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: info.Size(), Format: tar.FormatPAX}
	if err := w.tar.WriteHeader(h); err != nil {
		return fmt.Errorf("%w: %w", ErrArchive, err)
	}
	if _, err := io.CopyBuffer(struct{ io.Writer }{w.tar}, struct{ io.Reader }{io.LimitReader(f, info.Size())}, w.buf); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrArchive, api.Text(name, 200), err)
	}
	return nil
}
