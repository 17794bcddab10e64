package execute

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/config"
	"github.com/pybox/pybox/host/outputs"
	"github.com/pybox/pybox/host/policy"
	"github.com/pybox/pybox/host/receipt"
	"github.com/pybox/pybox/host/receipt/receipttest"
)

// put makes a file in the present folder.
func put(t *testing.T, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func hexSum(b string) string {
	s := sha256.Sum256([]byte(b))
	return hex.EncodeToString(s[:])
}

// stores keeps what is stored, under "stored-1" and so on.
func (p *person) stores() map[string]string {
	stored := map[string]string{}
	p.host.store = func(r io.Reader) (api.StoredFile, error) {
		b, err := io.ReadAll(r)
		if err != nil {
			return api.StoredFile{}, err
		}
		id := fmt.Sprintf("stored-%d", len(stored)+1)
		stored[id] = string(b)
		return api.StoredFile{File: id, Bytes: int64(len(b)), SHA256: hexSum(string(b))}, nil
	}
	return stored
}

func TestInputs(t *testing.T) {
	t.Chdir(t.TempDir())
	large := strings.Repeat("large ", 10_000)
	put(t, "d/empty", "")
	put(t, "d/large", large)
	put(t, "d/sub/binary", "\xff\x00")
	put(t, "tool", "#!")
	if err := os.Chmod("tool", 0o700); err != nil {
		t.Fatal(err)
	}
	p := newPerson(t)
	stored := p.stores()
	p.expect(Command{Inputs: []string{"d=data", "tool"}, MaxFiles: "6", MaxFilesBytes: "1MiB"}, 0)
	var got []string
	for _, f := range p.host.runs[0].Inputs {
		l := f.Name
		switch {
		case f.Folder:
			l += "/"
		case f.Text != nil:
			l += "=" + *f.Text
		case f.Base64 != nil:
			b, err := base64.StdEncoding.DecodeString(*f.Base64)
			if err != nil {
				t.Fatal(err)
			}
			l += "=" + string(b)
		case stored[f.File] == large:
			l += " stored"
		}
		if f.Executable {
			l = "*" + l
		}
		got = append(got, l)
	}
	if want := []string{"data/", "data/empty=", "data/large stored", "data/sub/", "data/sub/binary=\xff\x00", "*tool=#!"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if r := p.host.runs[0]; r.Collect || *r.Limits.Files != 6 || *r.Limits.FilesBytes != 1<<20 {
		t.Errorf("%+v", r)
	}
	if strings.Contains(p.err.String(), "pybox: ") {
		t.Errorf("stderr %q", p.err.String())
	}
	// What was stored for a run that was not accepted is given up.
	p = newPerson(t)
	p.stores()
	p.host.run = func(context.Context, api.RunRequest, func(api.Event) error) (*api.Outcome, error) {
		return nil, problem(api.ProblemBusy)
	}
	p.expect(Command{Inputs: []string{"d"}}, 125)
	if !slices.Equal(p.host.forgotten, []string{"stored-1"}) {
		t.Errorf("forgotten: %q", p.host.forgotten)
	}
}

// TestFilesRefused: what can be seen to be wrong runs nothing, and boots no VM.
func TestFilesRefused(t *testing.T) {
	t.Chdir(t.TempDir())
	put(t, "data.csv", "1,2")
	put(t, "main.py", "")
	put(t, "p.py", "print(1)")
	put(t, "file", "")
	for n := range 40 {
		put(t, fmt.Sprintf("many/%d", n), "")
	}
	for n := range 300 {
		put(t, fmt.Sprintf("ceiling/%d", n), "")
	}
	for n := range 1100 {
		put(t, fmt.Sprintf("toomany/%d", n), "")
	}
	for name, size := range map[string]int64{"64M": 64 << 20, "200M": 200 << 20, "300M": 300 << 20} {
		put(t, name, "")
		if err := os.Truncate(name, size); err != nil {
			t.Fatal(err)
		}
	}
	for _, err := range []error{syscall.Mkfifo("fifo", 0o600), os.Symlink("nowhere", "dangling")} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		command Command
		code    int
		says    string
	}{
		{Command{Inputs: []string{"none"}}, 125, `--input: "none": no such file or folder`},
		{Command{Inputs: []string{""}}, 125, "--input: want a file or a folder"},
		{Command{Inputs: []string{"fifo"}}, 125, `--input: "fifo" is a pipe`},
		{Command{Inputs: []string{"main.py"}}, 125, "and so is the program called"},
		{Command{Inputs: []string{"p.py"}, File: "p.py"}, 125, "and so is the program called"},
		{Command{Inputs: []string{"data.csv", "file=data.csv"}}, 125, "would both be"},
		{Command{Inputs: []string{"data.csv", "file=DATA.csv"}}, 125, "many systems take for one name"},
		{Command{Inputs: []string{"many"}}, 125, "--input: 41 files and folders are more than the 32 of this run: --max-files 41 allows them"},
		{Command{Inputs: []string{"many=."}, MaxFiles: "10"}, 125, "40 files and folders are more than the 10"},
		{Command{Inputs: []string{"ceiling=."}}, 125, "it would take --max-files 300, and max_files of 300 is above the ceiling of 256: '[ceilings] files' in config.toml"},
		{Command{Inputs: []string{"toomany"}}, 125, `with "toomany" there are more than 1023, and no run takes more`},
		{Command{Inputs: []string{"64M"}}, 125, "64 MiB are more than the 32 MiB of this run: --max-files-bytes 64MiB allows them"},
		{Command{Inputs: []string{"200M"}, MaxFilesBytes: "256MiB"}, 125, "more than the box's memory of 128 MiB, which they are part of: --memory 400MiB allows them"},
		{Command{Inputs: []string{"300M"}, MaxFilesBytes: "300MiB", Memory: "1GiB"}, 125, `"300M" has 300 MiB: too large: a file has at most 256 MiB`},
		{Command{MaxFiles: "-1"}, 125, "--max-files"},
		{Command{MaxFiles: "some"}, 125, "--max-files: \"some\" is not a whole number of files"},
		{Command{MaxFiles: "1e3"}, 125, "--max-files"},
		{Command{MaxFiles: "99999999999999999999"}, 126, "no config.toml can allow more"},
		{Command{MaxFiles: "257"}, 126, "--max-files: max_files of 257 is above the ceiling of 256"},
		{Command{MaxFilesBytes: "1TiB"}, 126, "no config.toml can allow more"},
		{Command{MaxFilesBytes: "257MiB"}, 126, "above the ceiling of 256 MiB"},
		{Command{MaxFilesBytes: "x"}, 125, "--max-files-bytes"},
		{Command{Output: "file"}, 125, `--output: "file" is a file, want a folder`},
		{Command{Output: "file/x"}, 125, "--output"},
		{Command{Output: "none/x"}, 125, `--output: "none/x": there is no folder "none": make that first`},
		{Command{Output: "dangling"}, 125, "a link that leads nowhere"},
		{Command{Output: "-"}, 125, "--output: want a folder"},
		{Command{OutputTar: "-"}, 125, "--output-tar: want a file"},
		{Command{OutputTar: "file"}, 125, `--output-tar: "file" is there already`},
		{Command{Output: "file", Inputs: []string{"none"}}, 125, `--output: "file" is a file`}, // before what is taken along
		{Command{Output: "out", OutputTar: "out.tar"}, 125, "give one of them"},
		{Command{Inputs: []string{"file"}, Receipt: "file"}, 125, "--receipt: file is taken along by this run"},
		{Command{OutputTar: "o.tar", Receipt: "./o.tar"}, 125, "--receipt: ./o.tar is what --output-tar makes"},
		{Command{Output: "out/", Receipt: "out"}, 125, "--receipt: out is what --output makes"},
	} {
		p := newPerson(t)
		p.host.run = func(context.Context, api.RunRequest, func(api.Event) error) (*api.Outcome, error) {
			return nil, api.ErrNoDaemon
		}
		p.expect(c.command, c.code, "pybox: ", c.says)
		if n := strings.Count(p.err.String(), "\n"); n != 1 || p.host.starts != 0 {
			t.Errorf("%+v: %d starts, stderr %q", c.command, p.host.starts, p.err.String())
		}
	}
	if left, err := filepath.Glob(".pybox*"); err != nil || len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
	// An owner who allows less than the defaults.
	low := config.Default()
	low.Ceilings.Files = 3
	p := newPerson(t)
	p.host.policy = func() (*policy.Policy, error) { return policy.New(low), nil }
	p.expect(Command{Inputs: []string{"many"}}, 125, "max_files of 41 is above the ceiling of 3")
}

// TestInputChanges: what changes while it is sent runs nothing.
func TestInputChanges(t *testing.T) {
	t.Chdir(t.TempDir())
	put(t, "first", strings.Repeat("x", maxSmall+1))
	put(t, "second", strings.Repeat("y", maxSmall+1))
	put(t, "small", "z")
	for _, name := range []string{"first", "second", "small"} {
		p := newPerson(t)
		p.stores()
		store := p.host.store
		p.host.store = func(r io.Reader) (api.StoredFile, error) {
			if name == "first" {
				r = io.MultiReader(io.LimitReader(r, 5), after(func() { put(t, name, "short") }), r)
			} else {
				put(t, name, "other")
			}
			return store(r)
		}
		p.expect(Command{Inputs: []string{"first", "second", "small"}}, 125, `pybox: --input: "`+name+`": it was changed meanwhile`)
		if len(p.host.runs) != 0 || p.host.starts != 0 {
			t.Errorf("%s: %d runs, %d starts", name, len(p.host.runs), p.host.starts)
		}
		if want := map[string][]string{"first": nil, "second": {"stored-1"}, "small": {"stored-1", "stored-2"}}[name]; !slices.Equal(p.host.forgotten, want) {
			t.Errorf("%s: forgotten: %q", name, p.host.forgotten)
		}
		put(t, name, strings.Repeat("x", maxSmall+1))
	}
}

// after is an empty reader that calls f.
type after func()

func (f after) Read([]byte) (int, error) { f(); return 0, io.EOF }

// leaves is the receipt of a run that left these files; a name that ends in "/" is a
// folder.
func leaves(r *receipt.Receipt, files map[string]string) *receipt.Receipt {
	r.Unknown = slices.DeleteFunc(r.Unknown, func(u receipt.Unknown) bool { return u.Fact == receipt.FactFiles })
	r.Program.Files = []receipt.File{}
	for name, text := range files {
		f := receipt.File{Name: strings.TrimSuffix(name, "/"), Returned: true, Folder: strings.HasSuffix(name, "/")}
		if !f.Folder {
			f.Bytes, f.SHA256, f.File = int64(len(text)), new(hexSum(text)), "left-"+name
		}
		r.Program.Files = append(r.Program.Files, f)
	}
	slices.SortFunc(r.Program.Files, func(a, b receipt.File) int { return strings.Compare(a.Name, b.Name) })
	return r
}

// has has the daemon run something that leaves these files.
func (p *person) has(r *receipt.Receipt, files map[string]string) {
	p.host.run = tell(leaves(r, files), "1printed\n")
	p.host.file = func(_ context.Context, id string) (io.ReadCloser, error) {
		return io.NopCloser(strings.NewReader(files[strings.TrimPrefix(id, "left-")])), nil
	}
}

var someFiles = map[string]string{"result.csv": "1,2\n", "plots/": "", "plots/a.png": "\x89PNG", "empty/": ""}

// found is what there is in a folder; a name that ends in "/" is a folder.
func found(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := fs.WalkDir(os.DirFS(dir), ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil || name == "." {
			return err
		}
		if e.IsDir() {
			all[name+"/"] = ""
			return nil
		}
		b, err := os.ReadFile(filepath.Join(dir, name))
		all[name] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func expectFiles(t *testing.T, dir string, want map[string]string) {
	t.Helper()
	if got := found(t, dir); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("in %s: %q, want %q", dir, got, want)
	}
}

func exited(code int) *receipt.Receipt {
	return ended(receipt.HowExited, receipt.ByProgram, exit(code))
}

func TestDeliver(t *testing.T) {
	t.Chdir(t.TempDir())
	p := newPerson(t)
	p.has(exited(3), someFiles)
	p.expect(Command{Output: "out", Receipt: "r.json"}, 3, "PyBox receipt", "pybox: 2 files (8 B) and 2 folders in out\n")
	expectFiles(t, "out", someFiles)
	if p.out.String() != "printed\n" || !p.host.runs[0].Collect {
		t.Errorf("stdout %q, %+v", p.out.String(), p.host.runs[0])
	}
	if slices.Sort(p.host.forgotten); !slices.Equal(p.host.forgotten, []string{"left-plots/a.png", "left-result.csv"}) {
		t.Errorf("forgotten: %q", p.host.forgotten)
	}
	if b, err := os.ReadFile("r.json"); err != nil || strings.Contains(string(b), "left-") || !strings.Contains(string(b), "result.csv") {
		t.Errorf("%s, %v", b, err)
	} else if err := receipttest.Validate(b); err != nil {
		t.Error(err)
	}

	t.Chdir(t.TempDir())
	p = newPerson(t)
	p.has(exited(0), someFiles)
	p.expect(Command{Output: ".", Quiet: true}, 0)
	expectFiles(t, ".", someFiles)
	if p.err.String() != "" {
		t.Errorf("stderr %q", p.err.String())
	}

	t.Chdir(t.TempDir())
	p = newPerson(t)
	p.has(exited(0), someFiles)
	p.expect(Command{Output: "out", JSON: true}, 0)
	var r receipt.Receipt
	if err := json.Unmarshal([]byte(p.out.String()), &r); err != nil || p.err.String() != "" || len(r.Program.Files) != 4 || r.Program.Files[3].Name != "result.csv" || r.Program.Files[3].File != "" {
		t.Errorf("%v, %q, %+v", err, p.err.String(), r.Program.Files)
	}
	expectFiles(t, "out", someFiles)

	t.Chdir(t.TempDir())
	p = newPerson(t)
	p.has(exited(0), someFiles)
	p.expect(Command{OutputTar: "out.tar"}, 0, "pybox: 2 files (8 B) and 2 folders in out.tar\n")
	if st, err := os.Stat("out.tar"); err != nil || st.Size() == 0 {
		t.Errorf("%v, %v", st, err)
	}
}

// TestReceiptReplacesNoResult: the receipt takes the place of nothing that the program
// left, or that came meanwhile.
func TestReceiptReplacesNoResult(t *testing.T) {
	for name, c := range map[string]struct {
		receipt string
		before  func(t *testing.T)
		during  func(t *testing.T)
		want    string // in the receipt's file after that; empty: a receipt
	}{
		"left by the program": {"result.csv", nil, nil, "1,2\n"},
		"below":               {"mine/../result.csv", func(t *testing.T) { put(t, "mine/x", "") }, nil, "1,2\n"},
		"there, and gone meanwhile": {"result.csv", func(t *testing.T) { put(t, "result.csv", "mine") }, func(t *testing.T) {
			if err := os.Remove("result.csv"); err != nil {
				t.Fatal(err)
			}
		}, "1,2\n"},
		"made meanwhile": {"r.json", nil, func(t *testing.T) { put(t, "r.json", "mine") }, "mine"},
		"replaced":       {"r.json", func(t *testing.T) { put(t, "r.json", "mine") }, func(t *testing.T) { put(t, "r.json", "changed") }, ""},
		"new":            {"r.json", nil, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			if c.before != nil {
				c.before(t)
			}
			p := newPerson(t)
			p.has(exited(3), someFiles)
			if run := p.host.run; c.during != nil {
				p.host.run = func(ctx context.Context, r api.RunRequest, on func(api.Event) error) (*api.Outcome, error) {
					c.during(t)
					return run(ctx, r, on)
				}
			}
			code, says := 3, "2 files (8 B) and 2 folders in ."
			if c.want != "" {
				code, says = 125, "--receipt: the receipt could not be written to "+c.receipt+": it is there already"
			}
			p.expect(Command{Output: ".", Receipt: c.receipt}, code, says)
			b, err := os.ReadFile(c.receipt)
			if err != nil {
				t.Fatal(err)
			}
			if c.want != "" && string(b) != c.want {
				t.Errorf("%q, want %q", b, c.want)
			}
			if c.want == "" {
				readReceipt(t, c.receipt)
			}
			if b, err := os.ReadFile("result.csv"); err != nil || string(b) != "1,2\n" {
				t.Errorf("the result: %q, %v", b, err)
			}
			if left, err := filepath.Glob(".*"); err != nil || len(left) > 0 {
				t.Errorf("left behind: %q", left)
			}
		})
	}
}

// TestHalfWords: what is said of a delivery that is not done is where all of it is.
func TestHalfWords(t *testing.T) {
	why := errors.New("no space left")
	for _, c := range []struct {
		err  error
		says string
	}{
		{&outputs.HalfError{Path: "out/.h/files", Err: why}, "no space left; what the program left is in out and the rest of it in out/.h/files"},
		{&outputs.HalfError{Path: "out/.h/files", Whole: true, Err: why}, "no space left; what the program left is in out/.h/files, a hidden folder"},
		{&outputs.KeptError{Path: "out/k", Err: why}, "no space left; what the program left is in out/k instead"},
	} {
		if got := (&delivery{err: c.err, there: true}).words("out"); !strings.HasPrefix(got, c.says) {
			t.Errorf("%q, want %q", got, c.says)
		}
	}
}

// TestOutputBeforeInputs: what a killed command left in the folder is dealt with before
// the same folder is taken along.
func TestOutputBeforeInputs(t *testing.T) {
	t.Chdir(t.TempDir())
	put(t, "data.csv", "1")
	for _, name := range []string{".pybox-output-0123456789abcdef", ".pybox-output-fedcba9876543210"} {
		if err := os.Mkdir(name, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	put(t, ".pybox-output-fedcba9876543210/of/another", "command")
	p := newPerson(t)
	p.has(exited(0), someFiles)
	p.expect(Command{Inputs: []string{".=."}, Output: "."}, 0, "in .\n")
	if in := p.host.runs[0].Inputs; len(in) != 1 || in[0].Name != "data.csv" {
		t.Errorf("%+v", in)
	}
}

// TestDeliverEndings: who left something gets it, however it ended.
func TestDeliverEndings(t *testing.T) {
	for _, c := range []struct {
		r     *receipt.Receipt
		files map[string]string
		code  int
		says  string
		there bool
	}{
		{ended(receipt.HowDeadline, receipt.ByAgent, nil), someFiles, 124, "2 files (8 B) and 2 folders in out", true},
		{ended(receipt.HowMemory, receipt.ByKernelOOM, nil), someFiles, 137, "in out", true},
		{exited(0), nil, 0, "pybox: the program left nothing for out", true},
		{exited(0), map[string]string{"one": "1"}, 0, "pybox: 1 file (1 B) in out", true},
		{receipttest.Ended("x", receipt.Ending{How: receipt.HowRefused, By: receipt.ByAgent, Reason: receipt.ReasonSettings}, nil), nil, 126, "", false},
		{ended(receipt.HowCancelled, receipt.ByClient, nil), nil, 130, "", false},
		{ended(receipt.HowVMLost, receipt.ByHost, nil), nil, 125, "pybox: --output: the run was lost, and what the program left with it: nothing was put into out.", false},
	} {
		t.Chdir(t.TempDir())
		p := newPerson(t)
		p.has(c.r, c.files)
		p.expect(Command{Output: "out"}, c.code, c.says)
		if _, err := os.Stat("out"); (err == nil) != c.there {
			t.Errorf("%+v: %v", c.r.Ending, err)
		} else if c.there {
			expectFiles(t, "out", c.files)
		}
		if c.says == "" && strings.Contains(p.err.String(), "--output") {
			t.Errorf("stderr %q", p.err.String())
		}
	}
}

// TestNotDelivered: what is not where it belongs is said, with the exit code 125.
func TestNotDelivered(t *testing.T) {
	gone := fmt.Errorf("%w in the middle of a file", api.ErrHungUp)
	for name, c := range map[string]struct {
		command Command
		change  func(t *testing.T, p *person, r *receipt.Receipt)
		says    []string
		where   string // of everything; empty: nowhere
		forgets bool
	}{
		"taken": {Command{Output: "mine"}, func(t *testing.T, _ *person, _ *receipt.Receipt) { put(t, "mine/result.csv", "mine") },
			[]string{`pybox: --output: "mine/result.csv" is there already`, "what the program left is in mine/pybox-results-5319e024 instead. The run itself: exit code 7"}, "mine/pybox-results-5319e024", true},
		"made meanwhile": {Command{Output: "out"}, func(t *testing.T, p *person, _ *receipt.Receipt) {
			file := p.host.file
			p.host.file = func(ctx context.Context, id string) (io.ReadCloser, error) {
				put(t, "out/x", "mine")
				return file(ctx, id)
			}
		}, []string{`"out" is there already`, "is in pybox-results-5319e024/out instead"}, "pybox-results-5319e024/out", true},
		"other bytes": {Command{Output: "out"}, func(_ *testing.T, _ *person, r *receipt.Receipt) { r.Program.Files[3].SHA256 = new(hexSum("x")) },
			[]string{`"result.csv": what came is not what the receipt says`, "nothing was put into out; the daemon has the files until ten minutes after the run", "GET /v1/files/ID", "\n  left-plots/a.png  plots/a.png\n  left-result.csv  result.csv\n"}, "", false},
		"no such file": {Command{OutputTar: "out"}, func(_ *testing.T, p *person, _ *receipt.Receipt) {
			p.host.file = func(context.Context, string) (io.ReadCloser, error) { return nil, problem(api.ProblemFile) }
		}, []string{"pybox: --output-tar: ", "no such thing", "nothing was put into out, and the daemon does not have the files any more"}, "", false},
		"daemon died": {Command{Output: "out"}, func(_ *testing.T, p *person, _ *receipt.Receipt) {
			p.host.file = func(context.Context, string) (io.ReadCloser, error) { return io.NopCloser(cutOff{gone}), nil }
		}, []string{"hung up", "nothing was put into out, and the files are gone with the daemon. The run itself: exit code 7"}, "", false},
		"stored receipt": {Command{Output: "out"}, func(_ *testing.T, _ *person, r *receipt.Receipt) { *r = *withoutIDs(r) },
			[]string{"the daemon was lost, and the files with it: nothing was put into out"}, "", false},
		"a hostile list": {Command{Output: "out"}, func(_ *testing.T, _ *person, r *receipt.Receipt) { r.Program.Files[0].Name = "../x\x1b[2J" },
			[]string{"the list of files cannot be", "nothing was put into out"}, "", false},
		"not kept": {Command{Output: "out"}, func(_ *testing.T, _ *person, r *receipt.Receipt) {
			r.Program.Files = append(r.Program.Files, receipt.File{Name: "lost", Bytes: 5, Reason: receipt.FileNotKept})
		}, []string{"not everything that the program left could be kept", "the rest is in out"}, "out", true},
		"not known": {Command{Output: "out"}, func(_ *testing.T, _ *person, r *receipt.Receipt) {
			r.Unknown = append(r.Unknown, receipt.Unknown{Fact: receipt.FactFiles, Why: "there was no time"})
		}, []string{"not everything that the program left is known", "the rest is in out"}, "out", true},
		"nothing known": {Command{Output: "out"}, func(_ *testing.T, _ *person, r *receipt.Receipt) {
			r.Program.Files = []receipt.File{}
			r.Unknown = append(r.Unknown, receipt.Unknown{Fact: receipt.FactFiles, Why: receipt.WhyFiles})
		}, []string{"not everything that the program left is known: nothing was put into out"}, "", false},
	} {
		for _, quiet := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, quiet %t", name, quiet), func(t *testing.T) {
				t.Chdir(t.TempDir())
				p := newPerson(t)
				r := exited(7)
				p.has(r, someFiles)
				c.change(t, p, r)
				c.command.Quiet = quiet
				p.expect(c.command, 125, c.says...)
				if strings.Contains(p.err.String(), "\x1b") {
					t.Errorf("stderr %q", p.err.String())
				}
				if c.where != "" {
					expectFiles(t, c.where, someFiles)
				} else if _, err := os.Lstat("out"); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("%v", err)
				}
				if (len(p.host.forgotten) > 0) != c.forgets {
					t.Errorf("forgotten: %q", p.host.forgotten)
				}
			})
		}
	}
}

