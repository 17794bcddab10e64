package daemon

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/daemon/daemontest"
	"github.com/pybox/pybox/host/receipt"
)

// TestDocs runs every block of docs/api.md as it stands there, with the host's Python
// in the place of a box.
func TestDocs(t *testing.T) {
	for _, tool := range []string{"curl", "python3", "seq", "sed"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("SKIPPED: %v", err)
		}
	}
	doc, err := os.ReadFile("../../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?ms)^```sh\n(.*?)^```$").FindAllSubmatch(doc, -1)
	o := options(t, &daemontest.Agent{Interpret: python(t)})
	o.Config.API.Listen = "127.0.0.1:0"
	r := run(t, o)
	r.start()
	var outs []string
	for _, b := range blocks {
		cmd := exec.CommandContext(r.ctx(), "sh", "-eu", "-c", string(b[1]))
		cmd.Env = append(os.Environ(), "PYBOX_HOME="+r.home.Dir())
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%v\n%s\n%s", err, b[1], out)
		}
		outs = append(outs, string(out))
	}
	for i, want := range []string{
		`"text":"42\n"`, `"text":"['count.py', 'a', 'b c'] 3\n"`, `"text":"0\n1\n2\n"`, "42", `"text":"5000050000\n"`,
		`"how":"` + receipt.HowCancelled + `"`, `"receipts":[{"id":"`, `"text":"42\n"`, `"type":"` + api.ProblemCeiling + `"`, `"by":"client"`,
	} {
		if i >= len(outs) || !strings.Contains(outs[i], want) {
			t.Errorf("block %d of %d does not say %s:\n%s", i+1, len(blocks), want, strings.Join(outs[min(i, len(outs)):min(i+1, len(outs))], ""))
		}
	}
	if err := r.wait(); err != nil {
		t.Error(err)
	}
}

// examples are what executes each of the examples that docs/api.md shows, by the language
// of its block, in the folder of docs.
var examples = map[string][]string{
	"python": {"python3", "examples/events.py"},
	"go":     {"go", "run", "examples/events.go"},
	"js":     {"node", "examples/events.mjs"},
}

// TestDocsExamples executes the examples of docs/api.md as they stand there.
func TestDocsExamples(t *testing.T) {
	doc, err := os.ReadFile("../../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	r := run(t, options(t, &daemontest.Agent{Interpret: python(t)}))
	r.start()
	for language, command := range examples {
		t.Run(language, func(t *testing.T) {
			if _, err := exec.LookPath(command[0]); err != nil {
				t.Skipf("SKIPPED: %v", err)
			}
			file, err := os.ReadFile(filepath.Join("../../docs", command[len(command)-1]))
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Contains(doc, []byte("```"+language+"\n"+string(file)+"```\n")) {
				t.Errorf("docs/api.md does not show %s as it stands", command[len(command)-1])
			}
			ctx, cancel := context.WithTimeout(t.Context(), 2*bound) // one is compiled first
			defer cancel()
			cmd := exec.CommandContext(ctx, command[0], command[1:]...)
			cmd.Dir, cmd.Env = "../../docs", append(os.Environ(), "PYBOX_HOME="+r.home.Dir())
			var stdout, stderr bytes.Buffer
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			err = cmd.Run()
			if want := regexp.MustCompile("^[0-9a-f]{8} exited\n$"); err != nil || stdout.String() != "line 0\nline 1\nline 2\n" || !want.MatchString(stderr.String()) {
				t.Errorf("%v: %q %q", err, &stdout, &stderr)
			}
		})
	}
	// Where no run comes of it, each says so and fails.
	if _, err := r.client.Stop(r.ctx(), api.StopRequest{}); err != nil {
		t.Error(err)
	}
	cmd := exec.CommandContext(r.ctx(), "python3", "examples/events.py")
	cmd.Dir, cmd.Env = "../../docs", append(os.Environ(), "PYBOX_HOME="+r.home.Dir())
	if err := cmd.Run(); err == nil {
		t.Error("an example that finds no daemon does not fail")
	}
	if err := r.wait(); err != nil {
		t.Error(err)
	}
}

// TestDocsNameAll holds docs/api.md to the events, problems and limits that there are.
func TestDocsNameAll(t *testing.T) {
	doc, err := os.ReadFile("../../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, word := range sourceWords(t) {
		word = strings.NewReplacer("{id}", "ID", "{file}", "ID").Replace(word)
		if !bytes.Contains(doc, []byte(word+"`")) {
			t.Errorf("docs/api.md does not tell of %s", word)
		}
	}
}

// sourceWords are the events, problems and paths that package api has.
func sourceWords(t *testing.T) (all []string) {
	t.Helper()
	source, err := filepath.Glob("../api/*.go")
	if err != nil {
		t.Fatal(err)
	}
	words := regexp.MustCompile(`(?m)^\s+(?:Event|Problem)[A-Z]\w+\s+= "([^"]+)"|Path[A-Z]\w+\s+= "([^"]+)"`)
	for _, f := range source {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range words.FindAllSubmatch(b, -1) {
			all = append(all, string(m[1])+string(m[2]))
		}
	}
	if len(all) < 30 {
		t.Errorf("only %d words were found", len(all))
	}
	return all
}

// python executes programs with the host's Python, each in a folder of its own.
func python(t *testing.T) func(context.Context, daemontest.Program) daemontest.Done {
	return func(ctx context.Context, p daemontest.Program) (d daemontest.Done) {
		dir := t.TempDir()
		files := append([]daemontest.File{{Name: p.Name, Content: p.Text}}, p.Inputs...)
		for _, f := range files {
			path := filepath.Join(dir, f.Name)
			if f.Folder {
				if err := os.MkdirAll(path, 0o700); err != nil {
					t.Error(err)
				}
				continue
			}
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, f.Content, 0o600)); err != nil {
				t.Error(err)
			}
		}
		cmd := exec.CommandContext(ctx, "python3", append([]string{p.Name}, p.Args...)...)
		var stdout, stderr bytes.Buffer
		cmd.Dir, cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = dir, append(os.Environ(), p.Env...), bytes.NewReader(p.Stdin), &stdout, &stderr
		_ = cmd.Run() // the exit code tells
		d.Stdout, d.Stderr, d.Code = stdout.Bytes(), stderr.Bytes(), max(0, cmd.ProcessState.ExitCode())
		d.Left = changed(t, dir, files)
		return d
	}
}

// changed are the files in dir that are not as they were.
func changed(t *testing.T, dir string, before []daemontest.File) (left []daemontest.File) {
	had := map[string]daemontest.File{}
	for _, f := range before {
		had[f.Name] = f
	}
	err := fs.WalkDir(os.DirFS(dir), ".", func(name string, e fs.DirEntry, err error) error {
		if _, there := had[name]; err != nil || name == "." || e.IsDir() && there {
			return err
		}
		if e.IsDir() {
			left = append(left, daemontest.File{Name: name, Folder: true})
			return nil
		}
		b, err := os.ReadFile(filepath.Join(dir, name))
		if f, there := had[name]; !there || !bytes.Equal(f.Content, b) {
			left = append(left, daemontest.File{Name: name, Content: b})
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	return left
}
