package kernel

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// maxArchiveMembers is how far unpacking looks for the source in its package,
// which holds four files.
const maxArchiveMembers = 1000

var isDigest = regexp.MustCompile(`^[0-9a-f]{64}$`).MatchString

// sourceTree is an unpacked source.
type sourceTree struct {
	dir string
	// time is when Debian made the source: the date that the kernel shows.
	time time.Time
}

// sourceInfo lies beside an unpacked tree.
type sourceInfo struct {
	SHA256 string    `json:"sha256"`
	Time   time.Time `json:"time"`
}

// unpacked returns the source's tree from the cache, and unpacks it at first.
func (b *Builder) unpacked(ctx context.Context) (sourceTree, error) {
	if !isDigest(b.Source.SHA256) {
		return sourceTree{}, fmt.Errorf("%w: it is pinned by %.80q, want a SHA-256 in lower-case hex", ErrSource, b.Source.SHA256)
	}
	dir := filepath.Join(b.Cache, "source", b.Source.SHA256)
	t, err := openSource(dir, b.Source.SHA256)
	if !errors.Is(err, fs.ErrNotExist) {
		return t, err
	}
	lock, err := b.acquire(ctx, sourceLock)
	if err != nil {
		return sourceTree{}, err
	}
	defer lock.release()
	if t, err = openSource(dir, b.Source.SHA256); !errors.Is(err, fs.ErrNotExist) {
		return t, err
	}
	deb, err := b.Source.Open(ctx)
	if err != nil {
		return sourceTree{}, err
	}
	got, err := fileSHA256(deb)
	if err != nil {
		return sourceTree{}, err
	}
	if got != b.Source.SHA256 {
		return sourceTree{}, fmt.Errorf("%w: the SHA-256 of %s is %s, pinned is %s; remove the file and fetch it again",
			ErrSource, deb, got, b.Source.SHA256)
	}
	b.say("unpacking linux-source %s", b.Source.Version)
	if err := unpackTo(ctx, dir, deb, got); err != nil {
		return sourceTree{}, err
	}
	return openSource(dir, b.Source.SHA256)
}

func openSource(dir, digest string) (sourceTree, error) {
	raw, err := os.ReadFile(filepath.Join(dir, "source.json"))
	if err != nil {
		return sourceTree{}, fmt.Errorf("open kernel source: %w", err)
	}
	var info sourceInfo
	if err := json.Unmarshal(raw, &info); err != nil || info.SHA256 != digest {
		return sourceTree{}, fmt.Errorf("%w: %s does not describe this source; remove that folder", ErrSource, dir)
	}
	return sourceTree{dir: filepath.Join(dir, "linux"), time: info.Time}, nil
}

// unpackTo unpacks a verified package and renames the result to dir.
func unpackTo(ctx context.Context, dir, deb, digest string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return fmt.Errorf("unpack kernel source: %w", err)
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), tempPrefix)
	if err != nil {
		return fmt.Errorf("unpack kernel source: %w", err)
	}
	defer os.RemoveAll(tmp)
	if err := os.Mkdir(filepath.Join(tmp, "linux"), 0o755); err != nil {
		return fmt.Errorf("unpack kernel source: %w", err)
	}
	when, err := unpackDeb(ctx, deb, filepath.Join(tmp, "linux"))
	if err != nil {
		return fmt.Errorf("unpack %s: %w", deb, err)
	}
	if _, err := os.Stat(filepath.Join(tmp, "linux", "Kconfig")); err != nil {
		return fmt.Errorf("%w: %s holds no kernel tree: %w", ErrSource, deb, err)
	}
	info, err := json.Marshal(sourceInfo{SHA256: digest, Time: when})
	if err != nil {
		return fmt.Errorf("unpack kernel source: %w", err)
	}
	if err := os.WriteFile(filepath.Join(tmp, "source.json"), info, 0o644); err != nil {
		return fmt.Errorf("unpack kernel source: %w", err)
	}
	if err := os.Rename(tmp, dir); err != nil {
		return fmt.Errorf("unpack kernel source: %w", err)
	}
	return nil
}

// unpackDeb unpacks the source archive in a Debian package with the host's ar,
// xz and tar, which a kernel build needs anyway and which are several times
// faster than Go's. The package was verified, so it is no hostile input here.
func unpackDeb(ctx context.Context, deb, dir string) (time.Time, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	data := exec.CommandContext(ctx, "ar", "p", deb, "data.tar.xz")
	outer := exec.CommandContext(ctx, "xz", "-dc")
	var err error
	if outer.Stdin, err = data.StdoutPipe(); err != nil {
		return time.Time{}, err
	}
	stream, err := outer.StdoutPipe()
	if err != nil {
		return time.Time{}, err
	}
	for _, c := range []*exec.Cmd{data, outer} {
		if err := start(c); err != nil {
			return time.Time{}, err
		}
		defer func() { cancel(); c.Wait() }()
	}
	h, body, err := findSource(stream)
	if err != nil {
		return time.Time{}, err
	}
	inner := exec.CommandContext(ctx, "tar", "-xJ", "--no-same-owner", "--strip-components=1", "-C", dir)
	inner.Stdin = body
	inner.Env = append(os.Environ(), "LC_ALL=C") // its complaints are read
	if err := finish(inner); err != nil {
		return time.Time{}, err
	}
	return h.ModTime, nil
}

// findSource reads a package's data archive up to the source archive in it.
func findSource(r io.Reader) (*tar.Header, io.Reader, error) {
	t := tar.NewReader(r)
	for range maxArchiveMembers {
		h, err := t.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, nil, fmt.Errorf("%w: its data archive: %w", ErrSource, err)
		}
		name := path.Base(h.Name)
		if h.Typeflag == tar.TypeReg && strings.HasPrefix(name, "linux-source-") && strings.HasSuffix(name, ".tar.xz") {
			return h, t, nil
		}
	}
	return nil, nil, fmt.Errorf("%w: there is no linux-source-*.tar.xz in it", ErrSource)
}

func start(c *exec.Cmd) error {
	err := c.Start()
	if errors.Is(err, exec.ErrNotFound) {
		return fmt.Errorf("%w: %w", ErrTools, err)
	}
	return err
}

// finish runs c and puts what it said into the error.
func finish(c *exec.Cmd) error {
	complaint := &head{limit: 1 << 10}
	c.Stderr = complaint
	if err := start(c); err != nil {
		return err
	}
	if err := c.Wait(); err != nil {
		said := complaint.buf.String()
		err = fmt.Errorf("%s: %w: %s", c.Args[0], err, strings.Map(printable, strings.TrimSpace(said)))
		if tellsOfFullDisk(said) {
			err = fmt.Errorf("%w: %w", syscall.ENOSPC, err)
		}
		return err
	}
	return nil
}
