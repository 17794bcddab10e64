//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/pybox/pybox/agent/engine"
	"github.com/pybox/pybox/agent/engine/enginecheck/report"
	"github.com/pybox/pybox/agent/oci"
)

// stepTime bounds a step of a check.
const stepTime = time.Minute

// checker has what checks share.
type checker struct {
	e       *engine.Engine
	w       io.Writer
	log     *strings.Builder
	counter int
}

// check is one question. nil is a pass.
type check struct {
	name string
	run  func(*checker, context.Context) error
}

func checks() []check {
	return []check{
		{"start", (*checker).start},
		{"bare programs", (*checker).bare},
		{"one container from its making to its removal", (*checker).lifecycle},
		{"what a program in a box finds", (*checker).inside},
		{"a running program is killed", (*checker).killed},
		{"a container that never ran is removed", (*checker).neverStarted},
		{"one that is killed while it starts", (*checker).killedAtStart},
		{"a failing creation leaves nothing", (*checker).failing},
		{"a creation cut short leaves nothing", (*checker).cutShort},
		{"an id in use", (*checker).inUse},
		{"one that runs is not deleted", (*checker).notWhileRunning},
		{"14 at once", (*checker).many},
		{"50 in a row leave nothing behind", (*checker).inARow},
		{"the end of the shim", (*checker).shimKilled},
		{"a shim that hangs", (*checker).shimStopped},
		{"restart without a loss", (*checker).restarted},
		{"close", (*checker).close},
	}
}

// runChecks runs all and returns an exit code.
func runChecks(w io.Writer) int {
	c := &checker{w: w, log: new(strings.Builder)}
	passed, failed := 0, 0
	for _, k := range checks() {
		err := guarded(func() error { return k.run(c, context.Background()) })
		if err != nil {
			failed++
			fmt.Fprintf(w, "FAIL %s: %s\n", k.name, strings.ReplaceAll(err.Error(), "\n", " / "))
			if c.e == nil {
				break
			}
			continue
		}
		passed++
		fmt.Fprintf(w, "PASS %s\n", k.name)
	}
	if failed > 0 {
		fmt.Fprintf(w, "NOTE log: %q\n", c.log.String())
	}
	fmt.Fprintf(w, "SUMMARY passed=%d failed=%d\n", passed, failed)
	return min(failed, 1)
}

func guarded(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v at %s", p, debug.Stack())
		}
	}()
	return f()
}

func (c *checker) note(name, format string, a ...any) {
	fmt.Fprintf(c.w, "NOTE %s: %s\n", name, fmt.Sprintf(format, a...))
}

func (c *checker) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, stepTime)
	defer cancel()
	began := time.Now()
	e, err := engine.Start(ctx, engine.Options{
		Root: "/run/pybox/containerd", State: "/run/pybox/engine", Crun: crunPath, Exe: "/proc/self/exe",
		Log: slog.New(slog.NewTextHandler(&lockedWriter{w: c.log}, nil)),
	})
	if err != nil {
		return err
	}
	c.e = e
	c.note("start", "%d ms, agent %s, shim %s", ms(began), usage(os.Getpid()), usage(e.ShimPID()))
	return nil
}

// bare measures what a box's figures are to be compared with.
func (c *checker) bare(context.Context) error {
	median := func(path, name string, args ...string) (int64, error) {
		var all []time.Duration
		for range 11 {
			cmd := exec.Cmd{Path: path, Args: append([]string{name}, args...)}
			began := time.Now()
			if err := cmd.Run(); err != nil {
				return 0, err
			}
			all = append(all, time.Since(began))
		}
		return medianOf(all), nil
	}
	small, err := median(imageMount+programPath, "program", "exit", "0")
	if err != nil {
		return err
	}
	crun, err := median(crunPath, "crun", "--version")
	if err != nil {
		return err
	}
	large, err := median("/proc/self/exe", nothingName)
	c.note("bare", "the program of the boxes %d ms, crun --version %d ms, this binary until it does nothing %d ms", small, crun, large)
	return err
}

func medianOf(d []time.Duration) int64 {
	slices.Sort(d)
	return d[len(d)/2].Milliseconds()
}

