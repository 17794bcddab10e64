package home

import (
	"bytes"
	"fmt"
	"os"
	"strings"
)

// processStart is field 22 of /proc/PID/stat, clock ticks since boot (proc(5)). A
// zombie has it too, but is nobody.
func processStart(pid int) (string, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", err
	}
	// The name, field 2, may have any character but ends at the last bracket.
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(f) < 20 || string(f[0]) == "Z" {
		return "", os.ErrProcessDone
	}
	return string(f[19]), nil
}

func hostBootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
