package runner

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"regexp"
)

// SourceName is the runner's file name: what module site of Python imports.
const SourceName = "sitecustomize.py"

// Bounds of what is taken from an image.
const (
	maxBytecodes     = 8
	maxBytecodeBytes = 64 << 10
)

// Bytecode is the runner as an image's own Python has compiled it: byte code by
// file name, such as "sitecustomize.cpython-313.pyc" (PEP 3147). Python takes a
// quarter of its start to compile the source otherwise.
type Bytecode map[string][]byte

// bytecodeName is what importlib.util.cache_from_source makes of SourceName.
var bytecodeName = regexp.MustCompile(`^sitecustomize\.[a-z0-9_-]{1,40}(\.opt-[0-9a-z]{1,8})?\.pyc$`)

// Source is the runner's source. An image that has it as SourceName in a folder
// of its own, with byte code in __pycache__ below that, has faster boxes.
func Source() []byte { return append([]byte(nil), source...) }

// ReadBytecode reads what the folder dir of an image has of the runner's byte
// code. It may be older than the runner or not be byte code at all: it is given
// to boxes of that very image only, in a form that makes Python compare it with
// the source's hash and, where they differ, compile the source (PEP 552, checked).
// fsys must not follow links out of the image, as os.Root does not. There may be
// none, which is no error.
func ReadBytecode(fsys fs.FS, dir string) (Bytecode, error) {
	cache := dir + "/__pycache__"
	entries, err := readDir(fsys, cache)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("byte code of the runner: %w", err)
	}
	code := Bytecode{}
	for _, e := range entries {
		if !e.Type().IsRegular() || !bytecodeName.MatchString(e.Name()) {
			continue
		}
		b, err := readBounded(fsys, cache+"/"+e.Name())
		if err != nil {
			return nil, fmt.Errorf("byte code of the runner: %w", err)
		}
		if b, ok := checked(b); ok {
			code[e.Name()] = b
		}
	}
	return code, nil
}

// readDir reads a few entries and leaves the others out.
func readDir(fsys fs.FS, name string) ([]fs.DirEntry, error) {
	f, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	dir, ok := f.(fs.ReadDirFile)
	if !ok {
		return nil, &fs.PathError{Op: "readdir", Path: name, Err: fs.ErrInvalid}
	}
	entries, err := dir.ReadDir(maxBytecodes)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return entries, err
}

func readBounded(fsys fs.FS, name string) ([]byte, error) {
	f, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxBytecodeBytes+1))
}

// checked returns byte code whose header has Python check the source's hash. Only
// byte code that goes by that hash can be made so: 4 bytes of magic number, 4 of
// flags, 8 of the hash (PEP 552).
func checked(pyc []byte) ([]byte, bool) {
	const header, hashBased, checkSource = 16, 1, 2
	if len(pyc) <= header || len(pyc) > maxBytecodeBytes {
		return nil, false
	}
	flags := binary.LittleEndian.Uint32(pyc[4:])
	if flags&^(hashBased|checkSource) != 0 || flags&hashBased == 0 {
		return nil, false
	}
	out := append([]byte(nil), pyc...)
	binary.LittleEndian.PutUint32(out[4:], flags|checkSource)
	return out, true
}
