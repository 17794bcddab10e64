package repair

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aymanbagabas/go-udiff"
	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/engine"
	"github.com/pybox/pybox/host/engine/enginetest"
	"github.com/pybox/pybox/host/repair/answer"
	"github.com/pybox/pybox/host/repair/history"
	"github.com/pybox/pybox/host/repair/loop"
	"github.com/pybox/pybox/host/repair/modeltest"
	"github.com/pybox/pybox/host/repair/provider"
	"github.com/pybox/pybox/host/repair/wire"
)

const (
	broken = "x = 0  # broken\nprint(x)\n"
	works  = "x = 1\nprint(x)\n"
	secret = "sk-proj-0123456789abcdef"
)

// desk is where a command runs in tests.
type desk struct {
	t        *testing.T
	dir      string
	env      map[string]string
	host     *enginetest.Host
	in       string
	terminal bool
	out, err bytes.Buffer
}

func newDesk(t *testing.T) *desk {
	d := &desk{t: t, dir: t.TempDir(), env: map[string]string{}}
	t.Chdir(d.dir)
	d.host = &enginetest.Host{ImageNames: []string{"stdlib", "data"}, Program: func(_ context.Context, r *enginetest.Run) error {
		if text := textOf(r, r.Request.Program); strings.Contains(text, "broken") {
			r.Exit(1)
			return r.Print("stderr", "Traceback\n\x1b]0;owned\aSomeError: it is broken\n")
		}
		return r.Print("stdout", "printed\n")
	}}
	d.write("a.py", broken)
	return d
}

func textOf(r *enginetest.Run, s api.Source) string {
	if s.Text != nil {
		return *s.Text
	}
	return string(r.Stored[s.File])
}

func (d *desk) write(name, text string) {
	d.t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o640); err != nil {
		d.t.Fatal(err)
	}
}

func (d *desk) read(name string) string {
	d.t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		d.t.Fatal(err)
	}
	return string(b)
}

// run runs a command, which has the defaults of the command line.
func (d *desk) run(ctx context.Context, c Command) int {
	d.t.Helper()
	d.out.Reset()
	d.err.Reset()
	if c.File == "" {
		c.File = "a.py"
	}
	if c.Rounds == 0 {
		c.Rounds = DefaultRounds
	}
	if c.Tokens == 0 {
		c.Tokens = DefaultTokens
	}
	return c.Run(ctx, World{
		Stdin: strings.NewReader(d.in), Stdout: &d.out, Stderr: &d.err, OutTerminal: d.terminal, ErrTerminal: d.terminal,
		LookupEnv: func(k string) (string, bool) { v, ok := d.env[k]; return v, ok },
		Host:      d.host, Home: d.dir, Wire: wire.Limits{Idle: 300 * time.Millisecond},
	})
}

func (d *desk) kept() (all []string) {
	d.t.Helper()
	entries, err := os.ReadDir(filepath.Join(d.dir, folder))
	if err != nil && !os.IsNotExist(err) {
		d.t.Fatal(err)
	}
	for _, e := range entries {
		all = append(all, filepath.Join(d.dir, folder, e.Name()))
	}
	return all
}

func (d *desk) history(text string) (h history.History) {
	d.t.Helper()
	if err := json.Unmarshal([]byte(text), &h); err != nil {
		d.t.Fatalf("%v: %.300s", err, text)
	}
	return h
}

