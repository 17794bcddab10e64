package home

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// sZomb is SZOMB of sys/proc.h: a process that nobody has waited for.
const sZomb = 5

// processStart is the start time that the kernel keeps for a process.
func processStart(pid int) (string, error) {
	k, err := unix.SysctlKinfoProc("kern.proc.pid", pid)
	if err != nil {
		return "", err
	}
	if int(k.Proc.P_pid) != pid || k.Proc.P_stat == sZomb {
		return "", os.ErrProcessDone
	}
	return fmt.Sprintf("%d.%06d", k.Proc.P_starttime.Sec, k.Proc.P_starttime.Usec), nil
}

func hostBootID() string {
	s, err := unix.Sysctl("kern.bootsessionuuid")
	if err != nil {
		return ""
	}
	return s
}
