package runs

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	agentapi "github.com/pybox/pybox/agent/api"
	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/guestrun"
	"github.com/pybox/pybox/host/policy"
	"github.com/pybox/pybox/host/receipt"
	"github.com/pybox/pybox/host/spool"
	"github.com/pybox/pybox/host/twins"
)

// maxShownName bounds a name in a sentence, in bytes.
const maxShownName = 80

// sortInputs puts folders before what is in them, without a change of files.
func sortInputs(files []File) []File {
	return slices.SortedFunc(slices.Values(files), func(a, b File) int { return strings.Compare(a.Name, b.Name) })
}

// checkInputs holds the inputs of r, which are sorted, to their names and to the limits
// of the run.
func checkInputs(r Request, l policy.Limits) error {
	if len(r.Inputs) == 0 {
		return nil
	}
	if n := int64(len(r.Inputs)); n > l.Files {
		return refuseInputs("there are %d inputs, and limits.files of the run is %d", n, l.Files)
	}
	var bytes int64
	for _, f := range r.Inputs {
		if f.Bytes < 0 || f.Folder && f.Bytes > 0 {
			return refuseInputs("the input %s has %d bytes", shown(f.Name), f.Bytes)
		}
		if bytes += f.Bytes; bytes > l.FilesBytes {
			return refuseInputs("the inputs have more than the %d bytes of limits.files_bytes", l.FilesBytes)
		}
	}
	if all := bytes + r.Program.Bytes; all > l.MemoryBytes {
		return refuseInputs("the program and its inputs have %d bytes, and lie in the memory of the box, whose limit is %d", all, l.MemoryBytes)
	}
	return checkNames(r)
}

// checkNames refuses inputs that could not lie beside one another in one folder, here or
// on another system.
func checkNames(r Request) error {
	var set twins.Set
	set.Add(r.Program.Name)
	files := map[string]bool{r.Program.Name: true}
	last, names := "", len(r.Program.Name)
	for _, f := range r.Inputs {
		if err := agentapi.CheckFileName(f.Name); err != nil {
			return fmt.Errorf("an input: %w", err)
		}
		names += len(f.Name)
		switch twin, ok := set.Add(f.Name); {
		case f.Name == r.Program.Name:
			return refuseInputs("the input %s has the name of the program", shown(f.Name))
		case f.Name == last:
			return refuseInputs("two inputs have the name %s", shown(f.Name))
		case !ok:
			return refuseInputs("the input %s and %s are one name on systems that ignore case, or how a character is written: rename one of them", shown(f.Name), shown(twin))
		case names > agentapi.MaxNames:
			return refuseInputs("their names have more than %d bytes together", agentapi.MaxNames)
		}
		for dir := parent(f.Name); dir != ""; dir = parent(dir) {
			if files[dir] {
				return refuseInputs("the input %s lies in %s, which is a file", shown(f.Name), shown(dir))
			}
		}
		files[f.Name] = !f.Folder
		last = f.Name
	}
	return nil
}

// parent is the folder that a name lies in; empty: the working folder itself.
func parent(name string) string { return name[:max(strings.LastIndexByte(name, '/'), 0)] }

func shown(name string) string { return `"` + agentapi.Text(name, maxShownName) + `"` }

func refuseInputs(format string, a ...any) error {
	return fmt.Errorf("%w: %s", agentapi.ErrRequest, fmt.Sprintf(format, a...))
}

// files are those of the working folder as package guestrun sends them.
func (r *Run) files() []guestrun.File {
	files := make([]guestrun.File, 0, 1+len(r.request.Inputs))
	for _, f := range append([]File{r.request.Program}, r.request.Inputs...) {
		files = append(files, guestrun.File{Name: f.Name, Bytes: f.Bytes, Executable: f.Executable, Folder: f.Folder, Open: f.Open})
	}
	return files
}

// returned stores what comes back of a run. Its method is called by one goroutine at a
// time.
type returned struct {
	room  *spool.Room
	names twins.Set
}

// twinError is why something is not kept that has a twin among what came before.
type twinError string

// Error implements error.
func (e twinError) Error() string { return "it is a twin of " + shown(string(e)) }

func (k *returned) keep(f guestrun.Left) (guestrun.Kept, error) {
	if twin, ok := k.names.Add(f.Name); !ok {
		return nil, twinError(twin)
	}
	if f.Folder {
		return nil, nil
	}
	file, err := k.room.Create(f.Bytes)
	if err != nil {
		return nil, err // not a Kept that holds nil
	}
	return file, nil
}

