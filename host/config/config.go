// Package config reads $PYBOX_HOME/config.toml: what the owner of this PyBox
// decided. A running VM keeps the settings that it was started with.
package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"
	"github.com/pybox/pybox/agent/api"
	"github.com/pybox/pybox/host/gate"
	"github.com/pybox/pybox/host/units"
	"github.com/pybox/pybox/vm"
)

// maxBytes bounds the file: it holds a page of settings.
const maxBytes = 64 << 10

// ErrInvalid marks a file whose content cannot be used; the message names the
// line or the key.
var ErrInvalid = errors.New("the configuration is invalid")

// Config is the whole file. Keys that are missing have their defaults; keys that
// are unknown are refused, since a mistyped limit would otherwise be no limit.
type Config struct {
	Ceilings Ceilings `toml:"ceilings"`
	VM       VM       `toml:"vm"`
	Ready    Ready    `toml:"ready"`
	Receipts Receipts `toml:"receipts"`
	API      API      `toml:"api"`
}

// API is the section [api].
type API struct {
	// Listen is where the daemon's API is served beside its socket, as package gate
	// reads it; empty: nowhere.
	Listen string `toml:"listen"`
}

// Ceilings is the section [ceilings]: the most that a run may ask for. Package
// policy applies them.
type Ceilings struct {
	// Timeout is the program's time, 1 ms to 24 h.
	Timeout units.Duration `toml:"-"`
	// Memory is the box's, in bytes.
	Memory units.Size `toml:"memory"`
	CPUs   float64    `toml:"cpus"`
	PIDs   int64      `toml:"pids"`
	// Output is how much of each output stream is kept, in bytes.
	Output units.Size `toml:"output"`
	// Files and FilesBytes bound the files in, and out.
	Files      int64      `toml:"files"`
	FilesBytes units.Size `toml:"files_bytes"`

	RawTimeout any `toml:"timeout"`
}

// Receipts is the section [receipts].
type Receipts struct {
	// Keep is how many receipts are kept, 1 to 100000; the oldest go first.
	Keep int `toml:"keep"`
}

// Ready is the section [ready]: how many boxes are kept ready, made ahead for runs that
// ask for nothing but their image. Each holds the room of a run, and gives way to one.
type Ready struct {
	// Stdlib and Data are numbers of boxes of the images of those names, 0 to 16.
	Stdlib int `toml:"stdlib"`
	Data   int `toml:"data"`
	// DataImport are modules that boxes of the image data have imported already, by
	// their full names, at most 16.
	DataImport []string `toml:"data_import"`
}

// VM is the section [vm]: the guest's size and life.
type VM struct {
	// Memory is the guest's RAM, a multiple of 1 MiB, at least 512 MiB.
	Memory units.Size `toml:"memory"`
	// CPUs is the number of virtual CPUs, 1 to 64.
	CPUs int `toml:"cpus"`
	// IdleStop is how long a VM that nobody uses goes on, at least 1 s; 0 is
	// for ever.
	IdleStop units.Duration `toml:"-"`
	// StartTimeout bounds a start, from its request to the agent's hello; at
	// least 1 s.
	StartTimeout units.Duration `toml:"-"`
	// QueueWait is how long a run may wait for room, at most 24 h; with 0 it
	// starts at once or not at all.
	QueueWait units.Duration `toml:"-"`
	// Shell tells whether 'pybox vm shell' may open a shell in the guest when
	// somebody asks for it. It is closed until then in any case.
	Shell bool `toml:"shell"`
	// Accel is "auto", "kvm" or "tcg" (QEMU only). $PYBOX_ACCEL goes first.
	Accel string `toml:"accel"`

	// The durations as they stand in the file: the decoder would put a bare
	// number into a time.Duration as it is, that is, as nanoseconds.
	RawIdleStop     any `toml:"idle_stop"`
	RawStartTimeout any `toml:"start_timeout"`
	RawQueueWait    any `toml:"queue_wait"`
}

const (
	// minCPUs is the smallest part of a CPU that a box can have.
	minCPUs = float64(api.MinMilliCPU) / 1000
	// MaxFilesBytes bounds the files of a run: they are memory in the guest.
	MaxFilesBytes = 64 << 30
	// maxKeep bounds the kept receipts: a folder that lists in a moment.
	maxKeep = 100_000
)

