package pylock

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// pkgA is a file with one package whose keys are given.
func pkgA(keys string) string {
	return "lock-version = '1.0'\ncreated-by = 'test'\n[[packages]]\nname = 'a'\nversion = '1'\n" + keys
}

// wheelA is a wheel of that package, with more keys.
func wheelA(keys string) string {
	return pkgA("wheels = [{ " + keys + ", hashes = { sha256 = '" + digest + "' } }]\n")
}

const urlA = "url = 'https://e.example/a-1-py3-none-any.whl'"

func TestPylockWheels(t *testing.T) {
	w := read(t, "pylock.uv.toml", guest).Packages[0].Wheels[2]
	if w.File != "numpy-2.3.2-cp313-cp313-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl" || w.Bytes == 0 ||
		!strings.HasPrefix(w.URL, "https://files.example.org/") || w.Path != "" || len(w.SHA256()) != 64 {
		t.Errorf("%+v", w)
	}
	l := read(t, "pylock.pip.toml", guest)
	if w := l.Packages[1].Wheels[0]; w.Path != filepath.Join("testdata", "dist", "mine-0.1-py3-none-any.whl") || w.URL != "" || w.Bytes != 1234 {
		t.Errorf("%+v", w)
	}
	// Those beside it that are not known are passed over, and those that are stay.
	if h := read(t, "pylock.pdm.toml", guest).Packages[0].Wheels[0].Hashes; len(h) != 2 || h[0].Algorithm != "sha256" || h[1].Algorithm != "sha512" {
		t.Errorf("%+v", h)
	}
	named, err := Parse("pylock.toml", []byte(wheelA("name = 'a-1-py3-none-any.whl', url = 'https://e.example/download?file=7'")), guest)
	if err != nil || named.Packages[0].Wheels[0].File != "a-1-py3-none-any.whl" {
		t.Error(named, err)
	}
}

func TestPylockIsKnownByItsEnding(t *testing.T) {
	for name, kind := range map[string]string{
		"pylock.toml": KindPylock, "pylock.dev.toml": KindPylock, "/x/Pylock.TOML": KindPylock, "other.toml": KindPylock,
		"requirements.txt": KindRequirements, "pylock": KindRequirements, "pylock.txt": KindRequirements,
	} {
		data := wheelA(urlA)
		if kind == KindRequirements {
			data = "a==1 --hash=sha256:" + digest
		}
		if l, err := Parse(name, []byte(data), guest); err != nil || l.Kind != kind {
			t.Errorf("%s: %+v, %v", name, l, err)
		}
	}
}

func TestPylockVersions(t *testing.T) {
	for _, v := range []string{"1.0", "1.1", "1.27"} {
		if _, err := Parse("pylock.toml", []byte(strings.Replace(wheelA(urlA), "1.0", v, 1)), guest); err != nil {
			t.Errorf("%s: %v", v, err)
		}
	}
}