type cutOff struct{ err error }

func (c cutOff) Read([]byte) (int, error) { return 0, c.err }

// TestMissingIsSaid: what did not come back by a limit or by its kind changes no exit
// code.
func TestMissingIsSaid(t *testing.T) {
	t.Chdir(t.TempDir())
	p := newPerson(t)
	r := exited(0)
	p.has(r, someFiles)
	r.Program.Files = append(r.Program.Files, receipt.File{Name: "link", Reason: receipt.FileLink}, receipt.File{Name: "big", Bytes: 1 << 40, Reason: receipt.FileTooLarge})
	r.Program.FilesUnlisted = []receipt.FileCount{{Reason: receipt.FileTooMany, Count: 1000, Bytes: 5}}
	p.expect(Command{Output: "out"}, 0, "pybox: 2 files (8 B) and 2 folders in out; 1002 did not come back, and the receipt says why\n")
}

// TestUndeliveredJSON: what can still be fetched keeps its id.
func TestUndeliveredJSON(t *testing.T) {
	t.Chdir(t.TempDir())
	p := newPerson(t)
	r := exited(0)
	p.has(r, someFiles)
	p.host.file = func(context.Context, string) (io.ReadCloser, error) { return nil, problem(api.ProblemInternal) }
	p.expect(Command{Output: "out", JSON: true, Receipt: "r.json"}, 125, "pybox: --output: ")
	if !strings.Contains(p.out.String(), `"left-result.csv"`) || strings.Contains(p.err.String(), "left-") {
		t.Errorf("stdout %s, stderr %q", p.out.String(), p.err.String())
	}
	if b, err := os.ReadFile("r.json"); err != nil || strings.Contains(string(b), "left-") {
		t.Errorf("%s, %v", b, err)
	}
}

