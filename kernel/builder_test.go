//go:build linux

package kernel

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ulikunitz/xz"

	"github.com/pybox/pybox/guest/nospace"
	"github.com/pybox/pybox/kernel/config"
)

// host is a fake host: a PATH whose make and tools are scripts, a source package
// and a builder that uses them.
type host struct {
	t   *testing.T
	dir string
	b   *Builder
	out bytes.Buffer
}

// makeScript is a make that does as kbuild would. %s are: the folder of the fake
// host, what to do after allnoconfig, what to do for the build.
const makeScript = `#!/bin/sh
for a in "$@"; do
	case $a in
	O=*) o=${a#O=} ;;
	allnoconfig|alldefconfig|kernelrelease|bzImage|Image) goal=$a ;;
	esac
done
echo "$goal" >>%[1]s/goals
env >%[1]s/env.$goal
case $goal in
allnoconfig) cp "$KCONFIG_ALLCONFIG" "$o/.config"; %[2]s ;;
alldefconfig) echo CONFIG_MITIGATION_OF_THE_DAY=y >"$o/.config" ;;
kernelrelease) echo 6.12.0-pybox ;;
bzImage)
	mkdir -p "$o/arch/x86/boot" && cp %[1]s/image "$o/arch/x86/boot/bzImage"
	echo map >"$o/System.map"
	echo "  CC      mm/slub.o"
	%[3]s ;;
esac
`

func newHost(t *testing.T, afterConfig, building string) *host {
	t.Helper()
	h := &host{t: t, dir: t.TempDir()}
	bin := filepath.Join(h.dir, "bin")
	a, err := findArch("amd64")
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range needs(a) {
		if n.program != "" && !slices.Contains([]string{"ar", "tar", "xz", "make"}, n.program) {
			h.script(bin, n.program, "#!/bin/sh\necho "+n.program+" 1.0\n")
		}
	}
	h.script(bin, a.cross()+"ld", "#!/bin/sh\necho ld 1.0\n")
	h.script(bin, "make", fmt.Sprintf(makeScript, h.dir, afterConfig, building))
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	h.file("image", bzImage())
	h.file("source.deb", debOf(t, map[string]string{"linux-source-6.12/Kconfig": "mainmenu\n"}))
	h.b = h.builder()
	return h
}

func (h *host) builder() *Builder {
	deb := filepath.Join(h.dir, "source.deb")
	sum, err := fileSHA256(deb)
	if err != nil {
		h.t.Fatal(err)
	}
	return &Builder{
		Cache:    filepath.Join(h.dir, "cache"),
		Progress: &h.out,
		Source:   Source{SHA256: sum, Version: "6.12-1", Open: func(context.Context) (string, error) { return deb, nil }},
	}
}