// lockedWriter is a writer of several goroutines.
type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

// usage is the memory and threads of a process.
func usage(pid int) string {
	rss, _ := statusField(pid, "VmRSS")
	anon, _ := statusField(pid, "RssAnon")
	threads, _ := statusField(pid, "Threads")
	return fmt.Sprintf("rss %s (anonymous %s), %s threads", rss, anon, threads)
}

func statusField(pid int, key string) (string, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return "", err
	}
	return field(string(b), key), nil
}

// field is the value of a line "key: value".
func field(text, key string) string {
	for line := range strings.Lines(text) {
		if v, ok := strings.CutPrefix(line, key+":"); ok {
			return strings.Join(strings.Fields(v), " ")
		}
	}
	return ""
}

func ms(since time.Time) int64 { return time.Since(since).Milliseconds() }

// config is a box of its own for each call.
func (c *checker) config(args ...string) (oci.Config, error) {
	c.counter++
	limits := oci.Limits{MemoryBytes: 64 << 20, PIDs: 32, MilliCPU: 500, WorkBytes: 8 << 20, WorkFiles: 100}
	config := oci.Config{
		ID: "run-" + strconv.Itoa(c.counter), Slot: c.counter % oci.MaxSlots, ImageRoot: imageMount,
		Args: append([]string{programPath}, args...), Env: oci.Env(limits, []string{"EXTRA=1"}), Limits: limits,
	}
	config.Work = "/run/pybox/boxes/" + config.ID + "/work"
	if err := os.MkdirAll(config.Work, 0o700); err != nil {
		return config, err
	}
	data := fmt.Sprintf("size=%d,nr_inodes=%d,mode=0700,uid=%d,gid=%d", limits.WorkBytes, limits.WorkFiles, config.HostUID(), config.HostGID())
	return config, unix.Mount("tmpfs", config.Work, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, data)
}

func (c *checker) drop(config oci.Config) error {
	return errors.Join(unix.Unmount(config.Work, 0), os.RemoveAll("/run/pybox/boxes/"+config.ID))
}

// box makes a container for the program with args.
func (c *checker) box(ctx context.Context, args ...string) (oci.Config, *engine.Task, error) {
	config, err := c.config(args...)
	if err != nil {
		return config, nil, err
	}
	spec, err := oci.Spec(config)
	if err != nil {
		return config, nil, err
	}
	t, err := c.e.Create(ctx, config.ID, spec, map[string]string{"what": "check"})
	return config, t, err
}

// ended waits for the end of t's process and returns its code.
func ended(t *engine.Task) (int, error) {
	select {
	case <-t.Exited():
	case <-time.After(stepTime):
		return 0, fmt.Errorf("no end after %v", stepTime)
	}
	code, at, ok := t.ExitStatus()
	if !ok {
		return 0, errors.New("the exit status is not known")
	}
	if d := time.Since(at); d < 0 || d > stepTime {
		return 0, fmt.Errorf("it ended at %v, it is %v", at, time.Now())
	}
	return code, nil
}

// absent makes sure that nothing of a container is anywhere.
func (c *checker) absent(ctx context.Context, config oci.Config) error {
	var errs []error
	add := func(err error) { errs = append(errs, err) }
	if container, task, err := c.e.Presence(ctx, config.ID); err != nil || container || task {
		add(fmt.Errorf("container %v, task %v, %v", container, task, err))
	}
	if _, err := c.e.StoredSpec(ctx, config.ID); !errors.Is(err, engine.ErrNotFound) {
		add(fmt.Errorf("its stored specification: %v", err))
	}
	if _, err := c.e.RuntimeState(config.ID); !errors.Is(err, engine.ErrNotFound) {
		add(fmt.Errorf("the runtime's state: %v", err))
	}
	for _, p := range []string{
		cgroupRoot + config.Cgroup(), "/run/pybox/engine/bundles/" + config.ID, "/run/pybox/engine/crun/pybox/" + config.ID,
	} {
		if _, err := os.Lstat(p); !errors.Is(err, fs.ErrNotExist) {
			add(fmt.Errorf("%s: %v", p, err))
		}
	}
	return errors.Join(errs...)
}

