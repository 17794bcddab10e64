// Package python_test has the tests of the Python client run, all of them under one Python
// and the most telling ones under every other that there is, and holds what they take for
// given to the code in Go. With PYBOX_TEST_ALL_PYTHONS=1 all run under all.
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

// elsewhere are the tests that run under every Python: those of what differs between them,
// which is asyncio, threads, processes, HTTP and how text is read. What the others try for
// most of the time is the client's own judgement of bytes, and the making of archives; CI
// has a job for each Python that runs these too.
var elsewhere = []string{"test_ask", "test_async", "test_package", "test_receipt", "test_run", "test_start"}

// all says whether everything is to run under every Python.
func all() bool { return os.Getenv("PYBOX_TEST_ALL_PYTHONS") != "" }

// usual is the version under which everything runs: that of python3, or the newest of
// those that there are.
func usual(t *testing.T, there map[string]string) (version string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])").Output()
	if err == nil && there[strings.TrimSpace(string(out))] != "" {
		return strings.TrimSpace(string(out))
	}
	for _, v := range versions {
		if there[v] != "" {
			version = v
		}
	}
	return version
}

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
	everything := usual(t, there)
	for _, v := range versions {
		t.Run(v, func(t *testing.T) {
			if there[v] == "" {
				t.Skipf("SKIPPED, NOT TESTED WITH PYTHON %s: it is not here", v)
			}
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), unitTime)
			defer cancel()
			args := []string{"-B", "-W", "error", "-m", "unittest"}
			if all() || v == everything {
				args = append(args, "discover", "-s", "tests", "-p", "test_*.py")
			} else {
				args = append(args, elsewhere...)
			}
			cmd := exec.CommandContext(ctx, there[v], args...)
			cmd.Env = append(os.Environ(), "PYTHONPATH=.:tests", "PYTHONDEVMODE=1")
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
