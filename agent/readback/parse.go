package readback

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Bounds of the files that are read, in bytes; what the kernel writes for a box
// is a tenth of it.
const (
	maxStatus  = 32 << 10
	maxMounts  = 64 << 10
	maxNetwork = 64 << 10
)

// lines splits a file that ends with a line feed, or is empty.
func lines(b []byte) ([]string, error) {
	if len(b) == 0 {
		return nil, nil
	}
	all, ok := strings.CutSuffix(string(b), "\n")
	if !ok {
		return nil, errors.New("no line feed at the end")
	}
	return strings.Split(all, "\n"), nil
}

// parseStatus reads /proc/PID/status: "Key:\tvalue". White space in a value
// becomes one space. The process's own name cannot make a line: the kernel
// escapes line feeds there.
func parseStatus(b []byte) (map[string]string, error) {
	all, err := lines(b)
	if err != nil {
		return nil, err
	}
	status := make(map[string]string, len(all))
	for _, line := range all {
		key, value, ok := strings.Cut(line, ":")
		if !ok || key == "" {
			return nil, fmt.Errorf("line %.60q: want a key and a colon", line)
		}
		if _, twice := status[key]; twice {
			return nil, fmt.Errorf("key %.60q twice", key)
		}
		status[key] = strings.Join(strings.Fields(value), " ")
	}
	return status, nil
}

// parseIDMap reads uid_map and gid_map: three numbers a line. It gives them with
// one space between, and lines with a semicolon.
func parseIDMap(b []byte) (string, error) {
	all, err := lines(b)
	if err != nil {
		return "", err
	}
	for i, line := range all {
		fields := strings.Fields(line)
		if len(fields) != 3 {
			return "", fmt.Errorf("line %.60q: want three numbers", line)
		}
		for _, f := range fields {
			if _, err := strconv.ParseUint(f, 10, 32); err != nil {
				return "", fmt.Errorf("line %.60q: want three numbers", line)
			}
		}
		all[i] = strings.Join(fields, " ")
	}
	return strings.Join(all, "; "), nil
}

// limitNames are the names in /proc/PID/limits (fs/proc/base.c of the kernel) of
// what setrlimit(2) calls otherwise.
var limitNames = map[string]string{
	"Max cpu time":          "RLIMIT_CPU",
	"Max file size":         "RLIMIT_FSIZE",
	"Max data size":         "RLIMIT_DATA",
	"Max stack size":        "RLIMIT_STACK",
	"Max core file size":    "RLIMIT_CORE",
	"Max resident set":      "RLIMIT_RSS",
	"Max processes":         "RLIMIT_NPROC",
	"Max open files":        "RLIMIT_NOFILE",
	"Max locked memory":     "RLIMIT_MEMLOCK",
	"Max address space":     "RLIMIT_AS",
	"Max file locks":        "RLIMIT_LOCKS",
	"Max pending signals":   "RLIMIT_SIGPENDING",
	"Max msgqueue size":     "RLIMIT_MSGQUEUE",
	"Max nice priority":     "RLIMIT_NICE",
	"Max realtime priority": "RLIMIT_RTPRIO",
	"Max realtime timeout":  "RLIMIT_RTTIME",
}

// limitWidth is how wide the kernel writes the name of a limit.
const limitWidth = 25

// parseLimits reads /proc/PID/limits: a heading, then a name, the soft and the
// hard limit, and perhaps a unit. It gives "soft hard" by the name that
// setrlimit(2) has. Limits that are not known here are passed over.
func parseLimits(b []byte) (map[string]string, error) {
	all, err := lines(b)
	if err != nil {
		return nil, err
	}
	if len(all) == 0 || !strings.HasPrefix(all[0], "Limit ") {
		return nil, errors.New("no heading")
	}
	limits := make(map[string]string, len(all))
	for _, line := range all[1:] {
		if len(line) < limitWidth {
			return nil, fmt.Errorf("line %.60q: want a name of %d bytes first", line, limitWidth)
		}
		name, known := limitNames[strings.TrimRight(line[:limitWidth], " ")]
		fields := strings.Fields(line[limitWidth:])
		if !known {
			continue
		}
		if len(fields) < 2 || len(fields) > 3 {
			return nil, fmt.Errorf("line %.90q: want two limits and perhaps a unit", line)
		}
		for _, f := range fields[:2] {
			if n, err := strconv.ParseUint(f, 10, 64); f != "unlimited" && (err != nil || f != rlimit(n)) {
				return nil, fmt.Errorf("line %.90q: %.20q is no limit", line, f)
			}
		}
		if _, twice := limits[name]; twice {
			return nil, fmt.Errorf("limit %s twice", name)
		}
		limits[name] = fields[0] + " " + fields[1]
	}
	return limits, nil
}

// rlimit writes a limit as the kernel does: RLIM_INFINITY is the largest number.
func rlimit(n uint64) string {
	if n == math.MaxUint64 {
		return "unlimited"
	}
	return strconv.FormatUint(n, 10)
}

// parseInterfaces reads /proc/PID/net/dev: two lines of headings, then a name
// with a colon and counters.
func parseInterfaces(b []byte) ([]string, error) {
	all, err := lines(b)
	if err != nil {
		return nil, err
	}
	if len(all) < 2 || !strings.Contains(all[0], "|") || !strings.Contains(all[1], "|") {
		return nil, errors.New("no headings")
	}
	var names []string
	for _, line := range all[2:] {
		name, _, ok := strings.Cut(strings.TrimLeft(line, " "), ":")
		if !ok || name == "" {
			return nil, fmt.Errorf("line %.60q: want a name and a colon", line)
		}
		names = append(names, name)
	}
	return names, nil
}

