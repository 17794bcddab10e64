package execute

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/outputs"
	"github.com/pybox/pybox/host/receipt"
	"github.com/pybox/pybox/host/show"
	"github.com/pybox/pybox/host/units"
)

const (
	// fetchStall bounds the wait for the next piece of a file from the daemon.
	fetchStall = time.Minute
	// maxShown bounds the files that are listed because they can still be fetched.
	maxShown = 32
)

var (
	errStalled = fmt.Errorf("the daemon sent nothing for %v", fetchStall)
	// errGone: the daemon's answer has no ids, since it comes from a stored receipt.
	errGone = errors.New("the daemon was lost, and the files with it")
	// errLost: nobody could ask the guest for the files.
	errLost = errors.New("the run was lost, and what the program left with it")
	// errNotKept and errNotKnown: not everything that the program left was there to
	// be delivered.
	errNotKept  = errors.New("not everything that the program left could be kept until it was fetched")
	errNotKnown = errors.New("not everything that the program left is known")
)

// delivers tells whether what the program leaves is asked for.
func (x *execution) delivers() bool { return x.Output != "" || x.OutputTar != "" }

func (x *execution) outputFlag() string {
	if x.OutputTar != "" {
		return "--output-tar"
	}
	return "--output"
}

// outputPlace checks and opens where results go: after the run it would be too late to
// complain.
func (x *execution) outputPlace() (err error) {
	switch {
	case !x.delivers():
		return nil
	case x.Output != "" && x.OutputTar != "":
		return refuse("--output and --output-tar: give one of them")
	case x.Output == "-":
		return refuse("--output: want a folder (\"./-\" is one of that name)")
	case x.OutputTar == "-":
		return refuse("--output-tar: want a file: standard output is the program's (\"./-\" is a file of that name)")
	case x.Output != "":
		x.job.place, err = outputs.OpenFolder(x.Output)
	default:
		x.job.place, err = outputs.OpenArchive(x.OutputTar)
	}
	if err != nil {
		return refuse("%s: %w", x.outputFlag(), err)
	}
	for _, said := range x.job.place.Repaired {
		x.display.line("pybox: %s: %s", x.outputFlag(), said)
	}
	return nil
}

// delivery is what became of what a program left.
type delivery struct {
	files []receipt.File // those that were returned
	err   error          // why not all of it is where it belongs; nil: it is
	// there tells that what was returned is there all the same, and left that the
	// daemon still has it.
	there, left bool
}

// deliver fetches what the program left and puts it where it belongs.
func (x *execution) deliver(r *receipt.Receipt) {
	if x.job.place == nil {
		return
	}
	files := returned(r)
	if len(files) == 0 && !ran(r) {
		if isLost(r) {
			x.delivered = &delivery{err: errLost}
		}
		return
	}
	x.enter(delivering)
	if x.wasInterrupted() {
		x.cancel(errInterrupted) // before there was anything to fetch
	}
	d := &delivery{files: files}
	x.delivered = d
	switch {
	case len(files) == 0 && unknownFiles(r):
		d.err = errNotKnown
		return
	case slices.ContainsFunc(files, func(f receipt.File) bool { return f.File == "" && f.Bytes > 0 }):
		d.err = errGone
		return
	}
	x.display.wait("Fetching the files", time.Now())
	d.err = x.job.place.Deliver(x.ctx, outputs.Delivery{Run: r.Run.ID, Files: files, Open: x.fetch, Publishing: func() { x.enter(publishing) }})
	x.enter(delivering)
	x.display.wait("", time.Time{})
	var kept *outputs.KeptError
	var half *outputs.HalfError
	d.there = d.err == nil || errors.As(d.err, &kept) || errors.As(d.err, &half)
	switch {
	case !d.there:
		var p *api.Problem
		forgotten := errors.As(d.err, &p) && p.Type == api.ProblemFile
		d.left = !forgotten && !errors.Is(d.err, api.ErrHungUp) && !errors.Is(d.err, api.ErrNoDaemon)
		return
	case d.err == nil && lacking(r):
		d.err = errNotKept
	case d.err == nil && unknownFiles(r):
		d.err = errNotKnown
	}
	x.forget(idsOf(files))
}

// ran tells whether the program may have left something.
func ran(r *receipt.Receipt) bool {
	switch r.Ending.How {
	case receipt.HowRefused, receipt.HowCancelled, receipt.HowVMLost, receipt.HowUnknown:
		return false
	}
	return true
}

// isLost tells whether it may have, and nothing of that came.
func isLost(r *receipt.Receipt) bool {
	return r.Ending.How == receipt.HowVMLost || r.Ending.How == receipt.HowUnknown
}

func returned(r *receipt.Receipt) (files []receipt.File) {
	for _, f := range r.Program.Files {
		if f.Returned {
			files = append(files, f)
		}
	}
	return files
}

// unknownFiles tells whether the list of what was left is not whole.
func unknownFiles(r *receipt.Receipt) bool {
	return slices.ContainsFunc(r.Unknown, func(u receipt.Unknown) bool { return u.Fact == receipt.FactFiles })
}

// lacking tells whether the host could not keep something.
func lacking(r *receipt.Receipt) bool {
	return slices.ContainsFunc(r.Program.Files, func(f receipt.File) bool { return f.Reason == receipt.FileNotKept }) ||
		slices.ContainsFunc(r.Program.FilesUnlisted, func(c receipt.FileCount) bool { return c.Reason == receipt.FileNotKept && c.Count > 0 })
}

