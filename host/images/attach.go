package images

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pybox/pybox/guest/bundle"
)

const (
	// verifyParallel is how many contents are hashed at once.
	verifyParallel = 4
	// sectorBytes is the unit of a disk; Virtualization.framework takes no other.
	sectorBytes = 512
)

// Slots is how many images of one's own a VM has disks for beside a bundle with so
// many images.
func Slots(bundled int) int { return min(MaxImages, max(0, maxDisks-1-bundled)) }

// Attached is an image that a VM gets.
type Attached struct {
	bundle.Image
	// Path is the disk's file; empty: the VM has that disk already, since another
	// image has the same content.
	Path string
	// Base is the image of the bundle that it was built upon, "" for none.
	Base string
}

// LeftOut is an image that a VM does not get, with a sentence that says why and one
// that says what to do. Name is "" where that is none of them. SHA256 and CreatedAt are
// those of its record, and zero where that is damaged.
type LeftOut struct {
	Name      string
	SHA256    string
	CreatedAt time.Time
	Why, Next string
}

// Attachment is what a VM gets of the store.
type Attachment struct {
	Images  []Attached
	LeftOut []LeftOut
	release func()
}

// Bases are the images of the bundle that the attached ones were built upon, by name.
func (a *Attachment) Bases() map[string]string {
	bases := map[string]string{}
	for _, i := range a.Images {
		bases[i.Name] = i.Base
	}
	return bases
}

// Release lets the contents be removed again: the VM has them open. It may be called
// more than once.
func (a *Attachment) Release() {
	if a.release != nil {
		a.release()
	}
}

// Attach verifies every image of the store against its digest and gives those that a
// VM with the bundle's images can have, by their names. What is wrong with one keeps
// it out, and neither the others nor the VM. What ctx leaves no time to verify is left
// out too, and so is all when a command has the store to itself for as long. No content
// is removed before the attachment is released.
func (s *Store) Attach(ctx context.Context, arch string, bundled []bundle.Image) *Attachment {
	a := &Attachment{}
	if _, err := os.Lstat(s.dir); errors.Is(err, fs.ErrNotExist) {
		return a
	}
	unlock, err := s.lock(ctx, false, 0)
	if err != nil {
		return a.nothing(err)
	}
	a.release = unlock
	list, err := s.List()
	if err != nil {
		return a.nothing(err)
	}
	faults := s.verify(ctx, arch, bundled, list)
	disks := map[string]string{} // digests by serial
	for _, i := range bundled {
		disks[i.Serial] = i.SHA256
	}
	left := Slots(len(bundled))
	for i, e := range list {
		if f := faults[i]; f != nil {
			a.leaveOut(e, f.why, f.next)
			continue
		}
		at := attached(e.Record)
		switch sum, has := disks[at.Serial]; {
		case has && sum != at.SHA256:
			a.leaveOut(e, "its digest begins with the same 16 digits as another's, by which the guest tells disks apart", "build it again with --replace after a change of its lock")
			continue
		case has:
		case left == 0:
			a.leaveOut(e, fmt.Sprintf("the VM has %d disks and all are taken", maxDisks), "'pybox image remove' one that you do not need, then 'pybox vm restart'")
			continue
		default:
			at.Path = s.Path(e.Record)
			disks[at.Serial] = at.SHA256
			left--
		}
		a.Images = append(a.Images, at)
	}
	return a
}

func attached(r *Record) Attached {
	at := Attached{Image: bundle.Image{Name: r.Name, Serial: bundle.ImageSerial(r.SHA256), File: bundle.File{File: r.SHA256 + imageSuffix, SHA256: r.SHA256, Bytes: r.Bytes}}}
	if r.Built != nil {
		at.Base = r.Built.Base.Name
	}
	return at
}

// nothing is an attachment for a store that cannot be used.
func (a *Attachment) nothing(err error) *Attachment {
	a.Images = nil
	a.leaveOut(Entry{}, "the folder of images of your own cannot be used: "+err.Error(), "'pybox vm restart' tries again")
	return a
}

