// Package wheeltest makes wheels for tests: good ones, and ones that are wrong in a
// single thing.
package wheeltest

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Wheel says what is in a wheel. The zero value of every field but Name and Version
// is a good one.
type Wheel struct {
	Name, Version string
	Tag           string // "py3-none-any"
	// Files are by their paths in the archive; those of the metadata folder replace
	// what is made otherwise, and an empty METADATA, WHEEL or RECORD leaves it out.
	Files map[string]string
	// Exec are files that may be run.
	Exec []string
	// Requires are values of Requires-Dist, Python is Requires-Python.
	Requires []string
	Python   string
	// EntryPoints is entry_points.txt.
	EntryPoints string
	// Record changes RECORD before it is written.
	Record func(string) string
	// Header changes what the archive says of a file; may be nil.
	Header func(h *zip.FileHeader)
}

// File is the wheel's file name.
func (w Wheel) File() string {
	return fmt.Sprintf("%s-%s-%s.whl", w.Name, w.Version, w.tag())
}

func (w Wheel) tag() string {
	if w.Tag == "" {
		return "py3-none-any"
	}
	return w.Tag
}

// DistInfo is the folder of metadata.
func (w Wheel) DistInfo() string { return w.Name + "-" + w.Version + ".dist-info" }

// Bytes makes the wheel.
func (w Wheel) Bytes(t testing.TB) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	files := w.files()
	for _, name := range w.order(files) {
		h := &zip.FileHeader{Name: name, Method: zip.Deflate}
		mode := fs.FileMode(0o644)
		if slices.Contains(w.Exec, name) {
			mode = 0o755
		}
		if strings.HasSuffix(name, "/") {
			h.Method, mode = zip.Store, fs.ModeDir|0o755
		}
		h.SetMode(mode)
		if w.Header != nil {
			w.Header(h)
		}
		out, err := z.CreateHeader(h)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := out.Write([]byte(files[name])); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// order is that of the archive: metadata last, RECORD at the very end.
func (w Wheel) order(files map[string]string) []string {
	names := slices.Sorted(maps.Keys(files))
	rank := func(n string) int {
		switch {
		case strings.HasSuffix(n, ".dist-info/RECORD"):
			return 2
		case strings.HasPrefix(n, w.DistInfo()+"/"):
			return 1
		}
		return 0
	}
	slices.SortStableFunc(names, func(a, b string) int { return rank(a) - rank(b) })
	return names
}

func (w Wheel) files() map[string]string {
	dir := w.DistInfo() + "/"
	files := map[string]string{
		dir + "METADATA": w.metadata(),
		dir + "WHEEL":    fmt.Sprintf("Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: %v\nTag: %s\n", w.Tag == "", w.tag()),
	}
	if w.EntryPoints != "" {
		files[dir+"entry_points.txt"] = w.EntryPoints
	}
	maps.Copy(files, w.Files)
	for _, name := range []string{"METADATA", "WHEEL"} {
		if files[dir+name] == "" {
			delete(files, dir+name)
		}
	}
	if text, given := w.Files[dir+"RECORD"]; given && text == "" {
		delete(files, dir+"RECORD")
		return files
	} else if !given {
		files[dir+"RECORD"] = Record(files, dir+"RECORD")
	}
	if w.Record != nil {
		files[dir+"RECORD"] = w.Record(files[dir+"RECORD"])
	}
	return files
}

func (w Wheel) metadata() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Metadata-Version: 2.1\nName: %s\nVersion: %s\nSummary: A wheel for tests\n", w.Name, w.Version)
	if w.Python != "" {
		fmt.Fprintf(&b, "Requires-Python: %s\n", w.Python)
	}
	for _, r := range w.Requires {
		fmt.Fprintf(&b, "Requires-Dist: %s\n", r)
	}
	return b.String() + "\nA description.\nName: not-this\n"
}

// Record makes a RECORD for files, whose own name is given.
func Record(files map[string]string, own string) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if name == own || strings.HasSuffix(name, "/") {
			continue
		}
		sum := sha256.Sum256([]byte(files[name]))
		fmt.Fprintf(&b, "%s,sha256=%s,%d\n", quote(name), base64.RawURLEncoding.EncodeToString(sum[:]), len(files[name]))
	}
	return b.String() + quote(own) + ",,\n"
}

func quote(name string) string {
	if strings.ContainsAny(name, "\",\n") {
		return `"` + strings.ReplaceAll(name, `"`, `""`) + `"`
	}
	return name
}

// Write writes the wheel into a folder, under its own name, and returns its path and
// SHA-256.
func (w Wheel) Write(t testing.TB, dir string) (path, digest string) {
	t.Helper()
	b := w.Bytes(t)
	path = filepath.Join(dir, w.File())
	if err := os.WriteFile(path, b, 0o644); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(b)
	return path, hex.EncodeToString(sum[:])
}
