package doctor

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/pybox/pybox/host/config"
	"github.com/pybox/pybox/vm"
)

// Host is what is known of this host. Its platform's file fills it in.
type Host struct {
	// OS and Arch are as Go names them; Arch is this program's.
	OS, Arch string
	// Name says which system and kernel it is, for people.
	Name string
	// Version is the system's, on macOS: "14.5".
	Version string
	// Translated: this program is of another architecture than the host, which
	// translates it (Rosetta).
	Translated bool
	// Virtualization tells whether the CPU can run VMs, nil when it does not say.
	Virtualization *bool
	// CPU says how that is known.
	CPU string
	// Guest: this host is a VM itself.
	Guest bool
}

// minMacOS is the first macOS with all that PyBox needs of Virtualization.framework.
const minMacOS = 13

func (e *exam) platform(_ context.Context, r *Row) {
	h, err := e.o.host()
	if err != nil {
		r.unknown("this host does not say what it is: %v", err)
		return
	}
	seen := fmt.Sprintf("%s, %s", h.Name, h.Arch)
	switch {
	case h.OS != "linux" && h.OS != "darwin" || h.Arch != vm.ArchAMD64 && h.Arch != vm.ArchARM64:
		r.fail("use a Mac, or Linux on amd64 or arm64", "%s: PyBox does not run here", seen)
	case h.Translated:
		r.fail("install the arm64 pybox, or build it with an arm64 Go: 'go env GOARCH' must say arm64",
			"%s, translated by Rosetta: a translated program cannot start VMs", seen)
	case h.OS == "darwin" && major(h.Version) < minMacOS:
		r.fail("update macOS: 'softwareupdate --list' shows what there is", "%s: PyBox needs macOS %d or newer", seen, minMacOS)
	default:
		r.ok("%s", seen)
	}
}

// major is the first number of a version, 0 without one.
func major(version string) int {
	first, _, _ := strings.Cut(version, ".")
	n, err := strconv.Atoi(first)
	if err != nil {
		return 0
	}
	return n
}

func (e *exam) virtualization(_ context.Context, r *Row) {
	h, err := e.o.host()
	switch {
	case err != nil:
		r.unknown("this host does not say what it is: %v", err)
	case h.Virtualization == nil:
		r.unknown("%s", h.CPU)
	case *h.Virtualization:
		r.ok("%s", h.CPU)
	case h.OS == "darwin":
		r.fail("use a Mac that has it, or the host of this VM: 'sysctl kern.hv_support' must say 1", "%s", h.CPU)
	case h.Guest: // what follows, and what to do, is KVM's row alone
		r.ok("%s, and this host is a VM itself: see KVM", h.CPU)
	default:
		r.ok("%s: see KVM", h.CPU)
	}
}

// driver asks the VM's driver, as it is set up in config.toml and for the
// architecture of the bundle.
func (e *exam) driver(rows context.Context) (found []Row) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(rows), e.o.Limit+driverExtra(e.o.Limit))
	defer cancel()
	defer context.AfterFunc(rows, func() {
		if errors.Is(rows.Err(), context.Canceled) { // nobody waits for any row
			cancel()
		}
	})()
	early, cancelEarly := context.WithTimeout(ctx, e.o.Limit/4)
	defer cancelEarly()
	c := config.Default()
	if e.dirErr == nil {
		known, err := e.config.get(early)
		switch {
		case isLate(err):
			return []Row{{ID: "driver", Title: "Driver", Verdict: Unknown, Observed: "config.toml, which says how to use it, could not be read in time"}}
		case err == nil: // else its own row says so
			c = known
		}
	}
	d := e.o.Driver(e.home, c)
	arch, err := e.arch(early)
	for _, f := range findings(ctx, d, arch) {
		if !f.OK && isLate(err) {
			f.Unknown, f.Observed = true, "the bundle's architecture could not be read in time; for this host's: "+f.Observed
		}
		found = append(found, rowFor(f))
	}
	if len(found) == 0 {
		r := Row{ID: "driver", Title: "Driver"}
		r.unknown("the driver %s says nothing about this host", d.Name())
		found = append(found, r)
	}
	return found
}

// driverExtra is what the driver's rows have beyond the others' time, because a part
// of it may go into finding out what to ask for.
func driverExtra(limit time.Duration) time.Duration { return limit / 8 }

func rowFor(f vm.Finding) Row {
	r := Row{ID: f.ID, Title: driverTitle(f.ID), Verdict: Failed, Observed: f.Observed, Next: f.Fix}
	switch {
	case f.OK:
		r.Verdict, r.Next = OK, ""
	case f.Unknown:
		r.Verdict, r.Next = Unknown, ""
	case f.Advice:
		r.Verdict = Advice
	}
	return r
}

func findings(ctx context.Context, d vm.Driver, arch string) []vm.Finding {
	if a, ok := d.(vm.ArchChecker); ok && arch != "" {
		return a.CheckFor(ctx, arch)
	}
	return d.Check(ctx)
}

// arch is the installed bundle's, "" with an error without one.
func (e *exam) arch(ctx context.Context) (string, error) {
	if e.dirErr != nil {
		return "", e.dirErr
	}
	b, err := e.bundle.get(ctx)
	if err != nil {
		return "", err
	}
	return b.Manifest.Arch, nil
}

// driverTitle is a row's title for the id of a driver's finding.
func driverTitle(id string) string {
	switch id {
	case "qemu.binary":
		return "QEMU"
	case "qemu.vsock":
		return "QEMU's vsock"
	case "qemu.kvm":
		return "KVM"
	case "qemu.acceleration":
		return "Acceleration"
	case "vz.macos":
		return "macOS"
	case "vz.translated":
		return "Rosetta"
	}
	_, word, _ := strings.Cut(id, ".")
	if word == "" {
		word = id
	}
	return strings.ToUpper(word[:1]) + word[1:]
}
