// Package wheel reads Python wheels and installs them into the file tree of an
// image, without Python: PEP 427, PEP 376 and what has become of them
// (https://packaging.python.org/en/latest/specifications/binary-distribution-format/,
// .../recording-installed-packages/, .../entry-points/). No code of a wheel runs.
//
// A wheel is hostile. All of it is read, bounded, unpacked beside the heap and held
// against its RECORD before a single file gets into a tree, and what no tool writes
// in earnest is refused: names that lead elsewhere, members that overlap or are
// there twice, links, encryption, anything before, between or after what the
// archive lists.
package wheel