func TestRepairs(t *testing.T) {
	for _, name := range []string{provider.OpenAI, provider.Anthropic} {
		d := newDesk(t)
		reply := modeltest.OpenAI("```\n"+works+"```", "stop")
		if name == provider.Anthropic {
			reply = modeltest.Anthropic("```\n"+works+"```", "end_turn")
		}
		s := modeltest.New(t, modeltest.Status(429, map[string]string{"Retry-After": "0"}, `{"error":{"message":"slow \u001b[31m"}}`), reply)
		d.env["OPENAI_API_KEY"], d.env["ANTHROPIC_API_KEY"] = secret, secret
		code := d.run(t.Context(), Command{Provider: name, BaseURL: s.URL, Model: "m", Output: "fixed.py", History: "history.json"})
		if code != ExitDone || d.out.Len() != 0 || d.read("fixed.py") != works || d.read("a.py") != broken {
			t.Fatalf("%s: %d\n%s\n%s", name, code, d.out.String(), d.err.String())
		}
		if st, err := os.Stat("fixed.py"); err != nil || st.Mode().Perm() != 0o640 {
			t.Errorf("%v, %v", st, err)
		}
		for _, want := range []string{"m at " + s.URL, "asking again in 0.00 s", "+1 -1 lines", "| \\x1b]0;owned\\x07SomeError: it is broken", "Repaired", "-x = 0  # broken\n+x = 1\n", "fixed.py"} {
			if !strings.Contains(d.err.String(), want) {
				t.Errorf("%s: does not say %q:\n%s", name, want, d.err.String())
			}
		}
		h := d.history(d.read("history.json"))
		if h.Schema != history.Schema || !h.OK || h.End.By != history.EndRepaired || h.Model.Name != "m" || h.Model.Provider != name || len(h.Rounds) != 2 || h.Rounds[1].Answer.Tries != 2 || h.Output != "fixed.py" {
			t.Errorf("%s: %+v", name, h)
		}
		if r := h.Rounds[0].Run.Receipt; r == nil || r.Program.Stderr.Text == nil || !strings.Contains(*r.Program.Stderr.Text, "SomeError") {
			t.Errorf("%s: %+v", name, r)
		}
		kept := d.kept()
		if len(kept) != 1 {
			t.Fatalf("%s: kept %v", name, kept)
		}
		if st, err := os.Stat(kept[0]); err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%v, %v", st, err)
		}
		k := d.history(d.read(kept[0]))
		if k.Rounds[0].Run.Receipt == nil || k.Rounds[0].Run.Receipt.Program.Stderr.Text != nil || k.Rounds[1].Diff == "" {
			t.Errorf("%s: kept %+v", name, k)
		}
		d.nothingSecret(append(kept, "history.json", "fixed.py")...)
	}
}

// nothingSecret looks for the key in all that there is.
func (d *desk) nothingSecret(names ...string) {
	d.t.Helper()
	all := d.out.String() + d.err.String()
	for _, n := range names {
		all += d.read(n)
	}
	if strings.Contains(all, secret) {
		d.t.Errorf("the key is in\n%s", all)
	}
	if strings.ContainsAny(d.err.String(), "\x1b\a") {
		d.t.Errorf("control characters reach the terminal: %q", d.err.String())
	}
}

func TestStandardOutput(t *testing.T) {
	d := newDesk(t)
	s := modeltest.New(t, modeltest.OpenAI("```\n"+works+"```", "stop"))
	if code := d.run(t.Context(), Command{BaseURL: s.URL, Model: "m"}); code != ExitDone || d.out.String() != works {
		t.Errorf("%d, %q\n%s", code, d.out.String(), d.err.String())
	}
	d.in = broken
	if code := d.run(t.Context(), Command{File: "-", BaseURL: s.URL, Model: "m", Quiet: true}); code != ExitDone || d.out.String() != works || d.err.Len() != 0 {
		t.Errorf("%d, %q\n%s", code, d.out.String(), d.err.String())
	}
	if code := d.run(t.Context(), Command{BaseURL: s.URL, Model: "m", JSON: true}); code != ExitDone || !d.history(d.out.String()).OK {
		t.Errorf("%d, %s", code, d.out.String())
	}
	// Fine from the start: the same program, so that "> fixed.py" is one in any case.
	d.write("fine.py", "print(1)")
	asked := len(s.Requests())
	if code := d.run(t.Context(), Command{File: "fine.py", BaseURL: s.URL, Model: "m", Output: "copy.py"}); code != ExitDone || d.read("copy.py") != "print(1)" || len(s.Requests()) != asked {
		t.Errorf("%d\n%s", code, d.err.String())
	}
	// On a terminal nothing that the program has moves the cursor.
	d.write("odd.py", "print('\x1b[2J')\t# tab\n")
	d.terminal = true
	if code := d.run(t.Context(), Command{File: "odd.py", BaseURL: s.URL, Model: "m"}); code != ExitDone || d.out.String() != "print('\\x1b[2J')\t# tab\n" {
		t.Errorf("%d %q", code, d.out.String())
	}
}

