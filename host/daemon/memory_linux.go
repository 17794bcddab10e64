package daemon

import (
	"bufio"
	"os"
	"strconv"
	"strings"
)

// ownMemory is RssAnon + RssFile of this process (proc_pid_status(5)), 0 when it
// cannot be read. RssShmem is the guest's RAM.
func ownMemory() int64 {
	f, err := os.Open("/proc/self/status")
	if err != nil {
		return 0
	}
	defer f.Close()
	var total int64
	for sc := bufio.NewScanner(f); sc.Scan(); {
		name, rest, _ := strings.Cut(sc.Text(), ":")
		if name != "RssAnon" && name != "RssFile" {
			continue
		}
		if kb, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(rest, "kB")), 10, 64); err == nil {
			total += kb << 10
		}
	}
	return total
}
