package pylock

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pybox/pybox/guest/pep508"
)

var guest = pep508.Guest("3.13.5", "x86_64")

// digest is a SHA-256, as far as a lock is concerned.
var digest = strings.Repeat("0123456789abcdef", 4)

func read(t *testing.T, name string, env Environment) *Lock {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	l, err := Parse(filepath.Join("testdata", name), b, env)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// brief lists packages as NAME[EXTRAS] VERSION xHASHES wWHEELS @LINE.
func brief(list []Package) []string {
	var out []string
	for _, p := range list {
		s := p.Name
		if len(p.Extras) > 0 {
			s += fmt.Sprint(p.Extras)
		}
		out = append(out, fmt.Sprintf("%s %s x%d w%d @%d", s, p.Version, len(p.Hashes), len(p.Wheels), p.Line))
	}
	return out
}

func TestRealForms(t *testing.T) {
	for name, want := range map[string]struct{ kind, packages, skipped string }{
		"uv.txt": {
			KindRequirements,
			"certifi 2025.8.3 x2 w0 @3|numpy 2.3.2 x4 w0 @11|requests[socks] 2.32.4 x2 w0 @24",
			"colorama 0.4.6 x0 w0 @7|numpy 2.2.6 x0 w0 @19",
		},
		"pip-compile.txt": {
			KindRequirements,
			"charset-normalizer 3.4.3 x3 w0 @14|jinja2 3.1.6 x1 w0 @19|requests[security socks] 2.32.4 x2 w0 @22|setuptools 80.9.0 x2 w0 @28",
			"async-timeout 5.0.1 x0 w0 @10",
		},
		"pylock.uv.toml": {
			KindPylock, "numpy 2.3.2 x0 w5 @15", "colorama 0.4.6 x0 w0 @7",
		},
		"pylock.pdm.toml": {
			KindPylock, "six 1.17.0 x0 w1 @34", "rich 14.1.0 x0 w0 @13|pytest 8.4.1 x0 w0 @27",
		},
		"pylock.pip.toml": {
			KindPylock, "idna 3.10 x0 w1 @4|mine  x0 w1 @15", "",
		},
	} {
		l := read(t, name, guest)
		packages, skipped := strings.Join(brief(l.Packages), "|"), strings.Join(brief(l.Skipped), "|")
		if l.Kind != want.kind || packages != want.packages || skipped != want.skipped {
			t.Errorf("%s: %s\n%s\n%s", name, l.Kind, packages, skipped)
		}
		if len(l.SHA256) != 64 || l.Python != "3.13.5" {
			t.Errorf("%s: SHA-256 %q, Python %q", name, l.SHA256, l.Python)
		}
	}
}

// The environment is the guest's, whatever this machine is.
func TestMarkersAreTheGuests(t *testing.T) {
	old := read(t, "uv.txt", pep508.Guest("3.10.2", "aarch64"))
	if got := strings.Join(brief(old.Packages), "|"); !strings.Contains(got, "numpy 2.2.6") || strings.Contains(got, "2.3.2") {
		t.Error(got)
	}
	win := guest
	win.SysPlatform = "win32"
	if got := strings.Join(brief(read(t, "uv.txt", win).Packages), "|"); !strings.Contains(got, "colorama") {
		t.Error(got)
	}
}

func TestOptionsOfTheFile(t *testing.T) {
	l := read(t, "pip-compile.txt", guest)
	if l.IndexURL != "https://mirror.example.org/simple" || !slices.Equal(l.ExtraIndex, []string{"https://packages.example.org/simple"}) || l.NoIndex {
		t.Errorf("%q, %q, %v", l.IndexURL, l.ExtraIndex, l.NoIndex)
	}
	for in, want := range map[string]string{
		"-i https://a.example/s":                       "https://a.example/s",
		"-ihttps://a.example/s?x=1":                    "https://a.example/s?x=1",
		"--index-url=https://a.example/s":              "https://a.example/s",
		"--pypi-url 'https://a.example/s'":             "https://a.example/s",
		"--pre --index-url https://a.example/s":        "https://a.example/s",
		"--require-hashes\n-i https://a.example/s # x": "https://a.example/s",
		"--only-binary :all:":                          "",
		"--only-binary=:all:":                          "",
		"--no-binary :none:":                           "",
	} {
		l, err := Parse("r.txt", []byte(in+"\na==1 --hash=sha256:"+digest), guest)
		if err != nil || l.IndexURL != want {
			t.Errorf("%q: %+v, %v", in, l, err)
		}
	}
	l, err := Parse("r.txt", []byte("--no-index\na==1 --hash=sha256:"+digest), guest)
	if err != nil || !l.NoIndex {
		t.Error(l, err)
	}
}

func TestSpellingsOfARequirement(t *testing.T) {
	for in, want := range map[string]string{
		"Foo_Bar==1.0 --hash=sha256:" + digest:                                                "foo-bar 1.0",
		"foo == 1.0 --hash sha256:" + strings.ToUpper(digest):                                 "foo 1.0",
		"foo===1.0.0 --hash=sha256:" + digest:                                                 "foo 1.0.0",
		"foo==v1.0-1+CPU --hash=sha256:" + digest:                                             "foo 1.0.post1+cpu",
		"foo==1 \\\n\\\n  --hash=sha256:" + digest + " \\\n  # via x\n":                       "foo 1",
		"foo==1.\\\n0 --hash=sha256:" + digest:                                                "foo 1.0",
		"foo==1 \\\r\n  --hash=sha256:" + digest + "\r\n":                                     "foo 1",
		"\ufefffoo==1 --hash=sha256:" + digest:                                                "foo 1",
		"foo==1;python_version>'3' --hash=sha256:" + digest + " # why":                        "foo 1",
		"foo==1\t--hash=sha256:" + digest:                                                     "foo 1",
		"foo==1 --hash=sha256:" + digest + " --hash=sha512:" + strings.Repeat("ab", 64):       "foo 1",
		"foo==1 --hash=sha256:" + digest + " \\":                                              "foo 1",
		"foo @ https://e.example/foo-2.0-py3-none-any.whl --hash=sha256:" + digest:            "foo 2.0",
		"foo @ https://e.example/a/foo-2.0-py3-none-any.whl#x=y \\\n --hash=sha256:" + digest: "foo 2.0",
	} {
		l, err := Parse("r.txt", []byte(in), guest)
		if err != nil {
			t.Errorf("%q: %v", in, err)
			continue
		}
		p := l.Packages[0]
		if got := p.Name + " " + p.Version; got != want || len(p.SHA256()) != 1 || p.SHA256()[0] != digest {
			t.Errorf("%q: %s, %+v", in, got, p)
		}
	}
}

// Each refusal names the line and says what to do.
func TestRequirementsRefused(t *testing.T) {
	h := " --hash=sha256:" + digest
	for in, want := range map[string]string{
		"":                                 "names no package",
		"# nothing\n\n":                    "names no package",
		"a==1 ; os_name == 'nt'" + h:       "none of its 1 packages is for the image",
		"ok==1" + h + "\na==1":             "line 2: a==1 has no --hash; make the lock with",
		"a":                                "a is not pinned",
		"a>=1" + h:                         "line 1: a>=1 is not pinned to one version with '=='; make the lock",
		"a==1.*" + h:                       "not pinned",
		"a==1,>=0.5" + h:                   "not pinned",
		"a===weird" + h:                    "not pinned",
		"a" + h:                            "a is not pinned",
		"a==1 --hash=md5:" + digest[:32]:   `"md5" is not one that is safe today: SHA-256 is wanted`,
		"a==1 --hash=sha1:" + digest[:40]:  "not one that is safe",
		"a==1 --hash=sha256:" + digest[1:]: "no sha256 digest: want 64",
		"a==1 --hash=sha256:" + strings.Repeat("g", 64):  "no sha256 digest",
		"a==1 --hash=sha512:" + strings.Repeat("a", 128): "a==1 has no SHA-256 among its hashes",
		"a==1 --hash":                          "nothing stands behind --hash",
		"a==1 --global-option=x" + h:           "--global-option is about building",
		"a==1" + h + "\n\n\nA==2" + h:          "line 4: a is asked for a second time (first in line 1)",
		"a==1" + h + "\na==1" + h:              "line 2: a is asked for a second time",
		"-r other.txt":                         "line 1: other files are not read",
		"--requirement=other.txt":              "other files are not read",
		"-c constraints.txt":                   "line 1: constraints are not applied",
		"-e .":                                 "to be installed from its source tree",
		"-e git+https://e.example/a.git#egg=a": "to be installed from its source tree",
		"-f https://e.example/wheels":          "give --find-links DIR to the command",
		"--find-links ./wheels":                "give --find-links DIR to the command",
		"--trusted-host e.example":             "certificates are always checked",
		"--no-binary :all:":                    "only wheels are installed: leave it out",
		"--no-binary=a":                        "only wheels are installed",
		"--use-feature fast-deps":              "the option --use-feature is not known here",
		"--surprise":                           "the option --surprise is not known here",
		strings.Repeat("--extra-index-url https://e.example/\n", maxExtraIndexes) + "a==1" + h + "\n--extra-index-url https://f.example/": "line 18: more than 16 --extra-index-url",
		"a>=1" + h + "\nb==1" + h + "\nb==2" + h:           "line 3: b is asked for a second time (first in line 2)",
		"--index-url":                                      "nothing stands behind --index-url",
		"--index-url http://e.example/simple":              "--index-url wants an https address in a lock file",
		"-i file:///srv":                                   "wants an https address",
		"--extra-index-url ftp://x":                        "--extra-index-url wants an https address",
		"--index-url https://${USER}:${PASS}@e.example":    "${USER} stands for a variable, which is not put in",
		"git+https://e.example/a.git":                      "is a source tree, and building it would run its code",
		"https://e.example/a-1-py3-none-any.whl" + h:       "is an address without a name; write 'NAME @ ADDRESS'",
		"a @ https://e.example/a-1-py3-none-any.whl b" + h: "a requirement with an address, which is not shown",
		"./a-1-py3-none-any.whl" + h:                       "is a file or folder; lock it by name and version",
		"../a":                                             "is a file or folder",
		"/srv/a.tar.gz":                                    "is a file or folder",
		`C:\a.whl`:                                         "is a file or folder",
		"file:///srv/a-1-py3-none-any.whl":                 "is an address without a name",
		"a @ git+https://e.example/a.git@main" + h:         "a is to come from git+https://e.example/a.git@main, which is no wheel",
		"a @ https://u:secret@e.example/a-1.tar.gz" + h:    "a is to come from https://e.example/a-1.tar.gz, which is no wheel",
		"a @ https://e.example/b-1-py3-none-any.whl" + h:   "is not the name of a wheel of it",
		"a @ https://e.example/a-1-py3-none-any.whl":       "a has no --hash",
		"a @ file:///srv/a-1-py3-none-any.whl" + h:         "no wheel on a web server",
		"a @ https://e.example/a-1-py3-none-any.whl" + h + " --hash=sha256:" + strings.Repeat("a", 64): "several SHA-256 for one file",
		"a==1 ; platform_release >= '5'" + h: "whether it is for the image cannot be told",
		"a==1 ; nonsense" + h:                "nonsense",
		"a==" + h:                            "not as PEP",
		"==1" + h:                            "no project's name",
	} {
		l, err := Parse("r.txt", []byte(in), guest)
		if !errors.Is(err, ErrLock) {
			t.Errorf("%q was read: %+v, %v", in, l, err)
			continue
		}
		if !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "r.txt: ") || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v\nwant %q", in, err, want)
		}
	}
}