func (a *Attachment) leaveOut(e Entry, why, next string) {
	l := LeftOut{Name: e.Name, Why: why, Next: next}
	if e.Record != nil {
		l.SHA256, l.CreatedAt = e.Record.SHA256, e.Record.CreatedAt
	}
	a.LeftOut = append(a.LeftOut, l)
}

// fault is what is wrong with an image, and what to do.
type fault struct{ why, next string }

// verify looks at all images of a list, several at once, and gives what is wrong with
// each, by its place in the list.
func (s *Store) verify(ctx context.Context, arch string, bundled []bundle.Image, list []Entry) []*fault {
	faults := make([]*fault, len(list))
	var g errgroup.Group
	g.SetLimit(verifyParallel)
	for i, e := range list {
		g.Go(func() error {
			faults[i] = s.fault(ctx, arch, bundled, e)
			return nil
		})
	}
	_ = g.Wait() // none fails
	return faults
}

func (s *Store) fault(ctx context.Context, arch string, bundled []bundle.Image, e Entry) *fault {
	again := s.remedy(e.Name, e.Err) + "; then 'pybox vm restart'"
	if e.Err != nil {
		return &fault{e.Err.Error(), again}
	}
	for _, i := range bundled {
		if i.Name == e.Name {
			return &fault{"the guest bundle has an image of that name", fmt.Sprintf("'pybox image remove %s'; make it again under another name", e.Name)}
		}
	}
	if e.Record.Arch != arch {
		return &fault{fmt.Sprintf("it is for %s and the guest is %s", e.Record.Arch, arch), again}
	}
	if e.Record.Bytes%sectorBytes != 0 {
		return &fault{fmt.Sprintf("its %d bytes are no multiple of %d, as those of a disk are", e.Record.Bytes, sectorBytes), again}
	}
	switch err := s.Verify(ctx, e.Record); {
	case err == nil:
		return nil
	case ctx.Err() != nil && !errors.Is(err, ErrDamaged):
		return &fault{"there was no time to verify it while the VM started", "raise start_timeout in [vm] of config.toml, then 'pybox vm restart'"}
	default:
		return &fault{err.Error(), again}
	}
}

// Verify reads an image's content and compares it with its record. The error matches
// ErrDamaged, or is the system's or ctx's.
func (s *Store) Verify(ctx context.Context, r *Record) error {
	f, err := openRegular(s.Path(r))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %s is missing", ErrDamaged, s.Path(r))
	}
	if err != nil {
		return fmt.Errorf("verify the image %s: %w", r.Name, err)
	}
	defer f.Close()
	h := sha256.New()
	n, err := io.Copy(h, ctxReader{ctx, io.LimitReader(f, r.Bytes+1)})
	if err != nil {
		return fmt.Errorf("verify the image %s: %w", r.Name, err)
	}
	switch sum := hex.EncodeToString(h.Sum(nil)); {
	case n > r.Bytes:
		return fmt.Errorf("%w: %s has more than %d bytes", ErrDamaged, s.Path(r), r.Bytes)
	case n < r.Bytes:
		return fmt.Errorf("%w: %s has %d bytes, expected %d", ErrDamaged, s.Path(r), n, r.Bytes)
	case sum != r.SHA256:
		return fmt.Errorf("%w: %s has the SHA-256 %s, expected %s", ErrDamaged, s.Path(r), sum, r.SHA256)
	}
	return nil
}

// Intact reports, without reading the content, whether it is there with its size.
// The error matches ErrDamaged.
func (s *Store) Intact(r *Record) error {
	st, err := os.Lstat(s.Path(r))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: %s is missing", ErrDamaged, s.Path(r))
	case err != nil:
		return err
	case !st.Mode().IsRegular() || st.Size() != r.Bytes:
		return fmt.Errorf("%w: %s is no file of %d bytes", ErrDamaged, s.Path(r), r.Bytes)
	}
	return nil
}
