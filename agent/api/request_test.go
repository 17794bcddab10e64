package api

import (
	"errors"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	agentv1 "github.com/pybox/pybox/agent/api/v1"
)

func goodLimits() *agentv1.Limits {
	return &agentv1.Limits{MemoryBytes: 128 << 20, Pids: 32, MilliCpu: 500, WorkBytes: 128 << 20, WorkFiles: 4096}
}

func goodStart() *agentv1.RunStart {
	return &agentv1.RunStart{
		Id: "5319e024", Image: "img-0123456789abcdef", Program: "main.py",
		Args: []string{"--name", "Zoë", ""}, Env: []string{"A=1", "_b2=x=y", "EMPTY="},
		Limits: goodLimits(), TimeoutNs: int64(2 * time.Second), StdoutBytes: 1 << 20, StderrBytes: 0,
		QueueWaitNs: int64(time.Minute), Files: 32, FilesBytes: 32 << 20, Collect: true,
	}
}

func TestCheckRunStart(t *testing.T) {
	if err := CheckRunStart(goodStart()); err != nil {
		t.Fatal(err)
	}
	many := func(n int, s string) []string { return slices.Repeat([]string{s}, n) }
	for want, spoil := range map[string]func(*agentv1.RunStart){
		`run id ""`:                 func(m *agentv1.RunStart) { m.Id = "" },
		`run id "../x"`:             func(m *agentv1.RunStart) { m.Id = "../x" },
		`run id "Abc"`:              func(m *agentv1.RunStart) { m.Id = "Abc" },
		`run id "aaaa`:              func(m *agentv1.RunStart) { m.Id = strings.Repeat("a", 41) },
		`image "stdlib"`:            func(m *agentv1.RunStart) { m.Image = "stdlib" },
		`image "img-0123"`:          func(m *agentv1.RunStart) { m.Image = "img-0123" },
		`image "img-0123456789abcd`: func(m *agentv1.RunStart) { m.Image = "img-0123456789abcdeF" },
		`file name ""`:              func(m *agentv1.RunStart) { m.Program = "" },
		`program name "a/b"`:        func(m *agentv1.RunStart) { m.Program = "a/b" },
		`program name "-c"`:         func(m *agentv1.RunStart) { m.Program = "-c" },
		`".pybox" is kept`:          func(m *agentv1.RunStart) { m.Program = ".pybox" },
		`argument 2 "\x00"`:         func(m *agentv1.RunStart) { m.Args = []string{"a", "\x00"} },
		`argument 1 "\xff"`:         func(m *agentv1.RunStart) { m.Args = []string{"\xff"} },
		"257 arguments":             func(m *agentv1.RunStart) { m.Args = many(257, "a") },
		"arguments have 65537":      func(m *agentv1.RunStart) { m.Args = []string{strings.Repeat("a", 65536)} },
		`environment entry "A"`:     func(m *agentv1.RunStart) { m.Env = []string{"A"} },
		`environment entry "=1"`:    func(m *agentv1.RunStart) { m.Env = []string{"=1"} },
		`environment entry "1A=1"`:  func(m *agentv1.RunStart) { m.Env = []string{"1A=1"} },
		`environment entry "a b=1"`: func(m *agentv1.RunStart) { m.Env = []string{"a b=1"} },
		`variable "A" is there`:     func(m *agentv1.RunStart) { m.Env = []string{"A=1", "A=2"} },
		`variable "N": want UTF-8`:  func(m *agentv1.RunStart) { m.Env = []string{"N=a\x00b"} },
		"257 environment entries": func(m *agentv1.RunStart) {
			m.Env = nil
			for i := range 257 {
				m.Env = append(m.Env, "V"+strconv.Itoa(i)+"=")
			}
		},
		"environment entries have":                           func(m *agentv1.RunStart) { m.Env = []string{"A=" + strings.Repeat("a", 65536)} },
		"memory limit of 0":                                  func(m *agentv1.RunStart) { m.Limits = nil },
		"memory limit of 1048576":                            func(m *agentv1.RunStart) { m.Limits.MemoryBytes = 1 << 20 },
		"memory limit of 92233":                              func(m *agentv1.RunStart) { m.Limits.MemoryBytes = math.MaxInt64 },
		"memory limit of 134217729 bytes: want a multiple":   func(m *agentv1.RunStart) { m.Limits.MemoryBytes++ },
		"process limit of 3":                                 func(m *agentv1.RunStart) { m.Limits.Pids = 3 },
		"process limit of 32769":                             func(m *agentv1.RunStart) { m.Limits.Pids = 32769 },
		"CPU limit of -1":                                    func(m *agentv1.RunStart) { m.Limits.MilliCpu = -1 },
		"CPU limit of 1024001":                               func(m *agentv1.RunStart) { m.Limits.MilliCpu = 1024001 },
		"folder's size of 134217729: want 4096 to 134217728": func(m *agentv1.RunStart) { m.Limits.WorkBytes++ },
		"folder's files of 0":                                func(m *agentv1.RunStart) { m.Limits.WorkFiles = 0 },
		"time limit of 0s":                                   func(m *agentv1.RunStart) { m.TimeoutNs = 0 },
		"time limit of 24h0m0.0":                             func(m *agentv1.RunStart) { m.TimeoutNs = int64(MaxTimeout) + 1e6 },
		"kept standard output of -1":                         func(m *agentv1.RunStart) { m.StdoutBytes = -1 },
		"kept standard error of 1677":                        func(m *agentv1.RunStart) { m.StderrBytes = 16<<20 + 1 },
		"wait for room of -1ns":                              func(m *agentv1.RunStart) { m.QueueWaitNs = -1 },
		"number of files of -1":                              func(m *agentv1.RunStart) { m.Files = -1 },
		"number of files of 1025: want 0 to 1024":            func(m *agentv1.RunStart) { m.Files = 1025 },
		"size of the files of -1":                            func(m *agentv1.RunStart) { m.FilesBytes = -1 },
		"size of the files of 1099511627777":                 func(m *agentv1.RunStart) { m.FilesBytes = 1<<40 + 1 },
	} {
		m := goodStart()
		spoil(m)
		err := CheckRunStart(m)
		if !errors.Is(err, ErrRequest) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want ErrRequest with %q", err, want)
		}
		if err != nil && len(err.Error()) > maxErrorMessage {
			t.Errorf("the error has %d bytes, more than reach the host: %v", len(err.Error()), err)
		}
	}
	if err := CheckRunStart(nil); !errors.Is(err, ErrRequest) {
		t.Errorf("nil: %v", err)
	}
}

