package nospace

import (
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
)

func TestExplain(t *testing.T) {
	for _, cause := range []error{syscall.ENOSPC, syscall.EDQUOT} {
		in := &os.PathError{Op: "write", Path: "/d/x", Err: cause}
		err := Explain(in, "the thing", "/d", 3<<20+1, "set PYBOX_CACHE")
		if !errors.Is(err, Err) || !errors.Is(err, cause) || !Is(err) || !Is(in) {
			t.Errorf("%v", err)
		}
		want := "no room on the disk: the thing needs 4 MiB and does not fit into /d; free some space there, or set PYBOX_CACHE: "
		if !strings.HasPrefix(err.Error(), want) {
			t.Errorf("got  %v\nwant %s…", err, want)
		}
		if again := Explain(err, "another", "/e", 0, ""); again != err {
			t.Errorf("explained twice: %v", again)
		}
		if got := Explain(in, "the thing", "/d", 0, "").Error(); !strings.HasPrefix(got, "no room on the disk: the thing does not fit into /d; free some space there: write") {
			t.Error(got)
		}
	}
	if other := errors.New("x"); Explain(other, "w", "d", 0, "") != other || Explain(nil, "w", "d", 0, "") != nil || Is(other) {
		t.Error("another error was changed")
	}
}