func TestPylockRefused(t *testing.T) {
	other := "\n[[packages]]\nname = 'A'\nversion = '2'\nwheels = [{ url = 'https://e.example/a-2-py3-none-any.whl', hashes = { sha256 = '" + digest + "' } }]\n"
	for in, want := range map[string]string{
		"":                                   "it has no lock-version",
		"a==1":                               "line 1",
		"lock-version = '2.0'":               `its lock-version is "2.0", and 1.0 is what is known here`,
		"lock-version = '1.0'":               "it names no package",
		"lock-version = '1.0'\npackages = 3": "line 2",
		"lock-version = '1.0'\n[[packages]]\nname = 3":                                   "line 3",
		"lock-version = '1.0'\nrequires-python = '>=3.14'":                               "the lock is for Python >=3.14, and the image has 3.13.5",
		"lock-version = '1.0'\nrequires-python = 'new'":                                  "requires-python",
		"lock-version = '1.0'\nenvironments = [\"sys_platform == 'darwin'\"]":            "none of its environments is the image's (CPython 3.13.5 on Linux, x86_64)",
		"lock-version = '1.0'\nenvironments = ['nonsense']":                              "environments",
		"lock-version = '1.0'\n[[packages]]\nname = '-a'":                                `line 2: "-a" is no package's name`,
		pkgA("vcs = { type = 'git', url = 'https://e.example/a.git', commit-id = 'f' }"): "line 3: a comes from a source repository",
		pkgA("directory = { path = '.' }"):                                               "a is a source tree of yours",
		pkgA("archive = { path = 'a.zip', hashes = { sha256 = 'f' } }"):                  "a is an archive of its source",
		pkgA("sdist = { name = 'a-1.tar.gz' }"):                                          "a has only a source distribution (sdist), and building it would run its code",
		pkgA(""):                                                                         "a has no wheels in the lock",
		pkgA("marker = 'nonsense'"):                                                      "line 3: a: ",
		pkgA("marker = \"sys_platform == 'win32'\""):                                     "none of its 1 packages",
		pkgA("marker = \"platform_version == '5'\""):                                     "not known before the machine runs",
		pkgA("requires-python = '<3.13'"):                                                "a is for Python <3.13, and the image has 3.13.5",
		pkgA("requires-python = 'x'"):                                                    "requires-python",
		strings.Replace(pkgA(""), "version = '1'", "version = 'one'", 1):                 "not as PEP 440",
		wheelA("size = 3"):                                                               "has neither url nor path",
		wheelA("url = 'ftp://e.example/a-1-py3-none-any.whl'"):                           "no http or https address",
		wheelA("url = 'a-1-py3-none-any.whl'"):                                           "no http or https address",
		wheelA("url = 'https://e.example/a-1.tar.gz'"):                                   "no wheel's name",
		wheelA("url = 'https://e.example/b-1-py3-none-any.whl'"):                         "of another package or version",
		wheelA("url = 'https://e.example/a-2-py3-none-any.whl'"):                         "of another package or version",
		wheelA(urlA + ", name = '../a-1-py3-none-any.whl'"):                              "no wheel's name",
		wheelA("path = '../a-1-py3-none-any.whl'"):                                       "not below the lock file's folder",
		wheelA("path = '/etc/a-1-py3-none-any.whl'"):                                     "not below the lock file's folder",
		wheelA(`path = 'x\a-1-py3-none-any.whl'`):                                        "not below the lock file's folder",
		wheelA(urlA + ", size = 0"):                                                      "its size is 0 bytes",
		wheelA(urlA + ", size = -1"):                                                     "its size is -1 bytes",
		strings.Replace(wheelA(urlA), "sha256", "md5", 1):                                "has no sha256 among its hashes",
		strings.Replace(wheelA(urlA), digest, "12", 1):                                   "no sha256 digest",
		wheelA(urlA) + other:                                                             "line 8: a is asked for a second time (first in line 3)",
		strings.Repeat("[", 20000):                                                       "line",
	} {
		l, err := Parse("pylock.toml", []byte(in), guest)
		if !errors.Is(err, ErrLock) || !strings.Contains(err.Error(), want) {
			t.Errorf("%.300q: %+v, %.300v\nwant %q", in, l, err, want)
		}
	}
}

func TestPylockOfManyPackages(t *testing.T) {
	one := strings.TrimPrefix(wheelA(urlA), "lock-version = '1.0'\ncreated-by = 'test'\n")
	many := "lock-version = '1.0'\n" + strings.Repeat(one, maxPackages+1)
	if _, err := Parse("pylock.toml", []byte(many), guest); !errors.Is(err, ErrLock) || !strings.Contains(err.Error(), "more than 4096 packages") {
		t.Errorf("%.200v", err)
	}
	wheel := "{ " + urlA + ", hashes = { sha256 = '" + digest + "' } },"
	many = pkgA("wheels = [" + strings.Repeat(wheel, maxWheels+1) + "]")
	if _, err := Parse("pylock.toml", []byte(many), guest); !errors.Is(err, ErrLock) || !strings.Contains(err.Error(), "more than 4096 wheels") {
		t.Errorf("%.200v", err)
	}
}

