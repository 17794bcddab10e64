// Package userimage makes an image of a person's own: an image of the installed
// bundle with wheels in it, byte code and a note of where everything is from. It
// asks no index and stores nothing but the file that it is told to make. Equal wheels
// on an equal base give equal bytes, whatever the order and the machine, with one
// reservation: the byte code in it is what the guest of this machine made, of which no
// more is checked than package bytecode says.
package userimage

import (
	"context"
	"errors"
	"fmt"

	"github.com/pybox/pybox/guest/bytecode"
	"github.com/pybox/pybox/guest/mapped"
)

// Sentinels, to be tested with errors.Is. What a wheel may not be is package
// wheel's.
var (
	// ErrBase: the base image is not what it should be.
	ErrBase = errors.New("unusable base image")
	// ErrIncomplete: packages need others that are not there, or another Python.
	ErrIncomplete = errors.New("the packages do not fit together")
	// ErrTooMany: an image cannot have that many packages.
	ErrTooMany = errors.New("too many packages")
)

// Base is the image to build on.
type Base struct {
	Name   string // "stdlib" or "data"
	File   string // the erofs file of the installed bundle
	SHA256 string // of the file, lower-case hex, from the manifest
	Bytes  int64
}

// Wheel is a wheel to install.
type Wheel struct {
	Path   string   // where the file is; its name there does not matter
	File   string   // its name as on the index
	SHA256 string   // lower-case hex, checked again
	URL    string   // where from, without credentials; "" or file:// for a local one
	Extras []string // as locked
	Yanked string   // why the index withdrew it, "" where it did not
}

// Lock is what the wheels were chosen by.
type Lock struct {
	Kind   string // as in package pylock
	SHA256 string
}

// Options say what to build.
type Options struct {
	Name   string // of the image
	Arch   string // of the guest, "amd64" or "arm64"
	Base   Base
	Lock   Lock
	Wheels []Wheel
	// Out is the file to make; it must not be there. Its folder takes what is needed
	// for the time being, without leaving anything behind: about twice the image.
	Out string
	// Compiler compiles the byte code in a virtual machine; nil leaves it out, which
	// the provenance says.
	Compiler bytecode.Compiler
	// Machine is asked for when something has to be compiled.
	Machine func(context.Context) (bytecode.Machine, error)
	// BytecodeCache is the folder that byte code is kept in.
	BytecodeCache string
	// Progress is told what takes long, in lines of printable text; may be nil.
	Progress func(line string)
}

// Result is what was made.
type Result struct {
	File       string // Options.Out
	SHA256     string // of the file, lower-case hex
	Bytes      int64
	Provenance Provenance // with addresses, which the image has not
	// Notes are sentences about what a person should know: modules that hide others,
	// withdrawn wheels, libraries that nothing has, sources that cannot be compiled.
	Notes []string
}

// Build makes an image. On an error it leaves nothing behind. Errors match ErrBase,
// ErrIncomplete, ErrTooMany, those of the packages wheel, bytecode, tree and nospace, or
// ctx's.
func Build(ctx context.Context, o Options) (r *Result, err error) {
	b := &builder{Options: o}
	err = mapped.Guard(func() (err error) {
		r, err = b.build(ctx)
		return err
	})
	if errors.Is(err, mapped.ErrFault) && !errors.Is(err, ErrBase) {
		err = fmt.Errorf("%w: %s: %w", ErrBase, o.Base.Name, err) // the other files have no names
	}
	if err != nil {
		return nil, fmt.Errorf("image %.80q: %w", o.Name, err)
	}
	return r, nil
}
