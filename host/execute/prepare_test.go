package execute

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/pybox/pybox/host/api"
)

// file makes a file in a folder of the test.
func file(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestMistakes: each is a sentence that names what is wrong, and nobody is asked
// for anything.
func TestMistakes(t *testing.T) {
	dir := t.TempDir()
	good := file(t, "good.py", "print(1)")
	large := filepath.Join(dir, "large.py")
	if err := os.WriteFile(large, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(large, api.MaxProgramBytes+1); err != nil {
		t.Fatal(err)
	}
	dangling := filepath.Join(dir, "dangling")
	if err := os.Symlink("nowhere", dangling); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name    string
		command Command
		code    int
		says    []string
	}{
		{"missing", Command{File: filepath.Join(dir, "no.py")}, 125, []string{"no.py", "no such file"}},
		{"folder", Command{File: dir}, 125, []string{dir, "a folder"}},
		{"below a file", Command{File: good + "/x.py"}, 125, []string{"not a directory"}},
		{"too large", Command{File: large}, 125, []string{large, "too large", "at most 16 MiB"}},
		{"endless", Command{File: "/dev/zero"}, 125, []string{"/dev/zero", "too large"}},
		{"option as name", Command{File: file(t, "-c.py", "")}, 125, []string{`"-c.py"`, "'pybox exec - < FILE'"}},
		{"control character", Command{File: file(t, "a\x1b[31m.py", "")}, 125, []string{"control character", "rename it"}},
		{"not UTF-8", Command{File: file(t, "a\xff.py", "")}, 125, []string{"UTF-8", "rename it"}},
		{"ours", Command{File: file(t, ".pybox", "")}, 125, []string{"kept for PyBox"}},
		{"twice standard input", Command{Stdin: "-"}, 125, []string{"--stdin"}},
		{"stdin missing", Command{Stdin: filepath.Join(dir, "no")}, 125, []string{"--stdin", "no such file"}},
		{"stdin folder", Command{Stdin: dir}, 125, []string{"--stdin", dir, "a folder"}},
		{"timeout word", Command{Timeout: "soon"}, 125, []string{"--timeout", "not a duration"}},
		{"timeout zero", Command{Timeout: "0"}, 125, []string{"--timeout", "not possible"}},
		{"timeout negative", Command{Timeout: "-1"}, 125, []string{"--timeout"}},
		{"timeout NaN", Command{Timeout: "NaN"}, 125, []string{"--timeout"}},
		{"timeout absurd", Command{Timeout: "1e300"}, 125, []string{"--timeout"}},
		{"timeout of days", Command{Timeout: "48h"}, 126, []string{"--timeout", "above the ceiling"}},
		{"memory word", Command{Memory: "much"}, 125, []string{"--memory", "not a size"}},
		{"memory negative", Command{Memory: "-1"}, 125, []string{"--memory", "not a size"}},
		{"memory zero", Command{Memory: "0"}, 125, []string{"--memory", "at least 16 MiB"}},
		{"memory absurd", Command{Memory: "2TiB"}, 126, []string{"--memory", "above the ceiling"}},
		{"cpus NaN", Command{CPUs: "nan"}, 125, []string{"--cpus", "not a number"}},
		{"cpus infinite", Command{CPUs: "inf"}, 126, []string{"--cpus"}},
		{"cpus zero", Command{CPUs: "0"}, 125, []string{"--cpus", "at least 0.01"}},
		{"cpus negative", Command{CPUs: "-2"}, 125, []string{"--cpus"}},
		{"pids fraction", Command{PIDs: "1.5"}, 125, []string{"--pids", "not a whole number"}},
		{"pids negative", Command{PIDs: "-1"}, 125, []string{"--pids"}},
		{"pids absurd", Command{PIDs: "99999999999999999999"}, 126, []string{"--pids", "above the ceiling", "no config.toml can allow more"}},
		{"pids absurdly few", Command{PIDs: "-99999999999999999999"}, 125, []string{"--pids", "not possible"}},
		{"cpus absurd", Command{CPUs: "1e999"}, 126, []string{"--cpus", "above the ceiling"}},
		{"output absurd", Command{MaxOutput: "1GiB"}, 126, []string{"--max-output", "above the ceiling of 16 MiB"}},
		{"env not set", Command{Env: []string{"NOT_SET"}}, 125, []string{"--env", `"NOT_SET"`, "NAME=value"}},
		{"env without name", Command{Env: []string{"=x"}}, 125, []string{"--env", "want NAME=value"}},
		{"env name", Command{Env: []string{"1A=x"}}, 125, []string{"--env", "1A=x"}},
		{"env twice", Command{Env: []string{"A=1", "A=2"}}, 125, []string{"--env", "twice"}},
		{"args not UTF-8", Command{Args: []string{"a\xff"}}, 125, []string{`"--"`, "argument 1"}},
		{"args many", Command{Args: make([]string, 257)}, 125, []string{"257 arguments"}},
		{"receipt in no folder", Command{Receipt: filepath.Join(dir, "no", "r.json")}, 125, []string{"--receipt", "no such file"}},
		{"receipt folder", Command{Receipt: dir}, 125, []string{"--receipt", "a folder"}},
		{"receipt link", Command{Receipt: dangling}, 125, []string{"--receipt", "leads nowhere"}},
		{"receipt dash", Command{Receipt: "-"}, 125, []string{"--receipt", "--json"}},
		{"receipt closed descriptor", Command{Receipt: "/dev/fd/999"}, 125, []string{"--receipt", "descriptor 999 is not open"}},
		{"receipt over the program", Command{File: good, Receipt: good}, 125, []string{"--receipt", "would be overwritten"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPerson(t)
			p.expect(c.command, c.code, append(c.says, "pybox: ")...)
			if n := strings.Count(p.err.String(), "\n"); n != 1 {
				t.Errorf("%d lines: %q", n, p.err.String())
			}
			if strings.Contains(p.err.String(), "%!") || strings.ContainsRune(p.err.String(), 0x1b) {
				t.Errorf("stderr %q", p.err.String())
			}
			if len(p.host.runs) != 0 || p.host.starts != 0 || p.out.String() != "" {
				t.Error("something was done")
			}
		})
	}
}

func TestUnreadable(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root can read everything")
	}
	path := file(t, "x.py", "")
	if err := os.Chmod(path, 0); err != nil {
		t.Fatal(err)
	}
	newPerson(t).expect(Command{File: path}, 125, "permission denied")
}

