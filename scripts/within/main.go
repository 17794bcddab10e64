//go:build unix

// Command within runs a command, and ends it with all that it started when it
// takes too long. It is what timeout(1) of GNU coreutils does, which macOS lacks.
//
//	within SECONDS COMMAND [ARGS]
//
// The command leads a process group of its own. When its time is over, or within
// itself is asked to end, the whole group gets SIGTERM, and SIGKILL when the
// command has not ended 20 s later. Its exit code is the command's, 128+n after
// signal n, 124 when the time was over, and 125 when the command could not start.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"syscall"
	"time"
)

const (
	exitOver    = 124
	exitFailure = 125
	grace       = 20 * time.Second
)

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: within SECONDS COMMAND [ARGS]")
		os.Exit(exitFailure)
	}
	seconds, err := strconv.ParseFloat(os.Args[1], 64)
	if err != nil || seconds <= 0 || seconds > 1e6 {
		fmt.Fprintf(os.Stderr, "within: %q is no number of seconds\n", os.Args[1])
		os.Exit(exitFailure)
	}
	code, err := run(time.Duration(seconds*float64(time.Second)), grace, os.Args[2:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "within:", err)
	}
	os.Exit(code)
}

// run returns the exit code of within.
func run(limit, grace time.Duration, command []string) (int, error) {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(stop)

	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return exitFailure, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()

	over := time.NewTimer(limit)
	defer over.Stop()
	select {
	case err := <-ended:
		return exitCode(err)
	case <-over.C:
		endGroup(cmd.Process.Pid, ended, grace)
		return exitOver, nil
	case <-stop:
		return exitCode(endGroup(cmd.Process.Pid, ended, grace))
	}
}

// endGroup ends a process group and returns how its leader ended.
func endGroup(leader int, ended <-chan error, grace time.Duration) error {
	// A group whose members are all gone is no error worth telling.
	_ = syscall.Kill(-leader, syscall.SIGTERM)
	late := time.NewTimer(grace)
	defer late.Stop()
	var err error
	gone := false
	select {
	case err = <-ended:
		gone = true
	case <-late.C:
	}
	// Also when the leader went in time: what it started may have stayed.
	_ = syscall.Kill(-leader, syscall.SIGKILL)
	if !gone {
		err = <-ended
	}
	return err
}

func exitCode(err error) (int, error) {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0, nil
	case !errors.As(err, &exit):
		return exitFailure, err
	}
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal()), nil
	}
	return exit.ExitCode(), nil
}
