// Package python_test has the tests of the Python client run, under every Python that
// there is, and holds what they take for given to the code in Go.
package python_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/pybox/pybox/host/receipt/receipttest"
	"github.com/pybox/pybox/host/version"
)

// unitTime bounds the tests under one Python, many times what they take.
const unitTime = 5 * time.Minute

// versions are the Pythons that the client is for.
var versions = []string{"3.9", "3.10", "3.11", "3.12", "3.13"}

// pythons are those of versions that this machine has, by version: on PATH, or
// installed by pyenv.
func pythons(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	home, err := os.UserHomeDir()
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range versions {
		installed, err := filepath.Glob(filepath.Join(home, ".pyenv", "versions", v+".*", "bin", "python"))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range append([]string{"python" + v, "python3"}, installed...) {
			out, err := exec.CommandContext(t.Context(), name, "-c", "import sys; print('%d.%d' % sys.version_info[:2], sys.executable)").Output()
			if is, path, ok := strings.Cut(strings.TrimSpace(string(out)), " "); err == nil && ok && is == v {
				found[v] = path
				break
			}
		}
	}
	if len(found) == 0 {
		t.Fatalf("there is no Python of %v: 'scripts/deps test' installs one", versions)
	}
	return found
}

// TestUnits runs the tests that need no VM.
func TestUnits(t *testing.T) {
	there := pythons(t)
	for _, v := range versions {
		t.Run(v, func(t *testing.T) {
			if there[v] == "" {
				t.Skipf("SKIPPED, NOT TESTED WITH PYTHON %s: it is not here", v)
			}
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), unitTime)
			defer cancel()
			cmd := exec.CommandContext(ctx, there[v], "-B", "-W", "error", "-m", "unittest", "discover", "-s", "tests", "-p", "test_*.py")
			cmd.Env = append(os.Environ(), "PYTHONPATH=.", "PYTHONDEVMODE=1")
			cmd.WaitDelay = 10 * time.Second
			out, err := cmd.CombinedOutput()
			ran := regexp.MustCompile(`(?m)^Ran [1-9][0-9]* tests`).Find(out)
			if err != nil || ran == nil {
				t.Fatalf("%v\n%s", err, out)
			}
			t.Logf("%s: %s", there[v], ran)
		})
	}
}

// TestReceiptOfTests: the receipt that the tests in Python build upon is one.
func TestReceiptOfTests(t *testing.T) {
	got, err := os.ReadFile("tests/receipt.json")
	if err != nil {
		t.Fatal(err)
	}
	want, err := json.MarshalIndent(receipttest.Example(), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	if want = append(want, '\n'); !bytes.Equal(got, want) {
		t.Errorf("tests/receipt.json is not receipttest.Example; want\n%s", want)
	}
}

// TestVersion: the version that the build sets is the one that the code has without it.
func TestVersion(t *testing.T) {
	text, err := os.ReadFile("../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)^VERSION \?= (.*)$`).FindSubmatch(text)
	if line == nil || string(line[1]) != version.Number {
		t.Errorf("the Makefile has %q, and package version %q", line, version.Number)
	}
}
