package engine

import (
	"os"
	"runtime"
	"time"

	runc "github.com/containerd/go-runc"
	"golang.org/x/sys/unix"
)

const (
	// ordinarySlack is the timer slack that the kernel gives its first process, and every
	// box has.
	ordinarySlack = 50 * time.Microsecond
	// noRandom is ADDR_NO_RANDOMIZE (linux/personality.h).
	noRandom = 0x0040000
	// ordinaryPersona is PER_LINUX without any flag.
	ordinaryPersona = 0
)

// asCrun starts crun, from a thread of which it has
//
//   - a timer slack as if nobody had set one (PR_SET_TIMERSLACK in prctl(2)): the shim has
//     the agent's, which is longer, and what crun starts keeps crun's;
//   - addresses that are not random (personality(2)). An emulator translates a program
//     anew wherever it lies, which is two thirds of what crun costs there. What a box is
//     made from is our specification and the names in a read-only image, and crun create
//     has ended before there is a program in the box. The box's own processes have random
//     addresses, by the specification's personality, and each box's are read back.
//
// Both are the thread's, and set back.
func asCrun(start func() (chan runc.Exit, error)) (chan runc.Exit, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	slack, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	if err != nil {
		return nil, os.NewSyscallError("prctl", err)
	}
	// Were they not set back it would do no harm: the shim starts nothing but crun.
	defer func() {
		_ = unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(slack), 0, 0, 0)
		_ = setPersona(ordinaryPersona)
	}()
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(ordinarySlack.Nanoseconds()), 0, 0, 0); err != nil {
		return nil, os.NewSyscallError("prctl", err)
	}
	if err := setPersona(noRandom); err != nil {
		return nil, err
	}
	return start()
}

func setPersona(persona uintptr) error {
	if _, _, errno := unix.RawSyscall(unix.SYS_PERSONALITY, persona, 0, 0); errno != 0 {
		return os.NewSyscallError("personality", errno)
	}
	return nil
}