// parseRoutes reads /proc/PID/net/route: a heading, then an interface and what
// leads there. It gives the interfaces.
func parseRoutes(b []byte) ([]string, error) {
	all, err := lines(b)
	if err != nil {
		return nil, err
	}
	if len(all) == 0 || !strings.HasPrefix(all[0], "Iface\t") {
		return nil, errors.New("no heading")
	}
	var names []string
	for _, line := range all[1:] {
		fields := strings.Fields(line)
		if len(fields) != 11 {
			return nil, fmt.Errorf("line %.90q: want 11 fields", line)
		}
		names = append(names, fields[0])
	}
	return names, nil
}

// parseRoutes6 reads /proc/PID/net/ipv6_route, in which the interface comes last.
func parseRoutes6(b []byte) ([]string, error) {
	all, err := lines(b)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, line := range all {
		fields := strings.Fields(line)
		if len(fields) != 10 {
			return nil, fmt.Errorf("line %.90q: want 10 fields", line)
		}
		names = append(names, fields[9])
	}
	return names, nil
}

// parseForwarding reads /proc/PID/net/fib_trie (net/ipv4/fib_trie.c of the
// kernel): the name of each table, the inner nodes of its tree ("+-- ..."), and
// its leaves ("|-- 127.0.0.0"), each followed by lines of a prefix's length, a
// scope and a type. It gives "127.0.0.0/8 LOCAL", sorted, each once: the tables
// may share a tree.
func parseForwarding(b []byte) ([]string, error) {
	all, err := lines(b)
	if err != nil {
		return nil, err
	}
	var found []string
	var leaf string
	for _, line := range all {
		fields := strings.Fields(line)
		switch {
		case len(fields) == 0:
			return nil, errors.New("an empty line")
		case !strings.HasPrefix(line, " ") && strings.HasSuffix(line, ":"), fields[0] == "+--":
			leaf = ""
		case fields[0] == "|--" && len(fields) == 2 && isIPv4(fields[1]):
			leaf = fields[1]
		case leaf != "" && len(fields) >= 3 && isPrefix(leaf+fields[0]):
			found = append(found, leaf+fields[0]+" "+fields[2])
		default:
			return nil, fmt.Errorf("line %.90q: want a leaf, or a prefix of one", line)
		}
	}
	slices.Sort(found)
	return slices.Compact(found), nil
}

func isIPv4(s string) bool {
	a, err := netip.ParseAddr(s)
	return err == nil && a.Is4()
}

func isPrefix(s string) bool {
	_, err := netip.ParsePrefix(s)
	return err == nil
}

// mount is a line of /proc/PID/mountinfo.
type mount struct {
	device, root, target string
	options              []string // of the mount
	propagation          []string // "shared:1", "master:2", …
	kind                 string
	super                []string // options of the file system
}

// has tells whether the mount has an option.
func (m mount) has(option string) bool {
	for _, o := range m.options {
		if o == option {
			return true
		}
	}
	return false
}

// superOption returns the value of an option of the file system.
func (m mount) superOption(name string) (string, bool) {
	for _, o := range m.super {
		if key, value, _ := strings.Cut(o, "="); key == name {
			return value, true
		}
	}
	return "", false
}

// parseMounts reads /proc/PID/mountinfo: proc_pid_mountinfo(5).
func parseMounts(b []byte) ([]mount, error) {
	all, err := lines(b)
	if err != nil {
		return nil, err
	}
	mounts := make([]mount, 0, len(all))
	for _, line := range all {
		m, err := parseMount(line)
		if err != nil {
			return nil, fmt.Errorf("line %.120q: %w", line, err)
		}
		mounts = append(mounts, m)
	}
	return mounts, nil
}

// parseMount reads "36 35 98:0 /root /target rw,noatime master:1 - ext3 source rw".
func parseMount(line string) (m mount, err error) {
	fields := strings.Split(line, " ")
	if len(fields) < 10 {
		return m, errors.New("want at least 10 fields")
	}
	major, minor, _ := strings.Cut(fields[2], ":")
	for _, id := range []string{fields[0], fields[1], major, minor} {
		if _, err := strconv.ParseUint(id, 10, 32); err != nil {
			return m, errors.New("want numbers first")
		}
	}
	m.device, m.options = fields[2], strings.Split(fields[5], ",")
	rest := fields[6:]
	for len(rest) > 0 && rest[0] != "-" {
		m.propagation, rest = append(m.propagation, rest[0]), rest[1:]
	}
	if len(rest) != 4 {
		return m, errors.New("want a hyphen and three fields at the end")
	}
	m.kind, m.super = rest[1], strings.Split(rest[3], ",")
	if m.root, err = unescape(fields[3]); err != nil {
		return m, err
	}
	m.target, err = unescape(fields[4])
	return m, err
}

// unescape undoes the kernel's \NNN, three octal digits for a byte.
func unescape(s string) (string, error) {
	if !strings.Contains(s, `\`) {
		return s, nil
	}
	out := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' {
			out = append(out, s[i])
			continue
		}
		if len(s) < i+4 {
			return "", errors.New("an escape that is cut off")
		}
		n, err := strconv.ParseUint(s[i+1:i+4], 8, 8)
		if err != nil {
			return "", fmt.Errorf("the escape %.8q", s[i:i+4])
		}
		out = append(out, byte(n))
		i += 3
	}
	return string(out), nil
}
