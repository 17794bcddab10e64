package api

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	agentv1 "github.com/pybox/pybox/agent/api/v1"
)

// Bounds of what a run or a build may ask for. They are what the agent holds to
// whatever a host's own limits are, which are narrower.
const (
	// MaxRunID bounds the id of a run, in bytes.
	MaxRunID = 40
	// MaxArgs and MaxArgBytes bound the arguments, and once more the
	// environment: their number, and their bytes with one for each end.
	MaxArgs     = 256
	MaxArgBytes = 64 << 10
	// MaxNamePart, MaxNameDepth and MaxNameBytes bound the name of a file in
	// the working folder: NAME_MAX of Linux, the folders it may lie in and
	// itself, and all of it below PATH_MAX.
	MaxNamePart  = 255
	MaxNameDepth = 16
	MaxNameBytes = 2048
	// MaxOutputBytes bounds how much of an output stream is kept.
	MaxOutputBytes = 16 << 20
	// MaxTarBytes bounds the archive of a build.
	MaxTarBytes = 1 << 30

	// MinMemoryBytes to MaxWorkFiles are the bounds of Limits. MemoryUnit is what
	// a memory limit is a multiple of: the kernel rounds memory.max down to
	// pages. MinPIDs leaves room for the OCI runtime beside the box's own PID 1.
	MemoryUnit     = 4096
	MinPIDs        = 4
	MinMemoryBytes = 16 << 20
	MaxMemoryBytes = 1 << 40
	MaxPIDs        = 32768
	MinMilliCPU    = 10
	MaxMilliCPU    = 1024000
	MinWorkBytes   = 4 << 10
	MaxWorkFiles   = 1 << 20
	// MinTimeout and MaxTimeout bound the program's time, MaxQueueWait the
	// wait for room.
	MinTimeout   = time.Millisecond
	MaxTimeout   = 24 * time.Hour
	MaxQueueWait = 24 * time.Hour
)

// reservedName is the first part of no file's name: the agent keeps its own in a
// folder of that name while a box is made.
const reservedName = ".pybox"

// reservedPrefix begins no part of a file's name, in any case of its letters: the host
// puts what comes back into a folder of such a name first, where the user wants it.
const reservedPrefix = ".pybox-output-"

// ErrRequest marks a request that can never be carried out as it is. The message
// says what is wrong with it, for whoever wrote it.
var ErrRequest = errors.New("the request is not acceptable")

// CheckRunStart holds the start of a run to its bounds. The error matches
// ErrRequest.
func CheckRunStart(m *agentv1.RunStart) error {
	err := firstError(
		func() error { return checkRunID(m.GetId()) },
		func() error { return checkImage(m.GetImage()) },
		func() error { return checkProgramName(m.GetProgram()) },
		func() error { return checkArgs(m.GetArgs()) },
		func() error { return checkEnv(m.GetEnv()) },
		func() error { return checkLimits(m.GetLimits()) },
		func() error { return checkTime("time limit", m.GetTimeoutNs(), MinTimeout, MaxTimeout) },
		func() error {
			return checkRange("kept standard output", m.GetStdoutBytes(), 0, MaxOutputBytes, "bytes")
		},
		func() error { return checkRange("kept standard error", m.GetStderrBytes(), 0, MaxOutputBytes, "bytes") },
		func() error { return checkTime("wait for room", m.GetQueueWaitNs(), 0, MaxQueueWait) },
		func() error { return checkRange("number of files", m.GetFiles(), 0, MaxLeft, "files and folders") },
		func() error {
			return checkRange("size of the files", m.GetFilesBytes(), 0, MaxMemoryBytes, "bytes together")
		},
	)
	return asRequestError(err)
}

// CheckRunFile holds the beginning of a file of a run to its bounds. The error
// matches ErrRequest.
func CheckRunFile(m *agentv1.RunFile) error {
	err := checkFileName(m.GetName())
	switch {
	case err != nil:
	case m.GetFolder() && (m.GetBytes() != 0 || m.GetExecutable()):
		err = fmt.Errorf("the folder %s has bytes or is executable, as only a file can be", quoted(m.GetName()))
	case m.GetBytes() < 0 || m.GetBytes() > MaxMemoryBytes:
		err = fmt.Errorf("the file %s has %d bytes, want 0 to %d", quoted(m.GetName()), m.GetBytes(), int64(MaxMemoryBytes))
	case m.GetBulk() && m.GetBytes() == 0:
		err = fmt.Errorf("%s has no bytes that could come over a connection", quoted(m.GetName()))
	}
	return asRequestError(err)
}

// CheckBuild holds the request for a build to its bounds. The error matches
// ErrRequest.
func CheckBuild(m *agentv1.BuildRequest) error {
	err := firstError(
		func() error { return checkImage(m.GetImage()) },
		func() error { return checkLimits(m.GetLimits()) },
		func() error { return checkTime("time limit", m.GetTimeoutNs(), MinTimeout, MaxTimeout) },
		func() error { return checkRange("archive", m.GetMaxTarBytes(), 1, MaxTarBytes, "bytes") },
	)
	return asRequestError(err)
}

