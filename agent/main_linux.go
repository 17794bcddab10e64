package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/mdlayher/vsock"
	"golang.org/x/sys/unix"

	"github.com/pybox/pybox/agent/api"
	"github.com/pybox/pybox/agent/api/pid1"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
	"github.com/pybox/pybox/agent/boottime"
	"github.com/pybox/pybox/agent/build"
	"github.com/pybox/pybox/agent/bulk"
	"github.com/pybox/pybox/agent/console"
	"github.com/pybox/pybox/agent/control"
	"github.com/pybox/pybox/agent/initd"
	"github.com/pybox/pybox/agent/shell"
)

// versionsFile has the versions of what runs boxes: lines "name version",
// written when the root image is built. Asking the programs themselves would
// delay the hello by their start.
const versionsFile = "etc/pybox/versions"

// busyboxPath is what a shell in the guest is made of.
const busyboxPath = "/usr/bin/busybox"

// gcPercent is GOGC of the agent: most of its heap is output that it keeps for
// clients, which the default would let grow to the double.
const gcPercent = 50

// gcFloor is never written to, so that it takes no memory, and counts as heap. Without it
// the collector would run after every second megabyte, more than once a run, while the
// agent has next to nothing to keep; in bytes.
const gcFloor = 4 << 20

// helloWait is how long what makes boxes is held up for the first hello, which the host
// asks for as soon as the agent listens.
const helloWait = time.Second

// Main is the agent. It returns an exit code, at which PID 1 ends every box and
// the guest; an agent that is well never returns.
func Main(version string) int {
	started := boottime.Now()
	c := console.New(os.Stderr)
	err := run(c, version, started)
	c.Printf("pybox: agent: %v", err)
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = c.Flush(ctx)
	return 1
}

func run(c *console.Console, version string, started time.Duration) error {
	if os.Getppid() != 1 || os.Getenv(initd.StagesEnv) == "" {
		return errors.New("it is started by PID 1 of a PyBox guest only")
	}
	debug.SetGCPercent(gcPercent)
	floor := make([]byte, gcFloor)
	defer runtime.KeepAlive(floor)
	log := slog.New(slog.NewTextHandler(c, &slog.HandlerOptions{Level: slog.LevelInfo}))
	pid1, err := controlChannel()
	if err != nil {
		return err
	}
	config, err := systemConfig(version, log)
	if err != nil {
		return err
	}
	initd.ParseStages(os.Getenv(initd.StagesEnv), config.stage)
	_ = os.Unsetenv(initd.StagesEnv)
	config.stage("agent", started)

	l, err := listen(api.AgentPort, api.MaxConns)
	if err != nil {
		return err
	}
	large, err := listen(api.BulkPort, api.MaxBulk)
	if err != nil {
		return err
	}
	config.stage("listening", boottime.Now())
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	boxes, err := newBoxes(ctx, config, pid1)
	if err != nil {
		return err
	}
	config.Boxes, config.BuildProgram = boxes, build.Program()
	config.Shell, config.Bulk = newShell(ctx, log), bulk.NewDesk(api.StallTimeout)
	service := NewService(config)
	server := api.NewServer(service, log)
	handleTests(server, pid1, boxes)

	failed := make(chan error, 3)
	go func() { failed <- server.Serve(ctx, l) }()
	go func() { failed <- config.Bulk.Serve(ctx, large) }()
	go func() {
		// What makes boxes takes all processors for a while, and so made the hello wait
		// that somebody waits for.
		select {
		case <-service.Greeted():
		case <-time.After(helloWait):
		case <-ctx.Done():
		}
		failed <- boxes.Supervise(ctx)
	}()
	select {
	case err := <-failed:
		return err
	case reason := <-service.PoweringOff():
		cancel() // calls in progress, the one that asked too, get their answers
		<-failed
		return powerOff(pid1.PowerOff, switchOff, reason)
	}
}

// listen listens on a port for the host alone, and for so many connections at a time.
func listen(port uint32, max int) (net.Listener, error) {
	l, err := vsock.ListenContextID(unix.VMADDR_CID_ANY, port, nil)
	if err != nil {
		return nil, fmt.Errorf("listen for the host on vsock port %d: %w", port, err)
	}
	return pid1.LimitListener(l, max, isHost), nil
}

// newShell returns the shell, which nothing listens for before it is opened.
func newShell(ctx context.Context, log *slog.Logger) *shell.Server {
	return shell.New(ctx, shell.Options{
		Listen:  func() (net.Listener, error) { return listen(api.ShellPort, api.MaxShells) },
		Starter: &shell.Busybox{Path: busyboxPath, Parent: filepath.Join(cgroupDir, "pybox")},
		Log:     log,
	})
}

// switchOff ends the machine without PID 1.
func switchOff() error {
	return os.NewSyscallError("reboot", unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF))
}

// controlChannel opens what PID 1 left at initd.ControlFD, and keeps it from
// every program that the agent starts.
func controlChannel() (*control.Client, error) {
	unix.CloseOnExec(initd.ControlFD)
	f := os.NewFile(initd.ControlFD, "control")
	conn, err := net.FileConn(f)
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("open the channel to PID 1: %w", err)
	}
	return control.NewClient(conn), nil
}

// systemConfig reads what the running kernel says of itself.
func systemConfig(version string, log *slog.Logger) (Config, error) {
	root := os.DirFS("/")
	id, err := readBounded(root, "proc/sys/kernel/random/boot_id", 64)
	if err != nil {
		return Config{}, fmt.Errorf("read the boot id: %w", err)
	}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return Config{}, os.NewSyscallError("uname", err)
	}
	runtimes, err := readBounded(root, versionsFile, 4096)
	if err != nil {
		log.Warn("the versions of what runs boxes are not known", "error", err)
	}
	return Config{
		Version:       version,
		BootID:        strings.TrimSpace(string(id)),
		KernelRelease: unix.ByteSliceToString(u.Release[:]),
		Machine:       unix.ByteSliceToString(u.Machine[:]),
		Runtimes:      withContainerd(versions(runtimes)),
		Wall:          systemClock{},
		Boot:          boottime.Now,
		Steps:         NewSteps(boottime.Now),
		Proc:          os.DirFS("/proc"),
		Activity:      new(Activity),
		Log:           log,
	}, nil
}

func (c *Config) stage(name string, at time.Duration) {
	c.Stages = append(c.Stages, &agentv1.Stage{Name: name, EndedAtNs: int64(at)})
}

// isHost tells whether a vsock peer is the host: nothing in the guest may be
// taken for it, and vsock(7) knows no network namespaces.
func isHost(a net.Addr) bool {
	v, ok := a.(*vsock.Addr)
	return ok && v.ContextID == api.HostCID
}

// systemClock is CLOCK_REALTIME.
type systemClock struct{}

// Now implements WallClock.
func (systemClock) Now() time.Time { return time.Now() }

// Set implements WallClock.
func (systemClock) Set(t time.Time) error {
	ts := unix.NsecToTimespec(t.UnixNano())
	return os.NewSyscallError("clock_settime", unix.ClockSettime(unix.CLOCK_REALTIME, &ts))
}

// withContainerd adds the version of the containerd that is part of this program.
func withContainerd(m map[string]string) map[string]string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return m
	}
	for _, d := range info.Deps {
		if d.Path == "github.com/containerd/containerd/v2" {
			m["containerd"] = strings.TrimPrefix(d.Version, "v")
		}
	}
	return m
}
