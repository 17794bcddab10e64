package debian

import "fmt"

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

// Recipe says how a set of packages is found.
type Recipe struct {
	// Set is the set's name in the lock file.
	Set string
	// Arch is ArchAll for a set that is locked once, empty for one that is
	// locked for each architecture.
	Arch string
	// Seeds are the packages asked for; their dependencies follow.
	Seeds []string
	// Skip are dependencies that the guest does without.
	Skip []string
	// Alone keeps dependencies out altogether.
	Alone bool
}

// Recipes returns the sets that a lock file holds. This is the one place to
// change when the guest needs other packages.
func Recipes() []Recipe {
	return []Recipe{
		// The OCI runtime, which is all of Debian that the guest's own root
		// holds: the agent is a static binary and there is no shell.
		{Set: "root", Seeds: []string{"crun"}},
		// The kernel's source. Its dependencies are build tools for a Debian
		// host and no part of a guest.
		{Set: "kernel-source", Arch: ArchAll, Seeds: []string{"linux-source-6.12"}, Alone: true},
	}
}

func (r Recipe) architectures() []string {
	if r.Arch != "" {
		return []string{r.Arch}
	}
	return architectures
}

func (r Recipe) resolve(x *Index) ([]*Package, error) {
	if !r.Alone {
		return x.Closure(r.Seeds, r.Skip)
	}
	out := make([]*Package, 0, len(r.Seeds))
	for _, s := range r.Seeds {
		p := x.Lookup(s)
		if p == nil {
			return nil, fmt.Errorf("the archive has no package %q", s)
		}
		out = append(out, p)
	}
	return out, nil
}