func TestNotRepaired(t *testing.T) {
	d := newDesk(t)
	d.env["OPENAI_API_KEY"] = secret
	for _, c := range []struct {
		name  string
		reply modeltest.Reply
		c     Command
		by    string
	}{
		{"rounds", modeltest.OpenAI("no", "stop"), Command{Rounds: 2}, history.EndRounds},
		{"repetition", modeltest.OpenAI("```\nbroken\n```", "stop"), Command{}, history.EndRepetition},
		{"the model's time", modeltest.Stall(""), Command{ModelBudget: "0.2"}, history.EndModelTime},
		{"the whole", modeltest.Stall(""), Command{Budget: "0.2"}, history.EndWall},
		{"tokens", modeltest.OpenAI("no", "stop"), Command{Tokens: 1200, Rounds: 99}, history.EndTokens},
		{"a wrong key", modeltest.Status(401, nil, `{"error":{"message":"Incorrect API key provided: `+secret+`"}}`), Command{}, history.EndModel},
		{"busy for long", modeltest.Status(429, map[string]string{"Retry-After": "3600"}, `{}`), Command{}, history.EndModel},
		{"elsewhere", modeltest.Status(302, map[string]string{"Location": "http://127.0.0.1:1/"}, ``), Command{}, history.EndModel},
	} {
		s := modeltest.New(t, c.reply)
		c.c.BaseURL, c.c.Model, c.c.Output = s.URL, "m", "never.py"
		code := d.run(t.Context(), c.c)
		if code != ExitFailed || d.out.Len() != 0 || !strings.Contains(d.err.String(), "("+c.by+")") {
			t.Errorf("%s: %d\n%s", c.name, code, d.err.String())
		}
		if _, err := os.Lstat("never.py"); err == nil {
			t.Errorf("%s: a program that does not work was written", c.name)
		}
		c.c.Output, c.c.Quiet = "", true
		if code := d.run(t.Context(), c.c); code != ExitFailed || strings.Count(d.err.String(), "\n") != 1 || !strings.Contains(d.err.String(), c.by) {
			t.Errorf("%s, quiet: %d %q", c.name, code, d.err.String())
		}
		d.nothingSecret(d.kept()...)
	}
	if d.read("a.py") != broken {
		t.Error("the original was changed")
	}
}

func TestInterrupt(t *testing.T) {
	d := newDesk(t)
	s := modeltest.New(t, modeltest.Stall(modeltest.OpenAIChunk(`{"content":"x"}`, "null")))
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(100*time.Millisecond, cancel)
	if code := d.run(ctx, Command{BaseURL: s.URL, Model: "m", JSON: true}); code != ExitInterrupted || d.history(d.out.String()).End.By != history.EndInterrupted {
		t.Errorf("%d\n%s%s", code, d.out.String(), d.err.String())
	}
	// Before there is anything to tell.
	s = modeltest.New(t, modeltest.Stall(""))
	ctx, cancel = context.WithCancel(t.Context())
	time.AfterFunc(100*time.Millisecond, cancel)
	if code := d.run(ctx, Command{BaseURL: s.URL}); code != ExitInterrupted || d.err.String() != "pybox: interrupted\n" {
		t.Errorf("%d\n%s", code, d.err.String())
	}
}

