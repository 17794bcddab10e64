package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pybox/pybox/guest/bundle"
)

// TestBuiltKernel: a folder of mkkernel's says by itself what is in it.
func TestBuiltKernel(t *testing.T) {
	e := newEnv(t)
	dir := t.TempDir()
	image, err := os.ReadFile(e.kernel)
	if err != nil {
		t.Fatal(err)
	}
	sum := func(b []byte) string { s := sha256.Sum256(b); return hex.EncodeToString(s[:]) }
	config := []byte("CONFIG_A=y\n")
	meta := func(schema, arch string, changes ...string) []byte {
		return fmt.Appendf(nil, `{"changes": [%s], "schema": %q, "arch": %q, "version": "6.12.1-mine", "config_sha256": %q, "kernel_sha256": %q}`, strings.Join(changes, ","), schema, arch, sum(config), sum(image))
	}
	e.write(filepath.Join(dir, "kernel"), image)
	e.write(filepath.Join(dir, "config"), config)
	e.write(filepath.Join(dir, "meta.json"), meta("pybox.kernel/v1", "amd64"))
	args := func(kernel string, more ...string) []string {
		return append([]string{"build", "--arch", "amd64", "--kernel", kernel, "--init", e.agent, "--agent", e.agent, "--agent-version", "0.1",
			"--lock", e.lock, "--mirror", e.mirror, "--images", "", "--out", filepath.Join(e.t.TempDir(), "b")}, more...)
	}
	built := func(args []string) bundle.Kernel {
		t.Helper()
		e.run(0, args...)
		b, err := bundle.Open(args[len(args)-1])
		if err != nil {
			t.Fatal(err)
		}
		return b.Manifest.Kernel
	}
	if k := built(args(dir)); k.Version != "6.12.1-mine" || k.ConfigSHA256 != sum(config) || k.SHA256 != sum(image) || k.Kind != bundle.KernelOwn {
		t.Errorf("%+v", k)
	}
	e.write(filepath.Join(dir, "meta.json"), meta("pybox.kernel/v1", "amd64", `"CONFIG_A=y"`))
	if k := built(args(dir)); k.Kind != bundle.KernelCustom || k.ConfigSHA256 != sum(config) {
		t.Errorf("with another configuration: %+v", k)
	}
	if k := built(append([]string{"build", "--kernel-version", "6.12.1"}, args(e.kernel)[1:]...)); k.Kind != bundle.KernelCustom || k.ConfigSHA256 != "" {
		t.Errorf("of unknown making: %+v", k)
	}
	refuse := func(code int, says string, args []string) {
		t.Helper()
		if _, errs := e.run(code, args...); !strings.Contains(errs, says) {
			t.Errorf("want %q in %s", says, errs)
		}
	}
	refuse(2, "meta.json", args(dir, "--kernel-version", "6.12.1"))
	refuse(2, "--kernel-version is missing", args(e.kernel))
	refuse(1, "no folder that mkkernel made", args(t.TempDir()))
	e.write(filepath.Join(dir, "meta.json"), meta("pybox.kernel/v1", "arm64"))
	refuse(2, `is for "arm64"`, args(dir))
	e.write(filepath.Join(dir, "meta.json"), meta("pybox.kernel/v2", "amd64"))
	refuse(1, "schema", args(dir))
	e.write(filepath.Join(dir, "meta.json"), []byte("{"))
	refuse(1, "meta.json", args(dir))
	e.write(filepath.Join(dir, "meta.json"), meta("pybox.kernel/v1", "amd64"))
	e.write(filepath.Join(dir, "kernel"), append(image, 'x'))
	refuse(1, "damaged", args(dir))
}
