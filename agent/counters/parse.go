package counters

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"strconv"
	"syscall"

	"github.com/pybox/pybox/agent/cgroup"
)

// maxFile bounds a file that is read, in bytes: the largest here, cpu.stat, has
// about 200.
const maxFile = 4096

// flat is a "flat keyed" file: lines of a key, a space and a number.
type flat map[string]int64

// get returns the number of a key, which must be there.
func (f flat) get(key string) (int64, error) {
	v, ok := f[key]
	if !ok {
		return 0, fmt.Errorf("no line %q", key)
	}
	return v, nil
}

// parseFlat reads a flat keyed file. Keys that are not known here are kept: the
// kernel adds some over time.
func parseFlat(b []byte) (flat, error) {
	f := make(flat, 16)
	for line := range bytes.Lines(b) {
		key, value, _ := bytes.Cut(bytes.TrimSuffix(line, []byte("\n")), []byte(" "))
		n, err := parseNumber(value)
		if err != nil {
			return nil, fmt.Errorf("line %.40q: %w", line, err)
		}
		if !isKey(key) {
			return nil, fmt.Errorf("line %.40q: want a key first", line)
		}
		if _, twice := f[string(key)]; twice {
			return nil, fmt.Errorf("key %.40q twice", key)
		}
		f[string(key)] = n
	}
	return f, nil
}

// isKey tells whether b looks like a key of the kernel's: "oom_kill",
// "core_sched.force_idle_usec".
func isKey(b []byte) bool {
	for _, c := range b {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '_' && c != '.' {
			return false
		}
	}
	return len(b) > 0
}

// parseSingle reads a "single value" file: one number and a line feed.
func parseSingle(b []byte) (int64, error) {
	n, err := parseNumber(bytes.TrimSuffix(b, []byte("\n")))
	if err != nil {
		return 0, fmt.Errorf("value %.40q: %w", b, err)
	}
	return n, nil
}

// parseNumber reads a counter, which the kernel writes as an unsigned decimal
// number of up to 64 bits. Those of over 63 are refused: nothing that is counted
// here gets there.
func parseNumber(b []byte) (int64, error) {
	n, err := strconv.ParseUint(string(b), 10, 64)
	if err != nil || n > math.MaxInt64 || len(b) > 1 && b[0] == '0' {
		return 0, errors.New("want a decimal number of at most 63 bits")
	}
	return int64(n), nil
}

// readFile reads what r has, which is a file of a cgroup.
func readFile(r io.Reader) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxFile {
		return nil, fmt.Errorf("more than %d bytes", maxFile)
	}
	return b, nil
}

// gone makes the errors that the kernel gives for a file of a removed cgroup
// cgroup.ErrGone: ENODEV from one that was open, ENOENT where none is there any
// more. A file that is missing by itself, without its controller, gives ENOENT
// too, which alive tells apart.
func gone(err error, alive func() bool) error {
	if errors.Is(err, syscall.ENODEV) || errors.Is(err, fs.ErrNotExist) && !alive() {
		return fmt.Errorf("%w: %w", cgroup.ErrGone, err)
	}
	return err
}