func idsOf(files []receipt.File) (ids []string) {
	for _, f := range files {
		if f.File != "" {
			ids = append(ids, f.File)
		}
	}
	return ids
}

// fetch opens a file that the daemon has.
func (x *execution) fetch(ctx context.Context, f receipt.File) (io.ReadCloser, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	stall := time.AfterFunc(fetchStall, func() { cancel(errStalled) })
	r, err := x.Host.File(ctx, f.File)
	stall.Stop()
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		cancel(nil)
		return nil, err
	}
	return &fetched{r, ctx, cancel, stall}, nil
}

// fetched is a file that comes from the daemon.
type fetched struct {
	io.ReadCloser
	ctx    context.Context
	cancel context.CancelCauseFunc
	stall  *time.Timer
}

// Read implements io.Reader.
func (f *fetched) Read(b []byte) (int, error) {
	f.stall.Reset(fetchStall)
	defer f.stall.Stop() // what is written meanwhile may take its time
	n, err := f.ReadCloser.Read(b)
	if err != nil && err != io.EOF && f.ctx.Err() != nil {
		err = context.Cause(f.ctx)
	}
	return n, err
}

// Close implements io.Closer.
func (f *fetched) Close() error {
	f.stall.Stop()
	f.cancel(nil)
	return f.ReadCloser.Close()
}

// sayDelivered says where the results are. It gives the command's exit code, which is
// that of the run unless something of them is not where it belongs.
func (x *execution) sayDelivered(r *receipt.Receipt) int {
	d, code := x.delivered, r.ExitCode()
	if d == nil {
		return code
	}
	place := x.job.place.String()
	if d.err == nil {
		if !x.Quiet && !x.JSON {
			x.display.line("pybox: %s", summary(r, d.files, place))
		}
		return code
	}
	x.display.line("pybox: %s: %s. The run itself: exit code %d", x.outputFlag(), d.words(place), code)
	if d.left && len(idsOf(d.files)) > 0 && !x.JSON {
		x.display.text(d.list)
	}
	return receipt.ExitFailed
}

// words say what is not where it belongs, and where it is.
func (d *delivery) words(place string) string {
	var kept *outputs.KeptError
	var half *outputs.HalfError
	switch {
	case errors.As(d.err, &kept):
		return fmt.Sprintf("%v; what the program left is in %s instead", d.err, kept.Path)
	case errors.As(d.err, &half) && half.Whole:
		return fmt.Sprintf("%v; what the program left is in %s, a hidden folder: the next command with the same flag gives it a name", d.err, half.Path)
	case errors.As(d.err, &half):
		return fmt.Sprintf("%v; what the program left is in %s and the rest of it in %s, a hidden folder: the next command with the same flag puts that there too, or into a folder of its own where a name is taken", d.err, place, half.Path)
	case d.there:
		return fmt.Sprintf("%v, as its receipt says: the rest is in %s", d.err, place)
	case errors.Is(d.err, errGone), errors.Is(d.err, errLost), errors.Is(d.err, errNotKnown):
		return fmt.Sprintf("%v: nothing was put into %s", d.err, place)
	case errors.Is(d.err, api.ErrHungUp), errors.Is(d.err, api.ErrNoDaemon):
		return fmt.Sprintf("%v: nothing was put into %s, and the files are gone with the daemon", d.err, place)
	case !d.left:
		return fmt.Sprintf("%v: nothing was put into %s, and the daemon does not have the files any more", d.err, place)
	}
	return fmt.Sprintf("%v: nothing was put into %s; the daemon has the files until ten minutes after the run", d.err, place)
}

// list says how to fetch what the daemon still has.
func (d *delivery) list(w io.Writer) {
	fmt.Fprintln(w, "pybox: 'GET /v1/files/ID' at the daemon's socket gives them (docs/files.md); their ids:")
	shown := 0
	for _, f := range d.files {
		switch {
		case f.File == "":
		case shown < maxShown:
			fmt.Fprintf(w, "  %s  %s\n", show.Clean(f.File), show.Escape(f.Name, maxValue))
			shown++
		default:
			fmt.Fprintf(w, "  and %d more, which --json would have listed\n", len(idsOf(d.files))-shown)
			return
		}
	}
}

// summary says what is where.
func summary(r *receipt.Receipt, files []receipt.File, place string) string {
	missing, folders, bytes := int64(0), 0, int64(0)
	for _, f := range files {
		if bytes += f.Bytes; f.Folder {
			folders++
		}
	}
	for _, c := range r.Program.FilesUnlisted {
		missing += c.Count
	}
	missing += int64(len(r.Program.Files) - len(files))
	var parts []string
	if n := len(files) - folders; n > 0 {
		parts = append(parts, fmt.Sprintf("%s (%v)", counted(int64(n), "file"), units.Size(bytes)))
	}
	if folders > 0 {
		parts = append(parts, counted(int64(folders), "folder"))
	}
	s := "the program left nothing for " + place
	if len(parts) > 0 {
		s = strings.Join(parts, " and ") + " in " + place
	}
	if missing > 0 {
		s += fmt.Sprintf("; %d did not come back, and the receipt says why", missing)
	}
	return s
}

func counted(n int64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// withoutIDs is a receipt without the daemon's ids of files, which nobody can use any
// more.
func withoutIDs(r *receipt.Receipt) *receipt.Receipt {
	plain := *r
	plain.Program.Files = slices.Clone(r.Program.Files)
	for n := range plain.Program.Files {
		plain.Program.Files[n].File = ""
	}
	return &plain
}
