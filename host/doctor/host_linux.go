package doctor

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// maxSystemFile bounds what is read of a file of the system.
const maxSystemFile = 64 << 10

func thisHost() (Host, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return Host{}, err
	}
	h := Host{OS: runtime.GOOS, Arch: runtime.GOARCH, Name: "Linux " + unix.ByteSliceToString(u.Release[:])}
	if d := distribution(readSystem("/etc/os-release")); d != "" {
		h.Name += " (" + d + ")"
	}
	cpuVirtualization(&h, readSystem("/proc/cpuinfo"))
	return h, nil
}

// readSystem reads the beginning of a file, "" when it cannot.
func readSystem(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxSystemFile))
	if err != nil {
		return ""
	}
	return string(b)
}

// distribution is the PRETTY_NAME of os-release(5).
func distribution(osRelease string) string {
	for line := range strings.Lines(osRelease) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), "PRETTY_NAME="); ok {
			return strings.Trim(v, `"'`)
		}
	}
	return ""
}

// cpuVirtualization fills in what the flags of the first CPU in /proc/cpuinfo
// (proc_cpuinfo(5)) say. Only x86 has such flags.
func cpuVirtualization(h *Host, cpuinfo string) {
	flags := map[string]bool{}
	for lines := bufio.NewScanner(strings.NewReader(cpuinfo)); lines.Scan(); {
		if name, v, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(name) == "flags" {
			for f := range strings.FieldsSeq(v) {
				flags[f] = true
			}
			break
		}
	}
	yes, no := true, false
	h.Guest = flags["hypervisor"]
	switch {
	case flags["vmx"]:
		h.Virtualization, h.CPU = &yes, "the CPU has it (VT-x)"
	case flags["svm"]:
		h.Virtualization, h.CPU = &yes, "the CPU has it (AMD-V)"
	case len(flags) > 0:
		h.Virtualization, h.CPU = &no, "the CPU does not offer it (no flag vmx or svm)"
	default:
		h.CPU = fmt.Sprintf("a CPU of %s does not say; the row about KVM does", h.Arch)
	}
}
