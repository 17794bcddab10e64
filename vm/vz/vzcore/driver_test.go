package vzcore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pybox/pybox/vm"
)

// TestSpec names every device of a machine. A network card, a shared folder or a
// display would be one more than it allows.
func TestSpec(t *testing.T) {
	c := testConfig(t)
	c.Initramfs = writeFile(t, "initramfs", []byte("x"))
	got, err := newSpec(c, aMac().limits)
	if err != nil {
		t.Fatal(err)
	}
	want := Spec{
		CPUs: 2, MemoryBytes: 256 << 20, Kernel: c.Kernel, Initramfs: c.Initramfs,
		CommandLine: "console=hvc0 quiet panic=-1",
		Devices: []Device{
			{Kind: DeviceSerial}, {Kind: DeviceEntropy}, {Kind: DeviceBalloon}, {Kind: DeviceSocket},
			{Kind: DeviceDisk, Path: c.Disks[0].Path, Identifier: "root"},
			{Kind: DeviceDisk, Path: c.Disks[1].Path, Identifier: "img-0123456789abcdef"},
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestSpecMakesPathsAbsolute(t *testing.T) {
	c := testConfig(t)
	t.Chdir(filepath.Dir(c.Kernel))
	c.Kernel = filepath.Base(c.Kernel)
	got, err := newSpec(c, aMac().limits)
	if err != nil || !filepath.IsAbs(got.Kernel) {
		t.Errorf("got %q, %v", got.Kernel, err)
	}
}

func TestSpecRefuses(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "none")
	for name, c := range map[string]struct {
		change func(*testing.T, *vm.Config)
		say    string
	}{
		"too many CPUs":      {func(_ *testing.T, c *vm.Config) { c.CPUs = 9 }, "takes 1 to 8"},
		"too much memory":    {func(_ *testing.T, c *vm.Config) { c.MemoryBytes = 17 << 30 }, "takes 4 to 16384 MiB"},
		"no kernel file":     {func(_ *testing.T, c *vm.Config) { c.Kernel = missing }, "no such file"},
		"no initramfs file":  {func(_ *testing.T, c *vm.Config) { c.Initramfs = missing }, "no such file"},
		"no disk file":       {func(_ *testing.T, c *vm.Config) { c.Disks[0].Path = missing }, "no such file"},
		"disk is a folder":   {func(t *testing.T, c *vm.Config) { c.Disks[0].Path = t.TempDir() }, "not a regular file"},
		"empty disk":         {func(t *testing.T, c *vm.Config) { c.Disks[0].Path = writeFile(t, "d", nil) }, "has 0 bytes"},
		"disk with a rest":   {func(t *testing.T, c *vm.Config) { c.Disks[0].Path = writeFile(t, "d", make([]byte, 513)) }, "multiple of 512"},
		"path that is bytes": {func(_ *testing.T, c *vm.Config) { c.Disks[0].Path = "/tmp/\xff" }, "not valid UTF-8"},
		"path with a zero":   {func(_ *testing.T, c *vm.Config) { c.Initramfs = "/tmp/a\x00b" }, "not valid UTF-8"},
		"disk is a FIFO": {func(t *testing.T, c *vm.Config) {
			c.Disks[0].Path = filepath.Join(t.TempDir(), "fifo")
			if err := syscall.Mkfifo(c.Disks[0].Path, 0o644); err != nil {
				t.Fatal(err)
			}
		}, "not a regular file"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := testConfig(t)
			c.change(t, &cfg)
			_, err := newSpec(cfg, aMac().limits)
			if !errors.Is(err, vm.ErrConfig) {
				t.Fatalf("got %v, want ErrConfig", err)
			}
			oneLine(t, err, c.say)
		})
	}
}

// TestMemoryLimitRoundsUp: the least that a person reads is enough.
func TestMemoryLimitRoundsUp(t *testing.T) {
	c, l := testConfig(t), aMac().limits
	c.MemoryBytes, l.MinMemoryBytes = 256<<20, 256<<20+1
	_, err := newSpec(c, l)
	if !errors.Is(err, vm.ErrConfig) {
		t.Fatalf("got %v, want ErrConfig", err)
	}
	oneLine(t, err, "takes 257 to 16384 MiB")
	c.MemoryBytes = 257 << 20
	if _, err := newSpec(c, l); err != nil {
		t.Errorf("what it says it takes: %v", err)
	}
}

func TestStartRefusesBeforeItAsksTheFramework(t *testing.T) {
	for name, c := range map[string]struct {
		mac    func(*scripted)
		change func(*testing.T, *vm.Config)
		accel  string
		want   error
		say    string
	}{
		"old macOS":            {mac: func(f *scripted) { f.host.MacOS = "12.7.6" }, want: vm.ErrHost, say: "update to macOS 13"},
		"macOS without number": {mac: func(f *scripted) { f.host.MacOS = "Sequoia" }, want: vm.ErrHost, say: "sw_vers"},
		"Rosetta":              {mac: func(f *scripted) { f.host.Translated = true }, want: vm.ErrHost, say: "Rosetta"},
		"no virtualization":    {mac: func(f *scripted) { f.host.Hypervisor = false }, want: vm.ErrHost, say: "another Mac"},
		"in a virtual machine": {mac: func(f *scripted) { f.host.Hypervisor, f.host.Virtual = false, true }, want: vm.ErrHost, say: "nested"},
		"a foreign guest": {change: func(_ *testing.T, c *vm.Config) {
			c.Arch = map[string]string{vm.ArchAMD64: vm.ArchARM64, vm.ArchARM64: vm.ArchAMD64}[runtime.GOARCH]
		}, want: vm.ErrConfig, say: "use a bundle built for " + runtime.GOARCH},
		"a compressed kernel": {change: func(t *testing.T, c *vm.Config) { c.Kernel = writeFile(t, "k", []byte{0x1f, 0x8b, 8, 0}) },
			want: vm.ErrConfig, say: "gunzip"},
		"QEMU's acceleration": {accel: "kvm", want: vm.ErrConfig, say: `accel in [vm] of config.toml at "auto"`},
	} {
		t.Run(name, func(t *testing.T) {
			fw := aMac()
			fw.make = func(Spec, SerialPort) (VirtualMachine, error) {
				t.Error("a machine was made")
				return nil, errors.New("no")
			}
			cfg := testConfig(t)
			if c.mac != nil {
				c.mac(fw)
			}
			if c.change != nil {
				c.change(t, &cfg)
			}
			m, err := New(fw, Options{Accel: c.accel}).Start(t.Context(), cfg)
			if m != nil || !errors.Is(err, c.want) {
				t.Fatalf("got %v, %v; want no machine and %v", m, err, c.want)
			}
			oneLine(t, err, c.say)
		})
	}
}

// Texts of the framework as others have met them.
const (
	textNoEntitlement = "Invalid virtual machine configuration. The process doesn’t have the “com.apple.security.virtualization” entitlement."
	textNoHardware    = "Invalid virtual machine configuration. Virtualization is not available on this hardware."
	textNotStarted    = "Internal Virtualization error. The virtual machine failed to start."
	textNoImage       = "Invalid disk image. The disk image format is not recognized."
)

func TestExplain(t *testing.T) {
	h := Host{MacOS: "15.1", Hypervisor: true, Executable: "/Applications/My Tools/pybox"}
	virtual := h
	virtual.Virtual = true
	for name, c := range map[string]struct {
		err  error
		host Host
		want error
		say  []string
	}{
		"entitlement": {&Error{DomainVZ, CodeInvalidConfiguration, textNoEntitlement, ""}, h, vm.ErrHost,
			[]string{"not signed with the entitlement", "codesign --force --sign -", `'/Applications/My Tools/pybox'`, Entitlement}},
		"entitlement, in another language": {&Error{DomainVZ, CodeInvalidConfiguration, "Ungültig.", "NSLocalizedFailureReason = \"… com.apple.security.virtualization …\""},
			h, vm.ErrHost, []string{"codesign --force"}},
		"entitlement, by name alone": {&Error{DomainVZ, CodeInternal, "Started without " + Entitlement + ".", Entitlement}, h, vm.ErrHost,
			[]string{"the framework gives no reason"}},
		"hardware":              {&Error{DomainVZ, CodeInvalidConfiguration, textNoHardware, ""}, h, vm.ErrHost, []string{"cannot run virtual machines"}},
		"hardware, nested":      {&Error{DomainVZ, CodeInvalidConfiguration, textNoHardware, ""}, virtual, vm.ErrHost, []string{"nested", "M3"}},
		"another configuration": {&Error{DomainVZ, CodeInvalidConfiguration, "Invalid.\nToo many ports.", ""}, h, vm.ErrConfig, []string{"Invalid. Too many ports. (VZErrorDomain 2)"}},
		"internal":              {&Error{DomainVZ, CodeInternal, textNotStarted, ""}, h, vm.ErrHost, []string{textNotStarted, "DiagnosticReports"}},
		"disk image":            {fmt.Errorf("the device disk /x: %w", &Error{DomainVZ, CodeInvalidDiskImage, textNoImage, ""}), h, vm.ErrConfig, []string{"disk /x", "damaged"}},
		"limit":                 {&Error{DomainVZ, CodeLimitExceeded, "", ""}, h, vm.ErrHost, []string{"stop another one"}},
		"disk space":            {&Error{DomainVZ, CodeOutOfDiskSpace, "", ""}, h, vm.ErrHost, []string{"free some disk space"}},
		"not supported":         {&Error{DomainVZ, CodeNotSupported, "", ""}, h, vm.ErrHost, []string{"update macOS"}},
		"privacy, EPERM":        {&Error{DomainPOSIX, 1, "Operation not permitted", ""}, h, vm.ErrHost, []string{"Files and Folders"}},
		"privacy, EACCES":       {&Error{DomainPOSIX, 13, "Permission denied", ""}, h, vm.ErrHost, []string{"Files and Folders"}},
		"unknown":               {&Error{"NSCocoaErrorDomain", 260, "", ""}, h, vm.ErrHost, []string{"no description (NSCocoaErrorDomain 260)"}},
		"not the framework's":   {os.ErrNotExist, h, vm.ErrHost, []string{"not exist"}},
	} {
		t.Run(name, func(t *testing.T) {
			fw := aMac()
			fw.host = c.host
			fw.validate = func(Spec) error { return c.err }
			m, err := testDriver(t, fw, quick).Start(t.Context(), testConfig(t))
			if m != nil || !errors.Is(err, c.want) {
				t.Fatalf("got %v, %v; want no machine and %v", m, err, c.want)
			}
			oneLine(t, err, c.say...)
		})
	}
}

// FuzzExplain: whatever the framework says becomes one line of bounded length that
// is about the host or the configuration.
func FuzzExplain(f *testing.F) {
	for code := range 12 {
		f.Add(DomainVZ, code, textNotStarted, "", "15.1", false, "/bin/pybox")
	}
	f.Add(DomainVZ, CodeInvalidConfiguration, textNoEntitlement, "", "26.0", false, "/a b/'c'")
	f.Add(DomainVZ, CodeInvalidConfiguration, textNoHardware, "", "13", true, "")
	f.Add(DomainPOSIX, 13, "a\nb\r\n\x00", strings.Repeat("x", 5000), "", false, "/x")
	f.Fuzz(func(t *testing.T, domain string, code int, text, info, macOS string, virtual bool, exe string) {
		if len(domain) > 100 || len(exe) > 1000 || strings.ContainsAny(domain+exe, "\r\n") {
			return // Apple's and the system's own
		}
		h := Host{MacOS: macOS, Hypervisor: true, Virtual: virtual, Executable: exe}
		err := explain(&Error{domain, code, text, info}, h)
		if errors.Is(err, vm.ErrHost) == errors.Is(err, vm.ErrConfig) {
			t.Errorf("%v is of no kind, or of both", err)
		}
		if s := err.Error(); strings.ContainsAny(s, "\r\n") || len(s) > 8000 {
			t.Errorf("%d bytes: %q", len(s), s)
		}
		if flt := macOSFault(h); flt == nil {
			var major int
			if _, err := fmt.Sscanf(macOS, "%d", &major); err != nil || major < minMacOS {
				t.Errorf("macOS %q was taken (%v)", macOS, err)
			}
		}
	})
}

func TestCheck(t *testing.T) {
	entitled := func(s Spec) error {
		if s.Kernel != os.Args[0] || s.MemoryBytes < vm.MinMemoryBytes || s.CPUs < 1 {
			return fmt.Errorf("unexpected machine %+v", s)
		}
		return nil
	}
	refusing := func(text string) func(Spec) error {
		return func(Spec) error { return &Error{DomainVZ, CodeInvalidConfiguration, text, ""} }
	}
	for name, c := range map[string]struct {
		change func(*scripted)
		failed string // the one row that is not met
		fix    string
	}{
		"all well":       {func(*scripted) {}, "", ""},
		"old macOS":      {func(f *scripted) { f.host.MacOS = "11.6" }, "vz.macos", "Software Update"},
		"Rosetta":        {func(f *scripted) { f.host.Translated = true }, "vz.translated", "Apple Silicon"},
		"no hypervisor":  {func(f *scripted) { f.host.Hypervisor = false }, "vz.hardware", "another Mac"},
		"no entitlement": {func(f *scripted) { f.validate = refusing(textNoEntitlement) }, "vz.entitlement", "codesign --force"},
		"nested":         {func(f *scripted) { f.host.Virtual = true; f.validate = refusing(textNoHardware) }, "vz.entitlement", "on the Mac itself"},
		"something else": {func(f *scripted) { f.validate = refusing("no") }, "vz.entitlement", "Console.app"},
		"no program":     {func(f *scripted) { f.host.Executable = "/nonexistent/pybox" }, "vz.entitlement", "full path"},
		"no answer":      {func(f *scripted) { f.validate = func(Spec) error { select {} } }, "vz.entitlement", ""},
	} {
		t.Run(name, func(t *testing.T) {
			fw := aMac()
			fw.validate = entitled
			c.change(fw)
			ctx := short(t, waitBound)
			if name == "no answer" {
				ctx = short(t, 20*time.Millisecond)
			}
			var ids []string
			for _, f := range New(fw, Options{}).Check(ctx) {
				ids = append(ids, f.ID)
				if f.Unknown != (name == "no answer" && f.ID == c.failed) {
					t.Errorf("row %+v: want unknown what was not answered, and that alone", f)
				}
				if f.Observed == "" || (f.OK || f.Unknown) == (f.Fix != "") || f.Advice {
					t.Errorf("row %+v: want an observation, and a fix when it is not met", f)
				}
				if f.OK == (f.ID == c.failed) {
					t.Errorf("row %+v: unexpected verdict", f)
				}
				if f.ID == c.failed && !strings.Contains(f.Fix, c.fix) {
					t.Errorf("row %+v: the fix does not say %q", f, c.fix)
				}
			}
			if want := []string{"vz.macos", "vz.translated", "vz.hardware", "vz.entitlement"}; !reflect.DeepEqual(ids, want) {
				t.Errorf("rows %v, want %v", ids, want)
			}
		})
	}
}

// silent is a Mac that does not even tell its version.
type silent struct{ *scripted }

func (silent) Host() (Host, error) { return Host{}, errors.New("sysctl: denied") }

func TestMacThatSaysNothing(t *testing.T) {
	d := New(silent{aMac()}, Options{})
	if _, err := d.Start(t.Context(), testConfig(t)); !errors.Is(err, vm.ErrHost) || !strings.Contains(err.Error(), "denied") {
		t.Errorf("Start: got %v, want ErrHost", err)
	}
	if got := d.Check(t.Context()); len(got) != 1 || got[0].OK || got[0].Fix == "" {
		t.Errorf("Check: got %+v, want one row that is not met", got)
	}
}

func TestShellQuote(t *testing.T) {
	for in, want := range map[string]string{
		"/usr/local/bin/pybox": "/usr/local/bin/pybox",
		"/a b":                 "'/a b'",
		"/it's":                `'/it'\''s'`,
		"/$(reboot)":           "'/$(reboot)'",
		"":                     "''",
	} {
		if got := shellQuote(in); got != want {
			t.Errorf("%q: got %s, want %s", in, got, want)
		}
	}
}

func TestFacts(t *testing.T) {
	m := startPuppet(t, newPuppet(), quick)
	f := m.Facts()
	if f.Driver != "vz" || f.VMM != "Virtualization.framework, macOS 15.1" || f.Acceleration != "vz" || f.PID != 0 || f.Started.IsZero() {
		t.Errorf("got %+v", f)
	}
}

// TestCancelledStart makes no machine.
func TestCancelledStart(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if m, err := New(aMac(), Options{}).Start(ctx, testConfig(t)); m != nil || !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, %v", m, err)
	}
}
