//go:build linux && pyboxtest

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/pybox/pybox/agent/peers"
	"github.com/pybox/pybox/host/bench/report"
)

const (
	// peersConfig keeps one box ready, in a VM with room for the engines' images.
	peersConfig = "[vm]\nmemory = \"2GiB\"\n[ready]\nstdlib = 1\n"
	// peersPatience bounds the start of the engines, which read the image several times.
	peersPatience = 5 * patience
	// peersWarmUp is one round; each engine has run before it, to be looked at.
	peersWarmUp = 1
)

// aboutPeers says what is compared.
const aboutPeers = "The same empty program on the same image in one guest with PyBox's own kernel, in turns: by `pybox exec`, and by " +
	"container engines from Debian's packages. A time is that of a whole command, from its start to its end; `pybox exec` runs on the host, " +
	"and the others, which are not told of a virtual machine, in the guest, where their daemons run already and have the image. " +
	"All are limited to 128 MiB, 32 processes and half a CPU, with no network but a loopback, a read-only root, no capabilities, " +
	"no_new_privileges and a filter of system calls; that was read, inside and from the cgroup, before anything was measured. " +
	"`ctr` has no limit of processes. `crun` and `runc` get the specification of a box, user namespace and filter too, but for the limit " +
	"of swap with `runc`, which fails where the kernel has no swap. With the others the program is root, in the guest's user namespace, " +
	"behind their own filters, and they put an overlay of memory on the image for each container. " +
	"Half of a CPU is 50 ms in every 100 with them, and half a second in every second with a box, `crun` and `runc`, which a short program " +
	"does not use up: the last rows tell what Docker takes with that. `dockerd` has neither bridge nor firewall " +
	"to set up, since the guest has none. None but PyBox reads back what it set, counts and bounds what is printed, or leaves a receipt."

// peer is an engine that is measured.
type peer struct {
	peers.Peer
	// name is for people; packages are what it is made of, the first by its version.
	name     string
	packages []string
	note     string
	// every: it is measured in one round of so many, since some take seconds.
	every int
	took  []float64
}

// newPeers are all engines. Each runs the program that a box runs, with the limits of a
// box by default.
func newPeers() []*peer {
	return []*peer{
		{Peer: peers.Crun, name: "`crun run`", packages: []string{"crun"}, every: 1,
			note: "the specification of a box"},
		{Peer: peers.Runc, name: "`runc run`", packages: []string{"runc"}, every: 1,
			note: "the same without a limit of swap"},
		{Peer: peers.Containerd, name: "`ctr run --rm`", packages: []string{"containerd", "runc"}, every: 2,
			note: "--read-only --seccomp --memory-limit 134217728 --cpus 0.5, and --cap-drop for each"},
		{Peer: peers.Docker, name: "`docker run --rm`", packages: []string{"docker.io", "containerd", "runc"}, every: 2,
			note: "--network none --memory 128m --memory-swap 128m --pids-limit 32 --cpus 0.5 --read-only --cap-drop ALL --security-opt no-new-privileges"},
		{Peer: peers.DockerPeriod, name: "`docker run --rm`, CPU limit as PyBox's", packages: []string{"docker.io"}, every: 2,
			note: "the same with --cpu-period 1000000 --cpu-quota 500000 instead of --cpus"},
	}
}

// benchPeers measures other engines in the guest that 'pybox exec' uses, in turns with
// that and with bare Python. All run the same empty program on the same image.
func benchPeers(ctx context.Context, o *options, r *report.Report) error {
	s, leave, err := newService(ctx, o, r, o.testBundle, peersConfig, o.peersDisk)
	if err != nil {
		return err
	}
	defer leave()
	// The image is mounted when a box is ready.
	if err := s.untilReady(ctx, "stdlib"); err != nil {
		return err
	}
	versions, err := s.startPeers(ctx)
	if err != nil {
		return err
	}
	all := newPeers()
	for _, p := range all {
		if err := s.look(ctx, p); err != nil {
			return err
		}
	}
	b := peersBench{service: s, all: all}
	if b.program, err = s.write("program.py", empty); err != nil {
		return err
	}
	for i := range peersWarmUp + o.times(20) {
		if err := b.round(ctx, i); err != nil {
			return err
		}
	}
	b.report(r, versions)
	return nil
}

// askGuest asks the guest's agent for what only its test build has.
func (s *service) askGuest(ctx context.Context, patience time.Duration, what string, query url.Values) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return s.guest.Client.TestOutput(ctx, what, query.Encode())
}

// startPeers starts the engines, and gives the versions of their packages.
func (s *service) startPeers(ctx context.Context) (map[string]string, error) {
	text, err := s.askGuest(ctx, peersPatience, "peers-start", url.Values{"image": {s.guest.Image}})
	if err != nil {
		return nil, err
	}
	versions := map[string]string{}
	for line := range strings.Lines(text) {
		name, version, _ := strings.Cut(strings.TrimSpace(line), " ")
		versions[name] = version
	}
	return versions, nil
}

