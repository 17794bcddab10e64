package setup

import (
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/pybox/pybox/host/show"
	"github.com/pybox/pybox/host/units"
)

func size(n int64) string { return units.Size(n).String() }

// text writes paragraphs and lists that keep to a width.
type text struct {
	w     io.Writer
	width int
}

// newText is for a terminal of so many columns; 0: not known.
func newText(w io.Writer, columns int) text {
	const usual, least = 80, 30
	if columns == 0 {
		columns = usual
	}
	return text{w, max(min(columns, 100), least)}
}

func (t text) title(s string) { fmt.Fprintf(t.w, "\n%s\n", s) }

// item writes a text, wrapped, whose lines are indented.
func (t text) item(indent int, s string) {
	for i, line := range show.Wrap(show.Clean(s), t.width-indent-2) {
		if i > 0 {
			line = "  " + line
		}
		fmt.Fprintf(t.w, "%*s%s\n", indent, "", line)
	}
}

// exact writes what must stay in one piece, such as a path or digest.
func (t text) exact(indent int, s string) {
	fmt.Fprintf(t.w, "%*s%s\n", indent, "", show.Escape(s, 4096))
}

// path writes one row: the mode and path, and what it is for below.
func (t text) path(f Path) {
	what := f.For
	if f.Bytes > 0 {
		what += ", " + size(f.Bytes)
	}
	if f.Temporary {
		what += "; gone when all is done"
	}
	if f.Perhaps {
		what += "; only if needed"
	}
	t.exact(2, strings.TrimLeft(f.Mode+"  ", " ")+f.Path)
	t.item(8, what)
	if f.SHA256 != "" {
		t.exact(8, "sha256 "+f.SHA256)
	}
}

func (t text) paths(title string, list []Path) {
	if len(list) == 0 {
		return
	}
	t.title(title)
	for _, f := range list {
		t.path(f)
	}
}

// Text writes the plan for a person, to a terminal of so many columns (0: not
// known).
func (p *Plan) Text(w io.Writer, columns int) {
	t := newText(w, columns)
	t.item(0, "PyBox setup: "+p.headline())
	if p.From != "" {
		t.exact(2, p.From)
	}
	t.item(2, p.Why)
	for _, n := range p.Notes {
		t.item(2, n)
	}
	if p.Nothing {
		return
	}
	t.folders(p)
	t.paths("Files to make", p.ownFiles())
	t.downloads(p)
	t.paths("Removed", p.Removes)
	t.paths("Left alone", p.Kept)
	t.title("What takes time")
	for i, s := range p.Steps {
		t.item(2, fmt.Sprintf("%d. %s: %s", i+1, s.Name, s.Cost))
	}
	t.title("Room on the disk")
	for _, s := range p.Space {
		t.item(2, fmt.Sprintf("up to %s of %s free", size(s.Need), size(s.Free)))
		for _, f := range s.Folders {
			t.exact(6, f)
		}
	}
	t.next(p.Problems, p.Command)
}

func (p *Plan) headline() string {
	switch {
	case p.Nothing:
		return "there is nothing to do"
	case p.Origin == OriginDebian:
		return fmt.Sprintf("make a guest bundle for %s of Debian's packages and kernel, and install it", p.Arch)
	}
	return "install the guest bundle in this " + map[string]string{OriginFolder: "folder", OriginArchive: "file"}[p.Origin]
}

// folders lists the folders to make; those of the download cache, which has one for
// every beginning of a digest, in one row.
func (t text) folders(p *Plan) {
	var list []Path
	at := -1
	for _, f := range p.Folders {
		switch {
		case filepath.Dir(f.Path) != filepath.Join(p.Cache, "sha256"):
			list = append(list, f)
		case at < 0:
			at = len(list)
			list = append(list, Path{Path: filepath.Join(filepath.Dir(f.Path), filepath.Base(f.Path)), Mode: f.Mode, For: f.For})
		default:
			list[at].Path += "," + filepath.Base(f.Path)
		}
	}
	if at >= 0 {
		dir, names := filepath.Split(list[at].Path)
		list[at].Path = dir + "…"
		list[at].For += ": " + strings.ReplaceAll(names, ",", " ")
	}
	t.paths("Folders to make", list)
}

// ownFiles are the files but those of downloads, which have a list of their own.
func (p *Plan) ownFiles() (list []Path) {
	for _, f := range p.Files {
		if d := filepath.Dir(f.Path); d != filepath.Join(p.Cache, "partial") && filepath.Dir(d) != filepath.Join(p.Cache, "sha256") {
			list = append(list, f)
		}
	}
	return list
}

func (t text) downloads(p *Plan) {
	if len(p.Downloads) == 0 {
		return
	}
	var total int64
	for _, d := range p.Downloads {
		total += d.Bytes
	}
	t.title("Downloads")
	t.item(2, fmt.Sprintf("%d packages of together %s, of which %s are here", len(p.Downloads), size(total), size(total-p.DownloadBytes)))
	for _, d := range p.Downloads {
		here := ""
		switch {
		case d.Cached:
			here = ", in the cache"
		case d.Have > 0:
			here = ", " + size(d.Have) + " of it in the cache"
		}
		t.item(2, fmt.Sprintf("%s %s, %s%s", d.Name, d.Version, size(d.Bytes), here))
		t.exact(4, "sha256 "+d.SHA256)
	}
	if len(p.Sources) == 0 {
		return
	}
	t.title("Where downloads go")
	t.exact(2, filepath.Join(p.Cache, "sha256")+"/…/SHA256")
	t.exact(2, filepath.Join(p.Cache, "partial")+"/SHA256")
	t.item(6, "while one arrives; an empty file SHA256.lock stays for each")
	t.title("Where they come from, in this order")
	last := ""
	for _, s := range p.Sources {
		if s.Label != last {
			t.item(2, s.Label)
		}
		last = s.Label
		for _, a := range s.Addresses {
			t.exact(4, a)
		}
		if s.Proxy != "" {
			t.exact(4, "by the proxy "+s.Proxy)
		}
	}
}

// Text writes what was done, for a person.
func (r *Result) Text(w io.Writer, columns int) {
	t := newText(w, columns)
	if r.Nothing {
		t.exact(0, "There was nothing to do. The guest bundle is in "+r.Dir)
	} else {
		t.exact(0, "The guest bundle is installed in "+r.Dir)
	}
	switch {
	case r.Running && !r.Nothing:
		t.item(0, "A VM runs and keeps the one that it was started with: 'pybox vm restart' boots the new one.")
	case !r.Running:
		t.item(0, "Try it: echo 'print(6*7)' | pybox exec -")
	}
}

// next ends a plan: what keeps it from being done, or the command that does it.
func (t *text) next(problems []Problem, command string) {
	if len(problems) > 0 {
		t.title("Problems")
		for _, x := range problems {
			t.item(2, x.What+": "+x.Fix)
		}
		fmt.Fprintln(t.w)
		t.item(0, "Nothing has been done: solve that first.")
		return
	}
	fmt.Fprintln(t.w)
	t.item(0, "Nothing has been done yet. This does it:")
	t.exact(2, command)
}
