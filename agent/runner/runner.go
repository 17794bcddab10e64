// Package runner is how the agent gets a program into a box and its true end out
// of it.
//
// The first process of a box is `python3 NAME ARGS…`, but it does not run the
// program itself: the interpreter's own start-up (module site) imports
// "sitecustomize" before it opens the file NAME, and the agent has put runner.py
// there. runner.py connects to a socket of the agent, takes the three standard
// streams, writes the files that the agent sends, so that their pages are charged
// to the box, and waits. On the go it forks once. The parent stays the box's init
// (PID 1): it reaps, and tells the agent the raw wait status of the program. The
// child says that it is there, so that the agent has its process id from the
// kernel, and returns from the import: CPython goes on exactly as it would have
// without us. No frame, module, path or variable of ours is left; standard output
// is line-buffered, which is the one intended difference. What the kernel or the
// interpreter keeps of the start still shows, such as PYTHONPATH in
// /proc/self/environ: docs/semantics.md lists it, and a suite in real boxes holds
// the list to be complete.
//
// The channel is a connected SOCK_SEQPACKET socket (unix(7)) that only the init
// holds once the program runs. Nothing can be opened through a socket's entry in /proc/PID/fd (ENXIO),
// and taking a descriptor of another process needs ptrace's permission, which
// Yama and seccomp refuse in a box: so the program cannot forge its end. It can
// end its init, which then shows as an end without a report.
//
// The package makes no box, mounts nothing, and judges no ending: it reports. All
// that comes from the box is hostile, since an imported image may have any
// python3 in it.
package runner

import (
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"unicode"

	"github.com/pybox/pybox/agent/oci"
)

// Dir is the folder in the working folder that holds the runner and its socket.
// It is gone before the first byte of a program is there.
const Dir = ".pybox"

// ExitBroken is the exit code of a box's init that could not do its work and
// started no program: EX_SOFTWARE of sysexits.h. It is a hint for a log; what
// counts is that no start was reported.
const ExitBroken = 70

// Bounds of the names that CheckName takes.
const (
	// MaxNameBytes is NAME_MAX of Linux, for one part of a path.
	MaxNameBytes = 255
	// MaxDepth is how many parts a path has at most. With MaxNameBytes it
	// keeps every path below PATH_MAX.
	MaxDepth = 16
	// MaxArgsBytes bounds the arguments of a program whose name comes late, with one
	// byte for the end of each.
	MaxArgsBytes = 64 << 10
)

// Placeholder is what an interpreter is started with where the name of its program is
// not known yet: see Conn.Name. It takes as much room as the longest name can, and
// nobody's file is called so.
var Placeholder = strings.Repeat("the-name-of-the-program-comes-later.", MaxNameBytes)[:MaxNameBytes]

// Sentinels, to be tested with errors.Is.
var (
	// ErrName: the name of a file cannot be taken into a box.
	ErrName = errors.New("invalid file name")
	// ErrPeer: a process that is not the box's init connected to its socket.
	ErrPeer = errors.New("another process than the box's init connected")
	// ErrProtocol: the init broke the protocol. The image's python3 is to
	// blame, or something in the image that it loads.
	ErrProtocol = errors.New("the box's init broke the runner's protocol")
	// ErrGone: the init ended, or closed its socket, without a report.
	ErrGone = errors.New("the box's init went away without a report")
	// ErrBroken: the runner said why it could not do its work. What it said
	// is untrusted.
	ErrBroken = errors.New("the runner failed in the box")
	// ErrUnable: the image's python3 cannot be given the name of its program late.
	// It comes with ErrBroken.
	ErrUnable = errors.New("no box of this image can be made ahead")
	// ErrNotStarted: the program's process could not be made. The cause is a
	// syscall.Errno: EAGAIN where the process limit allows none beside the
	// init, ENOMEM.
	ErrNotStarted = errors.New("the program could not be started")
	// ErrNoSpace: the working folder is full (ENOSPC, EDQUOT), in bytes or in
	// files.
	ErrNoSpace = errors.New("no space left in the working folder")
	// ErrNoMemory: the box's memory limit does not hold the file (ENOMEM).
	ErrNoMemory = errors.New("not enough memory in the box for its files")
	// ErrSize: a file had more or fewer bytes than was said.
	ErrSize = errors.New("the file's size is not what was announced")
	// ErrOrder: a bug of the caller, which called after the go or a failure.
	ErrOrder = errors.New("call out of order")
)

//go:embed runner.py
var source []byte

// SHA256 is the hash of the runner, in hexadecimal.
func SHA256() string {
	sum := sha256.Sum256(source)
	return hex.EncodeToString(sum[:])
}

// Env returns the environment of a box's init: env with the runner's folder in
// front of PYTHONPATH. The program sees its PYTHONPATH as it is in env; an empty
// one, which Python takes for none, is removed. (In /proc/self/environ the
// kernel shows what the init was started with.)
func Env(env []string) []string { return environment(env, oci.WorkDir+"/"+Dir) }

func environment(env []string, dir string) []string {
	const key = "PYTHONPATH="
	out := make([]string, 0, len(env)+1)
	found := false
	for _, kv := range env {
		value, is := strings.CutPrefix(kv, key)
		switch {
		case is && found:
			continue // getenv(3) sees the first
		case is && value != "":
			kv, found = key+dir+":"+value, true
		case is:
			kv, found = key+dir, true
		}
		out = append(out, kv)
	}
	if !found {
		out = append(out, key+dir)
	}
	return out
}

// CheckName reports why a file or folder of that name cannot be taken into a
// box, as an error that matches ErrName, or nil. Names are relative to the
// working folder, in UTF-8, with "/" between at most MaxDepth parts of at most
// MaxNameBytes each, lexically clean, without control characters, and not in the
// runner's own folder.
func CheckName(name string) error {
	bad := func(why string) error { return fmt.Errorf("%w: %.100q %s", ErrName, name, why) }
	if !fs.ValidPath(name) || name == "." {
		return bad("is not a clean relative path in UTF-8")
	}
	if strings.ContainsFunc(name, unicode.IsControl) {
		return bad("has a control character")
	}
	parts := strings.Split(name, "/")
	if parts[0] == Dir {
		return bad("lies in the reserved folder " + Dir)
	}
	if len(parts) > MaxDepth {
		return bad(fmt.Sprintf("has more than %d parts", MaxDepth))
	}
	for _, part := range parts {
		if len(part) > MaxNameBytes {
			return bad(fmt.Sprintf("has a part of more than %d bytes", MaxNameBytes))
		}
	}
	return nil
}
