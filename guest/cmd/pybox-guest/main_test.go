package main

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pybox/pybox/guest/build"
	"github.com/pybox/pybox/guest/bundle"
	"github.com/pybox/pybox/guest/bytecode"
	"github.com/pybox/pybox/guest/debian"
	"github.com/pybox/pybox/guest/internal/guesttest"
	"github.com/pybox/pybox/host/compile"
	"github.com/pybox/pybox/vm"
)

// env is a mirror with one package, a lock file for it, and inputs of a build.
type env struct {
	t                           *testing.T
	lock, mirror, kernel, agent string
}

func newEnv(t *testing.T) env {
	t.Helper()
	t.Setenv("PYBOX_CACHE", t.TempDir())
	program := guesttest.ELF{Machine: elf.EM_X86_64}.Bytes()
	crun := guesttest.Deb(t, guesttest.Package{Name: "crun", Version: "1", Arch: "amd64", Suffix: ".xz",
		Entries: []tar.Header{{Name: "./usr/bin/crun", Typeflag: tar.TypeReg, Mode: 0o755}, {Name: "./usr/bin/busybox", Typeflag: tar.TypeReg, Mode: 0o755}},
		Body:    map[string][]byte{"./usr/bin/crun": program, "./usr/bin/busybox": program}})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/debian/pool/main/crun.deb" {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/vnd.debian.binary-package")
		w.Write(crun)
	}))
	t.Cleanup(srv.Close)
	dir := t.TempDir()
	e := env{t: t, lock: filepath.Join(dir, "lock.json"), mirror: srv.URL + "/debian",
		kernel: filepath.Join(dir, "kernel"), agent: filepath.Join(dir, "agent")}
	sum := sha256.Sum256(crun)
	l := debian.Lock{Schema: debian.LockSchema, Snapshot: "20260501T000000Z", Sets: []debian.Set{{Name: "root", Arch: "amd64",
		Packages: []debian.Entry{{Name: "crun", Version: "1", Archive: debian.ArchiveMain, Path: "pool/main/crun.deb",
			Bytes: int64(len(crun)), SHA256: hex.EncodeToString(sum[:])}}}}}
	if err := l.WriteFile(e.lock); err != nil {
		t.Fatal(err)
	}
	kernel := make([]byte, 4096)
	kernel[0x1fe], kernel[0x1ff] = 0x55, 0xaa
	copy(kernel[0x202:], "HdrS")
	e.write(e.kernel, kernel)
	e.write(e.agent, guesttest.ELF{Machine: elf.EM_X86_64}.Bytes())
	return e
}

func (e env) write(name string, b []byte) {
	e.t.Helper()
	if err := os.WriteFile(name, b, 0o600); err != nil {
		e.t.Fatal(err)
	}
}

func (e env) run(want int, args ...string) (stdout, stderr string) {
	e.t.Helper()
	var out, errs bytes.Buffer
	if got := run(e.t.Context(), args, &out, &errs); got != want {
		e.t.Fatalf("pybox-guest %s: exit code %d, want %d\n%s%s", strings.Join(args, " "), got, want, &out, &errs)
	}
	return out.String(), errs.String()
}

func (e env) build(out string, more ...string) []string {
	return append([]string{"build", "--arch", "amd64", "--kernel", e.kernel, "--kernel-version", "6.12.1", "--init", e.agent, "--agent", e.agent,
		"--agent-version", "0.1", "--protocol", "1", "--lock", e.lock, "--mirror", e.mirror, "--images", "", "--out", out}, more...)
}

func TestBuildInstallVerify(t *testing.T) {
	e := newEnv(t)
	out, home := filepath.Join(t.TempDir(), "b"), t.TempDir()
	id, stages := e.run(0, e.build(out)...)
	if !strings.Contains(stages, "root") {
		t.Errorf("no stages: %s", stages)
	}
	if strings.Contains(stages, "\x1b") {
		t.Errorf("a progress line, though this is no terminal: %q", stages)
	}
	if got, _ := e.run(0, "verify", out); !strings.Contains(got, strings.TrimSpace(id)+"  whole") {
		t.Errorf("verify: %s", got)
	}
	tar := filepath.Join(t.TempDir(), "b.tar")
	if got, _ := e.run(0, "pack", out, tar); got != tar+"\n" {
		t.Errorf("pack: %q", got)
	}
	f, err := os.Open(tar)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if a, err := bundle.OpenArchive(f); err != nil || a.ID() != strings.TrimSpace(id) {
		t.Errorf("pack: %v", err)
	}
	e.run(0, "install", "--home", home, out)
	b, err := bundle.Current(home)
	if err != nil || b.ID() != strings.TrimSpace(id) {
		t.Fatalf("%v", err)
	}
	root, err := os.ReadFile(filepath.Join(out, "root.erofs"))
	if err != nil {
		t.Fatal(err)
	}
	root[len(root)/2] ^= 1
	e.write(filepath.Join(out, "root.erofs"), root)
	if _, errs := e.run(1, "verify", out); !strings.Contains(errs, "root.erofs has SHA-256") {
		t.Errorf("verify of a damaged bundle: %s", errs)
	}
	e.run(1, "install", "--home", t.TempDir(), out)
}

func TestFetch(t *testing.T) {
	e := newEnv(t)
	name, _ := e.run(0, "fetch", "root", "amd64", "--lock", e.lock, "--mirror", e.mirror)
	if b, err := os.ReadFile(strings.TrimSpace(name)); err != nil || !bytes.HasPrefix(b, []byte("!<arch>")) {
		t.Errorf("%q: %v", name, err)
	}
}

