//go:build linux && pyboxtest

package agent_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/pybox/pybox/agent/api"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
	"github.com/pybox/pybox/agent/boxtest"
)

// leftNames gives the names of what came back.
func leftNames(o *boxtest.Outcome) (names []string) {
	for _, f := range o.Left {
		names = append(names, f.GetName())
	}
	return names
}

// notReturned shows what did not come back, as "reason name bytes", and what no list
// has, as "count reason bytes".
func notReturned(o *boxtest.Outcome) (list []string) {
	for _, f := range o.Record.GetLeft().GetOthers() {
		list = append(list, fmt.Sprintf("%s %s %d", f.GetReason(), f.GetName(), f.GetBytes()))
	}
	for _, c := range o.Record.GetLeft().GetUnlisted() {
		list = append(list, fmt.Sprintf("%d %s %d", c.GetCount(), c.GetReason(), c.GetBytes()))
	}
	return list
}

func same(t *testing.T, what string, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s:\n got %q\nwant %q", what, got, want)
	}
}

// complete wants everything accounted for.
func complete(t *testing.T, o *boxtest.Outcome) {
	t.Helper()
	if !o.Record.GetLeft().GetComplete() {
		t.Errorf("not everything is accounted for: %v, %v", o.Record.GetLeft(), o)
	}
}

// TestE2EFiles holds what goes into a working folder to what the program sees, and
// what it leaves to what comes back.
func TestE2EFiles(t *testing.T) {
	g := boxtest.Start(t, 2560*mib)
	exits(t, g, boxtest.Program{Source: ""}, 0)
	before := figures(t, g, "before")
	t.Run("one slow", func(t *testing.T) { testSlowClient(t, g) }) // which needs all CPUs
	// It takes a minute until a client that takes nothing is given up.
	stuck := startStuck(t, g)
	t.Run("inputs", func(t *testing.T) { testInputs(t, g) })
	t.Run("inputs that are refused", func(t *testing.T) { testRefusedInputs(t, g) })
	t.Run("of every kind", func(t *testing.T) { testLeft(t, g) })
	t.Run("bounds", func(t *testing.T) { testLeftBounds(t, g) })
	t.Run("very many", func(t *testing.T) { testVeryManyLeft(t, g) })
	t.Run("after every end", func(t *testing.T) { testLeftAfterEnds(t, g) })
	t.Run("cancelled", func(t *testing.T) { testCancelledFiles(t, g) })
	stuck.givenUp(t, g)
	t.Run("large", func(t *testing.T) { testLargeFiles(t, g, before) })
	flat(t, before, figures(t, g, "after"))
}

// lister prints the working folder: for every name its mode and, of a file, size and
// text.
const lister = `
import json, os, stat
found = {}
for at, folders, files in os.walk('.'):
    for name in folders + files:
        path = os.path.join(at, name)
        mode = os.stat(path).st_mode
        text = '' if stat.S_ISDIR(mode) else open(path, encoding='utf-8').read()
        found[path[2:]] = [oct(mode), text]
print(json.dumps(found))
`

