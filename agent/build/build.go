// Package build holds the program that compiles the byte code of an image. The
// guest runs it in a box of that image; what it leaves in the folder "out" of its
// working folder belongs into the image, under the same paths.
package build

import (
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
)

//go:embed compileall.py
var program string

// Program returns the source of the program.
func Program() []byte { return []byte(program) }

// Version is the hex SHA-256 of the program: where it and the interpreter are
// the same, equal sources give equal byte code.
func Version() string {
	s := sha256.Sum256([]byte(program))
	return hex.EncodeToString(s[:])
}