// TestUsage: what cannot be is refused before a program runs or a model is asked.
func TestUsage(t *testing.T) {
	d := newDesk(t)
	s := modeltest.New(t, modeltest.OpenAI("```\n"+works+"```", "stop"))
	d.write("there.py", "mine")
	d.write("nul.py", "a\x00b")
	d.write("latin.py", "# \xe9\n")
	d.write("blank.py", " \n")
	d.write("large.py", strings.Repeat("#", 256<<10+1))
	for _, dir := range []string{"folder", "sub"} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	d.write("sub/a.py", "another")
	d.write("check.py", "assert 1")
	if err := os.Symlink("nowhere", "dangling"); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		say string
		c   Command
	}{
		{"no such file", Command{File: "missing.py"}},
		{"is a folder", Command{File: "folder"}},
		{"UTF-8", Command{File: "nul.py"}},
		{"UTF-8", Command{File: "latin.py"}},
		{"empty", Command{File: "blank.py"}},
		{"256 KiB", Command{File: "large.py"}},
		{"--output: there.py: it is there already", Command{Output: "there.py"}},
		{"--output: a.py: it is there already", Command{Output: "a.py"}},
		{"--output: dangling: it is there already", Command{Output: "dangling"}},
		{"no file can be made in none", Command{Output: "none/x.py"}},
		{"--history: there.py", Command{History: "there.py"}},
		{"--history: it is the file of --output", Command{Output: "x", History: "./x"}},
		{"--history: it is the file of --output", Command{Output: "x.py", History: filepath.Join(d.dir, "X.py")}},
		{"--output: want a new file", Command{Output: "-"}},
		{"--history: want a new file", Command{History: "-"}},
		{"--check: want a file", Command{Check: "-"}},
		{"--model", Command{Model: strings.Repeat("x", 201)}},
		{"--check: it has the name", Command{Check: "sub/a.py"}},
		{"--check", Command{Check: "missing.py"}},
		{"has the name of the check", Command{Check: "check.py", Inputs: []string{"there.py=check.py/x"}}},
		{"has the name of the check", Command{Check: "check.py", Inputs: []string{"there.py=CHECK.py/x"}}},
		{"has the name of the check", Command{Check: "check.py", Inputs: []string{"there.py=check.py"}}},
		{"--input", Command{Inputs: []string{"missing.csv"}}},
		{"--input", Command{Inputs: []string{"there.py=a.py"}}},
		{"--stdin", Command{Stdin: "missing"}},
		{"both \"-\"", Command{File: "-", Stdin: "-"}},
		{"--env", Command{Env: []string{"UNSET"}}},
		{"--max-rounds", Command{Rounds: 101}},
		{"--max-rounds", Command{Rounds: -1}},
		{"--token-budget", Command{Tokens: -1}},
		{"--budget", Command{Budget: "soon"}},
		{"--budget", Command{Budget: "0"}},
		{"--model-budget", Command{ModelBudget: "-1"}},
		{"--run-budget", Command{RunBudget: "x"}},
		{"--timeout", Command{Timeout: "x"}},
		{"above the ceiling", Command{Timeout: "1h"}},
		{"above the ceiling", Command{Memory: "1TiB"}},
		{"--memory", Command{Memory: "much"}},
		{"--cpus", Command{CPUs: "NaN"}},
		{"--pids", Command{PIDs: "1.5"}},
		{"no image", Command{Image: "tensor"}},
		{"--provider", Command{Provider: "x"}},
		{"--goal", Command{Goal: strings.Repeat("x", maxGoal+1)}},
	} {
		if c.c.BaseURL = s.URL; c.c.Model == "" {
			c.c.Model = "m"
		}
		if code := d.run(t.Context(), c.c); code != ExitUsage || !strings.Contains(d.err.String(), c.say) || strings.Count(d.err.String(), "\n") != 1 {
			t.Errorf("%+v: %d\n%s", c.c, code, d.err.String())
		}
	}
	if len(s.Requests()) != 0 || d.host.Starts() != 0 || len(d.kept()) != 0 || d.read("there.py") != "mine" {
		t.Errorf("%d questions, %d starts, kept %v", len(s.Requests()), d.host.Starts(), d.kept())
	}
	for _, c := range []Command{{}, {Provider: "openai", BaseURL: "http://gpu.example/v1"}} {
		d.env["OPENAI_API_KEY"] = map[bool]string{true: secret}[c.BaseURL != ""]
		if code := d.run(t.Context(), c); code != ExitUsage {
			t.Errorf("%+v: %d\n%s", c, code, d.err.String())
		}
		d.nothingSecret()
	}
}

// TestAlong: what goes along is in each box, and the model is told the names.
func TestAlong(t *testing.T) {
	d := newDesk(t)
	d.write("in.csv", "INPUT")
	d.write("given", "STDIN")
	if err := errors.Join(os.MkdirAll("dir/empty", 0o755), os.WriteFile("dir/tool", []byte("#!x"), 0o755)); err != nil {
		t.Fatal(err)
	}
	d.write("check.py", "CHECK")
	d.env["PASSED"] = "on"
	var seen []string
	inner := d.host.Program
	d.host.Program = func(ctx context.Context, r *enginetest.Run) error {
		var s []string
		for _, i := range r.Request.Inputs {
			s = append(s, fmt.Sprintf("%s%s=%.5s", i.Name, map[bool]string{true: "*"}[i.Executable]+map[bool]string{true: "/"}[i.Folder], textOf(r, i.Source)))
		}
		in := ""
		if r.Request.Stdin != nil {
			in = textOf(r, *r.Request.Stdin)
		}
		seen = append(seen, fmt.Sprintf("%s %v %v %s %v %v %v", r.Request.Program.Name, r.Request.Args, s, in, r.Request.Env, *r.Request.Limits.TimeoutMS, r.Request.Image))
		return inner(ctx, r)
	}
	s := modeltest.New(t, modeltest.OpenAI("```\n"+works+"```", "stop"))
	code := d.run(t.Context(), Command{
		BaseURL: s.URL, Model: "m", Inputs: []string{"in.csv=data/in.csv", "dir"}, Stdin: "given", Check: "check.py", Env: []string{"PASSED", "A=b"}, Args: []string{"-x"},
		Timeout: "3", Image: "data", Goal: "GOAL", Expect: "printed",
	})
	want := []string{
		"a.py [-x] [data/in.csv=INPUT dir/= dir/empty/= dir/tool*=#!x] STDIN [PASSED=on A=b] 3000 data",
		"a.py [-x] [data/in.csv=INPUT dir/= dir/empty/= dir/tool*=#!x] STDIN [PASSED=on A=b] 3000 data",
		"check.py [] [data/in.csv=INPUT dir/= dir/empty/= dir/tool*=#!x a.py=x = 1]  [PASSED=on A=b] 3000 data",
	}
	if code != ExitDone || strings.Join(seen, "\n") != strings.Join(want, "\n") {
		t.Errorf("%d\n%s\n%s", code, strings.Join(seen, "\n"), d.err.String())
	}
	q := s.Requests()[0].Text
	for _, w := range []string{"GOAL", "printed", `"data/in.csv"`, `"dir/empty/"`, `"-x"`} {
		if !strings.Contains(q, w) {
			t.Errorf("the model is not told %s", w)
		}
	}
	for _, w := range []string{"INPUT", "STDIN", "CHECK", d.dir, "PASSED"} {
		if strings.Contains(q, w) {
			t.Errorf("the model is told %s", w)
		}
	}
}

