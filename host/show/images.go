package show

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/pybox/pybox/host/images"
	"github.com/pybox/pybox/host/units"
)

// Images writes a list of images, a line for each where that fits, and below it what
// is wrong with those that are damaged.
func Images(w io.Writer, list []images.Summary, o Style) {
	p := newPage(o)
	rows := [][]string{{"IMAGE", "FROM", "SIZE", "PACKAGES", "MADE", "SHA-256"}}
	for _, s := range list {
		rows = append(rows, imageRow(s))
	}
	if !p.table(rows) {
		for _, row := range rows[1:] {
			p.title(row[0], row[1])
			p.row("", strings.Join(row[2:], " · "))
		}
	}
	for _, s := range list {
		if s.Damaged != "" {
			p.blank()
			p.title("Damaged: "+Escape(s.Name, maxName), Escape(s.Damaged, maxSentence))
			p.row("", copyable(Escape(s.Next, maxSentence)))
		}
	}
	_, _ = w.Write(p.b.Bytes())
}

func imageRow(s images.Summary) []string {
	row := []string{Escape(s.Name, maxName), from(s), "-", "-", "-", "-"}
	if s.Bytes > 0 {
		row[2] = units.Size(s.Bytes).String()
	}
	if s.Packages != nil {
		row[3] = fmt.Sprint(*s.Packages)
	}
	if s.CreatedAt != nil {
		row[4] = s.CreatedAt.Local().Format("2006-01-02 15:04")
	}
	if s.SHA256 != "" {
		row[5] = Escape(s.SHA256, maxName)[:12]
	}
	return row
}

// from says in a word or two what an image was made of.
func from(s images.Summary) string {
	switch {
	case s.Kind == images.KindBundle:
		return "PyBox"
	case s.Kind == images.KindImported:
		return "OCI image"
	case s.Base != "":
		return "wheels on " + Escape(s.Base, maxName)
	}
	return "damaged"
}

// Image writes all that is known of an image.
func Image(w io.Writer, in *images.Inspection, o Style) {
	p := newPage(o)
	p.title("Image "+Escape(in.Name, maxName), from(in.Summary))
	p.blank()
	if in.Damaged != "" {
		p.row("Damaged", Escape(in.Damaged, maxSentence), copyable(Escape(in.Next, maxSentence)))
	}
	if in.SHA256 != "" {
		p.row("SHA-256", Escape(in.SHA256, maxName))
		p.row("Size", glued("%v", units.Size(in.Bytes))+" "+glued("for %s", Escape(in.Arch, maxName)))
	}
	if in.Python != "" {
		p.row("Python", Escape(in.Python, maxName))
	}
	if in.CreatedAt != nil {
		p.row("Made", in.CreatedAt.Local().Format(time.DateTime))
	}
	if in.File != "" {
		p.row("File", Escape(in.File, maxSentence))
	}
	p.row("In the VM", presence(in))
	if r := in.Record; r != nil {
		p.origin(r)
		p.packages("Packages", r.Packages)
		for i, n := range r.Notes {
			label := "Notes"
			if i > 0 {
				label = ""
			}
			p.row(label, Escape(n, maxSentence))
		}
	}
	p.packages("Debian packages", in.Debian)
	_, _ = w.Write(p.b.Bytes())
}

func presence(in *images.Inspection) string {
	switch in.InVM {
	case images.PresenceStopped:
		return "no VM runs; the next one has it, if it is whole"
	case images.PresenceYes:
		return "yes"
	case images.PresenceNo:
		return "no; 'pybox vm restart' gives it to the VM"
	case images.PresenceOther:
		return "an earlier image of this name; 'pybox vm restart' gives it this one"
	case images.PresenceLeftOut:
		if in.LeftOut.Name == "" {
			return "all were left out: " + Escape(in.LeftOut.Why, maxSentence) + "; " + copyable(Escape(in.LeftOut.Next, maxSentence))
		}
		return "left out: " + Escape(in.LeftOut.Why, maxSentence) + "; " + copyable(Escape(in.LeftOut.Next, maxSentence))
	}
	return "not known; 'pybox vm status' tells of the VM"
}

// origin writes where an image of one's own is from.
func (p *page) origin(r *images.Record) {
	if b := r.Built; b != nil {
		p.row("Base", Escape(b.Base.Name, maxName)+", "+glued("sha256 %.12s", Escape(b.Base.SHA256, maxName)))
		p.row("Lock", Escape(b.LockKind, maxName)+", "+glued("sha256 %.12s", Escape(b.LockSHA256, maxName)))
		code := "compiled, in a box"
		if !b.Bytecode {
			code = "none: each import compiles"
		}
		p.row("Byte code", code)
	}
	if i := r.Imported; i != nil {
		p.row("Source", Escape(i.Source, maxName)+" "+Escape(i.Reference, maxSentence))
		p.row("Platform", Escape(i.Platform, maxName))
		p.row("Index", Escape(i.IndexDigest, maxName))
		p.row("Manifest", Escape(i.ManifestDigest, maxName))
		p.row("Configuration", Escape(i.ConfigDigest, maxName))
		var layers []string
		for _, l := range i.Layers {
			digest := l.Digest
			if digest == "" {
				digest = l.DiffID
			}
			layers = append(layers, Escape(digest, maxName)+" "+glued("%v", units.Size(l.Bytes)))
		}
		p.row("Layers", layers...)
	}
}

// packages writes a table of packages, or nothing when there are none.
func (p *page) packages(title string, list []images.Package) {
	if len(list) == 0 {
		return
	}
	p.blank()
	rows := [][]string{{strings.ToUpper(title), "VERSION", "SIZE", "SHA-256"}}
	for _, k := range list {
		size, sum := "-", "-"
		if k.Bytes > 0 {
			size = units.Size(k.Bytes).String()
		}
		if len(k.SHA256) >= 12 {
			sum = Escape(k.SHA256, maxName)[:12]
		}
		rows = append(rows, []string{Escape(k.Name, maxName), Escape(k.Version, maxName), size, sum})
	}
	if p.table(rows) {
		p.blank()
		return
	}
	for _, row := range rows[1:] {
		p.row(row[0], strings.Join(row[1:], " · "))
	}
	p.blank()
}
