package userimage_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pybox/pybox/guest/userimage"
	"github.com/pybox/pybox/guest/wheel/wheeltest"
)

// A set of wheels like that of a larger project: 30 of them, 200 MB in all, a third of
// what is in them.
const (
	benchWheels  = 30
	benchSources = 200      // in each
	benchLibrary = 15 << 20 // in each: a library of machine code
)

// benchSet writes the wheels.
func benchSet(b *testing.B, dir string) (ws []userimage.Wheel, bytes int64) {
	b.Helper()
	r := rand.New(rand.NewPCG(1, 2))
	for i := range benchWheels {
		name := fmt.Sprintf("package%02d", i)
		files := map[string]string{name + "/__init__.py": "", name + "/_library.so": like(r, benchLibrary)}
		for j := range benchSources {
			files[fmt.Sprintf("%s/part%d/module%d.py", name, j%10, j)] = like(r, 5000+r.IntN(20000))
		}
		w := source(b, dir, wheeltest.Wheel{Name: name, Version: "1", Files: files})
		st, err := os.Stat(w.Path)
		if err != nil {
			b.Fatal(err)
		}
		bytes += st.Size()
		ws = append(ws, w)
	}
	return ws, bytes
}

// like makes so many bytes that deflate makes about half as long.
func like(r *rand.Rand, n int) string {
	var b strings.Builder
	b.Grow(n + 64)
	for b.Len() < n {
		fmt.Fprintf(&b, "%016x", r.Uint64())
		if r.IntN(4) == 0 {
			b.WriteString("    return self.value_of(name, default=None)\n")
		}
	}
	return b.String()[:n]
}

// mostUnzips is how many times as long as unzip of the wheels a build may take.
const mostUnzips = 2

// BenchmarkBuild builds an image without byte code out of those wheels, and says how
// much longer that takes than unzip of them, one after the other: the best of each. It
// fails where that is more than mostUnzips.
func BenchmarkBuild(b *testing.B) {
	dir := b.TempDir()
	ws, bytes := benchSet(b, dir)
	b.SetBytes(bytes)
	unzipped := unzip(b, ws)
	base := makeBase(b, baseFiles())
	var best time.Duration
	for b.Loop() {
		o := userimage.Options{Name: "bench", Arch: "amd64", Base: base, Lock: userimage.Lock{Kind: "requirements", SHA256: strings.Repeat("ab", 32)},
			Wheels: ws, Out: filepath.Join(b.TempDir(), "image.erofs")}
		start := time.Now()
		r, err := userimage.Build(b.Context(), o)
		if took := time.Since(start); best == 0 || took < best {
			best = took
		}
		if err != nil {
			b.Fatal(err)
		}
		if err := os.Remove(r.File); err != nil {
			b.Fatal(err)
		}
	}
	if unzipped > 0 {
		ratio := float64(best) / float64(unzipped)
		b.ReportMetric(ratio, "×unzip")
		if ratio > mostUnzips {
			b.Errorf("%v is %.1f times the %v of unzip, at most %d", best, ratio, unzipped, mostUnzips)
		}
	}
}

// unzip unpacks the wheels a few times and returns the shortest time, 0 where there is
// no unzip.
func unzip(b *testing.B, ws []userimage.Wheel) (best time.Duration) {
	b.Helper()
	program, err := exec.LookPath("unzip")
	if err != nil {
		b.Log("NOT COMPARED: there is no unzip")
		return 0
	}
	for range 3 {
		dir := b.TempDir()
		start := time.Now()
		for i, w := range ws {
			if out, err := exec.CommandContext(b.Context(), program, "-q", w.Path, "-d", filepath.Join(dir, fmt.Sprint(i))).CombinedOutput(); err != nil {
				b.Fatalf("%v: %s", err, out)
			}
		}
		if took := time.Since(start); best == 0 || took < best {
			best = took
		}
		if err := os.RemoveAll(dir); err != nil {
			b.Fatal(err)
		}
	}
	return best
}
