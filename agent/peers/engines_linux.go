package peers

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pybox/pybox/guest/unpack"
)

const (
	// cgroupRoot is where cgroups are, for the agent and for the peers.
	cgroupRoot = "/sys/fs/cgroup"
	// ownCgroup is that of all that is started here, containers aside.
	ownCgroup = cgroupRoot + "/peers"
	// afterwards is how long the output of a program that ended may stay open.
	afterwards = time.Second
	// maxLog is how much of a daemon's log an error shows, in bytes.
	maxLog = 4096
)

// Engines are the peers of one guest, ready to run. Methods may be called by one
// goroutine at a time. The daemons live as long as the guest.
type Engines struct {
	world *world
	group *os.File // ownCgroup
	ids   atomic.Int64
	// Versions are those of the packages on the disk, a line "name version" each.
	Versions string
}

// Start mounts the disk, starts the daemons, and gives them the image of boxes that is
// mounted at imageRoot, all within ctx. Without the disk it fails with ErrNoDisk. What
// was started before an error goes on until the guest ends.
func Start(ctx context.Context, imageRoot string) (*Engines, error) {
	e := &Engines{}
	var err error
	if e.world, err = newWorld(func() error { return enterRoot(imageRoot) }); err != nil {
		return nil, err
	}
	err = e.world.do(func() error {
		versions, err := os.ReadFile("/" + unpack.VersionsPath)
		if err != nil {
			return err
		}
		e.Versions = string(versions)
		if err := os.Mkdir(ownCgroup, 0o755); err != nil {
			return err
		}
		e.group, err = os.Open(ownCgroup)
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, d := range daemons() {
		if err := e.startDaemon(ctx, d); err != nil {
			return nil, fmt.Errorf("start %s: %w", d.name, err)
		}
	}
	return e, e.load(ctx, imageRoot)
}

// cmd is a program of the peers' root; it is to be started there.
func (e *Engines) cmd(ctx context.Context, args []string) *exec.Cmd {
	c := exec.CommandContext(ctx, args[0], args[1:]...)
	c.Env, c.Dir, c.WaitDelay = env(), "/", afterwards
	c.SysProcAttr = inCgroup(e.group)
	return c
}

// startDaemon starts d and waits until somebody listens at its socket.
func (e *Engines) startDaemon(ctx context.Context, d daemon) error {
	c := e.cmd(context.WithoutCancel(ctx), d.args)
	log := filepath.Join("/run", d.name+".log")
	err := e.world.do(func() error {
		f, err := os.Create(log)
		if err != nil {
			return err
		}
		defer f.Close()
		c.Stdout, c.Stderr = f, f
		return c.Start()
	})
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-ended:
			return fmt.Errorf("it ended (%v): %s", err, e.tail(log))
		case <-ctx.Done():
			return fmt.Errorf("%w; it says: %s", context.Cause(ctx), e.tail(log))
		case <-tick.C:
		}
		if e.world.do(func() error { return listens(d.socket) }) == nil {
			return nil
		}
	}
}

func listens(socket string) error {
	conn, err := net.DialTimeout("unix", socket, time.Second)
	if err != nil {
		return err
	}
	return conn.Close()
}

// tail is the end of a log.
func (e *Engines) tail(file string) (text string) {
	_ = e.world.do(func() error {
		b, err := os.ReadFile(file)
		text = string(b[max(0, len(b)-maxLog):])
		return err
	})
	return text
}

// load gives Docker the image, and containerd what Docker makes of it.
func (e *Engines) load(ctx context.Context, imageRoot string) error {
	out, in := io.Pipe()
	go func() { in.CloseWithError(writeTar(in, imageRoot)) }()
	defer out.Close()
	if err := e.finish(ctx, out, nil, "/usr/bin/docker", "import", "-", image); err != nil {
		return err
	}
	saved, save := io.Pipe()
	defer saved.Close()
	archive := e.cmd(ctx, []string{"/usr/bin/docker", "save", image})
	archive.Stdout = save
	if err := e.world.do(archive.Start); err != nil {
		return err
	}
	go func() { save.CloseWithError(archive.Wait()) }()
	return e.finish(ctx, saved, nil, "/usr/bin/ctr", "--namespace", namespace, "images", "import", "-")
}

