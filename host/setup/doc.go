// Package setup installs what a machine with nothing but the pybox program lacks: a
// guest bundle, made of Debian's packages or taken from a file or folder. It also
// removes what PyBox has left on a machine.
//
// Both are planned first and done then. A plan says every folder, file and download;
// carrying it out does that and nothing else. What is made is written aside and
// moved into place, so it may be cut off at any moment and repeated; downloads go on
// where they stopped. Nothing that PyBox did not make is changed or removed.
//
// How a bundle is made is for package guest/build, what one is for guest/bundle.
package setup