func testInputs(t *testing.T, g *boxtest.Guest) {
	long := strings.Repeat("n", 255)
	deep := strings.Repeat("d/", api.MaxNameDepth-1) + "f"
	o := exits(t, g, boxtest.Program{Source: lister, Inputs: []boxtest.Input{
		{Name: "tree", Folder: true}, {Name: "tree/empty", Folder: true}, {Name: "tree/a.csv", Text: "a,b\n1,2\n"},
		{Name: "implied/by/its file.txt", Text: "text"}, {Name: "run.sh", Text: "#!/bin/sh\n", Executable: true},
		{Name: long, Text: "long"}, {Name: deep, Text: "deep"}, {Name: "été/日本.txt", Text: "ünï"}, {Name: "Case", Text: "1"}, {Name: "case", Text: "2"},
		{Name: "nothing in it"}, {Name: "-rf", Text: "x"}, {Name: "a\\b", Text: "y"},
	}}, 0)
	var found map[string][2]string
	if err := json.Unmarshal(o.Stdout, &found); err != nil {
		t.Fatal(err, o)
	}
	const folder, file, program = "0o40755", "0o100644", "0o100755"
	want := map[string][2]string{
		"main.py": {file, lister}, "tree": {folder, ""}, "tree/empty": {folder, ""}, "tree/a.csv": {file, "a,b\n1,2\n"},
		"implied": {folder, ""}, "implied/by": {folder, ""}, "implied/by/its file.txt": {file, "text"}, "run.sh": {program, "#!/bin/sh\n"},
		long: {file, "long"}, deep: {file, "deep"}, "été": {folder, ""}, "été/日本.txt": {file, "ünï"}, "Case": {file, "1"}, "case": {file, "2"},
		"nothing in it": {file, ""}, "-rf": {file, "x"}, "a\\b": {file, "y"},
	}
	for n := range api.MaxNameDepth - 1 {
		want[strings.Repeat("d/", n)+"d"] = [2]string{folder, ""}
	}
	for name, is := range want {
		if found[name] != is {
			t.Errorf("%q is %q in the box, want %q", name, found[name], is)
		}
	}
	if len(found) != len(want) {
		t.Errorf("%d files and folders in the box, want %d", len(found), len(want))
	}
	// Nothing of it was changed, so nothing of it comes back.
	same(t, "what came back", leftNames(o), nil)
	same(t, "others", notReturned(o), nil)
	complete(t, o)
	for _, sum := range o.Record.GetInputs() {
		text := []byte(want[sum.GetName()][1])
		isProgram := sum.GetName() == "main.py"
		if sum.GetBytes() != int64(len(text)) || isProgram != (sum.GetSha256() != nil) || isProgram && !bytes.Equal(hashed(text), sum.GetSha256()) {
			t.Errorf("the record has the input %v", sum)
		}
	}
	if n := len(o.Record.GetInputs()); n != 14 {
		t.Errorf("the record has %d inputs, want 14", n)
	}
}

func testRefusedInputs(t *testing.T, g *boxtest.Guest) {
	in := func(names ...string) (all []boxtest.Input) {
		for _, n := range names {
			name, folder := strings.CutSuffix(n, "/")
			text := "text"
			if folder {
				text = ""
			}
			all = append(all, boxtest.Input{Name: name, Folder: folder, Text: text})
		}
		return all
	}
	exits(t, g, boxtest.Program{Inputs: in("a", "b/", "b/c"), MaxFiles: 3, MaxFilesBytes: 8}, 0)
	for _, c := range []struct {
		name, evidence string
		p              boxtest.Program
	}{
		{"outside", "relative path", boxtest.Program{Inputs: in("../a")}},
		{"absolute", "relative path", boxtest.Program{Inputs: in("/etc/passwd")}},
		{"an empty part", "relative path", boxtest.Program{Inputs: in("a//b")}},
		{"of the program's name", `two files have the name "main.py"`, boxtest.Program{Inputs: in("main.py")}},
		{"a folder of the program's name", `two files have the name "main.py"`, boxtest.Program{Inputs: in("main.py/")}},
		{"twice", `two files have the name "a"`, boxtest.Program{Inputs: in("a", "a")}},
		{"below a file", "write into the box a/b: not a directory", boxtest.Program{Inputs: in("a", "a/b")}},
		{"a file where a folder is", "write into the box a: file exists", boxtest.Program{Inputs: in("a/b", "a")}},
		{"our own name", "kept for PyBox", boxtest.Program{Inputs: in(".pybox/s")}},
		{"too many", "more than 2 files and folders beside the program", boxtest.Program{Inputs: in("a", "b/", "b/c"), MaxFiles: 2}},
		{"too large", "more than 7 bytes together", boxtest.Program{Inputs: in("a", "b/", "b/c"), MaxFilesBytes: 7}},
		{"none allowed", "more than 0 files", boxtest.Program{Inputs: in("a"), MaxFiles: -1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.p.Source = "print('ran')"
			o := g.Run(t, c.p)
			e := o.Record.GetEnding()
			if e.GetHow() != api.HowRefused || e.GetReason() != api.ReasonFiles || !strings.Contains(strings.Join(e.GetEvidence(), " "), c.evidence) {
				t.Errorf("want a refusal that has %q: %v", c.evidence, o)
			}
			if len(o.Stdout) > 0 || o.Record.GetLeft() != nil {
				t.Errorf("%v, left %v", o, o.Record.GetLeft())
			}
		})
	}
}

