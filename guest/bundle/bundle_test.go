package bundle

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/pybox/pybox/guest/nospace"
	"github.com/pybox/pybox/guest/nospace/nospacetest"
)

// newBundle makes a bundle of small files; seed makes it differ from others.
func newBundle(t testing.TB, seed string) string {
	t.Helper()
	dir := t.TempDir()
	file := func(name string) File {
		b := []byte(name + " " + seed)
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
		s := sha256.Sum256(b)
		return File{name, hex.EncodeToString(s[:]), int64(len(b))}
	}
	initramfs := file("initramfs")
	image := file("stdlib.erofs")
	m := Manifest{Schema: Schema, Arch: "amd64", Kernel: Kernel{file("kernel"), KernelOwn, "6.12.1", strings.Repeat("c", 64)}, Initramfs: &initramfs,
		Root: file("root.erofs"), Images: []Image{{"stdlib", image, ImageSerial(image.SHA256)}},
		KernelArgs: []string{"ro", "quiet"}, Agent: Agent{"0.1", strings.Repeat("a", 64), 1}, InitSHA256: strings.Repeat("d", 64), LockSHA256: strings.Repeat("b", 64)}
	raw, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, ManifestName), raw, 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestInstallOnFullDisk: the disk is to blame, not the bundle.
func TestInstallOnFullDisk(t *testing.T) {
	if !nospacetest.OwnMounts(t) {
		return
	}
	home := nospacetest.Disk(t, 256<<10)
	_, err := Install(t.Context(), home, newBundle(t, strings.Repeat("x", 300<<10)))
	if !errors.Is(err, nospace.Err) || errors.Is(err, ErrDamaged) {
		t.Fatalf("%v, want %v", err, nospace.Err)
	}
	for _, want := range []string{"no room on the disk: the guest bundle needs 2 MiB", home, "PYBOX_HOME"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("it does not say %q: %v", want, err)
		}
	}
	if strings.Contains(err.Error(), "verify") {
		t.Errorf("it speaks of verifying: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(home, bundlesDir, tempPrefix+"*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	// The next one, that fits, goes in.
	if _, err := Install(t.Context(), home, newBundle(t, "small")); err != nil {
		t.Error(err)
	}
}

func TestOpenAndVerify(t *testing.T) {
	dir := newBundle(t, "")
	b, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Verify(t.Context()); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(filepath.Join(dir, ManifestName))
	if err != nil {
		t.Fatal(err)
	}
	if b.ID() != digest(raw) || b.Path(b.Manifest.Root) != filepath.Join(dir, "root.erofs") || len(b.Manifest.Files()) != 4 {
		t.Errorf("%s %s", b.ID(), b.Path(b.Manifest.Root))
	}
	if again, err := b.Manifest.Encode(); err != nil || !bytes.Equal(again, raw) {
		t.Errorf("encoding is not stable: %v", err)
	}
	if b.Manifest.Images[0].Serial != "img-"+b.Manifest.Images[0].SHA256[:16] {
		t.Error(b.Manifest.Images[0].Serial)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.Verify(ctx); !errors.Is(err, context.Canceled) || errors.Is(err, ErrDamaged) {
		t.Errorf("cancelled: %v", err)
	}
}

// TestFlippedBits flips one bit in each file of an installed bundle, the
// manifest and the record of the current one included.
func TestFlippedBits(t *testing.T) {
	home := t.TempDir()
	b, err := Install(t.Context(), home, newBundle(t, ""))
	if err != nil {
		t.Fatal(err)
	}
	names := []string{filepath.Join(b.Dir(), ManifestName), filepath.Join(home, "bundles", "current")}
	for _, f := range b.Manifest.Files() {
		names = append(names, b.Path(f))
	}
	for _, name := range names {
		good, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, at := range []int{0, len(good) / 2, len(good) - 2} {
			bad := slices.Clone(good)
			bad[at] ^= 0x04
			if err := os.WriteFile(name, bad, 0o644); err != nil {
				t.Fatal(err)
			}
			err := check(t.Context(), home)
			if filepath.Base(name) == "current" {
				// A wrong id may read as one of a bundle that is not there.
				if err == nil {
					t.Errorf("%s, byte %d: not noticed", name, at)
				}
				continue
			}
			if !errors.Is(err, ErrDamaged) {
				t.Errorf("%s, byte %d: %v, want ErrDamaged", name, at, err)
				continue
			}
			for _, s := range []string{name, digest(good), digest(bad), "pybox setup"} {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("%s: the error lacks %q: %v", name, s, err)
				}
			}
		}
		if err := os.WriteFile(name, good, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := check(t.Context(), home); err != nil {
			t.Fatalf("after repair: %v", err)
		}
	}
}

func check(ctx context.Context, home string) error {
	b, err := Current(home)
	if err != nil {
		return err
	}
	return b.Verify(ctx)
}

func TestOpenRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		change func(dir string) error
		want   error
	}{
		"no manifest":      {func(d string) error { return os.Remove(filepath.Join(d, ManifestName)) }, ErrNoBundle},
		"missing file":     {func(d string) error { return os.Remove(filepath.Join(d, "kernel")) }, ErrDamaged},
		"longer file":      {func(d string) error { return os.WriteFile(filepath.Join(d, "kernel"), make([]byte, 99), 0o600) }, ErrDamaged},
		"manifest is junk": {func(d string) error { return os.WriteFile(filepath.Join(d, ManifestName), []byte("{}"), 0o600) }, ErrManifest},
		"manifest is huge": {func(d string) error {
			return os.WriteFile(filepath.Join(d, ManifestName), make([]byte, maxManifestBytes+1), 0o600)
		}, ErrManifest},
		"link": {func(d string) error {
			return errors.Join(os.Rename(filepath.Join(d, "kernel"), filepath.Join(d, "k2")), os.Symlink("k2", filepath.Join(d, "kernel")))
		}, ErrDamaged},
		"manifest is a link": {func(d string) error {
			return errors.Join(os.Rename(filepath.Join(d, ManifestName), filepath.Join(d, "m2")), os.Symlink("m2", filepath.Join(d, ManifestName)))
		}, ErrDamaged},
		"FIFO": {func(d string) error {
			return errors.Join(os.Remove(filepath.Join(d, "kernel")), syscall.Mkfifo(filepath.Join(d, "kernel"), 0o600))
		}, ErrDamaged},
		"manifest is a FIFO": {func(d string) error {
			return errors.Join(os.Remove(filepath.Join(d, ManifestName)), syscall.Mkfifo(filepath.Join(d, ManifestName), 0o600))
		}, ErrDamaged},
	} {
		dir := newBundle(t, "")
		if err := c.change(dir); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(dir); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

func TestManifestRefuses(t *testing.T) {
	for name, change := range map[string]func(*Manifest){
		"schema":        func(m *Manifest) { m.Schema = "pybox.bundle/v2" },
		"arch":          func(m *Manifest) { m.Arch = "riscv64" },
		"kind":          func(m *Manifest) { m.Kernel.Kind = "mine" },
		"version":       func(m *Manifest) { m.Kernel.Version = "6\x1b[2J" },
		"console":       func(m *Manifest) { m.KernelArgs = []string{"console=ttyS0"} },
		"argument":      func(m *Manifest) { m.KernelArgs = []string{"a b"} },
		"many args":     func(m *Manifest) { m.KernelArgs = make([]string, 65) },
		"traversal":     func(m *Manifest) { m.Root.File = "../root" },
		"absolute":      func(m *Manifest) { m.Root.File = "/etc/passwd" },
		"hidden":        func(m *Manifest) { m.Root.File = ".." },
		"itself":        func(m *Manifest) { m.Root.File = ManifestName },
		"same file":     func(m *Manifest) { m.Root = m.Kernel.File },
		"digest":        func(m *Manifest) { m.Root.SHA256 = "A" + m.Root.SHA256[1:] },
		"bytes":         func(m *Manifest) { m.Root.Bytes = -1 },
		"no agent":      func(m *Manifest) { m.Agent = Agent{} },
		"lock":          func(m *Manifest) { m.LockSHA256 = "" },
		"kernel config": func(m *Manifest) { m.Kernel.ConfigSHA256 = "../x" },
		"init":          func(m *Manifest) { m.InitSHA256 = strings.Repeat("D", 64) },
		"serial":        func(m *Manifest) { m.Images[0].Serial = "img-0000000000000000" },
		"image name":    func(m *Manifest) { m.Images[0].Name = "a/b" },
		"image twice":   func(m *Manifest) { m.Images = append(m.Images, m.Images[0]) },
		"many images":   func(m *Manifest) { m.Images = make([]Image, maxImages+1) },
		"huge":          func(m *Manifest) { m.Root.Bytes = maxFileBytes + 1 },
		"option-like":   func(m *Manifest) { m.Kernel.File.File = "-x" },
		"initramfs sum": func(m *Manifest) { m.Initramfs.SHA256 = "" },
	} {
		b, err := Open(newBundle(t, ""))
		if err != nil {
			t.Fatal(err)
		}
		change(&b.Manifest)
		if _, err := b.Manifest.Encode(); !errors.Is(err, ErrManifest) {
			t.Errorf("%s: %v, want ErrManifest", name, err)
		}
	}
	raw, err := os.ReadFile(filepath.Join(newBundle(t, ""), ManifestName))
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{
		"unknown key": bytes.Replace(raw, []byte(`"arch"`), []byte(`"evil": 1, "arch"`), 1),
		"trailing":    append(slices.Clone(raw), '{'),
	} {
		if _, err := ParseManifest(b); !errors.Is(err, ErrManifest) {
			t.Errorf("%s: %v, want ErrManifest", name, err)
		}
	}
}

func FuzzParseManifest(f *testing.F) {
	raw, err := os.ReadFile(filepath.Join(newBundle(f, ""), ManifestName))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := ParseManifest(b)
		if err != nil {
			if !errors.Is(err, ErrManifest) {
				t.Fatal(err)
			}
			return
		}
		for _, file := range m.Files() {
			if filepath.Base(file.File) != file.File || file.File == ".." || file.Bytes <= 0 {
				t.Fatalf("%+v", file)
			}
		}
		if _, err := m.Encode(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestInstall(t *testing.T) {
	home := filepath.Join(t.TempDir(), "a home")
	if _, err := Current(home); !errors.Is(err, ErrNoBundle) || !strings.Contains(err.Error(), "pybox setup") {
		t.Fatalf("%v, want ErrNoBundle with advice", err)
	}
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	first := newBundle(t, "1")
	b, err := Install(t.Context(), home, first)
	if err != nil {
		t.Fatal(err)
	}
	if b.Dir() != filepath.Join(home, "bundles", b.ID()[:16]) {
		t.Error(b.Dir())
	}
	for p, want := range map[string]fs.FileMode{
		filepath.Join(home, "bundles"): 0o700, b.Dir(): 0o700, b.Path(b.Manifest.Kernel.File): 0o644, filepath.Join(b.Dir(), ManifestName): 0o644} {
		if st, err := os.Stat(p); err != nil || st.Mode().Perm() != want {
			t.Errorf("%s: %v, want %v, %v", p, st.Mode(), want, err)
		}
	}
	before, err := os.Stat(b.Path(b.Manifest.Root))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Install(t.Context(), home, first); err != nil {
		t.Fatalf("the same again: %v", err)
	}
	if after, err := os.Stat(b.Path(b.Manifest.Root)); err != nil || !os.SameFile(before, after) {
		t.Errorf("the same bundle was copied again: %v", err)
	}
	if _, err := Install(t.Context(), home, b.Dir()); err != nil {
		t.Fatalf("from the installation itself: %v", err)
	}
	// A damaged installation is repaired by installing again.
	if err := os.WriteFile(b.Path(b.Manifest.Root), []byte("rubbish"), 0o644); err != nil {
		t.Fatal(err)
	}
	stranger := filepath.Join(b.Dir(), "notes.txt")
	if err := os.WriteFile(stranger, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(b.Path(b.Manifest.Kernel.File)); err != nil { // and a part that is gone
		t.Fatal(err)
	}
	if b, err = Install(t.Context(), home, first); err != nil || b.Verify(t.Context()) != nil {
		t.Fatalf("repair: %v", err)
	}
	if got, err := os.ReadFile(stranger); err != nil || string(got) != "mine" {
		t.Errorf("a file that was no part of it: %q, %v", got, err)
	}
}

func installed(t *testing.T, home string) (ids []string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(home, "bundles"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.IsDir() {
			ids = append(ids, e.Name())
		}
	}
	return ids
}

func TestInstallKeepsThePrevious(t *testing.T) {
	home := t.TempDir()
	var ids []string
	for _, seed := range []string{"1", "2", "3"} {
		b, err := Install(t.Context(), home, newBundle(t, seed))
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, b.ID()[:16])
	}
	left := filepath.Join(home, "bundles", "tmp-left")
	mine := filepath.Join(home, "bundles", "my notes")
	for _, d := range []string{left, mine} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Install(t.Context(), home, filepath.Join(home, "bundles", ids[2])); err != nil {
		t.Fatal(err)
	}
	want := []string{ids[1], ids[2], "my notes"}
	slices.Sort(want)
	if got := installed(t, home); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestInstallRefusesDamage(t *testing.T) {
	home, dir := t.TempDir(), newBundle(t, "1")
	good, err := Install(t.Context(), home, newBundle(t, "0"))
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(dir, "root.erofs"))
	if err != nil {
		t.Fatal(err)
	}
	b[0] ^= 1
	if err := os.WriteFile(filepath.Join(dir, "root.erofs"), b, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Install(t.Context(), home, dir); !errors.Is(err, ErrDamaged) {
		t.Fatalf("%v, want ErrDamaged", err)
	}
	if cur, err := Current(home); err != nil || cur.ID() != good.ID() {
		t.Errorf("the current bundle changed: %v", err)
	}
	if got := installed(t, home); len(got) != 1 {
		t.Errorf("left behind: %q", got)
	}
}

func TestInstallAtTheSameTime(t *testing.T) {
	home := t.TempDir()
	dirs := []string{newBundle(t, "1"), newBundle(t, "2")}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			if _, err := Install(t.Context(), home, dirs[i%2]); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if err := check(t.Context(), home); err != nil {
		t.Error(err)
	}
}
