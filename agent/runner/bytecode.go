package runner

import (
	"bytes"
	"encoding/binary"
	"regexp"
)

// SourceName is the runner's file name: what module site of Python imports.
const SourceName = "sitecustomize.py"

// What is taken of an init at most: that much byte code, and a name as long as
// bytecodeName lets through.
const (
	maxBytecodeBytes = 64 << 10
	maxBytecodeName  = len("sitecustomize.") + 40 + len(".opt-") + 8 + len(".pyc")
)

// Bytecode is the runner as an image's own Python has compiled it: byte code by
// file name, such as "sitecustomize.cpython-313.pyc" (PEP 3147). Python takes a
// quarter of its start to compile the source otherwise.
//
// It may not be byte code at all: a box wrote it, all of it, and it is as trustworthy as
// the image's own python3. So it is given to boxes of that very image only. Its form has
// Python compare the hash in its header with the source's and, where they differ, compile
// the source (PEP 552, checked): that keeps the code of another runner out, and says
// nothing of what is behind the header.
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