func TestCheckFileName(t *testing.T) {
	deep := strings.Repeat("d/", MaxNameDepth-1) + "f"
	for _, name := range []string{
		"a", "data/2024 (1).csv", "-x", "a-b", ".hidden", ".pyboxes", "sub/.pybox", ".pybox-output", "x.pybox-output-0", "été/日本.txt", "a\\b", strings.Repeat("n", 255), deep,
	} {
		if err := CheckFileName(name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	for name, want := range map[string]string{
		"":                       "empty parts",
		"/etc/passwd":            "relative",
		"a//b":                   "empty parts",
		"a/":                     "empty parts",
		".":                      `"."`,
		"./a":                    `"."`,
		"a/../../b":              `".."`,
		"a\nb":                   "control",
		"a\x00":                  "control",
		"a\u0085b":               "control",
		"a\x7f":                  "control",
		"\xff":                   "UTF-8",
		strings.Repeat("n", 256): "256 bytes",
		"d/" + deep:              "folders deep",
		strings.Repeat(strings.Repeat("n", 250)+"/", 9) + "x": "at most 2048",
		".pybox":         "kept for PyBox",
		".pybox/s":       "kept for PyBox",
		".pybox-output-": "kept for PyBox", ".pybox-output-0/s": "kept for PyBox", "a/b/.PyBox-Output-x": "kept for PyBox",
	} {
		if err := CheckFileName(name); !errors.Is(err, ErrRequest) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want ErrRequest with %q", name, err, want)
		}
	}
}

func TestCheckRunFile(t *testing.T) {
	for _, m := range []*agentv1.RunFile{{Name: "a"}, {Name: "a/b", Bytes: 1 << 40, Executable: true}, {Name: "d", Folder: true}} {
		if err := CheckRunFile(m); err != nil {
			t.Errorf("%v: %v", m, err)
		}
	}
	for _, m := range []*agentv1.RunFile{
		nil, {Name: "../a"}, {Name: "a", Bytes: -1}, {Name: "a", Bytes: 1<<40 + 1},
		{Name: "d", Folder: true, Bytes: 1}, {Name: "d", Folder: true, Executable: true},
	} {
		if err := CheckRunFile(m); !errors.Is(err, ErrRequest) {
			t.Errorf("%v: %v, want ErrRequest", m, err)
		}
	}
}

func goodBuild() *agentv1.BuildRequest {
	return &agentv1.BuildRequest{
		Image: "img-0123456789abcdef", Limits: goodLimits(), TimeoutNs: int64(10 * time.Minute), MaxTarBytes: 256 << 20,
	}
}

func TestCheckBuild(t *testing.T) {
	if err := CheckBuild(goodBuild()); err != nil {
		t.Fatal(err)
	}
	for want, spoil := range map[string]func(*agentv1.BuildRequest){
		"image":         func(m *agentv1.BuildRequest) { m.Image = "root" },
		"memory limit":  func(m *agentv1.BuildRequest) { m.Limits = nil },
		"time limit":    func(m *agentv1.BuildRequest) { m.TimeoutNs = -1 },
		"archive of 0":  func(m *agentv1.BuildRequest) { m.MaxTarBytes = 0 },
		"archive of 10": func(m *agentv1.BuildRequest) { m.MaxTarBytes = 1<<30 + 1 },
	} {
		m := goodBuild()
		spoil(m)
		if err := CheckBuild(m); !errors.Is(err, ErrRequest) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want ErrRequest with %q", err, want)
		}
	}
}

