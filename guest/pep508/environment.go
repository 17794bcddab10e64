package pep508

import "strings"

// Environment has the values that markers ask for. One that is empty is unknown,
// and a marker that depends on it is an error; only Extras and Groups may be empty.
type Environment struct {
	PythonVersion         string // "3.13"
	PythonFullVersion     string // "3.13.5"
	ImplementationName    string // "cpython"
	ImplementationVersion string // "3.13.5"
	PlatformPython        string // platform_python_implementation, "CPython"
	OSName                string // "posix"
	SysPlatform           string // "linux"
	PlatformSystem        string // "Linux"
	PlatformMachine       string // "x86_64" or "aarch64"
	PlatformRelease       string // of the kernel
	PlatformVersion       string // of the kernel
	// Extras are those that were asked for; none is an answer too. Groups are
	// dependency groups, which only lock files ask for.
	Extras, Groups []string
}

// Guest is the environment of a CPython of a full version ("3.13.5") in the guest;
// machine is "x86_64" or "aarch64". The kernel's release and version stay unknown:
// an image does not depend on the kernel that it will meet.
func Guest(fullVersion, machine string) Environment {
	short := fullVersion
	if parts := strings.SplitN(fullVersion, ".", 3); len(parts) == 3 {
		short = parts[0] + "." + parts[1]
	}
	return Environment{
		PythonVersion: short, PythonFullVersion: fullVersion,
		ImplementationName: "cpython", ImplementationVersion: fullVersion,
		PlatformPython: "CPython", OSName: "posix", SysPlatform: "linux",
		PlatformSystem: "Linux", PlatformMachine: machine,
	}
}

// With returns e with other extras.
func (e Environment) With(extras ...string) Environment {
	e.Extras = extras
	return e
}

// Variables whose values are lists, and the one that is an extra.
const (
	variableExtra  = "extra"
	variableExtras = "extras"
	variableGroups = "dependency_groups"
)

// variables are the names that markers may use, those from before PEP 508 too.
var variables = map[string]func(Environment) string{
	"python_version":                 func(e Environment) string { return e.PythonVersion },
	"python_full_version":            func(e Environment) string { return e.PythonFullVersion },
	"implementation_name":            func(e Environment) string { return e.ImplementationName },
	"implementation_version":         func(e Environment) string { return e.ImplementationVersion },
	"platform_python_implementation": func(e Environment) string { return e.PlatformPython },
	"python_implementation":          func(e Environment) string { return e.PlatformPython },
	"platform.python_implementation": func(e Environment) string { return e.PlatformPython },
	"os_name":                        func(e Environment) string { return e.OSName },
	"os.name":                        func(e Environment) string { return e.OSName },
	"sys_platform":                   func(e Environment) string { return e.SysPlatform },
	"sys.platform":                   func(e Environment) string { return e.SysPlatform },
	"platform_system":                func(e Environment) string { return e.PlatformSystem },
	"platform_machine":               func(e Environment) string { return e.PlatformMachine },
	"platform.machine":               func(e Environment) string { return e.PlatformMachine },
	"platform_release":               func(e Environment) string { return e.PlatformRelease },
	"platform_version":               func(e Environment) string { return e.PlatformVersion },
	"platform.version":               func(e Environment) string { return e.PlatformVersion },
	variableExtra:                    nil,
	variableExtras:                   nil,
	variableGroups:                   nil,
}

// comparedAsVersions are the variables whose values are versions where both sides
// can be; all others are text.
var comparedAsVersions = map[string]bool{
	"python_version": true, "python_full_version": true,
	"implementation_version": true, "platform_release": true,
}