// Names and passwords of addresses are shown in no form.
func TestNoSecretIsShown(t *testing.T) {
	h := " --hash=sha256:" + digest
	for _, in := range []string{
		"git+https://ghp_SECRET@e.example/o/r.git@main",
		"https://user:SECRET@e.example/x-1.0-py3-none-any.whl",
		"https://e.example/x-1.0-py3-none-any.whl?token=SECRET" + h,
		"x @ https://user:SECRET@e.example/x.whl foo",
		"x @ https://user:SEC/RET@e.example/x.whl",
		"x @ https://user:SECRET@e.example/x.zip" + h,
		"x @ git+https://ghp_SECRET@e.example/o/r.git" + h,
		"x @ https://e.example/https://user:SECRET@e.example/x.zip" + h,
		"x https://user:SECRET@e.example/",
		"-e git+https://ghp_SECRET@e.example/o/r.git#egg=x",
		"-e 'git+https://user:SEC/RET@e.example/o/r.git'",
		"-r https://user:SECRET@e.example/x.txt",
		"-f https://user:SECRET@e.example/x.txt",
		"--find-links=https://user:SECRET@e.example/x.txt",
		"--index-url http://user:SECRET@e.example/",
		"--extra-index-url http://user:SECRET@e.example/",
		"--trusted-host user:SECRET@e.example",
		"--no-binary https://user:SECRET@e.example/",
		"--proxy http://user:SECRET@e.example:80",
		"--proxy=http://user:SECRET@e.example:80",
		"--proxy user:SECRET@e.example:80",
		"--require-hashes --proxy user:SECRET@e.example:80 --pre",
		"--https://user:SECRET@e.example/",
		"x==1.0 --config-settings https://user:SECRET@e.example/",
		"x==1.0 --https://user:SECRET@e.example/",
		"x==1.0 --hash https://user:SECRET@e.example/",
		"x==1.0 --hash=sha256:https://user:SECRET@e.example/",
		"./https://user:SECRET@e.example/",
	} {
		l, err := Parse("r.txt", []byte(in), guest)
		if !errors.Is(err, ErrLock) || strings.Contains(err.Error(), "SECRET") || strings.Contains(err.Error(), "RET@") {
			t.Errorf("%q: %+v, %v", in, l, err)
		}
	}
}

