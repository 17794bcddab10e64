package doctor

import (
	"context"
	"fmt"
	"strings"

	"github.com/pybox/pybox/host/images"
	"github.com/pybox/pybox/host/units"
)

// ownImages looks at the images that a person built or imported: whether their records
// and sizes are right, fit the bundle, and their number a VM. Their contents are hashed
// at each start of the VM, which a daemon's status tells of.
func (e *exam) ownImages(ctx context.Context, r *Row) {
	list, err := images.View(e.dir).List()
	if e.closed(r, err, e.home.Path(images.Dir)) {
		return
	}
	if err != nil {
		r.advise("move it away: 'pybox image build' makes a new folder", "%v", err)
		return
	}
	if len(list) == 0 {
		r.ok("none; 'pybox image build' makes one")
		return
	}
	var bytes int64
	var faults, names []string
	for _, i := range list {
		if fault := e.imageFault(ctx, i); fault != "" {
			faults, names = append(faults, i.Name+": "+fault), append(names, i.Name)
			continue
		}
		bytes += i.Record.Bytes
	}
	if most := e.slots(ctx); len(list) > most {
		faults = append(faults, fmt.Sprintf("there are %d, and a VM takes %d", len(list), most))
	}
	if len(faults) > 0 {
		next := "make it again with --replace, or remove it: 'pybox image remove NAME'"
		if len(names) > 0 {
			next = fmt.Sprintf("make it again with --replace, or: 'pybox image remove %s'", names[0])
		}
		r.advise(next, "%s", strings.Join(faults, "; "))
		return
	}
	r.ok("%d, %v", len(list), units.Size(bytes))
}

// imageFault says what would leave an image out of a VM that starts now, as far as can
// be seen without reading its content, or of the VM that runs.
func (e *exam) imageFault(ctx context.Context, i images.Entry) string {
	if i.Err != nil {
		return i.Err.Error()
	}
	if err := images.View(e.dir).Intact(i.Record); err != nil {
		return err.Error()
	}
	if b, err := e.bundle.get(ctx); err == nil && b.Manifest.Arch != i.Record.Arch {
		return fmt.Sprintf("it is for %s and the guest bundle for %s", i.Record.Arch, b.Manifest.Arch)
	}
	s, err := e.status.get(ctx)
	if err != nil || s.VM == nil {
		return ""
	}
	for _, l := range s.VM.LeftOut {
		if l.Name == i.Name {
			return "the VM left it out: " + l.Why
		}
	}
	return ""
}

// slots is how many images a VM takes beside those of the bundle.
func (e *exam) slots(ctx context.Context) int {
	if b, err := e.bundle.get(ctx); err == nil {
		return images.Slots(len(b.Manifest.Images))
	}
	return images.MaxImages
}
