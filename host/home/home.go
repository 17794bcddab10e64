// Package home is PyBox's state directory on the host: where its files are, who
// may own them, and which one process is the daemon. It knows paths and locks,
// not what the files mean.
package home

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/gofrs/flock"
	"github.com/google/renameio/v2"
)

// maxSocketPath is the longest path of a Unix socket on every system: macOS has
// 104 bytes for it, with its final zero (unix(4)).
const maxSocketPath = 103

var (
	// ErrLocked: another daemon owns this directory.
	ErrLocked = errors.New("another PyBox daemon owns this directory")
	// ErrUnsafe: someone else could read or change what is in the directory.
	ErrUnsafe = errors.New("the directory is not safe")
)

// UnsafeError says why a directory is not safe. It matches ErrUnsafe.
type UnsafeError struct {
	// Why says what was seen, Fix what to do about it; Fix may be empty.
	Why, Fix string
}

// Error implements error.
func (e *UnsafeError) Error() string {
	s := ErrUnsafe.Error() + ": " + e.Why
	if e.Fix != "" {
		s += ": " + e.Fix
	}
	return s
}

// Is makes errors.Is find ErrUnsafe.
func (e *UnsafeError) Is(target error) bool { return target == ErrUnsafe }

// Home is one state directory. Its methods are safe for concurrent use.
type Home struct {
	dir string
}

// Locate says which directory PyBox uses: $PYBOX_HOME, or .pybox in the user's
// home. getenv is os.Getenv.
func Locate(getenv func(string) string) (string, error) {
	if d := getenv("PYBOX_HOME"); d != "" {
		abs, err := filepath.Abs(d)
		if err != nil {
			return "", fmt.Errorf("PYBOX_HOME: %w", err)
		}
		return abs, nil
	}
	h := getenv("HOME")
	if h == "" || !filepath.IsAbs(h) {
		return "", errors.New("neither PYBOX_HOME nor HOME says where PyBox may keep its files: set PYBOX_HOME to a folder")
	}
	return filepath.Join(h, ".pybox"), nil
}

// Open makes dir with mode 0700 when it is missing, and refuses one that belongs
// to another user or that others can write to.
func Open(dir string) (*Home, error) {
	if err := ensureDir(dir); err != nil {
		return nil, err
	}
	return &Home{dir: dir}, nil
}

// OpenExisting is Open for who only looks: it makes nothing. The error matches
// fs.ErrNotExist when dir is missing.
func OpenExisting(dir string) (*Home, error) {
	if err := checkDir(dir); err != nil {
		return nil, err
	}
	return &Home{dir: dir}, nil
}

// At names the files of dir. It makes nothing and checks nothing: it is for who
// describes a directory that may be missing or unsafe.
func At(dir string) *Home { return &Home{dir: dir} }

// ensureDir makes a private directory, or checks the one that is there.
func ensureDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("making PyBox's directory: %w", err)
	}
	return checkDir(dir)
}

func checkDir(dir string) error {
	st, err := os.Stat(dir)
	if err != nil {
		return err
	}
	return checkOwn(dir, st)
}

// checkOwn refuses what is no directory of ours that only we may write to.
// CheckOwn tells why a folder that is there is not one that its user alone fills: the
// error is an *UnsafeError. A missing one is fine.
func CheckOwn(dir string) error {
	st, err := os.Stat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return checkOwn(dir, st)
}

func checkOwn(dir string, st fs.FileInfo) error {
	const elsewhere = "set PYBOX_HOME to a folder of your own"
	if !st.IsDir() {
		return &UnsafeError{Why: dir + " is not a directory", Fix: elsewhere}
	}
	if sys, ok := st.Sys().(*syscall.Stat_t); ok && int(sys.Uid) != os.Geteuid() {
		return &UnsafeError{Why: fmt.Sprintf("%s belongs to user %d, not to you (%d)", dir, sys.Uid, os.Geteuid()), Fix: elsewhere}
	}
	if st.Mode()&fs.ModeSticky != 0 || filepath.Dir(dir) == dir {
		return &UnsafeError{Why: dir + " is a folder of the system", Fix: elsewhere}
	}
	if st.Mode().Perm()&0o022 != 0 {
		return &UnsafeError{Why: "others may write to " + dir, Fix: fmt.Sprintf("run 'chmod 700 %s'", dir)}
	}
	return nil
}

// Dir is the directory's path.
func (h *Home) Dir() string { return h.dir }

// Path joins names to the directory's path.
func (h *Home) Path(names ...string) string {
	return filepath.Join(append([]string{h.dir}, names...)...)
}

// Config is the path of config.toml.
func (h *Home) Config() string { return h.Path("config.toml") }

// APIToken is the path of the token that clients of the daemon's TCP port show.
func (h *Home) APIToken() string { return h.Path("api-token") }

// Log and Console are the daemon's log and the guest's console output.
func (h *Home) Log() string     { return h.Path("daemon.log") }
func (h *Home) Console() string { return h.Path("console.log") }

// LastEnd is the path of the record of how the last VM ended.
func (h *Home) LastEnd() string { return h.Path("last-end.json") }

// Socket is where the daemon listens: in the directory, or in a private folder
// below /tmp when that path would be too long for a socket.
func (h *Home) Socket() string {
	if p := h.Path("pybox.sock"); len(p) <= maxSocketPath {
		return p
	}
	sum := sha256.Sum256([]byte(h.dir))
	return filepath.Join(fallbackDir(), hex.EncodeToString(sum[:4])+".sock")
}

func fallbackDir() string { return fmt.Sprintf("/tmp/pybox-%d", os.Geteuid()) }