func (c *checker) lifecycle(ctx context.Context) error {
	began := time.Now()
	config, t, err := c.box(ctx, "exit", "7")
	if err != nil {
		return err
	}
	created := ms(began)
	if container, task, err := c.e.Presence(ctx, config.ID); err != nil || !container || !task {
		return fmt.Errorf("made, but container %v, task %v, %v", container, task, err)
	}
	if err := c.sameSpec(ctx, config, t); err != nil {
		return err
	}
	began = time.Now()
	if err := t.Start(ctx); err != nil {
		return err
	}
	started := ms(began)
	code, err := ended(t)
	if err != nil || code != 7 {
		return fmt.Errorf("exit code %d, want 7: %v", code, err)
	}
	exited := ms(began)
	if _, err := os.ReadFile(cgroupRoot + config.Cgroup() + "/memory.peak"); err != nil {
		return fmt.Errorf("the counters after the exit: %w", err)
	}
	began = time.Now()
	if err := t.Delete(ctx); err != nil {
		return err
	}
	c.note("lifecycle", "create %d ms, start %d ms, exit known %d ms after start, delete %d ms", created, started, exited, ms(began))
	if err := t.Delete(ctx); err != nil {
		return fmt.Errorf("a second deletion: %w", err)
	}
	return errors.Join(c.absent(ctx, config), c.drop(config))
}

// sameSpec compares what containerd and the runtime have recorded with what they
// were given.
func (c *checker) sameSpec(ctx context.Context, config oci.Config, t *engine.Task) error {
	want, err := oci.Spec(config)
	if err != nil {
		return err
	}
	stored, err := c.e.StoredSpec(ctx, config.ID)
	if err != nil {
		return err
	}
	if !reflect.DeepEqual(normal(want), normal(json.RawMessage(stored))) {
		return errors.New("containerd's specification is another")
	}
	state, err := c.e.RuntimeState(config.ID)
	if err != nil {
		return err
	}
	if !reflect.DeepEqual(normal(want), normal(json.RawMessage(state.Spec))) {
		return errors.New("the runtime's specification is another")
	}
	if state.PID != t.PID() || state.CgroupPath != config.Cgroup() || state.Rootfs != imageMount {
		return fmt.Errorf("the runtime's state is %+v", state)
	}
	return nil
}

// normal is a specification as its JSON gives it back.
func normal(s any) any {
	b, err := json.Marshal(s)
	if err != nil {
		return err
	}
	var v any
	if err := json.Unmarshal(b, &v); err != nil {
		return err
	}
	return v
}

func (c *checker) inside(ctx context.Context) error {
	config, t, err := c.box(ctx, "report")
	if err != nil {
		return err
	}
	if err := cgroupLimits(config); err != nil {
		return err
	}
	if err := t.Start(ctx); err != nil {
		return err
	}
	code, err := ended(t)
	b, rerr := os.ReadFile(config.Work + "/" + report.File)
	if err = errors.Join(err, rerr); err != nil || code != 0 {
		return fmt.Errorf("exit code %d, %.300q: %v", code, b, err)
	}
	var r report.Report
	if err := json.Unmarshal(b, &r); err != nil {
		return err
	}
	if err := t.Delete(ctx); err != nil {
		return err
	}
	return errors.Join(judge(config, &r), c.drop(config))
}

