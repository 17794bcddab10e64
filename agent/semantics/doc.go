// Package semantics holds the claim that a program in a box does what `python3 NAME`
// does outside of one, byte for byte, against real boxes. It is a test and nothing
// else; docs/semantics.md has what differs.
package semantics
