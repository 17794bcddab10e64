//go:build linux

package main

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"github.com/pybox/pybox/host/receipt"
	"github.com/pybox/pybox/host/repair/history"
	"github.com/pybox/pybox/host/repair/modeltest"
)

// modelKey is a key that must be nowhere but in the header of a question.
const modelKey = "sk-e2e-0123456789abcdef"

// TestE2ERepair has programs repaired by a model's server of its own, in real boxes.
func TestE2ERepair(t *testing.T) {
	p := newPerson(t, "")
	p.env = append(p.env, "OPENAI_API_KEY="+modelKey, "ANTHROPIC_API_KEY=")
	p.must("vm", "start")
	for _, c := range []struct {
		name string
		test func(*testing.T, *person)
	}{
		{"two rounds", testTwoRounds},
		{"check and memory", testCheckAndMemory},
		{"interrupted", testRepairInterrupted},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := p.in(t)
			c.test(t, p)
			p.expectIdle()
		})
	}
	p.expectNowhere(modelKey)
}

// expectNowhere looks for a secret in every file of the state directory but those that
// a VM boots from.
func (p *person) expectNowhere(secret string) {
	p.t.Helper()
	files := 0
	err := filepath.WalkDir(p.home, func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && e.Name() == "bundles":
			return fs.SkipDir
		case !e.Type().IsRegular():
			return nil
		}
		files++
		b, err := os.ReadFile(path)
		if strings.Contains(string(b), secret) {
			p.t.Errorf("%s has the secret", path)
		}
		return err
	})
	if err != nil || files < 5 {
		p.t.Errorf("%d files, %v", files, err)
	}
}

// repair runs 'pybox repair' with the time that an emulated guest takes.
func (p *person) repair(s *modeltest.Server, args ...string) (outcome, history.History) {
	p.t.Helper()
	o := p.run(append([]string{"repair", "--base-url", s.URL, "--model", "m", "--timeout", "30", "--budget", "3m", "--json"}, args...)...)
	var h history.History
	if err := json.Unmarshal([]byte(o.out), &h); err != nil {
		p.t.Fatalf("%v: exit %d, stdout %.1000q, stderr %.4000q", err, o.code, o.out, o.err)
	}
	if strings.Contains(o.out+o.err, modelKey) {
		p.t.Error("the key is shown")
	}
	return o, h
}

// testTwoRounds: a program is repaired in two rounds, each run in a box of its own
// under the same limits, with its receipt kept, and the original is as it was.
func testTwoRounds(t *testing.T, p *person) {
	const head, tail = "lines = list(open('numbers.txt'))\nnumbers = [float(l) for l in ", "]\nprint(sum(numbers) / len(numbers))\n"
	const broken, better, works = head + "line" + tail, head + "lines" + tail, head + "lines if l.strip()" + tail
	script, input := p.program("mean.py", broken), p.program("numbers.txt", "1\n\n2\n3\n")
	fixed := filepath.Join(t.TempDir(), "fixed.py")
	s := modeltest.New(t, modeltest.OpenAI("A typo:\n"+modeltest.Block(better), "stop"), modeltest.Status(429, map[string]string{"Retry-After": "1"}, `{"error":{"message":"slower"}}`),
		modeltest.OpenAI(modeltest.Block(works), "stop"))
	before := p.keptIDs()
	o, h := p.repair(s, "--provider", "openai", "--input", input, "--expect", "2.0", "--output", fixed, "--memory", "96MiB", script)
	if o.code != 0 || h.End.By != history.EndRepaired || len(h.Rounds) != 3 {
		t.Fatalf("exit %d, %+v\n%s", o.code, h.End, o.err)
	}
	if string(mustRead(t, script)) != broken || string(mustRead(t, fixed)) != works {
		t.Error("the original was changed, or the output is not what works")
	}
	requests := s.Requests()
	if len(requests) != 3 || requests[2].At.Sub(requests[1].At).Seconds() < 1 {
		t.Errorf("%d questions; Retry-After was not honoured", len(requests))
	}
	for i, say := range []string{"name 'line' is not defined", "could not convert string to float"} {
		if q := requests[i].Text; !strings.Contains(q, say) || strings.Contains(q, filepath.Dir(script)) {
			t.Errorf("question %d: %s", i+1, q)
		}
		if requests[i].Header.Get("Authorization") != "Bearer "+modelKey {
			t.Errorf("question %d without its key", i+1)
		}
	}
	var limits []receipt.Limits
	boxes := map[string]bool{}
	for n, r := range h.Rounds {
		kept := p.kept(r.Run.ID)
		if before[r.Run.ID] || kept.Cleanup.Status != receipt.CleanupRemoved || *kept.Configured.Program.SHA256 != r.Program.SHA256 {
			t.Errorf("round %d: %+v, %+v", n, kept.Cleanup, kept.Configured.Program)
		}
		limits, boxes[r.Run.ID] = append(limits, kept.Configured.Limits), true
	}
	if len(boxes) != 3 || !reflect.DeepEqual(limits[0], limits[1]) || !reflect.DeepEqual(limits[0], limits[2]) || limits[0].MemoryBytes != 96<<20 {
		t.Errorf("%d runs with %+v", len(boxes), limits)
	}
}