// judge compares a report with what the box should be.
func judge(config oci.Config, r *report.Report) error {
	var errs []error
	want := func(what, got, want string) {
		if got != want {
			errs = append(errs, fmt.Errorf("%s is %q, want %q", what, got, want))
		}
	}
	for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
		want(set, field(r.Status, set), "0000000000000000")
	}
	want("no new privileges", field(r.Status, "NoNewPrivs"), "1")
	want("seccomp", field(r.Status, "Seccomp"), "2")
	want("filters", field(r.Status, "Seccomp_filters"), "1")
	want("uid", field(r.Status, "Uid"), "1000 1000 1000 1000")
	want("gid", field(r.Status, "Gid"), "1000 1000 1000 1000")
	want("groups", field(r.Status, "Groups"), "")
	want("pid", field(r.Status, "NSpid"), "1")
	want("ignored signals", field(r.Status, "SigIgn"), "0000000000000000")
	want("blocked signals", field(r.Status, "SigBlk"), "0000000000000000")
	want("uid map", strings.Join(strings.Fields(r.UIDMap), " "), fmt.Sprintf("0 %d %d", config.HostUID()-oci.UID, oci.IDRange))
	want("host", strings.TrimSpace(r.Host), oci.HostName)
	want("folder", r.Dir, oci.WorkDir)
	want("environment", strings.Join(r.Env, " "), strings.Join(config.Env, " "))
	for _, c := range r.Calls {
		want(c.Name, c.Got, c.Want)
	}
	if len(r.Calls) < 50 {
		errs = append(errs, fmt.Errorf("only %d calls were tried", len(r.Calls)))
	}
	return errors.Join(append(errs, judgeMounts(config, r.Mounts), judgeLimits(r.Limits))...)
}

// judgeMounts wants exactly the mounts of package oci, with their flags.
func judgeMounts(config oci.Config, mountinfo string) error {
	type found struct{ kind, flags, options string }
	got := map[string]found{}
	var order []string
	for line := range strings.Lines(mountinfo) {
		f := strings.Fields(line)
		dash := slices.Index(f, "-") // proc_pid_mountinfo(5)
		got[f[4]] = found{f[dash+1], f[5], f[dash+3]}
		order = append(order, f[4])
	}
	var errs []error
	for _, m := range oci.Mounts(config.Limits) {
		g, ok := got[m.Target]
		if !ok || g.kind != m.Type {
			errs = append(errs, fmt.Errorf("%s: %+v, want %s", m.Target, g, m.Type))
		}
		flags := strings.Split(g.flags, ",")
		for flag, want := range map[string]bool{"ro": m.ReadOnly, "nosuid": m.NoSuid, "nodev": m.NoDev, "noexec": m.NoExec} {
			if slices.Contains(flags, flag) != want {
				errs = append(errs, fmt.Errorf("%s has the flags %s, want %s: %v", m.Target, g.flags, flag, want))
			}
		}
		if m.Bytes != 0 && !slices.Contains(strings.Split(g.options, ","), fmt.Sprintf("size=%dk", m.Bytes>>10)) {
			errs = append(errs, fmt.Errorf("%s has the options %s, want %d bytes", m.Target, g.options, m.Bytes))
		}
		if m.Files != 0 && !slices.Contains(strings.Split(g.options, ","), fmt.Sprintf("nr_inodes=%d", m.Files)) {
			errs = append(errs, fmt.Errorf("%s has the options %s, want %d files", m.Target, g.options, m.Files))
		}
		delete(got, m.Target)
	}
	if flags := strings.Split(got["/"].flags, ","); !slices.Contains(flags, "ro") {
		errs = append(errs, fmt.Errorf("the root has the flags %s", got["/"].flags))
	}
	for _, p := range slices.Concat([]string{"/"}, oci.Devices(), oci.MaskedPaths(), oci.ReadonlyPaths()) {
		delete(got, p)
	}
	if len(got) > 0 {
		errs = append(errs, fmt.Errorf("unexpected mounts: %v (all: %v)", got, order))
	}
	return errors.Join(errs...)
}

func judgeLimits(limits string) error {
	names := map[string]string{
		"RLIMIT_CORE": "Max core file size", "RLIMIT_MEMLOCK": "Max locked memory", "RLIMIT_MSGQUEUE": "Max msgqueue size",
		"RLIMIT_NICE": "Max nice priority", "RLIMIT_NOFILE": "Max open files", "RLIMIT_RTPRIO": "Max realtime priority",
		"RLIMIT_SIGPENDING": "Max pending signals", "RLIMIT_STACK": "Max stack size",
	}
	var errs []error
	for _, l := range oci.Rlimits() {
		value := func(n uint64) string {
			if n == unix.RLIM_INFINITY {
				return "unlimited"
			}
			return strconv.FormatUint(n, 10)
		}
		got := ""
		for line := range strings.Lines(limits) {
			if v, ok := strings.CutPrefix(line, names[l.Type]+" "); ok {
				got = strings.Join(strings.Fields(v)[:2], " ")
			}
		}
		if want := value(l.Soft) + " " + value(l.Hard); got != want {
			errs = append(errs, fmt.Errorf("%s is %q, want %q", l.Type, got, want))
		}
	}
	return errors.Join(errs...)
}