func (h *host) script(dir, name, text string) {
	h.t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		h.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) file(name string, b []byte) {
	h.t.Helper()
	if err := os.WriteFile(filepath.Join(h.dir, name), b, 0o644); err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) read(name string) string {
	h.t.Helper()
	b, err := os.ReadFile(filepath.Join(h.dir, name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		h.t.Fatal(err)
	}
	return string(b)
}

// bzImage is the least that has the marks of one.
func bzImage() []byte {
	b := make([]byte, 4096)
	b[0x1fe], b[0x1ff] = 0x55, 0xaa
	copy(b[0x202:], "HdrS")
	return b
}

// debOf is a Debian package that holds files in a source archive.
func debOf(t *testing.T, files map[string]string) []byte {
	t.Helper()
	inner := tarXZ(t, files)
	data := tarXZ(t, map[string]string{"./usr/src/linux-source-6.12.tar.xz": string(inner)})
	var ar bytes.Buffer
	ar.WriteString("!<arch>\n")
	for _, m := range []struct {
		name string
		data []byte
	}{{"debian-binary", []byte("2.0\n")}, {"data.tar.xz", data}} {
		fmt.Fprintf(&ar, "%-16s%-12d%-6d%-6d%-8s%-10d`\n", m.name, 0, 0, 0, "100644", len(m.data))
		ar.Write(m.data)
		if len(m.data)%2 == 1 {
			ar.WriteByte('\n')
		}
	}
	return ar.Bytes()
}

func tarXZ(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var buf bytes.Buffer
	z, err := xz.NewWriter(&buf)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(z)
	for name, text := range files {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(text)),
			ModTime: time.Date(2026, 11, 20, 8, 21, 0, 0, time.UTC)}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func TestBuildIsCachedByContent(t *testing.T) {
	h := newHost(t, ":", ":")
	first, err := h.b.Build(t.Context(), "amd64")
	if err != nil {
		t.Fatal(err)
	}
	if first.Cached || first.Meta.Version != "6.12.0-pybox" || first.Meta.KernelBytes != int64(len(bzImage())) {
		t.Errorf("first build: %+v", first)
	}
	for _, name := range []string{"kernel", "config", "System.map", "meta.json"} {
		if st, err := os.Stat(filepath.Join(first.Dir, name)); err != nil || st.Mode().Perm() != 0o644 {
			t.Errorf("%s: %v, %v", name, st, err)
		}
	}
	goals := h.read("goals")

	h.b.Source.Open = func(context.Context) (string, error) { return "", errors.New("asked for the source") }
	second, err := h.b.Build(t.Context(), "amd64")
	if err != nil || !second.Cached || second.Dir != first.Dir {
		t.Errorf("second build: %+v, %v", second, err)
	}
	if h.read("goals") != goals {
		t.Error("the second build called make")
	}

	if err := os.WriteFile(first.Kernel(), []byte("other"), 0o644); err != nil {
		t.Fatal(err)
	}
	h.b = h.builder()
	third, err := h.b.Build(t.Context(), "amd64")
	if err != nil || third.Cached || third.Meta.KernelSHA256 != first.Meta.KernelSHA256 {
		t.Errorf("after damage: %+v, %v", third, err)
	}
	if !strings.Contains(h.out.String(), "kernel is damaged") {
		t.Errorf("nothing is said of the damage: %s", h.out.String())
	}

	if r, err := h.builder().Cached(t.Context(), "amd64"); err != nil || r.Dir != first.Dir {
		t.Errorf("in the cache: %+v, %v", r, err)
	}

	h.file("source.deb", debOf(t, map[string]string{"linux-source-6.12/Kconfig": "another\n"}))
	if r, err := h.builder().Cached(t.Context(), "amd64"); !errors.Is(err, ErrNotCached) {
		t.Errorf("another source's is not in the cache: %+v, %v", r, err)
	}
	other, err := h.builder().Build(t.Context(), "amd64")
	if err != nil || other.Cached || other.Dir == first.Dir {
		t.Errorf("with another source: %+v, %v", other, err)
	}
}

// TestKey: each input changes it, and comments in fragments do not exist for it.
func TestKey(t *testing.T) {
	a, b := arches[0], arches[1]
	src, requests, tools := Source{SHA256: "1"}, []config.Request{{Symbol: "A", Value: "y"}}, Tools{Compiler: "gcc 1"}
	base := key(a, src, requests, nil, tools)
	if base != key(a, Source{SHA256: "1", Version: "named"}, []config.Request{{Symbol: "A", Value: "y", Pos: "f:9"}}, nil, tools) {
		t.Error("names and positions change the key")
	}
	seen := map[string]bool{base: true}
	for i, k := range []string{
		key(b, src, requests, nil, tools),
		key(a, src, requests, []string{"CONFIG_A=y"}, tools), // the same kernel, and not PyBox's own
		key(a, Source{SHA256: "2"}, requests, nil, tools),
		key(a, src, []config.Request{{Symbol: "A", Value: "n"}}, nil, tools),
		key(a, src, requests, nil, Tools{Compiler: "gcc 2"}),
		key(a, src, requests, nil, Tools{Compiler: "gcc 1", Linker: "ld"}),
		key(a, src, requests, nil, Tools{Compiler: "gcc 1", Compressor: "ld"}),
	} {
		if seen[k] {
			t.Errorf("change %d does not show in the key", i)
		}
		seen[k] = true
	}
}

func TestUnhonouredRequestsAreListed(t *testing.T) {
	h := newHost(t, `sed -i "s/^CONFIG_MEMCG=y/CONFIG_MEMCG=n/; /CONFIG_MEMCG=n/d; s/^# CONFIG_IO_URING is not set/CONFIG_IO_URING=y/" "$o/.config"`, ":")
	for name, fn := range map[string]func() error{
		"configure": func() error { _, err := h.b.Configure(t.Context(), "amd64"); return err },
		"build":     func() error { _, err := h.b.Build(t.Context(), "amd64"); return err },
	} {
		err := fn()
		if !errors.Is(err, ErrUnhonoured) {
			t.Fatalf("%s: %v", name, err)
		}
		for _, want := range []string{"2 of them", "CONFIG_MEMCG: wanted y, got n", "CONFIG_IO_URING: wanted n, got y", "base.config:"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %q is not in: %v", name, want, err)
			}
		}
	}
	if strings.Contains(h.read("goals"), "bzImage") {
		t.Error("it was built all the same")
	}
}

