//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// childPrefix before a name in argv[0] makes this binary a child: Go cannot
// fork without executing, so what must happen in another process, group or
// namespace is a function of children, found by name.
const childPrefix = "guestcheck-child:"

// child is a function that runs in a process of its own. Its error becomes the
// parent's.
type child func(args []string) error

func runChild(name string, args []string) int {
	fn, ok := children()[name]
	if !ok {
		fmt.Println("no such child: " + name)
		return 1
	}
	if err := fn(args); err != nil {
		fmt.Print(err)
		return 1
	}
	return 0
}

func children() map[string]child {
	all := map[string]child{
		"hold":          holdChild,
		"allocate":      allocateChild,
		"spawn":         spawnChild,
		"burn":          burnChild,
		"open-null":     openNullChild,
		"box":           boxChild,
		"time-ns":       timeNamespaceChild,
		"new-user":      newUserChild,
		"seccomp":       seccompChild,
		"bpf-load":      bpfLoadChild,
		"tiocsti":       tiocstiChild,
		"perf":          perfChild,
		"ldisc":         lineDisciplineChild,
		"ptrace-parent": ptraceParentChild,
		"read-log":      readLogChild,
	}
	maps.Copy(all, archChildren())
	return all
}

// childCommand prepares a child.
func childCommand(ctx context.Context, name string, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, "/proc/self/exe")
	c.Args = append([]string{childPrefix + name}, args...)
	c.WaitDelay = time.Second
	c.SysProcAttr = &syscall.SysProcAttr{}
	return c
}

// finish runs a child to its end and returns what it reported.
func finish(c *exec.Cmd) error {
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	err := c.Run()
	if err != nil && out.Len() > 0 {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(out.String()))
	}
	return err
}

// inChild runs a child with the attributes that set gives it (nil: none).
func inChild(set func(*syscall.SysProcAttr), name string, args ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), childTime)
	defer cancel()
	c := childCommand(ctx, name, args...)
	if set != nil {
		set(c.SysProcAttr)
	}
	return finish(c)
}

// asUser makes a child an ordinary user.
func asUser(a *syscall.SysProcAttr) {
	a.Credential = &syscall.Credential{Uid: 1000, Gid: 1000}
}

// holdChild says that it runs and then waits for its end.
func holdChild([]string) error {
	fmt.Println("ready")
	time.Sleep(childTime)
	return errors.New("nobody ended it")
}

// poll asks until done answers true or an error, or time is over.
func poll(what string, done func() (bool, error)) error {
	for end := time.Now().Add(childTime); ; {
		ok, err := done()
		if ok || err != nil {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("%s: not so after %v", what, childTime)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func read(path string) (string, error) {
	b, err := os.ReadFile(path)
	return strings.TrimSpace(string(b)), err
}

func readOr(path string) string {
	s, err := read(path)
	if err != nil {
		return err.Error()
	}
	return s
}

func write(path, s string) error {
	return os.WriteFile(path, []byte(s), 0)
}

// wantFile passes when a file has exactly this text.
func wantFile(path, want string) error {
	got, err := read(path)
	if err != nil {
		return err
	}
	if got != want {
		return fmt.Errorf("%s is %q, want %q", path, got, want)
	}
	return nil
}

// wantErr passes when err is one of want. A refusal is only evidence when it is
// the expected one: a call that fails for another reason proves nothing.
func wantErr(err error, want ...error) error {
	if slices.ContainsFunc(want, func(w error) bool { return errors.Is(err, w) }) {
		return nil
	}
	if err == nil {
		return fmt.Errorf("it worked, want %q", want)
	}
	return fmt.Errorf("%w, want %q", err, want)
}

// absentFile passes when nothing has that name.
func absentFile(path string) error {
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%s is there (%v)", path, err)
	}
	return nil
}

// presentFiles passes when every name in dir is there.
func presentFiles(dir string, names ...string) error {
	var missing []string
	for _, n := range names {
		if _, err := os.Lstat(dir + "/" + n); err != nil {
			missing = append(missing, n)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("%s lacks %s", dir, strings.Join(missing, " "))
	}
	return nil
}

// names lists what is in a folder.
func names(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	var list []string
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list, err
}

// onlyThese passes when every name fits one of the allowed ones; an allowed name
// that ends in "*" stands for all that begin so.
func onlyThese(what string, got []string, allowed ...string) error {
	var extra []string
	for _, g := range got {
		if !slices.ContainsFunc(allowed, func(a string) bool {
			prefix, wild := strings.CutSuffix(a, "*")
			return a == g || wild && strings.HasPrefix(g, prefix)
		}) {
			extra = append(extra, g)
		}
	}
	if len(extra) > 0 {
		return fmt.Errorf("%s has also: %s", what, strings.Join(extra, " "))
	}
	return nil
}

// field finds the number behind a key in lines of "key number".
func field(path, key string) (int64, error) {
	s, err := read(path)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(s) {
		if f := strings.Fields(line); len(f) >= 2 && strings.TrimSuffix(f[0], ":") == key {
			return strconv.ParseInt(f[1], 10, 64)
		}
	}
	return 0, fmt.Errorf("%s has no %s", path, key)
}

func memInfo(key string) int64 {
	n, err := field("/proc/meminfo", key)
	if err != nil {
		return -1
	}
	return n
}

// enosys passes when the kernel has no such system call. Arguments are zero, so
// that a call that is there fails harmlessly.
func enosys(nr uintptr) error {
	_, _, e := unix.Syscall6(nr, 0, 0, 0, 0, 0, 0)
	if e == unix.ENOSYS {
		return nil
	}
	if e == 0 {
		return errors.New("the call works")
	}
	return fmt.Errorf("the call is there (%w)", e)
}
