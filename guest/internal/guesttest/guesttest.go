// Package guesttest makes small Debian packages and ELF files for tests, so that
// they need no network and no compiler.
package guesttest

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
)

// Member is one ar member.
type Member struct {
	Name string
	Body []byte
}

// Ar makes an ar archive.
func Ar(members ...Member) []byte {
	var b bytes.Buffer
	b.WriteString("!<arch>\n")
	for _, m := range members {
		fmt.Fprintf(&b, "%-16s%-12d%-6d%-6d%-8s%-10d`\n", m.Name, 0, 0, 0, "100644", len(m.Body))
		b.Write(m.Body)
		if len(m.Body)%2 == 1 {
			b.WriteByte('\n')
		}
	}
	return b.Bytes()
}

// Tar makes a tar of headers; Body holds a file's content by name.
func Tar(t testing.TB, headers []tar.Header, body map[string][]byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		h.Size = int64(len(body[h.Name]))
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(body[h.Name]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// Compress compresses by the suffix of a member's name: ".xz", ".zst", ".gz" or
// "" for none.
func Compress(t testing.TB, b []byte, suffix string) []byte {
	t.Helper()
	var out bytes.Buffer
	var w io.WriteCloser
	var err error
	switch suffix {
	case ".xz":
		// With a small dictionary: the usual one of 8 MiB is cleared for every file.
		w, err = xz.WriterConfig{DictCap: 1 << 16}.NewWriter(&out)
	case ".zst":
		w, err = zstd.NewWriter(&out)
	case ".gz":
		w = gzip.NewWriter(&out)
	default:
		return b
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// Package describes a package to make.
type Package struct {
	Name, Version, Arch string
	Suffix              string // of the control and data members
	Entries             []tar.Header
	Body                map[string][]byte
}

// Deb makes a package.
func Deb(t testing.TB, p Package) []byte {
	t.Helper()
	control := fmt.Sprintf("Package: %s\nVersion: %s\nArchitecture: %s\nDescription: test\n", p.Name, p.Version, p.Arch)
	c := Tar(t, []tar.Header{{Name: "./control", Typeflag: tar.TypeReg, Mode: 0o644}}, map[string][]byte{"./control": []byte(control)})
	return Ar(Member{"debian-binary", []byte("2.0\n")},
		Member{"control.tar" + p.Suffix, Compress(t, c, p.Suffix)},
		Member{"data.tar" + p.Suffix, Compress(t, Tar(t, p.Entries, p.Body), p.Suffix)})
}

// ELF describes an ELF file to make.
type ELF struct {
	Machine elf.Machine
	Interp  string
	Needed  []string
	Runpath string
}

// Bytes makes a little-endian 64-bit ELF file with the program header and
// dynamic section that a loader reads.
func (e ELF) Bytes() []byte {
	const ehdr, phdr, shdr = 64, 56, 64
	strs := "\x00"
	str := func(s string) uint64 {
		off := len(strs)
		strs += s + "\x00"
		return uint64(off)
	}
	var dyn []uint64
	for _, n := range e.Needed {
		dyn = append(dyn, uint64(elf.DT_NEEDED), str(n))
	}
	if e.Runpath != "" {
		dyn = append(dyn, uint64(elf.DT_RUNPATH), str(e.Runpath))
	}
	dyn = append(dyn, uint64(elf.DT_NULL), 0)
	interpOff := uint64(ehdr + phdr)
	interp := e.Interp + "\x00"
	dynOff := (interpOff + uint64(len(interp)) + 7) &^ 7
	strOff := dynOff + uint64(len(dyn))*8
	shOff := (strOff + uint64(len(strs)) + 7) &^ 7

	var b bytes.Buffer
	le := func(v any) { _ = binary.Write(&b, binary.LittleEndian, v) }
	pad := func(to uint64) { b.WriteString(strings.Repeat("\x00", int(to)-b.Len())) }
	h := elf.Header64{Type: uint16(elf.ET_DYN), Machine: uint16(e.Machine), Version: 1, Phoff: ehdr, Shoff: shOff,
		Ehsize: ehdr, Phentsize: phdr, Phnum: 1, Shentsize: shdr, Shnum: 4, Shstrndx: 3}
	copy(h.Ident[:], elf.ELFMAG)
	h.Ident[elf.EI_CLASS], h.Ident[elf.EI_DATA], h.Ident[elf.EI_VERSION] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), 1
	le(h)
	typ := elf.PT_NULL
	if e.Interp != "" {
		typ = elf.PT_INTERP
	}
	le(elf.Prog64{Type: uint32(typ), Off: interpOff, Filesz: uint64(len(interp)), Memsz: uint64(len(interp))})
	b.WriteString(interp)
	pad(dynOff)
	le(dyn)
	b.WriteString(strs)
	pad(shOff)
	le(elf.Section64{})
	le(elf.Section64{Type: uint32(elf.SHT_DYNAMIC), Off: dynOff, Size: uint64(len(dyn)) * 8, Link: 2, Entsize: 16})
	le(elf.Section64{Type: uint32(elf.SHT_STRTAB), Off: strOff, Size: uint64(len(strs))})
	le(elf.Section64{Type: uint32(elf.SHT_STRTAB), Off: strOff, Size: 1})
	return b.Bytes()
}
