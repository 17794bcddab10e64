package outputs

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pybox/pybox/host/receipt"
	"golang.org/x/sys/unix"
)

// left is what a program leaves in most tests.
var left = map[string]string{"a.csv": "1,2\n", "b/": "", "b/run.sh*": "#!", "b/c/": "", "b/c/empty": "", "d/": "", "z": strings.Repeat("z", 700<<10)}

// delivery is one of files: names that end in "/" are folders, in "*" executable.
func delivery(files map[string]string) Delivery {
	d := Delivery{Run: "5319e024"}
	content := map[string]string{}
	for name, text := range files {
		f := receipt.File{Name: strings.TrimRight(name, "/*"), Returned: true, Folder: strings.HasSuffix(name, "/"), Executable: strings.HasSuffix(name, "*")}
		if !f.Folder {
			f.Bytes, f.SHA256, f.File = int64(len(text)), digest(text), "id-"+f.Name
			content[f.File] = text
		}
		d.Files = append(d.Files, f)
	}
	d.Open = func(_ context.Context, f receipt.File) (io.ReadCloser, error) {
		text, ok := content[f.File]
		if !ok {
			return nil, fmt.Errorf("no file %q", f.File)
		}
		return io.NopCloser(strings.NewReader(text)), nil
	}
	return d
}

func digest(text string) *string {
	sum := sha256.Sum256([]byte(text))
	s := hex.EncodeToString(sum[:])
	return &s
}