// TestModelOfServer: without --model the only one of the server is taken.
func TestModelOfServer(t *testing.T) {
	d := newDesk(t)
	s := modeltest.New(t, modeltest.Status(200, nil, `{"data":[{"id":"only"}]}`), modeltest.OpenAI("```\n"+works+"```", "stop"))
	if code := d.run(t.Context(), Command{BaseURL: s.URL}); code != ExitDone || s.Requests()[1].Body["model"] != "only" || !strings.Contains(d.err.String(), "only at ") {
		t.Errorf("%d\n%s", code, d.err.String())
	}
	s = modeltest.New(t, modeltest.Status(200, nil, `{"data":[{"id":"a"},{"id":"b"}]}`))
	if code := d.run(t.Context(), Command{BaseURL: s.URL}); code != ExitUsage || !strings.Contains(d.err.String(), "a, b") {
		t.Errorf("%d\n%s", code, d.err.String())
	}
	s = modeltest.New(t, modeltest.Status(401, nil, `{}`))
	if code := d.run(t.Context(), Command{BaseURL: s.URL}); code != ExitFailed || !strings.Contains(d.err.String(), "--model") {
		t.Errorf("%d\n%s", code, d.err.String())
	}
}

// TestTakenMeanwhile: what came to the place of the output meanwhile stays, and the
// program is not lost.
func TestTakenMeanwhile(t *testing.T) {
	d := newDesk(t)
	s := modeltest.New(t, modeltest.OpenAI("```\n"+works+"```", "stop"))
	inner := d.host.Program
	d.host.Program = func(ctx context.Context, r *enginetest.Run) error {
		d.write("fixed.py", "another's")
		return inner(ctx, r)
	}
	if code := d.run(t.Context(), Command{BaseURL: s.URL, Model: "m", Output: "fixed.py"}); code != ExitFailed || d.read("fixed.py") != "another's" || !strings.Contains(d.err.String(), "nothing is overwritten") {
		t.Errorf("%d\n%s", code, d.err.String())
	}
	if d.out.String() != works || !strings.Contains(d.err.String(), "the program is printed instead") {
		t.Errorf("%q\n%s", d.out.String(), d.err.String())
	}
	if h := d.history(d.read(d.kept()[0])); !h.OK || h.Rounds[1].Program.Text != works || h.Output != "" {
		t.Errorf("%+v", h)
	}
}