// testCheckAndMemory: the kernel's word on memory reaches the model, and a check in a
// box of its own decides.
func testCheckAndMemory(t *testing.T, p *person) {
	script := p.program("double.py", "big = bytearray(10**10)\n")
	check := p.program("check.py", "import subprocess, sys\nrun = subprocess.run([sys.executable, '-c', 'import double; print(double.double(21))'], capture_output=True)\nassert run.stdout.strip() == b'42', 'wrong'\n")
	s := modeltest.New(t, modeltest.Anthropic(modeltest.Block("def double(n):\n    return n + n + 1"), "end_turn"), modeltest.Anthropic(modeltest.Block("def double(n):\n    return n + n"), "end_turn"))
	p.env = append(p.env, "ANTHROPIC_API_KEY="+modelKey)
	o, h := p.repair(s, "--provider", "anthropic", "--check", check, script)
	if o.code != 0 || h.End.By != history.EndRepaired || len(h.Rounds) != 3 || h.Rounds[0].Check != nil || h.Rounds[1].Check == nil || h.Rounds[2].Check == nil {
		t.Fatalf("exit %d, %+v\n%s", o.code, h, o.err)
	}
	first, second := s.Requests()[0].Text, s.Requests()[1].Text
	if !strings.Contains(first, "MemoryError") && !strings.Contains(first, "needed more memory") {
		t.Errorf("the model is told %s", first)
	}
	if !strings.Contains(second, "The check that was run after it ended by itself with exit code 1") || !strings.Contains(second, "AssertionError: wrong") {
		t.Errorf("the model is told %s", second)
	}
	for _, r := range []string{h.Rounds[1].Check.ID, h.Rounds[2].Check.ID} {
		if k := p.kept(r); k.Configured.Program.Name != "check.py" || len(k.Configured.Inputs) != 1 || k.Configured.Inputs[0].Name != "double.py" {
			t.Errorf("the check's box: %+v", k.Configured)
		}
	}
}

// testRepairInterrupted: an interrupt ends a run with its box, and a question.
func testRepairInterrupted(t *testing.T, p *person) {
	s := modeltest.New(t, modeltest.Stall(""))
	for _, c := range []struct{ name, code string }{
		{"in a run", "import time\ntime.sleep(25)\n"},
		{"while the model thinks", "1/0\n"},
	} {
		script := p.program("a.py", c.code)
		r := p.start(nil, "repair", "--base-url", s.URL, "--model", "m", "--timeout", "30", "--budget", "3m", script)
		if c.name == "in a run" {
			p.eventually("a run", func() bool { return p.running() == 1 })
		} else {
			p.eventually("a question", func() bool { return len(s.Requests()) == 1 })
		}
		if !r.alive() {
			t.Fatalf("%s: it ended by itself", c.name)
		}
		r.signal(syscall.SIGINT)
		if o := r.wait(); o.code != 130 || !strings.Contains(o.err, "interrupted") {
			t.Errorf("%s: exit %d\n%s", c.name, o.code, o.err)
		}
		p.expectIdle()
	}
}
