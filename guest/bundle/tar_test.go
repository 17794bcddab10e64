package bundle

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/pybox/pybox/guest/internal/guesttest"
	"github.com/pybox/pybox/guest/nospace"
	"github.com/pybox/pybox/guest/nospace/nospacetest"
)

func pack(t testing.TB, dir string) []byte {
	t.Helper()
	b, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := Pack(t.Context(), b, &out); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func extract(t testing.TB, archive []byte) (*Bundle, error) {
	t.Helper()
	a, err := OpenArchive(bytes.NewReader(archive))
	if err != nil {
		return nil, err
	}
	return a.Extract(context.Background(), t.TempDir())
}

func TestArchive(t *testing.T) {
	dir := newBundle(t, "one")
	archive := pack(t, dir)
	if !bytes.Equal(archive, pack(t, dir)) {
		t.Fatal("two archives of one bundle differ")
	}
	a, err := OpenArchive(bytes.NewReader(archive))
	if err != nil {
		t.Fatal(err)
	}
	want, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if a.ID() != want.ID() || a.Bytes() <= want.Manifest.size() {
		t.Errorf("id %s, %d bytes", a.ID(), a.Bytes())
	}
	got, err := a.Extract(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := got.Verify(t.Context()); err != nil || got.ID() != want.ID() {
		t.Errorf("id %s: %v", got.ID(), err)
	}
}

// TestArchiveForPeople: what stands in an archive is what common tools make of it.
func TestArchiveForPeople(t *testing.T) {
	for _, tool := range []string{"tar", "sha256sum"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(err)
		}
	}
	dir := t.TempDir()
	b, err := Open(newBundle(t, "one"))
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, "b.tar")
	if err := WriteArchive(t.Context(), b, name); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("tar", "-C", dir, "-xf", name).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	check := exec.Command("sha256sum", "--strict", "-c", SumsName)
	if runtime.GOOS == "darwin" {
		check = exec.Command("shasum", "-a", "256", "-c", SumsName)
	}
	check.Dir = dir
	if out, err := check.CombinedOutput(); err != nil || strings.Count(string(out), "OK") != 5 {
		t.Errorf("%v: %s", err, out)
	}
	unpacked, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := unpacked.CheckSums(); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(filepath.Join(dir, SumsName), []byte(strings.Repeat("0", 64)+"  kernel\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unpacked.CheckSums(); !errors.Is(err, ErrDamaged) {
		t.Errorf("sums that lie: %v", err)
	}
}

func TestWriteArchiveLeavesNothingHalf(t *testing.T) {
	src := newBundle(t, "one")
	b, err := Open(src)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(b.Path(b.Manifest.Root), []byte(strings.Repeat("x", int(b.Manifest.Root.Bytes))), 0o600); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := WriteArchive(t.Context(), b, filepath.Join(dir, "b.tar")); !errors.Is(err, ErrDamaged) {
		t.Errorf("%v", err)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// entry is a member of an archive made by hand.
type entry struct {
	tar.Header
	body []byte
}

func entries(t testing.TB, archive []byte) (out []entry) {
	t.Helper()
	r := tar.NewReader(bytes.NewReader(archive))
	for {
		h, err := r.Next()
		if err == io.EOF {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, entry{*h, b})
	}
}

func archiveOf(t testing.TB, list []entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range list {
		if e.Typeflag == tar.TypeReg {
			e.Size = int64(len(e.body))
		}
		e.Format = tar.FormatUnknown
		if err := w.WriteHeader(&e.Header); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(e.body); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestHostileArchives(t *testing.T) {
	good := entries(t, pack(t, newBundle(t, "one")))
	if names := []string{good[0].Name, good[1].Name}; !slices.Equal(names, []string{ManifestName, SumsName}) || len(good) != 6 {
		t.Fatalf("%d members, %v", len(good), names)
	}
	file := func(name, body string) entry {
		return entry{tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644}, []byte(body)}
	}
	cases := map[string]struct {
		change func([]entry) []entry
		want   error
		say    string
	}{
		"parent folder":  {func(e []entry) []entry { e[2].Name = "../kernel"; return e }, ErrArchive, `"../kernel"`},
		"absolute":       {func(e []entry) []entry { e[2].Name = "/tmp/kernel"; return e }, ErrArchive, `"/tmp/kernel"`},
		"current folder": {func(e []entry) []entry { e[0].Name = "./manifest.json"; return e }, ErrArchive, "manifest.json belongs"},
		"another order":  {func(e []entry) []entry { e[2], e[3] = e[3], e[2]; return e }, ErrArchive, "belongs"},
		"symbolic link": {func(e []entry) []entry {
			e[2].Typeflag, e[2].Linkname, e[2].body = tar.TypeSymlink, "/etc/passwd", nil
			return e
		}, ErrArchive, "no regular file"},
		"hard link": {func(e []entry) []entry {
			e[3].Typeflag, e[3].Linkname, e[3].body = tar.TypeLink, "kernel", nil
			return e
		}, ErrArchive, "no regular file"},
		"device":          {func(e []entry) []entry { e[2].Typeflag, e[2].body = tar.TypeChar, nil; return e }, ErrArchive, "no regular file"},
		"folder":          {func(e []entry) []entry { e[2].Typeflag, e[2].body = tar.TypeDir, nil; return e }, ErrArchive, "no regular file"},
		"one more":        {func(e []entry) []entry { return append(e, file("more", "x")) }, ErrArchive, "beyond its manifest"},
		"one twice":       {func(e []entry) []entry { return append(e, e[5]) }, ErrArchive, "beyond its manifest"},
		"one less":        {func(e []entry) []entry { return e[:5] }, ErrArchive, "it ends before"},
		"longer file":     {func(e []entry) []entry { e[2].body = append(e[2].body, 'x'); return e }, ErrArchive, "bytes, and the manifest says"},
		"another content": {func(e []entry) []entry { e[2].body = []byte(strings.ToUpper(string(e[2].body))); return e }, ErrDamaged, "copy or download it again"},
		"sums that lie": {func(e []entry) []entry {
			e[1].body = bytes.Replace(e[1].body, []byte("kernel"), []byte("kernal"), 1)
			return e
		}, ErrArchive, "SHA256SUMS does not say"},
		"no sums":           {func(e []entry) []entry { return append(e[:1], e[2:]...) }, ErrArchive, "SHA256SUMS belongs"},
		"huge manifest":     {func(e []entry) []entry { e[0].body = bytes.Repeat([]byte(" "), maxManifestBytes+1); return e }, ErrArchive, "its manifest has"},
		"no manifest":       {func(e []entry) []entry { e[0].body = []byte("{}"); return e }, ErrManifest, "schema"},
		"a newer schema":    {func(e []entry) []entry { e[0].body = []byte(`{"schema":"pybox.bundle/v2","new":1}`); return e }, ErrManifest, "pybox.bundle/v2"},
		"extended header":   {func(e []entry) []entry { e[2].PAXRecords = map[string]string{"SCHILY.xattr.user.x": "y"}; return e }, ErrArchive, "extension"},
		"nothing":           {func([]entry) []entry { return nil }, ErrArchive, "it ends before manifest.json"},
		"a folder of files": {func(e []entry) []entry { return e[2:] }, ErrArchive, "manifest.json belongs"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := extract(t, archiveOf(t, c.change(slices.Clone(good))))
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.say) {
				t.Errorf("%v, want %v with %q", err, c.want, c.say)
			}
		})
	}
}

// TestCutArchive: wherever it ends, it is told so, and nothing passes for a bundle.
func TestCutArchive(t *testing.T) {
	archive := pack(t, newBundle(t, "one"))
	whole := len(archive) - 3*512 // the last content, which is short, and two blocks of zeros
	for n := 0; n < whole; n += 100 {
		dir := t.TempDir()
		a, err := OpenArchive(bytes.NewReader(archive[:n]))
		if err == nil {
			_, err = a.Extract(t.Context(), dir)
		}
		if !errors.Is(err, ErrArchive) {
			t.Fatalf("cut at %d of %d bytes: %v", n, len(archive), err)
		}
		if _, err := os.Stat(filepath.Join(dir, ManifestName)); !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("cut at %d: a manifest was written", n)
		}
	}
}

func TestArchiveThatIsNone(t *testing.T) {
	for name, b := range map[string][]byte{
		"text": bytes.Repeat([]byte("this is no archive\n"), 200),
		"gzip": guesttest.Compress(t, pack(t, newBundle(t, "one")), ".gz"),
	} {
		if _, err := extract(t, b); !errors.Is(err, ErrArchive) || name == "gzip" && !strings.Contains(err.Error(), "decompressed") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestExtractOnFullDisk(t *testing.T) {
	if !nospacetest.OwnMounts(t) {
		return
	}
	dir := nospacetest.Disk(t, 256<<10)
	a, err := OpenArchive(bytes.NewReader(pack(t, newBundle(t, strings.Repeat("x", 300<<10)))))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Extract(t.Context(), dir); !nospace.Is(err) || errors.Is(err, ErrArchive) {
		t.Errorf("%v", err)
	}
}

func TestExtractIsCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	a, err := OpenArchive(bytes.NewReader(pack(t, newBundle(t, "one"))))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Extract(ctx, t.TempDir()); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

// TestListKnowsWhatInstallRemoves: the plan of an installation tells what goes.
func TestListKnowsWhatInstallRemoves(t *testing.T) {
	home := t.TempDir()
	if i, err := List(home); err != nil || i.Current != "" || len(i.Bundles) > 0 {
		t.Fatalf("%+v, %v", i, err)
	}
	for _, seed := range []string{"one", "two", "three", "three", "one"} {
		before, err := List(home)
		if err != nil {
			t.Fatal(err)
		}
		src := newBundle(t, seed)
		b, err := Open(src)
		if err != nil {
			t.Fatal(err)
		}
		gone := before.Superseded(b.ID())
		if _, err := Install(t.Context(), home, src); err != nil {
			t.Fatal(err)
		}
		after, err := List(home)
		if err != nil {
			t.Fatal(err)
		}
		if after.Current != b.ID() {
			t.Errorf("%s: current is %q", seed, after.Current)
		}
		for _, n := range before.Bundles {
			if there := slices.Contains(after.Bundles, n); there == slices.Contains(gone, n) {
				t.Errorf("%s: %s is there afterwards: %v; said to go: %v", seed, n, there, gone)
			}
		}
	}
}

func FuzzOpenArchive(f *testing.F) {
	good := pack(f, newBundle(f, "one"))
	f.Add(good)
	f.Add(good[:len(good)/2])
	f.Add([]byte{})
	list := entries(f, good)
	list[2].Name = "../kernel"
	f.Add(archiveOf(f, list))
	memory := "/dev/shm" // where there is such a disk, syncing takes no time
	if _, err := os.Stat(memory); err != nil {
		memory = ""
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := OpenArchive(bytes.NewReader(b))
		if err != nil {
			return
		}
		if err := a.Manifest.Validate(); err != nil {
			t.Fatalf("an invalid manifest passed: %v", err)
		}
		if a.Bytes() > 64<<20 {
			return
		}
		dir, err := os.MkdirTemp(memory, "")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		out := filepath.Join(dir, "out")
		if err := os.Mkdir(out, 0o700); err != nil {
			t.Fatal(err)
		}
		got, err := a.Extract(t.Context(), out)
		if err == nil {
			err = got.Verify(t.Context())
			if err != nil {
				t.Fatalf("extracted, but not whole: %v", err)
			}
		}
		if all, _ := os.ReadDir(dir); len(all) != 1 {
			t.Fatalf("written outside: %v", all)
		}
	})
}