// TestInterruptedFetch: an interrupt ends the fetching; nothing is there, and the
// receipt comes.
func TestInterruptedFetch(t *testing.T) {
	t.Chdir(t.TempDir())
	p := newPerson(t)
	r := exited(0)
	p.has(r, someFiles)
	p.host.file = func(ctx context.Context, _ string) (io.ReadCloser, error) {
		p.signals <- os.Interrupt
		<-ctx.Done()
		return nil, ctx.Err()
	}
	p.expect(Command{Output: "out"}, 130, "PyBox receipt", "interrupted: nothing was put into out; the daemon has the files", "left-result.csv")
	if _, err := os.Lstat("out"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
	if len(p.host.cancelled) != 0 {
		t.Errorf("cancelled: %q", p.host.cancelled)
	}
}

// TestPipeEndsWhileFetched: nobody reads the output any more just as the run ends by
// itself: what it left is delivered, however long that takes.
func TestPipeEndsWhileFetched(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		p := newPerson(t)
		p.world.Stdout = &failing{syscall.EPIPE, 0}
		p.has(exited(0), someFiles)
		run, file := p.host.run, p.host.file
		p.host.run = func(ctx context.Context, r api.RunRequest, on func(api.Event) error) (*api.Outcome, error) {
			out, err := run(ctx, r, on)
			time.Sleep(receiptWait / 2) // the box is removed
			return out, err
		}
		p.host.cancel = func(string) error { return problem(api.ProblemNotFound) }
		p.host.file = func(ctx context.Context, id string) (io.ReadCloser, error) {
			time.Sleep(receiptWait)
			return file(ctx, id)
		}
		p.run(Command{Output: filepath.Join(dir, "out")})
		expectFiles(t, filepath.Join(dir, "out"), someFiles)
	})
}

