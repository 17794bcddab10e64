package cloud

import (
	"bytes"
	"debug/elf"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/xi2/xz"

	"github.com/pybox/pybox/guest/initramfs"
)

// Bounds of modules.
const (
	maxDictBytes = 16 << 20 // of the decompressor; kbuild uses 2 MiB
	maxRelations = 256
	maxNameBytes = 64 // MODULE_NAME_LEN of the kernel, roughly
	// maxLoaded bounds the modules of an initial RAM file system, and so the depth
	// of what depends on what.
	maxLoaded = initramfs.MaxModules
)

// signatureMark ends a signed module (MODULE_SIG_STRING, kernel/module/signing.c).
// The guest's kernel takes no others, so they are not even packed.
const signatureMark = "~Module signature appended~\n"

// machines are the ELF machines of the guest's architectures.
var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

// plain returns a module's bytes uncompressed, at most so many. They are not changed
// otherwise: the signature at their end is one over all of them.
func (m module) plain(most int64) ([]byte, error) {
	switch suffix := path.Ext(m.path); suffix {
	case ".xz":
	case ".ko":
		if int64(len(m.data)) > most {
			return nil, kernelErr("%.200q has more than %d bytes", m.path, most)
		}
		return m.data, nil
	default:
		return nil, kernelErr("%.200q is compressed as %s, and this reads xz alone", m.path, suffix)
	}
	z, err := xz.NewReader(bytes.NewReader(m.data), maxDictBytes)
	if err != nil {
		return nil, kernelErr("%.200q: xz: %v", m.path, err)
	}
	b, err := io.ReadAll(io.LimitReader(z, most+1))
	switch {
	case err != nil:
		return nil, kernelErr("%.200q: xz: %v", m.path, err)
	case int64(len(b)) > most:
		return nil, kernelErr("%.200q unpacks to more than %d bytes", m.path, most)
	}
	return b, nil
}

// modinfo is what a module says of itself in the section .modinfo: pairs "tag=value",
// each ended by a zero byte (include/linux/moduleparam.h).
type modinfo struct {
	name, vermagic string
	// depends must be loaded before; before and after are asked for too, but the
	// module does without them (MODULE_SOFTDEP).
	depends, before, after []string
}

// parseModule reads a module's ELF file, whose .modinfo has at most so many bytes.
// Errors match ErrKernel.
func parseModule(b []byte, arch string, most uint64) (*modinfo, error) {
	f, err := elf.NewFile(bytes.NewReader(b))
	if err != nil {
		return nil, kernelErr("no ELF file: %v", err)
	}
	defer f.Close()
	if f.Type != elf.ET_REL || f.Class != elf.ELFCLASS64 || f.Machine != machines[arch] {
		return nil, kernelErr("an ELF file of %v, %v, %v is no module for %s", f.Type, f.Class, f.Machine, arch)
	}
	s := f.Section(".modinfo")
	if s == nil || s.Type != elf.SHT_PROGBITS || s.Flags&elf.SHF_COMPRESSED != 0 {
		return nil, kernelErr("no section .modinfo")
	}
	if s.Size > most {
		return nil, kernelErr("it has %d bytes of .modinfo, more than %d", s.Size, most)
	}
	text, err := s.Data()
	if err != nil {
		return nil, kernelErr(".modinfo: %v", err)
	}
	return parseModinfo(string(text))
}

func parseModinfo(text string) (*modinfo, error) {
	var m modinfo
	for field := range strings.SplitSeq(text, "\x00") {
		tag, value, _ := strings.Cut(field, "=")
		switch tag {
		case "name":
			m.name = value
		case "vermagic":
			m.vermagic = value
		case "depends":
			m.depends = strings.FieldsFunc(value, func(r rune) bool { return r == ',' })
		case "softdep":
			m.soft(value)
		}
	}
	if n := len(m.depends) + len(m.before) + len(m.after); n > maxRelations {
		return nil, kernelErr("it depends on %d modules", n)
	}
	for _, name := range append(m.depends, m.name) {
		if !isModuleName(name) {
			return nil, kernelErr("%.80q is no module's name", name)
		}
	}
	return &m, nil
}

