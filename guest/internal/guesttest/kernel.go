package guesttest

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"encoding/binary"
	"maps"
	"slices"
	"strings"
	"testing"
)

// CloudRelease is the release of the kernels that CloudKernel makes.
const CloudRelease = "6.12.1+deb13-cloud"

// Module is a kernel module that says no more of itself than its name, its release and
// fields, each "tag=value" of its .modinfo, and ends as a signed one does.
func Module(machine elf.Machine, release, name string, fields ...string) []byte {
	return ModuleOf(machine, append([]string{"name=" + name, "vermagic=" + release + " SMP preempt "}, fields...)...)
}

// ModuleOf is a module with exactly these fields.
func ModuleOf(machine elf.Machine, fields ...string) []byte {
	const headers = 64 // of the file, and of a section
	info := strings.Join(fields, "\x00") + "\x00"
	names := "\x00.modinfo\x00.shstrtab\x00"
	var b bytes.Buffer
	put := func(v any) { _ = binary.Write(&b, binary.LittleEndian, v) } // to memory
	put(elf.Header64{
		Ident: [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:  uint16(elf.ET_REL), Machine: uint16(machine), Version: uint32(elf.EV_CURRENT),
		Shoff: uint64(headers + len(info) + len(names)), Ehsize: headers, Shentsize: headers, Shnum: 3, Shstrndx: 2,
	})
	b.WriteString(info + names)
	put(elf.Section64{})
	put(elf.Section64{Name: 1, Type: uint32(elf.SHT_PROGBITS), Off: headers, Size: uint64(len(info))})
	put(elf.Section64{Name: 10, Type: uint32(elf.SHT_STRTAB), Off: uint64(headers + len(info)), Size: uint64(len(names))})
	b.WriteString("signature~Module signature appended~\n")
	return b.Bytes()
}

// CloudFiles are those of a package of Debian's cloud kernel, with image as the
// kernel: two of the modules that a guest needs are built in, the others need one
// another and two more, and one needs nothing that anybody could read.
func CloudFiles(t testing.TB, arch string, image []byte) map[string][]byte {
	t.Helper()
	release, machine := CloudRelease+"-"+arch, elf.EM_X86_64
	if arch == "arm64" {
		machine = elf.EM_AARCH64
	}
	dir := "./usr/lib/modules/" + release + "/"
	module := func(name string, fields ...string) []byte {
		return Compress(t, Module(machine, release, name, fields...), ".xz")
	}
	return map[string][]byte{
		"./boot/vmlinuz-" + release:                                          image,
		"./boot/config-" + release:                                           []byte("CONFIG_X=y\n"),
		dir + "modules.builtin":                                              []byte("kernel/drivers/virtio/virtio_pci.ko\nkernel/drivers/char/virtio_console.ko\n\n"),
		dir + "modules.order":                                                []byte("nonsense"),
		dir + "kernel/drivers/char/hw_random/virtio-rng.ko.xz":               module("virtio_rng"),
		dir + "kernel/drivers/virtio/virtio_balloon.ko":                      Module(machine, release, "virtio_balloon", "depends="),
		dir + "kernel/drivers/block/virtio_blk.ko.xz":                        module("virtio_blk", "softdep=pre: absent x-y post: later"),
		dir + "kernel/lib/x-y.ko.xz":                                         module("x_y"),
		dir + "kernel/lib/later.ko.xz":                                       module("later", "softdep=pre: virtio_blk"),
		dir + "kernel/fs/erofs/erofs.ko.xz":                                  module("erofs", "depends=libcrc32c,virtio_pci"),
		dir + "kernel/lib/libcrc32c.ko.xz":                                   module("libcrc32c"),
		dir + "kernel/net/vmw_vsock/vmw_vsock_virtio_transport.ko.xz":        module("vmw_vsock_virtio_transport", "depends=vmw_vsock_virtio_transport_common,vsock"),
		dir + "kernel/net/vmw_vsock/vmw_vsock_virtio_transport_common.ko.xz": module("vmw_vsock_virtio_transport_common", "depends=vsock"),
		dir + "kernel/net/vmw_vsock/vsock.ko.xz":                             module("vsock"),
		dir + "kernel/net/unused.ko.xz":                                      []byte("no xz at all: nobody looks"),
	}
}

// CloudKernel is a package of files such as CloudFiles makes.
func CloudKernel(arch string, files map[string][]byte) Package {
	p := Package{Name: "linux-image-" + CloudRelease + "-" + arch, Version: "6.12.1-1", Arch: arch, Suffix: ".gz", Body: files}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		p.Entries = append(p.Entries, tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644})
	}
	return p
}