func TestUnknownSymbolsAreListed(t *testing.T) {
	h := newHost(t, `echo "all.config:7:warning: unknown symbol: NO_SUCH" >&2; exit 1`, ":")
	_, err := h.b.Configure(t.Context(), "amd64")
	if !errors.Is(err, ErrUnhonoured) || !strings.Contains(err.Error(), "CONFIG_NO_SUCH") {
		t.Errorf("got %v", err)
	}
}

// TestOwnRequests go before PyBox's, show in key and meta.json, and are named in
// complaints by their own place.
func TestOwnRequests(t *testing.T) {
	h := newHost(t, ":", ":")
	plain, err := h.b.Build(t.Context(), "amd64")
	if err != nil {
		t.Fatal(err)
	}
	if len(plain.Meta.Changes) != 0 {
		t.Errorf("PyBox's own kernel has changes: %q", plain.Meta.Changes)
	}
	if got, err := Open(plain.Dir); err != nil || got.Meta.ConfigSHA256 != plain.Meta.ConfigSHA256 {
		t.Errorf("opened by its folder: %+v, %v", got, err)
	}
	if got, err := Open(h.dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a folder without a kernel: %+v, %v", got, err)
	}
	h.b.Own = []config.Request{{Symbol: "MEMCG", Value: "y", Pos: "my.config:1"}}
	same, err := h.b.Build(t.Context(), "amd64")
	if err != nil || same.Dir != plain.Dir || !same.Cached {
		t.Errorf("a request that changes nothing makes another kernel: %+v, %v", same, err)
	}
	h.b.Own = append(h.b.Own, config.Request{Symbol: "NAMESPACES", Value: "n", Pos: "my.config:2"}, config.Request{Symbol: "ZZZ", Value: "y", Pos: "my.config:3"})
	own, err := h.b.Build(t.Context(), "amd64")
	if err != nil || own.Dir == plain.Dir || own.Cached {
		t.Fatalf("%+v, %v", own, err)
	}
	if got := strings.Join(own.Meta.Changes, "; "); got != "# CONFIG_NAMESPACES is not set; CONFIG_ZZZ=y" {
		t.Errorf("changes %s", got)
	}
	built, err := os.ReadFile(filepath.Join(own.Dir, "config"))
	if err != nil || !strings.Contains(string(built), "# CONFIG_NAMESPACES is not set\n") || strings.Contains(string(built), "CONFIG_NAMESPACES=y") ||
		!strings.Contains(string(built), "CONFIG_ZZZ=y\n") || !strings.Contains(string(built), "CONFIG_MEMCG=y\n") {
		t.Errorf("built with another configuration: %v\n%s", err, built)
	}
	if says := h.out.String(); !strings.Contains(says, "CONFIG_NAMESPACES=y (base.config:") || strings.Contains(says, "CONFIG_MEMCG=y (") {
		t.Errorf("it says: %s", says)
	}

	h = newHost(t, `echo "all.config:7:warning: unknown symbol: ZZZ" >&2; exit 1`, ":")
	h.b.Own = []config.Request{{Symbol: "ZZZ", Value: "y", Pos: "my.config:3"}}
	if _, err := h.b.Configure(t.Context(), "amd64"); !errors.Is(err, ErrUnhonoured) || !strings.Contains(err.Error(), "my.config:3: CONFIG_ZZZ") {
		t.Errorf("an unknown symbol: %v", err)
	}
	h = newHost(t, `sed -i /CONFIG_ZZZ/d "$o/.config"`, ":")
	h.b.Own = []config.Request{{Symbol: "ZZZ", Value: "y", Pos: "my.config:3"}}
	if _, err := h.b.Build(t.Context(), "amd64"); !errors.Is(err, ErrUnhonoured) || !strings.Contains(err.Error(), "my.config:3: CONFIG_ZZZ: wanted y, got n") {
		t.Errorf("a refused symbol: %v", err)
	}
}

