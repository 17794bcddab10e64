package readback

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/pybox/pybox/agent/oci"
)

// credentials compares what /proc/PID/status tells of privileges: proc(5).
func (r *reader) credentials() {
	b, err := r.proc("status", maxStatus)
	var status map[string]string
	if err == nil {
		status, err = parseStatus(b)
	}
	uid, gid := strconv.Itoa(r.Config.HostUID()), strconv.Itoa(r.Config.HostGID())
	const noCapabilities = "0000000000000000"
	for _, row := range []struct{ setting, key, expected string }{
		{"no_new_privs", "NoNewPrivs", "1"},
		{"capabilities: inheritable", "CapInh", noCapabilities},
		{"capabilities: permitted", "CapPrm", noCapabilities},
		{"capabilities: effective", "CapEff", noCapabilities},
		{"capabilities: bounding", "CapBnd", noCapabilities},
		{"capabilities: ambient", "CapAmb", noCapabilities},
		{"seccomp mode", "Seccomp", "2"}, // SECCOMP_MODE_FILTER
		{"seccomp filters", "Seccomp_filters", "1"},
		// Real, effective, saved and file system's.
		{"user", "Uid", strings.Join([]string{uid, uid, uid, uid}, " ")},
		{"group", "Gid", strings.Join([]string{gid, gid, gid, gid}, " ")},
		{"supplementary groups", "Groups", ""},
		// In the guest's and in its own pid namespace.
		{"process ids", "NSpid", fmt.Sprintf("%d 1", r.PID)},
	} {
		found, known := status[row.key]
		rowErr := err
		if err == nil && !known {
			rowErr = fmt.Errorf("no line %q", row.key)
		}
		r.compare(row.setting, r.procPath("status"), row.expected, found, rowErr)
	}
}

// maxDescriptors bounds the open files that are looked at.
const maxDescriptors = 64

// descriptors expects the first process, in which the runner waits, to hold its
// three streams, the runner's socket and nothing else: proc_pid_fd(5).
func (r *reader) descriptors() {
	found, err := r.openFiles()
	expected := []string{"0 " + r.Streams[0], "1 " + r.Streams[1], "2 " + r.Streams[2], "a socket"}
	r.compare("open files", r.procPath("fd"), quoted(expected), quoted(found), err)
}

// openFiles lists "NUMBER LINK" of the open files of the first process. The
// number of a socket behind the streams is of no interest, nor is its inode: that
// the runner's own was this process's was seen when it connected.
func (r *reader) openFiles() ([]string, error) {
	if err := r.ctx.Err(); err != nil {
		return nil, context.Cause(r.ctx)
	}
	dir := path.Join(strconv.Itoa(r.PID), "fd")
	numbers, err := r.numbers(dir)
	if err != nil {
		return nil, err
	}
	var open []string
	for _, n := range numbers {
		link, err := fs.ReadLink(r.Proc, path.Join(dir, strconv.Itoa(n)))
		if err != nil {
			return nil, err
		}
		if n > 2 && strings.HasPrefix(link, "socket:[") {
			open = append(open, "a socket")
			continue
		}
		open = append(open, fmt.Sprintf("%d %s", n, link))
	}
	return open, nil
}

