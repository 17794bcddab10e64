package repair

import (
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/pybox/pybox/host/home"
	"github.com/pybox/pybox/host/receipt"
	"github.com/pybox/pybox/host/repair/history"
	"github.com/pybox/pybox/host/show"
)

const (
	// folder is where histories are kept in the state directory, and most how many.
	folder = "repairs"
	most   = 20
)

// keptName is what a kept history is called: when the repair began, and a word that
// tells two of the same moment apart. The names sort by time.
var keptName = regexp.MustCompile(`^[0-9]{8}T[0-9]{6}Z-[a-z0-9]{8}\.json$`)

// keeper keeps a history, again and again as it goes on.
type keeper struct {
	stateDir string
	path     string // of the file; empty: there is none yet
}

// keep stores a history in the state directory, without what the programs printed, as
// receipts are kept, and forgets the oldest others. Each time replaces the last one.
func (k *keeper) keep(h *history.History) error {
	dir := filepath.Join(k.stateDir, folder)
	if err := os.Mkdir(dir, 0o700); err != nil && !os.IsExist(err) {
		return err
	}
	if err := home.CheckOwn(dir); err != nil {
		return err
	}
	b, err := show.JSON(withoutOutput(h))
	if err != nil {
		return err
	}
	path := k.path
	if path == "" {
		path = filepath.Join(dir, fmt.Sprintf("%s-%s.json", h.StartedAt.Format("20060102T150405Z"), word()))
	}
	if err := (&place{path, 0o600}).replace(b); err != nil {
		return err
	}
	k.path = path
	return forget(dir)
}

// word is eight random letters and digits.
func word() string {
	const letters = "abcdefghijklmnopqrstuvwxyz234567"
	b := make([]byte, 8)
	_, _ = rand.Read(b) // it never fails
	for i := range b {
		b[i] = letters[int(b[i])%len(letters)]
	}
	return string(b)
}

// forget removes the oldest of too many, and nothing that is not a history.
func forget(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var names []string
	for _, e := range entries {
		if keptName.MatchString(e.Name()) {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	for _, n := range names[:max(len(names)-most, 0)] {
		if err := os.Remove(filepath.Join(dir, n)); err != nil && !os.IsNotExist(err) {
			return err
		}
	}
	return nil
}

// withoutOutput is a history whose receipts are without what the programs printed.
func withoutOutput(h *history.History) *history.History {
	c := *h
	c.Rounds = slices.Clone(h.Rounds)
	for i := range c.Rounds {
		c.Rounds[i].Run = bare(c.Rounds[i].Run)
		c.Rounds[i].Check = bare(c.Rounds[i].Check)
	}
	return &c
}

func bare(r *history.Run) *history.Run {
	if r == nil || r.Receipt == nil {
		return r
	}
	run, rec := *r, *r.Receipt
	for _, s := range []*receipt.Stream{&rec.Program.Stdout, &rec.Program.Stderr} {
		s.Text, s.Base64 = nil, nil
	}
	run.Receipt = &rec
	return &run
}

func writeHistory(p *place, h *history.History) error {
	b, err := show.JSON(h)
	if err != nil {
		return err
	}
	return p.write(b)
}
