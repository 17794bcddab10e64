package main

import (
	"bytes"
	"errors"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
)

func TestExitCodes(t *testing.T) {
	t.Setenv("PYBOX_CACHE", t.TempDir())
	t.Chdir(t.TempDir())
	for _, c := range []struct {
		args string
		code int
		says string
	}{
		{"--help", 0, ""},
		{"", 0, ""},
		{"build", 2, "accepts 1 arg"},
		{"build mips", 2, "amd64, arm64"},
		{"build amd64 arm64", 2, "accepts 1 arg"},
		{"compare ''", 2, "architecture"},
		{"frobnicate", 2, "unknown command"},
		{"build --frobnicate amd64", 2, "unknown flag"},
		{"-j x build amd64", 2, "invalid argument"},
		{"check-tools mips", 2, "architecture"},
		{"clean now", 2, "mkkernel --help"},
		{"configure amd64", 1, "top of the repository"}, // no lock file here
		{"configure amd64 --source-deb nowhere.deb", 1, "nowhere.deb"},
		{"configure amd64 --fragment", 2, "needs an argument"},
		{"clean", 0, ""},
	} {
		var out, said bytes.Buffer
		if code := run(t.Context(), strings.Fields(c.args), &out, &said); code != c.code || !strings.Contains(said.String(), c.says) {
			t.Errorf("mkkernel %s: exit code %d, want %d; it said: %s", c.args, code, c.code, said.String())
		}
		if c.code != 0 && out.Len() > 0 {
			t.Errorf("mkkernel %s fails and prints a result: %s", c.args, out.String())
		}
	}
}

// TestFragmentFlag: what is wrong with a fragment is told before anything is made.
func TestFragmentFlag(t *testing.T) {
	t.Setenv("PYBOX_CACHE", t.TempDir())
	dir := t.TempDir()
	bad := filepath.Join(dir, "my.config")
	if err := os.WriteFile(bad, []byte("CONFIG_A=y\nCONFIG_B=m\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	lock := filepath.Join("..", "..", "..", "guest", "debian.lock.json")
	for file, says := range map[string]string{bad: bad + ":2: CONFIG_B=m", filepath.Join(dir, "none"): "no such file"} {
		for _, verb := range []string{"configure", "build", "compare"} {
			var out, said bytes.Buffer
			args := []string{verb, "amd64", "--lock", lock, "--fragment", file}
			if code := run(t.Context(), args, &out, &said); code != 1 || !strings.Contains(said.String(), says) || out.Len() > 0 {
				t.Errorf("%v: exit code %d, %s%s", args, code, &out, &said)
			}
		}
	}
}

func TestCheckToolsNamesWhatIsMissing(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	var out, said bytes.Buffer
	code := run(t.Context(), []string{"check-tools", "arm64"}, &out, &said)
	want := "apt-get install"
	if runtime.GOOS != "linux" {
		want = "Linux only"
	}
	if code != 1 || !strings.Contains(said.String(), want) {
		t.Errorf("exit code %d: %s", code, said.String())
	}
}

// TestEndSignals: a closed terminal ends a build, unless that is to be ignored.
func TestEndSignals(t *testing.T) {
	if !signal.Ignored(syscall.SIGHUP) && !slices.Contains(endSignals(), os.Signal(syscall.SIGHUP)) {
		t.Error("SIGHUP would leave make running")
	}
	signal.Ignore(syscall.SIGHUP)
	defer signal.Reset(syscall.SIGHUP)
	if slices.Contains(endSignals(), os.Signal(syscall.SIGHUP)) {
		t.Error("nohup has no effect")
	}
}

// TestPinnedSource reads the repository's own lock file.
func TestPinnedSource(t *testing.T) {
	lock := filepath.Join("..", "..", "..", "guest", "debian.lock.json")
	if _, err := os.Stat(lock); err != nil {
		t.Fatal(err)
	}
	if _, err := (&flags{lock: lock, mirror: "/srv/debian"}).source(); !errors.Is(err, errUsage) {
		t.Errorf("a folder for a mirror: %v", err)
	}
	f := &flags{lock: lock}
	src, err := f.source()
	if err != nil {
		t.Fatal(err)
	}
	if len(src.SHA256) != 64 || !strings.HasPrefix(src.Version, "6.12.") || src.Open == nil {
		t.Errorf("got %+v", src)
	}
}
