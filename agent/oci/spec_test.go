package oci

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// valid is a Config that nothing is wrong with.
func valid() Config {
	l := Limits{MemoryBytes: 128 << 20, PIDs: 32, MilliCPU: 500, WorkBytes: 128 << 20, WorkFiles: 4096}
	return Config{
		ID: "5319e024", Slot: 3, ImageRoot: "/run/pybox/images/stdlib", Work: "/run/pybox/boxes/5319e024/work",
		Args: []string{"/usr/bin/python3", "main.py", "-v"}, Env: Env(l, []string{"PYTHONPATH=/box/.pybox"}), Limits: l,
	}
}

// golden compares v's JSON with a file.
func golden(t *testing.T, file string, v any) {
	t.Helper()
	got, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	got = append(got, '\n')
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("not what %s says; if it should be, run the test with -update and read the difference:\n%s", file, got)
	}
}

// TestSpecGolden shows a whole box. The system call filter, which depends on the
// architecture, has files of its own.
func TestSpecGolden(t *testing.T) {
	s, err := Spec(valid())
	if err != nil {
		t.Fatal(err)
	}
	if s.Linux.Seccomp == nil {
		t.Error("no system call filter")
	}
	s.Linux.Seccomp = nil
	golden(t, "testdata/spec.json", s)
}

// TestIDOfTwoNames: a box that no run has yet has an id that no run can have.
func TestIDOfTwoNames(t *testing.T) {
	c := valid()
	for _, id := range []string{"ready.7", "a-b.c-1"} {
		c.ID = id
		if _, err := Spec(c); err != nil {
			t.Error(err)
		}
	}
}

// TestSpecShares: a caller can change a specification without changing others.
func TestSpecShares(t *testing.T) {
	c := valid()
	a, err := Spec(c)
	if err != nil {
		t.Fatal(err)
	}
	a.Process.Args[0], a.Process.Env[0] = "x", "x=1"
	a.Linux.UIDMappings[0].Size, *a.Linux.Resources.Memory.Limit = 1, 1
	a.Mounts[0].Options[0] = "x"
	a.Linux.MaskedPaths[0], a.Process.Rlimits[0].Hard = "/x", 1
	a.Linux.Seccomp.Syscalls[0].Names[0] = "x"
	b, err := Spec(c)
	if err != nil {
		t.Fatal(err)
	}
	fresh, err := Spec(valid())
	if err != nil {
		t.Fatal(err)
	}
	x, _ := json.Marshal(b)
	y, _ := json.Marshal(fresh)
	if !bytes.Equal(x, y) {
		t.Error("one specification changed another")
	}
	if *b.Linux.Resources.Memory.Limit != c.Limits.MemoryBytes {
		t.Error("the limit is shared")
	}
	if b.Linux.GIDMappings[0].Size != IDRange {
		t.Error("the maps are shared")
	}
}

