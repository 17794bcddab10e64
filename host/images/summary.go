package images

import (
	"errors"
	"time"

	"github.com/pybox/pybox/guest"
	"github.com/pybox/pybox/guest/bundle"
	"github.com/pybox/pybox/guest/debian"
	"github.com/pybox/pybox/host/api"
)

// ListSchema names the JSON form of a list of images, InspectSchema that of one.
const (
	ListSchema    = "pybox.images/v1"
	InspectSchema = "pybox.image-inspect/v1"
)

// KindBundle is an image of the guest bundle, of which there is no record.
const KindBundle = "bundle"

// Summary is an image in a list. What is not known is missing.
type Summary struct {
	Name string `json:"name"`
	// Own tells an image of one's own from those of the bundle.
	Own    bool   `json:"own"`
	Kind   string `json:"kind,omitempty"`
	Base   string `json:"base,omitempty"`
	Python string `json:"python,omitempty"`
	Arch   string `json:"arch,omitempty"`
	SHA256 string `json:"sha256,omitempty"`
	Bytes  int64  `json:"bytes,omitempty"`
	// Packages counts those of the record.
	Packages  *int       `json:"packages,omitempty"`
	CreatedAt *time.Time `json:"created_at,omitempty"`
	// Damaged says what is wrong with the image, as far as can be seen without
	// reading its content, and Next what to do about that.
	Damaged string `json:"damaged,omitempty"`
	Next    string `json:"next,omitempty"`
}

// List is the answer of a list of images.
type List struct {
	Schema string    `json:"schema"`
	Images []Summary `json:"images"`
}

// Overview gives all images: those of the bundle, which may be nil, and then those of
// the store. It reads no content.
func (s *Store) Overview(b *bundle.Bundle) (*List, error) {
	all := &List{Schema: ListSchema, Images: []Summary{}}
	if b != nil {
		for _, i := range b.Manifest.Images {
			all.Images = append(all.Images, ofBundle(b, i))
		}
	}
	list, err := s.List()
	for _, e := range list {
		all.Images = append(all.Images, s.summary(e))
	}
	return all, err
}

func ofBundle(b *bundle.Bundle, i bundle.Image) Summary {
	return Summary{Name: i.Name, Kind: KindBundle, Arch: b.Manifest.Arch, SHA256: i.SHA256, Bytes: i.Bytes}
}

func (s *Store) summary(e Entry) Summary {
	if e.Err != nil {
		return Summary{Name: e.Name, Own: true, Damaged: e.Err.Error(), Next: s.remedy(e.Name, e.Err)}
	}
	sum := Of(e.Record)
	if err := s.Intact(e.Record); err != nil {
		sum.Damaged, sum.Next = err.Error(), s.remedy(e.Name, err)
	}
	return sum
}

// Of is what a record says of its image.
func Of(r *Record) Summary {
	n := len(r.Packages)
	sum := Summary{
		Name: r.Name, Own: true, Kind: r.Kind, Python: r.Python, Arch: r.Arch, SHA256: r.SHA256, Bytes: r.Bytes,
		Packages: &n, CreatedAt: &r.CreatedAt,
	}
	if r.Built != nil {
		sum.Base = r.Built.Base.Name
	}
	return sum
}

// Stored is what the record of an image says; its name alone where the store has none,
// or one that is damaged.
func (s *Store) Stored(name string) Summary {
	r, err := s.Get(name)
	if err != nil {
		return Summary{Name: name, Own: true}
	}
	return Of(r)
}

// Presence is whether a VM has an image.
type Presence string

// The presences.
const (
	PresenceStopped Presence = "stopped" // no VM runs
	PresenceYes     Presence = "yes"
	PresenceNo      Presence = "no"
	// PresenceOther: it has another image of that name, since it was replaced.
	PresenceOther Presence = "another"
	// PresenceLeftOut: it left the image out when it started.
	PresenceLeftOut Presence = "left out"
	PresenceUnknown Presence = "unknown" // nobody could be asked
)

// In tells whether the VM of a status has an image. Of one that it left out it gives the
// reason too, unless the image was made anew since.
func In(s api.Status, i Summary) (Presence, *api.LeftOut) {
	if s.State == api.StateStopped {
		return PresenceStopped, nil
	}
	if s.VM == nil {
		return PresenceUnknown, nil // it starts
	}
	for _, has := range s.VM.Images {
		switch {
		case has.Name == i.Name && has.SHA256 == i.SHA256:
			return PresenceYes, nil
		case has.Name == i.Name:
			return PresenceOther, nil
		}
	}
	var made time.Time
	if i.CreatedAt != nil {
		made = *i.CreatedAt
	}
	for _, l := range s.VM.LeftOut {
		if l.Name == "" || l.Name == i.Name && l.SHA256 == i.SHA256 && l.CreatedAt.Equal(made) {
			return PresenceLeftOut, &l
		}
	}
	return PresenceNo, nil
}

// Inspection is all that is known of an image.
type Inspection struct {
	Schema string `json:"schema"`
	Summary
	// File is where the content is.
	File string `json:"file,omitempty"`
	// InVM tells whether the VM that runs has it; LeftOut why not.
	InVM    Presence     `json:"in_vm"`
	LeftOut *api.LeftOut `json:"left_out,omitempty"`
	// Record is nil for an image of the bundle, and for a record that is damaged.
	Record *Record `json:"record,omitempty"`
	// Debian are the packages that an image of the bundle is made of, where this
	// program knows them.
	Debian []Package `json:"debian,omitempty"`
}

// Inspect gives what is known of an image, in the light of a status; nil: nobody could
// be asked. The error matches ErrNotFound.
func (s *Store) Inspect(b *bundle.Bundle, name string, st *api.Status) (*Inspection, error) {
	in, err := s.inspect(b, name)
	if err != nil {
		return nil, err
	}
	in.Schema, in.InVM = InspectSchema, PresenceUnknown
	if st != nil {
		in.InVM, in.LeftOut = In(*st, in.Summary)
	}
	return in, nil
}

func (s *Store) inspect(b *bundle.Bundle, name string) (*Inspection, error) {
	if b != nil {
		for _, i := range b.Manifest.Images {
			if i.Name == name {
				return &Inspection{Summary: ofBundle(b, i), File: b.Path(i.File), Debian: debianOf(b, name)}, nil
			}
		}
	}
	e := Entry{Name: name}
	e.Record, e.Err = s.Get(name)
	switch {
	case e.Err == nil:
		return &Inspection{Summary: s.summary(e), File: s.Path(e.Record), Record: e.Record}, nil
	case errors.Is(e.Err, ErrDamaged):
		return &Inspection{Summary: s.summary(e)}, nil
	}
	return nil, e.Err
}

// debianOf are the packages of an image of the bundle, if that was made by the lock
// file that this program has.
func debianOf(b *bundle.Bundle, name string) (list []Package) {
	lock, err := guest.Lock()
	if err != nil || lock.SHA256() != b.Manifest.LockSHA256 {
		return nil
	}
	for _, set := range lock.Sets {
		if set.Name != name || set.Arch != b.Manifest.Arch && set.Arch != debian.ArchAll {
			continue
		}
		for _, p := range set.Packages {
			list = append(list, Package{Name: p.Name, Version: p.Version, SHA256: p.SHA256})
		}
	}
	return list
}
