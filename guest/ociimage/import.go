package ociimage

import (
	"context"
	"fmt"

	"github.com/pybox/pybox/guest/mapped"
	"github.com/pybox/pybox/guest/tree"
)

// maxUnpackedTimes is how much more than the tree's limit the layers may unpack to:
// upper ones replace what lower ones have.
const maxUnpackedTimes = 2

// Import makes the tree of a box's image of a container image. What is large, layers
// and the files of the tree, is on the disk and not in memory; the result must be
// closed. Errors match one of the sentinels here, those of the packages fetch, layout
// and tree, or ctx's; and nospace.Is tells a full disk.
func Import(ctx context.Context, o Options) (*Result, error) {
	if !isDigest(o.Source.Digest) {
		return nil, noDigest(o.Source.Kind, o.Source.Where)
	}
	if o.Arch != "amd64" && o.Arch != "arm64" {
		return nil, fmt.Errorf("%w: architecture %.40q", ErrPlatform, o.Arch)
	}
	if o.Limits == (tree.Limits{}) {
		o.Limits = tree.DefaultLimits
	}
	st, err := open(ctx, o)
	if err != nil {
		return nil, err
	}
	defer st.Close()
	f, err := locate(ctx, st, o)
	if err != nil {
		return nil, err
	}
	openers, err := st.layers(ctx, f.layers)
	if err != nil {
		return nil, err
	}
	spool, err := mapped.NewSpool(o.TempDir)
	if err != nil {
		return nil, err
	}
	defer spool.Discard()
	flat := newFlattener(spool, o.Limits)
	budget := maxUnpackedTimes * o.Limits.Bytes
	for i, l := range f.layers {
		if err := stack(ctx, flat, openers[i], l.DiffID, &budget); err != nil {
			return nil, fmt.Errorf("layer %d of %d: %w", i+1, len(f.layers), err)
		}
		f.provenance.Layers = append(f.provenance.Layers, l.Layer)
	}
	data, err := spool.Map()
	if err != nil {
		return nil, err
	}
	r, err := finish(ctx, flat, data, f, o)
	if err != nil {
		data.Close()
	}
	return r, err
}

// open makes contact with where the image is.
func open(ctx context.Context, o Options) (store, error) {
	switch o.Source.Kind {
	case Layout:
		return openLayout(o.Source.Where)
	case Archive:
		return openArchive(ctx, o.Source.Where)
	case Registry:
		return openRegistry(ctx, o)
	}
	return nil, fmt.Errorf("%w: kind %.40q", ErrReference, o.Source.Kind)
}

// locate finds the image there.
func locate(ctx context.Context, st store, o Options) (f *found, err error) {
	if t, ok := st.(*tarFile); ok {
		f, err = t.find(ctx, o.Source.Digest, o.Arch)
	} else {
		f, err = find(ctx, st, o.Source.Digest, o.Arch)
	}
	if err != nil {
		return nil, err
	}
	f.provenance.Kind, f.provenance.Reference = o.Source.Kind, o.Source.Digest
	if o.Source.Kind == Registry {
		f.provenance.Reference = o.Source.String()
	}
	return f, nil
}

// stack puts a layer on those below.
func stack(ctx context.Context, flat *flattener, open opener, diffID string, budget *int64) error {
	file, err := open()
	if err != nil {
		return err
	}
	defer file.Close()
	u, err := unpack(ctx, file, budget)
	if err != nil {
		return err
	}
	defer u.close()
	if err := flat.apply(u); err != nil {
		return err
	}
	return u.finish(diffID)
}

// finish makes the tree, and one that a box runs on, and says what was done to it.
func finish(ctx context.Context, flat *flattener, data *mapped.Bytes, f *found, o Options) (*Result, error) {
	t, err := flat.tree(ctx, data.Data())
	if err != nil {
		return nil, err
	}
	fit := fitter{tree: t, arch: o.Arch}
	python, err := fit.all(searchPath(f.config))
	if err != nil {
		return nil, err
	}
	return &Result{Tree: t, Python: python, Provenance: f.provenance, Notes: append(fit.notes, flat.left.notes()...),
		Ignored: ignored(f.config), data: data}, nil
}

// Close gives back what holds the bytes of the tree's files: the tree must not be used
// afterwards.
func (r *Result) Close() error { return r.data.Close() }

// notes are sentences about what was left behind.
func (l leftOut) notes() []string {
	var out []string
	say := func(n int, one, many string) {
		if n == 1 {
			out = append(out, one)
		} else if n > 1 {
			out = append(out, fmt.Sprintf(many, n))
		}
	}
	say(l.devices, "1 device or FIFO was left out: a box has its own /dev", "%d devices and FIFOs were left out: a box has its own /dev")
	say(l.setID, "1 entry lost its set-id bit, which would do nothing in a box", "%d entries lost their set-id bits, which would do nothing in a box")
	say(l.owners, "1 entry belongs to nobody now: its owner's number is above 65535", "%d entries belong to nobody now: their owners' numbers are above 65535")
	say(l.xattrs, "1 entry lost its extended attributes", "%d entries lost their extended attributes")
	say(l.climbing, "1 link that pointed above the root points to the root now, as it does for the kernel", "%d links that pointed above the root point to the root now, as they do for the kernel")
	return out
}
