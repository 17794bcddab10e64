//go:build linux

package main

import (
	"archive/tar"
	"bytes"
	"context"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	goerofs "github.com/erofs/go-erofs"

	"github.com/pybox/pybox/guest/bundle"
	"github.com/pybox/pybox/guest/debian"
	"github.com/pybox/pybox/guest/internal/guesttest"
	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/vm/vmtest"
)

// repository is its top, from this folder.
const repository = "../../.."

// documented are the lines of docs/vm-image.md that are run, and those that are not
// because they build a kernel.
func documented(t *testing.T) (run, long []string) {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(repository, "docs", "vm-image.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range regexp.MustCompile("(?ms)^```(\\w*)\n(.*?)^```$").FindAllStringSubmatch(string(page), -1) {
		switch b[1] {
		case "sh":
			run = append(run, b[2])
		case "console":
			long = append(long, b[2])
		default:
			t.Fatalf("a block of docs/vm-image.md is neither run nor said not to be:\n%s", b[2])
		}
	}
	return run, long
}

// TestLongCommands: what the document has no time to run, make and mkkernel understand.
func TestLongCommands(t *testing.T) {
	_, long := documented(t)
	all := strings.Join(long, "")
	for _, c := range []struct{ has, run, says string }{
		{`make bundle KERNEL_FRAGMENT="$mine/my.config"`, "make -n bundle ARCH=amd64 KERNEL_FRAGMENT=my.config", "mkkernel build amd64 --fragment my.config"},
		{`make bundle BUNDLE=.work/again`, "make -n bundle ARCH=amd64 HOSTARCH=amd64 BUNDLE=.work/again", "--out .work/again"},
		{"", "make -n install-bundle ARCH=amd64 LOCK=my.lock.json", "pybox-guest build --lock my.lock.json"},
		{"", "make -n install-bundle ARCH=amd64 LOCK=my.lock.json", "mkkernel build amd64 --lock my.lock.json"},
		{"", "make -n demo ARCH=amd64", "demo-with-own"},
		{"", "make -n demo ARCH=amd64 KERNEL_FRAGMENT=my.config PYBOX_CACHE=/nonexistent", "demo-with-own"},
	} {
		if !strings.Contains(all, c.has) {
			t.Errorf("the document has no %s any more", c.has)
		}
		cmd := exec.CommandContext(t.Context(), "sh", "-c", c.run+" GUESTKERNEL=own")
		cmd.Dir = repository
		out, err := cmd.CombinedOutput()
		if flat := strings.Join(strings.Fields(string(out)), " "); err != nil || !strings.Contains(flat, c.says) {
			t.Errorf("%s: %v, want %q in\n%s", c.run, err, c.says, out)
		}
	}
}

// additions are what the document adds, made for an archive of the test's own: a
// program, and a module of Python.
func additions(t *testing.T) (list []guesttest.Listed) {
	t.Helper()
	file := func(name string, mode int64) tar.Header {
		return tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: mode}
	}
	const module = "./usr/lib/python3/dist-packages/yaml/__init__.py"
	for arch, machine := range map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64} {
		list = append(list, guesttest.NewListed(t, guesttest.Package{Name: "strace", Version: "6.13", Arch: arch,
			Entries: []tar.Header{file("./usr/bin/strace", 0o755)},
			Body:    map[string][]byte{"./usr/bin/strace": guesttest.ELF{Machine: machine}.Bytes()}}, "libc6"))
	}
	return append(list, guesttest.NewListed(t, guesttest.Package{Name: "python3-yaml", Version: "6.0.2", Arch: debian.ArchAll,
		Entries: []tar.Header{file(module, 0o644)},
		Body:    map[string][]byte{module: []byte("__version__ = '6.0.2'\n")}}, "python3.13"))
}

