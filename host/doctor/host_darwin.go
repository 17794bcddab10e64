package doctor

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// thisHost asks sysctl(3): kern.osproductversion, kern.hv_support
// (Hypervisor.framework), kern.hv_vmm_present and sysctl.proc_translated, which is
// only there on Macs that translate.
func thisHost() (Host, error) {
	version, err := unix.Sysctl("kern.osproductversion")
	if err != nil {
		return Host{}, err
	}
	h := Host{OS: runtime.GOOS, Arch: runtime.GOARCH, Name: "macOS " + version, Version: version}
	if t, err := unix.SysctlUint32("sysctl.proc_translated"); err == nil {
		h.Translated = t == 1
	}
	if g, err := unix.SysctlUint32("kern.hv_vmm_present"); err == nil {
		h.Guest = g == 1
	}
	v, err := unix.SysctlUint32("kern.hv_support")
	if err != nil {
		h.CPU = "this Mac does not say (sysctl kern.hv_support: " + err.Error() + ")"
		return h, nil
	}
	has := v == 1
	h.Virtualization = &has
	h.CPU = "this Mac has it (kern.hv_support is 1)"
	if !has {
		h.CPU = "this Mac, or the VM that it is, does not offer it (kern.hv_support is 0)"
	}
	return h, nil
}
