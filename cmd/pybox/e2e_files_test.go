//go:build linux

package main

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/receipt"
)

// TestE2EFiles takes files along and has them back, as 'pybox exec' does it, in one VM.
func TestE2EFiles(t *testing.T) {
	p := newPerson(t, "")
	p.must("vm", "start")
	for _, c := range []struct {
		name string
		test func(*testing.T, *person)
	}{
		{"round trip", testFilesRoundTrip},
		{"places", testFilesPlaces},
		{"endings", testFilesEndings},
		{"odd ones", testFilesOdd},
		{"limits", testFilesLimits},
		{"full disk", testFilesFullDisk},
		{"killed", testFilesKilled},
		{"interrupted", testFilesInterrupted},
		{"large", testFilesLarge},
		{"daemon killed", testFilesDaemonKilled}, // last: the VM is gone then
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			c.test(t, p.in(t))
			if left, err := filepath.Glob(".pybox-output-*"); err != nil || len(left) > 0 {
				t.Errorf("left behind: %q", left)
			}
		})
	}
}

// tree makes files: a name that ends in "/" is a folder, in "*" executable.
func tree(t *testing.T, files map[string]string) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		path, mode := strings.TrimRight(name, "/*"), fs.FileMode(0o644)
		if strings.HasSuffix(name, "*") {
			mode = 0o755
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if strings.HasSuffix(name, "/") {
			err = os.MkdirAll(path, 0o755)
		} else if err = os.WriteFile(path, []byte(files[name]), mode); err == nil {
			err = os.Chmod(path, mode)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// treeOf is what there is in a folder, as tree has it; anything that is neither file
// nor folder has "!" behind its name.
func treeOf(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		switch m := info.Mode(); {
		case m == fs.ModeDir|0o755:
			all[name+"/"] = ""
			return nil
		case m == 0o755:
			name += "*"
		case m != 0o644:
			all[name+"!"] = m.String()
			return nil
		}
		b, err := os.ReadFile(path)
		all[name] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func expectTree(t *testing.T, dir string, want map[string]string) {
	t.Helper()
	if got := treeOf(t, dir); !maps.Equal(got, want) {
		for name, text := range got {
			if other, ok := want[name]; !ok || other != text {
				t.Errorf("in %s: %q is %.100q, want %.100q (there: %t)", dir, name, text, other, ok)
			}
		}
		for name := range want {
			if _, ok := got[name]; !ok {
				t.Errorf("in %s: %q is missing", dir, name)
			}
		}
	}
}

// shaTool is what another program says of a file.
func shaTool(t *testing.T, path string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "sha256sum", "--", path).Output()
	if err != nil {
		t.Fatal(err)
	}
	sum, _, _ := strings.Cut(strings.TrimPrefix(string(out), `\`), " ")
	return sum
}

// testFilesRoundTrip: a tree goes in, is changed and comes back, with the same bytes,
// permissions and digests on both sides.
func testFilesRoundTrip(t *testing.T, p *person) {
	blob := make([]byte, 3<<20)
	if _, err := io.ReadFull(noise(int64(len(blob))), blob); err != nil {
		t.Fatal(err)
	}
	tree(t, map[string]string{
		"in/data.csv": "1,2\n3,4\n", "in/empty": "", "in/none/": "", "in/deep/er/x": "deep", "in/run.sh*": "#!/bin/sh\n",
		"in/ünïcödé 雪": "u", "in/blob": string(blob), "in/-n --help": "dashes", "model=a": "equals",
	})
	if err := os.Symlink("model=a", "link"); err != nil {
		t.Fatal(err)
	}
	r := p.exec("--input", "in=data", "--input", "model=a=m/a", "--input", "link", "--output", "out", p.program("round.py", `
import os, shutil, sys
print(sorted(os.listdir()), sorted(os.listdir("data")), open("m/a").read(), open("link").read(), bool(os.stat("data/run.sh").st_mode & 0o100), bool(os.stat("data/data.csv").st_mode & 0o100))
shutil.copytree("data", "copy")
os.remove("data/empty")
open("data/data.csv", "a").write("5,6\n")
os.rename("data/deep", "data/deeper")
os.makedirs("new/empty")
with open("sparse", "wb") as f: f.truncate(100_000)
`))
	if want := "['data', 'link', 'm', 'round.py'] ['-n --help', 'blob', 'data.csv', 'deep', 'empty', 'none', 'run.sh', 'ünïcödé 雪'] equals equals True False\n"; r.code != 0 || r.out != want {
		t.Fatalf("exit %d, stdout %q, stderr %q", r.code, r.out, r.err)
	}
	want := map[string]string{
		"data/": "", "data/data.csv": "1,2\n3,4\n5,6\n", "data/deeper/": "", "data/deeper/er/": "", "data/deeper/er/x": "deep",
		"new/": "", "new/empty/": "", "sparse": strings.Repeat("\x00", 100_000), "copy/": "",
	}
	for name, text := range treeOf(t, "in") {
		want["copy/"+name] = text
	}
	delete(want, "data/") // it was there before
	got := treeOf(t, "out")
	delete(got, "data/") // the file that changed lies in it
	if !maps.Equal(got, want) {
		expectTree(t, "out", want)
	}
	if !strings.Contains(r.err, " in out\n") || !strings.HasSuffix(r.err, "in out\n") {
		t.Errorf("stderr %q", r.err)
	}
	for _, i := range r.receipt.Configured.Inputs {
		path := map[string]string{"m/a": "model=a", "link": "link"}[i.Name]
		if path == "" {
			path = filepath.Join("in", strings.TrimPrefix(i.Name, "data"))
		}
		if st, err := os.Stat(path); err != nil || !st.IsDir() && (i.SHA256 == nil || *i.SHA256 != shaTool(t, path) || i.Bytes != st.Size()) {
			t.Errorf("input %s: %+v, %v", i.Name, i, err)
		}
	}
	if n := len(r.receipt.Configured.Inputs); n < 8 {
		t.Errorf("%d inputs on the receipt", n)
	}
	files := 0
	for _, f := range r.receipt.Program.Files {
		path := filepath.Join("out", f.Name)
		if !f.Returned || f.File != "" {
			t.Errorf("%+v", f)
		}
		if !f.Folder {
			if files++; *f.SHA256 != shaTool(t, path) {
				t.Errorf("%s: %s on the receipt", f.Name, *f.SHA256)
			}
		}
	}
	if files < 9 {
		t.Errorf("%d files on the receipt", files)
	}
}

const leaves = `
import os
open("result.csv", "w").write("1,2\n")
os.mkdir("plots")
open("plots/a.png", "wb").write(b"\x89PNG")
`

var left = map[string]string{"result.csv": "1,2\n", "plots/": "", "plots/a.png": "\x89PNG"}

func under(dir string, files map[string]string) map[string]string {
	all := map[string]string{dir + "/": ""}
	for name, text := range files {
		all[dir+"/"+name] = text
	}
	return all
}

func both(ms ...map[string]string) map[string]string {
	all := map[string]string{}
	for _, m := range ms {
		maps.Copy(all, m)
	}
	return all
}

func testFilesPlaces(t *testing.T, p *person) {
	prog := p.program("leaves.py", leaves)
	if r := p.exec("-q", "--output", "new", prog); r.code != 0 || r.err != "" {
		t.Errorf("exit %d, stderr %q", r.code, r.err)
	}
	expectTree(t, "new", left)
	tree(t, map[string]string{"mine/own": "own"})
	if r := p.exec("--output", "mine", prog); r.code != 0 || !strings.HasSuffix(r.err, "\npybox: 2 files (8 B) and 1 folder in mine\n") {
		t.Errorf("exit %d, stderr %q", r.code, r.err)
	}
	expectTree(t, "mine", both(left, map[string]string{"own": "own"}))
	// Once more: every name is taken.
	r := p.exec("--output", "mine", prog)
	kept := "pybox-results-" + r.receipt.Run.ID
	if r.code != 125 || !strings.Contains(r.err, "is there already") || !strings.Contains(r.err, "what the program left is in mine/"+kept+" instead. The run itself: exit code 0\n") {
		t.Errorf("exit %d, stderr %q", r.code, r.err)
	}
	expectTree(t, "mine", both(left, map[string]string{"own": "own"}, under(kept, left)))
	for _, name := range []string{"one.tar", "two.tar"} {
		if r := p.exec("--output-tar", name, prog); r.code != 0 || !strings.Contains(r.err, "in "+name+"\n") {
			t.Errorf("exit %d, stderr %q", r.code, r.err)
		}
	}
	one := mustRead(t, "one.tar")
	if !bytes.Equal(one, mustRead(t, "two.tar")) {
		t.Error("the same results give different archives")
	}
	var names []string
	for r := tar.NewReader(bytes.NewReader(one)); ; {
		h, err := r.Next()
		if err != nil {
			break
		}
		names = append(names, h.Name)
	}
	if want := []string{"plots/", "plots/a.png", "result.csv"}; !slices.Equal(names, want) {
		t.Errorf("%q, want %q", names, want)
	}
	// The record has the files, without ids: nobody has them any more.
	o := p.run("exec", "--timeout", "30", "--json", "--output", "json", prog)
	if rec := readReceipt(t, []byte(o.out)); o.code != 0 || o.err != "" || len(rec.Program.Files) != 3 || strings.Contains(o.out, `"file":`) {
		t.Errorf("exit %d, stderr %q, files %+v", o.code, o.err, rec.Program.Files)
	}
	expectTree(t, "json", left)
	// Without --output they are listed.
	r = p.exec(prog)
	for _, f := range r.receipt.Program.Files {
		if f.Returned || f.Reason != receipt.FileNotAsked {
			t.Errorf("%+v", f)
		}
	}
	if r.code != 0 || len(r.receipt.Program.Files) != 3 || strings.Contains(r.err, "pybox: ") {
		t.Errorf("exit %d, %+v, stderr %q", r.code, r.receipt.Program.Files, r.err)
	}
	if o := p.run("vm", "status", "--json"); o.code != 0 {
		t.Errorf("%+v", o)
	}
}

// testFilesEndings: what a program left comes back however it ended.
func testFilesEndings(t *testing.T, p *person) {
	for name, c := range map[string]struct {
		then string
		args []string
		code int
	}{
		"exit":     {"raise SystemExit(7)", nil, 7},
		"signal":   {"os.kill(os.getpid(), 9)", nil, 137},
		"deadline": {"import time; time.sleep(60)", []string{"--timeout", "4"}, 124},
		"memory":   {"b = bytearray(1 << 30)", nil, 137},
	} {
		args := append([]string{"--output", name}, c.args...)
		r := p.exec(append(args, p.program("ends.py", leaves+c.then))...)
		if r.code != c.code || !strings.Contains(r.err, "2 files (8 B) and 1 folder in "+name+"\n") {
			t.Errorf("%s: exit %d, want %d, stderr %q", name, r.code, c.code, r.err)
		}
		expectTree(t, name, left)
	}
	r := p.exec("--output", "none", p.program("nothing.py", "pass"))
	if r.code != 0 || !strings.HasSuffix(r.err, "pybox: the program left nothing for none\n") {
		t.Errorf("exit %d, stderr %q", r.code, r.err)
	}
	expectTree(t, "none", nil)
}

// testFilesOdd: what is no regular file or has no fit name stays behind, is listed, and
// nothing of it shows on the host or on the terminal.
func testFilesOdd(t *testing.T, p *person) {
	r := p.exec("--output", "out", p.program("odd.py", `
import os, socket
os.symlink("/etc/passwd", "passwd")
os.symlink("..", "up")
os.mkfifo("fifo")
socket.socket(socket.AF_UNIX).bind("socket")
for name in (b"\x1b]52;c;aGk=\x07", b"line\nbreak", b"\xff\xfe", "x" * 255, "a.txt", "A.TXT"):
    open(name, "w").write("x")
open("giant", "w").truncate(10 << 30)
os.chmod("a.txt", 0o4777)
os.mkdir("locked"); open("locked/in", "w").write("locked"); os.chmod("locked", 0)
`))
	expectTree(t, "out", map[string]string{strings.Repeat("x", 255): "x", "A.TXT": "x", "locked/": "", "locked/in": "locked"})
	reasons := map[string]string{}
	for _, f := range r.receipt.Program.Files {
		if !f.Returned {
			reasons[f.Name] = f.Reason
		}
	}
	for name, want := range map[string]string{"passwd": receipt.FileLink, "up": receipt.FileLink, "fifo": receipt.FileSpecial, "socket": receipt.FileSpecial, "giant": receipt.FileTooLarge, "a.txt": receipt.FileTwin} {
		if reasons[name] != want {
			t.Errorf("%s: %q, want %q", name, reasons[name], want)
		}
	}
	if r.code != 0 || len(reasons) != 9 || strings.ContainsAny(r.err, "\x1b\x07") || !strings.Contains(r.err, "; 9 did not come back, and the receipt says why\n") {
		t.Errorf("exit %d, reasons %q, stderr %q", r.code, reasons, r.err)
	}
}

// testFilesLimits: the bounds hold both ways, and say so.
func testFilesLimits(t *testing.T, p *person) {
	files := map[string]string{}
	for n := range 40 {
		files[fmt.Sprintf("many/%02d", n)] = "x"
	}
	tree(t, files)
	prog := p.program("count.py", "import os\nprint(len(os.listdir('many')))\nfor n in range(20): open(f'new{n:02}', 'w').write('x' * 10)\n")
	p.fails(125, []string{"--max-files 41 allows them"}, "exec", "--input", "many", prog)
	p.fails(126, []string{"max_files of 257 is above the ceiling of 256"}, "exec", "--max-files", "257", prog)
	r := p.exec("--input", "many", "--max-files", "41", "--output", "all", prog)
	if got := treeOf(t, "all"); r.code != 0 || r.out != "40\n" || len(got) != 20 {
		t.Errorf("exit %d, stdout %q, stderr %q, %d files", r.code, r.out, r.err, len(got))
	}
	r = p.exec("--input", "many/00=many/00", "--max-files", "5", "--max-files-bytes", "33", "--output", "some", prog)
	if got := treeOf(t, "some"); r.code != 0 || len(got) != 3 || !strings.Contains(r.err, "3 files (30 B) in some; 17 did not come back") {
		t.Errorf("exit %d, stderr %q, %d files", r.code, r.err, len(got))
	}
}

// testFilesFullDisk: without room nothing is there, and the files can still be had.
func testFilesFullDisk(t *testing.T, p *person) {
	if err := os.Mkdir("small", 0o755); err != nil {
		t.Fatal(err)
	}
	smallDisk(t, "small", 1<<20)
	before := p.keptIDs()
	o := p.run("exec", "--timeout", "30", "--output", "small", p.program("big.py", "open('big', 'wb').write(b'x' * (5 << 20)); open('a', 'w').write('a')"))
	if o.code != 125 || !strings.Contains(o.err, `"big": no space left on device: nothing was put into small; the daemon has the files`) || !strings.Contains(o.err, "The run itself: exit code 0\n") {
		t.Errorf("exit %d, stderr %q", o.code, o.err)
	}
	expectTree(t, "small", nil)
	if len(p.keptIDs()) != len(before)+1 {
		t.Error("no receipt was kept")
	}
	var id string
	for line := range strings.Lines(o.err) {
		if f := strings.Fields(line); len(f) == 2 && f[1] == "big" {
			id = f[0]
		}
	}
	if got := p.fetch(p.client(), id); got != strings.Repeat("x", 5<<20) {
		t.Errorf("%d bytes could be fetched by the id %q", len(got), id)
	}
}

// slowly leaves enough for a signal to come while it is fetched.
const slowly = "open('first', 'w').write('first')\nopen('second', 'wb').write(b'y' * (60 << 20))\n"

func (p *person) fetching(dir string) *session {
	p.t.Helper()
	s := p.start(nil, "exec", "--timeout", "30", "--memory", "512MiB", "--max-files-bytes", "64MiB", "--output", dir, p.program("slowly.py", slowly))
	p.eventually("a file that is being fetched", func() bool {
		found, err := filepath.Glob(filepath.Join(dir, ".pybox-output-*", "files", "second"))
		return err == nil && len(found) > 0 || !s.alive()
	})
	return s
}

// testFilesKilled: a command that is killed while it fetches leaves nothing that the
// next one does not put away.
func testFilesKilled(t *testing.T, p *person) {
	tree(t, map[string]string{"mine/own": "own"})
	s := p.fetching("mine")
	s.signal(syscall.SIGKILL)
	<-s.done
	if got := treeOf(t, "mine"); got["own"] != "own" || got["first"] != "" {
		t.Errorf("%q", slices.Sorted(maps.Keys(got)))
	}
	if r := p.exec("--output", "mine", p.program("leaves.py", leaves)); r.code != 0 {
		t.Errorf("exit %d, stderr %q", r.code, r.err)
	}
	expectTree(t, "mine", both(left, map[string]string{"own": "own"}))
}

func testFilesInterrupted(t *testing.T, p *person) {
	tree(t, map[string]string{"mine/own": "own"})
	s := p.fetching("mine")
	s.signal(syscall.SIGINT)
	if o := s.wait(); o.code != 130 || !strings.Contains(o.err, "interrupted: nothing was put into mine; the daemon has the files") || !strings.Contains(o.err, "PyBox receipt") {
		t.Errorf("exit %d, stderr %q", o.code, o.err)
	}
	expectTree(t, "mine", map[string]string{"own": "own"})
}

// testFilesLarge: 256 MiB go in and come out, and neither the daemon nor the command
// holds them.
func testFilesLarge(t *testing.T, p *person) {
	const size, most = 256 << 20, 128 << 20
	f, err := os.Create("in")
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.New()
	if _, err := io.Copy(io.MultiWriter(f, sum), noise(size)); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	want := hex.EncodeToString(sum.Sum(nil))
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	daemon, command := make(chan memory, 1), make(chan memory, 1)
	before := p.keptIDs()
	go memory{pid: p.status().Daemon.PID}.watch(ctx, daemon)
	began := time.Now()
	s := p.start(nil, "exec", "--timeout", "30", "--memory", "1GiB", "--max-files-bytes", "256MiB", "--input", "in", "--output", "out",
		p.program("rename.py", "import os; os.rename('in', 'out')"))
	go memory{pid: s.cmd.Process.Pid}.watch(ctx, command)
	o := s.wait()
	took := time.Since(began)
	stop()
	d, c := <-daemon, <-command
	t.Logf("%v; RssAnon + RssFile: the daemon %d MiB, the command %d MiB at most, in %d and %d samples", took, d.max>>20, c.max>>20, d.samples, c.samples)
	if d.samples < 10 || c.samples < 10 || d.max > most || c.max > most {
		t.Errorf("want at most %d MiB", most>>20)
	}
	if o.code != 0 || shaTool(t, "out/out") != want {
		t.Fatalf("exit %d, stderr %q", o.code, o.err)
	}
	if r := p.newReceipt(before); *r.Configured.Inputs[0].SHA256 != want || *r.Program.Files[0].SHA256 != want {
		t.Errorf("%+v, %+v", r.Configured.Inputs, r.Program.Files)
	}
}

// testFilesDaemonKilled: a daemon that dies while its files are fetched takes them
// along, and that is said.
func testFilesDaemonKilled(t *testing.T, p *person) {
	tree(t, map[string]string{"mine/own": "own"})
	daemon := p.status().Daemon.PID
	s := p.fetching("mine")
	if err := syscall.Kill(daemon, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if o := s.wait(); o.code != 125 || !strings.Contains(o.err, "nothing was put into mine, and the files are gone with the daemon. The run itself: exit code 0") || !strings.Contains(o.err, "PyBox receipt") {
		t.Errorf("exit %d, stderr %q", o.code, o.err)
	}
	expectTree(t, "mine", map[string]string{"own": "own"})
	p.eventually("a VM that is known to be gone", func() bool { return p.status().State == api.StateStopped })
}
