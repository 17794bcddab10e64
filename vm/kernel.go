package vm

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"os"
)

// CheckKernel reports, as an error that matches ErrConfig, when the file at path
// cannot be booted directly on arch. A wrong kernel otherwise shows as a machine
// that starts and never speaks.
func CheckKernel(path, arch string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("%w: kernel: %w", ErrConfig, err)
	}
	defer f.Close()
	head := make([]byte, 4096)
	n, err := io.ReadFull(f, head)
	if err != nil && err != io.ErrUnexpectedEOF && err != io.EOF {
		return fmt.Errorf("%w: kernel: %w", ErrConfig, err)
	}
	if what := kernelFault(head[:n], arch); what != "" {
		return fmt.Errorf("%w: the kernel %s %s", ErrConfig, path, what)
	}
	return nil
}

// kernelFault says what is wrong with a kernel that starts with head, "" when it
// looks right.
func kernelFault(head []byte, arch string) string {
	if bytes.HasPrefix(head, []byte{0x1f, 0x8b}) {
		return "is gzip-compressed: decompress it first (gunzip), the boot loader takes it only as it runs"
	}
	isImage, isBzImage := isARM64Image(head), isBzImage(head)
	switch {
	case arch == ArchARM64 && isImage, arch == ArchAMD64 && isBzImage:
		return ""
	case arch == ArchARM64 && isBzImage:
		return "is for amd64, but the guest is arm64: use a bundle built for arm64"
	case arch == ArchAMD64 && isImage:
		return "is for arm64, but the guest is amd64: use a bundle built for amd64"
	case arch == ArchARM64:
		return "is not an uncompressed arm64 Image (no magic number at offset 56)"
	}
	return "is not an x86 bzImage (no boot header at offset 514)"
}

// isARM64Image looks for the magic of Documentation/arch/arm64/booting.rst.
func isARM64Image(b []byte) bool {
	return len(b) >= 64 && string(b[56:60]) == "ARM\x64"
}

// isBzImage looks for the boot flag and header magic of
// Documentation/arch/x86/boot.rst, protocol 2.00 and later.
func isBzImage(b []byte) bool {
	return len(b) >= 0x206 && binary.LittleEndian.Uint16(b[0x1fe:]) == 0xaa55 && string(b[0x202:0x206]) == "HdrS"
}
