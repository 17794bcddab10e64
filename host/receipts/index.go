package receipts

import (
	"cmp"
	"slices"
	"strings"
	"time"

	agentapi "github.com/pybox/pybox/agent/api"
)

// entry is one kept receipt.
type entry struct {
	ms int64 // when its run was started, in milliseconds since 1970
	id string
}

func (e entry) at() time.Time { return time.UnixMilli(e.ms).UTC() }

const (
	// nameTime is the beginning of a file's name: ISO 8601's basic form.
	nameTime = "20060102T150405.000Z"
	nameEnd  = ".json"
)

// name is the name of the entry's file.
func (e entry) name() string { return e.at().Format(nameTime) + "-" + e.id + nameEnd }

// parseName reads the name of a file that the store made.
func parseName(name string) (entry, bool) {
	stem, ok := strings.CutSuffix(name, nameEnd)
	if !ok || len(stem) <= len(nameTime) || stem[len(nameTime)] != '-' {
		return entry{}, false
	}
	at, err := time.Parse(nameTime, stem[:len(nameTime)])
	e := entry{ms: at.UnixMilli(), id: stem[len(nameTime)+1:]}
	return e, err == nil && agentapi.CheckRunID(e.id) == nil && e.name() == name
}

func compare(a, b entry) int {
	return cmp.Or(cmp.Compare(a.ms, b.ms), strings.Compare(a.id, b.id))
}

// index holds the kept receipts in memory.
type index struct {
	entries []entry // oldest first
	byID    map[string]entry
}

// newIndex makes the index of entries. Of two with one id, which a crash can
// leave, the newer counts and the older is stale.
func newIndex(entries []entry) (x index, stale []entry) {
	x.byID = make(map[string]entry, len(entries))
	for _, e := range entries {
		if old, ok := x.byID[e.id]; !ok || compare(old, e) < 0 {
			x.byID[e.id] = e
		}
	}
	for _, e := range entries {
		if x.byID[e.id] == e {
			x.entries = append(x.entries, e)
		} else {
			stale = append(stale, e)
		}
	}
	slices.SortFunc(x.entries, compare)
	return x, stale
}

func (x *index) find(id string) (entry, bool) {
	e, ok := x.byID[id]
	return e, ok
}

func (x *index) add(e entry) {
	i, there := slices.BinarySearchFunc(x.entries, e, compare)
	if !there {
		x.entries = slices.Insert(x.entries, i, e)
	}
	x.byID[e.id] = e
}

func (x *index) remove(e entry) {
	if i, there := slices.BinarySearchFunc(x.entries, e, compare); there {
		x.entries = slices.Delete(x.entries, i, i+1)
	}
	if x.byID[e.id] == e {
		delete(x.byID, e.id)
	}
}