// room waits until what the run may leave can be kept; nil: the client does not ask for
// it. The error matches ErrBusy, or the cause of the run's end.
func (r *Run) room() (*spool.Room, error) {
	if !r.start.GetCollect() {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(r.ctx, r.s.o.QueueWait)
	defer cancel()
	var asked time.Time
	room, err := r.s.o.Files.Reserve(ctx, r.start.GetFiles(), r.start.GetFilesBytes(), func(ahead int) {
		asked = time.Now()
		r.tell(api.Event{Event: api.EventQueued, Ahead: &ahead, For: api.ForFiles})
	})
	if !asked.IsZero() {
		r.forRoom = time.Since(asked)
	}
	switch {
	case err == nil:
		return room, nil
	case r.ctx.Err() != nil:
		return nil, fmt.Errorf("the run was not begun: %w", context.Cause(r.ctx))
	case errors.Is(err, spool.ErrTooMuch):
		return nil, fmt.Errorf("%w to keep what the program leaves: %w", ErrBusy, err)
	}
	return nil, err
}

// publish gives what was kept its ids, which are in the order of Result.Left.
func publish(left []guestrun.Left) []string {
	ids := make([]string, len(left))
	for i := range left {
		f := &left[i]
		if f.Kept == nil {
			continue
		}
		ids[i], f.Err = f.Kept.(*spool.Leaving).Publish(f.SHA256)
		f.Kept = nil
	}
	return ids
}

// discard gives up what was kept of a run without a receipt.
func discard(left []guestrun.Left) {
	for _, f := range left {
		if f.Kept != nil {
			f.Kept.Discard()
		}
	}
}

// withIDs is rec with the ids of what came back, which only the answer to a run has.
func withIDs(rec *receipt.Receipt, ids []string) *receipt.Receipt {
	r := *rec
	r.Program.Files = slices.Clone(rec.Program.Files)
	for i, id := range ids { // those that came back are the first
		r.Program.Files[i].File = id
	}
	return &r
}

// left is what the program left in its working folder.
func (c *composer) left() ([]receipt.File, []receipt.FileCount) {
	files, counts := make([]receipt.File, 0, len(c.res.Left)), []receipt.FileCount{}
	for _, f := range c.res.Left {
		files = append(files, leftFile(f))
	}
	c.lackFiles()
	m := c.rec.GetLeft()
	for _, f := range m.GetOthers() {
		files = append(files, receipt.File{Name: f.GetName(), Bytes: f.GetBytes(), Reason: f.GetReason()})
	}
	for _, n := range m.GetUnlisted() {
		counts = append(counts, receipt.FileCount{Reason: n.GetReason(), Count: n.GetCount(), Bytes: n.GetBytes()})
	}
	if ran := c.started || c.rec == nil && c.heard.admitted != nil; ran && !m.GetComplete() {
		c.lack(receipt.FactFiles, receipt.WhyFiles) // unless the guest's record says why
	}
	return files, counts
}

// leftFile is something that came back, or was to.
func leftFile(f guestrun.Left) receipt.File {
	r := receipt.File{Name: f.Name, Bytes: f.Bytes, Folder: f.Folder, Executable: f.Executable, Returned: f.Err == nil}
	var twin twinError
	switch {
	case errors.As(f.Err, &twin):
		r.Reason = receipt.FileTwin
	case f.Err != nil:
		r.Reason = receipt.FileNotKept
	case !f.Folder:
		r.SHA256 = new(hex.EncodeToString(f.SHA256[:]))
	}
	return r
}

// lackFiles says why the host has not kept what came back, or has lost it on the way,
// once for each reason.
func (c *composer) lackFiles() {
	var whys []string
	names := map[string][]string{}
	for _, f := range c.res.Left {
		if leftFile(f).Reason != receipt.FileNotKept {
			continue
		}
		why := f.Err.Error()
		if names[why] == nil {
			whys = append(whys, why)
		}
		names[why] = append(names[why], f.Name)
	}
	for _, why := range whys {
		first, more := shown(names[why][0]), len(names[why])-1
		if more > 0 {
			first = fmt.Sprintf("%s and %d more", first, more)
		}
		c.lack(receipt.FactFiles+": the bytes of "+first, why)
	}
}

// inputs are the files beside the program as they were sent.
func (c *composer) inputs() []receipt.Input {
	sent := make(map[string]guestrun.Input, len(c.res.Inputs))
	for _, i := range c.res.Inputs {
		sent[i.Name] = i
	}
	list, missing := make([]receipt.Input, 0, len(c.request.Inputs)), 0
	for _, f := range c.request.Inputs {
		in := receipt.Input{Name: f.Name, Bytes: f.Bytes, Folder: f.Folder}
		if i, whole := sent[f.Name]; whole && !f.Folder {
			in.SHA256 = new(hex.EncodeToString(i.SHA256[:]))
		} else if !whole {
			missing++
		}
		list = append(list, in)
	}
	if missing > 0 {
		c.lack("configured.inputs.sha256", fmt.Sprintf("the run ended when %d of its %d inputs had been sent whole", len(list)-missing, len(list)))
	}
	return list
}