func TestSpecRefuses(t *testing.T) {
	long := strings.Repeat("x", maxString)
	for name, spoil := range map[string]func(*Config){
		"no id":                    func(c *Config) { c.ID = "" },
		"a long id":                func(c *Config) { c.ID = strings.Repeat("a", MaxID+1) },
		"an id with capitals":      func(c *Config) { c.ID = "Run" },
		"an id that is a path":     func(c *Config) { c.ID = "../x" },
		"an id that is a folder":   func(c *Config) { c.ID = ".." },
		"an id that is hidden":     func(c *Config) { c.ID = ".a" },
		"an id with half a name":   func(c *Config) { c.ID = "a." },
		"an id with three names":   func(c *Config) { c.ID = "a.b.c" },
		"a negative slot":          func(c *Config) { c.Slot = -1 },
		"a slot too high":          func(c *Config) { c.Slot = MaxSlots },
		"no image":                 func(c *Config) { c.ImageRoot = "" },
		"the guest's root":         func(c *Config) { c.ImageRoot = "/" },
		"a relative image":         func(c *Config) { c.ImageRoot = "image" },
		"an unclean image":         func(c *Config) { c.ImageRoot = "/run/../x" },
		"no work folder":           func(c *Config) { c.Work = "" },
		"a long work folder":       func(c *Config) { c.Work = "/" + strings.Repeat("x", maxPath) },
		"a zero in a path":         func(c *Config) { c.Work = "/x\x00" },
		"no program":               func(c *Config) { c.Args = nil },
		"an empty program":         func(c *Config) { c.Args = []string{"", "x"} },
		"a zero in an argument":    func(c *Config) { c.Args = append(c.Args, "x\x00y") },
		"a long argument":          func(c *Config) { c.Args = append(c.Args, long) },
		"too many arguments":       func(c *Config) { c.Args = append(c.Args, slices.Repeat([]string{"1234567"}, MaxStrings/8)...) },
		"a zero in a variable":     func(c *Config) { c.Env = append(c.Env, "X=\x00") },
		"a variable without value": func(c *Config) { c.Env = append(c.Env, "X") },
		"a variable without name":  func(c *Config) { c.Env = append(c.Env, "=x") },
		"a variable twice":         func(c *Config) { c.Env = append(c.Env, "X=1", "X=2") },
		"no memory":                func(c *Config) { c.Limits.MemoryBytes = 0 },
		"little memory":            func(c *Config) { c.Limits.MemoryBytes = MinMemory - PageSize },
		"part of a page":           func(c *Config) { c.Limits.MemoryBytes = MinMemory + 1 },
		"few processes":            func(c *Config) { c.Limits.PIDs = MinPIDs - 1 },
		"many processes":           func(c *Config) { c.Limits.PIDs = MaxPIDs + 1 },
		"no CPU":                   func(c *Config) { c.Limits.MilliCPU = 0 },
		"many CPUs":                func(c *Config) { c.Limits.MilliCPU = MaxMilliCPU + 1 },
		"no room for work":         func(c *Config) { c.Limits.WorkBytes = PageSize - 1 },
		"no files":                 func(c *Config) { c.Limits.WorkFiles = 0 },
	} {
		c := valid()
		spoil(&c)
		s, err := Spec(c)
		if !errors.Is(err, ErrConfig) || s != nil {
			t.Errorf("%s: %v, %v; want ErrConfig and no specification", name, s, err)
		}
		if err != nil && strings.ContainsAny(err.Error(), "\x00\n") || len(err.Error()) > 8<<10 {
			t.Errorf("%s: the error is no readable line: %.100q", name, err)
		}
	}
}

func TestEnv(t *testing.T) {
	l := Limits{MilliCPU: 1500}
	got := Env(l, []string{"X=1", "TZ=CET", "OMP_NUM_THREADS=7", "PATHS=x"})
	for _, want := range []string{"X=1", "TZ=CET", "OMP_NUM_THREADS=7", "OPENBLAS_NUM_THREADS=2", "LANG=C.UTF-8", "PATHS=x"} {
		if !slices.Contains(got, want) {
			t.Errorf("%s is not in %q", want, got)
		}
	}
	if slices.Contains(got, "TZ=UTC") || len(got) != len(Env(l, nil))+2 {
		t.Errorf("an override is added instead: %q", got)
	}
	if err := checkEnv(Env(l, nil)); err != nil {
		t.Error(err)
	}
}

func TestLimits(t *testing.T) {
	for _, k := range []struct {
		milli   int64
		quota   time.Duration
		threads int
	}{{1, time.Millisecond, 1}, {140, 140 * time.Millisecond, 1}, {1000, time.Second, 1}, {1001, 1001 * time.Millisecond, 2}, {2000, 2 * time.Second, 2}} {
		l := Limits{MilliCPU: k.milli}
		if l.CPUQuota() != k.quota || l.Threads() != k.threads {
			t.Errorf("%d thousandths: quota %v, %d threads; want %v, %d", k.milli, l.CPUQuota(), l.Threads(), k.quota, k.threads)
		}
	}
}

// TestIDRanges: no two slots share an id, and none reaches the guest's own.
func TestIDRanges(t *testing.T) {
	for slot := range MaxSlots {
		m := IDMap(slot)
		if m.ContainerID != 0 || m.Size != IDRange || int(m.HostID) != FirstID+slot*IDRange {
			t.Errorf("slot %d has %+v", slot, m)
		}
		c := Config{Slot: slot}
		if uid := c.HostUID(); uid != int(m.HostID)+UID || uid >= int(m.HostID)+int(m.Size) {
			t.Errorf("slot %d has the user %d outside of %+v", slot, uid, m)
		}
		if c.HostGID() != int(m.HostID)+GID {
			t.Errorf("slot %d has the group %d", slot, c.HostGID())
		}
	}
}

func TestMountsAreBounded(t *testing.T) {
	l := valid().Limits
	for _, m := range Mounts(l) {
		if m.Type == "tmpfs" && m.Bytes <= 0 {
			t.Errorf("%s has no size", m.Target)
		}
		if !m.NoSuid || !m.NoExec {
			t.Errorf("%s: %+v", m.Target, m)
		}
		// Only what a program can write to can be filled with files.
		if m.Mode == 0o1777 && m.Files <= 0 {
			t.Errorf("%s has no number of files", m.Target)
		}
	}
}
