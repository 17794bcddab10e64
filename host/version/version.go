// Package version says which PyBox this is.
package version

import "runtime/debug"

// Number is the release; the build may add to it with
// -ldflags "-X github.com/pybox/pybox/host/version.Number=…".
var Number = "0.1.0-dev"

// String is the release with the commit where the toolchain recorded one.
func String() string {
	if b, ok := debug.ReadBuildInfo(); ok {
		for _, s := range b.Settings {
			if s.Key == "vcs.revision" && len(s.Value) >= 12 {
				return Number + "+" + s.Value[:12]
			}
		}
	}
	return Number
}
