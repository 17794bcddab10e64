//go:build linux

package main

import (
	"errors"
	"strings"
)

func archChecks() []check { return nil }

func archChildren() map[string]child { return nil }

// kaslr reads what the kernel said of it at boot.
func kaslr() error {
	log, err := kernelLog()
	if err != nil {
		return err
	}
	if !strings.Contains(log, "KASLR enabled") {
		return errors.New("the kernel's log has no line KASLR enabled")
	}
	return nil
}
