package pylock

import (
	"net/url"
	"path"
	"regexp"
	"strings"

	"github.com/pybox/pybox/guest/pep508"
	"github.com/pybox/pybox/guest/pytag"
)

// makeLock is the advice of most refusals.
const makeLock = "make the lock with 'uv pip compile --generate-hashes' or 'pip-compile --generate-hashes'"

// comment is what pip takes for one: '#' at the beginning or behind white space.
var comment = regexp.MustCompile(`(^|\s+)#.*$`)

// variable is what pip replaces with a variable of the environment.
var variable = regexp.MustCompile(`\$\{[A-Z0-9_]+\}`)

// logicalLine is one or more lines of the file, joined where they end in '\'.
type logicalLine struct {
	number int // of the first, from 1
	text   string
}

// joinLines makes logical lines without comments, by pip's rules: what is joined has
// nothing put between.
func joinLines(data string) []logicalLine {
	var lines []logicalLine
	var parts []string
	first := 0
	number := 0
	for line := range strings.SplitSeq(strings.TrimPrefix(data, "\ufeff"), "\n") {
		number++
		line = strings.TrimSuffix(line, "\r")
		isComment := strings.HasPrefix(strings.TrimLeft(line, " \t"), "#")
		if len(parts) == 0 {
			first = number
		}
		if rest, more := strings.CutSuffix(line, `\`); more && !isComment {
			parts = append(parts, rest)
			continue
		}
		// A comment ends what goes on before it.
		if isComment {
			line = ""
		}
		lines = append(lines, logicalLine{first, strings.Join(append(parts, line), "")})
		parts = nil
	}
	if len(parts) > 0 {
		lines = append(lines, logicalLine{first, strings.Join(parts, "")})
	}
	return lines
}

// requirements reads the lines of one file.
type requirements struct {
	lock *Lock
	env  Environment
	*problems
}

func readRequirements(l *Lock, p *problems, data string, env Environment) {
	r := requirements{l, env, p}
	for _, line := range joinLines(data) {
		text := strings.TrimSpace(comment.ReplaceAllString(line.text, ""))
		switch {
		case text == "":
		case variable.MatchString(text):
			r.add(line.number, "%.40s stands for a variable, which is not put in; give the address with --index-url", variable.FindString(text))
		case strings.HasPrefix(text, "-"):
			r.options(line.number, text)
		default:
			r.requirement(line.number, text)
		}
		if len(l.Packages)+len(l.Skipped) > maxPackages {
			r.add(line.number, "more than %d packages", maxPackages)
			return
		}
	}
}

// options reads a line of options for the whole file.
func (r requirements) options(line int, text string) {
	words := strings.Fields(text)
	for known := true; len(words) > 0 && known; {
		name, value, inline := strings.Cut(words[0], "=")
		words = words[1:]
		// "-ihttps://…", as short options may be written.
		if len(name) > 2 && name[0] == '-' && name[1] != '-' {
			name, value, inline = name[:2], words0(name, value, inline), true
		}
		if !inline && takesValue[name] {
			if len(words) == 0 {
				r.add(line, "nothing stands behind %s", name)
				return
			}
			value, words = words[0], words[1:]
		}
		// What stands behind an option that is not known may be its value.
		known = r.option(line, name, strings.Trim(value, `"'`))
	}
}

// words0 is what a short option's own word has behind its letter.
func words0(name, value string, hadEquals bool) string {
	if hadEquals {
		return name[2:] + "=" + value
	}
	return name[2:]
}

// takesValue are the options that have one.
var takesValue = map[string]bool{
	"-i": true, "--index-url": true, "--pypi-url": true, "--extra-index-url": true,
	"-f": true, "--find-links": true, "-r": true, "--requirement": true,
	"-c": true, "--constraint": true, "-e": true, "--editable": true,
	"--no-binary": true, "--only-binary": true, "--trusted-host": true, "--use-feature": true,
}

// maxExtraIndexes bounds the further indexes of a lock.
const maxExtraIndexes = 16

// option looks at one option and tells whether it is known.
func (r requirements) option(line int, name, value string) bool {
	switch name {
	case "-i", "--index-url", "--pypi-url":
		if r.isIndex(line, name, value) {
			r.lock.IndexURL = value
		}
	case "--extra-index-url":
		switch {
		case !r.isIndex(line, name, value):
		case len(r.lock.ExtraIndex) == maxExtraIndexes:
			r.add(line, "more than %d --extra-index-url", maxExtraIndexes)
		default:
			r.lock.ExtraIndex = append(r.lock.ExtraIndex, value)
		}
	case "--no-index":
		r.lock.NoIndex = true
	case "--only-binary", "--prefer-binary", "--require-hashes", "--pre":
		// Nothing else is ever done, and what is pinned is pinned.
	case "--no-binary":
		if value != ":none:" {
			r.add(line, "--no-binary asks to build %.80s from its source, which would run its code on this computer; only wheels are installed: leave it out", redact(value))
		}
	case "-f", "--find-links":
		r.add(line, "folders that a lock file names are not looked at; leave the line out and give --find-links DIR to the command")
	case "-r", "--requirement":
		r.add(line, "other files are not read; %s, which puts everything into one", makeLock)
	case "-c", "--constraint":
		r.add(line, "constraints are not applied to what is locked; leave the line out, and give them to the tool that makes the lock")
	case "-e", "--editable":
		r.add(line, "%.80s is to be installed from its source tree, which would run its code on this computer; build a wheel of it and lock that, or lock without it ('uv export --no-emit-project')", redact(value))
	case "--trusted-host":
		r.add(line, "certificates are always checked; leave the line out, or give an http address with --index-url")
	default:
		r.add(line, "the option %.40s is not known here; leave it out", redact(name))
		return false
	}
	return true
}

// isIndex checks an index's address. That of a lock file must be https.
func (r requirements) isIndex(line int, name, value string) bool {
	u, err := url.Parse(value)
	if err != nil || u.Scheme != "https" || u.Host == "" {
		r.add(line, "%s wants an https address in a lock file; another one can be given with --index-url to the command", name)
		return false
	}
	return true
}

// requirement reads a line that asks for a package.
func (r requirements) requirement(line int, text string) {
	spec, opts := splitOptions(text)
	req, err := pep508.ParseRequirement(spec)
	if err != nil {
		if why := notByName(spec); why != "" {
			r.add(line, "%.80s %s", redact(spec), why)
			return
		}
		r.add(line, "%v", err)
		return
	}
	applies, err := req.Marker.Eval(r.env)
	if err != nil {
		r.add(line, "%s: whether it is for the image cannot be told: %v; take the condition out", req.Name, err)
		return
	}
	exact, pinned := req.Specifiers.Exact()
	pkg := Package{Name: req.Name, Extras: req.Extras, Line: line}
	if pinned {
		pkg.Version = exact.String()
	}
	if !applies {
		pkg.Extras = nil
		r.lock.Skipped = append(r.lock.Skipped, pkg)
		return
	}
	if !r.hashes(line, &pkg, opts) {
		return
	}
	switch {
	case req.URL != "":
		r.direct(line, pkg, req.URL)
	case !pinned:
		r.add(line, "%s is not pinned to one version with '=='; %s", req, makeLock)
	case r.hashed(line, pkg, req.String()):
		r.lock.Packages = append(r.lock.Packages, pkg)
	}
}

// splitOptions parts a requirement from its options: what begins with '-' behind
// white space.
func splitOptions(text string) (spec string, opts []string) {
	for i := 1; i < len(text); i++ {
		if text[i] == '-' && (text[i-1] == ' ' || text[i-1] == '\t') {
			return strings.TrimSpace(text[:i]), strings.Fields(text[i:])
		}
	}
	return text, nil
}

// hashes reads the options of a requirement.
func (r requirements) hashes(line int, pkg *Package, opts []string) bool {
	seen := map[Hash]bool{}
	for len(opts) > 0 {
		name, value, inline := strings.Cut(opts[0], "=")
		opts = opts[1:]
		if name != "--hash" {
			r.add(line, "%s: the option %.40s is about building, and only wheels are installed: leave it out", pkg.Name, redact(name))
			return false
		}
		if !inline {
			if len(opts) == 0 {
				r.add(line, "%s: nothing stands behind --hash", pkg.Name)
				return false
			}
			value, opts = opts[0], opts[1:]
		}
		algorithm, digest, _ := strings.Cut(strings.Trim(value, `"'`), ":")
		h, err := parseHash(algorithm, digest)
		if err != nil {
			r.add(line, "%s: %v", pkg.Name, err)
			return false
		}
		if !seen[h] {
			pkg.Hashes = append(pkg.Hashes, h)
		}
		seen[h] = true
		if len(pkg.Hashes) > maxHashes {
			r.add(line, "%s: more than %d hashes", pkg.Name, maxHashes)
			return false
		}
	}
	return true
}

// hashed tells whether there is what files are checked against.
func (r requirements) hashed(line int, pkg Package, what string) bool {
	switch {
	case len(pkg.Hashes) == 0:
		r.add(line, "%s has no --hash; %s", what, makeLock)
	case len(pkg.SHA256()) == 0:
		r.add(line, "%s has no SHA-256 among its hashes; %s", what, makeLock)
	default:
		return true
	}
	return false
}

// direct reads "name @ URL".
func (r requirements) direct(line int, pkg Package, address string) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || !strings.HasSuffix(u.Path, pytag.Suffix) {
		r.add(line, "%s is to come from %.120s, which is no wheel on a web server; lock a released version, or give the folder of your own wheels with --find-links", pkg.Name, redact(address))
		return
	}
	w, err := pytag.Parse(path.Base(u.Path))
	if err != nil || w.Name != pkg.Name {
		r.add(line, "%s: %.120q is not the name of a wheel of it", pkg.Name, path.Base(u.Path))
		return
	}
	if !r.hashed(line, pkg, pkg.Name) {
		return
	}
	if len(pkg.SHA256()) > 1 {
		r.add(line, "%s has several SHA-256 for one file", pkg.Name)
		return
	}
	u.Fragment = ""
	pkg.Version = w.Version
	pkg.Wheels = []Wheel{{File: w.File, URL: u.String(), Hashes: pkg.Hashes}}
	r.lock.Packages = append(r.lock.Packages, pkg)
}