// leaver leaves something of every kind.
const leaver = `
import mmap, os, socket
os.makedirs('new/empty')
with open('new/f.bin', 'wb') as f: f.write(bytes(range(256)) * 5000)
with open('run.sh', 'w') as f: f.write('#!/bin/sh\n')
os.chmod('run.sh', 0o4755)
times = os.stat('data/mapped')
with open('data/mapped', 'r+b') as f:
    with mmap.mmap(f.fileno(), 0) as m: m[5000:5001] = b'Y'
os.utime('data/mapped', ns=(times.st_atime_ns, times.st_mtime_ns))
assert os.stat('data/mapped').st_mtime_ns == times.st_mtime_ns
os.utime('data/same')
with open('data/rewritten', 'w') as f: f.write('rewritten')
os.remove('data/gone')
os.chmod('data/now run', 0o755)
with open('data/beside', 'w') as f: f.write('beside')
with open('main.py', 'a') as f: f.write('# changed\n')
with open('closed file', 'w') as f: f.write('closed')
os.chmod('closed file', 0)
os.mkdir('closed')
with open('closed/f', 'w') as f: f.write('closed too')
os.chmod('closed', 0)
open('empty', 'w').close()
os.link('new/f.bin', 'hard')
os.symlink('/etc/passwd', 'link')
os.symlink('new', 'link to folder')
os.symlink('../../../..', 'new/out')
os.mkfifo('fifo')
sock = socket.socket(socket.AF_UNIX)
sock.bind('new/socket')
with open('giant', 'wb') as f: f.truncate(2**63 - 1)
with open('sparse', 'wb') as f: f.truncate(3_000_000)
for name in b'\xff\xfe', b'a\nb', b'\x1b[2J', b'n' * 255, 'été'.encode(), b'.hidden', b'-x': open(name, 'w').close()
os.mkdir('.pybox')
os.makedirs('/'.join(['d'] * 18))
for kind, number in (0o20000, 0x103), (0o60000, 0x700):
    try: os.mknod('device', kind | 0o666, number)
    except PermissionError: print('no device')
`

func testLeft(t *testing.T, g *boxtest.Guest) {
	mapped := strings.Repeat("x", 10_000)
	o := exits(t, g, boxtest.Program{Source: leaver, Inputs: []boxtest.Input{
		{Name: "data/mapped", Text: mapped}, {Name: "data/same", Text: "same"}, {Name: "data/rewritten", Text: "rewritten"}, {Name: "data/gone", Text: "x"},
		{Name: "data/now run", Text: "#!"}, {Name: "data/untouched", Text: strings.Repeat("y", 500_000), Executable: true},
	}}, 0)
	if string(o.Stdout) != "no device\nno device\n" {
		t.Errorf("%v", o)
	}
	deep := []string{"d"}
	for len(deep) < api.MaxNameDepth {
		deep = append(deep, deep[len(deep)-1]+"/d")
	}
	long := strings.Repeat("n", 255)
	same(t, "what came back", leftNames(o), slices.Concat(
		[]string{"-x", ".hidden", "closed", "closed file", "closed/f"}, deep[:1], deep[1:],
		[]string{"data/beside", "data/mapped", "data/now run", "empty", "hard", "main.py", "new", "new/empty", "new/f.bin", long, "run.sh", "sparse", "été"},
	))
	same(t, "others", notReturned(o), []string{
		"name .pybox 0", `name \x1b[2J 0`, `name \xff\xfe 0`, `name a\nb 0`, "too_deep " + deep[len(deep)-1] + "/d 0", "special fifo 0",
		fmt.Sprintf("too_large giant %d", int64(api.MaxLeftSize)), "link link 0", "link link to folder 0", "link new/out 0", "special new/socket 0",
	})
	complete(t, o)
	bin := string(bytes.Repeat(everyByte(), 5000))
	for name, want := range map[string]string{
		"data/mapped": mapped[:5000] + "Y" + mapped[5001:], "data/now run": "#!", "data/beside": "beside", "main.py": leaver + "# changed\n",
		"closed file": "closed", "closed/f": "closed too", "empty": "", "hard": bin, "new/f.bin": bin, "run.sh": "#!/bin/sh\n",
		"sparse": strings.Repeat("\x00", 3_000_000),
	} {
		f := o.File(name)
		if f == nil || string(f.Data) != want {
			t.Errorf("%q did not come back as it was left", name)
			continue
		}
		if runs := name == "run.sh" || name == "data/now run"; f.GetExecutable() != runs || f.GetFolder() {
			t.Errorf("%v", f.LeftFile)
		}
	}
	for _, name := range []string{"new", "new/empty", "closed", "d"} {
		if f := o.File(name); f == nil || !f.GetFolder() {
			t.Errorf("%q is no folder", name)
		}
	}
	inOrder(t, o)
}

