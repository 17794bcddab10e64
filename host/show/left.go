package show

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/pybox/pybox/host/receipt"
)

// maxLeft bounds the rows of files that did not come back.
const maxLeft = 8

// tally is how many files and folders there are, and their bytes.
type tally struct{ files, folders, bytes int64 }

func (t *tally) add(f receipt.File) {
	if t.bytes += f.Bytes; f.Folder {
		t.folders++
	} else {
		t.files++
	}
}

// String is such as "2 files and 1 folder (1.2 MiB)".
func (t tally) String() string {
	var parts []string
	if t.files > 0 || t.folders == 0 {
		parts = append(parts, plural(t.files, "file"))
	}
	if t.folders > 0 {
		parts = append(parts, plural(t.folders, "folder"))
	}
	s := strings.Join(parts, " and ")
	if t.files > 0 {
		s += glued(" (%s)", size(max(t.bytes, 0)))
	}
	return s
}

// inputs says what lay beside the program; empty: nothing.
func inputs(in []receipt.Input) string {
	if len(in) == 0 {
		return ""
	}
	var t tally
	for _, i := range in {
		t.add(receipt.File{Bytes: i.Bytes, Folder: i.Folder})
	}
	return t.String()
}

// left says what the program left: how much of it came back, and of the rest what it is
// and why. What was not asked for is a number alone.
func left(r *receipt.Receipt) []string {
	var back, unasked tally
	var rows []string
	for _, f := range r.Program.Files {
		switch {
		case f.Returned:
			back.add(f)
		case f.Reason == receipt.FileNotAsked:
			unasked.add(f)
		default:
			rows = append(rows, fmt.Sprintf("%s: %s", notReturned(f), reason(f.Reason, r.Configured.Limits)))
		}
	}
	listed := len(rows)
	var more int64
	for _, n := range r.Program.FilesUnlisted {
		if n.Reason == receipt.FileNotAsked {
			unasked.files += n.Count
			unasked.bytes += n.Bytes
			continue
		}
		more += n.Count
		rows = append(rows, fmt.Sprintf("%s more: %s", glued("%d", n.Count), reason(n.Reason, r.Configured.Limits)))
	}
	var sums []string
	if back != (tally{}) {
		sums = append(sums, back.String()+" returned")
	}
	if unasked != (tally{}) {
		sums = append(sums, unasked.String()+" not asked for: "+glued("--output DIR")+" returns what a program leaves")
	}
	if lost := int64(listed) + more; lost > 0 {
		sums = append(sums, fmt.Sprintf("%d NOT returned", lost))
	}
	if len(sums) == 0 {
		return nil
	}
	return append([]string{strings.Join(sums, ", ")}, shortLeft(rows, listed)...)
}

// shortLeft bounds the rows: of those that have names some are left out, and said to be.
func shortLeft(rows []string, listed int) []string {
	if listed <= maxLeft {
		return rows
	}
	short := append(rows[:maxLeft:maxLeft], fmt.Sprintf("and %d others, in the receipt's JSON", listed-maxLeft))
	return append(short, rows[listed:]...)
}

// notReturned is the name of what did not come back, and its size where that says
// something. The guest has escaped what it did not send.
func notReturned(f receipt.File) string {
	name := Escape(f.Name, maxName)
	if f.Reason == receipt.FileTwin || f.Reason == receipt.FileNotKept {
		name = fileName(f.Name)
	}
	name = cmp.Or(name, "(no name)")
	if f.Bytes > 0 {
		return name + glued(" (%s)", size(f.Bytes))
	}
	return name
}

// reason says in words why a file did not come back.
func reason(r string, l receipt.Limits) string {
	switch r {
	case receipt.FileNotAsked:
		return "not asked for"
	case receipt.FileTooMany:
		return fmt.Sprintf("more than %d files and folders; %s takes more", l.Files, glued("--max-files"))
	case receipt.FileTooLarge:
		return fmt.Sprintf("more than %s in all; %s takes more", size(max(l.FilesBytes, 0)), glued("--max-files-bytes"))
	case receipt.FileTooDeep:
		return "too deep in folders"
	case receipt.FileName:
		return "no name that a file may have everywhere"
	case receipt.FileTwin:
		return "some systems take its name for another one's"
	case receipt.FileLink:
		return "a symbolic link"
	case receipt.FileSpecial:
		return "neither file nor folder"
	case receipt.FileUnreadable:
		return "the guest could not read it"
	case receipt.FileNotKept:
		return "PyBox could not store it"
	}
	return Escape(r, maxValue)
}
