//go:build linux && pyboxtest

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
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
	// peersRuns are how many rounds are measured.
	peersRuns = 12
)

// aboutPeers says what is compared.
const aboutPeers = "An empty program on the same image in one guest with PyBox's own kernel, in turns: by `pybox exec`, and by " +
	"container engines from Debian's packages. A time is that of a whole command, from its start to its end. PyBox's client and its daemon run " +
	"on the host, natively; the others, which are not told of a virtual machine, run in the guest with all that they are made of, the `docker` " +
	"command, `dockerd` and `containerd` with it, and where the guest is emulated, so are they. Their daemons run already and have the image. " +
	"`docker version`, which asks the daemon for its version and starts no container, tells what of Docker's time that is at least, and a row " +
	"below each of Docker's tells the ratio without it. The program is `python3 -I -S -c pass` with the engines, and with PyBox " +
	"`python3 program.py`, which imports `site` too, to PyBox's disadvantage. " +
	"All are limited to 128 MiB, 32 processes and half a CPU, with no network but a loopback, a read-only root, no capabilities, " +
	"no_new_privileges and a filter of system calls; that was read, inside and from the cgroup, before anything was measured. " +
	"`ctr` has no limit of processes. `crun` and `runc` get the specification of a box, user namespace and filter too, but for the limit " +
	"of swap with `runc`, which fails where the kernel has no swap. With the others the program is root, in the guest's user namespace, " +
	"behind their own filters, and they put an overlay of memory on the image for each container. " +
	"Half of a CPU is 50 ms in every 100 with them, and half a second in every second with a box, `crun` and `runc`, which a short program " +
	"does not use up: the last rows tell what Docker takes with that. `dockerd` has neither bridge nor firewall " +
	"to set up, since the guest has none. The engines have the agent's timer slack, a millisecond, and random addresses, without which " +
	"PyBox starts crun. None but PyBox reads back what it set, counts and bounds what is printed, or leaves a receipt."

// peer is an engine that is measured.
type peer struct {
	peers.Peer
	// name is for people; packages are what it is made of, the first by its version.
	name     string
	packages []string
	note     string
	// every: it is measured in one round of so many, since some take seconds.
	every int
	// took are times, beside those of bare Python in the same round.
	took, beside []float64
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
		{Peer: peers.DockerVersion, name: "`docker version`", packages: []string{"docker.io"}, every: 2,
			note: "the command and its question to the daemon; no container"},
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
		if p.Peer == peers.DockerVersion {
			continue // nothing is run
		}
		if err := s.look(ctx, p); err != nil {
			return err
		}
	}
	b := peersBench{service: s, all: all}
	if b.program, err = s.write("program.py", empty); err != nil {
		return err
	}
	for i := range peersWarmUp + o.times(peersRuns) {
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

// round measures bare Python, 'pybox exec' and then each engine once; the engines in
// another order each time, since one may still clean up when the next begins.
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
	for _, p := range order(b.all, i) {
		took, err := b.once(ctx, p)
		if err != nil {
			return err
		}
		note(&p.took, took)
		note(&p.beside, alone)
	}
	return nil
}

// order are the peers of round i, which each begins in its turn.
func order(all []*peer, i int) []*peer {
	var in []*peer
	for k := range all {
		if p := all[(k+i/2)%len(all)]; i%p.every == 0 {
			in = append(in, p)
		}
	}
	return in
}

// once is how long the engine's command takes, in milliseconds.
func (b *peersBench) once(ctx context.Context, p *peer) (float64, error) {
	text, err := b.askGuest(ctx, patience, "peer-run", url.Values{"name": {string(p.Peer)}})
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(text, 10, 64)
	return ms(time.Duration(n)), err
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
	ready := f("pybox.ready", "`pybox exec`, in a ready box", "the whole process, receipt stored").Of(b.ready).InTurns(base, b.ready, b.bare)
	r.Add(ready, f("pybox.cold", "`pybox exec`, in a cold box", "the same").Of(b.cold).InTurns(base, b.cold, b.bare))
	for _, p := range b.all {
		x := f(string(p.Peer), p.name, p.versions(versions)+": "+p.note)
		x.Other = true
		x = x.Of(p.took).InTurns(base, p.took, p.beside)
		if p.Peer != peers.DockerVersion { // the plot is of runs; PyBox's own are in it already
			x = x.Plotted(strings.ReplaceAll(x.Name, "`", ""), p.took)
		}
		r.Add(x)
		if p.Peer == peers.Docker || p.Peer == peers.DockerPeriod {
			b.reportTimes(r, x, ready)
		}
	}
	r.Add(base)
}

// reportTimes tells how many times as long as 'pybox exec' Docker takes, with what its
// command takes without a container and without that.
func (b *peersBench) reportTimes(r *report.Report, docker, ready report.Figure) {
	without := docker.Median
	for _, p := range b.all {
		if p.Peer == peers.DockerVersion {
			without -= median(p.took)
		}
	}
	f := func(id, name, note string, v float64) report.Figure {
		return report.Figure{
			ID: docker.ID + id, Group: groupPeers, PartOf: docker.ID, Name: name, Unit: "x", MoreIsBetter: true, Note: note,
		}.Once(v / ready.Median)
	}
	r.Add(
		f(".pybox", "as many times as long as `pybox exec`, ready", "both are whole processes", docker.Median).AtLeast(15),
		f(".container", "the same less `docker version`", "difference of medians", without),
	)
}

// versionLike is a version of Debian's.
var versionLike = regexp.MustCompile(`^[0-9A-Za-z.+~:-]{1,80}$`)

// versions are those of the packages that the engine is made of.
func (p *peer) versions(all map[string]string) string {
	var out []string
	for _, name := range p.packages {
		version := all[name]
		if !versionLike.MatchString(version) { // the guest says it
			version = "of unknown version"
		}
		out = append(out, name+" "+version)
	}
	return strings.Join(out, ", ")
}
