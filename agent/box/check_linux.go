package box

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/pybox/pybox/agent/api"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
	"github.com/pybox/pybox/agent/readback"
)

// check reads the settings of the box back: all of them, or, again, those that
// could have changed while the files were written, or while the box waited for its
// run. A single difference refuses the run.
func (l *life) check(again bool) error {
	ctx, cancel := context.WithTimeout(l.ctx, readTimeout)
	defer cancel()
	read := readback.Full
	switch {
	case again && l.rec.GetBoxKind() == api.BoxReady:
		read = readback.Waited
	case again:
		read = readback.Quick
	}
	var bad differences
	first := len(l.rec.Checks)
	for _, c := range read(ctx, l.subject(ctx)) {
		w := &agentv1.Check{
			Setting: api.Text(c.Setting, 64), Expected: api.Text(c.Expected, maxValue), Found: api.Text(c.Found, maxValue),
			Source: api.Text(c.Source, 128), Ok: c.OK, Again: again,
		}
		l.rec.Checks = append(l.rec.Checks, w)
		if !c.OK {
			bad = append(bad, fmt.Sprintf("%s (%s) is %s, want %s", c.Setting, c.Source, c.Found, c.Expected))
		}
	}
	l.out.later(&agentv1.RunEvent{Event: &agentv1.RunEvent_Checks{Checks: &agentv1.Checks{Checks: l.rec.Checks[first:]}}})
	if err := l.ctx.Err(); err != nil {
		return refuse(api.ReasonSettings, err)
	}
	if h := l.m.o.Hooks().Tolerate; len(bad) > 0 && (h == nil || !h(l.cfg.ID)) {
		return refuse(api.ReasonSettings, bad)
	}
	if again {
		l.rec.SettingsChecked = !slices.ContainsFunc(l.rec.Checks, func(c *agentv1.Check) bool { return !c.Ok })
		l.stage("settings read again")
	} else {
		l.stage("settings read")
	}
	return nil
}

// differences are settings that are not as they should be, each in a sentence of
// its own.
type differences []string

func (d differences) Error() string { return strings.Join(d, "; ") }

// evidence is what a record says of a refusal: one sentence for each setting that
// differs, as far as there is room.
func (r *refusal) evidence() []string {
	var all differences
	if !errors.As(r.err, &all) {
		all = differences{r.err.Error()}
	}
	if more := len(all) - api.MaxEvidence; more > 0 {
		const last = api.MaxEvidence - 1
		all = append(all[:last:last], fmt.Sprintf("%d more settings differ", more+1))
	}
	cut := make([]string, len(all))
	for i, s := range all {
		cut[i] = api.Text(s, maxEvidence)
	}
	return cut
}

// maxValue bounds one side of a check, in bytes.
const maxValue = 2000

// linkOf is what /proc/PID/fd shows of a pipe, proc_pid_fd(5), whoever holds it.
func linkOf(pipe *os.File) string {
	info, err := pipe.Stat()
	if err != nil {
		return "not known: " + err.Error() // and equal to none
	}
	return fmt.Sprintf("pipe:[%d]", info.Sys().(*syscall.Stat_t).Ino)
}

// subject is the box for those who compare it.
func (l *life) subject(ctx context.Context) readback.Subject {
	pid := l.task.PID()
	return readback.Subject{
		Config: l.cfg, PID: pid, RootDevice: l.device, Streams: l.streams, Proc: readback.Files("/proc"), Cgroup: readback.Files(l.cgroupDir()),
		HostName:   func() (string, error) { return readback.HostName(pid) },
		StoredSpec: func() ([]byte, error) { return l.engine.StoredSpec(ctx, l.cfg.ID) },
		Runtime: func() (readback.Runtime, error) {
			s, err := l.engine.RuntimeState(l.cfg.ID)
			if err != nil {
				return readback.Runtime{}, err
			}
			return readback.Runtime{PID: s.PID, Cgroup: s.CgroupPath, Rootfs: s.Rootfs, Spec: s.Spec}, nil
		},
	}
}
