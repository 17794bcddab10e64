package setup

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pybox/pybox/guest/bundle"
)

// fromFile looks at the folder or archive that was given. All of it may be hostile.
func (p *Plan) fromFile() (t target, err error) {
	if strings.Contains(p.o.From, "://") {
		return t, fmt.Errorf("%w: --from %s: give a file or folder; an address has to be downloaded first", ErrRequest, p.o.From)
	}
	if p.From, err = filepath.Abs(p.o.From); err != nil {
		return t, fmt.Errorf("%w: --from: %w", ErrRequest, err)
	}
	st, err := os.Stat(p.From)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return t, fmt.Errorf("%w: --from %s: there is no such file or folder", ErrRequest, p.From)
	case err != nil:
		return t, fmt.Errorf("%w: --from: %w", ErrRequest, err)
	case st.IsDir():
		p.Origin = OriginFolder
		t, err = p.fromFolder()
	case st.Mode().IsRegular():
		p.Origin = OriginArchive
		t, err = p.fromArchive()
	default:
		return t, fmt.Errorf("%w: --from %s is neither a file nor a folder", ErrRequest, p.From)
	}
	if err != nil {
		return t, fmt.Errorf("--from %s: %w", p.From, err)
	}
	p.Bundle = t.id
	if err := fits(&t.manifest, p.o); err != nil {
		return t, fmt.Errorf("--from %s: %w", p.From, err)
	}
	return t, p.hasImages(&t.manifest)
}

func (p *Plan) hasImages(m *bundle.Manifest) error {
	var names []string
	for _, i := range m.Images {
		names = append(names, i.Name)
	}
	for _, want := range p.o.Images {
		if !slices.Contains(names, want) {
			return fmt.Errorf("%w: --from %s has no image %q; it has: %s", ErrRequest, p.From, want, strings.Join(names, ", "))
		}
	}
	return nil
}

func (p *Plan) fromFolder() (target, error) {
	b, err := bundle.Open(p.From)
	if err != nil {
		return target{}, err
	}
	if err := b.CheckSums(); err != nil {
		return target{}, err
	}
	t := target{id: b.ID(), manifest: b.Manifest}
	for _, f := range b.Manifest.Files() {
		t.bytes += f.Bytes
	}
	return t, nil
}

func (p *Plan) fromArchive() (target, error) {
	f, err := os.Open(p.From)
	if err != nil {
		return target{}, err
	}
	defer f.Close()
	a, err := bundle.OpenArchive(bufio.NewReader(f))
	if err != nil {
		return target{}, err
	}
	if st, err := f.Stat(); err != nil {
		return target{}, err
	} else if st.Size() < a.Bytes() {
		return target{}, fmt.Errorf("%w: it is cut off: %d bytes, and its files alone have %d; copy or download it again", bundle.ErrArchive, st.Size(), a.Bytes())
	}
	p.key = a.ID()[:keyDigits]
	return target{id: a.ID(), manifest: a.Manifest, bytes: a.Bytes()}, nil
}
