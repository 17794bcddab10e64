package inputs

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"time"
)

var wide = Bounds{Files: 1000, Bytes: 1 << 30}

// tree makes files, and folders where a name ends in "/", in a folder of its own,
// which becomes the present one.
func tree(t *testing.T, files map[string]string) {
	t.Helper()
	t.Chdir(t.TempDir())
	for name, text := range files {
		if err := os.MkdirAll(filepath.Dir(name+"x"), 0o755); err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(name, "/") {
			write(t, name, text)
		}
	}
}

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func find(t *testing.T, p Program, args ...string) (*Set, error) {
	t.Helper()
	s, err := Find(t.Context(), args, p, wide)
	if err == nil {
		t.Cleanup(func() { s.Close() })
	}
	return s, err
}

// lines shows a set: "name/", "name=content", and "*" before what is executable.
func lines(t *testing.T, s *Set) (all []string) {
	t.Helper()
	for n, i := range s.Items {
		l := i.Name + "/"
		if !i.Folder {
			r, err := s.Open(n)
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(iotest.OneByteReader(r))
			if err != nil || int64(len(b)) != i.Bytes {
				t.Errorf("%s: %d of %d bytes, %v", i.Name, len(b), i.Bytes, err)
			}
			r.Close()
			l = i.Name + "=" + string(b)
		}
		if i.Executable {
			l = "*" + l
		}
		all = append(all, l)
	}
	return all
}

func TestFind(t *testing.T) {
	tree(t, map[string]string{
		"a.csv": "1", "d/z": "z", "d/b/": "", "d/c/deep/x": "x", "d/a": "", "run.sh": "#!", "e=f": "ef", "e": "e", "prog/main.py": "p", "prog/lib.py": "l",
	})
	if err := os.Chmod("run.sh", 0o755); err != nil {
		t.Fatal(err)
	}
	for link, to := range map[string]string{"link": "a.csv", "linkdir": "d", "out": filepath.Join(t.TempDir(), "far")} {
		if err := os.Symlink(to, link); err != nil {
			t.Fatal(err)
		}
	}
	write(t, "out", "far away") // through the link
	program, err := os.Stat("prog/main.py")
	if err != nil {
		t.Fatal(err)
	}
	whole := []string{"d/", "d/a=", "d/b/", "d/c/", "d/c/deep/", "d/c/deep/x=x", "d/z=z"}
	as := func(name string) (l []string) {
		for _, s := range whole {
			l = append(l, name+strings.TrimPrefix(s, "d"))
		}
		return l
	}
	for _, c := range []struct {
		args string
		want []string
	}{
		{"a.csv", []string{"a.csv=1"}},
		{"a.csv=in/b.csv", []string{"in/b.csv=1"}},
		{"a.csv=./b.csv", []string{"b.csv=1"}},
		{"run.sh", []string{"*run.sh=#!"}},
		{"d", whole},
		{"d/", whole},
		{"d=x/y", as("x/y")},
		{"d=x/", as("x")},
		{"d=.", []string{"a=", "b/", "c/", "c/deep/", "c/deep/x=x", "z=z"}},
		{"d=./ a.csv", []string{"a=", "b/", "c/", "c/deep/", "c/deep/x=x", "z=z", "a.csv=1"}},
		{"link", []string{"link=1"}},
		{"linkdir", as("linkdir")},
		{"out", []string{"out=far away"}},
		{"e=f", []string{"e=f=ef"}},
		{"e=f=g", []string{"g=ef"}},
		{"e=g", []string{"g=e"}},
		{"./e=g=h", []string{"g=h=e"}},
		{"a.csv=x/1 d/z=x/2", []string{"x/1=1", "x/2=z"}},
		{"a.csv=x/1 d/b=x", []string{"x/1=1", "x/"}},
		{"d/b=x a.csv=x/1", []string{"x/", "x/1=1"}},
		{"prog=.", []string{"lib.py=l"}},
		{"prog", []string{"prog/", "prog/lib.py=l", "prog/main.py=p"}},
	} {
		s, err := find(t, Program{Name: "main.py", Info: program}, strings.Fields(c.args)...)
		if err != nil {
			t.Errorf("%s: %v", c.args, err)
			continue
		}
		if got := lines(t, s); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", c.args, got, c.want)
		}
	}
	// A folder without a name of its own.
	t.Chdir("d/c")
	for arg, want := range map[string]string{".": "c", "..": "d", "deep/..": "c"} {
		if s, err := find(t, Program{}, arg); err != nil || s.Items[0].Name != want {
			t.Errorf("%q: %v, want %q", arg, err, want)
		}
	}
}