// numbers reads the names in a folder, which are numbers, up to maxDescriptors.
func (r *reader) numbers(name string) ([]int, error) {
	f, err := r.Proc.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	dir, ok := f.(fs.ReadDirFile)
	if !ok {
		return nil, errors.New("it is no folder")
	}
	entries, err := dir.ReadDir(maxDescriptors + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if len(entries) > maxDescriptors {
		return nil, fmt.Errorf("more than %d open files", maxDescriptors)
	}
	numbers := make([]int, len(entries))
	for i, e := range entries {
		if numbers[i], err = strconv.Atoi(e.Name()); err != nil {
			return nil, fmt.Errorf("%.20q is no number of an open file", e.Name())
		}
	}
	slices.Sort(numbers)
	return numbers, nil
}

// idMaps compares the user namespace's mappings: user_namespaces(7).
func (r *reader) idMaps() {
	m := oci.IDMap(r.Config.Slot)
	expected := fmt.Sprintf("%d %d %d", m.ContainerID, m.HostID, m.Size)
	for _, file := range []string{"uid_map", "gid_map"} {
		b, err := r.proc(file, maxSmall)
		var found string
		if err == nil {
			found, err = parseIDMap(b)
		}
		r.compare(file, r.procPath(file), expected, found, err)
	}
}

// namespaceFiles are the names below /proc/PID/ns: namespaces(7). What the
// specification calls otherwise is listed.
var namespaceFiles = map[string]string{"network": "net", "mount": "mnt"}

// namespaces expects every kind of namespace to be another than the agent's own,
// which is that of the thread that asks.
func (r *reader) namespaces() {
	for _, kind := range oci.Namespaces() {
		file := string(kind)
		if other, ok := namespaceFiles[file]; ok {
			file = other
		}
		own, err := r.namespace("thread-self", file)
		found, foundErr := r.namespace(strconv.Itoa(r.PID), file)
		r.add("namespace: "+string(kind), r.procPath("ns/"+file), "another than "+own, found, found != own, cmp.Or(err, foundErr))
	}
}

// namespace reads which namespace a process is in: "net:[4026531833]".
func (r *reader) namespace(process, file string) (string, error) {
	if err := r.ctx.Err(); err != nil {
		return "", err
	}
	link, err := fs.ReadLink(r.Proc, path.Join(process, "ns", file))
	if err != nil {
		return "", err
	}
	inode, ok := strings.CutPrefix(link, file+":[")
	inode, closed := strings.CutSuffix(inode, "]")
	if _, err := strconv.ParseUint(inode, 10, 64); err != nil || !ok || !closed {
		return "", fmt.Errorf("%.40q is no namespace of the kind %s", link, file)
	}
	return link, nil
}

// rlimits compares the resource limits: getrlimit(2).
func (r *reader) rlimits() {
	b, err := r.proc("limits", maxSmall)
	var limits map[string]string
	if err == nil {
		limits, err = parseLimits(b)
	}
	for _, l := range oci.Rlimits() {
		found, known := limits[l.Type]
		rowErr := err
		if err == nil && !known {
			rowErr = errors.New("no line for it")
		}
		r.compare(l.Type, r.procPath("limits"), rlimit(l.Soft)+" "+rlimit(l.Hard), found, rowErr)
	}
}

// identity compares what the first process was started with.
func (r *reader) identity() {
	args, err := r.strings("cmdline")
	r.compare("arguments", r.procPath("cmdline"), quoted(r.Config.Args), quoted(args), err)
	env, err := r.strings("environ")
	r.compare("environment", r.procPath("environ"), quoted(r.Config.Env), quoted(env), err)
}

// surroundings compares what is set for the box and its first process, and could be set
// otherwise at any time by somebody with privileges outside.
func (r *reader) surroundings() {
	name, err := r.HostName()
	r.compare("host name", "uname(2) in its UTS namespace", oci.HostName, name, err)
	score, err := r.value(r.Proc, strconv.Itoa(r.PID)+"/oom_score_adj")
	r.compare("oom_score_adj", r.procPath("oom_score_adj"), "0", score, err)
	slack, err := r.value(r.Proc, strconv.Itoa(r.PID)+"/timerslack_ns")
	r.compare("timer slack", r.procPath("timerslack_ns"), "50000", slack, err)
	cwd, err := fs.ReadLink(r.Proc, strconv.Itoa(r.PID)+"/cwd")
	r.compare("working folder", r.procPath("cwd"), oci.WorkDir, cwd, err)
}

// personality compares the flags by which the kernel treats the first process and its
// children otherwise than usual, among them one for addresses that are not random
// (personality(2)).
func (r *reader) personality() {
	flags, err := r.value(r.Proc, strconv.Itoa(r.PID)+"/personality")
	r.compare("personality", r.procPath("personality"), "00000000", flags, err)
}

// strings reads strings of which each ends with a NUL.
func (r *reader) strings(file string) ([]string, error) {
	b, err := r.proc(file, oci.MaxStrings)
	if err != nil {
		return nil, err
	}
	if len(b) == 0 {
		return nil, nil
	}
	all, ok := strings.CutSuffix(string(b), "\x00")
	if !ok {
		return nil, errors.New("no NUL at the end")
	}
	return strings.Split(all, "\x00"), nil
}

// quoted writes strings so that different ones look different.
func quoted(all []string) string { return fmt.Sprintf("%q", all) }