// redact takes out of an address that is shown what may be a secret: a name and
// password, its query and its fragment. Other text stays as it is.
func redact(text string) string {
	scheme, rest, isAddress := strings.Cut(text, "://")
	if !isAddress {
		return text
	}
	if end := strings.IndexAny(rest, "?# \t"); end >= 0 {
		rest = rest[:end]
	}
	rest, _, _ = strings.Cut(rest, "://") // an address in an address
	host, tail, _ := strings.Cut(rest, "/")
	host = host[strings.LastIndexByte(host, '@')+1:]
	if _, err := url.Parse("x://" + host); err != nil {
		return scheme + "://(an address that is none)" // a password with a '/' in it?
	}
	return scheme + "://" + host + "/" + tail
}

// notByName says what is wrong with a requirement that is a place, or "".
func notByName(spec string) string {
	lower := strings.ToLower(spec)
	for _, vcs := range []string{"git+", "hg+", "svn+", "bzr+"} {
		if strings.HasPrefix(lower, vcs) {
			return "is a source tree, and building it would run its code on this computer; lock a released version"
		}
	}
	scheme, _, isAddress := strings.Cut(lower, "://")
	switch {
	case isAddress && !strings.ContainsAny(scheme, "@ \t"), strings.HasPrefix(lower, "file:"):
		return "is an address without a name; write 'NAME @ ADDRESS', or lock a released version"
	case strings.HasPrefix(spec, "."), strings.HasPrefix(spec, "/"), strings.Contains(spec, `\`),
		strings.HasSuffix(lower, ".whl"), strings.HasSuffix(lower, ".zip"), strings.HasSuffix(lower, ".tar.gz"):
		return "is a file or folder; lock it by name and version, and give the folder of its wheel with --find-links"
	}
	return ""
}