func TestRefusals(t *testing.T) {
	tree(t, map[string]string{"a": "1", "A2": "2", "d/x": "x", "d2/x": "y", "d3/X": "y", "dl/x": "", "df/x": "", "main.py": "p", "prog/main.py": "other", "twin/a": "", "twin/b": "", "ctl/x": "", "utf/x": ""})
	long := strings.Repeat("n", 250)
	deep := strings.Repeat("f/", 16)
	for _, err := range []error{
		os.Symlink("../a", "dl/link"), os.Symlink("nowhere", "dangling"), os.Symlink("loop", "loop"),
		syscall.Mkfifo("fifo", 0o600), syscall.Mkfifo("df/fifo", 0o600),
		os.WriteFile("ctl/a\nb\x1b[2J", nil, 0o600), os.WriteFile("utf/\xff", nil, 0o600),
		os.MkdirAll(deep+"x", 0o755), os.Mkdir("locked", 0), os.WriteFile("secret", nil, 0),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	l, err := net.Listen("unix", "socket")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	info, err := os.Stat("main.py")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{""}, "want a file or a folder"},
		{[]string{"none"}, `"none": no such file or folder`},
		{[]string{"none=x"}, `"none": no such file or folder, and neither is "none=x"`},
		{[]string{"=x"}, `"=x": no such file or folder`},
		{[]string{"a="}, "there is no NAME"},
		{[]string{"a/x"}, `"a/x": no such file or folder`},
		{[]string{"a=."}, `"a" is a file`},
		{[]string{"a=.."}, `file name ".."`},
		{[]string{"d=../x"}, "want a relative path"},
		{[]string{"a=/etc/passwd"}, "want a relative path"},
		{[]string{"a=x//y"}, "want a relative path"},
		{[]string{"a=.pybox/x"}, "kept for PyBox itself"},
		{[]string{"a=" + long + "123456"}, "Linux allows 255"},
		{[]string{"a=x\x1b[2J"}, "control character"},
		{[]string{"/"}, "has no name"},
		{[]string{"fifo"}, "is a pipe"},
		{[]string{"df"}, `"df/fifo" is a pipe`},
		{[]string{"socket"}, "is a socket"},
		{[]string{"/dev/null"}, "is a device"},
		{[]string{"dangling"}, "no such file"},
		{[]string{"loop"}, "too many levels of symbolic links"},
		{[]string{"dl"}, `"dl/link" is a symbolic link`},
		{[]string{"ctl"}, `"ctl/a\nb\x1b[2J"`},
		{[]string{"utf"}, "it is not UTF-8"},
		{[]string{"f"}, "folders deep"},
		{[]string{"a", "d/x=a"}, `"a" and "d/x" would both be "a"`},
		{[]string{"d", "d2=d"}, `"d" and "d2" would both be "d"`},
		{[]string{"d=.", "d2=."}, `"d/x" and "d2/x" would both be "x"`},
		{[]string{"d=.", "d3=."}, `"d3/X" would be "X" beside "x"`},
		{[]string{"d", "a=D/y"}, `beside "d"`},
		{[]string{"a", "d=a"}, "both"},
		{[]string{"a=n", "d=n/x"}, `"a" would be a file, "n", and the folder of "d"`},
		{[]string{"d=n/x", "a=n"}, "both"},
		{[]string{"main.py"}, "so is the program called"},
		{[]string{"a=main.py"}, "so is the program called"},
		{[]string{"d=main.py"}, "so is the program called"},
		{[]string{"a=main.py/x"}, "so is the program called"},
		{[]string{"a=MAIN.py"}, `beside "main.py"`},
		{[]string{"prog=."}, `"prog/main.py" would be "main.py", and so is the program called`},
	} {
		if s, err := find(t, Program{Name: "main.py", Info: info}, c.args...); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%q: %v, %v; want %q", c.args, s, err, c.says)
		} else if strings.ContainsAny(err.Error(), "\n\x1b") {
			t.Errorf("%q: %q is not one clean line", c.args, err)
		}
	}
	if os.Geteuid() == 0 {
		t.Log("NOT TESTED as root: files that cannot be read")
		return
	}
	for _, arg := range []string{"locked", "secret", "locked/x"} {
		if _, err := find(t, Program{}, arg); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%q: permission denied", arg)) {
			t.Errorf("%s: %v", arg, err)
		}
	}
}

func TestBounds(t *testing.T) {
	tree(t, map[string]string{"d/a": "12", "d/b": "345", "d/c/": "", "x": "6"})
	for n := range 600 {
		if n == 0 {
			if err := os.Mkdir("many", 0o755); err != nil {
				t.Fatal(err)
			}
		}
		write(t, fmt.Sprintf("many/%d", n), "")
	}
	for _, c := range []struct {
		files int
		bytes int64
		args  string
		want  error
	}{
		{4, 5, "d", nil},
		{3, 5, "d", ErrTooMany},
		{4, 4, "d", ErrTooLarge},
		{5, 6, "d x", nil},
		{4, 6, "d x", ErrTooMany},
		{5, 5, "d x", ErrTooLarge},
		{601, 0, "many", nil},
		{600, 0, "many", ErrTooMany},
		{100, 0, "many", ErrTooMany},
		{0, 0, "", nil},
	} {
		s, err := Find(t.Context(), strings.Fields(c.args), Program{}, Bounds{c.files, c.bytes})
		if !errors.Is(err, c.want) {
			t.Errorf("%d, %d, %s: %v, want %v", c.files, c.bytes, c.args, err, c.want)
		}
		if err == nil {
			s.Close()
		}
	}
	// What is sparse costs nothing to refuse.
	write(t, "sparse", "")
	if err := os.Truncate("sparse", 8<<40); err != nil {
		t.Skipf("NOT TESTED: no sparse file of 8 TiB here: %v", err)
	}
	if _, err := find(t, Program{}, "sparse", "sparse=2"); !errors.Is(err, ErrTooLarge) {
		t.Errorf("8 TiB: %v", err)
	}
}

