// Package programs has the guest's own programs, PID 1 and the agent, as parts of
// the host's: the folder data is filled by 'make build' with both of them, for the
// guest's architecture and compressed, before pybox itself is built. Built without
// that, this package has none.
package programs

import (
	"compress/gzip"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
)

//go:embed all:data
var data embed.FS

// ErrNone: this program was built without the guest's.
var ErrNone = errors.New("this pybox was built without its guest: give --from a guest bundle, or build it with 'make build'")

// maxBytes bounds a program, uncompressed.
const maxBytes = 256 << 20

// Set is what a guest of one architecture runs.
type Set struct {
	Init, Agent []byte
}

// Embedded returns the programs for arch, "amd64" or "arm64". The error matches
// ErrNone when they are not there.
func Embedded(arch string) (Set, error) {
	sub, err := fs.Sub(data, "data")
	if err != nil {
		return Set{}, err
	}
	return read(sub, arch)
}

func read(dir fs.FS, arch string) (s Set, err error) {
	for name, to := range map[string]*[]byte{"pybox-init": &s.Init, "pybox-agent": &s.Agent} {
		if *to, err = unpack(dir, name+"-"+arch+".gz"); err != nil {
			return Set{}, err
		}
	}
	return s, nil
}

func unpack(dir fs.FS, name string) ([]byte, error) {
	f, err := dir.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNone
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return nil, fmt.Errorf("%s in this program: %w", name, err)
	}
	b, err := io.ReadAll(io.LimitReader(z, maxBytes+1))
	if err != nil {
		return nil, fmt.Errorf("%s in this program: %w", name, err)
	}
	if len(b) == 0 || len(b) > maxBytes {
		return nil, fmt.Errorf("%s in this program has %d bytes", name, len(b))
	}
	return b, nil
}
