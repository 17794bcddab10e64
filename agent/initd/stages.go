package initd

import (
	"os"
	"strconv"
	"strings"
	"time"
)

// What the agent is given by PID 1.
const (
	// Name and AgentName are the names (argv[0]) of the two programs.
	Name      = "init"
	AgentName = "pybox-agent"
	// StagesEnv is the environment variable with the stages of the boot.
	StagesEnv = "PYBOX_STAGES"
	// ControlFD is the descriptor of the control channel.
	ControlFD = 3
	// SystemCgroup and BoxesCgroup are the agent's own cgroup and the parent
	// of all boxes' cgroups.
	SystemCgroup = cgroupRoot + "/pybox/system"
	BoxesCgroup  = cgroupRoot + "/pybox/boxes"
)

const cgroupRoot = "/sys/fs/cgroup"

// stage is a step of the boot that has ended.
type stage struct {
	name string
	at   time.Duration
}

func formatStages(stages []stage) string {
	var b strings.Builder
	for i, s := range stages {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(s.name)
		b.WriteByte('=')
		b.WriteString(strconv.FormatInt(int64(s.at), 10))
	}
	return b.String()
}

// ParseStages reads the value of StagesEnv, calling each for every stage with
// its name and its CLOCK_BOOTTIME. Entries that make no sense are left out.
func ParseStages(value string, each func(name string, at time.Duration)) {
	for entry := range strings.SplitSeq(value, ",") {
		name, ns, ok := strings.Cut(entry, "=")
		at, err := strconv.ParseInt(ns, 10, 64)
		if ok && err == nil && name != "" && at >= 0 {
			each(name, time.Duration(at))
		}
	}
}

// earlierStages are those that ended before this program began at started: the
// kernel's alone, or the ones that the init of an initial RAM file system noted.
func earlierStages(started time.Duration) (out []stage) {
	ParseStages(os.Getenv(StagesEnv), func(name string, at time.Duration) { out = append(out, stage{name, at}) })
	if len(out) > 0 {
		return append(out, stage{"root", started})
	}
	return []stage{{"kernel", started}}
}