func cgroupLimits(config oci.Config) error {
	l := config.Limits
	var errs []error
	for file, want := range map[string]string{
		"memory.max": strconv.FormatInt(l.MemoryBytes, 10),
		"pids.max":   strconv.FormatInt(l.PIDs, 10),
		"cpu.max":    fmt.Sprintf("%d %d", l.CPUQuota().Microseconds(), oci.CPUPeriod.Microseconds()),
	} {
		b, err := os.ReadFile(cgroupRoot + config.Cgroup() + "/" + file)
		if got := strings.TrimSpace(string(b)); err != nil || got != want {
			errs = append(errs, fmt.Errorf("%s is %q, want %q: %v", file, got, want, err))
		}
	}
	return errors.Join(errs...)
}

func (c *checker) killed(ctx context.Context) error {
	config, t, err := c.box(ctx, "sleep")
	if err != nil {
		return err
	}
	if err := t.Start(ctx); err != nil {
		return err
	}
	select {
	case <-t.Exited():
		return errors.New("it ended by itself")
	default:
	}
	if err := unix.Kill(t.PID(), unix.SIGKILL); err != nil {
		return err
	}
	if code, err := ended(t); err != nil || code != 137 {
		return fmt.Errorf("exit code %d, want 137: %v", code, err)
	}
	return errors.Join(t.Delete(ctx), c.absent(ctx, config), c.drop(config))
}

func (c *checker) neverStarted(ctx context.Context) error {
	config, t, err := c.box(ctx, "sleep")
	if err != nil {
		return err
	}
	if err := t.Delete(ctx); err != nil {
		return err
	}
	if err := unix.Kill(t.PID(), 0); err != unix.ESRCH {
		return fmt.Errorf("its process: %v", err)
	}
	if err := closed("its end is told", t.Exited()); err != nil {
		return err
	}
	return errors.Join(c.absent(ctx, config), c.drop(config))
}

// killedAtStart kills a container's process around the moment at which it is told to
// begin: it looks for the moment by halves, early enough for crun to see that the
// process has ended, and too late for that. Nothing hangs, and the shim stays what it
// is.
func (c *checker) killedAtStart(ctx context.Context) error {
	shim := c.e.ShimPID()
	early, late := time.Duration(0), 400*time.Millisecond
	for range 12 {
		after := (early + late) / 2
		config, t, err := c.box(ctx, "sleep")
		if err != nil {
			return err
		}
		killed := make(chan error, 1)
		began := time.Now()
		time.AfterFunc(after, func() { killed <- unix.Kill(t.PID(), unix.SIGKILL) })
		if err = t.Start(ctx); err != nil { // with an error or without, but soon
			early = after
		} else {
			late = after
		}
		c.note("start", "%d ms of a process that is killed after %v: %v", ms(began), after, err)
		if errors.Is(err, engine.ErrLost) {
			return fmt.Errorf("killed after %v: %w", after, err)
		}
		if err := <-killed; err != nil {
			return err
		}
		if _, err := ended(t); err != nil {
			return fmt.Errorf("killed after %v: %w", after, err)
		}
		if err := errors.Join(t.Delete(ctx), c.absent(ctx, config), c.drop(config)); err != nil {
			return fmt.Errorf("killed after %v: %w", after, err)
		}
	}
	if now := c.e.ShimPID(); now != shim {
		return fmt.Errorf("another shim, %d instead of %d", now, shim)
	}
	return nil
}

