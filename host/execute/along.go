package execute

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"time"
	"unicode/utf8"

	agentapi "github.com/pybox/pybox/agent/api"
	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/config"
	"github.com/pybox/pybox/host/inputs"
	"github.com/pybox/pybox/host/policy"
	"github.com/pybox/pybox/host/units"
)

const (
	// maxInputs bounds the files and folders that are taken along, by whatever
	// config.toml: the program is one of those that a box takes.
	maxInputs = agentapi.MaxInputs - 1
	// maxSmall is what an input may have that goes inside the request, and
	// maxSmalls what those have together.
	maxSmall  = 16 << 10
	maxSmalls = 256 << 10
)

// takeAlong finds what --input names, and refuses more than the run can have.
func (x *execution) takeAlong() (err error) {
	if len(x.Inputs) == 0 {
		return nil
	}
	p := inputs.Program{Name: x.job.program.name, Info: x.job.program.info}
	x.job.inputs, err = inputs.Find(x.ctx, x.Inputs, p, inputs.Bounds{Files: maxInputs, Bytes: config.MaxFilesBytes})
	if err != nil {
		return refuse("--input: %w", err)
	}
	return x.fits()
}

// fits holds what is taken along to what the run asks for. What the VM's owner allows
// is another matter, which the daemon decides.
func (x *execution) fits() error {
	set := x.job.inputs
	l, err := x.atMost()
	if err != nil {
		return refuse("%w", err)
	}
	names := 0
	for _, i := range set.Items {
		if names += len(i.Name); names > agentapi.MaxNames {
			return refuse("--input: the names of %d files and folders have more than %v together", len(set.Items), units.Size(agentapi.MaxNames))
		}
		if i.Bytes > api.MaxStdinBytes {
			return refuse("--input: %q has %v: %w", i.Name, units.Size(i.Bytes), tooLarge("a file", api.MaxStdinBytes))
		}
	}
	switch n := int64(len(set.Items)); {
	case n > l.Files:
		return x.raise(fmt.Sprintf("%d files and folders are more than the %d of this run", n, l.Files),
			"--max-files", fmt.Sprint(n), "files", policy.Ask{Files: &n})
	case set.Bytes > l.FilesBytes:
		return x.raise(fmt.Sprintf("%v are more than the %v of this run", units.Size(set.Bytes), units.Size(l.FilesBytes)),
			"--max-files-bytes", mebibytes(set.Bytes), "files_bytes", policy.Ask{FilesBytes: &set.Bytes})
	case set.Bytes > l.MemoryBytes:
		return x.raise(fmt.Sprintf("%v are more than the box's memory of %v, which they are part of", units.Size(set.Bytes), units.Size(l.MemoryBytes)),
			"--memory", mebibytes(2*set.Bytes), "memory", policy.Ask{MemoryBytes: &set.Bytes})
	}
	return nil
}

// atMost are the limits of the run as far as it asks for them and by their defaults;
// what is above a ceiling is not found here.
func (x *execution) atMost() (policy.Limits, error) {
	l, err := widest().Resolve(x.job.imageName(), x.job.ask)
	if err != nil {
		return l, err
	}
	l.MemoryBytes = math.MaxInt64
	if p, err := x.Host.Policy(); err == nil { // it knows the images
		if known, err := p.Resolve(x.job.imageName(), x.job.ask); err == nil {
			l.MemoryBytes = known.MemoryBytes
		}
	}
	return l, nil
}

// raise refuses inputs and says how they could be taken along: by a flag, and perhaps a
// ceiling.
func (x *execution) raise(what, flag, value, key string, ask policy.Ask) error {
	p, err := x.Host.Policy()
	if err == nil {
		_, err = p.Resolve(x.job.imageName(), ask)
	}
	if errors.Is(err, policy.ErrCeiling) {
		return refuse("--input: %s: it would take %s %s, and %w: '[ceilings] %s' in config.toml is that, and counts after 'pybox vm restart'", what, flag, value, err, key)
	}
	return refuse("--input: %s: %s %s allows them", what, flag, value)
}

// mebibytes is n as a flag takes it, rounded up.
func mebibytes(n int64) string { return fmt.Sprintf("%dMiB", (n+1<<20-1)>>20) }

// sendInputs sends what is taken along to the daemon, but for what is small enough for
// the request itself.
func (x *execution) sendInputs() (all []api.InputFile, err error) {
	set := x.job.inputs
	if set == nil {
		return nil, nil
	}
	x.display.wait("Sending the files", time.Now())
	x.job.sums = make([]string, len(set.Items))
	smalls := int64(0)
	for n, i := range set.Items {
		f := api.InputFile{Source: api.Source{Name: i.Name}, Executable: i.Executable, Folder: i.Folder}
		switch {
		case i.Folder:
		case i.Bytes <= maxSmall && smalls+i.Bytes <= maxSmalls:
			smalls += i.Bytes
			err = x.takeIn(n, &f.Source)
		default:
			err = x.store(n, &f.Source)
		}
		if err != nil {
			x.forget(storedOf(all))
			return nil, err
		}
		all = append(all, f)
	}
	return all, nil
}

// takeIn puts a file into the request.
func (x *execution) takeIn(n int, to *api.Source) error {
	r, err := x.job.inputs.Open(n)
	if err != nil {
		return refuse("--input: %w", err)
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	if err != nil {
		return refuse("--input: %w", err)
	}
	sum := sha256.Sum256(b)
	x.job.sums[n] = hex.EncodeToString(sum[:])
	if utf8.Valid(b) {
		to.Text = new(string(b))
	} else {
		to.Base64 = new(base64.StdEncoding.EncodeToString(b))
	}
	return nil
}

// store has the daemon store a file.
func (x *execution) store(n int, to *api.Source) error {
	r, err := x.job.inputs.Open(n)
	if err != nil {
		return refuse("--input: %w", err)
	}
	defer r.Close()
	sum := sha256.New()
	f, err := x.Host.StoreFile(x.ctx, io.TeeReader(r, sum))
	switch {
	case r.Err() != nil:
		return refuse("--input: %w", r.Err()) // whatever the daemon made of it
	case err != nil:
		return fmt.Errorf("sending %q: %w", to.Name, err)
	}
	to.File, x.job.sums[n] = f.File, hex.EncodeToString(sum.Sum(nil))
	if want := x.job.inputs.Items[n].Bytes; f.Bytes != want || f.SHA256 != x.job.sums[n] {
		x.forget([]string{f.File})
		return fmt.Errorf("sending %q: %d bytes were sent, and the daemon has %d with another digest", to.Name, want, f.Bytes)
	}
	return nil
}

// storedOf are the ids of those that the daemon has stored.
func storedOf(all []api.InputFile) (ids []string) {
	for _, f := range all {
		if f.File != "" {
			ids = append(ids, f.File)
		}
	}
	return ids
}

// forgetWait bounds the forgetting of files, which the daemon does by itself in time.
const forgetWait = 5 * time.Second

// forget tells the daemon that nobody needs these files any more.
func (x *execution) forget(ids []string) {
	if len(ids) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(x.ctx), forgetWait)
	defer cancel()
	for _, id := range ids {
		var p *api.Problem
		if err := x.Host.ForgetFile(ctx, id); err != nil && !errors.As(err, &p) {
			return // nobody listens
		}
	}
}