func TestRequest(t *testing.T) {
	p := newPerson(t)
	p.expect(Command{
		File: file(t, "a b.py", "x\xff"), Stdin: "-", Args: []string{"--level", "9", ""}, Env: []string{"SET", "B=c=d"}, Image: "data",
		Timeout: "1.5", Memory: "64MiB", CPUs: "0.25", PIDs: "7", MaxOutput: "10", Watch: true,
	}, 0)
	r := p.host.runs[0]
	if r.Program.Name != "a b.py" || r.Program.Base64 == nil || *r.Program.Base64 != "eP8=" || r.Program.Text != nil {
		t.Errorf("program %+v", r.Program)
	}
	if r.Stdin == nil || r.Stdin.Text == nil || *r.Stdin.Text != "print(6*7)" || r.Stdin.Name != "" {
		t.Errorf("stdin %+v", r.Stdin)
	}
	l := r.Limits
	if *l.TimeoutMS != 1500 || *l.MemoryBytes != 64<<20 || *l.CPUs != 0.25 || *l.PIDs != 7 || *l.OutputBytes != 10 || l.Files != nil {
		t.Errorf("limits %+v", l)
	}
	if got := fmt.Sprintf("%q %q %s %v", r.Args, r.Env, r.Image, r.Watch); got != `["--level" "9" ""] ["SET=value of SET" "B=c=d"] data true` {
		t.Error(got)
	}
}

