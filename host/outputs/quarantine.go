package outputs

import (
	"fmt"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// marker marks a file as one that came from a program that nobody trusts, before it
// gets its place.
type marker interface{ mark(f *os.File) error }

// quarantine is how this system marks what came from elsewhere: macOS alone does.
func quarantine() marker {
	if runtime.GOOS == "darwin" {
		return quarantined(time.Now())
	}
	return unmarked{}
}

// attribute is a marker that sets an extended attribute.
type attribute struct{ name, value string }

func (a attribute) mark(f *os.File) error {
	if err := unix.Fsetxattr(int(f.Fd()), a.name, []byte(a.value), 0); err != nil {
		return fmt.Errorf("setting %s: %w", a.name, err)
	}
	return nil
}

// quarantined is the attribute by which macOS asks before it opens a file, and keeps
// programs from being started: flags (a download), when, and by whom.
func quarantined(now time.Time) attribute {
	return attribute{"com.apple.quarantine", fmt.Sprintf("0081;%08x;PyBox;", now.Unix())}
}

// unmarked marks nothing: the system has no such mark.
type unmarked struct{}

func (unmarked) mark(*os.File) error { return nil }