// TestTooLateSaysWhere: who gives a command up that was to deliver is told so, also
// where nobody reads the output.
func TestTooLateSaysWhere(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		p := newPerson(t)
		p.world.Stdout = &failing{syscall.EPIPE, 0}
		end := make(chan struct{})
		p.host.run = func(ctx context.Context, r api.RunRequest, on func(api.Event) error) (*api.Outcome, error) {
			_, _ = tell(exited(0), "1printed\n")(ctx, r, on)
			<-end
			return nil, context.Canceled
		}
		p.host.cancel = func(string) error { return nil }
		p.expect(Command{Output: filepath.Join(dir, "out")}, 141, "its receipt did not come within 20s")
		close(end)
	})
}

// TestInterruptedPublishing: a second interrupt does not cut off the moves.
func TestInterruptedPublishing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPerson(t)
		x := newExecution(t.Context(), Command{Output: "out"}, p.world)
		x.accepted("5319e024")
		x.enter(publishing)
		code := make(chan int, 1)
		go func() { code <- x.attend() }()
		for range 3 {
			p.signals <- os.Interrupt
			synctest.Wait()
		}
		if len(code) > 0 {
			t.Errorf("left with %d", <-code)
			return
		}
		x.enter(delivering)
		p.signals <- os.Interrupt
		if c := <-code; c != 130 {
			t.Errorf("exit code %d", c)
		}
		x.display.close(closePatience)
	})
}