// writeTar writes the files below root as a tar file.
func writeTar(w io.Writer, root string) error {
	t := tar.NewWriter(w)
	if err := t.AddFS(os.DirFS(root)); err != nil {
		return err
	}
	return t.Close()
}

// finish runs a program to its end, which must be a good one. measured, when not nil, is
// told how long that took.
func (e *Engines) finish(ctx context.Context, stdin io.Reader, measured *time.Duration, args ...string) error {
	c := e.cmd(ctx, args)
	var errs bytes.Buffer
	c.Stdin, c.Stderr = stdin, &errs
	err := e.world.do(func() error {
		began := time.Now()
		err := c.Run()
		if measured != nil {
			*measured = time.Since(began)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("%s: %w: %.*s", strings.Join(args, " "), err, maxLog, errs.String())
	}
	return nil
}

// prepare is the command line of the peer for a run, whose bundle it writes.
func (e *Engines) prepare(p Peer, program string, stdin bool) (r run, args []string, err error) {
	r = run{id: fmt.Sprintf("peer-%d", e.ids.Add(1)), program: program, stdin: stdin}
	if args, err = p.command(r); err != nil || !p.bundled() {
		return r, args, err
	}
	spec, err := p.spec(r)
	if err != nil {
		return r, nil, err
	}
	return r, args, e.world.do(func() error { return os.WriteFile(filepath.Join(bundleDir, "config.json"), spec, 0o644) })
}

// Run has the peer run Empty, and tells how long the peer's command took, from its start
// to its end. It fails where the program did not exit with 0.
func (e *Engines) Run(ctx context.Context, p Peer) (took time.Duration, err error) {
	_, args, err := e.prepare(p, Empty, false)
	if err != nil {
		return 0, err
	}
	err = e.finish(ctx, nil, &took, args...)
	return took, err
}

// Look has the peer run a program that looks around, and tells what holds for it.
func (e *Engines) Look(ctx context.Context, p Peer) (f Facts, err error) {
	r, args, err := e.prepare(p, factsProgram, true)
	if err != nil {
		return f, err
	}
	c := e.cmd(ctx, args)
	var errs bytes.Buffer
	c.Stderr = &errs
	stdin, err := c.StdinPipe()
	if err != nil {
		return f, err
	}
	stdout, err := c.StdoutPipe()
	if err != nil {
		return f, err
	}
	if err := e.world.do(c.Start); err != nil {
		return f, err
	}
	f, err = look(p, r, stdout)
	err = errors.Join(err, stdin.Close(), c.Wait())
	if err != nil {
		err = fmt.Errorf("%s: %w: %.*s", p, err, maxLog, errs.String())
	}
	return f, err
}

// look reads what the program prints, and its limits while it lives.
func look(p Peer, r run, stdout io.Reader) (f Facts, err error) {
	line, err := bufio.NewReader(io.LimitReader(stdout, maxFacts)).ReadBytes('\n')
	if err != nil {
		return f, fmt.Errorf("the program printed %q: %w", line, err)
	}
	if f, err = parseFacts(line); err != nil {
		return f, err
	}
	found, err := filepath.Glob(filepath.Join(cgroupRoot, p.cgroups(r.id), "pids.max"))
	if err != nil || len(found) != 1 {
		return f, fmt.Errorf("%d cgroups are like %s: %v", len(found), p.cgroups(r.id), err)
	}
	for file, value := range map[string]*string{"memory.max": &f.Memory, "pids.max": &f.PIDs, "cpu.max": &f.CPU} {
		b, err := os.ReadFile(filepath.Join(filepath.Dir(found[0]), file))
		if err != nil {
			return f, err
		}
		*value = strings.TrimSpace(string(b))
	}
	return f, nil
}
