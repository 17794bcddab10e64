package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// maxStateFile bounds a file of the OCI runtime that is read, in bytes.
const maxStateFile = 1 << 20

// RuntimeState is what the OCI runtime itself has recorded of a container.
type RuntimeState struct {
	// PID is the container's first process, as the guest sees it.
	PID int
	// CgroupPath is the container's cgroup below the cgroup root.
	CgroupPath string
	// Rootfs and Bundle are folders in the guest.
	Rootfs, Bundle string
	// Created is when the runtime made it, by the guest's clock.
	Created time.Time
	// Spec is the runtime's copy of the specification that it worked from.
	Spec *specs.Spec
}

// readRuntimeState reads the files "status" and "config.json" of crun's folder of
// a container.
func readRuntimeState(dir fs.FS) (RuntimeState, error) {
	status, err := readBounded(dir, "status")
	if err != nil {
		return RuntimeState{}, err
	}
	config, err := readBounded(dir, "config.json")
	if err != nil {
		return RuntimeState{}, err
	}
	return parseRuntimeState(status, config)
}

func readBounded(dir fs.FS, name string) ([]byte, error) {
	f, err := dir.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxStateFile+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	if len(b) > maxStateFile {
		return nil, fmt.Errorf("read %s: more than %d bytes", name, maxStateFile)
	}
	return b, nil
}

// parseRuntimeState takes what crun 1.21 writes (src/libcrun/status.c).
func parseRuntimeState(status, config []byte) (RuntimeState, error) {
	var s struct {
		PID     int    `json:"pid"`
		Cgroup  string `json:"cgroup-path"`
		Rootfs  string `json:"rootfs"`
		Bundle  string `json:"bundle"`
		Created string `json:"created"`
	}
	if err := json.Unmarshal(status, &s); err != nil {
		return RuntimeState{}, fmt.Errorf("the runtime's status: %w", err)
	}
	if s.PID < 0 {
		return RuntimeState{}, errors.New("the runtime's status: a negative process id")
	}
	created, err := time.Parse(time.RFC3339Nano, s.Created)
	if err != nil {
		return RuntimeState{}, fmt.Errorf("the runtime's status: %w", err)
	}
	spec := new(specs.Spec)
	if err := json.Unmarshal(config, spec); err != nil {
		return RuntimeState{}, fmt.Errorf("the runtime's configuration: %w", err)
	}
	return RuntimeState{
		PID: s.PID, CgroupPath: s.Cgroup, Rootfs: s.Rootfs, Bundle: s.Bundle, Created: created, Spec: spec,
	}, nil
}
