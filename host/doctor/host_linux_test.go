package doctor

import (
	"strings"
	"testing"
)

func TestDistribution(t *testing.T) {
	for text, want := range map[string]string{
		"NAME=x\nPRETTY_NAME=\"Debian GNU/Linux 12\"\n": "Debian GNU/Linux 12", "PRETTY_NAME='A'": "A", "PRETTY_NAME=B": "B", "": "", "NAME=C": "",
	} {
		if got := distribution(text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

func TestCPUVirtualization(t *testing.T) {
	for text, want := range map[string]string{
		"processor\t: 0\nflags\t\t: fpu vmx\n": "VT-x", "flags : svm": "AMD-V", "flags : fpu hypervisor": "does not offer", "Features : fp asimd": "does not say", "": "does not say",
	} {
		h := Host{Arch: "a"}
		cpuVirtualization(&h, text)
		if !strings.Contains(h.CPU, want) || (h.Virtualization == nil) != (want == "does not say") || h.Guest != strings.Contains(text, "hypervisor") {
			t.Errorf("%q: got %+v, want %q", text, h, want)
		}
	}
}

func FuzzHostFiles(f *testing.F) {
	f.Add("PRETTY_NAME=\"Debian\"\n", "flags\t: vmx hypervisor\n")
	f.Add("PRETTY_NAME=", "flags")
	f.Fuzz(func(t *testing.T, osRelease, cpuinfo string) {
		if d := distribution(osRelease); strings.Contains(d, "\n") {
			t.Errorf("a name of two lines: %q", d)
		}
		h := Host{}
		cpuVirtualization(&h, cpuinfo)
		if h.CPU == "" || h.Guest && h.Virtualization == nil {
			t.Errorf("got %+v", h)
		}
	})
}
