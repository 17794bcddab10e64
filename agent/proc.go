package agent

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"strconv"
	"strings"
)

// maxProcBytes bounds what is read of one file of /proc.
const maxProcBytes = 256 << 10

// proc reads /proc (proc(5)). What cannot be read is zero, and logged: a status
// with a hole is better than none.
type proc struct {
	fs  fs.FS
	log *slog.Logger
}

// memory is MemTotal and MemAvailable in bytes.
func (p proc) memory() (total, available int64) {
	text := p.read("meminfo")
	return p.kibibytes(text, "meminfo", "MemTotal"), p.kibibytes(text, "meminfo", "MemAvailable")
}

// rss is VmRSS of a process in bytes.
func (p proc) rss(pid string) int64 {
	name := pid + "/status"
	return p.kibibytes(p.read(name), name, "VmRSS")
}

// entries counts the entries of a directory.
func (p proc) entries(dir string) uint32 {
	list, err := fs.ReadDir(p.fs, dir)
	if err != nil {
		p.log.Warn("status", "file", dir, "error", err)
	}
	return uint32(len(list))
}

// lines counts the lines of a file.
func (p proc) lines(name string) uint32 {
	return uint32(bytes.Count(p.read(name), []byte("\n")))
}

func (p proc) read(name string) []byte {
	b, err := readBounded(p.fs, name, maxProcBytes)
	if err != nil {
		p.log.Warn("status", "file", name, "error", err)
	}
	return b
}

// kibibytes is the value of a line "key:   123 kB" in bytes.
func (p proc) kibibytes(text []byte, name, key string) int64 {
	for line := range strings.Lines(string(text)) {
		rest, ok := strings.CutPrefix(line, key+":")
		if !ok {
			continue
		}
		number, ok := strings.CutSuffix(strings.TrimSpace(rest), " kB")
		n, err := strconv.ParseInt(strings.TrimSpace(number), 10, 64)
		if !ok || err != nil || n < 0 || n > 1<<40 {
			break
		}
		return n << 10
	}
	if len(text) > 0 {
		p.log.Warn("status", "file", name, "error", "no "+key)
	}
	return 0
}

// readBounded reads a file of at most limit bytes.
func readBounded(fsys fs.FS, name string, limit int64) ([]byte, error) {
	f, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("%s: more than %d bytes", name, limit)
	}
	return b, err
}

// versions reads a file of lines "name version": at most 16 of them, names of
// up to 32 and versions of up to 64 bytes. Others are left out.
func versions(text []byte) map[string]string {
	m := map[string]string{}
	for line := range strings.Lines(string(text)) {
		name, version, ok := strings.Cut(strings.TrimSpace(line), " ")
		if ok && len(m) < 16 && isText(name, 32) && isText(version, 64) {
			m[name] = version
		}
	}
	return m
}

// isText tells whether s is 1 to high bytes of printable ASCII.
func isText(s string, high int) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return s != "" && len(s) <= high
}