// hostileTOML are files that take a library long or much which looks a key up among
// all that it has seen, by what is said of them.
func hostileTOML(n int) map[string]string {
	repeat := func(format string, sep string) string {
		var list []string
		for i := range n {
			list = append(list, fmt.Sprintf(format, i))
		}
		return strings.Join(list, sep)
	}
	return map[string]string{
		"line 513: a table of more than 512 keys":     repeat("a%d=1", "\n"),
		"line 2: a table of more than 512 keys":       "lock-version = '1.0'\nx = {" + repeat("a%d=1", ",") + "}",
		"line 4: a table of more than 512 keys":       "[[packages]]\n[packages.x]\na=1\nb = [[{" + repeat("a%d=1", ",") + "}]]",
		"a key of more than 8 parts":                  "x" + strings.Repeat(".a", n) + " = 1",
		"line 1: a key of more than 8 parts":          "[x" + strings.Repeat(".a", n) + "]",
		"it has more tables and keys than a lock has": "[" + repeat("a%d", "]\n[") + "]",
		"more tables and keys than a lock has":        "[[" + repeat("a%d", "]]\n[[") + "]]",
		"more tables and keys than a lock":            "[" + repeat("a.a%d", "]\n[") + "]",
		"more tables and keys than a":                 "x = [" + repeat("{a=%d}", ",") + "]\n" + strings.Repeat("[[packages]]\n", n),
		"more tables and keys than":                   "[[packages]]\nx = [" + repeat("{a=%d}", ",") + "]\n" + strings.Repeat("[[packages.wheels]]\n", n),
		"more tables and keys":                        strings.Repeat("[[p]]\n[[q]]\nx.a=1\n", n),
		"more tables":                                 "[x]\na.b.c.d.e.f.g=[" + strings.Repeat("[],", n) + "]\n" + "[y." + repeat("a%d]\nb=1\nc=2", "\n[y."),
	}
}

func TestTOMLThatIsSlow(t *testing.T) {
	for want, in := range hostileTOML(20_000) {
		if _, err := Parse("pylock.toml", []byte(in), guest); !errors.Is(err, ErrLock) || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: %.200v\nwant %q", in, err, want)
		}
	}
	if _, err := Parse("pylock.toml", []byte("x=["+strings.Repeat("1,", maxTOMLCommas+1)+"]"), guest); !errors.Is(err, ErrLock) || !strings.Contains(err.Error(), errIntricate.Error()) {
		t.Errorf("%.200v", err)
	}
	if _, err := Parse("pylock.toml", []byte(strings.Repeat("#", maxTOMLBytes+1)), guest); !errors.Is(err, ErrLock) || !strings.Contains(err.Error(), "larger than 4 MiB") {
		t.Errorf("%.200v", err)
	}
}

// Locks as large as may be are read, in both forms that tools write.
func TestLargeTOML(t *testing.T) {
	var inline, headers strings.Builder
	write := func(format string, a ...any) {
		fmt.Fprintf(&inline, format, a...)
		fmt.Fprintf(&headers, format, a...)
	}
	write("lock-version = '1.0'\n")
	for i := range 520 {
		write("[[packages]]\nname = 'a%d'\nversion = '1'\nindex = 'https://e.example/simple'\n", i)
		inline.WriteString("wheels = [\n")
		for j := range 20 {
			url := fmt.Sprintf("'https://e.example/%d/a%d-1-py3-none-any.whl'", j, i)
			fmt.Fprintf(&inline, "  { url = %s, upload-time = 2025-01-01T00:00:00Z, size = 7, hashes = { sha256 = '%s' } },\n", url, digest)
			fmt.Fprintf(&headers, "[[packages.wheels]]\nurl = %s\nsize = 7\n[packages.wheels.hashes]\nsha256 = '%s'\n", url, digest)
		}
		inline.WriteString("]\n")
	}
	for _, in := range []string{inline.String(), headers.String()} {
		if len(in) < 1_500_000 || len(in) > maxTOMLBytes {
			t.Fatalf("%d bytes", len(in))
		}
		l, err := Parse("pylock.toml", []byte(in), guest)
		if err != nil || len(l.Packages) != 520 || len(l.Packages[7].Wheels) != 20 {
			t.Errorf("%.200v", err)
		}
	}
}

// A package twice is said where its line is not known, and beside other problems.
func TestTwiceWithoutALine(t *testing.T) {
	one := "{ name = 'a', version = '1', wheels = [{ " + urlA + ", hashes = { sha256 = '" + digest + "' } }] }"
	_, err := Parse("pylock.toml", []byte("lock-version = '1.0'\npackages = ["+one+", "+one+"]"), guest)
	if !errors.Is(err, ErrLock) || !strings.Contains(err.Error(), "a is asked for a second time; one of them") {
		t.Error(err)
	}
}
