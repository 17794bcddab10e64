package config

import (
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// protective matches the names of symbols whose loss makes a kernel weaker:
// mitigations of processor faults, errata, and self-protection. It is wide on
// purpose; what it finds without need goes to lost.allow with a reason.
var protective = regexp.MustCompile(`MITIGAT|ERRAT|WORKAROUND|PREITS|SPECTRE|SPECUL|RETPOLINE|` +
	`PAGE_TABLE_(ISOLATION|CHECK)|UNMAP_KERNEL|HARDEN|STACKPROTECTOR|FORTIFY|STRICT_|RODATA|` +
	`RANDOMIZE|RANDOM_KMALLOC|FREELIST|SHUFFLE|INIT_ON_|INIT_STACK|ZERO_CALL|VMAP_STACK|SHADOW|` +
	`(^|_)(CFI|IBT|BTI|PAN|EPAN|E0PD|UMIP|SMAP|SMEP|MTE|GCS|WX|WXN)(_|$)|PTR_AUTH|POINTER_AUTH|UBSAN|` +
	`LOCKDOWN|LOCK_DOWN|SECCOMP|DMESG_RESTRICT|UNPRIV|NO_FORCE|LIST_HARDENED|DATA_CORRUPTION`)

// Allowed is an entry of the allow list: a protective symbol that is on by
// default and that ours is without, for a reason.
type Allowed struct {
	Arch, Symbol, Reason, Pos string
}

// AllowList returns PyBox's own list, lost.allow.
func AllowList() ([]Allowed, error) {
	const name = "lost.allow"
	f, err := files.Open(name)
	if err != nil {
		return nil, fmt.Errorf("open embedded list: %w", err)
	}
	defer f.Close()
	return ParseAllowList(name, f)
}

// ParseAllowList reads lines of "ARCH SYMBOL reason in words"; "#" begins a
// comment line. Errors match ErrSyntax or ErrConflict.
func ParseAllowList(name string, r io.Reader) ([]Allowed, error) {
	var list []Allowed
	seen := map[string]string{}
	err := scan(name, r, func(pos, line string) error {
		if line == "" || line[0] == '#' {
			return nil
		}
		arch, rest, _ := strings.Cut(line, " ")
		symbol, reason, _ := strings.Cut(rest, " ")
		reason = strings.TrimSpace(reason)
		key := arch + " " + symbol
		switch {
		case !slices.Contains(Arches(), arch) || !isSymbol(symbol) || reason == "":
			return fmt.Errorf("%w: %s: want ARCH SYMBOL reason, with ARCH one of %s and SYMBOL without CONFIG_",
				ErrSyntax, pos, strings.Join(Arches(), ", "))
		case seen[key] != "":
			return fmt.Errorf("%w: %s at %s and %s", ErrConflict, key, seen[key], pos)
		}
		seen[key] = pos
		list = append(list, Allowed{Arch: arch, Symbol: symbol, Reason: reason, Pos: pos})
		return nil
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

// Losses is what Lost finds.
type Losses struct {
	// Lost are protective symbols that a default configuration has and ours
	// lacks, without an entry in the allow list, sorted.
	Lost []string
	// Allowed are those with an entry.
	Allowed []Allowed
	// Stale are entries of the list that allow nothing any more.
	Stale []Allowed
}

// OK tells whether nothing is lost and the allow list is exact.
func (l Losses) OK() bool { return len(l.Lost) == 0 && len(l.Stale) == 0 }

// Lost compares ours with default configurations of the same source and
// architecture. A symbol counts when any of them has it at y and its name tells
// of protection.
func Lost(arch string, ours Config, allow []Allowed, defaults ...Config) Losses {
	missing := map[string]bool{}
	for _, d := range defaults {
		for symbol, v := range d {
			if v == "y" && ours.Value(symbol) != "y" && protective.MatchString(symbol) {
				missing[symbol] = true
			}
		}
	}
	var l Losses
	for _, a := range allow {
		switch {
		case a.Arch != arch:
		case missing[a.Symbol]:
			l.Allowed = append(l.Allowed, a)
			delete(missing, a.Symbol)
		default:
			l.Stale = append(l.Stale, a)
		}
	}
	l.Lost = slices.Sorted(maps.Keys(missing))
	return l
}