func TestFailedBuildShowsItsLog(t *testing.T) {
	h := newHost(t, ":", `for i in $(seq 100); do echo "line $i"; done; printf 'mm/slub.c:1: error: \033[1mno\n' >&2; exit 2`)
	_, err := h.b.Build(t.Context(), "amd64")
	if !errors.Is(err, ErrMake) {
		t.Fatal(err)
	}
	text := err.Error()
	log := filepath.Join(h.b.Cache, "work", "amd64-build.log")
	for _, want := range []string{"| mm/slub.c:1: error: ?[1mno", "| line 100", log} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in: %s", want, text)
		}
	}
	if strings.Contains(text, "line 50") {
		t.Error("more than the end of the log is shown")
	}
	if _, err := os.Stat(log); err != nil {
		t.Error(err)
	}
}

func TestWhatCannotBootIsNoResult(t *testing.T) {
	h := newHost(t, ":", ":")
	h.file("image", []byte("\x1f\x8bzipped"))
	if r, err := h.b.Build(t.Context(), "amd64"); err == nil || !strings.Contains(err.Error(), "gzip") {
		t.Errorf("got %+v, %v", r, err)
	}
}

// TestBuildSeesNothingOfTheEnvironment: settings of make that are not in the key
// must not reach it, and what makes a build reproducible must.
func TestBuildSeesNothingOfTheEnvironment(t *testing.T) {
	h := newHost(t, ":", ":")
	t.Setenv("KCFLAGS", "-O0")
	t.Setenv("LOCALVERSION", "-mine")
	t.Setenv("MAKEFLAGS", "-k")
	if _, err := h.b.Build(t.Context(), "amd64"); err != nil {
		t.Fatal(err)
	}
	env := h.read("env.bzImage")
	for _, never := range []string{"KCFLAGS", "LOCALVERSION", "MAKEFLAGS"} {
		if strings.Contains(env, never+"=") {
			t.Errorf("the build sees %s", never)
		}
	}
	for _, want := range []string{"KBUILD_BUILD_TIMESTAMP=Fri Nov 20 08:21:00 UTC 2026", "KBUILD_BUILD_USER=pybox",
		"KBUILD_BUILD_HOST=pybox", "KBUILD_BUILD_VERSION=1", "TZ=UTC"} {
		if !strings.Contains(env, want+"\n") {
			t.Errorf("the build does not see %s:\n%s", want, env)
		}
	}
}

func TestInterruptKillsTheWholeBuild(t *testing.T) {
	h := newHost(t, ":", `sleep 600 & echo $! >"$0.new" && mv "$0.new" "$0.pid"; wait`)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := h.b.Build(ctx, "amd64")
		ended <- err
	}()
	var pid int
	poll(t, "the build to run", func() bool {
		n, err := strconv.Atoi(strings.TrimSpace(h.read("bin/make.pid")))
		pid = n
		return err == nil
	})
	cancel()
	select {
	case err := <-ended:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the build did not end")
	}
	poll(t, "make's child to die", func() bool { return !alive(pid) })
	if entries, err := filepath.Glob(filepath.Join(h.b.Cache, "*", "kernel")); err != nil || len(entries) > 0 {
		t.Errorf("there are results: %v, %v", entries, err)
	}
}

