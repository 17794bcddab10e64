package setup

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/pybox/pybox/guest/bundle"
	"github.com/pybox/pybox/host/home"
	"github.com/pybox/pybox/host/setup/programs"
)

// recordName is the file in the state folder that says what setup has made.
const recordName = "setup.json"

// recordSchema names its format. One of another format is taken for none.
const recordSchema = "pybox.setup/v1"

// record is what setup remembers. What rests on it is how eager a later setup is to
// replace a bundle, which files of the cache a removal takes, and whether an empty
// state folder goes with the rest.
type record struct {
	Schema string `json:"schema"`
	// Bundle is the ID of what was installed last, Origin where it came from.
	Bundle string `json:"bundle"`
	Origin string `json:"origin"`
	// Images are those of a bundle that setup made: they outlast it, damaged or not.
	Images   []string  `json:"images,omitempty"`
	Bytecode bool      `json:"bytecode"`
	Version  string    `json:"version"`
	At       time.Time `json:"at"`
	// MadeHome and MadeCache tell whether setup found no such folder.
	MadeHome  bool `json:"made_home"`
	MadeCache bool `json:"made_cache"`
	// Cache are the files of the cache, below it and with slashes, that setups into
	// this folder added or were about to: others' stay when these are removed.
	Cache []string `json:"cache,omitempty"`
}

// readRecord gives what is remembered. What cannot be read is as good as nothing.
func readRecord(h *home.Home) record {
	var rec record
	if err := h.ReadJSON(h.Path(recordName), &rec); err != nil || rec.Schema != recordSchema {
		return record{}
	}
	return rec
}

// state is what is in the state folder.
type state struct {
	home    *home.Home // nil: there is none
	bundles bundle.Installation
	current *bundle.Bundle // nil: none that can be opened
	problem error          // why not
	record  record
	entries []string
	running bool // a daemon owns the folder
}

// look reads the state folder and changes nothing. The error says that the folder
// cannot be PyBox's.
func look(dir string) (*state, error) {
	st := &state{}
	h, err := home.OpenExisting(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("PyBox's state folder: %w", err)
	}
	if st.bundles, err = bundle.List(dir); err != nil {
		return nil, err
	}
	st.current, st.problem = bundle.Current(dir)
	if h == nil {
		return st, nil
	}
	st.home = h
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("PyBox's state folder: %w", err)
	}
	for _, e := range entries {
		st.entries = append(st.entries, e.Name())
	}
	st.record = readRecord(h)
	free, err := h.Unlocked()
	st.running = err == nil && !free
	return st, err
}

// decision is whether to install, and why.
type decision struct {
	nothing bool
	why     string
	notes   []string
}

// decide compares what is installed with what is asked for.
func decide(ctx context.Context, o Options, st *state, t target) decision {
	cur := st.current
	if cur == nil {
		if errors.Is(st.problem, bundle.ErrNoBundle) && st.bundles.Current == "" {
			return decision{why: "No guest bundle is installed."}
		}
		return decision{why: fmt.Sprintf("The installed guest bundle cannot be used: %v.", st.problem)}
	}
	if err := cur.Verify(ctx); err != nil {
		return decision{why: fmt.Sprintf("The installed guest bundle has to be repaired: %v.", err)}
	}
	if err := fits(&cur.Manifest, o); err != nil {
		return decision{why: fmt.Sprintf("The installed guest bundle is of no use here: %v.", err)}
	}
	switch {
	case t.id != "" && t.id == cur.ID():
		return decision{nothing: true, why: "This very bundle is installed, and whole."}
	case t.id != "":
		return decision{why: "Another guest bundle is installed; it is kept as the previous one."}
	case o.Replace:
		return decision{why: "The installed guest bundle is replaced, as asked, and kept as the previous one."}
	}
	return decideMade(o, st, t)
}

// decideMade is for a bundle that would have to be made, where one is installed that
// fits.
func decideMade(o Options, st *state, t target) decision {
	m := &st.current.Manifest
	ours := st.record.Bundle == st.current.ID() && st.record.Origin == OriginDebian
	have := func(name string) bool {
		return slices.ContainsFunc(m.Images, func(i bundle.Image) bool { return i.Name == name })
	}
	for _, name := range o.Images {
		if !have(name) {
			return decision{why: fmt.Sprintf("The installed guest bundle has no image %q.", name)}
		}
	}
	same := m.LockSHA256 == t.manifest.LockSHA256 && m.Agent == t.manifest.Agent && m.InitSHA256 == t.manifest.InitSHA256 &&
		m.Kernel.Kind == t.manifest.Kernel.Kind
	switch {
	case ours && same && !st.record.Bytecode && !o.NoBytecode:
		return decision{why: "The installed guest bundle was made without byte code."}
	case ours && !same:
		return decision{why: "The installed guest bundle was made by another version of PyBox."}
	}
	d := decision{nothing: true, why: "A guest bundle is installed that is whole and fits this PyBox."}
	if !same {
		d.notes = append(d.notes, "It was not made by 'pybox setup', and is left alone for that; '--replace' installs another and keeps it as the previous one.")
	}
	return d
}

// fits tells whether this PyBox can run a bundle here. The error matches ErrUnfit.
func fits(m *bundle.Manifest, o Options) error {
	switch have := m.Agent.ProtocolVersion; {
	case m.Arch != o.Arch:
		return fmt.Errorf("%w: it is for %s, and this machine's VMs are %s: take the one for %s", ErrUnfit, m.Arch, o.Arch, o.Arch)
	case have > o.ProtocolVersion:
		return fmt.Errorf("%w: it is newer than this PyBox (protocol %d, and %s speaks %d): update pybox, or take the bundle of this version", ErrUnfit, have, o.Version, o.ProtocolVersion)
	case have < o.ProtocolVersion:
		return fmt.Errorf("%w: it is older than this PyBox (protocol %d, and %s speaks %d): take the bundle of this version", ErrUnfit, have, o.Version, o.ProtocolVersion)
	}
	return nil
}

// workKey names the folder in which a bundle is made by everything that it is made
// of, so that a folder that is found there is about the same work.
func workKey(o Options, s programs.Set) string {
	h := sha256.New()
	fmt.Fprintf(h, "%q %q %q %q %q %d %q %v", recordSchema, o.Version, o.Arch, o.Lock.SHA256(), o.Images, o.ProtocolVersion,
		[]string{digestOf(s.Init), digestOf(s.Agent)}, o.NoBytecode)
	return hex.EncodeToString(h.Sum(nil))[:keyDigits]
}

// keyDigits is how long the name of a working folder is.
const keyDigits = 16

func digestOf(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

// workDir is the folder in the cache that has the lock and the working folders.
const workDir = "setup"

func (p *Plan) lockFile() string { return filepath.Join(p.Cache, workDir, "lock") }
func (p *Plan) workDir() string  { return filepath.Join(p.Cache, workDir, p.key) }
