package engine

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"
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
	// Spec is the runtime's copy of the specification that it worked from: what is in
	// the file that is to have it, up to 1 MiB.
	Spec []byte
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
	s, err := parseRuntimeStatus(status)
	s.Spec = config
	return s, err
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

// errNotOurs: a container that is not as those of this package are.
var errNotOurs = errors.New("not a container of this kind")

// withoutHooks is an error where crun's copy of the specification has hooks, or cannot be
// read.
func withoutHooks(dir fs.FS) error {
	config, err := readBounded(dir, "config.json")
	if err != nil {
		return err
	}
	if !bytes.Contains(config, []byte("hooks")) {
		return nil // nothing needs decoding
	}
	var spec struct {
		Hooks *struct{} `json:"hooks"`
	}
	if err := json.Unmarshal(config, &spec); err != nil {
		return fmt.Errorf("the runtime's configuration: %w", err)
	}
	if spec.Hooks != nil {
		return fmt.Errorf("%w: it has hooks", errNotOurs)
	}
	return nil
}

// readCgroupPath reads the container's cgroup below the cgroup root out of crun's file
// "status".
func readCgroupPath(dir fs.FS) (string, error) {
	b, err := readBounded(dir, "status")
	if err != nil {
		return "", err
	}
	var s runtimeStatus
	if err := json.Unmarshal(b, &s); err != nil {
		return "", fmt.Errorf("the runtime's status: %w", err)
	}
	return s.Cgroup, nil
}

// runtimeStatus is what is used of crun's file "status" (src/libcrun/status.c of 1.21).
type runtimeStatus struct {
	PID     int    `json:"pid"`
	Cgroup  string `json:"cgroup-path"`
	Rootfs  string `json:"rootfs"`
	Bundle  string `json:"bundle"`
	Created string `json:"created"`
}

// parseRuntimeStatus takes what crun 1.21 writes.
func parseRuntimeStatus(status []byte) (RuntimeState, error) {
	var s runtimeStatus
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
	return RuntimeState{PID: s.PID, CgroupPath: s.Cgroup, Rootfs: s.Rootfs, Bundle: s.Bundle, Created: created}, nil
}