func everyByte() []byte {
	b := make([]byte, 256)
	for i := range b {
		b[i] = byte(i)
	}
	return b
}

// inOrder wants the files after the program's end, and before the removal.
func inOrder(t *testing.T, o *boxtest.Outcome) {
	t.Helper()
	var at []string
	for _, e := range o.Events {
		word := ""
		switch {
		case e.GetExited() != nil:
			word = "exited"
		case e.GetLeftFile() != nil:
			word = "file"
		case e.GetStage().GetName() == "counters read", e.GetStage().GetName() == "files collected", e.GetStage().GetName() == "removed":
			word = e.GetStage().GetName()
		case e.GetRecord() != nil:
			word = "record"
		}
		if word != "" && (len(at) == 0 || at[len(at)-1] != word) {
			at = append(at, word)
		}
	}
	same(t, "order", at, []string{"exited", "counters read", "file", "files collected", "removed", "record"})
}

func testLeftBounds(t *testing.T, g *boxtest.Guest) {
	const source = "for i, name in enumerate('abcde'): open(name, 'w').write(name * 10 * (i + 1))\nimport os\nos.mkdir('f')\n"
	for _, c := range []struct {
		name         string
		p            boxtest.Program
		back, others []string
	}{
		{"all", boxtest.Program{MaxFiles: 6, MaxFilesBytes: 150}, []string{"a", "b", "c", "d", "e", "f"}, nil},
		{"four", boxtest.Program{MaxFiles: 4}, []string{"a", "b", "c", "d"}, []string{"too_many e 50", "too_many f 0"}},
		{"100 bytes", boxtest.Program{MaxFilesBytes: 109}, []string{"a", "b", "c", "d", "f"}, []string{"too_large e 50"}},
		{"none", boxtest.Program{MaxFiles: -1}, nil, []string{"too_many a 10", "too_many b 20", "too_many c 30", "too_many d 40", "too_many e 50", "too_many f 0"}},
		{"not asked", boxtest.Program{Uncollected: true}, nil, []string{"not_asked a 10", "not_asked b 20", "not_asked c 30", "not_asked d 40", "not_asked e 50", "not_asked f 0"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.p.Source = source
			o := exits(t, g, c.p, 0)
			same(t, "what came back", leftNames(o), c.back)
			same(t, "others", notReturned(o), c.others)
			complete(t, o)
			for i, f := range o.Left {
				if name := f.GetName(); !f.GetFolder() && string(f.Data) != strings.Repeat(name, 10*(i+1)) {
					t.Errorf("%s is %q", name, f.Data)
				}
			}
		})
	}
}

func testVeryManyLeft(t *testing.T, g *boxtest.Guest) {
	const n = 10_000
	o := exits(t, g, boxtest.Program{
		Source: fmt.Sprintf("for i in range(%d): open(f'{i:05}', 'w').write('ab')\n", n), MaxFiles: 32, Timeout: time.Minute,
	}, 0)
	var want []string
	for i := 32; i < 32+api.MaxNotReturned; i++ {
		want = append(want, fmt.Sprintf("too_many %05d 2", i))
	}
	same(t, "others", notReturned(o), append(want, fmt.Sprintf("%d too_many %d", n-32-api.MaxNotReturned, 2*(n-32-api.MaxNotReturned))))
	if len(o.Left) != 32 || o.Left[31].GetName() != "00031" || string(o.Left[31].Data) != "ab" {
		t.Errorf("%q came back", leftNames(o))
	}
	complete(t, o)
	t.Logf("%d files: %v", n, stageTook(o, "files collected"))
}