// seen is what there is in a folder, as in left: everything, links as "name@".
func seen(t testing.TB, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
		if err != nil || p == dir {
			return err
		}
		name, _ := filepath.Rel(dir, p)
		info, err := e.Info()
		if err != nil {
			return err
		}
		if m := info.Mode() &^ fs.ModePerm; m != 0 && m != fs.ModeDir && m != fs.ModeSymlink {
			t.Errorf("%s has mode %v", name, info.Mode())
		}
		switch {
		case info.IsDir():
			all[name+"/"] = ""
			return nil
		case info.Mode()&fs.ModeSymlink != 0:
			all[name+"@"] = ""
			return nil
		case info.Mode()&0o100 != 0:
			name += "*"
		}
		b, err := os.ReadFile(p)
		all[name] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func expect(t testing.TB, dir string, want map[string]string) {
	t.Helper()
	if got := seen(t, dir); !maps.Equal(got, want) {
		t.Errorf("in %s: %q, want %q", dir, names(got), names(want))
	}
}

func names(m map[string]string) []string { return slices.Sorted(maps.Keys(m)) }

// below is what there is in a folder that has others in it.
func below(folder string, files map[string]string) map[string]string {
	all := map[string]string{folder + "/": ""}
	for name, text := range files {
		all[folder+"/"+name] = text
	}
	return all
}

func union(ms ...map[string]string) map[string]string {
	all := map[string]string{}
	for _, m := range ms {
		maps.Copy(all, m)
	}
	return all
}

// deliver opens a folder, puts what is in d there, and closes it.
func deliver(t testing.TB, m means, path string, d Delivery) (*Place, error) {
	t.Helper()
	p, err := m.openFolder(path)
	if err != nil {
		t.Fatal(err)
	}
	err = p.Deliver(t.Context(), d)
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	return p, err
}

func usual() means { return means{mark: unmarked{}} }

func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestDeliver(t *testing.T) {
	for _, plain := range []bool{false, true} {
		m := usual()
		m.plain = plain
		t.Chdir(t.TempDir())
		for _, path := range []string{"new", "./new2/", "new2/../new3"} {
			if _, err := deliver(t, m, path, delivery(left)); err != nil {
				t.Error(err)
			}
		}
		expect(t, ".", union(below("new", left), below("new2", left), below("new3", left)))

		t.Chdir(t.TempDir())
		write(t, "mine/own", "own")
		write(t, "mine/.pybox-output-0123", "own")
		mine := map[string]string{"own": "own", ".pybox-output-0123": "own"}
		if err := os.Symlink("mine", "link"); err != nil {
			t.Fatal(err)
		}
		if _, err := deliver(t, m, "link", delivery(left)); err != nil {
			t.Error(err)
		}
		expect(t, ".", union(below("mine", union(mine, left)), map[string]string{"link@": ""}))

		t.Chdir(t.TempDir())
		if p, err := deliver(t, m, ".", delivery(left)); err != nil || p.String() != "." {
			t.Error(p, err)
		}
		expect(t, ".", left)
		// Nothing came.
		if p, err := deliver(t, m, "none", delivery(nil)); err != nil || p.String() != "none" {
			t.Error(p, err)
		}
		if _, err := deliver(t, m, "b", delivery(nil)); err != nil {
			t.Error(err)
		}
		expect(t, ".", union(left, map[string]string{"none/": ""}))
	}
}

// TestModes: less the umask, and nothing else.
func TestModes(t *testing.T) {
	inMemory(t)
	t.Chdir(t.TempDir())
	for mask, want := range map[int][3]fs.FileMode{0: {0o644, 0o755, 0o755}, 0o022: {0o644, 0o755, 0o755}, 0o077: {0o600, 0o700, 0o700}, 0o002: {0o644, 0o755, 0o755}} {
		dir := fmt.Sprintf("%o", mask)
		old := unix.Umask(mask)
		_, err := deliver(t, usual(), dir, delivery(left))
		unix.Umask(old)
		if err != nil {
			t.Fatal(err)
		}
		for n, name := range []string{"a.csv", "b/run.sh", "b"} {
			if st, err := os.Stat(filepath.Join(dir, name)); err != nil || st.Mode().Perm() != want[n] {
				t.Errorf("umask %o: %s has %v, want %v", mask, name, st.Mode(), want[n])
			}
		}
		if st, err := os.Stat(dir); err != nil || st.Mode().Perm() != want[2] {
			t.Errorf("umask %o: %v", mask, st.Mode())
		}
	}
}

// TestParentsNotListed: a file whose folders are in no list.
func TestParentsNotListed(t *testing.T) {
	t.Chdir(t.TempDir())
	if _, err := deliver(t, usual(), "out", delivery(map[string]string{"a/b/c": "x", "a-b": "y"})); err != nil {
		t.Error(err)
	}
	expect(t, "out", map[string]string{"a/": "", "a/b/": "", "a/b/c": "x", "a-b": "y"})
}

// TestNothingIsReplaced: what is in the way stays, and what came is kept beside it.
func TestNothingIsReplaced(t *testing.T) {
	inMemory(t)
	for _, plain := range []bool{false, true} {
		for name, make := range map[string]func(t *testing.T){
			"a file":       func(t *testing.T) { write(t, "out/a.csv", "mine") },
			"a folder":     func(t *testing.T) { write(t, "out/b/mine", "mine") },
			"the last one": func(t *testing.T) { write(t, "out/z", "mine") },
			"a folder for a file": func(t *testing.T) {
				if err := os.MkdirAll("out/a.csv", 0o755); err != nil {
					t.Fatal(err)
				}
			},
			"a link": func(t *testing.T) {
				write(t, "elsewhere/x", "mine")
				if err := errors.Join(os.Mkdir("out", 0o755), os.Symlink("../elsewhere", "out/b")); err != nil {
					t.Fatal(err)
				}
			},
			"a link to nowhere": func(t *testing.T) {
				if err := errors.Join(os.Mkdir("out", 0o755), os.Symlink("../nowhere", "out/a.csv")); err != nil {
					t.Fatal(err)
				}
			},
		} {
			t.Run(name, func(t *testing.T) {
				t.Chdir(t.TempDir())
				make(t)
				before := seen(t, ".")
				m := usual()
				m.plain = plain
				for _, kept := range []string{"out/pybox-results-5319e024", "out/pybox-results-5319e024-2"} {
					_, err := deliver(t, m, "out", delivery(left))
					var k *KeptError
					if !errors.As(err, &k) || k.Path != kept || !errors.Is(err, fs.ErrExist) || !strings.Contains(err.Error(), "is there already") {
						t.Errorf("%v", err)
					}
					before = union(before, below(kept, left))
					expect(t, ".", before)
				}
			})
		}
	}
}

// TestRaces: what comes into the way after it was looked at.
func TestRaces(t *testing.T) {
	inMemory(t)
	for _, plain := range []bool{false, true} {
		for _, at := range []string{"a.csv", "b", "d", "z"} {
			t.Chdir(t.TempDir())
			write(t, "out/own", "own")
			m := usual()
			m.plain = plain
			done := false
			m.before = func(what string) error {
				if what == "move "+at && !done {
					done = true
					write(t, "out/"+at, "mine")
				}
				return nil
			}
			_, err := deliver(t, m, "out", delivery(left))
			var k *KeptError
			if !errors.As(err, &k) || k.Path != "out/pybox-results-5319e024" {
				t.Errorf("%s: %v", at, err)
			}
			expect(t, "out", union(map[string]string{"own": "own", at: "mine"}, below("pybox-results-5319e024", left)))
		}
		// The folder itself.
		t.Chdir(t.TempDir())
		m := usual()
		m.plain = plain
		p, err := m.openFolder("out")
		if err != nil {
			t.Fatal(err)
		}
		write(t, "out/mine", "mine")
		var k *KeptError
		if err := p.Deliver(t.Context(), delivery(left)); !errors.As(err, &k) || k.Path != "pybox-results-5319e024/out" {
			t.Errorf("%v", err)
		}
		p.Close()
		expect(t, ".", union(below("out", map[string]string{"mine": "mine"}), below("pybox-results-5319e024", below("out", left))))
	}
}

func TestPlaces(t *testing.T) {
	t.Chdir(t.TempDir())
	write(t, "file", "")
	write(t, "dir/x", "")
	for link, to := range map[string]string{"dangling": "nowhere", "tofile": "file", "loop": "loop"} {
		if err := os.Symlink(to, link); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo("fifo", 0o600); err != nil {
		t.Fatal(err)
	}
	before := seen(t, "dir")
	for path, says := range map[string]string{
		"file": `"file" is a file, want a folder`, "tofile": "is a file, want a folder", "fifo": "is a file, want a folder", "file/": "not a directory",
		"file/x": "not a directory", "none/x": `there is no folder "none": make that first`, "dangling": "a link that leads nowhere",
		"loop": "too many levels", "": "its path is empty", "a\x1bb/c": `"a\x1bb"`, strings.Repeat("n", 256): "name too long",
	} {
		if p, err := OpenFolder(path); err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "\x1b") {
			t.Errorf("%q: %v, %v", path, p, err)
		}
	}
	for path, says := range map[string]string{
		"file": `"file" is there already`, "dir": `"dir" is a folder`, "none/x.tar": `there is no folder "none"`, "dangling": "a link that leads nowhere", "file/x.tar": "not a directory",
	} {
		if p, err := OpenArchive(path); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, %v", path, p, err)
		}
	}
	expect(t, "dir", before)
	for _, path := range []string{"/proc", "/proc/new"} {
		if _, err := os.Stat("/proc/self"); err != nil {
			t.Log("NOT TESTED: no /proc")
		} else if p, err := OpenFolder(path); err == nil || !strings.Contains(err.Error(), `nothing can be made in "/proc"`) {
			t.Errorf("%s: %v, %v", path, p, err)
		}
	}
	if os.Geteuid() == 0 {
		t.Log("NOT TESTED as root: folders that cannot be written")
		return
	}
	if err := os.Mkdir("locked", 0o555); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"locked", "locked/new"} {
		if p, err := OpenFolder(path); err == nil || !strings.Contains(err.Error(), `nothing can be made in "locked": permission denied`) {
			t.Errorf("%s: %v, %v", path, p, err)
		}
	}
}

