//go:build linux

package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// pythonTime bounds the tests in Python, many times what they take.
const pythonTime = 15 * time.Minute

// TestE2EPython has the Python client run programs in a real VM, which it starts by
// itself, beside 'pybox exec'.
func TestE2EPython(t *testing.T) {
	p := newPerson(t, "")
	package_, err := filepath.Abs("../../python")
	if err != nil {
		t.Fatal(err)
	}
	p.env = append(p.env, "PYTHONPATH="+package_, "PYTHONDEVMODE=1", "PYBOX_BIN="+p.exe, "PYTHONDONTWRITEBYTECODE=1")
	out := p.python(t, "-W", "error", "-m", "unittest", "discover", "-v", "-s", filepath.Join(package_, "tests"), "-p", "e2e.py")
	if !regexp.MustCompile(`(?m)^Ran (1[0-9]|[2-9][0-9]) tests`).MatchString(out) || strings.Contains(out, "skipped") {
		t.Errorf("not all of them ran:\n%s", out)
	}
	p.expectIdle()
	t.Run("documentation", func(t *testing.T) { testPythonDocumentation(t, p.in(t)) })
	p.expectIdle()
}

// python runs Python with what it is told, and gives what it prints.
func (p *person) python(t *testing.T, args ...string) string {
	t.Helper()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Fatalf("%v: 'scripts/deps test' installs it", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), pythonTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, python, args...)
	cmd.Env, cmd.Dir = append(append(os.Environ(), "PYBOX_HOME="+p.home), p.env...), t.TempDir()
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("python3 %q: %v\n%s", args, err, out)
	}
	return string(out)
}

// testPythonDocumentation runs every program of docs/python.md as it stands there.
func testPythonDocumentation(t *testing.T, p *person) {
	page, err := os.ReadFile("../../docs/python.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?ms)^```python\n(.*?)^```$").FindAllSubmatch(page, -1)
	says := []string{ // regular expressions
		`^42\n 0 removed\n$`,
		`^\[\('total.txt', b"total: 100 \['a', 'b c'\]"\)\]\n$`,
		`^exited [0-9.]+ [0-9]+ removed\nnot known: `,
		`^the program ended with exit code 1; its last words: 'no such order'\n1\n$`,
		`^0\n1\n2\n$`,
		`^\['0\\n', '1\\n', '4\\n'\]\ncancelled\n$`,
	}
	if len(blocks) != len(says) {
		t.Fatalf("docs/python.md has %d programs, this test knows %d", len(blocks), len(says))
	}
	// Developer mode has asyncio complain of callbacks that take 0.1 s, as they do on a busy
	// machine.
	p.env = append(p.env, "PYTHONDEVMODE=")
	for i, b := range blocks {
		if out := p.python(t, "-W", "error", "-c", string(b[1])); !regexp.MustCompile(says[i]).MatchString(out) {
			t.Errorf("it prints %q, want %s, of\n%s", out, says[i], bytes.TrimSpace(b[1]))
		}
	}
}