// stageTook is how long a stage took.
func stageTook(o *boxtest.Outcome, name string) time.Duration {
	last := o.Record.GetRequestedAtNs()
	for _, s := range o.Record.GetStages() {
		if s.GetName() == name {
			return time.Duration(s.GetEndedAtNs() - last)
		}
		last = s.GetEndedAtNs()
	}
	return math.MaxInt64
}

// However a program ends, what it has left until then comes back.
func testLeftAfterEnds(t *testing.T, g *boxtest.Guest) {
	const leaves = "open('left', 'w').write('left before the end')\n"
	for _, c := range []struct {
		how string
		p   boxtest.Program
		// mayExit is for a program that may be told before it is killed.
		mayExit bool
	}{
		{api.HowDeadline, boxtest.Program{Source: leaves + "while True: open('more', 'a').write('x' * 1000)\n", Timeout: 2 * time.Second}, false},
		{api.HowMemory, boxtest.Program{Source: leaves + "import os\nall = []\nwhile True: all.append(os.urandom(1 << 20))\n", Memory: 64 * mib}, false},
		{api.HowMemory, boxtest.Program{Source: leaves + "with open('more', 'wb') as f:\n  while True: f.write(b'x' * 1000000)\n", Memory: 64 * mib, MaxFilesBytes: 1000}, true},
		{api.HowSignal, boxtest.Program{Source: leaves + "import os\nos.kill(os.getpid(), 9)\n"}, false},
	} {
		t.Run(c.how, func(t *testing.T) {
			o := g.Run(t, c.p)
			if how := o.Record.GetEnding().GetHow(); how != c.how && !(c.mayExit && how == api.HowExited) {
				t.Errorf("want %s: %v", c.how, o)
			}
			t.Logf("%s, %q, others %q", o.Record.GetEnding().GetHow(), leftNames(o), notReturned(o))
			if f := o.File("left"); f == nil || string(f.Data) != "left before the end" {
				t.Errorf("what was left did not come back: %v", o)
			}
			complete(t, o)
		})
	}
	t.Run("a child goes on writing", func(t *testing.T) {
		o := exits(t, g, boxtest.Program{Source: leaves + `
import os, time
if os.fork() == 0:
    os.setsid()
    with open('growing', 'wb', 0) as f:
        while True: f.write(b'x')
while not os.path.exists('growing') or not os.path.getsize('growing'): time.sleep(0.01)
`}, 0)
		// It was killed before anybody looked.
		if f := o.File("growing"); f == nil || len(f.Data) == 0 || strings.Trim(string(f.Data), "x") != "" {
			t.Errorf("%q came back", leftNames(o))
		}
	})
	t.Run("exit code", func(t *testing.T) {
		o := exits(t, g, boxtest.Program{Source: leaves + "raise SystemExit(3)\n"}, 3)
		same(t, "what came back", leftNames(o), []string{"left"})
	})
	t.Run("cancelled", func(t *testing.T) {
		l := start(t, g, boxtest.Program{Source: leaves + "print('alive')\nwhile True: pass\n"})
		l.says(t, "alive")
		g.Cancel(t, l.id)
		if o := l.end(t); o.Record.GetEnding().GetHow() != api.HowCancelled || o.Record.GetLeft() != nil || len(o.Left) > 0 {
			t.Errorf("%v, left %v", o, o.Record.GetLeft())
		}
	})
}

// manyBytes leaves a file of that many bytes, in pieces that are all different.
func manyBytes(name string, n int) string {
	return fmt.Sprintf("import hashlib, os\nwith open(%q, 'wb') as f:\n  for i in range(%d): f.write(hashlib.sha256(b'%%d' %% i).digest() * 1024)\n", name, n/(32<<10))
}

