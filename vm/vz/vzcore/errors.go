package vzcore

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/pybox/pybox/vm"
)

// Entitlement is what macOS asks of a program that starts virtual machines.
const Entitlement = "com.apple.security.virtualization"

// minMacOS is the oldest macOS that the driver takes.
const minMacOS = 13

// fault is something that keeps this host from starting machines.
type fault struct{ what, fix string }

func (f *fault) err() error { return fmt.Errorf("%w: %s: %s", vm.ErrHost, f.what, f.fix) }

// macOSFault says what is wrong with the version of macOS, nil when nothing is.
func macOSFault(h Host) *fault {
	major, _, _ := strings.Cut(h.MacOS, ".")
	n, err := strconv.Atoi(major)
	if err != nil {
		return &fault{fmt.Sprintf("the version of macOS reads %.40q", h.MacOS),
			fmt.Sprintf("PyBox needs macOS %d or newer; see what 'sw_vers' says", minMacOS)}
	}
	if n < minMacOS {
		return &fault{fmt.Sprintf("this is macOS %.40s", h.MacOS),
			fmt.Sprintf("update to macOS %d or newer (System Settings > General > Software Update)", minMacOS)}
	}
	return nil
}

// translatedFault says that this is the wrong program for the processor.
func translatedFault(h Host) *fault {
	if !h.Translated {
		return nil
	}
	return &fault{"this pybox is built for Intel and runs translated by Rosetta, which cannot start virtual machines",
		"install the build for Apple Silicon (arm64); from source, build it with an arm64 Go ('go env GOHOSTARCH' says arm64)"}
}

// hardwareFault says that the processor cannot run virtual machines.
func hardwareFault(h Host) *fault {
	switch {
	case h.Hypervisor:
		return nil
	case h.Virtual:
		return &fault{"this macOS is itself a virtual machine and has no virtualization of its own (nested virtualization)",
			"run PyBox on the Mac itself; a virtual Mac can start machines only where its host is an M3 or newer with macOS 15 and allows it"}
	}
	return &fault{"macOS says that this hardware cannot run virtual machines (see 'sysctl kern.hv_support')",
		"run PyBox on another Mac: all that Apple supports macOS 13 on can"}
}

// entitlementFault says how to sign this program again. The command needs nothing
// but what every macOS has.
func entitlementFault(h Host) *fault {
	exe := h.Executable
	if exe == "" {
		exe = "pybox"
	}
	plist := `<?xml version="1.0" encoding="UTF-8"?><plist version="1.0"><dict><key>` + Entitlement + `</key><true/></dict></plist>`
	return &fault{"this program is not signed with the entitlement " + Entitlement + ", without which macOS lets it start no virtual machine",
		fmt.Sprintf(`sign it again ('make build' does, from source): echo '%s' > "$TMPDIR/pybox.entitlements" && `+
			`codesign --force --sign - --entitlements "$TMPDIR/pybox.entitlements" %s`, plist, shellQuote(exe))}
}

// shellQuote makes one word of s for a POSIX shell.
func shellQuote(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._-+", r)
	}
	if strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 && s != "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// hostFault is the first thing about h that keeps a machine from starting.
func hostFault(h Host) *fault {
	for _, check := range []func(Host) *fault{macOSFault, translatedFault, hardwareFault} {
		if f := check(h); f != nil {
			return f
		}
	}
	return nil
}

// entitlementMissing tells that err is about the entitlement. The framework gives
// it no code of its own; its name is the one part of the text that is never
// translated.
func entitlementMissing(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.is(DomainVZ, CodeInvalidConfiguration) &&
		(strings.Contains(e.Text, Entitlement) || strings.Contains(e.Info, Entitlement))
}

// unavailable tells that err says there is no virtualization here at all. It
// counts beside kern.hv_support, since the framework knows more than the kernel
// and its text may be translated.
func unavailable(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.is(DomainVZ, CodeInvalidConfiguration) &&
		strings.Contains(e.Text+e.Info, "not available on this hardware")
}

// explain turns an error of making or starting a machine into what it means and
// what to do, as vm.ErrHost or vm.ErrConfig.
func explain(err error, h Host) error {
	var e *Error
	if !errors.As(err, &e) {
		return fmt.Errorf("%w: %w", vm.ErrHost, err)
	}
	if entitlementMissing(err) {
		return entitlementFault(h).err()
	}
	if unavailable(err) {
		return hardwareFault(Host{Virtual: h.Virtual}).err()
	}
	hint, kind := meaning(e)
	if hint == "" {
		return fmt.Errorf("%w: %w", kind, err)
	}
	return fmt.Errorf("%w: %w: %s", kind, err, hint)
}

// meaning says what to do about an error, "" where nobody knows, and which of the
// contract's kinds it is.
func meaning(e *Error) (hint string, kind error) {
	switch {
	case e.is(DomainVZ, CodeInvalidConfiguration):
		return "the framework refuses this machine; if config.toml sets nothing unusual in [vm], this is a fault of PyBox", vm.ErrConfig
	case e.is(DomainVZ, CodeInvalidDiskImage):
		return "the image is damaged or no raw disk image: set the bundle up again", vm.ErrConfig
	case e.is(DomainVZ, CodeInternal):
		return "the framework gives no reason; most often the kernel is none that it can boot, or memory is short: " +
			"see Console.app for com.apple.Virtualization, and ~/Library/Logs/DiagnosticReports", vm.ErrHost
	case e.is(DomainVZ, CodeLimitExceeded):
		return "macOS runs no more virtual machines at a time: stop another one first", vm.ErrHost
	case e.is(DomainVZ, CodeOutOfDiskSpace):
		return "free some disk space", vm.ErrHost
	case e.is(DomainVZ, CodeNotSupported):
		return "this version of macOS lacks something that the machine needs: update macOS", vm.ErrHost
	case e.is(DomainPOSIX, posixEPERM, posixEACCES):
		return "macOS keeps this program from a file of the machine: keep PyBox's folder out of Desktop, Documents and " +
			"Downloads, or allow it in System Settings > Privacy & Security > Files and Folders", vm.ErrHost
	}
	return "", vm.ErrHost
}
