// Package qemu is the vm.Driver for Linux hosts: it runs a guest in a QEMU
// process that this process owns, with our own virtio socket device beside it
// (package vhostuser), so that neither a kernel module nor any privilege is
// needed.
//
// QEMU gets everything as open descriptors (disks, kernel, sockets), no path it
// could wander from, a seccomp sandbox, and, when PyBox itself is root, an
// unprivileged user id. It dies with the process that started it.
//
// The package chooses between KVM and emulation by behaviour: see Options.Accel.
// It is not a general QEMU front end: one machine type per architecture, only
// the devices that a PyBox guest has drivers for.
package qemu
