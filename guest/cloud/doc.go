// Package cloud makes something that boots out of Debian's ready-made kernel for
// virtual machines (linux-image-…-cloud-ARCH), for where nobody built PyBox's own:
// the kernel itself, and an initial RAM file system with the few modules that this
// guest needs and with the guest's own init, which loads them (package initramfs has
// the layout).
//
// Nothing of the package runs, and depmod is not needed: what a module depends on,
// it says itself. Equal packages and inits give equal bytes.
//
// The package file was pinned by its digest before it gets here, and is still read
// as hostile: names, sizes, compression, and the ELF files in it.
package cloud

import (
	"errors"
	"fmt"
)

// ErrKernel marks a package that is no cloud kernel that this guest could use.
var ErrKernel = errors.New("unusable kernel package")

func kernelErr(format string, a ...any) error {
	return fmt.Errorf("%w: %s", ErrKernel, fmt.Sprintf(format, a...))
}

// wanted are the modules that a guest needs, in the order of loading; each comes
// after what it depends on. One that is part of the kernel itself is passed over:
// what is a module differs between architectures and changes with time. Messages
// before a console has its driver are not lost, the kernel keeps them for it.
var wanted = []string{
	// The bus of every device that the two virtual machine monitors make, and
	// their console.
	"virtio_pci", "virtio_console",
	"virtio_rng", "virtio_balloon",
	// The disks, and the file system of all of them.
	"virtio_blk", "erofs",
	// The way to the host.
	"vmw_vsock_virtio_transport",
}
