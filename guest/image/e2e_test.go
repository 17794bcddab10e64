//go:build linux

package image_test

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/pybox/pybox/agent/boxtest"
)

//go:embed testdata/check.py
var check string

// lacking are the modules in sys.stdlib_module_names that the image has not, and
// why.
var lacking = map[string]string{
	"_ios_support": "iOS", "_scproxy": "macOS",
	"_overlapped": "Windows", "_winapi": "Windows", "_wmi": "Windows", "msvcrt": "Windows", "nt": "Windows",
	"winreg": "Windows", "winsound": "Windows",
	"_tkinter": "no display", "idlelib": "no display", "tkinter": "no display", "turtle": "no display", "turtledemo": "no display",
	"ensurepip": "no network to install from",
}

// TestE2EStdlib uses the standard library in a real box: every module that Debian
// has for it, and what of the image outside Python it relies on.
func TestE2EStdlib(t *testing.T) {
	g := boxtest.Start(t, 1<<30)
	o := g.Run(t, boxtest.Program{Source: check, Memory: 384 << 20, PIDs: 64, MilliCPU: 2000, Timeout: 90 * time.Second})
	if o.Code() != 0 {
		t.Fatal(o)
	}
	var got map[string]any
	if err := json.Unmarshal(o.Stdout, &got); err != nil {
		t.Fatalf("%v: %v", err, o)
	}
	for name, want := range map[string]any{
		"missing":              slices.Sorted(maps.Keys(lacking)),
		"not_compiled":         []any{},
		"time_zones":           []any{"2025-07-01T12:00:00+02:00", "US/Eastern", []any{"UTC", "UTC"}, 0},
		"locale_and_encodings": []any{"C.UTF-8", "utf-8", "utf-8"},
		"names":                []any{"box", "/tmp", "box", "box", "127.0.0.1", 443, 17},
		"no_network":           true,
		"tls":                  []any{true, []any{}, true},
		"digests":              []any{"2d711642", "6d3bc874", "9c1185a5"},
		"compression":          []any{"x", "x", "x", "x"},
		"databases":            []any{"dbm.dumb", "dbm.gnu", "dbm.ndbm", "dbm.sqlite3", 7},
		"foreign_functions":    []any{true, 2},
		"terminals":            256,
		"processes":            "42\n",
		"many_processes":       []any{1, 2},
		"coroutines":           8,
		"platform_names":       []any{"glibc", "pybox", ".cpython-313-", "image/webp", true},
		"numbers":              []any{"0.1428571428571428571428571429", "1/3", true},
		"programs":             []any{"pdb3.13", "pydoc3.13", "pygettext3.13", "python3", "python3.13"},
	} {
		// As text: JSON has one kind of number.
		if g, w := fmt.Sprint(got[name]), fmt.Sprint(want); g != w {
			t.Errorf("%s: %s, want %s", name, g, w)
		}
		delete(got, name)
	}
	if len(got) > 0 {
		t.Errorf("nobody looks at %v", got)
	}
}
