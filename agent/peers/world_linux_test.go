package peers

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestWorld: what is mounted in a world is there for its thread and for what that
// starts, and for nobody else.
func TestWorld(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	w, err := newWorld(func() error {
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return err
		}
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
			return err
		}
		return os.WriteFile(file, []byte("inside"), 0o644)
	})
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("outside: %v", err)
	}
	var read, started []byte
	err = w.do(func() (err error) {
		if read, err = os.ReadFile(file); err != nil {
			return err
		}
		started, err = exec.CommandContext(t.Context(), "cat", file).Output()
		return err
	})
	if err != nil || string(read) != "inside" || string(started) != "inside" {
		t.Errorf("inside: %q, %q, %v", read, started, err)
	}
	want := errors.New("told")
	if err := w.do(func() error { return want }); err != want {
		t.Error(err)
	}
}

// TestWorldSetup: a world that cannot be set up is none.
func TestWorldSetup(t *testing.T) {
	want := errors.New("no")
	if w, err := newWorld(func() error { return want }); w != nil || !errors.Is(err, want) && !errors.Is(err, unix.EPERM) {
		t.Errorf("%v, %v", w, err)
	}
}

func TestFindDisk(t *testing.T) {
	sys := t.TempDir()
	add := func(disk, serial string) {
		t.Helper()
		if err := os.Mkdir(filepath.Join(sys, disk), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(sys, disk, "serial"), []byte(serial), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	add("vda", "root\n")
	add("vdb", "img-0123456789abcdef")
	if _, err := findDisk(sys, "/dev"); !errors.Is(err, ErrNoDisk) {
		t.Errorf("without the disk: %v", err)
	}
	add("vdc", Serial+"\x00\x00\n")
	if d, err := findDisk(sys, "/dev"); err != nil || d != "/dev/vdc" {
		t.Errorf("%q, %v", d, err)
	}
}

// TestWriteTar: an image goes to the engines with its links.
func TestWriteTar(t *testing.T) {
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "python3.13"), []byte("text"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("python3.13", filepath.Join(root, "python3")); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := writeTar(&b, root); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for r := tar.NewReader(&b); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		got[strings.TrimSuffix(h.Name, "/")] = h.Linkname + string(text)
	}
	if got["python3.13"] != "text" || got["python3"] != "python3.13" {
		t.Errorf("%q", got)
	}
}

// TestFactsProgram runs the program that looks around here: it prints one line that
// fits, and ends with its standard input.
func TestFactsProgram(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip(err)
	}
	cmd := exec.CommandContext(t.Context(), python, "-I", "-S", "-c", factsProgram)
	out, err := cmd.Output()
	if err != nil || len(out) > maxFacts {
		t.Fatalf("%d bytes, %v", len(out), err)
	}
	f, err := parseFacts(out)
	if err != nil || len(f.Capabilities[0]) != len(noCapabilities) || f.NoNewPrivileges == "" || !slices.Contains(f.Interfaces, "lo") || f.Memory != "" {
		t.Errorf("%+v, %v", f, err)
	}
}