func (c *checker) failing(ctx context.Context) error {
	config, err := c.config("exit", "0")
	if err != nil {
		return err
	}
	for what, spoil := range map[string]func(*specs.Spec){
		"no such image":   func(s *specs.Spec) { s.Root.Path = "/run/none" },
		"no such program": func(s *specs.Spec) { s.Process.Args[0] = "/bin/none" },
		"no such folder":  func(s *specs.Spec) { s.Process.Cwd = "/none" },
		"no such user":    func(s *specs.Spec) { s.Process.User.UID = 70000 },
	} {
		spec, err := oci.Spec(config)
		if err != nil {
			return err
		}
		spoil(spec)
		t, err := c.e.Create(ctx, config.ID, spec, nil)
		if err == nil {
			// The runtime may find out only when it starts the program.
			if err = t.Start(ctx); err == nil {
				if code, _ := ended(t); code == 0 {
					err = errors.New("it ran")
				}
			}
			if derr := t.Delete(ctx); derr != nil {
				return fmt.Errorf("%s: %w", what, derr)
			}
		}
		if err := c.absent(ctx, config); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		c.note(what, "%v", err)
	}
	return c.drop(config)
}

func (c *checker) cutShort(ctx context.Context) error {
	for _, after := range []time.Duration{0, 5 * time.Millisecond, 50 * time.Millisecond, 200 * time.Millisecond} {
		short, cancel := context.WithTimeout(ctx, after)
		config, t, err := c.box(short, "sleep")
		cancel()
		if err == nil {
			err = t.Delete(ctx)
			if err != nil {
				return err
			}
		} else if !errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("after %v: %w", after, err)
		}
		if err := errors.Join(c.absent(ctx, config), c.drop(config)); err != nil {
			return fmt.Errorf("after %v: %w", after, err)
		}
	}
	return nil
}

func (c *checker) inUse(ctx context.Context) error {
	config, t, err := c.box(ctx, "exit", "3")
	if err != nil {
		return err
	}
	spec, err := oci.Spec(config)
	if err != nil {
		return err
	}
	if _, err := c.e.Create(ctx, config.ID, spec, nil); !errors.Is(err, engine.ErrExists) {
		return fmt.Errorf("made twice: %v", err)
	}
	if err := t.Start(ctx); err != nil {
		return err
	}
	if code, err := ended(t); err != nil || code != 3 {
		return fmt.Errorf("exit code %d, want 3: %v", code, err)
	}
	return errors.Join(t.Delete(ctx), c.absent(ctx, config), c.drop(config))
}

func (c *checker) notWhileRunning(ctx context.Context) error {
	config, t, err := c.box(ctx, "sleep")
	if err != nil {
		return err
	}
	if err := t.Start(ctx); err != nil {
		return err
	}
	if err := t.Delete(ctx); err == nil || errors.Is(err, engine.ErrLost) {
		return fmt.Errorf("deleted while it runs: %v", err)
	}
	if err := unix.Kill(t.PID(), unix.SIGKILL); err != nil {
		return err
	}
	if _, err := ended(t); err != nil {
		return err
	}
	return errors.Join(t.Delete(ctx), c.absent(ctx, config), c.drop(config))
}

// many makes 14 boxes at the same time, lets all live at once, and removes them
// at the same time.
func (c *checker) many(ctx context.Context) error {
	const n = 14
	configs, tasks, errs := make([]oci.Config, n), make([]*engine.Task, n), make([]error, n)
	for i := range n {
		if configs[i], errs[i] = c.config("sleep"); errs[i] != nil {
			return errs[i]
		}
	}
	each := func(f func(i int) error) error {
		var all sync.WaitGroup
		for i := range n {
			all.Go(func() { errs[i] = f(i) })
		}
		all.Wait()
		return errors.Join(errs...)
	}
	began := time.Now()
	err := each(func(i int) error {
		spec, err := oci.Spec(configs[i])
		if err != nil {
			return err
		}
		if tasks[i], err = c.e.Create(ctx, configs[i].ID, spec, nil); err != nil {
			return err
		}
		return tasks[i].Start(ctx)
	})
	if err != nil {
		return err
	}
	alive := ms(began)
	c.note("14 alive", "after %d ms, agent %s, shim %s", alive, usage(os.Getpid()), usage(c.e.ShimPID()))
	began = time.Now()
	err = each(func(i int) error {
		if err := unix.Kill(tasks[i].PID(), unix.SIGKILL); err != nil {
			return err
		}
		if code, err := ended(tasks[i]); err != nil || code != 137 {
			return fmt.Errorf("exit code %d, want 137: %v", code, err)
		}
		return errors.Join(tasks[i].Delete(ctx), c.absent(ctx, configs[i]), c.drop(configs[i]))
	})
	c.note("14 gone", "after %d ms", ms(began))
	return err
}