// minMemory is what the guest's own programs and one small box need.
const minMemory = 512 << 20

// Default is the configuration of an empty file.
func Default() Config {
	return Config{Receipts: Receipts{Keep: 1000}, Ready: Ready{Stdlib: 1}, Ceilings: Ceilings{
		Timeout: units.Duration(30 * time.Second), Memory: 1 << 30, CPUs: 2, PIDs: 128,
		Output: 16 << 20, Files: 256, FilesBytes: 256 << 20,
	}, VM: VM{
		Memory: 2 << 30,
		CPUs:   min(2, runtime.NumCPU()),
		// Long enough for a person who thinks between two runs.
		IdleStop: units.Duration(30 * time.Minute),
		// Emulation on a busy machine needs some of it, hardware a second.
		StartTimeout: units.Duration(time.Minute),
		QueueWait:    units.Duration(time.Minute),
		Shell:        true,
		Accel:        "auto",
	}}
}

// Load reads the file at path; a missing one is an empty one. getenv is os.Getenv.
func Load(path string, getenv func(string) string) (Config, error) {
	c := Default()
	f, err := open(path)
	if err == nil {
		defer f.Close()
		err = c.read(f)
	}
	if err != nil && !errors.Is(err, errNone) {
		return c, fmt.Errorf("%s: %w", path, err)
	}
	if a := getenv("PYBOX_ACCEL"); a != "" {
		c.VM.Accel = a
		if err := c.validate(); err != nil {
			return c, fmt.Errorf("with PYBOX_ACCEL=%.20q: %w", a, err)
		}
	}
	return c, nil
}

// errNone: there is no file at all.
var errNone = errors.New("no such file")

// open opens a regular file. A link that leads nowhere is a mistake and not a
// missing file, and a FIFO would wait for a writer.
func open(path string) (*os.File, error) {
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return nil, errNone
	}
	st, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%w: not a regular file", ErrInvalid)
	}
	return os.Open(path)
}

func (c *Config) read(r io.Reader) error {
	data, err := io.ReadAll(io.LimitReader(r, maxBytes+1))
	if err != nil {
		return err
	}
	if len(data) > maxBytes {
		return fmt.Errorf("%w: larger than %d bytes", ErrInvalid, maxBytes)
	}
	d := toml.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(c); err != nil {
		return explain(err)
	}
	v := &c.VM
	if err := errors.Join(setDuration(&v.IdleStop, "[vm] idle_stop", &v.RawIdleStop),
		setDuration(&v.StartTimeout, "[vm] start_timeout", &v.RawStartTimeout),
		setDuration(&v.QueueWait, "[vm] queue_wait", &v.RawQueueWait),
		setDuration(&c.Ceilings.Timeout, "[ceilings] timeout", &c.Ceilings.RawTimeout)); err != nil {
		return err
	}
	return c.validate()
}

// setDuration reads a duration of the file: a string such as "1m30s", or a number
// of seconds with or without quotes. A missing one stays as it is.
func setDuration(d *units.Duration, key string, raw *any) error {
	v := *raw
	*raw = nil
	switch v := v.(type) {
	case nil:
		return nil
	case string, int64, float64:
		got, err := units.ParseDuration(fmt.Sprint(v))
		if err != nil {
			return fmt.Errorf("%w: %s: %w", ErrInvalid, key, err)
		}
		*d = units.Duration(got)
		return nil
	}
	return fmt.Errorf("%w: %s: want a duration such as \"1m30s\"", ErrInvalid, key)
}

// explain adds the line, or the unknown key, to the decoder's short sentences.
func explain(err error) error {
	var strict *toml.StrictMissingError
	if errors.As(err, &strict) && len(strict.Errors) > 0 {
		e := strict.Errors[0]
		line, _ := e.Position()
		return fmt.Errorf("%w: line %d: unknown key %q", ErrInvalid, line, strings.Join(e.Key(), "."))
	}
	var de *toml.DecodeError
	if errors.As(err, &de) {
		line, _ := de.Position()
		if strings.Contains(de.Error(), "cannot decode TOML") { // names Go types
			return fmt.Errorf("%w: line %d: %s is not given the kind of value that it takes", ErrInvalid, line, strings.Join(de.Key(), "."))
		}
		return fmt.Errorf("%w: line %d: %w", ErrInvalid, line, de)
	}
	return fmt.Errorf("%w: %w", ErrInvalid, err)
}