// What is shown cannot move a cursor.
func TestProblemsArePrintable(t *testing.T) {
	for _, in := range []string{"a===\x1b[31m", "-e \x1b[31m", "--no-binary=\x1b[31m", "--\x1b[31m", "./\x1b[31m", "\x1b[31m==1"} {
		_, err := Parse("r.txt", []byte(in), guest)
		if !errors.Is(err, ErrLock) || strings.Contains(err.Error(), "\x1b") || !strings.Contains(err.Error(), `x1b`) {
			t.Errorf("%q: %q", in, err)
		}
	}
}

func TestAllProblemsAtOnce(t *testing.T) {
	_, err := Parse("r.txt", []byte("a\nb==1\n-r c\n"), guest)
	var e *Error
	if !errors.As(err, &e) || len(e.Problems) != 3 || e.Problems[0].Line != 1 || e.Problems[2].Line != 3 {
		t.Error(err)
	}
	_, err = Parse("r.txt", []byte(strings.Repeat("a>1\n", maxProblems+7)), guest)
	if !errors.As(err, &e) || len(e.Problems) != maxProblems || e.More != 7 || !strings.HasSuffix(err.Error(), "and 7 more") {
		t.Error(err)
	}
}

func TestBoundsOfAFile(t *testing.T) {
	h := " --hash=sha256:" + digest
	var many, hashes strings.Builder
	for i := range maxPackages + 1 {
		fmt.Fprintf(&many, "a%d==1%s\n", i, h)
	}
	hashes.WriteString("a==1")
	for i := range maxHashes + 1 {
		fmt.Fprintf(&hashes, " --hash=sha256:%064x", i)
	}
	for want, in := range map[string]string{
		"larger than 16 MiB":      strings.Repeat("#", MaxBytes+1),
		"not UTF-8":               "a==1\xff\xfe",
		"NUL":                     "a==1\x00",
		"more than 4096 packages": many.String(),
		"more than 4096 hashes":   hashes.String(),
	} {
		if _, err := Parse("r.txt", []byte(in), guest); !errors.Is(err, ErrLock) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %.200v", want, err)
		}
	}
}

