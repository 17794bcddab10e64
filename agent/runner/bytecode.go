package runner

import (
	"bytes"
	"encoding/binary"
	"regexp"
)

// SourceName is the runner's file name: what module site of Python imports.
const SourceName = "sitecustomize.py"

// maxBytecodeBytes bounds what is taken of an init.
const maxBytecodeBytes = 64 << 10

// Bytecode is the runner as an image's own Python has compiled it: byte code by
// file name, such as "sitecustomize.cpython-313.pyc" (PEP 3147). Python takes a
// quarter of its start to compile the source otherwise.
//
// It may not be byte code at all: it is given to boxes of that very image only, in a
// form that makes Python compare it with the source's hash and, where they differ,
// compile the source (PEP 552, checked).
type Bytecode map[string][]byte

// bytecodeName is what importlib.util.cache_from_source makes of SourceName.
var bytecodeName = regexp.MustCompile(`^sitecustomize\.[a-z0-9_-]{1,40}(\.opt-[0-9a-z]{1,8})?\.pyc$`)

// decodeBytecode takes what a C says that the runner was compiled to; nil: nothing of use.
func decodeBytecode(body []byte) Bytecode {
	name, data, _ := bytes.Cut(body, []byte{0})
	data, ok := checked(data)
	if !ok || !bytecodeName.Match(name) {
		return nil
	}
	return Bytecode{string(name): data}
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
