package config

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/pybox/pybox/host/units"
)

func env(m map[string]string) func(string) string { return func(k string) string { return m[k] } }

func write(t *testing.T, text string) string {
	t.Helper()
	p := filepath.Join(t.TempDir(), "config.toml")
	if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return p
}

func TestLoad(t *testing.T) {
	got, err := Load(filepath.Join(t.TempDir(), "none"), env(nil))
	if err != nil || !reflect.DeepEqual(got, Default()) {
		t.Errorf("no file: %+v, %v; want the defaults", got, err)
	}
	got, err = Load(write(t, "# mine\n[vm]\nmemory = \"1GiB\"\nidle_stop = \"90\"\n[api]\nlisten = \"127.0.0.1:0\"\n"), env(map[string]string{"PYBOX_ACCEL": "tcg"}))
	want := Default()
	want.VM.Memory, want.VM.IdleStop, want.VM.Accel, want.API.Listen = 1<<30, units.Duration(90*time.Second), "tcg", "127.0.0.1:0"
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
}

func TestReady(t *testing.T) {
	got, err := Load(write(t, "[ready]\nstdlib = 0\ndata = 2\ndata_import = [\"numpy\", \"matplotlib.pyplot\"]\n"), env(nil))
	want := Ready{Data: 2, DataImport: []string{"numpy", "matplotlib.pyplot"}}
	if err != nil || !reflect.DeepEqual(got.Ready, want) || Default().Ready.Stdlib != 1 {
		t.Errorf("got %+v, %v; want %+v", got.Ready, err, want)
	}
	for text, says := range map[string]string{
		"stdlib = -1":                 "[ready] stdlib",
		"data = 17":                   "[ready] data",
		`data_import = ["os;exit()"]`: "[ready] data_import",
		`data_import = ["a b"]`:       "[ready] data_import",
		"stdlib = \"one\"":            "line 2",
		"other = 1":                   "other",
		`stdlib_import = ["json"]`:    "stdlib_import",
		`data_import = ["", "numpy"]`: "[ready] data_import",
	} {
		if _, err := Load(write(t, "[ready]\n"+text+"\n"), env(nil)); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want one that says %q", text, err, says)
		}
	}
}

func TestDurations(t *testing.T) {
	for text, want := range map[string]time.Duration{
		`idle_stop = 1800`: 30 * time.Minute, `idle_stop = 90.5`: 90500 * time.Millisecond, `idle_stop = "1800"`: 30 * time.Minute,
		`idle_stop = "2h"`: 2 * time.Hour, `idle_stop = 0`: 0, `idle_stop = "0"`: 0,
	} {
		c, err := Load(write(t, "[vm]\n"+text), env(nil))
		if err != nil || time.Duration(c.VM.IdleStop) != want {
			t.Errorf("%s: got %v, %v; want %v", text, c.VM.IdleStop, err, want)
		}
	}
}

func TestLoadNamesTheFault(t *testing.T) {
	for text, say := range map[string]string{
		"[vm]\nmemroy = \"1GiB\"":           `line 2: unknown key "vm.memroy"`,
		"[ceiling]\nmemory = 1":             `unknown key "ceiling`,
		"[vm]\n\nmemory = \"lots\"":         `line 3`,
		"[vm]\nmemory = \"64MiB\"":          "at least 512 MiB",
		"[vm]\nmemory = \"536870913\"":      "whole number of MiB",
		"[vm]\ncpus = 0":                    "cpus",
		"[vm]\ncpus = 65":                   "cpus",
		"[vm]\ncpus = \"two\"":              "line 2: vm.cpus is not given the kind",
		"[vm]\naccel = \"hvf\"":             `"hvf"`,
		"[vm]\nidle_stop = \"-1s\"":         "duration",
		"[vm]\nidle_stop = -5":              "duration",
		"[vm]\nidle_stop = \"1ms\"":         "at least 1s",
		"[vm]\nidle_stop = [1]":             "want a duration",
		"[vm]\nidle_stop = 1979-05-27":      "want a duration",
		"[vm]\nmemory = -1":                 "at least 512 MiB",
		"[vm]\nstart_timeout = \"0\"":       "start_timeout",
		"[vm":                               "line 1",
		"[ceilings]\ntimeout = \"0\"":       "[ceilings] timeout: 0s: want 1ms to 24h",
		"[ceilings]\ntimeout = [3]":         "[ceilings] timeout: want a duration",
		"[ceilings]\nmemory = \"1KiB\"":     "[ceilings] memory: 1 KiB: want 16 MiB",
		"[ceilings]\ncpus = nan":            "[ceilings] cpus: NaN",
		"[ceilings]\ncpus = 65":             "[ceilings] cpus",
		"[ceilings]\npids = 0":              "[ceilings] pids",
		"[ceilings]\noutput = \"17MiB\"":    "[ceilings] output: 17 MiB",
		"[ceilings]\nfiles = -1":            "[ceilings] files",
		"[ceilings]\nfiles_bytes = \"1PB\"": "[ceilings] files_bytes",
		"[ceilings]\nmax_files = 3":         `unknown key "ceilings.max_files"`,
		"[vm]\nqueue_wait = \"25h\"":        "queue_wait",
		"[receipts]\nkeep = 0":              "[receipts] keep: 0: want 1 to",
		"[api]\nlisten = \"0.0.0.0:8080\"":  "[api] listen: \"0.0.0.0:8080\": not an address of this machine",
		"[api]\nlisten = 8080":              "line 2: api.listen is not given the kind",
		"[api]\ntoken = \"x\"":              `unknown key "api.token"`,
		strings.Repeat("# long\n", 10_000):  "larger than",
	} {
		_, err := Load(write(t, text), env(nil))
		if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), say) {
			t.Errorf("%.40q: got %v, want ErrInvalid that says %q", text, err, say)
		}
	}
	dangling := filepath.Join(t.TempDir(), "config.toml")
	os.Symlink("nowhere", dangling)
	if _, err := Load(dangling, env(nil)); err == nil {
		t.Error("a link that leads nowhere counts as no file")
	}
	if _, err := Load(t.TempDir(), env(nil)); !errors.Is(err, ErrInvalid) {
		t.Errorf("a folder: %v", err)
	}
	if _, err := Load(write(t, ""), env(map[string]string{"PYBOX_ACCEL": "fast"})); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "PYBOX_ACCEL") {
		t.Errorf("PYBOX_ACCEL=fast: %v", err)
	}
}

func FuzzRead(f *testing.F) {
	f.Add("[vm]\nmemory = \"1GiB\"\ncpus = 2\n")
	f.Add("[vm]\nidle_stop = \"0\"\naccel = \"kvm\"")
	f.Add("[ceilings]\ntimeout = \"1m\"\ncpus = 1.5\noutput = 0\n[receipts]\nkeep = 10")
	f.Add("[api]\nlisten = \"127.0.0.1:0\"")
	f.Add("a.b.c = [1, {x = 2}]")
	f.Fuzz(func(t *testing.T, text string) {
		c := Default()
		if c.read(strings.NewReader(text)) == nil && c.validate() != nil {
			t.Errorf("took an invalid configuration: %+v", c)
		}
	})
}
