package main

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

func TestOutputThatFails(t *testing.T) {
	for _, args := range [][]string{{"version"}, {"--help"}, {"vm", "--help"}} {
		var errs bytes.Buffer
		if code := run(args, full{}, &errs); code != exitFailed || !strings.Contains(errs.String(), "no space left") {
			t.Errorf("%v: exit %d, %q", args, code, errs.String())
		}
	}
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{{"frob"}, {"vm", "frob"}, {"help", "frob"}, {"help", "vm", "frob"}, {"vm", "start", "x"}, {"--frob"}, {"vm", "stop", "--timeout", "9h"}, {"vm", "logs", "-n", "-1"}} {
		var out, errs bytes.Buffer
		if code := run(args, &out, &errs); code != exitUsage || !strings.HasPrefix(errs.String(), "pybox: ") || out.Len() != 0 {
			t.Errorf("%v: exit %d, stdout %q, stderr %q; want %d and a sentence", args, code, out.String(), errs.String(), exitUsage)
		}
	}
}
