package preread

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// lowest is the nice value of what everything else goes before.
const lowest = 19

// Lowly runs f on a thread of its own that everything else goes before, and returns
// when f did. The thread ends with it.
func Lowly(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocks it: the thread is of no other use
		// Where it is refused, f competes as everything does.
		_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), lowest)
		f()
	}()
	<-done
}