// PrepareSocket makes the socket's folder and checks that it is ours alone: in
// /tmp anybody may have been there first. Only the holder of the lock may remove or
// bind the socket.
func (h *Home) PrepareSocket() error {
	dir := filepath.Dir(h.Socket())
	if dir == h.dir {
		return nil
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("making the socket's folder: %w", err)
	}
	return h.CheckSocketDir()
}

// CheckSocketDir tells, and changes nothing, why the socket's folder cannot be
// used. The error matches ErrUnsafe, or fs.ErrNotExist for a folder that
// PrepareSocket will make.
func (h *Home) CheckSocketDir() error {
	dir := filepath.Dir(h.Socket())
	if dir == h.dir {
		return nil
	}
	st, err := os.Lstat(dir) // not through a link
	if err != nil {
		return err
	}
	if err := checkOwn(dir, st); err != nil {
		return fmt.Errorf("%w (the socket goes there, since the path of %s is too long for one: set PYBOX_HOME to a shorter path)", err, h.dir)
	}
	return nil
}

// Lock is the ownership of a directory by one daemon.
type Lock struct{ f *flock.Flock }

// lockPatience is how long Lock tries: those who only ask whether the lock is free
// hold it for a moment.
const lockPatience = 250 * time.Millisecond

// Lock takes the directory, waiting at most a moment. The kernel drops the lock
// with the process, however it ends, so a lock is never stale. The error matches
// ErrLocked when a living process has it.
func (h *Home) Lock() (*Lock, error) {
	ctx, cancel := context.WithTimeout(context.Background(), lockPatience)
	defer cancel()
	f := h.lockFile()
	ok, err := f.TryLockContext(ctx, 5*time.Millisecond)
	if err != nil && ctx.Err() == nil {
		return nil, fmt.Errorf("locking %s: %w", h.dir, err)
	}
	if !ok {
		return nil, fmt.Errorf("%w: %s (%s)", ErrLocked, h.dir, h.owner())
	}
	return &Lock{f}, nil
}

// Unlocked tells whether no process holds the lock. It makes no file: who asks
// changes nothing.
func (h *Home) Unlocked() (bool, error) {
	f := flock.New(h.lockPath(), flock.SetFlag(os.O_RDONLY))
	defer f.Close()
	free, err := f.TryRLock()
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	return free, err
}

// WaitUnlocked returns once no process holds the lock, or when ctx ends.
func (h *Home) WaitUnlocked(ctx context.Context) error {
	t := time.NewTicker(10 * time.Millisecond)
	defer t.Stop()
	for {
		if free, err := h.Unlocked(); free || err != nil {
			return err
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ErrLocked, ctx.Err())
		}
	}
}

func (h *Home) lockFile() *flock.Flock {
	return flock.New(h.lockPath(), flock.SetPermissions(0o600))
}

func (h *Home) lockPath() string { return h.Path("lock") }

// Unlock gives the directory up.
func (l *Lock) Unlock() error { return l.f.Unlock() }

func (h *Home) owner() string {
	d, err := h.Daemon()
	if err != nil {
		return "its owner is unknown"
	}
	return fmt.Sprintf("pid %d, since %s", d.PID, d.StartedAt.Format(time.DateTime))
}

// Daemon describes the process that holds the lock, or held it last: a number
// alone names another process once the host has booted or reused it.
type Daemon struct {
	PID int `json:"pid"`
	// StartTime is the process's start as the kernel counts it, to be compared
	// for equality only.
	StartTime  string    `json:"start_time"`
	HostBootID string    `json:"host_boot_id"`
	StartedAt  time.Time `json:"started_at"`
	Socket     string    `json:"socket"`
	// Listen is the TCP address where it listens beside the socket; empty: nowhere.
	Listen  string `json:"listen,omitempty"`
	Version string `json:"version"`
}

// maxJSON bounds the small files of this directory.
const maxJSON = 1 << 20

// SetDaemon records this process as the daemon. listen is Daemon.Listen.
func (h *Home) SetDaemon(version string, now time.Time, listen string) error {
	start, err := processStart(os.Getpid())
	if err != nil {
		return err
	}
	return h.WriteJSON(h.Path("daemon.json"), Daemon{
		PID: os.Getpid(), StartTime: start, HostBootID: hostBootID(), StartedAt: now, Socket: h.Socket(), Listen: listen, Version: version,
	})
}

// Daemon reads what SetDaemon recorded.
func (h *Home) Daemon() (Daemon, error) {
	var d Daemon
	err := h.ReadJSON(h.Path("daemon.json"), &d)
	return d, err
}

// Fate is what became of a process.
type Fate int

// The fates of a process.
const (
	// FateAlive: it still runs.
	FateAlive Fate = iota
	// FateEnded: no process has its number, or a zombie has.
	FateEnded
	// FateReused: its number is now another process's.
	FateReused
	// FateRebooted: the host has booted since.
	FateRebooted
)

// Fate tells what became of the described process. A number that no process can
// have counts as ended.
func (d Daemon) Fate() Fate {
	switch start, err := processStart(d.PID); {
	case d.HostBootID != hostBootID():
		return FateRebooted
	case d.PID <= 1 || err != nil:
		return FateEnded
	case start != d.StartTime:
		return FateReused
	}
	return FateAlive
}

// Alive tells whether the described process is still the one that runs.
func (d Daemon) Alive() bool { return d.Fate() == FateAlive }

// WriteJSON replaces a file of the directory at once: no reader sees half of it.
func (h *Home) WriteJSON(path string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return renameio.WriteFile(path, append(b, '\n'), 0o600)
}

// ReadJSON reads a file that WriteJSON wrote.
func (h *Home) ReadJSON(path string, v any) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxJSON))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}
