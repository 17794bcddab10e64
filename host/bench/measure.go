//go:build linux && pyboxtest

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/pybox/pybox/host/bench/report"
	"github.com/pybox/pybox/host/version"
)

// bench measures one group of figures, and adds those to r that it has when it fails.
type bench struct {
	name    string
	measure func(ctx context.Context, o *options, r *report.Report) error
	// wants says whether the options have what it needs; nil: always.
	wants func(o *options) bool
}

// groupPeers has figures of other engines.
const groupPeers = "Other ways to run Python in a container, in the same guest"

// benches are all, in the page's order.
var benches = []bench{
	{name: "start", measure: benchStart},
	{name: "guest", measure: benchGuest},
	{name: "clients", measure: benchClients},
	{name: "throughput", measure: benchThroughput},
	{name: "syscalls", measure: benchSyscalls},
	{name: "data", measure: benchData, wants: func(o *options) bool { return o.dataBundle != "" && !o.quick }},
	{name: "imports", measure: benchImports, wants: func(o *options) bool { return o.plainBundle != "" && !o.quick }},
	{name: "files", measure: benchFiles},
	{name: "peers", measure: benchPeers, wants: func(o *options) bool { return o.peersDisk != "" }},
	{name: "memory", measure: benchMemory},
	{name: "sockets", measure: benchSockets},
}

// measure measures all groups that o asks for, writes the report to file unless that is
// empty, and a table of it to w. What cannot be measured is said in the report, and does
// not keep the others from it. The error is errFailed where that happened or a budget is
// missed.
func measure(ctx context.Context, o *options, file string, w io.Writer) error {
	r := report.New(time.Now())
	r.Version, r.Commit, r.Quick = version.Number, o.commit, o.quick
	r.Machine.HostOS, r.Machine.HostArch, r.Machine.HostCPUs = runtime.GOOS, runtime.GOARCH, runtime.NumCPU()
	for _, b := range benches {
		if o.only != "" && !slices.Contains(strings.Split(o.only, ","), b.name) || b.wants != nil && !b.wants(o) {
			continue
		}
		if err := context.Cause(ctx); err != nil { // what there is is told all the same
			r.Fail(b.name, fmt.Errorf("not begun: %w", err))
			continue
		}
		began := time.Now()
		if err := b.measure(ctx, o, r); err != nil {
			r.Fail(b.name, err)
			fmt.Fprintf(os.Stderr, "bench: %s: %v\n", b.name, err)
		}
		fmt.Fprintf(os.Stderr, "bench: %s took %.0f s\n", b.name, time.Since(began).Seconds())
	}
	r.Groups = groups
	return tell(r, file, w)
}

// groups are the page's parts in its order.
var groups = []report.Group{
	{Name: groupReady, About: "An empty program, over the agent's protocol alone, on the guest's own clock: without a client, and without the daemon. A box is made ahead, verified, with Python up in it, and waits; the run is measured when it is there."},
	{Name: groupCold, About: "The same, where no box waits: one is made for the run, all its settings are read back, and it is removed. The rows under a time are its steps, in their order."},
	{Name: groupClients, About: "The same empty program as a person or a program asks for it, from the request to the complete receipt, with the box removed. Bare Python ran before each, in the guest of that run. The two commands at the end need no virtual machine."},
	{Name: groupPeers, About: aboutPeers},
	{Name: groupThroughput, About: "Clients of the API ask for a run each, and for the next as soon as they have the receipt. One client that waits for each receipt cannot use both processors: it has no budget. Bare Python ran before each load and after the last, with the guest idle: not in turns. The configuration is the default, and boxes are made ahead as they are used. CPU time is told apart by process; that of the VMM has the whole guest in it. The guest counts as its own also what the host did meanwhile with the processors that it runs on."},
	{Name: groupCalls, About: "An empty program, as in the first two tables, and what the agent and the shim ask the guest's kernel for meanwhile: counted with ptrace, from one idle moment to the next, so that with a run in a ready box the making of the next box is counted too, and with each its removal. crun is not in it, nor anything in a box. What the counting takes by itself is taken off. The speed of the machine hardly changes these numbers, but much those of Go's scheduler, which are told beside them. The five most frequent are named."},
	{Name: groupMemory, About: "What is held in the guest and on the host."},
	{Name: groupStart, About: "`pybox vm start` from the command to its end, and the steps that it reports, some of them beside each other. Before user space there is the VMM's own start and the kernel's. A first box is made ahead after the hello, while the rest of the guest's start goes on. Both sides of a ratio are of the same start."},
	{Name: groupData, About: "A program that imports pandas, once in a box that has it imported already, once in one that was made ahead without, once in one that is made for it; bare Python ran before each, for each kind its own."},
	{Name: groupImports, About: "The time of the program itself, from its start to its exit. PyBox's image has the byte code of its modules; without it each run would compile them."},
	{Name: groupFiles, About: "64 MiB that do not compress go in and come out, beside the transfer of the same bytes over a socket, in which nothing is done with them. The box may have 512 MiB; as always where two runs in a row asked for the same, such a one was made ahead."},
	{Name: groupSockets, About: "PyBox's own virtio socket device, in a guest that has nothing but services on it."},
}

// tell writes the report.
func tell(r *report.Report, file string, w io.Writer) error {
	b, err := r.Encode()
	if err != nil {
		return err
	}
	if file != "" {
		if err := os.WriteFile(file, b, 0o644); err != nil {
			return err
		}
	}
	m := r.Machine
	if _, err := fmt.Fprintf(w, "%s, acceleration %s, guest %s with %d processors, kernel %s\n", m.VMM, m.Acceleration, m.GuestArch, m.VCPUs, m.Kernel); err != nil {
		return err
	}
	if err := r.WriteTable(w); err != nil {
		return err
	}
	if len(r.Failed) > 0 || len(r.Missed()) > 0 {
		return errFailed
	}
	return nil
}

// times is a number of rounds: full, or a quarter of it where o is quick, but as many as
// the bounds of a median need.
func (o *options) times(full int) int {
	if o.quick {
		return min(full, max(full/4, 6))
	}
	return full
}
