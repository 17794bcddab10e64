package outputs

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"time"

	"github.com/pybox/pybox/host/receipt"
)

// ErrContent: what came of a file is not what its receipt says.
var ErrContent = errors.New("what came is not what the receipt says")

// Modes of what is made, less the umask. It never has any other bit.
const (
	modeFile       = 0o644
	modeExecutable = 0o755
	modeFolder     = 0o755
)

func modeOf(f receipt.File) fs.FileMode {
	if f.Executable {
		return modeExecutable
	}
	return modeFile
}

// fill puts the files into the stage.
func (p *Place) fill(ctx context.Context, s *stage, files []receipt.File, open Opener) error {
	made := map[string]bool{".": true}
	order := []string{"."} // each folder before what is in it
	mkdir := func(name string) error {
		if made[name] {
			return nil
		}
		if err := s.files.mkdir(name, modeFolder); err != nil {
			return fmt.Errorf("%q: %w", name, cause(err))
		}
		made[name] = true
		order = append(order, name)
		return nil
	}
	if p.name != "" {
		if err := mkdir(p.name); err != nil {
			return err
		}
	}
	for _, f := range files {
		name := path.Join(p.name, f.Name)
		for _, above := range foldersAbove(name) {
			if err := mkdir(above); err != nil {
				return err
			}
		}
		var err error
		if f.Folder {
			err = mkdir(name)
		} else {
			err = p.file(ctx, s.files, name, f, open)
		}
		if err != nil {
			return err
		}
	}
	for n := len(order) - 1; n >= 0; n-- {
		if err := s.files.syncSub(order[n]); err != nil {
			return fmt.Errorf("%q: %w", order[n], cause(err))
		}
	}
	return nil
}

// foldersAbove are the folders that a name lies in, the outermost first.
func foldersAbove(name string) (all []string) {
	for n, c := range name {
		if c == '/' {
			all = append(all, name[:n])
		}
	}
	return all
}

// syncSub is sync of a folder in it.
func (f *folder) syncSub(name string) error {
	if err := f.about("sync " + name); err != nil {
		return err
	}
	d, err := f.root.Open(name)
	if err != nil {
		return err
	}
	defer d.Close()
	return syncFolder(d)
}

// file makes one file, whole and verified.
func (p *Place) file(ctx context.Context, in *folder, name string, f receipt.File, open Opener) error {
	w, err := in.create(name, modeOf(f))
	if err != nil {
		return fmt.Errorf("%q: %w", f.Name, cause(err))
	}
	err = copyVerified(ctx, &writer{w, in.means}, f, open)
	if err == nil {
		err = p.finish(w)
	}
	if closed := w.Close(); err == nil && closed != nil {
		err = cause(closed)
	}
	if err != nil {
		return fmt.Errorf("%q: %w", f.Name, err)
	}
	return nil
}

// finish marks a file and has it survive a loss of power.
func (p *Place) finish(w *os.File) error {
	if err := p.means.about("mark"); err != nil {
		return err
	}
	if err := p.means.mark.mark(w); err != nil {
		return err
	}
	if err := p.means.about("sync"); err != nil {
		return err
	}
	if err := w.Sync(); err != nil {
		return cause(err)
	}
	return nil
}

// writer is a file whose errors do not speak of its path.
type writer struct {
	f *os.File
	means
}

// Write implements io.Writer.
func (w *writer) Write(b []byte) (int, error) {
	if err := w.about("write"); err != nil {
		return 0, err
	}
	n, err := w.f.Write(b)
	if err != nil {
		err = cause(err)
	}
	return n, err
}

// copyBytes is how much is read at a time.
const copyBytes = 256 << 10

// copyVerified copies a file and holds it to its receipt.
func copyVerified(ctx context.Context, w io.Writer, f receipt.File, open Opener) error {
	if f.Bytes == 0 && f.File == "" {
		return verify(f, 0, sha256.New().Sum(nil))
	}
	r, err := open(ctx, f)
	if err != nil {
		return err
	}
	defer r.Close()
	sum := sha256.New()
	// Neither side has a shortcut around the buffer.
	n, err := io.CopyBuffer(struct{ io.Writer }{io.MultiWriter(w, sum)}, struct{ io.Reader }{io.LimitReader(r, f.Bytes)}, make([]byte, copyBytes))
	if err != nil {
		return err
	}
	// The end of what comes has to come too.
	switch more, err := io.CopyN(io.Discard, r, 1); {
	case more > 0:
		n++
	case !errors.Is(err, io.EOF):
		return err
	}
	return verify(f, n, sum.Sum(nil))
}

func verify(f receipt.File, n int64, sum []byte) error {
	switch {
	case n > f.Bytes:
		return fmt.Errorf("%w: more than %d bytes", ErrContent, f.Bytes)
	case n < f.Bytes:
		return fmt.Errorf("%w: %d bytes of %d", ErrContent, n, f.Bytes)
	case hex.EncodeToString(sum) != *f.SHA256:
		return fmt.Errorf("%w: its SHA-256 is another one", ErrContent)
	}
	return nil
}

// pack puts the files into an archive in the stage. The same files give the same bytes.
func (p *Place) pack(ctx context.Context, s *stage, files []receipt.File, open Opener) error {
	w, err := s.files.create(p.name, modeFile)
	if err != nil {
		return fmt.Errorf("%q: %w", p.name, cause(err))
	}
	defer w.Close()
	t := tar.NewWriter(&writer{w, p.means})
	for _, f := range files {
		if err := packOne(ctx, t, f, open); err != nil {
			return fmt.Errorf("%q: %w", f.Name, err)
		}
	}
	if err := t.Close(); err != nil {
		return fmt.Errorf("%q: %w", p.name, err)
	}
	if err := p.finish(w); err != nil {
		return fmt.Errorf("%q: %w", p.name, err)
	}
	return s.files.sync()
}

func packOne(ctx context.Context, t *tar.Writer, f receipt.File, open Opener) error {
	h := &tar.Header{Typeflag: tar.TypeReg, Name: f.Name, Size: f.Bytes, Mode: int64(modeOf(f)), ModTime: time.Unix(0, 0), Format: tar.FormatPAX}
	if f.Folder {
		h.Typeflag, h.Name, h.Size, h.Mode = tar.TypeDir, f.Name+"/", 0, modeFolder
	}
	if err := t.WriteHeader(h); err != nil || f.Folder {
		return err
	}
	return copyVerified(ctx, t, f, open)
}