// footprint is what must not grow.
type footprint struct{ agentFDs, shimFDs, mounts, cgroups, goroutines, shimThreads int }

func (c *checker) footprint() (footprint, error) {
	var f footprint
	var err error
	count := func(dir string) int {
		entries, e := os.ReadDir(dir)
		err = errors.Join(err, e)
		return len(entries)
	}
	f.agentFDs = count("/proc/self/fd")
	f.shimFDs = count(fmt.Sprintf("/proc/%d/fd", c.e.ShimPID()))
	f.shimThreads = count(fmt.Sprintf("/proc/%d/task", c.e.ShimPID()))
	f.cgroups = count(cgroupRoot + oci.CgroupParent)
	b, e := os.ReadFile("/proc/self/mountinfo")
	f.mounts, f.goroutines = strings.Count(string(b), "\n"), runtime.NumGoroutine()
	return f, errors.Join(err, e)
}

func (c *checker) inARow(ctx context.Context) error {
	before, err := c.footprint()
	if err != nil {
		return err
	}
	rss, _ := statusField(c.e.ShimPID(), "VmRSS")
	var create, exit, remove []time.Duration
	for range 50 {
		began := time.Now()
		config, t, err := c.box(ctx, "exit", "0")
		if err != nil {
			return err
		}
		create = append(create, time.Since(began))
		began = time.Now()
		if err := t.Start(ctx); err != nil {
			return err
		}
		if code, err := ended(t); err != nil || code != 0 {
			return fmt.Errorf("exit code %d: %v", code, err)
		}
		exit = append(exit, time.Since(began))
		began = time.Now()
		if err := errors.Join(t.Delete(ctx), c.drop(config)); err != nil {
			return err
		}
		remove = append(remove, time.Since(began))
	}
	c.note("medians of 50", "create %d ms, start to exit %d ms, delete %d ms; shim rss %s before; agent %s, shim %s",
		medianOf(create), medianOf(exit), medianOf(remove), rss, usage(os.Getpid()), usage(c.e.ShimPID()))
	if err := smallShim(c.e.ShimPID()); err != nil {
		return err
	}
	// Goroutines and threads of the last box may be about to end.
	var after footprint
	for end := time.Now().Add(stepTime); ; time.Sleep(10 * time.Millisecond) {
		if after, err = c.footprint(); err != nil {
			return err
		}
		after.shimThreads = min(after.shimThreads, before.shimThreads) // the runtime keeps some
		if after == before {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("before %+v, after %+v", before, after)
		}
	}
}

// smallShim wants the shim below maxShim.
func smallShim(pid int) error {
	const maxShim = 40 << 10 // KiB
	rss, err := statusField(pid, "VmRSS")
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(strings.TrimSuffix(rss, " kB"))
	if err != nil || n > maxShim {
		return fmt.Errorf("the shim has %s, want at most %d kB: %v", rss, maxShim, err)
	}
	return nil
}

// closed waits until channel is.
func closed(what string, channel <-chan struct{}) error {
	select {
	case <-channel:
		return nil
	case <-time.After(stepTime):
		return fmt.Errorf("%s: not so after %v", what, stepTime)
	}
}