func TestLockFilesOfOthers(t *testing.T) {
	for name, want := range map[string]string{
		"uv.lock": "uv export", "poetry.lock": "poetry export", "pdm.lock": "pdm export",
		"Pipfile.lock": "pipenv requirements --hash", "pyproject.toml": "uv pip compile",
	} {
		if _, err := Parse("/x/"+name, []byte("version = 1\n"), guest); !errors.Is(err, ErrLock) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzRequirements(f *testing.F) {
	for _, name := range []string{"uv.txt", "pip-compile.txt"} {
		b, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte("-i https://a/\n-r x\na @ https://b/a-1-py3-none-any.whl --hash=sha256:" + digest))
	f.Fuzz(func(t *testing.T, data []byte) { checkParsed(t, "requirements.txt", data) })
}

func FuzzPylock(f *testing.F) {
	for _, name := range []string{"pylock.uv.toml", "pylock.pdm.toml", "pylock.pip.toml"} {
		b, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	for _, in := range hostileTOML(20) {
		f.Add([]byte(in))
	}
	f.Fuzz(func(t *testing.T, data []byte) { checkParsed(t, "/srv/lock/pylock.toml", data) })
}

// checkParsed holds whatever was read to what the types promise.
func checkParsed(t *testing.T, name string, data []byte) {
	l, err := Parse(name, data, guest)
	if err != nil {
		if !errors.Is(err, ErrLock) {
			t.Fatal(err)
		}
		return
	}
	seen := map[string]bool{}
	for _, p := range l.Packages {
		if seen[p.Name] || !pep508.ValidName(p.Name) {
			t.Fatalf("package %q", p.Name)
		}
		seen[p.Name] = true
		if len(p.SHA256()) == 0 && len(p.Wheels) == 0 {
			t.Fatalf("%s has neither hashes nor wheels", p.Name)
		}
		for _, w := range p.Wheels {
			if w.SHA256() == "" || (w.URL == "") == (w.Path == "") || strings.ContainsAny(w.File, "/\\") {
				t.Fatalf("wheel %+v", w)
			}
			if w.Path != "" && !strings.HasPrefix(w.Path, "/srv/lock/") {
				t.Fatalf("path %q", w.Path)
			}
		}
	}
	if len(l.Packages) == 0 {
		t.Fatal("no packages")
	}
}
