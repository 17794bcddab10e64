package vm

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func good() Config {
	return Config{
		Name: "t", Arch: ArchAMD64, CPUs: 2, MemoryBytes: 256 << 20, Kernel: "/k",
		KernelArgs: []string{"quiet", "root=/dev/vda"},
		Disks:      []Disk{{Path: "/d", Serial: "root"}},
	}
}

func TestValidateNamesTheFault(t *testing.T) {
	if err := good().Validate(); err != nil {
		t.Fatalf("a good configuration was refused: %v", err)
	}
	for name, c := range map[string]struct {
		change func(*Config)
		say    string
	}{
		"no name":          {func(c *Config) { c.Name = "" }, "name"},
		"name with comma":  {func(c *Config) { c.Name = "a,b" }, "name"},
		"other arch":       {func(c *Config) { c.Arch = "riscv64" }, "riscv64"},
		"no cpu":           {func(c *Config) { c.CPUs = 0 }, "0 CPUs"},
		"many cpus":        {func(c *Config) { c.CPUs = MaxCPUs + 1 }, "65 CPUs"},
		"little memory":    {func(c *Config) { c.MemoryBytes = MinMemoryBytes - 1<<20 }, "at least 128 MiB"},
		"odd memory":       {func(c *Config) { c.MemoryBytes++ }, "multiple of 1 MiB"},
		"no kernel":        {func(c *Config) { c.Kernel = "" }, "kernel"},
		"arg with space":   {func(c *Config) { c.KernelArgs = []string{"a b"} }, "kernel argument"},
		"arg with newline": {func(c *Config) { c.KernelArgs = []string{"a\nb"} }, "kernel argument"},
		"empty arg":        {func(c *Config) { c.KernelArgs = []string{""} }, "kernel argument"},
		"long args":        {func(c *Config) { c.KernelArgs = []string{strings.Repeat("x", 2048)} }, "command line"},
		"disk w/o path":    {func(c *Config) { c.Disks[0].Path = "" }, "no path"},
		"serial too long":  {func(c *Config) { c.Disks[0].Serial = strings.Repeat("s", 21) }, "serial"},
		"serial comma":     {func(c *Config) { c.Disks[0].Serial = "a,b" }, "serial"},
		"serial twice":     {func(c *Config) { c.Disks = append(c.Disks, c.Disks[0]) }, "two disks"},
		"many disks":       {func(c *Config) { c.Disks = make([]Disk, MaxDisks+1) }, "17 disks"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := good()
			c.change(&cfg)
			err := cfg.Validate()
			if !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), c.say) {
				t.Errorf("got %v, want ErrConfig that says %q", err, c.say)
			}
		})
	}
}

func TestCheckKernel(t *testing.T) {
	image := make([]byte, 4096)
	copy(image[56:], "ARM\x64")
	bz := make([]byte, 4096)
	bz[0x1fe], bz[0x1ff] = 0x55, 0xaa
	copy(bz[0x202:], "HdrS")
	for name, c := range map[string]struct {
		data []byte
		arch string
		say  string // "" when it is right
	}{
		"arm64":           {image, ArchARM64, ""},
		"amd64":           {bz, ArchAMD64, ""},
		"gzip":            {append([]byte{0x1f, 0x8b}, image...), ArchARM64, "gunzip"},
		"gzip on amd64":   {append([]byte{0x1f, 0x8b}, bz...), ArchAMD64, "gunzip"},
		"arm64 on amd64":  {image, ArchAMD64, "is for arm64"},
		"amd64 on arm64":  {bz, ArchARM64, "is for amd64"},
		"rubbish":         {[]byte("hello"), ArchAMD64, "not an x86 bzImage"},
		"rubbish, arm64":  {[]byte("hello"), ArchARM64, "not an uncompressed arm64 Image"},
		"empty":           {nil, ArchARM64, "not an uncompressed arm64 Image"},
		"cut in header":   {bz[:0x204], ArchAMD64, "not an x86 bzImage"},
		"cut before flag": {image[:58], ArchARM64, "not an uncompressed arm64 Image"},
	} {
		t.Run(name, func(t *testing.T) {
			p := filepath.Join(t.TempDir(), "kernel")
			if err := os.WriteFile(p, c.data, 0o644); err != nil {
				t.Fatal(err)
			}
			err := CheckKernel(p, c.arch)
			if c.say == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), c.say) {
				t.Errorf("got %v, want ErrConfig that says %q", err, c.say)
			}
		})
	}
	if err := CheckKernel(filepath.Join(t.TempDir(), "none"), ArchAMD64); !errors.Is(err, os.ErrNotExist) || !errors.Is(err, ErrConfig) {
		t.Errorf("missing kernel: %v", err)
	}
}

func TestEndErrorMatchesItsCause(t *testing.T) {
	var err error = &EndError{Cause: ErrVMM, Detail: "exit status 1"}
	if !errors.Is(err, ErrVMM) || errors.Is(err, ErrKilled) {
		t.Errorf("%v matches the wrong cause", err)
	}
	if want := ErrVMM.Error() + ": exit status 1"; err.Error() != want {
		t.Errorf("got %q, want %q", err, want)
	}
}