// TestKeptAreBounded: the oldest go, and nothing that is not a history.
func TestKeptAreBounded(t *testing.T) {
	dir := t.TempDir()
	var last string
	for n := range most + 5 {
		h := &history.History{StartedAt: time.Date(2026, 11, 30, 12, 0, n, 0, time.UTC)}
		k := keeper{stateDir: dir}
		for range 2 { // the second time it is the same file
			if err := k.keep(h); err != nil {
				t.Fatal(err)
			}
		}
		last = k.path
		if n == 0 {
			if err := os.WriteFile(filepath.Join(dir, folder, "notes.json"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	entries, err := os.ReadDir(filepath.Join(dir, folder))
	if err != nil || len(entries) != most+1 || entries[0].Name()[:15] != "20261130T120005" || entries[most].Name() != "notes.json" || filepath.Base(last) != entries[most-1].Name() {
		t.Errorf("%v, %v", entries, err)
	}
	if err := os.Chmod(filepath.Join(dir, folder), fs.FileMode(0o777)); err != nil {
		t.Fatal(err)
	}
	if err := (&keeper{stateDir: dir}).keep(&history.History{}); err == nil {
		t.Error("a folder that others can write to was used")
	}
}

// TestPage: the page for people explains every end and every refusal.
func TestPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/repair.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{
		history.EndFine, history.EndRepaired, history.EndRounds, history.EndWall, history.EndModelTime, history.EndRunTime, history.EndTokens,
		history.EndRepetition, history.EndModel, history.EndRun, history.EndInterrupted, history.EndUnfinished,
		history.RefusedNoChange, history.RefusedRepeated, history.RefusedCut, history.RefusedDeclined, history.RefusedKey,
		answer.NoBlock, answer.SeveralBlocks, answer.Unterminated, answer.NotPython, answer.Empty, answer.TooLarge, answer.Binary, history.Schema,
	} {
		if !strings.Contains(string(page), "`"+word+"`") && !strings.Contains(string(page), `"`+word+`"`) {
			t.Errorf("docs/repair.md does not explain %s", word)
		}
	}
}

// lateHost is a host whose VM takes a while to start, and says nothing of it.
type lateHost struct{ *enginetest.Host }

func (h lateHost) Start(ctx context.Context, progress func(api.Status)) error {
	time.Sleep(5 * time.Second) // of synctest's
	return h.Host.Start(ctx, progress)
}

// TestStartIsFree: the start of a VM counts as such from its first moment.
func TestStartIsFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := loop.Loop{Runner: engine.New(telling{lateHost{&enginetest.Host{Down: true}}}, engine.Options{})}
		s := loop.Settings{Rounds: 1, Wall: time.Second, Run: time.Second, Model: time.Second, Tokens: 1}
		s.Job.Program = engine.File{Name: "a.py", Data: []byte("x")}
		if h := l.Run(t.Context(), s); !h.OK || h.Spent.VMStartMS != 5000 || h.Spent.WallMS != 0 {
			t.Errorf("%+v, %+v", h.End, h.Spent)
		}
	})
}

// TestKeys: what has a key in it is neither run nor told, wherever it stands.
func TestKeys(t *testing.T) {
	d := newDesk(t)
	s := modeltest.New(t, modeltest.OpenAI("```\n"+works+"```", "stop"))
	for _, name := range []string{"key.py", "input", secret + ".py", secret} {
		d.write(name, broken)
	}
	for _, name := range []string{"key.py", "input"} {
		d.write(name, broken+"# "+secret+"\n")
	}
	for _, variable := range []string{"OPENAI_API_KEY", "ANTHROPIC_API_KEY"} {
		d.env = map[string]string{variable: secret, "OTHER": secret}
		for _, c := range []Command{
			{File: "key.py"}, {File: secret + ".py"}, {Check: "key.py"}, {Check: secret + ".py"}, {Inputs: []string{"input"}}, {Inputs: []string{secret}},
			{Stdin: "input"}, {Goal: secret}, {Expect: "x" + secret}, {Args: []string{"-k", secret}}, {Model: secret},
			{Env: []string{variable}}, {Env: []string{variable + "=another"}}, {Env: []string{"OTHER"}}, {Env: []string{"OTHER=" + secret}}, {Output: secret + ".out"},
			{BaseURL: s.URL + "/" + secret},
		} {
			if c.BaseURL == "" {
				c.BaseURL = s.URL
			}
			if code := d.run(t.Context(), c); code != ExitUsage || !strings.Contains(d.err.String(), variable) {
				t.Errorf("%+v: %d\n%s", c, code, d.err.String())
			}
			d.nothingSecret()
		}
	}
	if len(s.Requests()) != 0 || d.host.Starts() != 0 {
		t.Errorf("%d questions, %d starts", len(s.Requests()), d.host.Starts())
	}
}

