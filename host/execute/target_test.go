package execute

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/receipt"
	"github.com/pybox/pybox/host/receipt/receipttest"
	"golang.org/x/sys/unix"
)

func readReceipt(t *testing.T, path string) *receipt.Receipt {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	r := new(receipt.Receipt)
	if err := json.Unmarshal(b, r); err != nil {
		t.Fatalf("%v in %s", err, b)
	}
	receipttest.Check(t, r)
	if r.Program.Stdout.Text != nil || r.Program.Stdout.Base64 != nil {
		t.Error("the output is in the receipt's file")
	}
	return r
}

func TestReceiptFile(t *testing.T) {
	dir := t.TempDir()
	fresh, old, link := filepath.Join(dir, "fresh.json"), filepath.Join(dir, "old.json"), filepath.Join(dir, "link.json")
	if err := os.WriteFile(old, []byte(strings.Repeat("old", 100_000)), 0o640); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("old.json", link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{fresh, old, link} {
		p := newPerson(t)
		p.host.run = tell(receipttest.Example(), "142\n")
		p.expect(Command{Receipt: path, JSON: true}, 0)
		readReceipt(t, path)
	}
	if st, err := os.Lstat(link); err != nil || st.Mode()&os.ModeSymlink == 0 {
		t.Error("the link was replaced, and not the file that it leads to")
	}
	for path, want := range map[string]os.FileMode{fresh: 0o600, old: 0o640} {
		if st, err := os.Stat(path); err != nil || st.Mode() != want {
			t.Errorf("%s: mode %v, want %v", path, st.Mode(), want)
		}
	}
	left, _ := filepath.Glob(filepath.Join(dir, ".*"))
	if len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// inherited is a pipe whose writing end has no close-on-exec, as one that a shell
// made.
func inherited(t *testing.T) (r *os.File, n int) {
	t.Helper()
	var fds [2]int
	if err := syscall.Pipe(fds[:]); err != nil {
		t.Fatal(err)
	}
	unix.CloseOnExec(fds[0])
	r = os.NewFile(uintptr(fds[0]), "pipe")
	t.Cleanup(func() { r.Close(); syscall.Close(fds[1]) })
	return r, fds[1]
}

func TestReceiptDescriptor(t *testing.T) {
	r, n := inherited(t)
	p := newPerson(t)
	p.expect(Command{Receipt: fmt.Sprintf("/dev/fd/%d", n)}, 0)
	if err := json.NewDecoder(r).Decode(new(receipt.Receipt)); err != nil {
		t.Error(err)
	}
	own, err := os.Create(filepath.Join(t.TempDir(), "own"))
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	newPerson(t).expect(Command{Receipt: fmt.Sprintf("/dev/fd/%d", own.Fd())}, 125, "is not open")
	newPerson(t).expect(Command{Receipt: fmt.Sprintf("/dev/fd/%d", r.Fd())}, 125, "is not open")
}

func TestReceiptFIFO(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	got := make(chan error, 1)
	go func() {
		r, err := os.Open(path)
		if err == nil {
			err = json.NewDecoder(r).Decode(new(receipt.Receipt))
			r.Close()
		}
		got <- err
	}()
	newPerson(t).expect(Command{Receipt: path}, 0)
	if err := <-got; err != nil {
		t.Error(err)
	}
}

// TestReceiptUnwritten: a place that was fine before the run and is not after it.
func TestReceiptUnwritten(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "gone")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "r.json")
	for notKept, say := range map[string]string{"": "it is kept: 'pybox receipt show 5319e024'", "no space": "it is not safe elsewhere either"} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		p := newPerson(t)
		reached := make(chan struct{})
		p.accepts(reached, func(_ context.Context, _ func(api.Event) error) (*api.Outcome, error) {
			return &api.Outcome{Receipt: ended(receipt.HowExited, receipt.ByProgram, exit(7)), NotKept: notKept}, os.RemoveAll(dir)
		})
		p.expect(Command{Receipt: path}, 125, "--receipt", path, "no such file", say, "exit code 7", "PyBox receipt")
	}
	if _, err := os.Stat("/dev/full"); err != nil {
		return // Linux has it
	}
	p := newPerson(t)
	p.expect(Command{Receipt: "/dev/full"}, 125, "/dev/full", "no space left", "exit code 0")
}
