// Package vhostuser is the virtio socket device of a QEMU guest, as a
// vhost-user back end: it gives one guest a virtio-vsock transport without a
// kernel module, without /dev/vhost-vsock and without any privilege, and each
// device has a CID space of its own.
//
// It speaks two protocols. Towards QEMU, the front end, it is a back end of the
// vhost-user protocol (QEMU, docs/interop/vhost-user.rst) that takes the guest's
// memory and the two virtqueues rx and tx; the device's event queue stays with
// QEMU. Towards the guest's driver it is the device of virtio 1.2, section 5.10,
// over split virtqueues (section 2.7).
//
// It is not a general vsock implementation: only the host dials. Every REQUEST
// of the guest is answered with RST, whatever its port, and so is every packet
// of a type other than STREAM.
//
// # What is trusted
//
// Nothing that the guest writes is trusted: ring indices, descriptors and
// headers are copied out of shared memory once, checked, and only then used. A
// guest can break its own connections; it cannot make the host read or write
// outside the guest's memory, hold more memory than the stated bound, keep the
// device's lock, or stall what the host does elsewhere.
//
// QEMU is trusted a little more: it holds the guest's memory anyway and is
// confined, but it may have been taken over by its guest. So its messages are
// bounded and checked, and its descriptors too. Guest memory must be a file of
// memfd_create(2), of ordinary pages, at least as long as what it claims and
// sealed against shrinking (F_SEAL_SHRINK, which QEMU's memory-backend-memfd sets
// unless told seal=off): a page of a mapping that its file cannot provide is a
// SIGBUS for this whole process. Eventfds are open files that both sides share,
// O_NONBLOCK included, so nothing that matters ever reads or writes one.
//
// What is left to a hostile QEMU, or guest:
//
//   - Guest memory that was never used before is allocated, and charged to the
//     memory cgroup, when it is touched, and this device may be the one that
//     touches it. Up to the size of the guest's memory may so be charged to this
//     process's cgroup rather than QEMU's: give it that room, or its limit's OOM
//     killer may strike here. Where the kernel refuses to overcommit
//     (vm.overcommit_memory=2) and all is committed, such a touch is a SIGBUS; a
//     Go program does not get through that state anyhow, as its heap cannot grow.
//   - A QEMU that refills the counter of an interrupt's eventfd all the time, with
//     O_NONBLOCK cleared, can hold up the goroutine that interrupts its own guest,
//     and nothing else. When it also holds up the end of that goroutine, Serve
//     says so after a second, and the goroutine ends with QEMU (before Linux 5.8:
//     perhaps never).
//
// # Bounds
//
// A connection promises the guest a receive window and never buffers more than
// that. The windows of all connections together stay below WithReceiveMemory
// (64 MiB unless set), and buffers are allocated as data comes, so an idle
// connection costs a few hundred bytes. Nothing is buffered towards the guest:
// data is copied from the caller of Write straight into the guest's receive
// buffers. Replies that wait for such a buffer are a few bits for each
// connection and at most maxResets headers for packets without one.
package vhostuser