// TestKeyInAnswer: an answer with the key in it is refused whole.
func TestKeyInAnswer(t *testing.T) {
	d := newDesk(t)
	d.env["OPENAI_API_KEY"] = secret
	s := modeltest.New(t, modeltest.OpenAI("```\nkey = '"+secret+"'\n```", "stop"), modeltest.OpenAI("```\n"+works+"```", "stop"))
	code := d.run(t.Context(), Command{Provider: "openai", BaseURL: s.URL, Model: "m", JSON: true})
	h := d.history(d.out.String())
	if code != ExitDone || len(h.Rounds) != 3 || h.Rounds[1].Answer.Refused != history.RefusedKey || h.Rounds[1].Program != nil {
		t.Errorf("%d, %+v", code, h)
	}
	d.nothingSecret(d.kept()...)
}

// TestSaid: before anything is sent, a person is told what.
func TestSaid(t *testing.T) {
	d := newDesk(t)
	var out bytes.Buffer
	show := newDisplay(World{Stderr: &out}, false)
	p, err := provider.Choose(provider.Wish{Provider: "openai", BaseURL: "https://a.example", Getenv: func(string) string { return "" }})
	if err != nil {
		d.t.Fatal(err)
	}
	show.begin(&job{provider: p})
	show.begin(&job{provider: p, settings: loop.Settings{Check: &engine.File{}}})
	if text := strings.Join(strings.Fields(out.String()), " "); !strings.Contains(text, "the program and what it prints are sent there") || !strings.Contains(text, "what it and the check print") {
		t.Errorf("%s", text)
	}
}

// TestBrokenOffAnswersCost: the token budget holds for answers that break off too.
func TestBrokenOffAnswersCost(t *testing.T) {
	d := newDesk(t)
	var long strings.Builder
	for range 50 {
		long.WriteString(modeltest.OpenAIChunk(`{"content":"`+strings.Repeat("x", 4<<10)+`"}`, "null"))
	}
	s := modeltest.New(t, modeltest.HangUp(long.String()))
	code := d.run(t.Context(), Command{BaseURL: s.URL, Model: "m", JSON: true, Tokens: 5000})
	h := d.history(d.out.String())
	if code != ExitFailed || h.End.By != history.EndTokens || len(s.Requests()) != 1 || h.Spent.Tokens.Sum() < 50_000 || h.Rounds[1].Answer.Tokens != h.Spent.Tokens {
		t.Errorf("%d after %d questions, %+v, %+v", code, len(s.Requests()), h.End, h.Spent)
	}
}

// TestShortAnswers: a model that gives no long answers is asked for shorter ones, and
// from then on at once.
func TestShortAnswers(t *testing.T) {
	for _, name := range []string{provider.OpenAI, provider.Anthropic} {
		d := newDesk(t)
		large := modeltest.Status(400, nil, `{"type":"error","error":{"type":"invalid_request_error","message":"max_tokens: 16384 > 8192, which is the maximum allowed number of output tokens for this model"}}`)
		reply := modeltest.OpenAI
		if name == provider.Anthropic {
			reply = modeltest.Anthropic
		}
		s := modeltest.New(t, large, reply("no", map[string]string{provider.OpenAI: "stop", provider.Anthropic: "end_turn"}[name]), reply("```\n"+works+"```", map[string]string{provider.OpenAI: "stop", provider.Anthropic: "end_turn"}[name]))
		code := d.run(t.Context(), Command{Provider: name, BaseURL: s.URL, Model: "m"})
		var bounds []any
		for _, r := range s.Requests() {
			bounds = append(bounds, r.Body["max_tokens"])
		}
		if got := fmt.Sprint(bounds); code != ExitDone || got != "[16384 8192 8192]" {
			t.Errorf("%s: %d, %s\n%s", name, code, got, d.err.String())
		}
	}
}

