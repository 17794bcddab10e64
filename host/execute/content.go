package execute

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"

	agentapi "github.com/pybox/pybox/agent/api"
	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/units"
)

const (
	// maxText is what goes into a request as text. In JSON a byte of it can
	// become six; more goes as base64.
	maxText = 64 << 10
)

// content is a file that goes into the box: a small one as data, a large one as a
// part of a file, which is read when it is sent.
type content struct {
	name   string
	bytes  int64
	sha256 string // hexadecimal; empty: not known before it was sent
	data   []byte
	file   *os.File // nil: data is all
	offset int64
	info   fs.FileInfo // of the file that it came from; nil: none
}

func (c *content) close() {
	if c.file != nil {
		c.file.Close()
	}
}

func ofData(name string, b []byte, info fs.FileInfo) *content {
	sum := sha256.Sum256(b)
	return &content{name: name, bytes: int64(len(b)), sha256: hex.EncodeToString(sum[:]), data: b, info: info}
}

func (c *content) reader() io.Reader {
	if c.file != nil {
		return io.NewSectionReader(c.file, c.offset, c.bytes)
	}
	return bytes.NewReader(c.data)
}

// source gives the content to the daemon: inside the request, or stored before.
func (c *content) source(ctx context.Context, d Daemon) (api.Source, error) {
	s := api.Source{Name: c.name}
	switch {
	case c.bytes > api.MaxInline:
		f, err := d.StoreFile(ctx, c.reader())
		if err != nil {
			return s, err
		}
		if f.Bytes != c.bytes || c.sha256 != "" && f.SHA256 != c.sha256 {
			return s, fmt.Errorf("%d bytes were sent and the daemon has %d with another digest: the file was changed meanwhile", c.bytes, f.Bytes)
		}
		c.sha256, s.File = f.SHA256, f.File
	case len(c.data) <= maxText && utf8.Valid(c.data):
		t := string(c.data)
		s.Text = &t
	default:
		b := base64.StdEncoding.EncodeToString(c.data)
		s.Base64 = &b
	}
	return s, nil
}

// files reads the program and its standard input.
func (x *execution) files() (err error) {
	if x.File == "-" && x.Command.Stdin == "-" {
		return refuse("--stdin: FILE and --stdin are both \"-\", and there is one standard input: give one of them as a file")
	}
	if x.job.program, err = x.program(); err != nil {
		return err
	}
	switch x.Command.Stdin {
	case "":
		return nil
	case "-":
		x.job.stdin, err = readStdin(x.World.Stdin)
	default:
		var f *os.File
		if f, err = openFile(x.Command.Stdin); err == nil {
			x.job.stdin, err = readStdin(f)
			if x.job.stdin == nil || x.job.stdin.file != f {
				f.Close()
			}
		}
	}
	if err != nil {
		return refuse("--stdin: %w", about(x.Command.Stdin, err))
	}
	return nil
}

// program reads the program whole: it is small, or too large.
func (x *execution) program() (*content, error) {
	if x.File == "-" {
		b, err := readProgram(x.World.Stdin)
		if err != nil {
			return nil, refuse("reading the program: %w", about("-", err))
		}
		return ofData(api.DefaultProgram, b, nil), nil
	}
	f, err := openFile(x.File)
	if err != nil {
		return nil, refuse("%w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, refuse("%w", err)
	}
	name, err := programName(x.File, info)
	if err != nil {
		return nil, err
	}
	b, err := readProgram(f)
	if err != nil {
		return nil, refuse("%w", about(x.File, err))
	}
	return ofData(name, b, info), nil
}

// programName is the program's name in the box: its own, but for what is no file
// with a name, such as the pipe of a shell's <(…).
func programName(path string, info fs.FileInfo) (string, error) {
	if !info.Mode().IsRegular() || isDescriptor(path) {
		return api.DefaultProgram, nil
	}
	name := filepath.Base(path)
	if err := agentapi.CheckProgramName(name); err != nil {
		return "", refuse("%w; rename it, or have it called %s: 'pybox exec - < FILE'", bare(err), api.DefaultProgram)
	}
	return name, nil
}

// isDescriptor tells whether path names an open descriptor of this process.
func isDescriptor(path string) bool {
	path = filepath.Clean(path)
	return strings.HasPrefix(path, "/dev/fd/") || strings.HasPrefix(path, "/proc/self/fd/") || path == "/dev/stdin"
}

// openFile opens a file for reading. A FIFO is waited for.
func openFile(path string) (*os.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err // it names the path
	}
	if info, err := f.Stat(); err == nil && info.IsDir() {
		f.Close()
		return nil, &fs.PathError{Op: "read", Path: path, Err: errFolder}
	}
	return f, nil
}

var (
	errFolder = errors.New("it is a folder, want a file")
	errLarge  = errors.New("too large")
)

func tooLarge(what string, most int64) error {
	return fmt.Errorf("%w: %s has at most %v", errLarge, what, units.Size(most))
}

// about says which file an error is about.
func about(path string, err error) error {
	var named *fs.PathError
	if errors.As(err, &named) {
		return err
	}
	if path == "-" {
		path = "standard input"
	}
	return fmt.Errorf("%s: %w", path, err)
}

// readProgram reads a program with its bound: it may be a device without an end.
func readProgram(r io.Reader) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, api.MaxProgramBytes+1))
	if err == nil && len(b) > api.MaxProgramBytes {
		err = tooLarge("a program", api.MaxProgramBytes)
	}
	return b, err
}

// readStdin reads a standard input to its end, with its bound. What is large stays
// in the file that it is in, or goes into one without a name: it is sent later, and
// perhaps twice.
func readStdin(r io.Reader) (*content, error) {
	if f, ok := r.(*os.File); ok {
		if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
			return partOf(f, info)
		}
	}
	b, err := io.ReadAll(io.LimitReader(r, api.MaxInline+1))
	if err != nil {
		return nil, err
	}
	if len(b) <= api.MaxInline {
		return ofData("", b, nil), nil
	}
	f, err := os.CreateTemp("", "pybox-stdin-*")
	if err != nil {
		return nil, fmt.Errorf("keeping it until it is sent: %w", err)
	}
	os.Remove(f.Name())
	c := &content{file: f}
	if c.bytes, err = io.Copy(f, io.LimitReader(io.MultiReader(bytes.NewReader(b), r), api.MaxStdinBytes+1)); err == nil && c.bytes > api.MaxStdinBytes {
		err = tooLarge("a standard input", api.MaxStdinBytes)
	}
	if err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// partOf is what a regular file has from where it is read.
func partOf(f *os.File, info fs.FileInfo) (*content, error) {
	at, err := f.Seek(0, io.SeekCurrent)
	if err != nil {
		return nil, err
	}
	c := &content{file: f, offset: at, bytes: max(info.Size()-at, 0), info: info}
	switch {
	case c.bytes > api.MaxStdinBytes:
		return nil, tooLarge("a standard input", api.MaxStdinBytes)
	case c.bytes > api.MaxInline:
		return c, nil
	}
	b, err := io.ReadAll(io.LimitReader(f, api.MaxInline+1)) // a file of /proc says that it is empty
	switch {
	case err != nil:
		return nil, err
	case len(b) > api.MaxInline:
		return nil, errors.New("it grew while it was read")
	}
	return ofData("", b, info), nil
}
