package daemon

import (
	"bytes"
	"context"
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
	r := run(t, options(t, &daemontest.Agent{Interpret: python(t)}))
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
		`"text":"42\n"`, `"text":"['count.py', 'a', 'b c'] 3\n"`, `"text":"0\n1\n2\n"`, `"text":"5000050000\n"`,
		`"how":"` + receipt.HowCancelled + `"`, `"receipts":[{"id":"`, `"type":"` + api.ProblemCeiling + `"`, `"by":"client"`,
	} {
		if i >= len(outs) || !strings.Contains(outs[i], want) {
			t.Errorf("block %d of %d does not say %s:\n%s", i+1, len(blocks), want, strings.Join(outs[min(i, len(outs)):min(i+1, len(outs))], ""))
		}
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
	source, err := filepath.Glob("../api/*.go")
	if err != nil {
		t.Fatal(err)
	}
	words := regexp.MustCompile(`(?m)^\s+(?:Event|Problem)[A-Z]\w+\s+= "([^"]+)"|Path[A-Z]\w+\s+= "([^"]+)"`)
	n := 0
	for _, f := range source {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range words.FindAllSubmatch(b, -1) {
			word := strings.ReplaceAll(string(m[1])+string(m[2]), "{id}", "ID")
			if n++; !bytes.Contains(doc, []byte(word+"`")) {
				t.Errorf("docs/api.md does not tell of %s", word)
			}
		}
	}
	if n < 30 {
		t.Errorf("only %d words were looked for", n)
	}
}

// python executes programs with the host's Python.
func python(t *testing.T) func(context.Context, daemontest.Program) ([]byte, []byte, int) {
	dir := t.TempDir()
	return func(ctx context.Context, p daemontest.Program) ([]byte, []byte, int) {
		if err := os.WriteFile(filepath.Join(dir, p.Name), p.Text, 0o600); err != nil {
			t.Error(err)
		}
		cmd := exec.CommandContext(ctx, "python3", append([]string{p.Name}, p.Args...)...)
		var stdout, stderr bytes.Buffer
		cmd.Dir, cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = dir, append(os.Environ(), p.Env...), bytes.NewReader(p.Stdin), &stdout, &stderr
		_ = cmd.Run() // the exit code tells
		return stdout.Bytes(), stderr.Bytes(), max(0, cmd.ProcessState.ExitCode())
	}
}
