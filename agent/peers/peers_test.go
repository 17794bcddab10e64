package peers

import (
	"encoding/json"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/pybox/pybox/agent/oci"
)

// TestCommands: every peer runs the program by the same interpreter, and is told of
// every limit that it has a word for.
func TestCommands(t *testing.T) {
	r := run{id: "peer-1", program: Empty}
	for p, want := range map[Peer][]string{
		Crun:       {"/usr/bin/crun run --bundle /run/bundle peer-1"},
		Runc:       {"/usr/sbin/runc run --bundle /run/bundle peer-1"},
		Containerd: {"run --rm ", "--read-only", "--seccomp", "--memory-limit 134217728", "--cpus 0.5", "--cap-drop CAP_SYS_CHROOT", " peer-1 /usr/bin/python3 -I -S -c pass"},
		Docker: {"run --rm ", "--network none", "--memory 134217728", "--memory-swap 134217728", "--pids-limit 32", "--cpus 0.5", "--read-only",
			"--cap-drop ALL", "--security-opt no-new-privileges", " python:bench /usr/bin/python3 -I -S -c pass"},
		DockerVersion: {"/usr/bin/docker version"},
		DockerPeriod:  {"--cpu-period 1000000 --cpu-quota 500000 ", "--pids-limit 32"},
	} {
		args, err := p.command(r)
		if err != nil {
			t.Fatal(err)
		}
		line := strings.Join(args, " ")
		for _, w := range want {
			if !strings.Contains(line, w) {
				t.Errorf("%s: no %q in %s", p, w, line)
			}
		}
		if strings.Contains(line, "--interactive") || p == DockerPeriod && strings.Contains(line, "--cpus") {
			t.Errorf("%s: %s", p, line)
		}
	}
	r.stdin = true
	if args, err := Docker.command(r); err != nil || !slices.Contains(args, "--interactive") {
		t.Errorf("with a standard input: %v, %v", args, err)
	}
	if _, err := Peer("other").command(r); err == nil {
		t.Error("an unknown peer has a command")
	}
}

// TestSpec: a runtime that is started by itself gets a box's specification, but for
// what is said to differ.
func TestSpec(t *testing.T) {
	r := run{id: "peer-1", program: "print(1)"}
	box, err := oci.Spec(oci.Config{ID: r.id, ImageRoot: imageDir, Work: workDir, Args: r.python(), Env: oci.Env(Limits(), nil), Limits: Limits()})
	if err != nil {
		t.Fatal(err)
	}
	box.Linux.CgroupsPath = "/peer-1"
	for _, p := range []Peer{Crun, Runc} {
		b, err := p.spec(r)
		if err != nil {
			t.Fatal(err)
		}
		var got, want specs.Spec
		if err := json.Unmarshal(b, &got); err != nil {
			t.Fatal(err)
		}
		if p == Runc {
			if box.Linux.Resources.Memory.Swap == nil {
				t.Error("a box has no limit of swap that runc would not be told")
			}
			box.Linux.Resources.Memory.Swap = nil
		}
		same, err := json.Marshal(box)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(same, &want); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %s, want %s", p, b, same)
		}
	}
	r.id = "not an id"
	if _, err := Crun.spec(r); err == nil {
		t.Error("a bad id has a specification")
	}
}

// right are the facts of a run of crun that is limited as it should be.
func right() Facts {
	return Facts{
		UID: 1000, Capabilities: [2]string{noCapabilities, noCapabilities}, NoNewPrivileges: "1", Seccomp: "2", ReadOnly: true,
		Interfaces: []string{"lo"}, Memory: "134217728", PIDs: "32", CPU: "500000 1000000",
	}
}

func TestCheck(t *testing.T) {
	if err := Crun.Check(right()); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*Facts){
		"user":         func(f *Facts) { f.UID = 0 },
		"capabilities": func(f *Facts) { f.Capabilities[1] = "00000000a80425fb" },
		"privileges":   func(f *Facts) { f.NoNewPrivileges = "0" },
		"seccomp":      func(f *Facts) { f.Seccomp = "0" },
		"root":         func(f *Facts) { f.ReadOnly = false },
		"network":      func(f *Facts) { f.Interfaces = append(f.Interfaces, "eth0") },
		"memory":       func(f *Facts) { f.Memory = "max" },
		"processes":    func(f *Facts) { f.PIDs = "max" },
		"CPU":          func(f *Facts) { f.CPU = "max 100000" },
	} {
		f := right()
		change(&f)
		if err := Crun.Check(f); err == nil {
			t.Errorf("another %s passes", name)
		}
	}
	f := right()
	f.UID, f.CPU = 0, "50000 100000"
	if err := Docker.Check(f); err != nil {
		t.Error(err)
	}
	f.PIDs = "max"
	if err := Containerd.Check(f); err != nil {
		t.Error(err)
	}
	if err := Docker.Check(f); err == nil {
		t.Error("Docker without a limit of processes passes")
	}
}

func TestParseFacts(t *testing.T) {
	for _, line := range []string{"", "{", "42\n", `{"uid":"x"}`} {
		if f, err := parseFacts([]byte(line)); err == nil {
			t.Errorf("%q is %+v", line, f)
		}
	}
}

// TestNoProduct: nothing that people run has this package in it; the test build of the
// agent shows that it would be seen.
func TestNoProduct(t *testing.T) {
	const here = "github.com/pybox/pybox/agent/peers"
	has := func(tags string, packages ...string) bool {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "go", append([]string{"list", "-deps", "-tags", tags}, packages...)...)
		cmd.Dir = "../.."
		cmd.Env = append(cmd.Environ(), "GOOS=linux", "CGO_ENABLED=0")
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		return slices.Contains(strings.Fields(string(out)), here)
	}
	if has("", "./cmd/...", "./guest/cmd/...") {
		t.Error("a program has it")
	}
	if !has("pyboxtest", "./cmd/pybox-agent") {
		t.Error("the test build of the agent has it not")
	}
}
