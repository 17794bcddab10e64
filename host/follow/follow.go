// Package follow prints the end of a log and, if asked, what is added to it, as
// safe text: every byte that could act on a terminal is shown as \xNN.
package follow

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/pybox/pybox/host/logfile"
)

const (
	// maxTail bounds what is looked through for the last lines.
	maxTail = 8 << 20
	// pollEvery is how often a followed log is looked at.
	pollEvery = 100 * time.Millisecond
)

// Log prints the last lines of the log at path; with following it goes on until
// ctx ends and returns ctx's error. A log that is not there yet is empty.
func Log(ctx context.Context, w io.Writer, path string, lines int, following bool) error {
	// The place to go on from is taken first: what is written meanwhile may
	// then show twice, but is never lost.
	f, at, err := openEnd(path)
	if err != nil {
		return err
	}
	defer func() {
		if f != nil {
			f.Close()
		}
	}()
	b, err := logfile.Tail(path, maxTail)
	if err != nil {
		return err
	}
	if err := writeSafe(w, last(b, lines)); err != nil || !following {
		return err
	}
	t := time.NewTicker(pollEvery)
	defer t.Stop()
	for {
		if f, at, err = more(w, path, f, at); err != nil {
			return err
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func openEnd(path string) (*os.File, int64, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	at, err := f.Seek(0, io.SeekEnd)
	return f, at, err
}

// more copies what was added, and moves on to the next generation when the file
// at path has become another one.
func more(w io.Writer, path string, f *os.File, at int64) (*os.File, int64, error) {
	for {
		if f != nil {
			b, err := io.ReadAll(io.NewSectionReader(f, at, maxTail))
			if err != nil {
				return f, at, err
			}
			at += int64(len(b))
			if err := writeSafe(w, b); err != nil {
				return f, at, err
			}
		}
		now, err := os.Open(path)
		if err != nil {
			return f, at, nil // not there yet, or between two generations
		}
		if f != nil && same(f, now) {
			now.Close()
			return f, at, nil
		}
		if f != nil {
			f.Close()
		}
		f, at = now, 0
	}
}

func same(a, b *os.File) bool {
	x, err1 := a.Stat()
	y, err2 := b.Stat()
	return err1 == nil && err2 == nil && os.SameFile(x, y)
}

// last is the last n lines of b.
func last(b []byte, n int) []byte {
	end := len(bytes.TrimRight(b, "\n"))
	at := end
	for ; n > 0 && at >= 0; n-- {
		at = bytes.LastIndexByte(b[:at], '\n')
	}
	if n > 0 || at < 0 {
		return b
	}
	if at == end {
		return nil
	}
	return b[at+1:]
}

// writeSafe writes b with line ends and tabs as they are, and all else that is
// not printable as \xNN.
func writeSafe(w io.Writer, b []byte) error {
	out := make([]byte, 0, len(b))
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		switch {
		case r == '\r' && len(b) > 1 && b[1] == '\n': // a serial console's line end
		case r == '\n' || r == '\t' || unicode.IsPrint(r) && !(r == utf8.RuneError && n == 1):
			out = append(out, b[:n]...)
		default:
			for _, c := range b[:n] {
				out = fmt.Appendf(out, `\x%02x`, c)
			}
		}
		b = b[n:]
	}
	_, err := w.Write(out)
	return err
}
