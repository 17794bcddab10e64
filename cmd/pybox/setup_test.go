package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	agentapi "github.com/pybox/pybox/agent/api"
	"github.com/pybox/pybox/guest/bundle"
	"github.com/pybox/pybox/host/setup/programs"
	"github.com/pybox/pybox/vm"
)

// archive is a bundle in one file that this PyBox takes, but for what change does.
func archive(t *testing.T, change func(*bundle.Manifest)) string {
	t.Helper()
	dir := t.TempDir()
	file := func(name string) bundle.File {
		b := []byte(name)
		s := sha256.Sum256(b)
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
		return bundle.File{File: name, SHA256: hex.EncodeToString(s[:]), Bytes: int64(len(b))}
	}
	image := file("stdlib.erofs")
	m := bundle.Manifest{Schema: bundle.Schema, Arch: vm.HostArch(), Kernel: bundle.Kernel{File: file("kernel"), Kind: bundle.KernelOwn, Version: "6.12"},
		Root: file("root.erofs"), Images: []bundle.Image{{Name: "stdlib", File: image, Serial: bundle.ImageSerial(image.SHA256)}},
		Agent:      bundle.Agent{Version: "0.1", SHA256: strings.Repeat("a", 64), ProtocolVersion: agentapi.ProtocolVersion},
		LockSHA256: strings.Repeat("b", 64)}
	if change != nil {
		change(&m)
	}
	raw, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, bundle.ManifestName), raw, 0o600); err != nil {
		t.Fatal(err)
	}
	b, err := bundle.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "it's a bundle.tar")
	if err := bundle.WriteArchive(t.Context(), b, name); err != nil {
		t.Fatal(err)
	}
	return name
}

// place is where PyBox keeps its files in a test.
func place(t *testing.T) (home, cache string) {
	t.Helper()
	dir := t.TempDir()
	home, cache = filepath.Join(dir, ".pybox"), filepath.Join(dir, "pybox")
	t.Setenv("PYBOX_HOME", home)
	t.Setenv("PYBOX_CACHE", cache)
	return home, cache
}

func runPybox(t *testing.T, want int, args ...string) (stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	if got := run(args, &out, &errs); got != want {
		t.Fatalf("pybox %s: exit %d, want %d\n%s%s", strings.Join(args, " "), got, want, &out, &errs)
	}
	return out.String(), errs.String()
}

func TestSetupFrom(t *testing.T) {
	home, cache := place(t)
	from := archive(t, nil)
	out, _ := runPybox(t, 0, "setup", "--from", from)
	if !strings.Contains(out, home) || !strings.HasSuffix(out, ` setup --yes --from '`+strings.ReplaceAll(from, "'", `'\''`)+"'\n") {
		t.Errorf("the plan: %s", out)
	}
	if _, err := os.Stat(home); err == nil {
		t.Fatal("a dry run made the state folder")
	}
	out, _ = runPybox(t, 0, "setup", "--from", from, "--json")
	var plan struct {
		Schema, Bundle string
		Files          []struct{ Path string }
	}
	if err := json.Unmarshal([]byte(out), &plan); err != nil || plan.Schema == "" || len(plan.Files) == 0 {
		t.Errorf("%v: %s", err, out)
	}
	out, errs := runPybox(t, 0, "setup", "--from", from, "--yes")
	if !strings.Contains(out, "is installed in "+home) || strings.Contains(errs, "\x1b") {
		t.Errorf("%s%q", out, errs)
	}
	if b, err := bundle.Current(home); err != nil || b.ID() != plan.Bundle {
		t.Errorf("%v", err)
	}
	if out, _ = runPybox(t, 0, "setup", "--from", from, "--yes"); !strings.Contains(out, "nothing to do") {
		t.Errorf("a second time: %s", out)
	}
	out, _ = runPybox(t, 0, "setup", "--remove")
	if !strings.HasSuffix(out, " setup --yes --remove\n") {
		t.Errorf("the removal's plan: %s", out)
	}
	runPybox(t, 0, "setup", "--remove", "--yes")
	for _, d := range []string{home, cache} {
		if _, err := os.Stat(d); err == nil {
			t.Errorf("%s is still there", d)
		}
	}
	if out, _ = runPybox(t, 0, "setup", "--remove", "--yes"); !strings.Contains(out, "nothing to remove") {
		t.Errorf("a second removal: %s", out)
	}
}

