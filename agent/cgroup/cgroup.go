// Package cgroup does the few things that PID 1 and the agent of the guest do to
// cgroup v2 directories: make them, switch controllers on, kill, see whether
// somebody is left. File names and values are those of the kernel's
// Documentation/admin-guide/cgroup-v2.rst. It reads no counters.
package cgroup

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"time"
)

// MaxPath bounds a path that CheckPath accepts, in bytes.
const MaxPath = 128

// ErrGone marks an operation on a cgroup that has been removed.
var ErrGone = errors.New("the cgroup is gone")

// Dir is an open cgroup directory. Operations act on the cgroup that was
// opened, also when another one has taken its name since. Methods are safe for
// concurrent use.
type Dir struct{ root *os.Root }

// Open opens the cgroup directory at the path dir.
func Open(dir string) (*Dir, error) {
	r, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open the cgroup: %w", err)
	}
	return &Dir{r}, nil
}

// CheckPath reports whether rel can name a cgroup below another: one to three
// names of letters, digits, "-", "_" and "." (which no name starts with).
func CheckPath(rel string) error {
	if len(rel) > MaxPath {
		return fmt.Errorf("cgroup path of %d bytes: want at most %d", len(rel), MaxPath)
	}
	names := strings.Split(rel, "/")
	if len(names) > 3 {
		return fmt.Errorf("cgroup path %q: want at most 3 names", rel)
	}
	for _, n := range names {
		if n == "" || n[0] == '.' || strings.ContainsFunc(n, notInName) {
			return fmt.Errorf("cgroup path %q: want names of letters, digits and .-_ only", rel)
		}
	}
	return nil
}

func notInName(r rune) bool {
	return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_.", r))
}

// Sub opens the cgroup rel below d. It fails with ErrGone when there is none.
func (d *Dir) Sub(rel string) (*Dir, error) {
	if err := CheckPath(rel); err != nil {
		return nil, err
	}
	r, err := d.root.OpenRoot(rel)
	if err != nil {
		return nil, fmt.Errorf("open the cgroup %s: %w", rel, gone(err))
	}
	return &Dir{r}, nil
}

// Make makes the cgroup name below d, or opens the one that is there.
func (d *Dir) Make(name string) (*Dir, error) {
	if err := CheckPath(name); err != nil {
		return nil, err
	}
	if err := d.root.Mkdir(name, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("make the cgroup %s: %w", name, err)
	}
	return d.Sub(name)
}

// Enable switches controllers on for the children of d.
func (d *Dir) Enable(controllers ...string) error {
	return d.Set("cgroup.subtree_control", "+"+strings.Join(controllers, " +"))
}

// Set writes value to the control file of that name. The write is one system
// call, as the kernel asks for. It fails with ErrGone when the cgroup is gone.
func (d *Dir) Set(file, value string) error {
	f, err := d.root.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("write %s: %w", file, gone(err))
	}
	_, err = f.WriteString(value)
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", file, gone(err))
	}
	return nil
}

// Kill kills every process in d and below with SIGKILL, those that fork
// meanwhile too, and then lifts the CPU limit of d: a task that is throttled
// dies only once its quota refills. It fails with ErrGone when the cgroup is
// gone; a limit that could not be lifted is no error, since the kill stands.
func (d *Dir) Kill() error {
	if err := d.Set("cgroup.kill", "1"); err != nil {
		return err
	}
	_ = d.Set("cpu.max", "max") // not there without the cpu controller
	return nil
}

// killPoll is how often KillWait looks. The kernel tells of a change with
// poll(2) too, but dying takes microseconds and happens once.
const killPoll = time.Millisecond

// maxEntries bounds what KillTree reads of a directory: control files (about
// 60) and children.
const maxEntries = 4096

// KillTree is Kill for d and everything below it: one kill for all, then the
// CPU limits of the children are lifted too.
func (d *Dir) KillTree() error {
	if err := d.Kill(); err != nil {
		return err
	}
	f, err := d.root.Open(".")
	if err != nil {
		return nil // gone since: nothing is left to throttle
	}
	defer f.Close()
	entries, _ := f.ReadDir(maxEntries)
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		if sub, err := d.Sub(e.Name()); err == nil {
			_ = sub.Set("cpu.max", "max")
			_ = sub.Close()
		}
	}
	return nil
}

// Populated tells whether a process lives in d or below ("populated" of
// cgroup.events). One that was killed does until it has left the kernel; a
// zombie does not. It fails with ErrGone when the cgroup is gone.
func (d *Dir) Populated() (bool, error) {
	f, err := d.root.Open("cgroup.events")
	if err != nil {
		return false, fmt.Errorf("read cgroup.events: %w", gone(err))
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, 4096))
	if err != nil {
		return false, fmt.Errorf("read cgroup.events: %w", gone(err))
	}
	for line := range strings.Lines(string(b)) {
		switch strings.TrimSpace(line) {
		case "populated 0":
			return false, nil
		case "populated 1":
			return true, nil
		}
	}
	return false, fmt.Errorf("read cgroup.events: no line \"populated\" in %.100q", b)
}

// KillWait is Kill, and waits until nobody is left in d or below. It fails when
// somebody is after timeout.
func (d *Dir) KillWait(timeout time.Duration) error {
	if err := d.Kill(); err != nil {
		return err
	}
	deadline := time.Now().Add(timeout)
	for {
		populated, err := d.Populated()
		if err != nil || !populated {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("processes are left %v after their kill", timeout)
		}
		time.Sleep(killPoll)
	}
}

// File returns a new open file of the directory, for clone3(2) with
// CLONE_INTO_CGROUP.
func (d *Dir) File() (*os.File, error) { return d.root.Open(".") }

// Close closes the directory; the cgroup stays.
func (d *Dir) Close() error { return d.root.Close() }

// gone adds ErrGone to the errors that the kernel gives for a removed cgroup.
func gone(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENODEV) {
		return fmt.Errorf("%w: %w", ErrGone, err)
	}
	return err
}