// look makes sure that what the engine runs is limited as it should be.
func (s *service) look(ctx context.Context, p *peer) error {
	text, err := s.askGuest(ctx, patience, "peer-look", url.Values{"name": {string(p.Peer)}})
	if err != nil {
		return err
	}
	var f peers.Facts
	if err := json.Unmarshal([]byte(text), &f); err != nil {
		return fmt.Errorf("what holds for %s: %w", p.Peer, err)
	}
	return p.Check(f)
}

// peersBench is the measuring of engines in a guest.
type peersBench struct {
	*service
	all               []*peer
	program           string
	bare, ready, cold []float64
}

// round measures each once, in turns. Each finds the guest idle and a box ready.
func (b *peersBench) round(ctx context.Context, i int) error {
	keep := i >= peersWarmUp
	note := func(to *[]float64, ms float64) {
		if keep {
			*to = append(*to, ms)
		}
	}
	if err := b.untilReady(ctx, "stdlib"); err != nil {
		return err
	}
	alone, err := bareTime(ctx, b.guest, "")
	if err != nil {
		return err
	}
	note(&b.bare, alone)
	for _, kind := range []string{boxReady, boxCold} {
		took, err := b.exec(ctx, kind, i)
		if err != nil {
			return err
		}
		note(map[string]*[]float64{boxReady: &b.ready, boxCold: &b.cold}[kind], took)
		if err := b.untilReady(ctx, "stdlib"); err != nil {
			return err
		}
	}
	for _, p := range b.all {
		if i%p.every != 0 {
			continue
		}
		text, err := b.askGuest(ctx, patience, "peer-run", url.Values{"name": {string(p.Peer)}})
		if err != nil {
			return err
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return err
		}
		note(&p.took, ms(time.Duration(n)))
	}
	return nil
}

// exec is how long 'pybox exec' takes as a whole process, in milliseconds. An
// environment that no other run has makes a run cold.
func (b *peersBench) exec(ctx context.Context, kind string, i int) (float64, error) {
	args := []string{"exec", "--quiet", "--timeout", "30"}
	if kind == boxCold {
		args = append(args, "--env", "ROUND="+strconv.Itoa(i))
	}
	took, err := b.spend(ctx, "", append(args, b.program)...)
	if err != nil {
		return 0, err
	}
	rec, err := b.newest(ctx)
	if err != nil {
		return 0, err
	}
	if k := rec.Observed.Engine.Box.Kind; rec.ExitCode() != 0 || k == nil || *k != kind {
		return 0, fmt.Errorf("the run %s did not end as it should, in a %s box: %+v, %+v", rec.Run.ID, kind, rec.Ending, rec.Observed.Engine.Box)
	}
	return ms(took.wall), nil
}

// report tells all, and how many times as long as 'pybox exec' Docker takes.
func (b *peersBench) report(r *report.Report, versions map[string]string) {
	f := func(id, name, note string) report.Figure {
		return report.Figure{ID: "peers." + id, Group: groupPeers, Name: name, Unit: "ms", Note: note}
	}
	base := f("bare", bareName, "").Of(b.bare)
	add := func(x report.Figure, samples []float64) report.Figure {
		x = x.Of(samples).Against(base)
		if x.Other { // PyBox's own are in the plot already
			x = x.Plotted(strings.ReplaceAll(x.Name, "`", ""), samples)
		}
		r.Add(x)
		return x
	}
	ready := add(f("pybox.ready", "`pybox exec`, in a ready box", "the whole process, receipt stored"), b.ready)
	add(f("pybox.cold", "`pybox exec`, in a cold box", "the same"), b.cold)
	for _, p := range b.all {
		if len(p.took) == 0 {
			continue // a quick bench has not as many rounds
		}
		x := f(string(p.Peer), p.name, p.versions(versions)+": "+p.note)
		x.Other = true
		x = add(x, p.took)
		if p.Peer != peers.Docker && p.Peer != peers.DockerPeriod {
			continue
		}
		r.Add(report.Figure{
			ID: x.ID + ".pybox", Group: groupPeers, PartOf: x.ID, Name: "as many times as long as `pybox exec`, ready", Unit: "x", MoreIsBetter: true,
			Note: "both are whole processes",
		}.Once(x.Median / ready.Median).AtLeast(15))
	}
	r.Add(base)
}

// versions are those of the packages that the engine is made of.
func (p *peer) versions(all map[string]string) string {
	var out []string
	for _, name := range p.packages {
		out = append(out, name+" "+cmp.Or(all[name], "of unknown version"))
	}
	return strings.Join(out, ", ")
}
