package bundle

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Schema names the manifest's format. A reader refuses any other.
const Schema = "pybox.bundle/v1"

// ManifestName is the manifest's file name in a bundle.
const ManifestName = "manifest.json"

// Names that the builder gives to the other files of a bundle. A reader goes by the
// manifest.
const (
	KernelName    = "kernel"
	InitramfsName = "initramfs"
	RootName      = "root.erofs"
	// ImageSuffix ends the names of images.
	ImageSuffix = ".erofs"
)

// Kinds of kernels.
const (
	KernelOwn         = "own"          // PyBox's configuration
	KernelCustom      = "custom"       // a person's: another configuration, or a file of unknown making
	KernelDebianCloud = "debian-cloud" // Debian's ready-made cloud kernel
)

// Bounds of a manifest.
const (
	maxManifestBytes = 1 << 20
	maxImages        = 14 // vm.MaxDisks less the root and one to spare
	maxFileBytes     = 16 << 30
	maxNameBytes     = 64
	maxTextBytes     = 128
	maxKernelArgs    = 64
	maxArgBytes      = 256
	serialPrefix     = "img-"
	serialHex        = 16
)

// ErrManifest marks a manifest that is malformed or breaks a rule of its
// format.
var ErrManifest = errors.New("invalid bundle manifest")

func manifestErr(format string, a ...any) error {
	return fmt.Errorf("%w: %s", ErrManifest, fmt.Sprintf(format, a...))
}

func errSchema(got string) error {
	return manifestErr("its schema is %.40q and this PyBox reads %q; take the pybox that it was made for, or a bundle made for this one", got, Schema)
}

// Manifest says what a bundle holds.
type Manifest struct {
	Schema string `json:"schema"`
	// Arch is the guest's architecture: "amd64" or "arm64".
	Arch   string `json:"arch"`
	Kernel Kernel `json:"kernel"`
	// Initramfs is only there where the kernel needs one.
	Initramfs *File   `json:"initramfs,omitempty"`
	Root      File    `json:"root"`
	Images    []Image `json:"images"`
	// KernelArgs is the command line without "console=", which the VM's
	// driver adds.
	KernelArgs []string `json:"kernel_args"`
	Agent      Agent    `json:"agent"`
	// InitSHA256 is the digest of PID 1's program, "" where that is not known.
	InitSHA256 string `json:"init_sha256,omitempty"`
	// LockSHA256 is the digest of the lock file that the bundle was made from.
	LockSHA256 string `json:"lock_sha256"`
}

// File is a file in the bundle's folder.
type File struct {
	File   string `json:"file"` // a plain name
	SHA256 string `json:"sha256"`
	Bytes  int64  `json:"bytes"`
}

// Kernel is what the VM boots.
type Kernel struct {
	File
	Kind    string `json:"kind"`
	Version string `json:"version"`
	// ConfigSHA256 is the digest of the configuration that it was built with, ""
	// where that is not known.
	ConfigSHA256 string `json:"config_sha256,omitempty"`
}

// Image is the read-only file system of boxes.
type Image struct {
	Name string `json:"name"`
	File
	// Serial is the disk's serial number in the VM: "img-" and the first 16
	// digits of its SHA-256.
	Serial string `json:"serial"`
}

// Agent is the program in the root that the host talks to.
type Agent struct {
	Version         string `json:"version"`
	SHA256          string `json:"sha256"`
	ProtocolVersion uint32 `json:"protocol_version"`
}

// ImageSerial is the serial number that belongs to an image's digest.
func ImageSerial(sha256 string) string {
	return serialPrefix + sha256[:min(serialHex, len(sha256))]
}

