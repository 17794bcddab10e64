package oom

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// record is one record of the kernel's log.
type record struct {
	facility uint64 // 0: the kernel's own, which nobody else can use
	seq      uint64
	message  string
}

// errRecord marks bytes that are no record.
var errRecord = errors.New("not a record of the kernel's log")

// parseRecord reads a record as /dev/kmsg gives it: "prefix,sequence,time,flags;
// message", where further fields may follow the flags, and lines with a space in
// front may follow the message. The prefix is the facility times eight, plus the
// level.
func parseRecord(b []byte) (r record, err error) {
	head, rest, ok := bytes.Cut(b, []byte(";"))
	fields := strings.Split(string(head), ",")
	if !ok || len(fields) < 4 {
		return r, fmt.Errorf("%w: %.60q", errRecord, b)
	}
	prefix, err := parseUint(fields[0], 32)
	if err != nil {
		return r, fmt.Errorf("%w: prefix %.20q", errRecord, fields[0])
	}
	r.facility = prefix >> 3
	if r.seq, err = parseUint(fields[1], 64); err != nil {
		return r, fmt.Errorf("%w: sequence number %.20q", errRecord, fields[1])
	}
	message, _, _ := bytes.Cut(rest, []byte("\n"))
	r.message = string(message)
	return r, nil
}

func parseUint(s string, bits int) (uint64, error) {
	n, err := strconv.ParseUint(s, 10, bits)
	if err == nil && s != strconv.FormatUint(n, 10) {
		err = strconv.ErrSyntax
	}
	return n, err
}

// What mm/oom_kill.c of the kernel writes. The name of a process is the program's
// to choose, up to 15 bytes of anything but NUL; /dev/kmsg writes what is not
// printable as \xNN, so it cannot begin a line of its own. Messages that begin
// with such a name ("NAME[PID]: segfault at …") have too few bytes before the
// bracket to be taken for one of these.
var (
	// The first process of an event, before its kill. What follows the pid is
	// from the end, since the name before it may look like it.
	contextLine = regexp.MustCompile(`^oom-kill:constraint=CONSTRAINT_[A-Z_]+,nodemask=.*,task_memcg=(/[^,]*),task=.*,pid=([0-9]{1,10}),uid=[0-9]{1,10}$`)
	// Every process that is killed.
	killLine = regexp.MustCompile(`^(Memory cgroup out|Out) of memory(?: \(oom_kill_allocating_task\))?: Killed process ([0-9]{1,10}) \(`)
)

// parseContext reads the line that tells for which cgroup's process the kernel
// decided.
func parseContext(message string) (pid int, memcg string, ok bool) {
	m := contextLine.FindStringSubmatch(message)
	if m == nil {
		return 0, "", false
	}
	n, err := parseUint(m[2], 31)
	return int(n), m[1], err == nil && n > 0
}

// parseKill reads the line that tells of a kill.
func parseKill(message string) (pid int, scope Scope, ok bool) {
	m := killLine.FindStringSubmatch(message)
	if m == nil {
		return 0, "", false
	}
	scope = Guest
	if strings.HasPrefix(m[1], "Memory") {
		scope = Memcg
	}
	n, err := parseUint(m[2], 31)
	return int(n), scope, err == nil && n > 0
}
