package bytecode

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
)

// A file of byte code starts with a magic number, flags, and, with these flags,
// the hash of the source: PEP 552 and Lib/importlib/_bootstrap_external.py.
const (
	headerBytes = 16
	// magic is that of Python 3.13 (Include/internal/pycore_magic_number.h).
	magic = 3571 | '\r'<<16 | '\n'<<24
	// flagsUnchecked: based on a hash, and taken without reading the source.
	flagsUnchecked = 1
	// typeCode marks a code object in Python/marshal.c; flagRef may be added.
	typeCode, flagRef = 'c', 0x80
)

// errPyc marks what is no byte code of the source that it is said to be of.
var errPyc = errors.New("unusable byte code")

// Header is what the byte code of a source starts with.
func Header(source []byte) []byte {
	h := binary.LittleEndian.AppendUint32(nil, magic)
	h = binary.LittleEndian.AppendUint32(h, flagsUnchecked)
	return binary.LittleEndian.AppendUint64(h, siphash13(magic, 0, source))
}

// check makes sure that pyc starts as the byte code of a source does.
func check(pyc, source []byte) error {
	if len(pyc) <= headerBytes {
		return fmt.Errorf("%w: %d bytes", errPyc, len(pyc))
	}
	want := Header(source)
	switch {
	case !bytes.Equal(pyc[:4], want[:4]):
		return fmt.Errorf("%w: of another Python: magic number % x", errPyc, pyc[:4])
	case !bytes.Equal(pyc[4:8], want[4:8]):
		return fmt.Errorf("%w: flags % x", errPyc, pyc[4:8])
	case !bytes.Equal(pyc[8:headerBytes], want[8:]):
		return fmt.Errorf("%w: made from another source", errPyc)
	case pyc[headerBytes]&^flagRef != typeCode:
		return fmt.Errorf("%w: no code object", errPyc)
	}
	return nil
}

// siphash13 is SipHash-1-3 (https://www.aumasson.jp/siphash/siphash.pdf), which
// Python hashes sources with, keyed by its magic number: Python/pyhash.c.
func siphash13(k0, k1 uint64, b []byte) uint64 {
	v0, v1 := k0^0x736f6d6570736575, k1^0x646f72616e646f6d
	v2, v3 := k0^0x6c7967656e657261, k1^0x7465646279746573
	round := func() {
		v0 += v1
		v2 += v3
		v1 = bits.RotateLeft64(v1, 13) ^ v0
		v3 = bits.RotateLeft64(v3, 16) ^ v2
		v0 = bits.RotateLeft64(v0, 32) + v3
		v2 += v1
		v1 = bits.RotateLeft64(v1, 17) ^ v2
		v3 = bits.RotateLeft64(v3, 21) ^ v0
		v2 = bits.RotateLeft64(v2, 32)
	}
	last := bytes.Clone(b[len(b)&^7:])
	last = append(last, make([]byte, 8-len(last))...)
	last[7] = byte(len(b))
	for rest := b[:len(b)&^7]; ; rest = rest[8:] {
		block, done := last, len(rest) == 0
		if !done {
			block = rest
		}
		m := binary.LittleEndian.Uint64(block)
		v3 ^= m
		round()
		v0 ^= m
		if done {
			break
		}
	}
	v2 ^= 0xff
	round()
	round()
	round()
	return v0 ^ v1 ^ v2 ^ v3
}
