package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/pybox/pybox/guest/build"
	"github.com/pybox/pybox/guest/bundle"
	"github.com/pybox/pybox/kernel"
)

// builtKernel completes a kernel that is no ready-made one: a folder of mkkernel's
// says all about it, and a file needs its version told. Only a kernel that is known to
// have PyBox's configuration passes for PyBox's.
func builtKernel(o *build.Options) error {
	if st, err := os.Stat(o.Kernel); err != nil || !st.IsDir() {
		if o.KernelVersion == "" {
			return usageError{errors.New("--kernel-version is missing: which version is the kernel?")}
		}
		o.KernelKind = bundle.KernelCustom
		return nil // what is no file either is told when it is read
	}
	if o.KernelVersion != "" {
		return usageError{errors.New("--kernel-version goes with a kernel that is a file: a folder of mkkernel's has it in meta.json")}
	}
	r, err := kernel.Open(o.Kernel)
	if err != nil {
		return fmt.Errorf("--kernel %s is no folder that mkkernel made: %w", o.Kernel, err)
	}
	if r.Meta.Arch != o.Arch {
		return usageError{fmt.Errorf("the kernel in %s is for %.20q and --arch is %s", o.Kernel, r.Meta.Arch, o.Arch)}
	}
	if o.KernelKind = bundle.KernelOwn; len(r.Meta.Changes) > 0 {
		o.KernelKind = bundle.KernelCustom
	}
	o.Kernel, o.KernelVersion, o.KernelConfigSHA256 = r.Kernel(), r.Meta.Version, r.Meta.ConfigSHA256
	return nil
}
