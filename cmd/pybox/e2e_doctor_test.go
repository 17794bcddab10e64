//go:build linux && pyboxtest

package main

import (
	"encoding/json"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pybox/pybox/host/doctor"
)

// doctorBound is ten times what the doctor promises to end within.
const doctorBound = 30 * time.Second

// doctor runs the command and gives its rows by id.
func (p *person) doctor(code int) map[string]doctor.Row {
	p.t.Helper()
	began := time.Now()
	o := p.run("doctor", "--json")
	if took := time.Since(began); took > doctorBound {
		p.t.Errorf("the doctor took %v", took)
	}
	var r doctor.Report
	if err := json.Unmarshal([]byte(o.out), &r); err != nil || o.code != code || o.err != "" {
		p.t.Fatalf("exit %d, want %d; %v\n%s%s", o.code, code, err, o.out, o.err)
	}
	rows := map[string]doctor.Row{}
	for _, row := range r.Rows {
		rows[row.ID] = row
	}
	for _, id := range doctor.IDs() {
		if _, there := rows[id]; !there && id != "driver" {
			p.t.Errorf("no row %s", id)
		}
	}
	return rows
}

// expectRow holds a row to a verdict and words.
func (p *person) expectRow(rows map[string]doctor.Row, id string, v doctor.Verdict, say string) {
	p.t.Helper()
	r := rows[id]
	if r.Verdict != v || !strings.Contains(r.Observed, say) || v == doctor.Failed && !strings.Contains(r.Next, "pybox") {
		p.t.Errorf("got %+v, want %s that says %q", r, v, say)
	}
}

// TestE2EDoctor looks at a VM that is well, one whose agent is stopped, and one whose
// daemon is.
func TestE2EDoctor(t *testing.T) {
	p := newPerson(t, "")
	rows := p.doctor(0)
	p.expectRow(rows, "vm.answer", doctor.OK, "none runs")
	p.expectRow(rows, "bundle.intact", doctor.OK, "have the SHA-256")

	w := p.daemonWithin()
	rows = p.doctor(0)
	p.expectRow(rows, "vm.answer", doctor.OK, "running for")
	p.expectRow(rows, "vm.guest", doctor.OK, "answers; Linux 6.12.")
	p.expectRow(rows, "vm.clock", doctor.OK, "ms from this host's")

	hangAgent(t, w.agent(t))
	rows = p.doctor(1)
	p.expectRow(rows, "vm.guest", doctor.Failed, "NOT ANSWERING")
	p.expectRow(rows, "vm.answer", doctor.OK, "running for")
	if o := p.run("doctor"); o.code != 1 || !strings.Contains(o.out, "FAILED  Guest           NOT ANSWERING") {
		t.Errorf("exit %d:\n%s%s", o.code, o.out, o.err)
	}
	p.must("vm", "stop", "--force")
	<-w.ended

	p.must("vm", "start")
	daemon := p.status().Daemon.PID
	if err := syscall.Kill(daemon, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	rows = p.doctor(1)
	p.expectRow(rows, "vm.answer", doctor.Failed, "does not answer")
	p.expectRow(rows, "vm.guest", doctor.Unknown, "the daemon did not say")
	p.expectRow(rows, "bundle.intact", doctor.OK, "have the SHA-256")
	p.must("vm", "stop", "--force")
	p.expectRow(p.doctor(0), "vm.answer", doctor.OK, "none runs")
}