// TestProgramNames: what has no name of its own is main.py.
func TestProgramNames(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "63")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	go func() { // as a shell's <(…) would
		w, err := os.OpenFile(fifo, os.O_WRONLY, 0)
		if err == nil {
			_, err = w.WriteString("print(2)")
			w.Close()
		}
		if err != nil {
			t.Error(err)
		}
	}()
	open, err := os.Open(file(t, "named.py", "print(3)"))
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	for path, want := range map[string]string{
		fifo:                                 "main.py print(2)",
		fmt.Sprintf("/dev/fd/%d", open.Fd()): "main.py print(3)",
		file(t, "no extension", "print(4)"):  "no extension print(4)",
		file(t, "empty.py", ""):              "empty.py ",
		"/dev/null":                          "main.py ",
	} {
		p := newPerson(t)
		p.expect(Command{File: path}, 0)
		if r := p.host.runs[0].Program; r.Name+" "+*r.Text != want {
			t.Errorf("%s: %s %q, want %q", path, r.Name, *r.Text, want)
		}
	}
}

// stores takes a stored file like the daemon does.
func stores(got *[]byte) func(io.Reader) (api.StoredFile, error) {
	return func(r io.Reader) (api.StoredFile, error) {
		b, err := io.ReadAll(r)
		*got = b
		return api.StoredFile{File: "stored", Bytes: int64(len(b)), SHA256: fmt.Sprintf("%x", sha256.Sum256(b))}, err
	}
}

func TestLargeGoesApart(t *testing.T) {
	big := bytes.Repeat([]byte("0123456789abcdef"), 1<<16+1) // a little over api.MaxInline
	path := file(t, "big", string(big))
	open, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	if _, err := open.Seek(8, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	small := file(t, "small.py", "pass")
	for name, c := range map[string]struct {
		command Command
		stdin   io.Reader
		want    []byte
	}{
		"program":           {Command{File: path}, nil, big},
		"program by a pipe": {Command{}, bytes.NewReader(big), big},
		"stdin file":        {Command{File: small, Stdin: path}, nil, big},
		"stdin pipe":        {Command{File: small, Stdin: "-"}, bytes.NewReader(big), big},
		"stdin redirected":  {Command{File: small, Stdin: "-"}, open, big[8:]},
	} {
		p := newPerson(t)
		p.world.Stdin = c.stdin
		var got []byte
		p.host.store = stores(&got)
		p.expect(c.command, 0)
		r := p.host.runs[0]
		if !bytes.Equal(got, c.want) || r.Program.File+func() string {
			if r.Stdin != nil {
				return r.Stdin.File
			}
			return ""
		}() != "stored" {
			t.Errorf("%s: %d bytes were stored, want %d; request %+v", name, len(got), len(c.want), r)
		}
	}
}

// TestLargeIsSentAgain: a stop that comes between costs nothing.
func TestLargeIsSentAgain(t *testing.T) {
	big := strings.Repeat("y\n", 1<<20)
	p := newPerson(t)
	p.world.Stdin = strings.NewReader(big)
	var got []byte
	p.host.store = func(r io.Reader) (api.StoredFile, error) {
		if p.host.starts == 0 {
			_, _ = io.CopyN(io.Discard, r, 1000)
			return api.StoredFile{}, api.ErrHungUp
		}
		return stores(&got)(r)
	}
	p.expect(Command{File: file(t, "x.py", ""), Stdin: "-"}, 0)
	if string(got) != big {
		t.Errorf("%d bytes, want %d", len(got), len(big))
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

func TestStdinBounds(t *testing.T) {
	p := newPerson(t)
	p.world.Stdin = endless{}
	p.expect(Command{File: file(t, "x.py", ""), Stdin: "-"}, 125, "--stdin: standard input: too large", "256 MiB")
	sparse := file(t, "sparse", "")
	if err := os.Truncate(sparse, api.MaxStdinBytes+1); err != nil {
		t.Fatal(err)
	}
	newPerson(t).expect(Command{Stdin: sparse}, 125, "--stdin: "+sparse, "too large")
}

func TestChangedWhileSent(t *testing.T) {
	p := newPerson(t)
	p.world.Stdin = strings.NewReader(strings.Repeat("#", api.MaxInline+1))
	p.host.store = func(r io.Reader) (api.StoredFile, error) {
		_, err := io.Copy(io.Discard, r)
		return api.StoredFile{File: "x", Bytes: 1}, err
	}
	p.expect(Command{}, 125, "was changed meanwhile")
}
