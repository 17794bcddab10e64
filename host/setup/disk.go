package setup

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// folder adds a folder that has to be made, and those above it.
func (p *Plan) folder(dir string, mode fs.FileMode, what string) {
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return // there, or in the way: places tells
	}
	if slices.ContainsFunc(p.Folders, func(f Path) bool { return f.Path == dir }) {
		return
	}
	if up := filepath.Dir(dir); up != dir {
		p.folder(up, mode, "the folder of what follows")
	}
	p.Folders = append(p.Folders, Path{Path: dir, Mode: fmt.Sprintf("%04o", mode), For: what})
}

// file adds a file that is made or replaced.
func (p *Plan) file(f Path) { p.Files = append(p.Files, f) }

// lock adds the file of a lock, which is never replaced.
func (p *Plan) lock(name, what string) {
	if _, err := os.Lstat(name); errors.Is(err, fs.ErrNotExist) {
		p.file(Path{Path: name, Mode: "0600", For: what})
	}
}

// smallChange is what manifests, records, and the file system's own books take.
const smallChange = 8 << 20

// places finds out whether the two folders can take what they shall.
func (p *Plan) places(t target) {
	needs := []Space{{Folders: []string{p.Home}, Need: t.bytes + smallChange}}
	switch p.Origin {
	case OriginArchive:
		needs = append(needs, Space{Folders: []string{p.Cache}, Need: t.bytes + smallChange})
	case OriginDebian:
		// Beside the bundle, an image is there a second time while it is compiled.
		needs = append(needs, Space{Folders: []string{p.Cache}, Need: p.DownloadBytes + 2*t.bytes + smallChange})
	}
	disks := map[uint64]int{} // by device: the index in Space
	for _, n := range needs {
		device, free, err := disk(n.Folders[0])
		if err != nil {
			p.Problems = append(p.Problems, Problem{err.Error(), placeFix})
			continue
		}
		if i, ok := disks[device]; ok {
			p.Space[i].Folders, p.Space[i].Need = append(p.Space[i].Folders, n.Folders...), p.Space[i].Need+n.Need
			continue
		}
		n.Free = free
		disks[device] = len(p.Space)
		p.Space = append(p.Space, n)
	}
	for _, s := range p.Space {
		if s.Need > s.Free {
			p.Problems = append(p.Problems, Problem{
				fmt.Sprintf("the disk of %s has %s free, and up to %s are needed", s.Folders[0], size(s.Free), size(s.Need)),
				"free some space there, or " + placeFix})
		}
	}
}

const placeFix = "set PYBOX_HOME (the bundle) or PYBOX_CACHE (downloads and work) to a folder of yours on another disk"

// disk finds the disk that a folder is on or will be, and what it has free for this
// user. The error says why nothing can be made there.
func disk(dir string) (device uint64, free int64, err error) {
	base := dir
	var st fs.FileInfo
	for {
		st, err = os.Stat(base)
		if err == nil || !errors.Is(err, fs.ErrNotExist) || filepath.Dir(base) == base {
			break
		}
		base = filepath.Dir(base)
	}
	switch {
	case err != nil:
		return 0, 0, fmt.Errorf("%s cannot be looked at: %w", base, err)
	case !st.IsDir():
		return 0, 0, fmt.Errorf("%s is a file, and has to be a folder", base)
	}
	// access(2) also tells of a disk that is mounted read-only.
	if err := unix.Access(base, unix.W_OK|unix.X_OK); err != nil {
		return 0, 0, fmt.Errorf("nothing can be made in %s: %w", base, err)
	}
	var f unix.Statfs_t
	if err := unix.Statfs(base, &f); err != nil {
		return 0, 0, fmt.Errorf("the disk of %s cannot be looked at: %w", base, err)
	}
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		device = uint64(sys.Dev)
	}
	return device, int64(f.Bavail) * int64(f.Bsize), nil
}

// sources lists where downloads come from and by which proxies.
func (p *Plan) sources() {
	proxy := http.ProxyFromEnvironment
	if p.o.Client != nil {
		if t, ok := p.o.Client.Transport.(*http.Transport); ok && t.Proxy != nil {
			proxy = t.Proxy
		}
	}
	broken := false
	for _, s := range p.o.Sources {
		row := Source{Label: s.Label, Addresses: s.Addresses()}
		for _, addr := range row.Addresses {
			u, err := url.Parse(addr)
			if err != nil {
				continue
			}
			via, err := proxy(&http.Request{URL: u})
			broken = broken || err != nil // its text may have a password
			if via != nil {
				row.Proxy = via.Redacted()
			}
		}
		// An apt that is set up with both archives names each twice.
		if !slices.ContainsFunc(p.Sources, func(o Source) bool { return slices.Equal(o.Addresses, row.Addresses) }) {
			p.Sources = append(p.Sources, row)
		}
	}
	if broken {
		p.Problems = append(p.Problems, Problem{"HTTPS_PROXY or HTTP_PROXY does not hold the address of a proxy",
			"correct it, such as http://HOST:3128, or unset it"})
	}
}
