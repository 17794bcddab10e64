// Package initramfs is what the maker (guest/cloud) and the reader (agent/initd) of
// the initial RAM file system have to agree on: its layout, and the list of modules.
// PID 1 imports it, so it must stay small.
package initramfs

import (
	"fmt"
	"path"
	"strings"
)

// The layout. Paths are relative to the root of the file system, as they stand in its
// archive. Our own kernel has no modules, and boots the guest's root itself.
const (
	// Init is the program that the kernel starts as PID 1.
	Init = "init"
	// List has the paths of the modules, one in a line, in the order in which they
	// must be loaded. By it PID 1 knows where it is.
	List = "pybox-modules"
	// ModuleDir has the modules.
	ModuleDir = "modules"
	// Root is where the guest's root is mounted.
	Root = "root"
)

// Bounds of the list of modules.
const (
	MaxListBytes = 64 << 10
	MaxModules   = 128
)

// Dirs are the folders that there must be, each after the one that it is in: beside
// those above, the mount points of devtmpfs, proc(5) and sysfs(5).
func Dirs() []string { return []string{"dev", "proc", "sys", Root, ModuleDir} }

// ModulePath is where the module of a name lies.
func ModulePath(name string) string { return ModuleDir + "/" + name + ".ko" }

// ParseList reads the list of modules: a path in a line, in the order of loading, each
// a plain name below ModuleDir. It takes at most MaxModules, and MaxListBytes of text.
func ParseList(list string) ([]string, error) {
	if len(list) > MaxListBytes {
		return nil, fmt.Errorf("%s: more than %d bytes", List, MaxListBytes)
	}
	var out []string
	for line := range strings.Lines(list) {
		p := strings.TrimSuffix(line, "\n")
		if path.Dir(p) != ModuleDir || path.Clean(p) != p || path.Ext(p) != ".ko" || strings.Contains(p, "\x00") {
			return nil, fmt.Errorf("%s: %.80q is no module", List, line)
		}
		if len(out) == MaxModules {
			return nil, fmt.Errorf("%s: more than %d modules", List, MaxModules)
		}
		out = append(out, p)
	}
	return out, nil
}
