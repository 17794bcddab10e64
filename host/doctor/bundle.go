package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pybox/pybox/guest/bundle"
	"github.com/pybox/pybox/host/units"
	"github.com/pybox/pybox/vm"
)

// install is what to run where there is no whole bundle.
const install = "'pybox setup' lists what a bundle takes, 'pybox setup --yes' installs it"

func (e *exam) bundleInstalled(ctx context.Context, r *Row) {
	b, err := e.bundle.get(ctx)
	h, herr := e.o.host()
	switch {
	case isLate(err):
		r.unknown("its manifest could not be read in time")
	case e.closed(r, err, "it"):
	case errors.Is(err, bundle.ErrNoBundle):
		r.fail(install, "none is installed in %s", e.dir)
	case err != nil:
		r.fail(install, "%s", bundle.Fault(err))
	case herr == nil && h.OS == "darwin" && b.Manifest.Arch != h.Arch:
		r.fail(install, "%s: a Mac runs guests of its own architecture alone", describe(b))
	case b.Manifest.Arch != vm.HostArch():
		r.advise(install, "%s: for another architecture than this host's (%s), so the VM is emulated", describe(b), vm.HostArch())
	default:
		r.ok("%s", describe(b))
	}
}

// describe says what a bundle holds, in a line or two.
func describe(b *bundle.Bundle) string {
	m := b.Manifest
	kernel := m.Kernel.Kind
	switch kernel {
	case bundle.KernelOwn:
		kernel = "PyBox's own kernel"
	case bundle.KernelDebianCloud:
		kernel = "Debian's cloud kernel"
	}
	images := []string{}
	for _, i := range m.Images {
		images = append(images, fmt.Sprintf("%s (%v)", i.Name, units.Size(i.Bytes)))
	}
	if len(images) == 0 {
		images = append(images, "none")
	}
	return fmt.Sprintf("%.16s, %s, %s %s, images: %s", b.ID(), m.Arch, kernel, m.Kernel.Version, strings.Join(images, ", "))
}

// bundleIntact reads and hashes every file of the bundle, as a start of the VM does.
func (e *exam) bundleIntact(ctx context.Context, r *Row) {
	b, err := e.bundle.get(ctx)
	if err != nil {
		r.unknown("no bundle could be opened")
		return
	}
	var done atomic.Int64
	total := int64(0)
	for _, f := range b.Manifest.Files() {
		total += f.Bytes
	}
	began := time.Now()
	err = b.VerifyCounting(ctx, &done)
	switch {
	case err == nil:
		r.ok("all %v have the SHA-256 that they were installed with", units.Size(total))
	case ctx.Err() != nil && !errors.Is(err, bundle.ErrDamaged):
		r.unknown("%v of %v hashed in %s, no fault so far; each start of the VM verifies all of it", units.Size(done.Load()), units.Size(total), units.Elapsed(time.Since(began)))
	case e.closed(r, err, "it"):
	default:
		r.fail(install, "%s", bundle.Fault(err))
	}
}