// soft reads "pre: a b post: c" (modprobe.d(5), softdep).
func (m *modinfo) soft(value string) {
	var to *[]string
	for _, word := range strings.Fields(value) {
		switch {
		case word == "pre:":
			to = &m.before
		case word == "post:":
			to = &m.after
		case to != nil:
			*to = append(*to, word)
		}
	}
}

// isModuleName holds for what may become a file name of ours.
func isModuleName(s string) bool {
	if s == "" || len(s) > maxNameBytes {
		return false
	}
	for i := range len(s) {
		b := s[i]
		if !(b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || b == '_' || b == '-') {
			return false
		}
	}
	return true
}

// loadable is a module that goes into the initial RAM file system.
type loadable struct {
	name string
	data []byte
}

// order returns the named modules and all that they depend on, each after its
// dependencies.
func (c *contents) order(arch string, names []string) ([]loadable, error) {
	o := ordering{contents: c, arch: arch, state: map[string]visit{}}
	for _, name := range names {
		if err := o.load(name); err != nil {
			return nil, err
		}
		for len(o.later) > 0 {
			after := o.later
			o.later = nil
			if err := o.loadSoft(after); err != nil {
				return nil, err
			}
		}
	}
	return o.out, nil
}

type visit uint8

const (
	entered visit = iota + 1
	done
)

type ordering struct {
	*contents
	arch  string
	state map[string]visit
	out   []loadable
	// later are wished for after modules that are loaded. They wait until nothing is
	// being loaded any more: they may need what is not yet done.
	later []string
}

// load puts a module into the list, and before it what it needs. Recursion is
// bounded: a chain cannot be longer than maxLoaded.
func (o *ordering) load(name string) error {
	m, there := o.modules[name]
	switch {
	case o.builtin[name] || o.state[name] == done:
		return nil
	case o.state[name] == entered:
		return kernelErr("the module %s depends on itself", name)
	case !there:
		return kernelErr("it has no module %.80q, as a file or built in", name)
	case len(o.state) == maxLoaded:
		return kernelErr("the guest would need more than %d modules", maxLoaded)
	}
	o.state[name] = entered
	b, info, err := o.open(name, m)
	if err != nil {
		return fmt.Errorf("module %s: %w", name, err)
	}
	if err := o.loadSoft(info.before); err != nil {
		return err
	}
	for _, n := range info.depends {
		if err := o.load(moduleName(n)); err != nil {
			return err
		}
	}
	o.state[name] = done
	o.out = append(o.out, loadable{name: name, data: b})
	o.later = append(o.later, info.after...)
	return nil
}

func (o *ordering) open(name string, m module) ([]byte, *modinfo, error) {
	b, err := m.plain(o.most.plain)
	if err != nil {
		return nil, nil, err
	}
	info, err := parseModule(b, o.arch, o.most.modinfo)
	switch {
	case err != nil:
		return nil, nil, err
	case moduleName(info.name) != name:
		return nil, nil, kernelErr("the file says it is %.80q", info.name)
	case !strings.HasPrefix(info.vermagic, o.release+" "):
		return nil, nil, kernelErr("it is for another kernel, %.80q", info.vermagic)
	case !bytes.HasSuffix(b, []byte(signatureMark)):
		return nil, nil, kernelErr("it is not signed")
	}
	return b, info, nil
}

// loadSoft loads what is there by that name. modprobe would also look for aliases
// ("crc32c"), of which the kernel itself has what this guest needs.
func (o *ordering) loadSoft(names []string) error {
	for _, n := range names {
		n = moduleName(n)
		if _, there := o.modules[n]; !there || o.state[n] == entered {
			continue // a circle of wishes is none of needs
		}
		if err := o.load(n); err != nil {
			return err
		}
	}
	return nil
}