// TestStalledFetch: a daemon that sends nothing any more is waited for with a bound.
func TestStalledFetch(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		p := newPerson(t)
		p.has(exited(0), someFiles)
		p.host.file = func(ctx context.Context, _ string) (io.ReadCloser, error) {
			return io.NopCloser(silent{ctx}), nil
		}
		began := time.Now()
		p.expect(Command{Output: filepath.Join(dir, "out")}, 125, "the daemon sent nothing for 1m0s: nothing was put into")
		if took := time.Since(began); took < fetchStall || took > 2*fetchStall {
			t.Errorf("took %v", took)
		}
	})
}

type silent struct{ ctx context.Context }

func (s silent) Read([]byte) (int, error) {
	<-s.ctx.Done()
	return 0, s.ctx.Err()
}

// TestFilesLost: a run whose daemon is lost says what it took along.
func TestFilesLost(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	put(t, "d/small", "small")
	large := strings.Repeat("x", maxSmall+1)
	put(t, "d/large", large)
	synctest.Test(t, func(t *testing.T) {
		p := newPerson(t)
		p.stores()
		p.host.run = loses(accepted, api.Event{Event: api.EventStarted})
		p.expect(Command{Inputs: []string{"d"}, Output: filepath.Join(dir, "out")}, 125)
		r := p.host.put
		receipttest.Check(t, r)
		want := []receipt.Input{{Name: "d/large", Bytes: int64(len(large))}, {Name: "d/small", Bytes: 5}}
		if got := r.Configured.Inputs; len(got) != 2 || got[0].Name != want[0].Name || got[0].Bytes != want[0].Bytes || *got[0].SHA256 != hexSum(large) || *got[1].SHA256 != hexSum("small") {
			t.Errorf("%+v", got)
		}
	})
	if _, err := os.Lstat("out"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
}
