package wheel_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pybox/pybox/guest/tree"
	"github.com/pybox/pybox/guest/wheel"
	"github.com/pybox/pybox/guest/wheel/wheeltest"
)

// FuzzRead: whatever a file has in it, reading it ends within its bounds, and what it
// leaves in a tree lies where packages belong, as plain files.
func FuzzRead(f *testing.F) {
	f.Add(small().Bytes(f))
	tiny := full
	tiny.Name, tiny.Version = "small", "1"
	f.Add(tiny.Bytes(f))
	for _, b := range damaged(f) {
		f.Add(b)
	}
	for _, c := range spoiled {
		w := small()
		c.change(&w)
		f.Add(w.Bytes(f))
	}
	limits := wheel.Limits{ArchiveBytes: 1 << 20, Members: 100, MemberBytes: 1 << 16, Bytes: 1 << 17}
	f.Fuzz(func(t *testing.T, b []byte) {
		p := filepath.Join(t.TempDir(), "w")
		if err := os.WriteFile(p, b, 0o600); err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(b)
		src := wheel.Source{Path: p, File: "small-1-py3-none-any.whl", SHA256: hex.EncodeToString(sum[:])}
		w, err := wheel.Read(t.Context(), src, wheel.Options{TempDir: filepath.Dir(p), Limits: limits})
		if err != nil {
			if !errors.Is(err, wheel.ErrWheel) {
				t.Fatal(err)
			}
			return
		}
		defer w.Close()
		if w.Metadata.Name == "" || w.Metadata.Version == "" || w.Bytes() > 2*limits.Bytes {
			t.Fatalf("%+v, %d bytes", w.Metadata, w.Bytes())
		}
		tr := tree.New(tree.DefaultLimits)
		if _, err := wheel.NewInstaller(tr).Install(w); err != nil {
			return // a file over a folder of its own
		}
		for _, n := range tr.Nodes() {
			below := n.Path == "." || n.Path == "usr" || n.Path == "usr/local" || strings.HasPrefix(n.Path, "usr/local/")
			plain := n.Kind == tree.Dir && n.Mode == 0o755 || n.Kind == tree.File && (n.Mode == 0o644 || n.Mode == 0o755)
			if !below || !plain || n.UID != 0 || n.GID != 0 {
				t.Fatalf("%+v", n)
			}
		}
	})
}

// FuzzMetadata: metadata is short lines of text, or an error.
func FuzzMetadata(f *testing.F) {
	for _, s := range []string{"Metadata-Version: 2.1\nName: a\nVersion: 1\nSummary: s\n folded\nRequires-Dist: b>1; extra == 'x'\n\nText\n",
		"Metadata-Version: 2.1\r\nName: a\r\nVersion: 1\r\n", " \n", ":\n", "Name\n", "Metadata-Version: 9\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := wheel.ParseMetadata(b)
		if err != nil {
			if !errors.Is(err, wheel.ErrMetadata) {
				t.Fatal(err)
			}
			return
		}
		for _, s := range append(m.RequiresDist, m.Name, m.Version, m.Summary, m.RequiresPython) {
			if strings.ContainsAny(s, "\r\n") {
				t.Fatalf("%q", s)
			}
		}
		if len(m.Summary) > 200 || strings.ContainsAny(m.Summary, "\x00\x1b\x7f") {
			t.Fatalf("summary %q", m.Summary)
		}
	})
}

// FuzzEntryPoints: the programs that are asked for lie in the folder of programs.
func FuzzEntryPoints(f *testing.F) {
	for _, s := range []string{full.EntryPoints, "[console_scripts]\na=b:c", "[gui_scripts]\na=b:c.d [x]\n", "[console_scripts\n=", "[]\n[console_scripts]\n../a=b:c\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, points string) {
		if len(points) > 1<<16 {
			return
		}
		w := small()
		w.EntryPoints = points
		if strings.TrimSpace(points) == "" {
			return
		}
		got, err := read(t, w.File(), w.Bytes(t))
		if err != nil {
			return
		}
		tr := tree.New(tree.DefaultLimits)
		if _, err := wheel.NewInstaller(tr).Install(got); err != nil {
			t.Fatal(err)
		}
		for _, n := range tr.Nodes() {
			rest, script := strings.CutPrefix(n.Path, wheel.Scripts+"/")
			if script && (strings.Contains(rest, "/") || n.Mode != 0o755 || !bytes.HasPrefix(n.Data, []byte("#!/usr/bin/python3\nimport sys\nfrom ")) || bytes.Count(n.Data, []byte("\n")) != 6) {
				t.Fatalf("%q: %q", n.Path, n.Data)
			}
		}
	})
}

// FuzzRecord: a RECORD that was changed in any way is refused or says the same.
func FuzzRecord(f *testing.F) {
	w := small()
	files := map[string]string{"small.py": w.Files["small.py"]}
	f.Add(wheeltest.Record(files, info+"RECORD"))
	f.Add("small.py,sha256=AAAA,1\n")
	f.Add("\"a\"\"b\",,\n")
	f.Fuzz(func(t *testing.T, record string) {
		if record == "" || len(record) > 1<<16 {
			return
		}
		w := small()
		w.Files[info+"RECORD"] = record
		if _, err := read(t, w.File(), w.Bytes(t)); err != nil && !errors.Is(err, wheel.ErrWheel) {
			t.Fatal(err)
		}
	})
}