func TestUsage(t *testing.T) {
	e := newEnv(t)
	for _, args := range [][]string{
		{}, {"nonsense"}, {"--nonsense"}, {"build"}, {"build", "--arch"}, {"install"}, {"verify", "a", "b"}, {"relock", "x"},
		{"fetch", "root"}, {"fetch", "nothing", "amd64", "--lock", e.lock},
		e.build(t.TempDir(), "--arch", "riscv64"), e.build(t.TempDir(), "--kernel-kind", "nonsense"),
		e.build(t.TempDir(), "--images", "stdlib,nonsense"), e.build(t.TempDir(), "--protocol", "0"), e.build(t.TempDir(), "--agent-version", ""), {"fetch", "root", "amd64", "--lock", e.lock, "--mirror", "/srv/debian"},
	} {
		if _, errs := e.run(2, args...); !strings.Contains(errs, "--help") {
			t.Errorf("%q: no hint at the help: %s", args, errs)
		}
	}
	if out, _ := e.run(0, "--help"); !strings.Contains(out, "PYBOX_DEBIAN_MIRROR") || !strings.Contains(out, "relock") {
		t.Errorf("help: %s", out)
	}
}

// TestReadyMadeKernel: the word is no file, and goes without what a file needs.
func TestReadyMadeKernel(t *testing.T) {
	o := build.Options{Kernel: "debian"}
	if err := chooseKernel(&o); err != nil || o.Kernel != "" || o.KernelKind != bundle.KernelDebianCloud {
		t.Errorf("%+v, %v", o, err)
	}
	e := newEnv(t)
	if _, errs := e.run(2, e.build(t.TempDir(), "--kernel", "debian")...); !strings.Contains(errs, "--kernel-version goes with a kernel that is a file") {
		t.Errorf("a version with it: %s", errs)
	}
	args := e.build(t.TempDir(), "--kernel", "debian")
	i := slices.Index(args, "--kernel-version")
	if _, errs := e.run(2, slices.Delete(args, i, i+2)...); !strings.Contains(errs, `no set "kernel-cloud" for "amd64"`) {
		t.Errorf("a lock without it: %s", errs)
	}
}

// TestWriteLock: newer dates alone are recorded too, since they are what refuses a
// mirror that goes back.
func TestWriteLock(t *testing.T) {
	e := newEnv(t)
	read := func() *debian.Lock {
		l, err := debian.ReadLock(e.lock)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	date := time.Date(2026, 5, 1, 10, 0, 0, 0, time.UTC)
	at := func(d time.Time, version string) *debian.Lock {
		l := read()
		l.Releases = []debian.LockedRelease{{Archive: debian.ArchiveMain, Suite: "trixie", Date: d, SHA256: strings.Repeat("a", 64)}}
		l.Sets[0].Packages[0].Version = version
		return l
	}
	for _, c := range []struct {
		cur     *debian.Lock
		says    string
		written bool
	}{
		{at(date, "1"), "only the dates of the archive's lists moved:\n  trixie of 2026-05-01T10:00:00Z\n", true},
		{at(date, "1"), "nothing changed; the lock file stays as it is", false},
		{at(date.Add(time.Hour), "1"), "only the dates", true},
		{at(date.Add(2*time.Hour), "2"), "crun 1 -> 2", true},
	} {
		old, before := read(), time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
		if err := os.Chtimes(e.lock, before, before); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if err := writeLock(&out, e.lock, old, c.cur); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(out.String(), c.says) || strings.Contains(out.String(), "nothing changed") && c.written {
			t.Errorf("got %q, want %q", &out, c.says)
		}
		st, err := os.Stat(e.lock)
		if err != nil || st.ModTime().After(before) != c.written {
			t.Errorf("%s: written %v, want %v (%v)", c.says, st.ModTime().After(before), c.written, err)
		}
		if !debian.SameReleases(read(), c.cur) {
			t.Errorf("%s: the file has other dates", c.says)
		}
	}
}

func TestFailures(t *testing.T) {
	e := newEnv(t)
	if _, errs := e.run(1, "verify", t.TempDir()); !strings.Contains(errs, "no guest bundle") {
		t.Error(errs)
	}
	if _, errs := e.run(1, e.build(t.TempDir(), "--kernel", "/nonexistent")...); !strings.Contains(errs, "/nonexistent") {
		t.Error(errs)
	}
	e.write(e.lock, []byte("{"))
	if _, errs := e.run(1, e.build(t.TempDir())...); !strings.Contains(errs, "invalid lock file") {
		t.Error(errs)
	}
	if _, errs := e.run(1, "relock", "--lock", e.lock); !strings.Contains(errs, "invalid lock file") {
		t.Error(errs)
	}
	e = newEnv(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out, errs bytes.Buffer
	if code := run(ctx, e.build(t.TempDir()), &out, &errs); code != 1 || !strings.Contains(errs.String(), "interrupted") {
		t.Errorf("interrupted: %d %s", code, &errs)
	}
}

// TestExplainCompile: what keeps byte code from being compiled is told with the
// way around it.
func TestExplainCompile(t *testing.T) {
	for err, says := range map[error]string{
		bytecode.ErrArch: "--compile-with", vm.ErrHost: "--no-bytecode", compile.ErrFailed: "--no-bytecode",
	} {
		if got := explainCompile(fmt.Errorf("build: %w", err)); !errors.Is(got, err) || !strings.Contains(got.Error(), says) {
			t.Errorf("%v", got)
		}
	}
	other := errors.New("other")
	if got := explainCompile(other); got != other {
		t.Errorf("%v", got)
	}
}
