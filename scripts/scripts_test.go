// Package scripts_test runs the scripts of the build as a Mac would: with the tools
// that every macOS has and no others, and with stand-ins for Apple's own. What the
// stand-ins cannot show is in docs/macos.md.
package scripts_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// mac is a folder of programs that stands for a Mac's PATH.
type mac struct {
	bin string
	env []string
}

// newMac has the tools of POSIX that the scripts use. macOS has each of them, and no
// timeout(1), for example.
func newMac(t *testing.T) *mac {
	t.Helper()
	m := &mac{bin: t.TempDir()}
	for _, tool := range []string{"cat", "date", "dirname", "grep", "id", "mkdir", "sed", "sh", "sleep", "tr", "true", "xargs"} {
		m.link(t, tool)
	}
	m.fake(t, "uname", `[ "${1-}" = -m ] && echo arm64 || echo Darwin`)
	m.env = []string{"PATH=" + m.bin, "HOME=" + t.TempDir()}
	return m
}

// link lets the Mac have a program of this machine.
func (m *mac) link(t *testing.T, tool string) {
	t.Helper()
	path, err := exec.LookPath(tool)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(path, filepath.Join(m.bin, tool)); err != nil {
		t.Fatal(err)
	}
}

// fake puts a shell script in the place of a program. What is there may be a link to a
// program of this machine, which must not be written through.
func (m *mac) fake(t *testing.T, tool, script string) {
	t.Helper()
	path := filepath.Join(m.bin, tool)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o700)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteString("#!/bin/sh\n" + script + "\n")
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

// TestFakeLeavesTheMachineAlone: a fake in the place of a linked program is not written
// into that program.
func TestFakeLeavesTheMachineAlone(t *testing.T) {
	real := filepath.Join(t.TempDir(), "id")
	if err := os.WriteFile(real, []byte("of this machine"), 0o700); err != nil {
		t.Fatal(err)
	}
	m := &mac{bin: t.TempDir()}
	if err := os.Symlink(real, filepath.Join(m.bin, "id")); err != nil {
		t.Fatal(err)
	}
	m.fake(t, "id", "echo 1000")
	if b, err := os.ReadFile(real); err != nil || string(b) != "of this machine" {
		t.Errorf("the machine's program is now %q, %v", b, err)
	}
	if b, err := os.ReadFile(filepath.Join(m.bin, "id")); err != nil || string(b) != "#!/bin/sh\necho 1000\n" {
		t.Errorf("the fake is %q, %v", b, err)
	}
}

// run returns what a script says on both streams, and its exit code.
func (m *mac) run(t *testing.T, script string, args ...string) (string, int) {
	t.Helper()
	path, err := filepath.Abs(script)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.Env = m.env
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// newDeveloperMac has all that building PyBox asks for.
func newDeveloperMac(t *testing.T) *mac {
	m := newMac(t)
	m.fake(t, "xcode-select", `[ "$1" = -p ] && echo /Library/Developer/CommandLineTools`)
	m.fake(t, "go", `[ "$1 $2" = "env GOARCH" ] && echo arm64`)
	m.fake(t, "sw_vers", `echo 15.6.1`)
	m.fake(t, "sysctl", `case $2 in hw.optional.arm64 | kern.hv_support) echo 1 ;; *) echo 0 ;; esac`)
	return m
}

func TestDepsOnMacOS(t *testing.T) {
	for name, c := range map[string]struct {
		lacks func(*testing.T, *mac)
		says  string // empty: nothing is missing
	}{
		"all there": {func(*testing.T, *mac) {}, ""},
		"no command line tools": {func(t *testing.T, m *mac) {
			m.fake(t, "xcode-select", "echo unable to get active developer directory >&2; exit 2")
		}, "  xcode-select --install\n"},
		"no Go": {func(t *testing.T, m *mac) {
			if err := os.Remove(filepath.Join(m.bin, "go")); err != nil {
				t.Fatal(err)
			}
		}, "  brew install go\n"},
		"a Go for Intel": {func(t *testing.T, m *mac) {
			m.fake(t, "go", "echo amd64")
		}, "is one for amd64"},
		"an Intel Mac": {func(t *testing.T, m *mac) {
			m.fake(t, "go", "echo amd64")
			m.fake(t, "sysctl", "exit 1") // no such name there
		}, ""},
		"an old macOS": {func(t *testing.T, m *mac) {
			m.fake(t, "sw_vers", "echo 12.7.6")
		}, "PyBox needs macOS 13 or newer: this is macOS 12.7.6"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newDeveloperMac(t)
			m.fake(t, "apt-get", "echo apt-get was run; exit 0")
			c.lacks(t, m)
			for _, args := range [][]string{nil, {"test"}} {
				out, code := m.run(t, "deps", args...)
				if c.says == "" && (code != 0 || out != "") {
					t.Errorf("exit code %d: %s", code, out)
				}
				if c.says != "" && (code != 1 || !strings.Contains(out, c.says)) {
					t.Errorf("exit code %d: %s\nwant: %s", code, out, c.says)
				}
			}
		})
	}
}

