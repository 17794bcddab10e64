package pylock

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/pybox/pybox/guest/pep440"
	"github.com/pybox/pybox/guest/pep508"
	"github.com/pybox/pybox/guest/pytag"
)

// pylockFile is what is read of a pylock.toml
// (https://packaging.python.org/en/latest/specifications/pylock-toml/); other keys
// are for other tools.
type pylockFile struct {
	LockVersion    string          `toml:"lock-version"`
	Environments   []string        `toml:"environments"`
	RequiresPython string          `toml:"requires-python"`
	DefaultGroups  []string        `toml:"default-groups"`
	Packages       []pylockPackage `toml:"packages"`
}

type pylockPackage struct {
	Name           string        `toml:"name"`
	Version        string        `toml:"version"`
	Marker         string        `toml:"marker"`
	RequiresPython string        `toml:"requires-python"`
	VCS            *struct{}     `toml:"vcs"`
	Directory      *struct{}     `toml:"directory"`
	Archive        *struct{}     `toml:"archive"`
	Sdist          *struct{}     `toml:"sdist"`
	Wheels         []pylockWheel `toml:"wheels"`
}

type pylockWheel struct {
	Name   string            `toml:"name"`
	URL    string            `toml:"url"`
	Path   string            `toml:"path"`
	Size   *int64            `toml:"size"`
	Hashes map[string]string `toml:"hashes"`
}

// pylockReader reads one file.
type pylockReader struct {
	lock *Lock
	env  Environment
	dir  string
	*problems
}

func readPylock(l *Lock, p *problems, data string, env Environment) {
	if len(data) > maxTOMLBytes {
		p.add(0, "it is larger than %d MiB", maxTOMLBytes>>20)
		return
	}
	if line, err := checkShape([]byte(data)); err != nil {
		p.add(line, "%v", err)
		return
	}
	var f pylockFile
	if err := toml.Unmarshal([]byte(data), &f); err != nil {
		line := 0
		var decode *toml.DecodeError
		if errors.As(err, &decode) {
			line, _ = decode.Position()
		}
		p.add(line, "%v", err)
		return
	}
	// The default installation: the groups that the file says, and no extras.
	env.Extras, env.Groups = nil, f.DefaultGroups
	r := pylockReader{l, env, filepath.Dir(l.Name), p}
	if !r.forUs(f) {
		return
	}
	if len(f.Packages) > maxPackages {
		p.add(0, "more than %d packages", maxPackages)
		return
	}
	lines := packageLines(data)
	for i, pkg := range f.Packages {
		line := 0
		if len(lines) == len(f.Packages) {
			line = lines[i]
		}
		r.pkg(line, pkg)
	}
}

// packageLines are those that begin a package, for messages. The TOML may be
// written otherwise; then there are more or fewer, and none is used.
func packageLines(data string) []int {
	var lines []int
	number := 0
	for line := range strings.SplitSeq(data, "\n") {
		number++
		text, _, _ := strings.Cut(line, "#")
		if strings.Join(strings.Fields(text), "") == "[[packages]]" {
			lines = append(lines, number)
		}
	}
	return lines
}

// forUs looks at what the file says about itself.
func (r pylockReader) forUs(f pylockFile) bool {
	switch major, _, _ := strings.Cut(f.LockVersion, "."); {
	case f.LockVersion == "":
		r.add(0, "it has no lock-version, as a pylock.toml must; a requirements file must have another name")
		return false
	case major != "1":
		r.add(0, "its lock-version is %.20q, and 1.0 is what is known here; a newer PyBox may read it", f.LockVersion)
		return false
	}
	if !r.python(0, "the lock", f.RequiresPython) {
		return false
	}
	if len(f.Environments) == 0 {
		return true
	}
	for _, text := range f.Environments {
		m, err := pep508.ParseMarker(text)
		if err != nil {
			r.add(0, "environments: %v", err)
			return false
		}
		if ok, err := m.Eval(r.env); ok && err == nil {
			return true
		}
	}
	r.add(0, "none of its environments is the image's (CPython %s on Linux, %s); lock for that too: %.300q", r.env.PythonFullVersion, r.env.PlatformMachine, f.Environments)
	return false
}

// python tells whether a requires-python admits the image's.
func (r pylockReader) python(line int, what, spec string) bool {
	s, err := pep440.ParseSpecifiers(spec)
	if err != nil {
		r.add(line, "%s: requires-python: %v", what, err)
		return false
	}
	v, err := pep440.Parse(r.env.PythonFullVersion)
	if err != nil {
		r.add(line, "%s: the image's Python: %v", what, err)
		return false
	}
	if !s.Contains(v) {
		r.add(line, "%s is for Python %s, and the image has %s; lock for that version", what, s, v)
		return false
	}
	return true
}

