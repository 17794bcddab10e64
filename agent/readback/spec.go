package readback

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"reflect"
	"strconv"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/pybox/pybox/agent/oci"
)

// specifications compares what crun recorded, and the specifications that it and
// containerd have, with the one that follows from the Config now.
func (r *reader) specifications() {
	w := r.wanted()
	state, err := r.Runtime()
	for _, row := range []struct{ setting, expected, found string }{
		{"first process", strconv.Itoa(r.PID), strconv.Itoa(state.PID)},
		{"cgroup path", r.Config.Cgroup(), state.Cgroup},
		{"image", r.Config.ImageRoot, state.Rootfs},
	} {
		r.compare(row.setting, "crun", row.expected, row.found, err)
	}
	r.specification("crun", w, state.Spec, err)
	stored, err := r.StoredSpec()
	r.specification("containerd", w, stored, err)
}

// wanted is the specification that a box should have been made from.
type wanted struct {
	spec  *specs.Spec
	json  []byte
	texts []string // of parts
	err   error
}

func (r *reader) wanted() wanted {
	s, err := oci.Spec(r.Config)
	w := wanted{spec: s, err: err, texts: make([]string, len(parts))}
	if err == nil {
		w.json, w.err = json.Marshal(s)
		for i, p := range parts {
			w.texts[i] = p.text(p.of(s))
		}
	}
	return w
}

// specification compares a specification part by part.
func (r *reader) specification(source string, w wanted, raw []byte, err error) {
	err = cmp.Or(w.err, err)
	found := w.spec
	// Most of the time nothing differs, and nothing needs reading or writing down.
	if err == nil && !bytes.Equal(raw, w.json) {
		found, err = parseSpec(raw)
	}
	for i, p := range parts {
		text := w.texts[i]
		if err == nil && found != w.spec && !reflect.DeepEqual(p.of(w.spec), p.of(found)) {
			text = p.text(p.of(found))
		}
		r.compare("specification: "+p.name, source, w.texts[i], text, err)
	}
}

func parseSpec(raw []byte) (*specs.Spec, error) {
	var s *specs.Spec
	if len(raw) > 0 {
		if err := json.Unmarshal(raw, &s); err != nil {
			return nil, err
		}
	}
	if s == nil {
		return nil, errors.New("there is none")
	}
	return s, nil
}

// part is a part of a specification.
type part struct {
	name string
	of   func(*specs.Spec) any
	// text writes it. Parts that mean the same are written equally, even where
	// one has an empty list and the other none.
	text func(any) string
}

// parts cover a specification as a whole: the last one is what the others leave.
var parts = []part{
	{"process", func(s *specs.Spec) any { return s.Process }, asJSON},
	{"root", func(s *specs.Spec) any { return s.Root }, asJSON},
	{"mounts", func(s *specs.Spec) any { return s.Mounts }, asJSON},
	{"namespaces", func(s *specs.Spec) any { return linux(s).Namespaces }, asJSON},
	{"user ids", func(s *specs.Spec) any { return [2]any{linux(s).UIDMappings, linux(s).GIDMappings} }, asJSON},
	{"cgroup", func(s *specs.Spec) any { return [2]any{linux(s).CgroupsPath, linux(s).Resources} }, asJSON},
	{"seccomp", func(s *specs.Spec) any { return linux(s).Seccomp }, digest},
	{"masked and read-only paths", func(s *specs.Spec) any { return [2]any{linux(s).MaskedPaths, linux(s).ReadonlyPaths} }, asJSON},
	{"hooks", func(s *specs.Spec) any { return s.Hooks }, asJSON},
	{"everything else", rest, asJSON},
}

// rest is what no other part has.
func rest(s *specs.Spec) any {
	r, l := *s, *linux(s)
	r.Process, r.Root, r.Mounts, r.Hooks = nil, nil, nil, nil
	l.Namespaces, l.UIDMappings, l.GIDMappings = nil, nil, nil
	l.CgroupsPath, l.Resources, l.Seccomp, l.MaskedPaths, l.ReadonlyPaths = "", nil, nil, nil, nil
	r.Linux = &l
	return r
}

func linux(s *specs.Spec) *specs.Linux {
	if s.Linux == nil {
		return new(specs.Linux)
	}
	return s.Linux
}

func asJSON(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return "no JSON: " + err.Error()
	}
	return string(b)
}

func digest(v any) string {
	filter := v.(*specs.LinuxSeccomp)
	if filter == nil {
		return "none"
	}
	return "SHA-256 " + oci.SeccompSHA256(filter)
}
