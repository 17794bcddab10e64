package images

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"
	"github.com/google/renameio/v2"

	"github.com/pybox/pybox/guest/nospace"
)

const (
	// contentName is the image in a stage's folder.
	contentName = "image" + imageSuffix
	stageLock   = "lock"
)

// Stage is a folder of the store in which an image is made. What is in it is gone
// once it is closed, or its process has ended and another stage is made or the store is
// changed. It is not safe for concurrent use.
type Stage struct {
	dir  string
	lock *flock.Flock
}

// Stage makes a stage, after it has made room of what others left. It must be closed.
func (s *Store) Stage(ctx context.Context) (*Stage, error) {
	s.tidy()
	// Who removes abandoned stages holds the lock, so none is seen without its own.
	unlock, err := s.lock(ctx, false, lockWait)
	if err != nil {
		return nil, err
	}
	defer unlock()
	dir, err := os.MkdirTemp(s.dir, stagePrefix)
	if err != nil {
		return nil, fmt.Errorf("making room for an image: %w", err)
	}
	st := &Stage{dir: dir, lock: flock.New(filepath.Join(dir, stageLock), flock.SetPermissions(0o600))}
	if ok, err := st.lock.TryLock(); err != nil || !ok {
		st.Close()
		return nil, errors.Join(fmt.Errorf("making room for an image: %s cannot be locked", dir), err)
	}
	return st, nil
}

// Dir is the stage's folder, for what else its maker needs for the time being.
func (st *Stage) Dir() string { return st.dir }

// Path is where the image has to be when the stage is committed.
func (st *Stage) Path() string { return filepath.Join(st.dir, contentName) }

// Close removes what was not committed.
func (st *Stage) Close() {
	_ = os.RemoveAll(st.dir)
	_ = st.lock.Close()
}

// abandonedStage gives a stage whose maker lives no more, for the caller to close; nil:
// it lives, or somebody else is closing it. The store's lock is held exclusively.
func abandonedStage(dir string) *Stage {
	st := &Stage{dir: dir, lock: flock.New(filepath.Join(dir, stageLock), flock.SetPermissions(0o600))}
	if ok, err := st.lock.TryLock(); err != nil || !ok {
		_ = st.lock.Close()
		return nil
	}
	return st
}

func closeAll(stages []*Stage) {
	for _, st := range stages {
		st.Close()
	}
}

// Commit is how a staged image goes into the store.
type Commit struct {
	// Replace puts it in the place of one with its name.
	Replace bool
	// Bundled is how many images the guest bundle has.
	Bundled int
	// Now is the host's wall clock; nil is time.Now.
	Now func() time.Time
}

// Commit puts the image of the stage into the store, under the name in r, and gives
// r with what the store knows of it: digest, size and time. Whatever happens, the
// name stands for the old image or the new one. The error matches ErrExists, ErrFull,
// ErrName or nospace.Err.
func (s *Store) Commit(ctx context.Context, st *Stage, r Record, c Commit) (_ *Record, err error) {
	defer func() {
		err = nospace.Explain(err, "the image", s.dir, r.Bytes, "choose a state folder on another disk with PYBOX_HOME")
	}()
	if err := CheckName(r.Name); err != nil {
		return nil, err
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	r.Schema, r.CreatedAt = Schema, c.Now().UTC().Truncate(time.Second)
	if r.SHA256, r.Bytes, err = seal(ctx, st.Path()); err != nil {
		return nil, fmt.Errorf("keeping the image: %w", err)
	}
	text, err := r.Encode()
	if err != nil {
		return nil, err
	}
	err = s.change(ctx, func() error {
		if err := s.Admit(r.Name, c); err != nil {
			return err
		}
		if err := s.put(st, &r, text); err != nil {
			return fmt.Errorf("keeping the image: %w", err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &r, nil
}

// Admit reports whether an image called name could be committed now, which a maker
// wants to know before its work. The error matches ErrExists, ErrFull or ErrName.
func (s *Store) Admit(name string, c Commit) error {
	if err := CheckName(name); err != nil {
		return err
	}
	list, err := s.List()
	if err != nil {
		return err
	}
	for _, e := range list {
		if e.Name != name {
			continue
		}
		if errors.Is(e.Err, errStray) {
			return fmt.Errorf("%w: %w: %s", ErrExists, e.Err, s.remedy(name, e.Err))
		}
		if !c.Replace {
			return fmt.Errorf("%w: %q; --replace puts the new one in its place, or choose another name", ErrExists, name)
		}
	}
	return room(list, name, c.Bundled)
}

// put moves the content and then the record into place, each durably.
func (s *Store) put(st *Stage, r *Record, text []byte) error {
	if err := os.Rename(st.Path(), s.Path(r)); err != nil {
		return err
	}
	if err := syncDir(s.dir); err != nil {
		return err
	}
	if err := renameio.WriteFile(s.recordPath(r.Name), text, 0o600, renameio.WithTempDir(st.dir)); err != nil {
		return err
	}
	return syncDir(s.dir)
}

// seal makes a content durable and readable by a VMM that runs as somebody else, and
// gives its digest and size.
func seal(ctx context.Context, name string) (sum string, size int64, err error) {
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return "", 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := f.Chmod(0o644); err != nil {
		return "", 0, err
	}
	h := sha256.New()
	n, err := io.Copy(h, ctxReader{ctx, f})
	if err != nil {
		return "", 0, err
	}
	return hex.EncodeToString(h.Sum(nil)), n, f.Sync()
}

// ctxReader ends a long copy when ctx does.
type ctxReader struct {
	ctx context.Context
	r   io.Reader
}

func (c ctxReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, context.Cause(c.ctx)
	}
	return c.r.Read(p)
}
