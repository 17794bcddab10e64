// Package bytecode puts the byte code of an image's Python sources into the
// image. A box cannot write to its image, so without it Python would compile
// what it imports anew on every run.
//
// Python compiles itself: a Compiler runs the image's own interpreter in a box of
// a virtual machine and hands back what came out as a tar archive. That archive
// comes from the guest and is taken as hostile: nothing but a file of byte code
// for a source of the image, with the header of its interpreter and the hash of
// exactly that source, gets in. What the code behind the header does cannot be
// checked; it runs in boxes only, as the sources do. That it is what Python makes of
// the source rests on the guest, so where it is kept for other images too, no code
// of anybody else runs in that guest: see Options.Apart.
//
// The byte code of equal sources is equal on every architecture, so it is kept
// under the digest of the sources that it was made from (see Options.Cache).
package bytecode