func (c *Config) validate() error {
	if err := c.VM.validate(); err != nil {
		return err
	}
	if err := c.Ceilings.validate(); err != nil {
		return err
	}
	if err := c.API.validate(); err != nil {
		return err
	}
	if err := c.Ready.validate(); err != nil {
		return err
	}
	if k := c.Receipts.Keep; k < 1 || k > maxKeep {
		return fmt.Errorf("%w: [receipts] keep: %d: want 1 to %d", ErrInvalid, k, maxKeep)
	}
	return nil
}

func (a API) validate() error {
	if a.Listen == "" {
		return nil
	}
	if _, err := gate.ParseAddress(a.Listen); err != nil {
		return fmt.Errorf("%w: [api] listen: %w", ErrInvalid, err)
	}
	return nil
}

func (r Ready) validate() error {
	for key, n := range map[string]int{"stdlib": r.Stdlib, "data": r.Data} {
		if n < 0 || n > api.MaxReady {
			return fmt.Errorf("%w: [ready] %s: %d: want 0 to %d", ErrInvalid, key, n, api.MaxReady)
		}
	}
	if err := api.CheckImports(r.DataImport); err != nil {
		return fmt.Errorf("%w: [ready] data_import: %w", ErrInvalid, err)
	}
	return nil
}

func (v VM) validate() error {
	bad := func(key, format string, a ...any) error {
		return fmt.Errorf("%w: [vm] %s: %s", ErrInvalid, key, fmt.Sprintf(format, a...))
	}
	switch {
	case v.Memory < minMemory:
		return bad("memory", "%v is too little: at least %v", v.Memory, units.Size(minMemory))
	case v.Memory%(1<<20) != 0:
		return bad("memory", "%d bytes are not a whole number of MiB", int64(v.Memory))
	case v.CPUs < 1 || v.CPUs > vm.MaxCPUs:
		return bad("cpus", "%d: want 1 to %d", v.CPUs, vm.MaxCPUs)
	case v.IdleStop != 0 && time.Duration(v.IdleStop) < time.Second:
		return bad("idle_stop", "%v: want at least 1s, or 0 for never", v.IdleStop)
	case time.Duration(v.StartTimeout) < time.Second:
		return bad("start_timeout", "%v: want at least 1s", v.StartTimeout)
	case time.Duration(v.QueueWait) > api.MaxQueueWait:
		return bad("queue_wait", "%v: want at most %v", v.QueueWait, units.Duration(api.MaxQueueWait))
	case v.Accel != "auto" && v.Accel != "kvm" && v.Accel != "tcg":
		return bad("accel", "%.20q: want auto, kvm or tcg", v.Accel)
	}
	return nil
}

// validate holds the ceilings to what any guest takes (package agent/api), and to
// values that some run can have.
func (l Ceilings) validate() error {
	bad := func(key string, v, low, high any) error {
		return fmt.Errorf("%w: [ceilings] %s: %v: want %v to %v", ErrInvalid, key, v, low, high)
	}
	t := time.Duration(l.Timeout)
	switch {
	case t < api.MinTimeout || t > api.MaxTimeout:
		return bad("timeout", t, api.MinTimeout, api.MaxTimeout)
	case l.Memory < api.MinMemoryBytes || l.Memory > api.MaxMemoryBytes:
		return bad("memory", l.Memory, units.Size(api.MinMemoryBytes), units.Size(api.MaxMemoryBytes))
	case !(l.CPUs >= minCPUs && l.CPUs <= vm.MaxCPUs): // NaN too
		return bad("cpus", l.CPUs, minCPUs, vm.MaxCPUs)
	case l.PIDs < api.MinPIDs || l.PIDs > api.MaxPIDs:
		return bad("pids", l.PIDs, api.MinPIDs, api.MaxPIDs)
	case l.Output > api.MaxOutputBytes:
		return bad("output", l.Output, units.Size(0), units.Size(api.MaxOutputBytes))
	case l.Files < 0 || l.Files > api.MaxInputs-1: // the program is one of them
		return bad("files", l.Files, 0, api.MaxInputs-1)
	case l.FilesBytes > MaxFilesBytes:
		return bad("files_bytes", l.FilesBytes, units.Size(0), units.Size(MaxFilesBytes))
	}
	return nil
}
