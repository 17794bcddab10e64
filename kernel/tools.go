package kernel

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// probeTimeout bounds each question to a tool.
const probeTimeout = 20 * time.Second

// tool is something that a build needs on the host, and the Debian package that
// has it.
type tool struct {
	program string // found in PATH; or
	header  string // a C header that the host's compiler finds
	pkg     string
}

func (t tool) name() string {
	if t.program != "" {
		return t.program
	}
	return t.header
}

// needs lists what a build of an architecture uses beside a POSIX userland.
func needs(a arch) []tool {
	list := []tool{
		{program: "make", pkg: "make"},
		{program: "gcc", pkg: "gcc"}, // the host's, for kbuild's own programs
		{program: "ar", pkg: "binutils"},
		{program: "flex", pkg: "flex"},
		{program: "bison", pkg: "bison"},
		{program: "bc", pkg: "bc"},
		{program: "gzip", pkg: "gzip"},
		{program: "tar", pkg: "tar"},
		{program: "xz", pkg: "xz-utils"},
		{header: "sys/types.h", pkg: "libc6-dev"},
	}
	if c := a.cross(); c != "" {
		suffix := "-" + strings.TrimSuffix(strings.ReplaceAll(c, "_", "-"), "-")
		list = append(list,
			tool{program: c + "gcc", pkg: "gcc" + suffix},
			tool{program: c + "ld", pkg: "binutils" + suffix})
	}
	if a.name == "amd64" {
		list = append(list,
			tool{program: "lz4", pkg: "lz4"},
			tool{header: "gelf.h", pkg: "libelf-dev"}) // objtool
	}
	return list
}

// Missing is what CheckTools did not find.
type Missing struct {
	// Tools are names of programs and C headers, Packages the Debian packages
	// that have them, sorted.
	Tools, Packages []string
}

// Error implements error: what is missing, and the line that installs it. It
// matches ErrTools.
func (m *Missing) Error() string {
	return fmt.Sprintf("%v: %s\non Debian and Ubuntu install them with\n  sudo apt-get install %s",
		ErrTools, strings.Join(m.Tools, ", "), strings.Join(m.Packages, " "))
}

// Unwrap makes errors.Is find ErrTools.
func (m *Missing) Unwrap() error { return ErrTools }

// CheckTools looks for everything that a build of the architecture needs from
// this host. It returns a *Missing when something is not there.
func CheckTools(ctx context.Context, archName string) error {
	a, err := findArch(archName)
	if err != nil {
		return err
	}
	m := &Missing{}
	for _, t := range needs(a) {
		if !t.found(ctx) {
			m.Tools = append(m.Tools, t.name())
			m.Packages = append(m.Packages, t.pkg)
		}
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("check tools: %w", err)
	}
	if len(m.Tools) == 0 {
		return nil
	}
	slices.Sort(m.Packages)
	m.Packages = slices.Compact(m.Packages)
	return m
}

func (t tool) found(ctx context.Context) bool {
	if t.program != "" {
		_, err := exec.LookPath(t.program)
		return err == nil
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	c := exec.CommandContext(ctx, "gcc", "-fsyntax-only", "-x", "c", "-")
	c.Stdin = strings.NewReader("#include <" + t.header + ">\n")
	return c.Run() == nil
}

// toolVersions asks the tools whose version shows in a kernel's bytes.
func toolVersions(ctx context.Context, a arch) (Tools, error) {
	if err := CheckTools(ctx, a.name); err != nil {
		return Tools{}, err
	}
	var t Tools
	var err error
	if t.Compiler, err = versionOf(ctx, a.cross()+"gcc"); err != nil {
		return Tools{}, err
	}
	if t.Linker, err = versionOf(ctx, a.cross()+"ld"); err != nil {
		return Tools{}, err
	}
	if a.name == "amd64" {
		t.Compressor, err = versionOf(ctx, "lz4")
	}
	return t, err
}

// versionOf is the first line of `program --version`.
func versionOf(ctx context.Context, program string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, program, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("ask %s for its version: %w", program, err)
	}
	line, _, _ := strings.Cut(string(out), "\n")
	if line = strings.Map(printable, strings.TrimSpace(line)); line == "" {
		return "", fmt.Errorf("ask %s for its version: it said nothing", program)
	}
	return line, nil
}
