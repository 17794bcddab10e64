package debian

import (
	"slices"
	"strings"
)

// Archives, as the folders below http://snapshot.debian.org/archive/ and at the
// end of a mirror's address name them.
const (
	ArchiveMain     = "debian"
	ArchiveSecurity = "debian-security"
)

// ArchAll stands for a set whose packages fit every architecture.
const ArchAll = "all"

// Release of Debian that sets are taken from.
const codename = "trixie"

// suite is one signed list of packages.
type suite struct {
	archive, name string
}

// suites are all the places that a newer version of a package may be in.
var suites = []suite{
	{ArchiveMain, codename},
	{ArchiveMain, codename + "-updates"},
	{ArchiveSecurity, codename + "-security"},
}

// Architectures that sets are locked for, in Debian's names (which are Go's).
var architectures = []string{"amd64", "arm64"}

// Names of sets in a lock file that are no boxes' images. An image is made of the set
// of its own name.
const (
	SetRoot         = "root"          // the guest's own root
	SetKernelSource = "kernel-source" // what mkkernel builds
	SetKernelCloud  = "kernel-cloud"  // Debian's ready-made kernel
)

// Recipe says how a set of packages is found.
type Recipe struct {
	// Set is the set's name in the lock file.
	Set string
	// Arch is ArchAll for a set that is locked once, empty for one that is
	// locked for each architecture.
	Arch string
	// Seeds are the packages asked for; their dependencies follow. "$arch" in a
	// name stands for the architecture.
	Seeds []string
	// Skip are dependencies that the guest does without.
	Skip []string
	// Alone keeps dependencies out altogether.
	Alone bool
	// Behind is for meta packages, whose dependency is what they are for: the
	// set is what the seeds depend on themselves, without them and without
	// anything further.
	Behind bool
}

// pythonSeeds are Python with its whole standard library as Debian splits it, but
// for ensurepip (python3.13-venv), and tkinter and IDLE (python3-tk, idle), which
// need a display. libc-bin has the locale C.UTF-8, ncurses-base is what curses knows
// terminals from, and tzdata-legacy has names such as US/Eastern. Nothing of these
// needs libstdc++6, but the wheels of packages that are written in C++ do: they count
// on the system for it (PEP 600).
var pythonSeeds = []string{"python3.13", "python3.13-gdbm", "libc-bin", "libstdc++6", "ncurses-base", "tzdata-legacy"}

// scriptNeeds are what maintainer scripts need, which never run.
var scriptNeeds = []string{"debconf", "debconf-2.0", "dpkg", "install-info"}

// dataSkip are dependencies of numpy, pandas and matplotlib that no program of a box
// needs: Debian's name "python3" and its tools, headers, scripts of web pages and
// tables of Unicode; what a display would be for; and what fonttools has for kinds of
// fonts and documents that matplotlib neither reads nor writes, with all that hangs on
// it.
var dataSkip = []string{
	"python3", "python3-numpy-dev", "libjs-jquery", "libjs-jquery-ui", "unicode-data",
	"python3-tk", "python3-pil.imagetk",
	"python3-brotli", "python3-fs", "python3-lxml", "python3-lz4", "python3-scipy", "python3-sympy",
	"python3-ufolib2", "python3-unicodedata2", "python3-zopfli",
}

// Recipes returns the sets that a lock file holds. This is the one place to
// change when the guest needs other packages.
func Recipes() []Recipe {
	return []Recipe{
		// The OCI runtime, and one static program for a person who looks inside
		// (pybox vm shell): the agent itself is a static binary too.
		{Set: SetRoot, Seeds: []string{"busybox-static", "crun"}},
		// The image "stdlib".
		{Set: "stdlib", Seeds: pythonSeeds, Skip: scriptNeeds},
		// The image "data". OpenBLAS is several times as fast as the reference BLAS
		// that numpy depends on otherwise.
		{Set: "data", Seeds: slices.Concat(pythonSeeds, []string{"libopenblas0-pthread", "python3-matplotlib", "python3-numpy", "python3-pandas"}),
			Skip: slices.Concat(scriptNeeds, dataSkip)},
		// The kernel's source. Its dependencies are build tools for a Debian
		// host and no part of a guest.
		{Set: SetKernelSource, Arch: ArchAll, Seeds: []string{"linux-source-6.12"}, Alone: true},
		// Debian's ready-made kernel for virtual machines, for where nobody built
		// our own. The meta package names the newest one.
		{Set: SetKernelCloud, Seeds: []string{"linux-image-cloud-$arch"}, Behind: true},
	}
}

func (r Recipe) architectures() []string {
	if r.Arch != "" {
		return []string{r.Arch}
	}
	return architectures
}

// resolve finds the packages of the recipe's set for arch, sorted by name.
func (r Recipe) resolve(x *Index, arch string) ([]*Package, error) {
	seeds := make([]string, len(r.Seeds))
	for i, s := range r.Seeds {
		seeds[i] = strings.ReplaceAll(s, "$arch", arch)
	}
	switch {
	case r.Behind:
		return x.Behind(seeds)
	case !r.Alone:
		return x.Closure(seeds, r.Skip)
	}
	return x.lookupAll(seeds)
}