func (r pylockReader) pkg(line int, f pylockPackage) {
	if !pep508.ValidName(f.Name) {
		r.add(line, "%.80q is no package's name", f.Name)
		return
	}
	pkg := Package{Name: pep508.NormalizeName(f.Name), Line: line}
	if f.Version != "" {
		v, err := pep440.Parse(f.Version)
		if err != nil {
			r.add(line, "%s: %v", pkg.Name, err)
			return
		}
		pkg.Version = v.String()
	}
	applies, err := evalMarker(f.Marker, r.env)
	switch {
	case err != nil:
		r.add(line, "%s: %v", pkg.Name, err)
		return
	case !applies:
		r.lock.Skipped = append(r.lock.Skipped, pkg)
		return
	}
	if !r.python(line, pkg.Name, f.RequiresPython) {
		return
	}
	if why := notWheels(f); why != "" {
		r.add(line, "%s %s", pkg.Name, why)
		return
	}
	if len(f.Wheels) > maxWheels {
		r.add(line, "%s: more than %d wheels", pkg.Name, maxWheels)
		return
	}
	for _, fw := range f.Wheels {
		w, err := r.wheel(pkg, fw)
		if err != nil {
			r.add(line, "%s: %v", pkg.Name, err)
			return
		}
		pkg.Wheels = append(pkg.Wheels, w)
	}
	r.lock.Packages = append(r.lock.Packages, pkg)
}

func evalMarker(text string, env Environment) (bool, error) {
	if text == "" {
		return true, nil
	}
	m, err := pep508.ParseMarker(text)
	if err != nil {
		return false, err
	}
	return m.Eval(env)
}

// notWheels says why a package cannot be installed from wheels, or "".
func notWheels(f pylockPackage) string {
	const runs = "building it would run its code on this computer"
	switch {
	case f.VCS != nil:
		return "comes from a source repository (vcs), and " + runs + "; lock a released version"
	case f.Directory != nil:
		return "is a source tree of yours (directory), and " + runs + "; build a wheel of it and lock that, or lock without it ('uv export --no-emit-project')"
	case f.Archive != nil:
		return "is an archive of its source, and " + runs + "; lock a released version"
	case len(f.Wheels) == 0 && f.Sdist != nil:
		return "has only a source distribution (sdist), and " + runs + "; take a version that has wheels"
	case len(f.Wheels) == 0:
		return "has no wheels in the lock"
	}
	return ""
}

// wheel reads one of a package's wheels.
func (r pylockReader) wheel(pkg Package, f pylockWheel) (Wheel, error) {
	var w Wheel
	name, err := r.place(&w, f)
	if err != nil {
		return w, err
	}
	if f.Name != "" {
		name = f.Name
	}
	parsed, err := pytag.Parse(name)
	if err != nil {
		return w, err
	}
	if parsed.Name != pkg.Name || pkg.Version != "" && parsed.Version != pkg.Version {
		return w, fmt.Errorf("the wheel %s is of another package or version", name)
	}
	w.File = name
	if f.Size != nil {
		if w.Bytes = *f.Size; w.Bytes <= 0 {
			return w, fmt.Errorf("%s: its size is %d bytes", name, w.Bytes)
		}
	}
	for _, algorithm := range slices.Sorted(maps.Keys(f.Hashes)) {
		if _, ok := digestBytes[algorithm]; !ok {
			continue // PEP 751 lets a lock have others beside
		}
		h, err := parseHash(algorithm, f.Hashes[algorithm])
		if err != nil {
			return w, fmt.Errorf("%s: %w", name, err)
		}
		w.Hashes = append(w.Hashes, h)
	}
	if len(onlySHA256(w.Hashes)) == 0 {
		return w, fmt.Errorf("%s has no sha256 among its hashes; lock with a tool that writes it, as 'uv export --format pylock.toml' does", name)
	}
	return w, nil
}

// place sets where a wheel is and returns the last part of that.
func (r pylockReader) place(w *Wheel, f pylockWheel) (string, error) {
	switch {
	case f.URL != "":
		u, err := url.Parse(f.URL)
		if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" {
			return "", fmt.Errorf("a wheel is at %.200s, which is no http or https address", redact(f.URL))
		}
		u.Fragment = ""
		w.URL = u.String()
		return path.Base(u.Path), nil
	case f.Path != "":
		local := filepath.FromSlash(f.Path)
		if !filepath.IsLocal(local) || strings.ContainsAny(f.Path, "\\\x00") {
			return "", fmt.Errorf("a wheel is at %.200q, which is not below the lock file's folder; put it there, or give its folder with --find-links", f.Path)
		}
		w.Path = filepath.Join(r.dir, local)
		return path.Base(f.Path), nil
	}
	return "", fmt.Errorf("the wheel %.200q has neither url nor path", f.Name)
}
