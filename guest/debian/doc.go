// Package debian picks the Debian packages that a guest is made of and records
// them in a lock file.
//
// Locking starts from a suite's InRelease file, whose signature is checked
// against keys in this package; it names the SHA-256 of the package index,
// which names the SHA-256 of every package. A lock therefore carries the
// archive's signature over to each file that a build downloads, and a build
// needs neither keys nor indexes. It is not a package manager: it resolves
// dependencies of small fixed sets (see Recipes) and installs nothing.
//
// The formats are those of https://wiki.debian.org/DebianRepository/Format,
// deb822(5) and Debian Policy chapters 5 and 7.
package debian