func FuzzCheckRunStart(f *testing.F) {
	b, err := proto.Marshal(goodStart())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte{})
	bad := goodStart()
	bad.Env = []string{strings.Repeat("\x01", 1000)}
	if b, err = proto.Marshal(bad); err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		m := new(agentv1.RunStart)
		if proto.Unmarshal(b, m) != nil {
			return
		}
		if err := CheckRunStart(m); err != nil {
			if !errors.Is(err, ErrRequest) || len(err.Error()) > maxErrorMessage {
				t.Errorf("the error is %v", err)
			}
			return
		}
		l := m.GetLimits()
		if l.GetMemoryBytes() <= 0 || l.GetWorkBytes() > l.GetMemoryBytes() || l.GetPids() <= 0 || l.GetMilliCpu() <= 0 || m.GetTimeoutNs() <= 0 {
			t.Errorf("%v passed", m)
		}
		for _, s := range slices.Concat(m.GetArgs(), m.GetEnv(), []string{m.GetProgram(), m.GetId(), m.GetImage()}) {
			if strings.Contains(s, "\x00") {
				t.Errorf("%q passed", s)
			}
		}
	})
}

func FuzzCheckFileName(f *testing.F) {
	for _, s := range []string{"a", "../a", "a/./b", "/", "a\x00", ".pybox/x", "x/.pyboX-output-", "\xff", "a//b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if CheckFileName(name) != nil {
			return
		}
		// What passes stays below the folder that it is put in.
		if p := path.Join("/box", name); p != "/box/"+name || !utf8.ValidString(name) || strings.ContainsAny(name, "\x00\n") || len(name) > MaxNameBytes {
			t.Errorf("%q passed", name)
		}
	})
}

func goodReady() *agentv1.Ready {
	return &agentv1.Ready{
		Image: "img-0123456789abcdef", Count: 1, OutputBytes: 2 << 20, Env: []string{"A=b"}, Imports: []string{"numpy", "os.path"},
		Limits: &agentv1.Limits{MemoryBytes: 128 << 20, Pids: 32, MilliCpu: 500, WorkBytes: 128 << 20, WorkFiles: 1000},
	}
}