func TestSetupRefuses(t *testing.T) {
	place(t)
	other := map[string]string{"amd64": "arm64", "arm64": "amd64"}[vm.HostArch()]
	for _, c := range []struct {
		code int
		say  string
		args []string
	}{
		{exitUsage, "--receipts goes with --remove", []string{"--receipts"}},
		{exitUsage, "--remove goes with", []string{"--remove", "--from", "x"}},
		{exitUsage, "--from takes one that is made", []string{"--from", "x", "--no-bytecode"}},
		{exitUsage, "no such file", []string{"--from", "/nothing/there"}},
		{exitUsage, "want an http or https address", []string{"--mirror", "ftp://x"}},
		{exitUsage, `no image "nonsense"; it has: data, stdlib`, []string{"--with", "nonsense"}},
		{exitFailed, "it is for " + other, []string{"--from", archive(t, func(m *bundle.Manifest) { m.Arch = other })}},
		{exitFailed, "update pybox", []string{"--from", archive(t, func(m *bundle.Manifest) { m.Agent.ProtocolVersion++ }), "--yes"}},
	} {
		out, errs := runPybox(t, c.code, append([]string{"setup"}, c.args...)...)
		if !strings.HasPrefix(errs, "pybox: ") || !strings.Contains(errs, c.say) || out != "" {
			t.Errorf("%v: stdout %q, stderr %q", c.args, out, errs)
		}
	}
}

// TestSetupWithoutPrograms: a pybox that was built by hand says how to get one that
// can make a bundle; one that was built with them plans it.
func TestSetupWithoutPrograms(t *testing.T) {
	place(t)
	if _, err := programs.Embedded(vm.HostArch()); err != nil {
		if _, errs := runPybox(t, exitUsage, "setup"); !strings.Contains(errs, "make build") {
			t.Errorf("%s", errs)
		}
		return
	}
	var out, errs bytes.Buffer
	code := run([]string{"setup", "--no-bytecode"}, &out, &errs)
	if code != 0 || !strings.Contains(out.String(), "packages of together") || !strings.HasSuffix(out.String(), " setup --yes --no-bytecode\n") {
		t.Errorf("exit %d: %s%s", code, &out, &errs)
	}
}

// TestSetupHonoursProxy: the environment is read once per process, so this is one of
// its own.
func TestSetupHonoursProxy(t *testing.T) {
	const asked = "PYBOX_TEST_PROXIED"
	if os.Getenv(asked) != "" {
		os.Exit(run([]string{"setup", "--yes", "--no-bytecode", "--mirror", "http://mirror.invalid/debian"}, os.Stdout, os.Stderr))
	}
	if _, err := programs.Embedded(vm.HostArch()); err != nil {
		t.Skipf("'make unit' puts the guest's programs into it: %v", err)
	}
	home, cache := place(t)
	var hosts = make(chan string, 1000)
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		hosts <- r.Host
		w.WriteHeader(http.StatusNotFound)
	}))
	t.Cleanup(proxy.Close)
	c := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestSetupHonoursProxy$")
	c.Env = append(os.Environ(), asked+"=1", "PYBOX_HOME="+home, "PYBOX_CACHE="+cache, "NO_PROXY=",
		"HTTP_PROXY="+proxy.URL, "HTTPS_PROXY="+proxy.URL, "http_proxy="+proxy.URL, "https_proxy="+proxy.URL)
	out, err := c.CombinedOutput()
	if c.ProcessState.ExitCode() != exitFailed || !strings.Contains(string(out), "mirror.invalid") || !strings.Contains(string(out), "404 Not Found") {
		t.Errorf("%v: %s", err, out)
	}
	if got := fmt.Sprint(<-hosts); got != "mirror.invalid" {
		t.Errorf("the proxy was asked for %s first", got)
	}
}
