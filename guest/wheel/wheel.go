package wheel

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/pybox/pybox/guest/mapped"
	"github.com/pybox/pybox/guest/pytag"
)

// Sentinels, to be tested with errors.Is.
var (
	// ErrWheel marks a file that is no wheel, or one that is not installed.
	ErrWheel = errors.New("unusable wheel")
	// ErrConflict: two wheels, or a wheel and the image, have a file of one name and
	// other content.
	ErrConflict = errors.New("conflicting files")
	// ErrBudget: the wheels that share a Budget are too large together.
	ErrBudget = errors.New("the wheels are too large together")
	// ErrClosed: the wheel was closed, and is of no use any more.
	ErrClosed = errors.New("the wheel is closed")
)

func wheelErr(format string, a ...any) error {
	return fmt.Errorf("%w: %w", ErrWheel, fmt.Errorf(format, a...))
}

// Limits bound one wheel.
type Limits struct {
	ArchiveBytes int64 // the file
	Members      int   // files and folders in it
	MemberBytes  int64 // one file in it
	Bytes        int64 // all files in it
}

// DefaultLimits fit the largest wheels that are about, which hold whole compilers and
// libraries for graphics cards.
var DefaultLimits = Limits{ArchiveBytes: 4 << 30, Members: 100_000, MemberBytes: 2 << 30, Bytes: 4 << 30}

// Budget bounds several wheels together. It is safe for concurrent use.
type Budget struct {
	mu          sync.Mutex
	members     int
	bytes       int64
	most        int
	mostOfBytes int64
}

// NewBudget is a budget of so many files and folders, and bytes in them.
func NewBudget(members int, bytes int64) *Budget {
	return &Budget{members: members, bytes: bytes, most: members, mostOfBytes: bytes}
}

// take takes what a wheel unpacks to; nil has no end.
func (b *Budget) take(members int, bytes int64) error {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if members > b.members || bytes > b.bytes {
		return fmt.Errorf("%w: with this one, over %d files and folders or %d bytes", ErrBudget, b.most, b.mostOfBytes)
	}
	b.members -= members
	b.bytes -= bytes
	return nil
}

// Source is a wheel file.
type Source struct {
	Path   string // where it is
	File   string // its name as a wheel, which Path need not have
	SHA256 string // what it must be, lower-case hex
}

// Options of Read.
type Options struct {
	// TempDir takes what is unpacked. It has no names there, and is gone when the
	// Wheel is closed or the process ends.
	TempDir string
	Limits  Limits // the zero value: DefaultLimits
	// Budget is shared by wheels that are used together; may be nil.
	Budget *Budget
}

// Wheel is a wheel that was read and found good.
type Wheel struct {
	File     string // its name
	SHA256   string // of the file
	Metadata Metadata
	Tags     []pytag.Tag // of the name

	distInfo string // the folder of metadata, a name
	scripts  []script
	files    []file // sorted by dest
	data     *mapped.Bytes
	closed   bool
}

// file is one that is going to be installed.
type file struct {
	dest   string // its path in the image
	data   []byte
	exec   bool
	digest string // as in RECORD: "sha256=..."
}

// Read reads a wheel file, all of it. The digest is computed before anything else is
// looked at. Errors match ErrWheel, ErrBudget, ctx's or the operating system's and name
// the wheel.
func Read(ctx context.Context, s Source, o Options) (*Wheel, error) {
	w, err := read(ctx, s, o)
	if err != nil {
		return nil, fmt.Errorf("wheel %.200q: %w", s.File, err)
	}
	return w, nil
}

func read(ctx context.Context, s Source, o Options) (*Wheel, error) {
	if o.Limits == (Limits{}) {
		o.Limits = DefaultLimits
	}
	name, err := pytag.Parse(s.File)
	if err != nil {
		return nil, wheelErr("%w", err)
	}
	f, err := os.OpenFile(s.Path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a FIFO would wait for who writes to it
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size, err := verifyFile(ctx, f, s, o.Limits)
	if err != nil {
		return nil, err
	}
	a, err := openArchive(f, size, o.Limits)
	if err != nil {
		return nil, err
	}
	if err := o.Budget.take(a.listed, a.bytes); err != nil {
		return nil, err
	}
	w := &Wheel{File: s.File, SHA256: s.SHA256, Tags: name.Tags}
	if w.distInfo, err = findDistInfo(a.members, name); err != nil {
		return nil, err
	}
	err = mapped.Guard(func() error {
		if err := w.unpack(ctx, a, o.TempDir); err != nil {
			return err
		}
		return w.understand(name)
	})
	if err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return w, nil
}

// verifyFile computes the digest of the file and returns its size.
func verifyFile(ctx context.Context, f *os.File, s Source, l Limits) (int64, error) {
	st, err := f.Stat()
	if err != nil {
		return 0, err
	}
	if !st.Mode().IsRegular() || st.Size() > l.ArchiveBytes {
		return 0, wheelErr("it is no file of at most %d bytes (%v, %d bytes)", l.ArchiveBytes, st.Mode().Type(), st.Size())
	}
	h := sha256.New()
	n, err := io.Copy(h, io.LimitReader(ctxReader{ctx, f}, st.Size()))
	if err != nil {
		return 0, err
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != s.SHA256 || n != st.Size() {
		return 0, wheelErr("its SHA-256 is %s, expected %.80s", got, s.SHA256)
	}
	return n, nil
}

// Close gives back what holds the files. A tree that they were installed in must not
// be used afterwards. It may be called more than once.
func (w *Wheel) Close() error {
	w.closed, w.files = true, nil
	if w.data == nil {
		return nil
	}
	return w.data.Close()
}

// Bytes is the sum of the files that are going to be installed, what PyBox adds aside.
func (w *Wheel) Bytes() (n int64) {
	for _, f := range w.files {
		n += int64(len(f.data))
	}
	return n
}

// Paths are where the files are going to be installed, sorted, what PyBox adds aside.
func (w *Wheel) Paths() []string {
	out := make([]string, len(w.files))
	for i, f := range w.files {
		out[i] = f.dest
	}
	return out
}

// Modules are the names, sorted, that can be imported from the top of the wheel.
func (w *Wheel) Modules() []string {
	var out []string
	for _, f := range w.files {
		rest, ok := strings.CutPrefix(f.dest, Site+"/")
		if !ok {
			continue
		}
		top, below, nested := strings.Cut(rest, "/")
		switch {
		case strings.HasSuffix(top, ".dist-info"):
		case nested:
			if isModule(below[strings.LastIndexByte(below, '/')+1:]) != "" {
				out = append(out, top)
			}
		default:
			if m := isModule(top); m != "" {
				out = append(out, m)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// isModule returns the name of the module that a file holds, or "".
func isModule(name string) string {
	module, kind, _ := strings.Cut(name, ".")
	if kind == "py" || kind == "so" || strings.HasSuffix(kind, ".so") {
		return module
	}
	return ""
}

// ctxReader ends a long copy when ctx does.
type ctxReader struct {
	ctx context.Context
	r   io.Reader
}

func (c ctxReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}