// TestInterruptedReading: what never comes is not waited for, wherever it is from.
func TestInterruptedReading(t *testing.T) {
	d := newDesk(t)
	if err := syscall.Mkfifo("fifo", 0o600); err != nil {
		t.Fatal(err)
	}
	never, w := io.Pipe()
	defer w.Close()
	for _, c := range []Command{{File: "-"}, {Stdin: "-"}, {File: "fifo"}, {Check: "fifo"}, {Stdin: "fifo"}} {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		c.BaseURL, c.Model, c.Rounds, c.Tokens = "http://127.0.0.1:1", "m", 1, 1000
		if c.File == "" {
			c.File = "a.py"
		}
		var out bytes.Buffer
		began := time.Now()
		code := c.Run(ctx, World{Stdin: never, Stdout: io.Discard, Stderr: &out, LookupEnv: os.LookupEnv, Host: d.host, Home: d.dir})
		if code != ExitInterrupted || out.String() != "pybox: interrupted\n" || time.Since(began) > 10*time.Second {
			t.Errorf("%+v: %d after %v: %s", c, code, time.Since(began), out.String())
		}
		cancel()
	}
	// Who opened the FIFO is let go.
	f, err := os.OpenFile("fifo", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
}

// TestErrorsAfterInterrupt: what could not be written is told in any case.
func TestErrorsAfterInterrupt(t *testing.T) {
	d := newDesk(t)
	s := modeltest.New(t, modeltest.Stall(""))
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(100*time.Millisecond, cancel)
	if err := os.WriteFile(folder, nil, 0o600); err != nil { // where a folder ought to be
		t.Fatal(err)
	}
	if code := d.run(ctx, Command{BaseURL: s.URL, Model: "m"}); code != ExitInterrupted || !strings.Contains(d.err.String(), "keeping the history") {
		t.Errorf("%d\n%s", code, d.err.String())
	}
}

// TestUmask: what is written has no more permissions than the process gives away.
func TestUmask(t *testing.T) {
	d := newDesk(t)
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	d.in = broken
	s := modeltest.New(t, modeltest.OpenAI("```\n"+works+"```", "stop"))
	for file, output := range map[string]string{"-": "one.py", "a.py": "two.py"} {
		code := d.run(t.Context(), Command{File: file, BaseURL: s.URL, Model: "m", Output: output})
		if st, err := os.Stat(output); code != ExitDone || err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%s: %d, %v, %v", file, code, st, err)
		}
	}
}

// TestKeptMeanwhile: a repair that is killed leaves the rounds that it has had.
func TestKeptMeanwhile(t *testing.T) {
	d := newDesk(t)
	s := modeltest.New(t, modeltest.OpenAI("no", "stop"), modeltest.OpenAI("```\n"+works+"```", "stop"))
	inner, runs := d.host.Program, 0
	d.host.Program = func(ctx context.Context, r *enginetest.Run) error {
		if runs++; runs == 2 {
			h := d.history(d.read(d.kept()[0]))
			if h.OK || h.End.By != history.EndUnfinished || len(h.Rounds) != 2 || h.Model.Name != "m" || h.Spent.Tokens.Sum() != 120 || h.EndedAt.IsZero() {
				t.Errorf("%+v", h)
			}
		}
		return inner(ctx, r)
	}
	if code := d.run(t.Context(), Command{BaseURL: s.URL, Model: "m"}); code != ExitDone || runs != 2 || len(d.kept()) != 1 || !d.history(d.read(d.kept()[0])).OK {
		t.Errorf("%d, %v\n%s", code, d.kept(), d.err.String())
	}
}

// TestDiffShown: a diff has a bound in each direction, and its lines are counted whatever
// they begin with.
func TestDiffShown(t *testing.T) {
	before := "-- a\n-- b\n-- c\nx = '" + strings.Repeat("\t\x1b", 100_000) + "'\n"
	diff := udiff.Unified("a/a.py", "b/a.py", before, "++ d\n")
	if added, removed := counts(diff); added != 1 || removed != 4 {
		t.Errorf("+%d -%d", added, removed)
	}
	var out bytes.Buffer
	newDisplay(World{Stderr: &out}, false).diff("a.py", before, "++ d\n")
	if s := out.String(); len(s) > 4000 || !strings.Contains(s, "--- c\n") || !strings.Contains(s, "more bytes)") || strings.Contains(s, "\x1b") {
		t.Errorf("%d bytes: %.300q", len(s), s)
	}
}

// TestHostileNames: a server's names of models are bounded, and move no cursor.
func TestHostileNames(t *testing.T) {
	d := newDesk(t)
	for _, names := range []string{
		`{"id":"` + strings.Repeat("x", 900<<10) + `"}`, `{"id":"a"},{"id":"` + strings.Repeat("x", 900<<10) + `"}`,
		`{"id":"a\u001b[2J` + strings.Repeat("\u0301", 60) + `"},{"id":"b"}`,
	} {
		s := modeltest.New(t, modeltest.Status(200, nil, `{"data":[`+names+`]}`))
		if code := d.run(t.Context(), Command{BaseURL: s.URL}); code == ExitDone || d.err.Len() > 1000 || strings.Contains(d.err.String(), "\u0301\u0301\u0301") {
			t.Errorf("%d: %.2000q", code, d.err.String())
		}
		d.nothingSecret()
	}
}