func TestCheckSetReady(t *testing.T) {
	other := goodReady()
	other.Limits.Pids++
	for _, good := range []*agentv1.SetReadyRequest{{}, {Ready: []*agentv1.Ready{goodReady(), other}}} {
		if err := CheckSetReady(good); err != nil {
			t.Error(err)
		}
	}
	many := &agentv1.SetReadyRequest{}
	for i := range MaxReady + 1 {
		r := goodReady()
		r.Limits.Pids += int64(i)
		many.Ready = append(many.Ready, r)
	}
	sameRuns := goodReady() // whatever else it has
	sameRuns.Count, sameRuns.Imports = 2, nil
	bad := map[string]*agentv1.SetReadyRequest{"many": many, "twice": {Ready: []*agentv1.Ready{goodReady(), sameRuns}}}
	for name, change := range map[string]func(*agentv1.Ready){
		"image":         func(r *agentv1.Ready) { r.Image = "stdlib" },
		"none":          func(r *agentv1.Ready) { r.Count = 0 },
		"too many":      func(r *agentv1.Ready) { r.Count = MaxReady + 1 },
		"no limits":     func(r *agentv1.Ready) { r.Limits = nil },
		"environment":   func(r *agentv1.Ready) { r.Env = []string{"a-b=c"} },
		"output":        func(r *agentv1.Ready) { r.OutputBytes = 2*MaxOutputBytes + 1 },
		"less output":   func(r *agentv1.Ready) { r.OutputBytes = -1 },
		"empty module":  func(r *agentv1.Ready) { r.Imports = []string{""} },
		"part":          func(r *agentv1.Ready) { r.Imports = []string{"a..b"} },
		"statement":     func(r *agentv1.Ready) { r.Imports = []string{"os;x"} },
		"two words":     func(r *agentv1.Ready) { r.Imports = []string{"os sys"} },
		"digit":         func(r *agentv1.Ready) { r.Imports = []string{"a.1b"} },
		"long module":   func(r *agentv1.Ready) { r.Imports = []string{strings.Repeat("m", MaxImportBytes+1)} },
		"many modules":  func(r *agentv1.Ready) { r.Imports = make([]string, MaxImports+1) },
		"work too much": func(r *agentv1.Ready) { r.Limits.WorkBytes = r.Limits.MemoryBytes + 1 },
	} {
		r := goodReady()
		change(r)
		bad[name] = &agentv1.SetReadyRequest{Ready: []*agentv1.Ready{r}}
	}
	for name, m := range bad {
		if err := CheckSetReady(m); !errors.Is(err, ErrRequest) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestReadyKey(t *testing.T) {
	key := func(change func(*agentv1.Ready)) string {
		r := goodReady()
		change(r)
		return ReadyKey(r.GetImage(), r.GetLimits(), r.GetEnv())
	}
	same := key(func(*agentv1.Ready) {})
	if key(func(r *agentv1.Ready) { r.Count, r.OutputBytes, r.Imports = 3, 0, nil }) != same {
		t.Error("a run cannot differ in what makes another key")
	}
	for i, change := range []func(*agentv1.Ready){
		func(r *agentv1.Ready) { r.Image = "img-0123456789abcde0" },
		func(r *agentv1.Ready) { r.Env = nil },
		func(r *agentv1.Ready) { r.Env = []string{"A=b", "B=c"} },
		func(r *agentv1.Ready) { r.Env = []string{"A=b\" \"B=c"} },
		func(r *agentv1.Ready) { r.Limits.MemoryBytes++ },
		func(r *agentv1.Ready) { r.Limits.Pids++ },
		func(r *agentv1.Ready) { r.Limits.MilliCpu++ },
		func(r *agentv1.Ready) { r.Limits.WorkBytes++ },
		func(r *agentv1.Ready) { r.Limits.WorkFiles++ },
	} {
		if key(change) == same {
			t.Errorf("change %d makes no other key", i)
		}
	}
}

func FuzzCheckSetReady(f *testing.F) {
	good, err := proto.Marshal(&agentv1.SetReadyRequest{Ready: []*agentv1.Ready{goodReady()}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Fuzz(func(t *testing.T, b []byte) {
		m := &agentv1.SetReadyRequest{}
		if proto.Unmarshal(b, m) != nil || CheckSetReady(m) != nil {
			return
		}
		keys := map[string]bool{}
		for _, r := range m.GetReady() {
			if len(r.GetImports()) > MaxImports || r.GetCount() < 1 || r.GetCount() > MaxReady || r.GetLimits() == nil {
				t.Errorf("%v", r)
			}
			for _, name := range r.GetImports() {
				if strings.ContainsAny(name, " \x00\n") {
					t.Errorf("module %q", name)
				}
			}
			keys[ReadyKey(r.GetImage(), r.GetLimits(), r.GetEnv())] = true
		}
		if len(keys) != len(m.GetReady()) || len(keys) > MaxReady {
			t.Errorf("%d kinds of %d", len(keys), len(m.GetReady()))
		}
	})
}