// TestChanged: what is not as it was found is an error, never something else.
func TestChanged(t *testing.T) {
	content := strings.Repeat("x", 100)
	for name, c := range map[string]struct {
		before func()       // the file is opened
		during func() error // half of it was read
		says   string
	}{
		"vanished":     {before: func() { os.Remove("f") }, says: "no such file"},
		"replaced":     {before: func() { write(t, "g", content); os.Rename("g", "f") }, says: "another file has its name"},
		"grown before": {before: func() { write(t, "f", content+"y") }, says: "it was written to"},
		"same size":    {before: func() { write(t, "f", strings.Repeat("y", 100)); later("f") }, says: "it was written to"},
		"a FIFO":       {before: func() { os.Remove("f"); syscall.Mkfifo("f", 0o600) }, says: ""},
		"a link":       {before: func() { os.Rename("f", "g"); os.Symlink("/etc/passwd", "f") }, says: "escapes"},
		"shrunk":       {during: func() error { return os.Truncate("f", 60) }, says: "it is shorter"},
		"grown":        {during: func() error { write(t, "f", content+"y"); return nil }, says: "more bytes"},
		"rewritten":    {during: func() error { write(t, "f", content); return later("f") }, says: "it was written to"},
	} {
		t.Run(name, func(t *testing.T) {
			tree(t, map[string]string{"f": content})
			s, err := find(t, Program{}, "f")
			if err != nil {
				t.Fatal(err)
			}
			if c.before != nil {
				c.before()
			}
			r, err := s.Open(0)
			if err == nil && c.during != nil {
				if _, err := io.ReadFull(r, make([]byte, 50)); err != nil {
					t.Fatal(err)
				}
				if err := c.during(); err != nil {
					t.Fatal(err)
				}
				_, err = io.ReadAll(r)
				if _, again := r.Read(make([]byte, 1)); again != err {
					t.Errorf("then %v, now %v", err, again)
				}
			}
			if !errors.Is(err, ErrChanged) || !strings.Contains(err.Error(), c.says) || !strings.HasPrefix(err.Error(), `"f": `) {
				t.Errorf("%v, want one that says %q", err, c.says)
			}
			if errors.Is(err, os.ErrNotExist) || errors.Is(err, io.EOF) {
				t.Errorf("%v may be taken for the daemon's", err)
			}
			if r != nil {
				r.Close()
			}
		})
	}
}

// later gives a file another time, whatever the file system's clock does.
func later(name string) error {
	at := time.Now().Add(time.Second)
	return os.Chtimes(name, at, at)
}

// TestProcFile: a file that does not say how large it is.
func TestProcFile(t *testing.T) {
	if _, err := os.Stat("/proc/self/status"); err != nil {
		t.Skip("NOT TESTED: no /proc")
	}
	s, err := find(t, Program{}, "/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.Open(0)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := io.ReadAll(r); !errors.Is(err, ErrChanged) {
		t.Errorf("%v", err)
	}
}

func FuzzSplit(f *testing.F) {
	for _, s := range []string{"", "=", "a=b", "a=b=c", "./a=.", "a=./", "a=///", "\x00", "a\x00=b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, arg string) {
		path, name, err := Split(arg)
		if err != nil {
			return
		}
		if path == "" || !strings.HasPrefix(arg, path) || len(path) < len(arg) && (arg[len(path)] != '=' || name == "") {
			t.Errorf("%q: %q, %q", arg, path, name)
		}
	})
}

// TestNoPath: a pipe without a path of its own, as a shell makes one for "<(command)".
func TestNoPath(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	path := fmt.Sprintf("/dev/fd/%d", r.Fd())
	if _, err := find(t, Program{}, path+"=x"); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%q is a pipe", path)) {
		t.Errorf("%v", err)
	}
}

// TestStages: what another command is delivering is not taken along.
func TestStages(t *testing.T) {
	tree(t, map[string]string{"d/.pybox-output-0123456789abcdef/files/half.csv": "half", "d/.pybox-outputs": "mine", "d/x": ""})
	s, err := find(t, Program{}, "d")
	if err != nil {
		t.Fatal(err)
	}
	if got := lines(t, s); !slices.Equal(got, []string{"d/", "d/.pybox-outputs=mine", "d/x="}) {
		t.Errorf("%q", got)
	}
}