// Bounds of what may be kept ready.
const (
	// MaxReady bounds the boxes of one kind, and the kinds.
	MaxReady = 16
	// MaxImports bounds the modules that are imported ahead, MaxImportBytes each of
	// their names.
	MaxImports     = 16
	MaxImportBytes = 128
)

// CheckSetReady holds a request for ready boxes to its bounds. The error matches
// ErrRequest.
func CheckSetReady(m *agentv1.SetReadyRequest) error {
	if len(m.GetReady()) > MaxReady {
		return asRequestError(fmt.Errorf("%d kinds of ready boxes, want at most %d", len(m.GetReady()), MaxReady))
	}
	seen := make(map[string]bool, len(m.GetReady()))
	for _, r := range m.GetReady() {
		if err := checkReady(r); err != nil {
			return asRequestError(err)
		}
		key := ReadyKey(r.GetImage(), r.GetLimits(), r.GetEnv())
		if seen[key] {
			return asRequestError(errors.New("two kinds of ready boxes are for the same runs"))
		}
		seen[key] = true
	}
	return nil
}

func checkReady(r *agentv1.Ready) error {
	return firstError(
		func() error { return checkImage(r.GetImage()) },
		func() error { return checkRange("ready boxes", int64(r.GetCount()), 1, MaxReady, "of one kind") },
		func() error { return checkLimits(r.GetLimits()) },
		func() error { return checkEnv(r.GetEnv()) },
		func() error { return checkRange("kept output", r.GetOutputBytes(), 0, 2*MaxOutputBytes, "bytes") },
		func() error { return checkImports(r.GetImports()) },
	)
}

// ReadyKey is equal for all that a ready box must have in common with the run that
// gets it: image, limits and environment, the order of which counts.
func ReadyKey(image string, l *agentv1.Limits, env []string) string {
	return fmt.Sprintf("%s %d %d %d %d %d %q", image,
		l.GetMemoryBytes(), l.GetPids(), l.GetMilliCpu(), l.GetWorkBytes(), l.GetWorkFiles(), env)
}

// CheckImports holds the names of modules that are imported ahead to their bounds. The
// error matches ErrRequest.
func CheckImports(names []string) error { return asRequestError(checkImports(names)) }

// checkImports wants names of Python modules, which are ASCII here.
func checkImports(names []string) error {
	if len(names) > MaxImports {
		return fmt.Errorf("%d modules to import ahead, want at most %d", len(names), MaxImports)
	}
	for _, name := range names {
		if !isModule(name) {
			return fmt.Errorf("module %s: want the full name of one, of at most %d letters, digits, \"_\" and \".\"", quoted(name), MaxImportBytes)
		}
	}
	return nil
}

func isModule(name string) bool {
	for part := range strings.SplitSeq(name, ".") {
		if part == "" || !isEnvName(part) {
			return false
		}
	}
	return len(name) <= MaxImportBytes
}

// CheckFileName holds the name of a file in the working folder to its rules: a
// relative, clean path with "/" between at most MaxNameDepth parts, each 1 to
// MaxNamePart bytes of UTF-8 without control characters, and none of PyBox's own. The
// error matches ErrRequest.
func CheckFileName(name string) error { return asRequestError(checkFileName(name)) }

// CheckProgramName holds the name of the program to the rules of CheckFileName;
// beyond them it has one part and does not begin with "-", which Python would
// take for an option. The error matches ErrRequest.
func CheckProgramName(name string) error { return asRequestError(checkProgramName(name)) }

// CheckRunID holds the id of a run to 1 to MaxRunID of a-z, 0-9 and "-". The error
// matches ErrRequest.
func CheckRunID(id string) error { return asRequestError(checkRunID(id)) }