// TestE2EVMImageDocument runs docs/vm-image.md as it stands there, in one shell, as a
// person with a home of their own. A server of this test plays the mirror and the
// snapshot archive, since neither is within reach everywhere; packages that PyBox's own
// bundle has come out of the cache, as they do for whoever built that.
func TestE2EVMImageDocument(t *testing.T) {
	vmtest.Bundle(t)
	lock, err := debian.ReadLock(filepath.Join(repository, defaultLock))
	if err != nil {
		t.Fatal(err)
	}
	at, err := debian.ParseSnapshot(snapshotTime)
	if err != nil {
		t.Fatal(err)
	}
	packages := append(additions(t), guesttest.ListedIn(t, lock)...)
	archive := guesttest.NewArchive(t, packages, packages, at)
	home := t.TempDir()
	state := filepath.Join(home, ".pybox")
	env := documentEnv(t, archive, home)
	pybox := os.Getenv("PYBOX_TEST_COMMAND")
	t.Cleanup(func() {
		cmd := exec.Command(pybox, "vm", "stop", "--force")
		cmd.Env = env
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("stop the VM: %v\n%s", err, out)
		}
	})
	if here, err := filepath.Abs(filepath.Join(repository, "bin", "pybox")); err != nil || pybox != here {
		t.Fatalf("the document's bin/pybox is %s and the tested one %s, %v", here, pybox, err)
	}

	blocks, _ := documented(t)
	out := runBlocks(t, env, blocks)
	mine := filepath.Join(home, "pybox-image")
	for says, why := range map[string]string{
		`CONFIG_HZ_250=y (base.config:`:                                    "which request gives way",
		"root " + runtime.GOARCH + ": strace (not there) -> 6.13":          "what an addition brings",
		"stdlib " + runtime.GOARCH + ": python3-yaml (not there) -> 6.0.2": "what an addition brings",
		"lists are trusted by the keys in " + archive.Keyring:              "whose keys are trusted",
		"\n6.0.2\n": "what a program sees of the addition",
		"  whole\n": "that the bundle is whole",
		fmt.Sprintf("\"lock_sha256\": %q", readLock(t, mine).SHA256()): "the lock in the status",
	} {
		if !strings.Contains(out, says) {
			t.Errorf("it does not show %s: %q", why, says)
		}
	}
	if t.Failed() {
		t.Logf("it printed\n%s", out)
	}
	expectMine(t, mine, state, out)
}

// documentEnv is the environment of somebody who builds, with a home of their own.
func documentEnv(t *testing.T, archive *guesttest.Archive, home string) []string {
	t.Helper()
	env := append(os.Environ(), "HOME="+home, "PYBOX_HOME="+filepath.Join(home, ".pybox"),
		"PYBOX_DEBIAN_MIRROR="+archive.Mirror, "PYBOX_DEBIAN_SNAPSHOT="+archive.Snapshots, "PYBOX_DEBIAN_KEYRING="+archive.Keyring,
		"MIRROR="+archive.Mirror, "KEYRING="+archive.Keyring)
	// What a home has of caches stays where it is.
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	if os.Getenv("PYBOX_CACHE") == "" {
		env = append(env, "PYBOX_CACHE="+filepath.Join(cache, "pybox"))
	}
	vars, err := exec.CommandContext(t.Context(), "go", "env", "-json", "GOCACHE", "GOMODCACHE", "GOPATH", "GOPROXY", "GOSUMDB", "GOTOOLCHAIN", "GOFLAGS").Output()
	if err != nil {
		t.Fatal(err)
	}
	var values map[string]string
	if err := json.Unmarshal(vars, &values); err != nil {
		t.Fatal(err)
	}
	for k, v := range values {
		env = append(env, k+"="+v)
	}
	return env
}

// runBlocks runs them in one shell and returns all that they print.
func runBlocks(t *testing.T, env, blocks []string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var script strings.Builder
	for i, b := range blocks {
		fmt.Fprintf(&script, "echo \"== block %d at $(date +%%T)\"\n%s", i+1, b)
	}
	cmd := exec.CommandContext(ctx, "sh", "-eu", "-c", script.String())
	cmd.Dir, cmd.Env = repository, env
	cmd.WaitDelay = 10 * time.Second // the daemon keeps nothing of the shell's open
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	start := time.Now()
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v after\n%s", err, &out)
	}
	t.Logf("%d blocks in %.1f s", len(blocks), time.Since(start).Seconds())
	return out.String()
}

func readLock(t *testing.T, mine string) *debian.Lock {
	t.Helper()
	l, err := debian.ReadLock(filepath.Join(mine, "my.lock.json"))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// expectMine holds the folder that the document makes, the installed bundle and the
// status that was printed to one another.
func expectMine(t *testing.T, mine, state, printed string) {
	t.Helper()
	l := readLock(t, mine)
	if got := fmt.Sprint(l.Additions); got != "[{root [strace]} {stdlib [python3-yaml]}]" || l.Snapshot != snapshotTime {
		t.Errorf("the lock has additions %s of %s", got, l.Snapshot)
	}
	installed, err := bundle.Current(state)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(printed, "\n{\n")
	var s api.Status
	d := json.NewDecoder(strings.NewReader("{\n" + rest))
	d.DisallowUnknownFields()
	if err := d.Decode(&s); err != nil || s.VM == nil {
		t.Fatalf("no status: %v", err)
	}
	if s.VM.Bundle != installed.ID() || s.VM.LockSHA256 != l.SHA256() || s.VM.KernelKind != bundle.KernelOwn || s.VM.KernelConfigSHA256 == "" || s.VM.AgentVersion != "mine" {
		t.Errorf("%+v, installed %s", s.VM, installed.ID())
	}
	f, err := os.Open(installed.Path(installed.Manifest.Root))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	root, err := goerofs.Open(f)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fs.Stat(root, "usr/bin/strace"); err != nil {
		t.Errorf("the root that was booted has no strace: %v", err)
	}
	if _, err := os.Stat(filepath.Join(mine, "again", bundle.ManifestName)); errors.Is(err, fs.ErrNotExist) {
		t.Error("it was not built again")
	}
}
