package vzcore

import (
	"fmt"
	"net"
	"os"
	"strings"
)

// Framework is what the driver needs of Virtualization.framework. All methods are
// safe for concurrent use. Errors that the framework itself reports are *Error.
type Framework interface {
	// Host looks at this Mac. It changes nothing and returns at once.
	Host() (Host, error)
	// Limits are the framework's bounds for a machine on this Mac. It returns
	// at once.
	Limits() Limits
	// Validate asks the framework whether it would take s, without making a
	// machine. It also answers whether this process may use the framework
	// (VZVirtualMachineConfiguration.validateWithError).
	Validate(s Spec) error
	// New validates s and makes a machine of it that has not started; it takes
	// no longer than opening the files of s does. The caller keeps the files of
	// p open until the machine has ended, and calls Release then.
	New(s Spec, p SerialPort) (VirtualMachine, error)
}

// VirtualMachine is one machine of the framework (VZVirtualMachine). All methods
// are safe for concurrent use. Those that return an error block until the
// framework's completion handler has been called, which it need not be: each call
// must stand in a goroutine of its own with a bound around it.
type VirtualMachine interface {
	// Start returns when the framework has started the machine.
	Start() error
	// Stop ends a running or paused machine without asking its guest. It fails
	// with CodeInvalidTransition while another change of state is under way.
	Stop() error
	// Pause and Resume are valid in StateRunning and StatePaused alone.
	Pause() error
	Resume() error
	// State is the newest state reported, which may lag behind Stop's answer.
	State() State
	// NextState returns the state changes since the machine was made, one at a
	// time and in order. It blocks for the next one, and returns false when
	// done is closed first.
	NextState(done <-chan struct{}) (State, bool)
	// Connect dials a port of the guest's socket device. It has no bound of any
	// kind. A connection without an error is never nil (see Conn).
	Connect(port uint32) (net.Conn, error)
	// Release gives the machine up once it has ended. Calls that are still
	// blocked keep what they need; later ones fail.
	Release()
}

// SerialPort is the far end of a machine's serial port.
type SerialPort struct {
	// Input is what the guest reads: nothing is ever written to it. Output is
	// what the guest's bytes are written to.
	Input, Output *os.File
}

// Host is what the driver wants to know of a Mac.
type Host struct {
	// MacOS is the version, such as "15.1" (sysctl kern.osproductversion).
	MacOS string
	// Hypervisor tells whether the kernel can run virtual machines (sysctl
	// kern.hv_support).
	Hypervisor bool
	// Virtual tells whether this Mac is itself a virtual machine (sysctl
	// kern.hv_vmm_present).
	Virtual bool
	// Translated tells whether this process is an Intel program that Rosetta
	// translates (sysctl sysctl.proc_translated).
	Translated bool
	// Executable is this program's path, for commands that a person can run.
	Executable string
}

// Limits are the framework's bounds (minimumAllowedCPUCount and its kin).
type Limits struct {
	MinCPUs, MaxCPUs               uint
	MinMemoryBytes, MaxMemoryBytes uint64
}

// State is VZVirtualMachineState, with its numbers.
type State int

// The states that a PyBox machine goes through. The framework knows two more, for
// saving and restoring, which need calls that the driver never makes.
const (
	StateStopped State = iota
	StateRunning
	StatePaused
	StateError
	StateStarting
	StatePausing
	StateResuming
	StateStopping
)

// terminal tells whether a started machine has ended.
func (s State) terminal() bool { return s == StateStopped || s == StateError }

// Domains of Error.
const (
	// DomainVZ is VZErrorDomain.
	DomainVZ = "VZErrorDomain"
	// DomainPOSIX is NSPOSIXErrorDomain: codes are errno of macOS.
	DomainPOSIX = "NSPOSIXErrorDomain"
)

// Codes of DomainVZ (VZError.h) and DomainPOSIX (sys/errno.h of macOS, whose
// numbers differ from Linux's) that the driver tells apart.
const (
	CodeInternal             = 1
	CodeInvalidConfiguration = 2
	CodeInvalidState         = 3
	CodeInvalidTransition    = 4
	CodeInvalidDiskImage     = 5
	CodeLimitExceeded        = 6
	CodeOutOfDiskSpace       = 8
	CodeNotSupported         = 10

	posixEPERM        = 1
	posixEACCES       = 13
	posixECONNRESET   = 54
	posixECONNREFUSED = 61
)

// Error is an NSError of the framework.
type Error struct {
	Domain string
	Code   int
	// Text is its localizedDescription: for people, in their language.
	Text string
	// Info is its userInfo as one text, which may hold the reason that Text
	// lacks.
	Info string
}

// maxErrorText bounds what of the framework's words reaches a person.
const maxErrorText = 300

// Error implements error.
func (e *Error) Error() string {
	text := strings.Join(strings.Fields(e.Text), " ")
	if text == "" {
		text = "no description"
	}
	return fmt.Sprintf("%.*s (%s %d)", maxErrorText, text, e.Domain, e.Code)
}

// is tells whether e is one of codes in domain.
func (e *Error) is(domain string, codes ...int) bool {
	if e.Domain != domain {
		return false
	}
	for _, c := range codes {
		if e.Code == c {
			return true
		}
	}
	return false
}

// Conn makes a net.Conn of a pointer and an error. A nil *T in an interface is not
// nil, so a realisation that returned its pointer as it is would hand out
// connections that panic on their first use.
func Conn[T any, P interface {
	*T
	net.Conn
}](c P, err error) (net.Conn, error) {
	if err != nil {
		return nil, err
	}
	if c == nil {
		return nil, &Error{Domain: DomainPOSIX, Code: posixECONNRESET, Text: "no connection and no error"}
	}
	return c, nil
}
