package agent

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/pybox/pybox/agent/admission"
	"github.com/pybox/pybox/agent/box"
	"github.com/pybox/pybox/agent/control"
	"github.com/pybox/pybox/agent/counters"
	"github.com/pybox/pybox/agent/engine"
	"github.com/pybox/pybox/agent/images"
	"github.com/pybox/pybox/agent/oci"
	"github.com/pybox/pybox/agent/oom"
	"github.com/pybox/pybox/agent/preread"
)

// Where the agent keeps what it makes; all of it is tmpfs.
const (
	stateDir  = "/run/pybox"
	cgroupDir = "/sys/fs/cgroup"
	kernelLog = "/dev/kmsg"
	crunPath  = "/usr/bin/crun"
)

// reserveBytes is what the guest keeps of its memory for everything but boxes:
// the kernel, PID 1, the agent with containerd, the shim, and their buffers. Page
// cache of the images comes and goes. A run whose large files are on their way takes up
// to 4 MiB of it, for as long as the box or the client holds them up: a piece in the
// agent, a full pipe (package runner) and two pieces in the socket (package bulk). Some
// 30 at a time are meant to fit, not oci.MaxSlots.
const reserveBytes = 160 << 20

// newBoxes prepares what makes boxes. It starts nothing slow: see
// box.Manager.Supervise.
func newBoxes(ctx context.Context, c Config, pid1 *control.Client) (*box.Manager, error) {
	total, _ := proc{c.Proc, c.Log}.memory()
	if total <= reserveBytes {
		return nil, fmt.Errorf("the guest has %d bytes of memory, which leaves nothing for a box beside the %d that it needs itself", total, int64(reserveBytes))
	}
	// A box's user passes through these folders and looks into none.
	for _, dir := range []string{stateDir, filepath.Join(stateDir, "images"), filepath.Join(stateDir, "boxes")} {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return nil, fmt.Errorf("make the agent's folders: %w", err)
		}
	}
	room, err := admission.New(admission.Capacity{
		MemoryBytes: total - reserveBytes, MilliCPU: int64(runtime.NumCPU()) * 1000, Slots: oci.MaxSlots,
	}, c.Boot)
	if err != nil {
		return nil, err
	}
	kmsg, err := oom.Open(ctx, kernelLog, c.Boot, c.Log)
	if err != nil {
		return nil, err
	}
	parent, err := counters.Open(filepath.Join(cgroupDir, oci.CgroupParent), c.Boot)
	if err != nil {
		return nil, err
	}
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return box.NewManager(box.Options{
		StartEngine: func(ctx context.Context) (*engine.Engine, error) {
			began := c.Boot()
			e, err := engine.Start(ctx, engine.Options{
				Root: filepath.Join(stateDir, "containerd/root"), State: filepath.Join(stateDir, "containerd/state"),
				Crun: crunPath, Exe: exe, Log: c.Log,
			})
			if err == nil {
				c.Steps.Note(stepEngine, began)
			}
			return e, err
		},
		Images: images.New(images.Options{
			Sys: os.DirFS("/sys"), Dev: "/dev", Dir: filepath.Join(stateDir, "images"), System: images.Kernel{},
			Preread: func(root string) {
				began := c.Boot()
				readAhead(root, c.Log)
				c.Steps.Note(filepath.Base(root), began)
			},
			PrereadWait: prereadWait,
		}),
		Room: room, Timers: pid1, Kernel: kmsg, Counters: parent, Step: c.Steps.Note, Activity: c.Activity.Begin, Boot: c.Boot, Log: c.Log,
		Arch: runtime.GOARCH, CgroupRoot: cgroupDir, Dir: filepath.Join(stateDir, "boxes"), Hooks: testHooks,
	})
}

// prereadTime is how long reading an image ahead may take. A run waits for it, but no
// longer than prereadWait.
const prereadTime = time.Minute

// readAhead reads what programs touch of the image at root, with what nobody else
// wants of the disk and the CPUs. That it fails costs memory of boxes, no more.
func readAhead(root string, log *slog.Logger) {
	preread.Lowly(func() {
		ctx, cancel := context.WithTimeout(context.Background(), prereadTime)
		defer cancel()
		max, err := preread.Budget(os.DirFS("/proc"))
		if err != nil {
			log.Warn("nothing is read ahead", "err", err)
			return
		}
		began := time.Now()
		s, err := preread.Read(ctx, root, max)
		log.Info("read ahead", "image", filepath.Base(root), "files", s.Files, "bytes", s.Bytes, "skipped", s.Skipped,
			"ms", time.Since(began).Milliseconds(), "err", err)
	})
}