// expected is the SHA-256 of what manyBytes leaves.
func expected(n int) []byte {
	sum := sha256.New()
	for i := range n / (32 << 10) {
		d := sha256.Sum256(fmt.Appendf(nil, "%d", i))
		sum.Write(bytes.Repeat(d[:], 1024))
	}
	return sum.Sum(nil)
}

// A client that fetches its files slowly delays no other run.
func testSlowClient(t *testing.T, g *boxtest.Guest) {
	const size = 16 << 20
	first, other := make(chan struct{}), make(chan struct{})
	begun := sync.OnceFunc(func() { close(first) })
	release := sync.OnceFunc(func() { close(other) })
	defer release()
	sum := sha256.New()
	slow := start(t, g, boxtest.Program{Source: manyBytes("slow", size), OnLeft: func(b []byte) {
		begun()
		<-other
		sum.Write(b)
	}})
	select {
	case <-first:
	case <-slow.done:
		t.Fatalf("no file came: %v, %v", slow.err, slow.o)
	}
	o := exits(t, g, boxtest.Program{Source: manyBytes("quick", size)}, 0)
	if f := o.File("quick"); f == nil || !bytes.Equal(hashed(f.Data), expected(size)) {
		t.Errorf("the quick run's file is not what it left: %v", o)
	}
	s := g.Status(t)
	within(t, "boxes", int64(s.GetBoxes()), 1, 1)
	within(t, "cgroups", int64(s.GetCgroups()), 1, 1) // its folder is still being fetched
	release()
	if o := slow.end(t); !bytes.Equal(sum.Sum(nil), expected(size)) {
		t.Errorf("the slow run's file is not what it left: %v", o)
	}
}

func hashed(b []byte) []byte {
	sum := sha256.Sum256(b)
	return sum[:]
}

// A client that wants no more gets no more of the file that it has a part of, and a
// record that says what is missing.
func testCancelledFiles(t *testing.T, g *boxtest.Guest) {
	const size = 4 << 20
	id := g.NewID()
	cancel := sync.OnceFunc(func() { g.Cancel(t, id) })
	o := g.Run(t, boxtest.Program{ID: id, Source: manyBytes("a", size) + manyBytes("b", size) + manyBytes("c", size), OnLeft: func([]byte) { cancel() }})
	same(t, "what came back", leftNames(o), []string{"a"})
	said := slices.ContainsFunc(o.Record.GetUnknown(), func(u *agentv1.Unknown) bool {
		return u.GetFact() == api.FactLeft && strings.Contains(u.GetWhy(), `"a" was cut`) && strings.Contains(u.GetWhy(), "2 of 3 files were not sent")
	})
	if got := o.Left[0].Bytes; got == 0 || got >= size {
		t.Errorf("%d of %d bytes came", got, size)
	}
	if o.Record.GetEnding().GetHow() != api.HowExited || o.Record.GetLeft().GetComplete() || !said {
		t.Errorf("%v, left %v", o, o.Record.GetLeft())
	}
}

// stuckRun is a run whose client takes nothing of its files.
type stuckRun struct {
	stream *connect.BidiStreamForClient[agentv1.RunRequest, agentv1.RunEvent]
	begun  time.Time
}

const stuckBytes = 8 << 20

func startStuck(t *testing.T, g *boxtest.Guest) *stuckRun {
	t.Helper()
	u := &stuckRun{stream: g.Client.Run(t.Context())}
	p := boxtest.Program{Source: manyBytes("f", stuckBytes)}
	send := func(r *agentv1.RunRequest) {
		if err := u.stream.Send(r); err != nil {
			t.Fatal(err)
		}
	}
	until := func(ok func(*agentv1.RunEvent) bool) {
		for {
			e, err := u.stream.Receive()
			if err != nil {
				t.Fatal(err)
			}
			if ok(e) {
				return
			}
		}
	}
	send(&agentv1.RunRequest{Part: &agentv1.RunRequest_Start{Start: g.RunStart(&p)}})
	until(func(e *agentv1.RunEvent) bool { return e.GetAdmitted() != nil })
	send(&agentv1.RunRequest{Part: &agentv1.RunRequest_File{File: &agentv1.RunFile{Name: "main.py", Bytes: int64(len(p.Source))}}})
	send(&agentv1.RunRequest{Part: &agentv1.RunRequest_Data{Data: []byte(p.Source)}})
	send(&agentv1.RunRequest{Part: &agentv1.RunRequest_Go{Go: &agentv1.RunGo{}}})
	until(func(e *agentv1.RunEvent) bool { return e.GetLeftFile() != nil })
	u.begun = time.Now()
	return u
}

