package engine

import (
	"encoding/json"
	"errors"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"
	"time"
)

// crunStatus is a file that crun 1.21 has written.
const crunStatus = `{
    "pid": 127,
    "process-start-time": 4711,
    "cgroup-path": "/pybox/boxes/run-1",
    "scope": "",
    "intelrdt": "",
    "rootfs": "/run/image",
    "systemd-cgroup": false,
    "bundle": "/run/pybox/engine/bundles/run-1",
    "created": "2026-11-29T20:40:45.267889Z",
    "owner": "root",
    "detached": true,
    "external_descriptors": "[\"/dev/null\",\"/dev/null\",\"/dev/null\"]"
}
`

const crunConfig = `{"ociVersion":"1.3.0","hostname":"box"}`

func TestRuntimeState(t *testing.T) {
	dir := fstest.MapFS{"status": {Data: []byte(crunStatus)}, "config.json": {Data: []byte(crunConfig)}}
	s, err := readRuntimeState(dir)
	if err != nil {
		t.Fatal(err)
	}
	want := time.Date(2026, 11, 29, 20, 40, 45, 267889000, time.UTC)
	if s.PID != 127 || s.CgroupPath != "/pybox/boxes/run-1" || s.Rootfs != "/run/image" || s.Bundle == "" ||
		!s.Created.Equal(want) || string(s.Spec) != crunConfig {
		t.Errorf("%+v", s)
	}
	for name, spoil := range map[string]fstest.MapFS{
		"no status":       {"config.json": dir["config.json"]},
		"no config":       {"status": dir["status"]},
		"half a status":   {"status": {Data: []byte(crunStatus[:40])}, "config.json": dir["config.json"]},
		"endless config":  {"status": dir["status"], "config.json": {Data: make([]byte, maxStateFile+1)}},
		"a negative pid":  {"status": {Data: []byte(strings.Replace(crunStatus, "127", "-1", 1))}, "config.json": dir["config.json"]},
		"no time":         {"status": {Data: []byte(strings.Replace(crunStatus, "2026", "soon", 1))}, "config.json": dir["config.json"]},
		"endless":         {"status": {Data: make([]byte, maxStateFile+1)}, "config.json": dir["config.json"]},
		"another's types": {"status": {Data: []byte(`{"pid":"1"}`)}, "config.json": dir["config.json"]},
	} {
		if s, err := readRuntimeState(spoil); err == nil {
			t.Errorf("%s: %+v", name, s)
		}
	}
	if _, err := readRuntimeState(fstest.MapFS{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("nothing there: %v", err)
	}
}

func FuzzRuntimeState(f *testing.F) {
	f.Add([]byte(crunStatus))
	f.Add([]byte(`{"pid":1e9,"created":"2026-11-29T20:40:45Z"}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, status []byte) {
		s, err := parseRuntimeStatus(status)
		if err != nil {
			return
		}
		if s.PID < 0 || !json.Valid(status) {
			t.Errorf("%q gives %+v", status, s)
		}
	})
}
