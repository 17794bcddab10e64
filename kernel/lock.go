package kernel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/pybox/pybox/guest/nospace"
)

const lockPoll = 200 * time.Millisecond

// sourceLock guards unpacked sources.
const sourceLock = "source"

// workLock guards the objects of an architecture. Who takes it and sourceLock
// takes it first.
func workLock(arch string) string { return "work-" + arch }

// buildLock is a flock(2) between processes. It belongs to the open file, not to
// this process: processes that inherited the file keep it, so make's last child
// frees it even when this process was killed before. That is why release closes
// the file and never unlocks it, and why this is no library's lock.
type buildLock struct{ file *os.File }

func (l buildLock) release() { l.file.Close() }

// acquire takes a lock and says so when it has to wait. The caller releases it.
func (b *Builder) acquire(ctx context.Context, name string) (buildLock, error) {
	dir := filepath.Join(b.Cache, "locks")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return buildLock{}, fmt.Errorf("make lock folder: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return buildLock{}, fmt.Errorf("open lock: %w", err)
	}
	t := time.NewTicker(lockPoll)
	defer t.Stop()
	for waited := false; ; waited = true {
		err := tryLock(f)
		if err == nil {
			return buildLock{f}, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			f.Close()
			return buildLock{}, fmt.Errorf("lock %s: %w", f.Name(), err)
		}
		if !waited {
			b.say("waiting for another build to end (lock %s)", f.Name())
		}
		select {
		case <-ctx.Done():
			f.Close()
			return buildLock{}, fmt.Errorf("wait for another build to end (lock %s): %w", f.Name(), context.Cause(ctx))
		case <-t.C:
		}
	}
}

// tryLock is flock without waiting.
func tryLock(f *os.File) error {
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

// moveCache is the advice that helps on every full disk here.
const moveCache = "set PYBOX_CACHE to a folder on a larger disk"

// needsBytes is about what a first build writes: source, objects, result.
const needsBytes = 3 << 30

// explain makes a clear sentence of an error that is about a full disk.
func (b *Builder) explain(err error) error {
	return nospace.Explain(err, "a kernel's source and objects", b.Cache, needsBytes, moveCache)
}