// givenUp waits until the agent has given it up and removed its box.
func (u *stuckRun) givenUp(t *testing.T, g *boxtest.Guest) {
	t.Helper()
	if time.Since(u.begun) < api.StallTimeout/2 { // else it may have been given up already, rightly
		if s := g.Status(t); s.GetBoxes() != 1 || s.GetCgroups() != 1 {
			t.Errorf("its box is gone too early: %v", s)
		}
	}
	g.Idle(t)
	t.Logf("given up after %v at most", time.Since(u.begun))
	got := 0
	var err error
	for err == nil {
		var e *agentv1.RunEvent
		if e, err = u.stream.Receive(); e.GetRecord() != nil {
			t.Error("a record came to a client that took nothing before it")
		}
		got += len(e.GetLeftData())
	}
	if err == io.EOF || got >= stuckBytes {
		t.Errorf("%d bytes, then %v", got, err)
	}
}

// testLargeFiles sends large files both ways, and watches the agent's memory.
func testLargeFiles(t *testing.T, g *boxtest.Guest, before *agentv1.StatusResponse) {
	for _, c := range []struct{ size, memory int64 }{{64 * mib, 512 * mib}, {256 * mib, 1024 * mib}} {
		t.Run(fmt.Sprintf("%d MiB", c.size/mib), func(t *testing.T) {
			const source = "import shutil\nshutil.copyfile('in', 'out')\n"
			piece := make([]byte, api.MaxDataPiece)
			sent, got := sha256.New(), sha256.New()
			stop := watchMost(t, g)
			began := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), 4*boxtest.Bound)
			defer cancel()
			o, err := g.Try(ctx, boxtest.Program{
				Memory: c.memory, MaxFiles: 2, MaxFilesBytes: c.size, Timeout: boxtest.Bound, MilliCPU: 2000,
				OnLeft: func(b []byte) { got.Write(b) },
				Upload: func(send func(*agentv1.RunRequest) error) error {
					parts := []*agentv1.RunRequest{
						{Part: &agentv1.RunRequest_File{File: &agentv1.RunFile{Name: "main.py", Bytes: int64(len(source))}}},
						{Part: &agentv1.RunRequest_Data{Data: []byte(source)}},
						{Part: &agentv1.RunRequest_File{File: &agentv1.RunFile{Name: "in", Bytes: c.size}}},
					}
					for _, p := range parts {
						if err := send(p); err != nil {
							return err
						}
					}
					for i := range c.size / int64(len(piece)) {
						copy(piece, fmt.Sprintf("piece %d", i))
						sent.Write(piece)
						if err := send(&agentv1.RunRequest{Part: &agentv1.RunRequest_Data{Data: piece}}); err != nil {
							return err
						}
					}
					return send(&agentv1.RunRequest{Part: &agentv1.RunRequest_Go{Go: &agentv1.RunGo{}}})
				},
			})
			most := stop()
			if err != nil || o.Code() != 0 {
				t.Fatalf("%v: %v", err, o)
			}
			same(t, "what came back", leftNames(o), []string{"out"})
			if !bytes.Equal(sent.Sum(nil), got.Sum(nil)) {
				t.Errorf("what came back is not what was sent: %v", o)
			}
			mibs := func(d time.Duration) float64 { return float64(c.size/mib) / d.Seconds() }
			in, out := stageTook(o, "files written"), stageTook(o, "files collected")
			t.Logf("in %v (%.1f MiB/s), out %v (%.1f MiB/s), in all %v; agent RSS at most %d KiB, before %d KiB", in, mibs(in), out, mibs(out),
				time.Since(began), most>>10, before.GetAgentRssBytes()>>10)
			// Not the files, nor a share of them.
			within(t, "agent RSS", most, 1, maxAgentRSS)
		})
	}
}