// recover lets the engine remove what is left of boxes, and makes another.
func (c *checker) recover(ctx context.Context, old int, configs ...oci.Config) error {
	began := time.Now()
	if err := c.e.Restart(ctx); err != nil {
		return err
	}
	c.note("restart", "%d ms with %d boxes", ms(began), len(configs))
	if pid := c.e.ShimPID(); pid == old {
		return errors.New("the shim is the same")
	}
	for _, config := range configs {
		if err := errors.Join(c.absent(ctx, config), c.drop(config)); err != nil {
			return err
		}
	}
	config, t, err := c.box(ctx, "exit", "5")
	if err != nil {
		return err
	}
	if err := t.Start(ctx); err != nil {
		return err
	}
	if code, err := ended(t); err != nil || code != 5 {
		return fmt.Errorf("exit code %d, want 5: %v", code, err)
	}
	return errors.Join(t.Delete(ctx), c.absent(ctx, config), c.drop(config))
}

func (c *checker) shimKilled(ctx context.Context) error {
	running, t, err := c.box(ctx, "sleep")
	if err != nil {
		return err
	}
	if err := t.Start(ctx); err != nil {
		return err
	}
	created, u, err := c.box(ctx, "sleep")
	if err != nil {
		return err
	}
	lost, old := c.e.Lost(), c.e.ShimPID()
	if err := unix.Kill(old, unix.SIGKILL); err != nil {
		return err
	}
	if err := closed("the shim is lost", lost); err != nil {
		return err
	}
	for _, task := range []*engine.Task{t, u} {
		if err := closed("a task of a lost shim has exited", task.Exited()); err != nil {
			return err
		}
		if _, _, ok := task.ExitStatus(); ok {
			return errors.New("an exit status is known, of whom?")
		}
		if err := task.Delete(ctx); !errors.Is(err, engine.ErrLost) {
			return fmt.Errorf("delete: %v", err)
		}
	}
	if err := unix.Kill(t.PID(), 0); err != nil {
		return fmt.Errorf("the box died with the shim: %w", err)
	}
	if _, _, err := c.e.Presence(ctx, running.ID); !errors.Is(err, engine.ErrLost) {
		return fmt.Errorf("presence: %v", err)
	}
	none, w, err := c.box(ctx, "sleep")
	if !errors.Is(err, engine.ErrLost) || w != nil {
		return fmt.Errorf("create: %v", err)
	}
	return c.recover(ctx, old, running, created, none)
}

func (c *checker) shimStopped(ctx context.Context) error {
	running, t, err := c.box(ctx, "sleep")
	if err != nil {
		return err
	}
	if err := t.Start(ctx); err != nil {
		return err
	}
	lost, old := c.e.Lost(), c.e.ShimPID()
	if err := unix.Kill(old, unix.SIGSTOP); err != nil {
		return err
	}
	if err := allStopped(ctx, old); err != nil {
		return err
	}
	short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	if _, _, err := c.e.Presence(short, running.ID); !errors.Is(err, engine.ErrLost) {
		return fmt.Errorf("presence: %v", err)
	}
	if err := closed("the shim is lost", lost); err != nil {
		return err
	}
	return c.recover(ctx, old, running)
}

// allStopped waits until each thread of a process is stopped: SIGSTOP reaches them
// one after the other, and until then one may still answer.
func allStopped(ctx context.Context, pid int) error {
	ctx, cancel := context.WithTimeout(ctx, stepTime)
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		running := len(threads) == 0 || err != nil
		for _, path := range threads {
			b, err := os.ReadFile(path)
			// The state is behind the name, which is in parentheses (proc_pid_stat(5)).
			if at := strings.LastIndex(string(b), ") "); err != nil || at < 0 || !strings.HasPrefix(string(b[at+2:]), "T") {
				running = true
			}
		}
		if !running {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("the process %d does not stop: %w", pid, ctx.Err())
		}
	}
}

func (c *checker) restarted(ctx context.Context) error {
	running, t, err := c.box(ctx, "sleep")
	if err != nil {
		return err
	}
	if err := t.Start(ctx); err != nil {
		return err
	}
	return c.recover(ctx, c.e.ShimPID(), running)
}

func (c *checker) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, stepTime)
	defer cancel()
	pid := c.e.ShimPID()
	if err := c.e.Close(ctx); err != nil {
		return err
	}
	if err := unix.Kill(pid, 0); err != unix.ESRCH {
		return fmt.Errorf("the shim: %v", err)
	}
	return nil
}