// alive tells whether a process runs; one that nobody waited for does not.
func alive(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := bytes.Cut(b, []byte(") "))
	return len(rest) > 0 && rest[0] != 'Z' && rest[0] != 'X'
}

func poll(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

func TestCompareFindsWhatIsLost(t *testing.T) {
	h := newHost(t, ":", ":")
	l, err := h.b.Compare(t.Context(), "amd64", nil)
	if err != nil || !slices.Equal(l.Lost, []string{"MITIGATION_OF_THE_DAY"}) {
		t.Errorf("got %+v, %v", l, err)
	}
	allow := []config.Allowed{{Arch: "amd64", Symbol: "MITIGATION_OF_THE_DAY", Reason: "test"}}
	if l, err = h.b.Compare(t.Context(), "amd64", allow); err != nil || !l.OK() {
		t.Errorf("with an allowance: %+v, %v", l, err)
	}
	h.b.Own = []config.Request{{Symbol: "MITIGATION_OF_THE_DAY", Value: "y", Pos: "my.config:1"}}
	if l, err = h.b.Compare(t.Context(), "amd64", nil); err != nil || len(l.Lost) > 0 {
		t.Errorf("requested by a fragment of one's own: %+v, %v", l, err)
	}
	if left, _ := filepath.Glob(filepath.Join(h.b.Cache, "work", "defaults-*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestSourceMustBeThePinnedOne(t *testing.T) {
	h := newHost(t, ":", ":")
	deb := []byte(h.read("source.deb"))
	deb[len(deb)/2] ^= 1
	h.file("source.deb", deb)
	if _, err := h.b.Configure(t.Context(), "amd64"); !errors.Is(err, ErrSource) || !strings.Contains(err.Error(), h.b.Source.SHA256) {
		t.Errorf("one bit flipped: %v", err)
	}
	h.b.Source.SHA256 = "../../etc"
	if _, err := h.b.Configure(t.Context(), "amd64"); !errors.Is(err, ErrSource) {
		t.Errorf("a path for a digest: %v", err)
	}
	for name, b := range map[string][]byte{
		"no archive":    []byte("rubbish"),
		"no kernel":     debOf(t, map[string]string{"linux-source-6.12/README": ""}),
		"empty":         {},
		"half a source": debOf(t, map[string]string{"linux-source-6.12/Kconfig": "x"})[:300],
	} {
		h.file("source.deb", b)
		if _, err := h.builder().Configure(t.Context(), "amd64"); err == nil {
			t.Errorf("%s: no error", name)
		}
		if left, _ := filepath.Glob(filepath.Join(h.b.Cache, "source", "*")); len(left) > 0 {
			t.Errorf("%s: left behind: %v", name, left)
		}
	}
}

func TestMissingToolsAreNamed(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	err := CheckTools(t.Context(), "amd64")
	var m *Missing
	if !errors.As(err, &m) || !errors.Is(err, ErrTools) {
		t.Fatalf("got %v", err)
	}
	for _, want := range []string{"lz4", "flex", "gelf.h", "libelf-dev", "sudo apt-get install"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in: %v", want, err)
		}
	}
	if !slices.IsSorted(m.Packages) {
		t.Errorf("packages are not sorted: %v", m.Packages)
	}
	if _, err := (&Builder{Cache: t.TempDir()}).Build(t.Context(), "amd64"); !errors.Is(err, ErrTools) {
		t.Errorf("a build without tools: %v", err)
	}
}

// TestMissingToolsAreNamedByAll: whoever only configures or compares is told which
// package is missing too, for either architecture, before anything is fetched.
func TestMissingToolsAreNamedByAll(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	for _, a := range arches {
		b := &Builder{Cache: t.TempDir(), Source: Source{Open: func(context.Context) (string, error) {
			t.Error("the source is fetched before the tools are looked for")
			return "", fs.ErrNotExist
		}}}
		want := "flex"
		if c := a.cross(); c != "" {
			want = map[string]string{"amd64": "gcc-x86-64-linux-gnu", "arm64": "gcc-aarch64-linux-gnu"}[a.name]
		}
		_, configure := b.Configure(t.Context(), a.name)
		_, compare := b.Compare(t.Context(), a.name, nil)
		for what, err := range map[string]error{"configure": configure, "compare": compare} {
			var m *Missing
			if !errors.As(err, &m) || !slices.Contains(m.Packages, want) {
				t.Errorf("%s %s: %v, want the package %s to be named", what, a.name, err, want)
			}
		}
	}
}

func TestRemoveScratchKeepsResults(t *testing.T) {
	h := newHost(t, ":", ":")
	r, err := h.b.Build(t.Context(), "amd64")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(h.b.Cache, ".new-1"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := h.b.RemoveScratch(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"source", "work", ".new-1"} {
		if _, err := os.Stat(filepath.Join(h.b.Cache, name)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is still there: %v", name, err)
		}
	}
	if again, err := h.b.Build(t.Context(), "amd64"); err != nil || !again.Cached || again.Dir != r.Dir {
		t.Errorf("afterwards: %+v, %v", again, err)
	}
}

// TestRemoveScratchWaitsForBuilds: whichever lock a build holds.
func TestRemoveScratchWaitsForBuilds(t *testing.T) {
	h := newHost(t, ":", ":")
	if _, err := h.b.Configure(t.Context(), "amd64"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{workLock("amd64"), workLock("arm64"), sourceLock} {
		l, err := h.b.acquire(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		if err := h.b.RemoveScratch(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("with %s held: %v", name, err)
		}
		cancel()
		l.release()
		if _, err := openSource(filepath.Join(h.b.Cache, "source", h.b.Source.SHA256), h.b.Source.SHA256); err != nil {
			t.Fatalf("with %s held: %v", name, err)
		}
	}
}

// TestHelperBuild is the other process of TestKilledBuilderLeavesNobodyBeside.
func TestHelperBuild(t *testing.T) {
	dir := os.Getenv("KERNEL_TEST_HOST")
	if dir == "" {
		t.Skip("runs in a process of its own only")
	}
	_, err := (&host{t: t, dir: dir}).builder().Build(t.Context(), "amd64")
	t.Fatal("the build ended: ", err)
}

// TestKilledBuilderLeavesNobodyBeside: make dies with a builder that was killed, and
// as long as a child of make lives, nobody else gets its folder.
func TestKilledBuilderLeavesNobodyBeside(t *testing.T) {
	h := newHost(t, ":", `sleep 600 & echo $$ $! >"$0.new" && mv "$0.new" "$0.pid"; wait`)
	helper := exec.Command(os.Args[0], "-test.run=^TestHelperBuild$")
	helper.Env = append(os.Environ(), "KERNEL_TEST_HOST="+h.dir)
	if err := helper.Start(); err != nil {
		t.Fatal(err)
	}
	var mk, child int
	poll(t, "the build to run", func() bool {
		n, _ := fmt.Sscan(h.read("bin/make.pid"), &mk, &child)
		return n == 2
	})
	t.Cleanup(func() {
		syscall.Kill(mk, syscall.SIGKILL)
		syscall.Kill(child, syscall.SIGKILL)
	})
	if err := helper.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = helper.Wait()
	poll(t, "make to die with its builder", func() bool { return !alive(mk) })
	if !alive(child) {
		t.Fatal("make's child is dead, nothing is tried here")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := h.b.acquire(ctx, workLock("amd64")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the lock beside a living child: %v", err)
	}
	if err := syscall.Kill(child, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	l, err := h.b.acquire(ctx, workLock("amd64"))
	if err != nil {
		t.Fatalf("the lock afterwards: %v", err)
	}
	l.release()
}

// TestObjectsBelongToTools: those that another linker made are not reused.
func TestObjectsBelongToTools(t *testing.T) {
	h := newHost(t, ":", ":")
	first, err := h.b.Build(t.Context(), "amd64")
	if err != nil {
		t.Fatal(err)
	}
	object := filepath.Join(h.b.Cache, "work", "amd64-"+h.b.Source.SHA256[:16], "slub.o")
	if err := os.WriteFile(object, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(first.Dir); err != nil {
		t.Fatal(err)
	}
	if _, err := h.b.Build(t.Context(), "amd64"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(object); err != nil {
		t.Errorf("with the same tools: %v", err)
	}
	a, err := findArch("amd64")
	if err != nil {
		t.Fatal(err)
	}
	h.script(filepath.Join(h.dir, "bin"), a.cross()+"ld", "#!/bin/sh\necho ld 2.0\n")
	r, err := h.b.Build(t.Context(), "amd64")
	if err != nil || r.Cached {
		t.Fatalf("%+v, %v", r, err)
	}
	if _, err := os.Stat(object); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("with another linker: %v", err)
	}
}

// TestFullDisk: a clear sentence although the log cannot be written.
func TestFullDisk(t *testing.T) {
	wants := func(t *testing.T, err error, more ...string) {
		t.Helper()
		if !errors.Is(err, nospace.Err) {
			t.Fatalf("%v, want %v", err, nospace.Err)
		}
		for _, want := range append(more, nospace.Err.Error(), "PYBOX_CACHE") {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%q is not in: %v", want, err)
			}
		}
	}
	fullLog := func(h *host) {
		work := filepath.Join(h.b.Cache, "work")
		if err := os.MkdirAll(work, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("/dev/full", filepath.Join(work, "amd64-build.log")); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("compiler", func(t *testing.T) {
		h := newHost(t, ":", `echo "cc1: error: closing x.d: No space left on device" >&2; exit 1`)
		fullLog(h)
		_, err := h.b.Build(t.Context(), "amd64")
		if !errors.Is(err, ErrMake) {
			t.Errorf("%v, want %v too", err, ErrMake)
		}
		wants(t, err, "| cc1: error", "3 GB")
	})
	t.Run("log alone", func(t *testing.T) {
		h := newHost(t, ":", `echo "it died"; exit 1`)
		fullLog(h)
		_, err := h.b.Build(t.Context(), "amd64")
		wants(t, err, "| it died")
	})
	t.Run("unpack", func(t *testing.T) {
		h := newHost(t, ":", ":")
		h.script(filepath.Join(h.dir, "bin"), "tar", "#!/bin/sh\ncat >/dev/null\necho 'tar: x: Cannot write: No space left on device' >&2\nexit 2\n")
		_, err := h.b.Configure(t.Context(), "amd64")
		wants(t, err, "3072 MiB", h.b.Cache)
	})
	t.Run("other failure", func(t *testing.T) {
		h := newHost(t, ":", `exit 1`)
		if _, err := h.b.Build(t.Context(), "amd64"); errors.Is(err, nospace.Err) {
			t.Errorf("blamed on the disk: %v", err)
		}
	})
}

func TestTail(t *testing.T) {
	var end tail
	for i := range 20_000 {
		fmt.Fprintf(&end, "line %d\n", i)
	}
	if got := end.lines(); len(got) != tailLines || got[tailLines-1] != "line 19999" {
		t.Errorf("got %q", got)
	}
	end.Write(bytes.Repeat([]byte("x"), 1<<20))
	if got := end.lines(); len(got) != 1 || len(got[0]) != maxTailBytes || len(end.buf) > 2*maxTailBytes {
		t.Errorf("%d lines, %d bytes kept", len(got), len(end.buf))
	}
}

func TestStepCounter(t *testing.T) {
	var s stepCounter
	for _, part := range []string{"make: Entering\n  CC ", "     mm/slub.o\n  LD [M]  x\n", "  AR      built-in.a\n", strings.Repeat("y", 1<<20)} {
		if n, err := s.Write([]byte(part)); n != len(part) || err != nil {
			t.Fatal(n, err)
		}
	}
	if n, last := s.get(); n != 2 || last != "AR built-in.a" {
		t.Errorf("got %d, %q", n, last)
	}
	if len(s.part) > maxStepBytes {
		t.Errorf("%d bytes are kept of a line", len(s.part))
	}
}
