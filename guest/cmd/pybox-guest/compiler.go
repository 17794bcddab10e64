package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"

	"github.com/pybox/pybox/guest/bytecode"
	"github.com/pybox/pybox/guest/fetch"
	"github.com/pybox/pybox/host/compile"
	"github.com/pybox/pybox/host/version"
	"github.com/pybox/pybox/vm"
)

// newCompiler makes what compiles byte code, and says where that is kept. Nothing
// is started before something has to be compiled.
func newCompiler(log *slog.Logger) (bytecode.Compiler, string, error) {
	cache, err := fetch.CacheDir()
	if err != nil {
		return nil, "", err
	}
	c := compile.New(compile.Options{
		Driver: newDriver(filepath.Join(cache, "acceleration.json"), log), HostVersion: version.Number, Log: log,
	})
	return c, filepath.Join(cache, "bytecode"), nil
}

// lineWriter writes lines of progress to w, each after clear.
func lineWriter(w io.Writer, clear func()) func(string) {
	return func(line string) {
		clear()
		fmt.Fprintf(w, "           %s\n", line)
	}
}

// explainCompile says what to do where byte code cannot be compiled here.
func explainCompile(err error) error {
	switch {
	case errors.Is(err, bytecode.ErrArch):
		return fmt.Errorf("%w; give --compile-with a bundle for this machine, or leave byte code out with --no-bytecode", err)
	case errors.Is(err, vm.ErrHost), errors.Is(err, compile.ErrFailed):
		return fmt.Errorf("%w\nwithout byte code the bundle works too, only slower: --no-bytecode", err)
	}
	return err
}