// TestDepsCompileForTheOther: "make test" configures the kernel of both architectures,
// so a machine of either needs a compiler for the other, by the name of its package.
func TestDepsCompileForTheOther(t *testing.T) {
	const forAMD64, forARM64 = " gcc-x86-64-linux-gnu", " gcc-aarch64-linux-gnu"
	for _, c := range []struct{ machine, compiler, wants, not string }{
		{"x86_64", "aarch64-linux-gnu-gcc", forARM64, forAMD64},
		{"aarch64", "x86_64-linux-gnu-gcc", forAMD64, forARM64},
	} {
		m := newMac(t)
		m.fake(t, "uname", `[ "${1-}" = -m ] && echo `+c.machine+` || echo Linux`)
		m.fake(t, "id", "echo 1000")
		m.fake(t, "apt-get", "echo apt-get was run; exit 1")
		out, code := m.run(t, "deps", "test")
		if code != 1 || !strings.Contains(out, "sudo apt-get install") || !strings.Contains(out, c.wants) || strings.Contains(out, c.not) {
			t.Errorf("%s: exit code %d: %s", c.machine, code, out)
		}
		if out, _ = m.run(t, "deps", "kernel"); strings.Contains(out, c.wants) {
			t.Errorf("%s: a compiler for another machine than this: %s", c.machine, out)
		}
		m.fake(t, c.compiler, "exit 0")
		if out, _ = m.run(t, "deps", "test"); strings.Contains(out, c.wants) {
			t.Errorf("%s: what is there is asked for: %s", c.machine, out)
		}
	}
}

// codesign keeps what it was told in a file beside the program, as the real one
// does inside it.
const codesign = `
for last; do :; done
case $1 in
--force)
	[ "$1 $2 $3 $4" = "--force --sign - --entitlements" ] || { echo "unexpected: $*" >&2; exit 2; }
	cat "$5" >"$last.signature"
	echo "$last: replacing existing signature" >&2
	;;
--verify) [ -s "$last.signature" ] ;;
--display) echo "Executable=$last" >&2; cat "$last.signature" ;;
*) echo "unexpected: $*" >&2; exit 2 ;;
esac`

func TestSign(t *testing.T) {
	for name, c := range map[string]struct {
		codesign string
		says     string
		code     int
	}{
		"signed":             {codesign, "signed: ", 0},
		"codesign fails":     {"echo resource fork not allowed >&2; exit 1", "codesign failed for ", 1},
		"not valid":          {strings.Replace(codesign, `[ -s "$last.signature" ]`, "exit 3", 1), "is not valid", 1},
		"entitlement lost":   {strings.Replace(codesign, `cat "$last.signature"`, "true", 1), "was signed without com.apple.security.virtualization", 1},
		"entitlement denied": {strings.Replace(codesign, `cat "$last.signature"`, `tr '\n' ' ' <"$last.signature" | sed 's,<true/>,<false/>,'`, 1), "was signed without", 1},
		"all on one line":    {strings.Replace(codesign, `cat "$last.signature"`, `tr -d '\n\t' <"$last.signature"`, 1), "signed: ", 0},
	} {
		t.Run(name, func(t *testing.T) {
			m := newDeveloperMac(t)
			m.fake(t, "codesign", c.codesign)
			out, code := m.run(t, "sign", filepath.Join(t.TempDir(), "a program"))
			if code != c.code || !strings.Contains(out, c.says) {
				t.Errorf("exit code %d: %s\nwant %d: %s", code, out, c.code, c.says)
			}
		})
	}
}

func TestSignElsewhere(t *testing.T) {
	m := newMac(t)
	m.fake(t, "uname", "echo Linux")
	m.fake(t, "codesign", "echo codesign was run; exit 1")
	if out, code := m.run(t, "sign", "/nowhere"); code != 0 || out != "" {
		t.Errorf("exit code %d: %s", code, out)
	}
}