// TestContent: what is not what the receipt says does not get there.
func TestContent(t *testing.T) {
	inMemory(t)
	broken := errors.New("the daemon is gone")
	for name, change := range map[string]func(d *Delivery){
		"other bytes": func(d *Delivery) { d.Files[0].SHA256 = digest("other") },
		"too few":     func(d *Delivery) { d.Files[0].Bytes++ },
		"too many":    func(d *Delivery) { d.Files[0].Bytes-- },
		"broken": func(d *Delivery) {
			open := d.Open
			d.Open = func(ctx context.Context, f receipt.File) (io.ReadCloser, error) {
				r, err := open(ctx, f)
				return io.NopCloser(io.MultiReader(io.LimitReader(r, 2), failing{broken})), err
			}
		},
		"refused": func(d *Delivery) {
			d.Open = func(context.Context, receipt.File) (io.ReadCloser, error) { return nil, broken }
		},
	} {
		for _, archive := range []bool{false, true} {
			t.Chdir(t.TempDir())
			d := delivery(map[string]string{"first": "content"})
			change(&d)
			open := OpenFolder
			if archive {
				open = OpenArchive
			}
			p, err := open("out")
			if err != nil {
				t.Fatal(err)
			}
			want := ErrContent
			if name == "broken" || name == "refused" {
				want = broken
			}
			if err := p.Deliver(t.Context(), d); !errors.Is(err, want) || !strings.HasPrefix(err.Error(), `"first": `) {
				t.Errorf("%s: %v", name, err)
			}
			p.Close()
			expect(t, ".", nil)
		}
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

func TestLists(t *testing.T) {
	sum := digest("")
	long := strings.Repeat("n", 256)
	file := func(name string) receipt.File { return receipt.File{Name: name, Returned: true, SHA256: sum} }
	for name, files := range map[string][]receipt.File{
		"absolute":      {file("/etc/passwd")},
		"up":            {file("../x")},
		"up within":     {file("a/../../x")},
		"dot":           {file(".")},
		"empty":         {file("")},
		"empty part":    {file("a//b")},
		"NUL":           {file("a\x00b")},
		"line":          {file("a\nb")},
		"escape":        {file("a\x1b[31mb")},
		"not UTF-8":     {file("\xff")},
		"long":          {file(long)},
		"twice":         {file("a"), file("a")},
		"twins":         {file("a"), file("A")},
		"normalization": {file("caf\u00e9"), file("cafe\u0301")},
		"twin folder":   {file("d/x"), file("D/y")},
		"below a file":  {file("a"), file("a/b")},
		"far below":     {file("a"), file("a-b"), file("a/b/c")},
		"no digest":     {{Name: "a", Returned: true, File: "x"}},
		"no id":         {{Name: "a", Returned: true, SHA256: sum, Bytes: 1}},
		"negative":      {{Name: "a", Returned: true, SHA256: sum, Bytes: -1, File: "x"}},
		"not returned":  {{Name: "a", SHA256: sum}},
		"a stage":       {file(".pybox-output-0123456789abcdef/stage.json")},
		"a stage below": {file("a/.PyBox-Output-x")},
		"the agent's":   {file(".pybox/x")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			write(t, "own", "")
			if _, err := deliver(t, usual(), ".", Delivery{Run: "x", Files: files}); !errors.Is(err, ErrList) {
				t.Errorf("%v", err)
			} else if strings.ContainsAny(err.Error(), "\n\x1b\x00") {
				t.Errorf("%q", err)
			}
			expect(t, ".", map[string]string{"own": ""})
		})
	}
}

func TestArchive(t *testing.T) {
	t.Chdir(t.TempDir())
	var first []byte
	for _, path := range []string{"out.tar", "second.tar"} {
		p, err := OpenArchive(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Deliver(t.Context(), delivery(union(left, map[string]string{"ünïcode " + strings.Repeat("雪", 60): "x"}))); err != nil || p.String() != path {
			t.Fatal(p, err)
		}
		p.Close()
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if first != nil && !bytes.Equal(b, first) {
			t.Error("the same files give other bytes")
		}
		first = b
	}
	var all []string
	r := tar.NewReader(bytes.NewReader(first))
	for {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Uid != 0 || h.Gid != 0 || h.Uname != "" || h.ModTime.Unix() != 0 {
			t.Errorf("%+v", h)
		}
		b, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, fmt.Sprintf("%o %s %d", h.Mode, h.Name, len(b)))
	}
	want := []string{"644 a.csv 4", "755 b/ 0", "755 b/c/ 0", "644 b/c/empty 0", "755 b/run.sh 2", "755 d/ 0", "644 z 716800", "644 ünïcode " + strings.Repeat("雪", 60) + " 1"}
	if !slices.Equal(all, want) {
		t.Errorf("%q, want %q", all, want)
	}
	// It came meanwhile.
	p, err := OpenArchive("third.tar")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	write(t, "third.tar", "mine")
	var k *KeptError
	if err := p.Deliver(t.Context(), delivery(left)); !errors.As(err, &k) || k.Path != "pybox-results-5319e024/third.tar" {
		t.Errorf("%v", err)
	}
	if b, err := os.ReadFile("third.tar"); err != nil || string(b) != "mine" {
		t.Errorf("%q, %v", b, err)
	}
	if st, err := os.Stat(k.Path); err != nil || st.Size() < 700<<10 {
		t.Errorf("%v, %v", st, err)
	}
}

// TestMark: every file has its mark before anything of it is where it belongs.
func TestMark(t *testing.T) {
	t.Chdir(t.TempDir())
	write(t, "probe", "")
	if err := unix.Setxattr("probe", "user.pybox", []byte("x"), 0); err != nil {
		t.Skipf("NOT TESTED: this file system has no extended attributes for users: %v", err)
	}
	if err := os.Remove("probe"); err != nil {
		t.Fatal(err)
	}
	q := quarantined(time.Unix(0x69ec4180, 0))
	if q.name != "com.apple.quarantine" || q.value != "0081;69ec4180;PyBox;" {
		t.Errorf("%+v", q)
	}
	q.name = "user." + q.name // what Linux lets anybody set
	m := means{mark: q}
	if _, err := deliver(t, m, "out", delivery(left)); err != nil {
		t.Fatal(err)
	}
	p, err := m.openArchive("out.tar")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := p.Deliver(t.Context(), delivery(left)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"out/a.csv", "out/b/run.sh", "out/b/c/empty", "out/z", "out.tar"} {
		b := make([]byte, 100)
		n, err := unix.Getxattr(name, q.name, b)
		if err != nil || string(b[:n]) != q.value {
			t.Errorf("%s: %q, %v", name, b[:max(n, 0)], err)
		}
	}
	// Where nothing can be marked nothing is begun.
	m.mark = attribute{"no.such.namespace", ""}
	for _, open := range []func(string) (*Place, error){m.openFolder, m.openArchive} {
		if p, err := open("unmarked"); err == nil || !strings.Contains(err.Error(), `no file can be made in ".": setting no.such.namespace`) {
			t.Errorf("%v, %v", p, err)
		}
	}
	if left, err := filepath.Glob(".pybox*"); err != nil || len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

// TestUnfit: a file system that cannot do what is to be done after the run is refused
// before it, and nothing is left there.
func TestUnfit(t *testing.T) {
	inMemory(t)
	foreign := usual()
	foreign.foreign = true
	noLinks := usual()
	noLinks.plain = true
	noLinks.before = func(what string) error {
		if strings.HasPrefix(what, "link ") {
			return syscall.EPERM
		}
		return nil
	}
	for _, c := range []struct {
		open func(string) (*Place, error)
		path string
		says string // empty: it will do
	}{
		{foreign.openFolder, "mine", `nothing can be made in "mine": what is made there belongs to another user`},
		{foreign.openFolder, "new", `nothing can be made in "."`},
		{foreign.openArchive, "new.tar", `nothing can be made in "."`},
		{noLinks.openFolder, "mine", `nothing can be moved in "mine" without a danger`},
		{noLinks.openArchive, "new.tar", `nothing can be moved in "." without a danger`},
		{noLinks.openFolder, "new", ""},
	} {
		t.Chdir(t.TempDir())
		write(t, "mine/own", "own")
		p, err := c.open(c.path)
		if c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: %v, want %q", c.path, err, c.says)
		}
		expect(t, ".", below("mine", map[string]string{"own": "own"}))
		if c.says != "" {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Deliver(t.Context(), delivery(left)); err != nil {
			t.Error(err)
		}
		p.Close()
		expect(t, c.path, left)
	}
}

// TestPathsAsWritten: ".." behind a link is what the system takes it for.
func TestPathsAsWritten(t *testing.T) {
	t.Chdir(t.TempDir())
	write(t, "a/b/x", "x")
	if err := os.Symlink("a/b", "link"); err != nil {
		t.Fatal(err)
	}
	p, err := deliver(t, usual(), "link/../out", delivery(left))
	if err != nil || p.String() != "link/../out" {
		t.Error(p, err)
	}
	expect(t, "a/out", left)
	for path, says := range map[string]string{"nope/..": "has no name", "nope/../..": "has no name", "nope/.": "has no name", "nope/../out": `no folder "nope/.."`} {
		for _, open := range []func(string) (*Place, error){OpenFolder, OpenArchive} {
			if p, err := open(path); err == nil || !strings.Contains(err.Error(), says) {
				t.Errorf("%q: %v, %v", path, p, err)
			}
		}
	}
	// What a killed command left where a link leads to is found.
	t.Chdir(t.TempDir())
	write(t, "deep/mine/own", "own")
	stage := "deep/" + stagePrefix + "0123456789abcdef"
	if err := errors.Join(os.Mkdir(stage, 0o700), os.Symlink("deep/mine", "link")); err != nil {
		t.Fatal(err)
	}
	if p, err = OpenFolder("link"); err != nil {
		t.Fatal(err)
	}
	p.Close()
	if _, err := os.Lstat(stage); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

func TestMakesAndHas(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.Symlink(".", "link"); err != nil {
		t.Fatal(err)
	}
	d := delivery(left)
	p, err := OpenFolder("out")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for path, want := range map[string]bool{"out": true, "./out/": true, "link/out": true, "out2": false, "none/out": false} {
		if p.Makes(path) != want {
			t.Errorf("%s: %t", path, !want)
		}
	}
	if err := p.Deliver(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	write(t, "out/own", "own")
	for path, want := range map[string]bool{"out/z": true, "link/out/b/run.sh": true, "out/own": false, "z": false} {
		if p.Has(path, d.Files) != want {
			t.Errorf("%s: %t", path, !want)
		}
	}
	here, err := OpenFolder(".")
	if err != nil {
		t.Fatal(err)
	}
	defer here.Close()
	if here.Makes(".") || here.Makes("x") {
		t.Error("it makes nothing but what is in it")
	}
	tar, err := OpenArchive("out.tar")
	if err != nil {
		t.Fatal(err)
	}
	defer tar.Close()
	if err := tar.Deliver(t.Context(), d); err != nil || !tar.Has("out.tar", d.Files) || tar.Has("out/z", d.Files) {
		t.Error(err)
	}
}

// FuzzSorted: a list that is taken has names that stay where they belong, each once,
// and each folder before what is in it.
func FuzzSorted(f *testing.F) {
	for _, s := range []string{"a", "b\na/\na/b", "a\na/b", "../x", "/", "a/../b", "A\na", "\xff", ".pybox-output-0/x", "a/\na/", "\u212a\nk"} {
		f.Add(s)
	}
	sum := digest("")
	f.Fuzz(func(t *testing.T, list string) {
		var files []receipt.File
		for name := range strings.SplitSeq(list, "\n") {
			files = append(files, receipt.File{Name: strings.TrimSuffix(name, "/"), Folder: strings.HasSuffix(name, "/"), Returned: true, SHA256: sum})
		}
		ordered, err := sorted(files)
		if err != nil {
			if !errors.Is(err, ErrList) {
				t.Errorf("%v", err)
			}
			return
		}
		seen := map[string]bool{} // whether it is a folder
		for _, file := range ordered {
			if !filepath.IsLocal(file.Name) || file.Name == "." || filepath.Clean(file.Name) != file.Name || strings.HasPrefix(file.Name, stagePrefix) {
				t.Errorf("%q was taken", file.Name)
			}
			if _, twice := seen[file.Name]; twice {
				t.Errorf("%q was taken twice", file.Name)
			}
			for _, above := range foldersAbove(file.Name) {
				if folder, there := seen[above]; there && !folder {
					t.Errorf("%q lies in the file %q", file.Name, above)
				}
			}
			seen[file.Name] = file.Folder
		}
		if len(ordered) != len(files) {
			t.Errorf("%d of %d", len(ordered), len(files))
		}
	})
}
