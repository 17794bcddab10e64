package maker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pybox/pybox/guest/tree"
	"github.com/pybox/pybox/host/images"
)

// TestRecordIsBounded: a package's own record costs little, whatever it has in it.
func TestRecordIsBounded(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want int64
	}{
		"usual":         {"a.py,sha256=x,10\nb.py,,5\n", 15},
		"too large":     {"a.py,,10\n" + strings.Repeat("b,,1\n", mostRecord/5), 0},
		"an open quote": {"a.py,,10\n\"" + strings.Repeat("x", mostRecord-100), 10},
		"huge, open":    {`"` + strings.Repeat("x", 200<<20), 0},
	} {
		n := &tree.Node{Kind: tree.File, Data: []byte(c.text)}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		got := recorded(t.Context(), n)
		runtime.ReadMemStats(&after)
		if got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
		if n := after.TotalAlloc - before.TotalAlloc; n > 12*mostRecord {
			t.Errorf("%s: %d MiB were allocated", name, n>>20)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got := recorded(ctx, &tree.Node{Kind: tree.File, Data: []byte("a,,1\n")}); got != 0 {
		t.Errorf("after the end of its time: %d", got)
	}
}

// TestInterrupted: at each step of an import and an export the end of the context is
// theirs, and nothing is left.
func TestInterrupted(t *testing.T) {
	b := newBench(t)
	file := filepath.Join(t.TempDir(), "stdlib.tar")
	e, err := b.Export(t.Context(), "stdlib", file)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	b.Events.Line = func(string) { cancel() } // when the tree is about to be written
	if _, err := b.Import(ctx, Import{Name: "mine", Reference: e.Reference}); !errors.Is(err, context.Canceled) {
		t.Errorf("an import: %v", err)
	}
	b.leaves()
	st, err := b.Store.Stage(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	if err := write(ctx, st, baseTree(t)); !errors.Is(err, context.Canceled) {
		t.Errorf("the writing of an image: %v", err)
	}
	if _, err := load(ctx, file, "", 0); !errors.Is(err, context.Canceled) {
		t.Errorf("the reading of an image: %v", err)
	}
	out := t.TempDir()
	ctx, cancel = context.WithCancel(t.Context())
	defer cancel()
	if _, err := b.Export(ctx, "stdlib", filepath.Join(out, "x")); !errors.Is(err, context.Canceled) {
		t.Errorf("an export: %v", err)
	}
	if left := must(os.ReadDir(out)); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	f := must(os.Create(filepath.Join(out, "y")))
	defer f.Close()
	w := &interruptible{ctx: ctx, WriteSeeker: f}
	if _, err := w.Write([]byte("x")); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// TestAnnotations: a list of packages that is too long is left out, and nothing else.
func TestAnnotations(t *testing.T) {
	r := &images.Record{Kind: images.KindImported, SHA256: strings.Repeat("a", 64), Imported: &images.Imported{Source: "archive", ConfigDigest: "sha256:x"}}
	for n, want := range map[int]bool{10: true, mostPackages: false} {
		r.Packages = slices.Repeat([]images.Package{{Name: strings.Repeat("<", 200), Version: "1"}}, n)
		said, whole := annotations(r)
		var got struct {
			SHA256   string            `json:"sha256"`
			Imported *images.Imported  `json:"imported"`
			Packages []json.RawMessage `json:"packages"`
			LeftOut  int               `json:"packages_left_out"`
		}
		if err := json.Unmarshal([]byte(said[annotationProvenance]), &got); err != nil {
			t.Fatalf("%d packages: %v", n, err)
		}
		if whole != want || got.SHA256 != r.SHA256 || got.Imported == nil || len(got.Packages)+got.LeftOut != n || (got.LeftOut == 0) != want {
			t.Errorf("%d packages: %v, %d listed, %d left out, %+v", n, whole, len(got.Packages), got.LeftOut, got.Imported)
		}
	}
}

// TestExportSaysWhatIsLeftOut: to the person, too.
func TestExportSaysWhatIsLeftOut(t *testing.T) {
	b := newBench(t)
	dir, lock := wheels(t, beta)
	r, err := b.Build(t.Context(), Build{Name: "mine", Lock: lock, Base: "stdlib", FindLinks: []string{dir}, NoBytecode: true})
	if err != nil {
		t.Fatal(err)
	}
	st, err := b.Store.Stage(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	if err := os.WriteFile(st.Path(), must(os.ReadFile(b.Store.Path(r))), 0o600); err != nil {
		t.Fatal(err)
	}
	rec := *r
	rec.Name, rec.Packages = "large", nil
	for i := range mostPackages {
		p := r.Packages[0]
		p.Name = fmt.Sprintf("%s%d", strings.Repeat("n", 200), i)
		rec.Packages = append(rec.Packages, p)
	}
	_, c, err := b.begin("large", false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Store.Commit(t.Context(), st, rec, c); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"mine": false, "large": true} {
		b.lines = nil
		if _, err := b.Export(t.Context(), name, filepath.Join(t.TempDir(), "x.tar")); err != nil {
			t.Fatal(err)
		}
		if said := strings.Contains(strings.Join(b.lines, "\n"), "packages of the image are too many"); said != want {
			t.Errorf("%s: %q", name, b.lines)
		}
	}
}

// TestOutFile: a file has its name when it is whole, replaces nothing, and leaves
// nothing, whatever the file system can do.
func TestOutFile(t *testing.T) {
	for name, c := range map[string]struct {
		make    func(string) (*outFile, error)
		publish func(*outFile, string) error
	}{
		"the best here":      {newOutFile, (*outFile).publish},
		"without O_TMPFILE":  {newNamed, (*outFile).publish},
		"without hard links": {newNamed, (*outFile).take},
	} {
		t.Run(name, func(t *testing.T) {
			old := unix.Umask(0o027)
			defer unix.Umask(old)
			dir := t.TempDir()
			file := filepath.Join(dir, "x.tar")
			write := func(text string) error {
				o, err := c.make(dir)
				if err != nil {
					t.Fatal(err)
				}
				defer o.discard()
				if _, err := o.Write([]byte(text)); err != nil {
					t.Fatal(err)
				}
				if _, err := os.Lstat(file); text == "first" && !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("it has its name already: %v", err)
				}
				return c.publish(o, file)
			}
			if err := write("first"); err != nil {
				t.Fatal(err)
			}
			if err := write("second"); !errors.Is(err, fs.ErrExist) {
				t.Errorf("over another: %v", err)
			}
			if got := string(must(os.ReadFile(file))); got != "first" {
				t.Errorf("got %q", got)
			}
			if st := must(os.Stat(file)); st.Mode() != 0o640 {
				t.Errorf("mode %v against the umask", st.Mode())
			}
			if left := must(os.ReadDir(dir)); len(left) != 1 {
				t.Errorf("left: %v", left)
			}
		})
	}
}
