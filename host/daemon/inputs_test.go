package daemon

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pybox/pybox/guest/bundle"
	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/daemon/daemontest"
	"github.com/pybox/pybox/host/images"
	"github.com/pybox/pybox/vm"
)

// TestStatusNamesEveryInput: whatever digest a manifest has, the status has too, and so
// it has the words of the command line.
func TestStatusNamesEveryInput(t *testing.T) {
	dir := t.TempDir()
	m := daemontest.NewBundle(t, dir).Manifest
	initramfs := m.Kernel.File
	initramfs.File = "initramfs"
	m.Initramfs = &initramfs
	if err := os.Link(filepath.Join(dir, m.Kernel.File.File), filepath.Join(dir, initramfs.File)); err != nil {
		t.Fatal(err)
	}
	m.Kernel.ConfigSHA256, m.InitSHA256 = strings.Repeat("c", 64), strings.Repeat("d", 64)
	raw, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, bundle.ManifestName), raw, 0o644); err != nil {
		t.Fatal(err)
	}
	b, err := bundle.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	v := vmInfo(b, vm.Config{Arch: m.Arch}, new(images.Attachment))
	status, err := json.Marshal(api.Status{VM: &v})
	if err != nil {
		t.Fatal(err)
	}
	digests := regexp.MustCompile(`"[0-9a-f]{64}"`).FindAllString(string(raw), -1)
	if len(digests) != 8 {
		t.Fatalf("the manifest of this test has %d digests: is there a new one?\n%s", len(digests), raw)
	}
	for _, d := range append(digests, `"`+b.ID()+`"`) {
		if !strings.Contains(string(status), d) {
			t.Errorf("%s of the manifest is not in the status:\n%s\n%s", d, raw, status)
		}
	}
	doc, err := os.ReadFile("../../docs/vm-image.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range regexp.MustCompile(`"(bundle|kernel_args|\w+_sha256|(?:kernel|agent)_version)":`).FindAllStringSubmatch(string(status), -1) {
		if !strings.Contains(string(doc), "`"+key[1]+"`") {
			t.Errorf("docs/vm-image.md does not tell of %s", key[1])
		}
	}
	// The kernel and this test's initramfs have one content.
	if v.InitramfsSHA256 != initramfs.SHA256 || v.KernelVersion != m.Kernel.Version || v.AgentVersion != m.Agent.Version || !slices.Equal(v.KernelArgs, m.KernelArgs) {
		t.Errorf("%+v", v)
	}
}
