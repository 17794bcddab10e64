package userimage

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/pybox/pybox/guest/erofs"
	"github.com/pybox/pybox/guest/image"
	"github.com/pybox/pybox/guest/mapped"
	"github.com/pybox/pybox/guest/pep508"
	"github.com/pybox/pybox/guest/pytag"
	"github.com/pybox/pybox/guest/tree"
	"github.com/pybox/pybox/guest/unpack"
	"github.com/pybox/pybox/guest/wheel"
)

// limits bound an image of a person's own.
var limits = tree.Limits{Entries: 500_000, Bytes: 8 << 30}

// Debian's packages of the interpreter and of the C library.
const (
	packagePython = "python" + image.Python + "-minimal"
	packageLibc   = "libc6"
)

// digestChunk is how much is hashed between two looks at the context.
const digestChunk = 16 << 20

// machines are the guests' architectures as Python calls them.
var machines = map[string]string{"amd64": "x86_64", "arm64": "aarch64"}

// base is an image that was opened to build on.
type base struct {
	Base
	tree *tree.Tree
	data *mapped.Bytes
	// debianPython is the version of the interpreter's package, which tells builds
	// of one version of Python apart.
	debianPython string
	python       string // full version
	target       pytag.Target
	env          pep508.Environment
	dists        []dist
}

func (b *base) close() { _ = b.data.Close() }

// openBase reads the base, the digest first. It must be closed, after which the tree
// is of no use.
func openBase(ctx context.Context, b Base, arch string) (*base, error) {
	data, err := mapped.Open(b.File)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrBase, b.Name, err)
	}
	out := &base{Base: b, data: data}
	if err := mapped.Guard(func() error { return out.read(ctx, arch) }); err != nil {
		out.close()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, fmt.Errorf("%w: %s: %w", ErrBase, b.Name, err)
	}
	return out, nil
}

func (b *base) read(ctx context.Context, arch string) error {
	h := sha256.New()
	for piece := range slices.Chunk(b.data.Data(), digestChunk) {
		if err := ctx.Err(); err != nil {
			return err
		}
		h.Write(piece)
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != b.SHA256 || int64(len(b.data.Data())) != b.Bytes {
		return fmt.Errorf("its SHA-256 is %s, expected %s; 'pybox doctor' says more about the installed images", got, b.SHA256)
	}
	var err error
	if b.tree, err = erofs.Read(b.data.Data(), limits); err != nil {
		return err
	}
	if err := b.identify(arch); err != nil {
		return err
	}
	b.dists = findDists(b.tree)
	return nil
}

// identify finds out which Python and which C library the image has.
func (b *base) identify(arch string) error {
	n := b.tree.Lookup(unpack.VersionsPath)
	if n == nil || n.Kind != tree.File {
		return fmt.Errorf("it has no list of its packages (/%s)", unpack.VersionsPath)
	}
	versions := map[string]string{}
	for line := range strings.Lines(string(n.Data)) {
		name, version, _ := strings.Cut(strings.TrimSpace(line), " ")
		versions[name] = version
	}
	b.debianPython = versions[packagePython]
	b.python = upstream(b.debianPython)
	libc := strings.Split(upstream(versions[packageLibc]), ".")
	if len(libc) < 2 || !strings.HasPrefix(b.python, image.Python+".") || machines[arch] == "" {
		return fmt.Errorf("it has Python %.40q and libc6 %.40q for %.10q, which are not what images are built on",
			b.debianPython, versions[packageLibc], arch)
	}
	major, err := strconv.Atoi(libc[0])
	if err != nil {
		return err
	}
	minor, err := strconv.Atoi(libc[1])
	if err != nil {
		return err
	}
	b.target = pytag.Target{Arch: machines[arch], Python: image.Python, GlibcMajor: major, GlibcMinor: minor}
	b.env = pep508.Guest(b.python, machines[arch])
	return nil
}

// upstream is the part of a Debian version that the project gave, such as "3.13.5" of
// "3.13.5-2+deb13u1".
func upstream(version string) string {
	if _, rest, ok := strings.Cut(version, ":"); ok {
		version = rest
	}
	if i := strings.IndexAny(version, "-+~"); i >= 0 {
		version = version[:i]
	}
	return version
}

// dist is an installed distribution.
type dist struct {
	wheel.Metadata
	wheel  string   // its file name; "" for one of the base
	extras []string // as locked
}

func (d dist) key() string { return pep508.NormalizeName(d.Name) }

func (d dist) String() string { return d.Name + " " + d.Version }

// findDists finds the distributions of an image by their metadata, in the two forms
// that Debian has. What cannot be read is no distribution.
func findDists(t *tree.Tree) []dist {
	var out []dist
	for _, n := range t.Nodes() {
		if n.Kind != tree.File {
			continue
		}
		dir, name := path.Split(n.Path)
		switch parent := path.Ext(path.Clean(dir)); {
		case name == "METADATA" && parent == ".dist-info", name == "PKG-INFO" && parent == ".egg-info", path.Ext(name) == ".egg-info":
		default:
			continue
		}
		if m, err := wheel.ParseMetadata(n.Data); err == nil {
			out = append(out, dist{Metadata: m})
		}
	}
	return out
}
