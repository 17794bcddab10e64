package collect

import (
	"context"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/pybox/pybox/agent/api"
)

// plant makes a tree out of text: a line for an entry, whose first letter says what it
// is, and whose name is the rest. What cannot be made is left out.
func plant(root *os.Root, text string) {
	lines := strings.Split(text, "\n")
	for _, line := range lines[:min(len(lines), 100)] {
		if len(line) < 2 {
			continue
		}
		switch name := line[1:]; line[0] {
		case 'd':
			_ = root.Mkdir(name, 0o755)
		case 'l':
			_ = root.Symlink("/etc/passwd", name)
		case 'r':
			_ = root.Symlink("..", name)
		case 's':
			if f, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600); err == nil {
				_ = f.Truncate(1 << 40)
				_ = f.Close()
			}
		default:
			_ = root.WriteFile(name, []byte{line[0]}, 0o644)
		}
	}
}

// Whatever the tree, what comes back is in it, has a name that may come back and fits
// the bounds, and everything is accounted for once.
func FuzzLook(f *testing.F) {
	f.Add("da\nxa/b\nda/c\nla/d\nsa/e\nrf", uint8(3), uint8(2), true)
	f.Add("xa\n\xff\nx\xff\x01\nd.pybox\nx.pybox/s", uint8(200), uint8(200), true)
	deep, line := "", strings.Builder{}
	for range 20 {
		deep += "d/"
		line.WriteString("d" + deep[:len(deep)-1] + "\nx" + deep + "f\n")
	}
	f.Add(line.String(), uint8(200), uint8(200), true)
	f.Add("x1\nx2\nx3", uint8(1), uint8(0), false)
	f.Fuzz(func(t *testing.T, text string, files, bytes uint8, collect bool) {
		dir := t.TempDir()
		root, err := os.OpenRoot(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		plant(root, text)
		if err := syscall.Mkfifo(dir+"/a fifo", 0o600); err != nil {
			t.Fatal(err)
		}
		seen := 0
		count(t, root, 1, &seen)
		b := Bounds{Files: int64(files), Bytes: int64(bytes), Collect: collect}
		s, left := lookAt(t, dir, NewKnown(), b)
		told := len(left.GetFiles()) + len(left.GetOthers())
		for _, c := range left.GetUnlisted() {
			told += int(c.GetCount())
		}
		if told != seen || !left.GetComplete() {
			t.Errorf("%d entries are there, %d are told of: %v", seen, told, left)
		}
		for name := range s.data {
			info, err := root.Lstat(strings.TrimSuffix(name, "/"))
			if err != nil || !info.Mode().IsRegular() && !info.IsDir() || !collect {
				t.Errorf("%q came back: %v", name, err)
			}
		}
	})
}

// count counts the entries of a tree down to one level below the deepest names.
func count(t *testing.T, root *os.Root, depth int, n *int) {
	d, err := root.Open(".")
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	entries, err := d.ReadDir(-1)
	if err != nil {
		t.Fatal(err)
	}
	*n += len(entries)
	for _, e := range entries {
		if !e.IsDir() || depth > api.MaxNameDepth {
			continue
		}
		sub, err := root.OpenRoot(e.Name())
		if err != nil {
			t.Fatal(err)
		}
		count(t, sub, depth+1, n)
		_ = sub.Close()
	}
}

// A look that is cut short anywhere says so, and leaves nothing behind.
func FuzzLookCutShort(f *testing.F) {
	f.Add("da\nxa/b\nda/c\nla/d\nxe", uint8(2))
	f.Fuzz(func(t *testing.T, text string, after uint8) {
		dir := t.TempDir()
		root, err := os.OpenRoot(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		plant(root, text)
		seen := 0
		count(t, root, 1, &seen)
		ctx := &countdown{Context: t.Context(), left: int(after)}
		found, err := Look(ctx, dir, NewKnown(), wide)
		if err != nil {
			t.Fatal(err)
		}
		defer found.Close()
		if cut := int(after) < seen; cut != (found.Missing() != "") {
			t.Errorf("%d entries, %d looks: missing %q", seen, after, found.Missing())
		}
	})
}

// countdown is a context that ends after it was asked so many times.
type countdown struct {
	context.Context
	left int
}

func (c *countdown) Err() error {
	if c.left == 0 {
		return context.DeadlineExceeded
	}
	c.left--
	return nil
}