// firstError gives the first error of checks.
func firstError(checks ...func() error) error {
	for _, check := range checks {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

func asRequestError(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrRequest, err)
}

func isRunID(id string) bool {
	return len(id) >= 1 && len(id) <= MaxRunID && strings.Trim(id, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}

func checkRunID(id string) error {
	if !isRunID(id) {
		return fmt.Errorf("run id %s: want 1 to %d of a-z, 0-9 and \"-\"", quoted(id), MaxRunID)
	}
	return nil
}

// isImage tells whether s is the serial of an image's disk.
func isImage(s string) bool {
	digits, ok := strings.CutPrefix(s, "img-")
	return ok && len(digits) == 16 && strings.Trim(digits, "0123456789abcdef") == ""
}

func checkImage(s string) error {
	if !isImage(s) {
		return fmt.Errorf("image %s: want the serial of its disk, \"img-\" and 16 hexadecimal digits", quoted(s))
	}
	return nil
}

func checkProgramName(name string) error {
	switch {
	case strings.Contains(name, "/"):
		return fmt.Errorf("program name %s: want a plain file name without \"/\"", quoted(name))
	case strings.HasPrefix(name, "-"):
		return fmt.Errorf("program name %s: Python would take it for an option; want one that does not begin with \"-\"", quoted(name))
	}
	return checkFileName(name)
}

func checkFileName(name string) error {
	bad := func(why string) error { return fmt.Errorf("file name %s: %s", quoted(name), why) }
	if len(name) > MaxNameBytes {
		return bad(fmt.Sprintf("it has %d bytes, want at most %d", len(name), MaxNameBytes))
	}
	parts := strings.Split(name, "/")
	if len(parts) > MaxNameDepth {
		return bad(fmt.Sprintf("it lies %d folders deep, want at most %d", len(parts)-1, MaxNameDepth-1))
	}
	if parts[0] == reservedName {
		return bad("\"" + reservedName + "\" is kept for PyBox itself")
	}
	for _, p := range parts {
		switch {
		case p == "" || p == "." || p == "..":
			return bad("want a relative path without empty parts, \".\" and \"..\"")
		case len(p) > MaxNamePart:
			return bad(fmt.Sprintf("a part of it has %d bytes, Linux allows %d", len(p), MaxNamePart))
		case !utf8.ValidString(p):
			return bad("it is not UTF-8")
		case strings.ContainsFunc(p, unicode.IsControl):
			return bad("it has a control character in it")
		case len(p) >= len(reservedPrefix) && strings.EqualFold(p[:len(reservedPrefix)], reservedPrefix):
			return bad("names that begin with \"" + reservedPrefix + "\" are kept for PyBox itself")
		}
	}
	return nil
}

func checkArgs(args []string) error {
	for i, a := range args {
		if !utf8.ValidString(a) || strings.Contains(a, "\x00") {
			return fmt.Errorf("argument %d %s: want UTF-8 without a NUL", i+1, quoted(a))
		}
	}
	return checkWords("arguments", args)
}

func checkEnv(env []string) error {
	seen := make(map[string]bool, len(env))
	for _, e := range env {
		name, value, ok := strings.Cut(e, "=")
		switch {
		case !ok || !isEnvName(name):
			return fmt.Errorf("environment entry %s: want NAME=value, NAME of letters, digits and \"_\" and not beginning with a digit", quoted(e))
		case !utf8.ValidString(value) || strings.Contains(value, "\x00"):
			return fmt.Errorf("the value of the environment variable %s: want UTF-8 without a NUL", quoted(name))
		case seen[name]:
			return fmt.Errorf("the environment variable %s is there twice", quoted(name))
		}
		seen[name] = true
	}
	return checkWords("environment entries", env)
}

// isEnvName follows POSIX.1-2017, 8.1, with the lower case letters that it leaves
// to applications.
func isEnvName(s string) bool {
	for i := range len(s) {
		b := s[i]
		switch {
		case b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b == '_':
		case b >= '0' && b <= '9' && i > 0:
		default:
			return false
		}
	}
	return s != ""
}

func checkWords(what string, words []string) error {
	if len(words) > MaxArgs {
		return fmt.Errorf("%d %s, want at most %d", len(words), what, MaxArgs)
	}
	n := 0
	for _, w := range words {
		n += len(w) + 1
	}
	if n > MaxArgBytes {
		return fmt.Errorf("the %s have %d bytes together, want at most %d", what, n, MaxArgBytes)
	}
	return nil
}

func checkLimits(l *agentv1.Limits) error {
	return firstError(
		func() error {
			return checkRange("memory limit", l.GetMemoryBytes(), MinMemoryBytes, MaxMemoryBytes, "bytes")
		},
		func() error {
			if l.GetMemoryBytes()%MemoryUnit != 0 {
				return fmt.Errorf("memory limit of %d bytes: want a multiple of %d", l.GetMemoryBytes(), MemoryUnit)
			}
			return nil
		},
		func() error { return checkRange("process limit", l.GetPids(), MinPIDs, MaxPIDs, "processes") },
		func() error {
			return checkRange("CPU limit", l.GetMilliCpu(), MinMilliCPU, MaxMilliCPU, "thousandths of a CPU")
		},
		func() error {
			return checkRange("working folder's size", l.GetWorkBytes(), MinWorkBytes, l.GetMemoryBytes(), "bytes (its content counts as memory)")
		},
		func() error { return checkRange("working folder's files", l.GetWorkFiles(), 1, MaxWorkFiles, "files") },
	)
}

func checkRange(what string, n, low, high int64, unit string) error {
	if n < low || n > high {
		return fmt.Errorf("%s of %d: want %d to %d %s", what, n, low, high, unit)
	}
	return nil
}

func checkTime(what string, ns int64, low, high time.Duration) error {
	if d := time.Duration(ns); d < low || d > high {
		return fmt.Errorf("%s of %v: want %v to %v", what, d, low, high)
	}
	return nil
}

// quoted shows the beginning of s in an error, which must reach the host whole.
func quoted(s string) string { return `"` + Text(s, 80) + `"` }
