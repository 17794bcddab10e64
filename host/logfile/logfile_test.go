package logfile

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

func TestStaysBoundedAndKeepsTheNewest(t *testing.T) {
	p := filepath.Join(t.TempDir(), "log")
	l, err := Open(p, 1000)
	if err != nil {
		t.Fatal(err)
	}
	var all bytes.Buffer
	for i := range 500 {
		line := fmt.Sprintf("line %d\n", i)
		all.WriteString(line)
		if _, err := l.Write([]byte(line)); err != nil {
			t.Fatal(err)
		}
	}
	total := int64(0)
	for _, f := range []string{p, p + ".1"} {
		st, err := os.Stat(f)
		if err != nil || st.Size() > 1000 || st.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", f, st, err)
		}
		total += st.Size()
	}
	got, err := Tail(p, 1<<20)
	if err != nil || int64(len(got)) != total || !bytes.HasSuffix(all.Bytes(), got) || total < 1000 {
		t.Errorf("kept %d of %d bytes, not the newest (%v)", len(got), all.Len(), err)
	}
	if got, _ := Tail(p, 17); !bytes.HasSuffix(all.Bytes(), got) || len(got) != 17 {
		t.Errorf("Tail 17: %q", got)
	}
	l.Close()
	if _, err := l.Write([]byte("x")); !errors.Is(err, os.ErrClosed) {
		t.Errorf("write after Close: %v", err)
	}
	again, err := Open(p, 1000)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	again.Write([]byte("more\n"))
	if got, _ := Tail(p, 1<<20); !bytes.HasSuffix(got, []byte("line 499\nmore\n")) {
		t.Errorf("a new Open lost what was there: %q", got)
	}
}

// TestGoesOnWhereItCannotRotate: a new file cannot be made for a while.
func TestGoesOnWhereItCannotRotate(t *testing.T) {
	p := filepath.Join(t.TempDir(), "log")
	l, _ := Open(p, 20)
	defer l.Close()
	l.Write([]byte("first line of all\n"))
	if err := os.Mkdir(p+".new", 0o700); err != nil { // in the way
		t.Fatal(err)
	}
	if _, err := l.Write([]byte("second, too long\n")); err != nil {
		t.Errorf("a line was refused: %v", err)
	}
	os.Remove(p + ".new")
	if _, err := l.Write([]byte("third\n")); err != nil {
		t.Error(err)
	}
	got, err := Tail(p, 1000)
	if cur, _ := os.ReadFile(p); err != nil || string(got) != "first line of all\nsecond, too long\nthird\n" || string(cur) != "third\n" {
		t.Errorf("got %q, in the new file %q, %v", got, cur, err)
	}
}

func TestOneHugeWrite(t *testing.T) {
	p := filepath.Join(t.TempDir(), "log")
	l, _ := Open(p, 10)
	defer l.Close()
	if n, err := l.Write(make([]byte, 100)); n != 100 || err != nil {
		t.Errorf("got %d, %v", n, err)
	}
	l.Write([]byte("next"))
	if got, _ := os.ReadFile(p); string(got) != "next" {
		t.Errorf("got %q", got)
	}
}

func TestMissingIsEmpty(t *testing.T) {
	if got, err := Tail(filepath.Join(t.TempDir(), "none"), 10); len(got) != 0 || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestConcurrentWrites(t *testing.T) {
	p := filepath.Join(t.TempDir(), "log")
	l, _ := Open(p, 500)
	defer l.Close()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				l.Write([]byte("0123456789\n"))
			}
		})
	}
	wg.Wait()
	got, err := Tail(p, 1<<20)
	if err != nil || len(got)%11 != 0 || len(bytes.ReplaceAll(got, []byte("0123456789\n"), nil)) != 0 {
		t.Errorf("lines were torn: %q, %v", got, err)
	}
}
