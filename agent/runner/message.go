package runner

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"syscall"
	"unicode/utf8"
)

// A message is one packet: a byte that says what it is, and what follows it.
// Numbers are little-endian.
//
//	agent to init
//	  I flags(1) modules            with the descriptors for 0, 1, 2 (SCM_RIGHTS); flag 1:
//	                                Placeholder stands for the program's name; flag 2:
//	                                answered by C first; the modules to import ahead, with
//	                                spaces between them
//	  D path                        make this folder; answered by A
//	  F mode(2) size(8) path        make this file of so many bytes, which come out of
//	                                the pipe whose descriptor is with it; answered by A
//	  W mode(2) length(2) path data the same for a small file, of which all is here; length
//	                                is that of path
//	  P name                        the program's name, where it comes late
//	  V arguments                   more of its arguments, each with a NUL behind it
//	  G                             go
//	init to agent
//	  C name NUL bytes              the runner as a file of byte code; empty: there is none
//	  R version(1)                  streams taken, ready
//	  A errno(4) written(8)         file or folder made, or not
//	  S                             the program's process is there, which sends this
//	  N errno(4)                    it could not be made
//	  X status(4)                   the program ended: status of waitpid(2)
//	  B text                        the runner failed; it exits
//	  U text                        the same, since this python3 takes no name late
const (
	msgStreams = 'I'
	msgFolder  = 'D'
	msgFile    = 'F'
	msgSmall   = 'W'
	msgName    = 'P'
	msgArgs    = 'V'
	msgGo      = 'G'

	msgBytecode   = 'C'
	msgReady      = 'R'
	msgAnswer     = 'A'
	msgStarted    = 'S'
	msgNotStarted = 'N'
	msgEnded      = 'X'
	msgBroken     = 'B'
	msgUnable     = 'U'
)

const (
	protocolVersion = 3
	// pipeBytes is what a pipe holds, and how much of a file is written at a time: each
	// piece is a change between two processes, which costs most where the processor is
	// emulated. A file of smallPipe takes a pipe as the kernel makes it.
	pipeBytes = 1 << 20
	smallPipe = 64 << 10
	// smallFile is how many bytes a file has at most that is sent in one message: it
	// spares the pipe, and changes between two processes.
	smallFile = 8 << 10
	// maxArgsPiece is how many bytes of arguments one message has at most.
	maxArgsPiece = 4 << 10
	// maxReport is the longest message of the init, a B or U.
	maxReport = 512
	// maxBytecodeMessage is the longest C that is of use.
	maxBytecodeMessage = 1 + maxBytecodeName + 1 + maxBytecodeBytes
	// maxErrno is MAX_ERRNO of Linux.
	maxErrno = 4095
)

// report is a decoded message of the init.
type report struct {
	kind    byte
	errno   syscall.Errno      // A, N
	written int64              // A
	status  syscall.WaitStatus // X
	text    string             // B, U: hostile, quoted
}

// decode takes exactly the messages that a sound runner can send. An error
// matches ErrProtocol.
func decode(b []byte) (report, error) {
	if len(b) == 0 || len(b) > maxReport {
		return report{}, fmt.Errorf("%w: a message of %d bytes", ErrProtocol, len(b))
	}
	r, body := report{kind: b[0]}, b[1:]
	bad := func() (report, error) {
		return report{}, fmt.Errorf("%w: message %.40q", ErrProtocol, b)
	}
	want := map[byte]int{msgReady: 1, msgAnswer: 12, msgStarted: 0, msgNotStarted: 4, msgEnded: 4, msgBroken: len(body), msgUnable: len(body)}
	if n, known := want[r.kind]; !known || len(body) != n {
		return bad()
	}
	ok := true
	switch r.kind {
	case msgReady:
		ok = body[0] == protocolVersion
	case msgAnswer:
		r.errno, ok = decodeErrno(body)
		r.written = int64(binary.LittleEndian.Uint64(body[4:]))
		ok = ok && r.written >= 0
	case msgNotStarted:
		r.errno, ok = decodeErrno(body)
		ok = ok && r.errno != 0
	case msgEnded:
		status := binary.LittleEndian.Uint32(body)
		r.status, ok = syscall.WaitStatus(status), isEnd(status)
	case msgBroken, msgUnable:
		r.text = strconv.QuoteToASCII(strings.ToValidUTF8(string(body), string(utf8.RuneError)))
	}
	if !ok {
		return bad()
	}
	return r, nil
}

func decodeErrno(b []byte) (syscall.Errno, bool) {
	n := binary.LittleEndian.Uint32(b)
	return syscall.Errno(n), n <= maxErrno
}

// isEnd tells whether status is one of a process that exited (the code in the
// second byte) or was killed (the signal in the low seven bits, and bit 7 for a
// core dump): wait(2) reports nothing else without WUNTRACED.
func isEnd(status uint32) bool {
	signal := status & 0x7f
	switch {
	case status > 0xffff:
		return false
	case signal == 0:
		return status&0xff == 0
	default:
		return signal <= 64 && status>>8 == 0
	}
}

// Flags of the message with the streams.
const flagLate, flagBytecode = 1, 2

func encodeStreams(flags byte, modules []string) []byte {
	return append([]byte{msgStreams, flags}, strings.Join(modules, " ")...)
}

func encodeFolder(name string) []byte { return append([]byte{msgFolder}, name...) }

func encodeFile(name string, mode fs.FileMode, size int64) []byte {
	b := []byte{msgFile}
	b = binary.LittleEndian.AppendUint16(b, uint16(mode.Perm()))
	b = binary.LittleEndian.AppendUint64(b, uint64(size))
	return append(b, name...)
}

func encodeSmall(name string, mode fs.FileMode, data []byte) []byte {
	b := make([]byte, 0, 5+len(name)+len(data))
	b = append(b, msgSmall)
	b = binary.LittleEndian.AppendUint16(b, uint16(mode.Perm()))
	b = binary.LittleEndian.AppendUint16(b, uint16(len(name))) // at most MaxDepth * 256
	return append(append(b, name...), data...)
}

// fileError says what went wrong with a file in the box.
func fileError(name string, errno syscall.Errno) error {
	switch {
	case errno == 0:
		return nil
	case errors.Is(errno, syscall.ENOSPC), errors.Is(errno, syscall.EDQUOT):
		return fmt.Errorf("%q: %w: %w", name, ErrNoSpace, errno)
	case errors.Is(errno, syscall.ENOMEM):
		return fmt.Errorf("%q: %w: %w", name, ErrNoMemory, errno)
	}
	return &fs.PathError{Op: "write into the box", Path: name, Err: errno}
}
