package doctor

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/pybox/pybox/host/images"
	"github.com/pybox/pybox/host/units"
)

// ownImages looks at the images that a person built or imported: whether their records
// and sizes are right, fit the bundle, and their number a VM. Their contents are hashed
// at each start of the VM, which a daemon's status tells of.
func (e *exam) ownImages(ctx context.Context, r *Row) {
	all, err := images.View(e.dir).Overview(nil)
	if e.closed(r, err, e.home.Path(images.Dir)) {
		return
	}
	if err != nil {
		r.advise("put "+e.home.Path(images.Dir)+" in order, or move it away: 'pybox image build' makes a new folder", "%v", err)
		return
	}
	list := all.Images
	if len(list) == 0 {
		r.ok("none; 'pybox image build' makes one")
		return
	}
	var bytes int64
	var faults []string
	next := ""
	advise := func(fault, what string) {
		if !slices.Contains(faults, fault) {
			faults = append(faults, fault)
		}
		next = cmp.Or(next, what)
	}
	for _, i := range list {
		if fault, what := e.imageFault(ctx, i); fault != "" {
			advise(fault, what)
			continue
		}
		bytes += i.Bytes
	}
	if most := e.slots(ctx); len(list) > most {
		advise(fmt.Sprintf("there are %d, and a VM takes %d", len(list), most), "remove what you do not need: 'pybox image remove NAME'")
	}
	if len(faults) > 0 {
		r.advise(next, "%s", strings.Join(faults, "; "))
		return
	}
	r.ok("%d, %v", len(list), units.Size(bytes))
}

// imageFault says what would leave an image out of a VM that starts now, as far as can
// be seen without reading its content, or what left it out of the VM that runs, and what
// to do.
func (e *exam) imageFault(ctx context.Context, i images.Summary) (fault, next string) {
	if i.Damaged != "" {
		return i.Name + ": " + i.Damaged, i.Next
	}
	if b, err := e.bundle.get(ctx); err == nil && b.Manifest.Arch != i.Arch {
		return fmt.Sprintf("%s: it is for %s and the guest bundle for %s", i.Name, i.Arch, b.Manifest.Arch),
			fmt.Sprintf("make it again with --replace, or 'pybox image remove %s'", i.Name)
	}
	s, err := e.status.get(ctx)
	if err != nil {
		return "", ""
	}
	switch in, left := images.In(s, i); {
	case in != images.PresenceLeftOut:
		return "", ""
	case left.Name == "":
		return "the VM left all of them out: " + left.Why, left.Next
	default:
		return i.Name + ": the VM left it out: " + left.Why, left.Next
	}
}

// slots is how many images a VM takes beside those of the bundle.
func (e *exam) slots(ctx context.Context) int {
	if b, err := e.bundle.get(ctx); err == nil {
		return images.Slots(len(b.Manifest.Images))
	}
	return images.MaxImages
}