// TestSignedRunsTheProgram: what "go test -exec" gets from it is the program's own.
func TestSignedRunsTheProgram(t *testing.T) {
	m := newDeveloperMac(t)
	m.fake(t, "codesign", codesign)
	program := filepath.Join(t.TempDir(), "a test")
	if err := os.WriteFile(program, []byte("#!/bin/sh\n[ -s \"$0.signature\" ] && echo \"ran with $# arguments: $2\"\nexit 3\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	out, code := m.run(t, "signed", program, "-test.run", "a b")
	if code != 3 || !strings.Contains(out, "ran with 2 arguments: a b\n") {
		t.Errorf("exit code %d: %s", code, out)
	}
	m.fake(t, "codesign", "exit 1")
	if out, code = m.run(t, "signed", program); code != 1 || strings.Contains(out, "ran with") {
		t.Errorf("not signed, exit code %d: %s", code, out)
	}
}

func TestVMPossible(t *testing.T) {
	const (
		here   = "case $2 in kern.hv_support) echo 1 ;; *) echo 0 ;; esac"
		nested = "case $2 in kern.hv_support) echo 0 ;; *) echo 1 ;; esac"
		old    = "exit 1"
	)
	for name, c := range map[string]struct {
		system, sysctl string
		actions        bool
		code           int
		says           string
	}{
		"a Mac":              {"Darwin", here, false, 0, ""},
		"a Mac at GitHub":    {"Darwin", here, true, 0, ""},
		"a virtual Mac":      {"Darwin", nested, false, 1, "SKIPPED: this macOS is itself a virtual machine"},
		"a runner":           {"Darwin", nested, true, 1, "::warning title=VM tests skipped::this macOS"},
		"a Mac without":      {"Darwin", old, false, 1, "SKIPPED: this Mac cannot"},
		"Linux has emulated": {"Linux", old, false, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMac(t)
			m.fake(t, "uname", "echo "+c.system)
			m.fake(t, "sysctl", c.sysctl)
			if c.actions {
				m.env = append(m.env, "GITHUB_ACTIONS=true")
			}
			out, code := m.run(t, "vm-possible")
			if code != c.code || !strings.Contains(out, c.says) || c.says == "" && out != "" {
				t.Errorf("exit code %d: %s\nwant %d: %s", code, out, c.code, c.says)
			}
			if strings.Contains(out, "::warning") != (c.actions && code != 0) {
				t.Errorf("a notice for GitHub or none: %s", out)
			}
		})
	}
}

// TestMCPClients installs the clients once, and none when that fails.
func TestMCPClients(t *testing.T) {
	m := newMac(t)
	for _, tool := range []string{"cp", "cut", "mktemp", "mv", "rm"} {
		m.link(t, tool)
	}
	m.fake(t, "shasum", `cat >/dev/null; echo 0123456789abcdef0123456789abcdef0123 -`)
	cache := filepath.Join(t.TempDir(), "cache")
	m.env = append(m.env, "PYBOX_CACHE="+cache)
	m.fake(t, "npm", `echo "no network" >&2; exit 1`)
	out, code := m.run(t, "mcp-clients")
	if left, err := os.ReadDir(filepath.Join(cache, "mcp-clients")); code == 0 || !strings.Contains(out, "no network") || err != nil || len(left) != 0 {
		t.Errorf("npm failed: exit code %d, %s%v, %v", code, out, left, err)
	}
	to := filepath.Join(cache, "mcp-clients", "0123456789abcdef0123456789abcdef-arm64")
	for _, npm := range []string{`mkdir node_modules`, `exit 1`} { // the second time there is nothing to do
		m.fake(t, "npm", npm)
		if out, code := m.run(t, "mcp-clients"); code != 0 || out != to+"\n" {
			t.Errorf("exit code %d, %s", code, out)
		}
	}
	for _, name := range []string{"node_modules", "package.json", "package-lock.json"} {
		if _, err := os.Stat(filepath.Join(to, name)); err != nil {
			t.Error(err)
		}
	}
}

// TestStage runs steps of the build without GNU's timeout(1).
func TestStage(t *testing.T) {
	m := newMac(t)
	m.link(t, "go")
	home, err := os.UserHomeDir() // the caches of Go are there
	if err != nil {
		t.Fatal(err)
	}
	m.env = []string{"PATH=" + m.bin, "HOME=" + home, "GOFLAGS=" + os.Getenv("GOFLAGS"), "GOPROXY=off"}
	for name, c := range map[string]struct {
		ceiling string
		command []string
		code    int
		says    string // a regular expression
	}{
		"passes":           {"600", []string{"sh", "-c", "echo done"}, 0, "== a step\ndone\n== a step: "},
		"fails":            {"600", []string{"sh", "-c", "exit 7"}, 1, `failed after \d+ s \(exit 7\)`},
		"takes too long":   {"1", []string{"sleep", "600"}, 1, "its ceiling is 1 s"},
		"no such a thing":  {"600", []string{"/nowhere"}, 1, `\(exit 125\)`},
		"words stay words": {"600", []string{"sh", "-c", `echo "$1"`, "sh", "a  b"}, 0, "a  b\n"},
	} {
		t.Run(name, func(t *testing.T) {
			out, code := m.run(t, "stage", append([]string{"a step", c.ceiling}, c.command...)...)
			if code != c.code || !regexp.MustCompile(c.says).MatchString(out) {
				t.Errorf("exit code %d: %s\nwant %d: %s", code, out, c.code, c.says)
			}
		})
	}
}

// sources are the scripts and the Makefile, by path.
func sources(t *testing.T) map[string]string {
	t.Helper()
	paths, err := filepath.Glob("*")
	if err != nil {
		t.Fatal(err)
	}
	found := make(map[string]string)
	for _, path := range append(paths, "../Makefile") {
		if info, err := os.Stat(path); err != nil || info.IsDir() || filepath.Ext(path) == ".go" {
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		found[path] = string(text)
	}
	if len(found) < 8 {
		t.Fatalf("only %d sources", len(found))
	}
	return found
}

// TestBundlesOfHost: 'make test' builds the bundle with the image data, which takes a
// virtual machine minutes, only where a test boots it.
func TestBundlesOfHost(t *testing.T) {
	for host, data := range map[string]bool{"linux": true, "darwin": false} {
		out, err := exec.CommandContext(t.Context(), "make", "-C", "..", "-p", "-n", "HOST="+host, "help").Output()
		if err != nil {
			t.Fatal(err)
		}
		list := regexp.MustCompile(`(?m)^TESTBUNDLES :?= (.*)$`).FindSubmatch(out)
		if list == nil {
			t.Fatal("the Makefile does not say which bundles the tests boot")
		}
		if got := slices.Contains(strings.Fields(string(list[1])), "databundle"); got != data {
			t.Errorf("on %s the tests boot %s", host, list[1])
		}
	}
}

// TestOnlyWhatMacOSHas looks for what GNU's tools have and those of macOS, which are
// BSD's, have not, and for what GNU make got after 3.81 (2006), the one of macOS.
// It knows the usual ones alone.
func TestOnlyWhatMacOSHas(t *testing.T) {
	absent := regexp.MustCompile(strings.Join([]string{
		`(^|[\s;(|&])(timeout|tac|realpath|nproc|sha256sum|md5sum|setsid|flock|gsed|shuf|numfmt) `,
		`\bsed (-\w*[ir]|--)`, `\bdate (-\w*[dI]|--|\+\S*%N)`, `\bstat (-c|--)`, `\breadlink -\w*f`, `\bxargs (-\w*[rd]|--)`,
		`\bgrep (-\w*P|--(perl|include))`, `\bmktemp --`, `\bfind [^|;]*-(printf|regextype)`, `\bsort -\w*V`, `\bcp (-\w*[tT]|--)`,
		`\bln -\w*[rT]`, `\binstall -\w*D`, `\bbase64 -w`, `\bhead -n ?-`, `\btail --pid`, `\bls --`, `\bdu -\w*b`, `\bcut --`,
		`(?m)^\s*\.ONESHELL`, `\$\((file|let|intcmp) `, `(?m)^[A-Za-z_]+ *(!=|::=|:::=)`, `(?m)^(undefine|private) `,
	}, "|"))
	for path, text := range sources(t) {
		for i, line := range strings.Split(text, "\n") {
			if code, _, _ := strings.Cut(line, "# "); absent.MatchString(code) {
				t.Errorf("%s:%d: macOS has not what this asks for: %s", path, i+1, strings.TrimSpace(line))
			}
		}
	}
	for _, line := range []string{"timeout 5 true", "\tsed -i s/a/b/ x", "x=$(readlink -f .)", "A != date", "a | xargs -r rm", "date -d @0", "install -Dm755 a b"} {
		if !absent.MatchString(line) {
			t.Errorf("the pattern does not know %q", line)
		}
	}
}

// TestShellsAgree has every shell of this machine that may be a /bin/sh read the
// scripts. That of macOS is bash 3.2 in its POSIX mode.
func TestShellsAgree(t *testing.T) {
	shells := [][]string{{"sh", "-n"}, {"dash", "-n"}, {"bash", "--posix", "-n"}, {"busybox", "sh", "-n"}}
	shells = slices.DeleteFunc(shells, func(s []string) bool {
		_, err := exec.LookPath(s[0])
		return err != nil
	})
	for path, text := range sources(t) {
		if path == "../Makefile" {
			continue
		}
		if !strings.HasPrefix(text, "#!/bin/sh\n") {
			t.Errorf("%s does not begin with #!/bin/sh", path)
		}
		for _, shell := range shells {
			command := append(slices.Clone(shell), path)
			if out, err := exec.CommandContext(t.Context(), command[0], command[1:]...).CombinedOutput(); err != nil {
				t.Error(fmt.Sprint(command), err, string(out))
			}
		}
	}
}