// ParseManifest parses and validates a manifest's bytes. Errors match
// ErrManifest.
func ParseManifest(b []byte) (*Manifest, error) {
	if len(b) > maxManifestBytes {
		return nil, manifestErr("longer than %d bytes", maxManifestBytes)
	}
	// The schema comes first: another one may have any keys.
	var head struct {
		Schema string `json:"schema"`
	}
	if err := json.Unmarshal(b, &head); err == nil && head.Schema != Schema {
		return nil, errSchema(head.Schema)
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	var m Manifest
	if err := d.Decode(&m); err != nil {
		return nil, manifestErr("%v", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, manifestErr("there is something after its end")
	}
	return &m, m.Validate()
}

// Encode returns the manifest's bytes, the same for equal manifests.
func (m *Manifest) Encode() ([]byte, error) {
	if err := m.Validate(); err != nil {
		return nil, err
	}
	if m.Images == nil {
		m.Images = []Image{}
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(m); err != nil {
		return nil, fmt.Errorf("encode bundle manifest: %w", err)
	}
	return b.Bytes(), nil
}

// Files lists every file that the manifest names, kernel first.
func (m *Manifest) Files() []File {
	files := []File{m.Kernel.File, m.Root}
	if m.Initramfs != nil {
		files = append(files, *m.Initramfs)
	}
	for _, i := range m.Images {
		files = append(files, i.File)
	}
	return files
}

// size is the sum of all files' bytes.
func (m *Manifest) size() (n int64) {
	for _, f := range m.Files() {
		n += f.Bytes
	}
	return n
}

// Validate reports the first rule that m breaks, as an ErrManifest.
func (m *Manifest) Validate() error {
	switch {
	case m.Schema != Schema:
		return errSchema(m.Schema)
	case m.Arch != "amd64" && m.Arch != "arm64":
		return manifestErr("architecture %.40q", m.Arch)
	case !slices.Contains([]string{KernelOwn, KernelCustom, KernelDebianCloud}, m.Kernel.Kind):
		return manifestErr("kernel kind %.40q", m.Kernel.Kind)
	case !isText(m.Kernel.Version):
		return manifestErr("kernel version %.40q", m.Kernel.Version)
	case m.Kernel.ConfigSHA256 != "" && !isSHA256(m.Kernel.ConfigSHA256):
		return manifestErr("digest of the kernel's configuration %.80q", m.Kernel.ConfigSHA256)
	case m.InitSHA256 != "" && !isSHA256(m.InitSHA256):
		return manifestErr("digest of PID 1's program %.80q", m.InitSHA256)
	case !isText(m.Agent.Version) || !isSHA256(m.Agent.SHA256) || m.Agent.ProtocolVersion == 0:
		return manifestErr("agent %.40q is incomplete", m.Agent.Version)
	case !isSHA256(m.LockSHA256):
		return manifestErr("lock digest %.80q", m.LockSHA256)
	case len(m.Images) > maxImages:
		return manifestErr("%d images, at most %d", len(m.Images), maxImages)
	}
	if err := m.validateArgs(); err != nil {
		return err
	}
	return m.validateFiles()
}

func (m *Manifest) validateArgs() error {
	if len(m.KernelArgs) > maxKernelArgs {
		return manifestErr("%d kernel arguments", len(m.KernelArgs))
	}
	for _, a := range m.KernelArgs {
		if a == "" || len(a) > maxArgBytes || strings.ContainsFunc(a, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return manifestErr("kernel argument %.80q", a)
		}
		if strings.HasPrefix(a, "console=") {
			return manifestErr("kernel argument %.80q: the VM's driver adds the console", a)
		}
	}
	return nil
}

func (m *Manifest) validateFiles() error {
	names, files := map[string]bool{}, map[string]bool{ManifestName: true}
	for _, f := range m.Files() {
		switch {
		case !isName(f.File):
			return manifestErr("file name %.80q", f.File)
		case files[f.File]:
			return manifestErr("file %q stands twice", f.File)
		case !isSHA256(f.SHA256):
			return manifestErr("file %q: SHA-256 %.80q", f.File, f.SHA256)
		case f.Bytes <= 0 || f.Bytes > maxFileBytes:
			return manifestErr("file %q: %d bytes", f.File, f.Bytes)
		}
		files[f.File] = true
	}
	for _, i := range m.Images {
		if !isName(i.Name) || names[i.Name] {
			return manifestErr("image name %.80q is bad or stands twice", i.Name)
		}
		names[i.Name] = true
		if i.Serial != ImageSerial(i.SHA256) {
			return manifestErr("image %q: serial %.40q does not belong to its digest", i.Name, i.Serial)
		}
	}
	return nil
}

// isName holds for plain file names: no separator, no leading dot, no
// character that a shell or terminal treats specially.
func isName(s string) bool {
	if s == "" || len(s) > maxNameBytes || s[0] == '.' || s[0] == '-' {
		return false
	}
	for i := range len(s) {
		b := s[i]
		if !(b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || b == '.' || b == '-' || b == '_') {
			return false
		}
	}
	return true
}

func isText(s string) bool {
	return s != "" && len(s) <= maxTextBytes && !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' })
}

func isSHA256(s string) bool {
	if len(s) != 64 {
		return false
	}
	for i := range len(s) {
		if b := s[i]; !(b >= '0' && b <= '9' || b >= 'a' && b <= 'f') {
			return false
		}
	}
	return true
}
