package repair

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	agentapi "github.com/pybox/pybox/agent/api"
	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/engine"
	"github.com/pybox/pybox/host/inputs"
	"github.com/pybox/pybox/host/policy"
	"github.com/pybox/pybox/host/repair/answer"
	"github.com/pybox/pybox/host/repair/loop"
	"github.com/pybox/pybox/host/repair/provider"
	"github.com/pybox/pybox/host/twins"
	"github.com/pybox/pybox/host/units"
)

const (
	// maxRounds and maxTokens bound what can be asked for.
	maxRounds = 100
	maxTokens = 1 << 40
	// maxStdin bounds the standard input, which is held in memory.
	maxStdin = 16 << 20
	// maxGoal bounds the goal and what is expected, which the model is told.
	maxGoal = 16 << 10
	// maxName bounds a model's name.
	maxName = 200
)

// job is a command that was understood.
type job struct {
	settings        loop.Settings
	provider        *provider.Provider
	output, history *place // nil: none
}

// prepare checks all that can be checked before anything runs or is asked.
func (c Command) prepare(ctx context.Context, w World) (*job, error) {
	p := &preparation{c: c, w: w, ctx: ctx, job: &job{}}
	for _, step := range []func() error{p.words, p.budgets, p.program, p.check, p.limits, p.takeAlong, p.stdin, p.places, p.who, p.secrets} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return p.job, nil
}

type preparation struct {
	c    Command
	w    World
	ctx  context.Context
	job  *job
	info fs.FileInfo   // of the program's file; nil: none
	most policy.Limits // of a run
}

// words takes the goal, what is expected, and the environment.
func (p *preparation) words() error {
	c, s := p.c, &p.job.settings
	for flag, text := range map[string]string{"--goal": c.Goal, "--expect": c.Expect} {
		if len(text) > maxGoal || !utf8.ValidString(text) {
			return refuse("%s: want text of at most %v", flag, units.Size(maxGoal))
		}
	}
	if len(c.Model) > maxName {
		return refuse("--model: want a name of at most %d bytes", maxName)
	}
	s.Goal, s.ModelName, s.Job.Args, s.Job.Image = c.Goal, c.Model, c.Args, c.Image
	if c.Expect != "" {
		s.Expect = &c.Expect
	}
	for _, e := range c.Env {
		if name, _, _ := strings.Cut(e, "="); provider.IsKey(name) {
			return refuse("--env: %s is the key of a model's server, which no box is given", name)
		}
		if !strings.Contains(e, "=") {
			value, ok := p.w.LookupEnv(e)
			if !ok {
				return refuse("--env: %.80q is not set here: write it as NAME=value", e)
			}
			e += "=" + value
		}
		s.Job.Env = append(s.Job.Env, e)
	}
	return nil
}

// budgets reads what may be spent.
func (p *preparation) budgets() error {
	c, s := p.c, &p.job.settings
	if c.Rounds < 1 || c.Rounds > maxRounds {
		return refuse("--max-rounds: %d is not from 1 to %d", c.Rounds, maxRounds)
	}
	if c.Tokens < 1 || c.Tokens > maxTokens {
		return refuse("--token-budget: %d is not from 1 to %d", c.Tokens, int64(maxTokens))
	}
	s.Rounds, s.Tokens, s.Wall = c.Rounds, c.Tokens, DefaultBudget
	if err := readTime("--budget", c.Budget, &s.Wall); err != nil {
		return err
	}
	s.Model, s.Run = s.Wall, s.Wall
	if err := readTime("--model-budget", c.ModelBudget, &s.Model); err != nil {
		return err
	}
	return readTime("--run-budget", c.RunBudget, &s.Run)
}

func readTime(flag, value string, to *time.Duration) error {
	if value == "" {
		return nil
	}
	d, err := units.ParseDuration(value)
	if err != nil {
		return refuse("%s: %w", flag, err)
	}
	if d <= 0 {
		return refuse("%s: want more than 0", flag)
	}
	*to = d
	return nil
}

// program reads the program that is to be repaired.
func (p *preparation) program() (err error) {
	f := &p.job.settings.Job.Program
	if p.c.File == "-" {
		if p.c.Stdin == "-" {
			return refuse("--stdin: FILE and --stdin are both \"-\", and there is one standard input: give one of them as a file")
		}
		f.Name = api.DefaultProgram
		f.Data, err = source("standard input", p.w.Stdin)
		return err
	}
	*f, p.info, err = readSource(p.c.File)
	return err
}

// check reads the program that judges the other one.
func (p *preparation) check() error {
	if p.c.Check == "" {
		return nil
	}
	if p.c.Check == "-" {
		return refuse("--check: want a file, not \"-\"")
	}
	f, _, err := readSource(p.c.Check)
	if err != nil {
		return fmt.Errorf("--check: %w", err)
	}
	var names twins.Set
	names.Add(p.job.settings.Job.Program.Name)
	if _, ok := names.Add(f.Name); !ok || f.Name == p.job.settings.Job.Program.Name {
		return refuse("--check: it has the name of the program, %q, beside which it is run: rename one of them", f.Name)
	}
	p.job.settings.Check = &f
	return nil
}

// readSource reads a program's file.
func readSource(path string) (f engine.File, info fs.FileInfo, err error) {
	file, err := os.Open(path)
	if err != nil {
		return f, nil, usageError{err} // it names the path
	}
	defer file.Close()
	if info, err = file.Stat(); err != nil {
		return f, nil, usageError{err}
	}
	if info.IsDir() {
		return f, nil, refuse("%s is a folder, want a file", path)
	}
	f.Name = api.DefaultProgram
	if info.Mode().IsRegular() {
		f.Name = filepath.Base(path)
	}
	if err := agentapi.CheckProgramName(f.Name); err != nil {
		return f, nil, refuse("%s: %w", path, err)
	}
	f.Data, err = source(path, file)
	return f, info, err
}

// source reads a program's text with its bound.
func source(name string, r io.Reader) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, answer.MaxCode+1))
	switch {
	case err != nil:
		return nil, refuse("reading the program: %w", err)
	case len(b) > answer.MaxCode:
		return nil, refuse("%s has more than the %v that a program to repair may have", name, units.Size(answer.MaxCode))
	case !utf8.Valid(b) || bytes.IndexByte(b, 0) >= 0:
		return nil, refuse("%s is not a text in UTF-8", name)
	case len(bytes.TrimSpace(b)) == 0:
		return nil, refuse("%s is empty: there is nothing to repair", name)
	}
	return b, nil
}

// limits reads the limits of each run, and holds them to the owner's.
func (p *preparation) limits() error {
	l, ask := &p.job.settings.Job.Limits, policy.Ask{}
	if p.c.Timeout != "" {
		d, err := units.ParseDuration(p.c.Timeout)
		if err != nil {
			return refuse("--timeout: %w", err)
		}
		ask.Timeout, l.TimeoutMS = &d, new(float64(d)/float64(time.Millisecond))
	}
	if p.c.Memory != "" {
		n, err := units.ParseSize(p.c.Memory)
		if err != nil {
			return refuse("--memory: %w", err)
		}
		ask.MemoryBytes = new(int64(n))
		l.MemoryBytes = ask.MemoryBytes
	}
	if p.c.CPUs != "" {
		n, err := strconv.ParseFloat(p.c.CPUs, 64)
		if err != nil || math.IsNaN(n) || math.IsInf(n, 0) {
			return refuse("--cpus: %.40q is not a number of CPUs, such as 0.5 or 2", p.c.CPUs)
		}
		ask.CPUs, l.CPUs = &n, &n
	}
	if p.c.PIDs != "" {
		n, err := strconv.ParseInt(p.c.PIDs, 10, 64)
		if err != nil {
			return refuse("--pids: %.40q is not a whole number of processes, such as 32", p.c.PIDs)
		}
		ask.PIDs, l.PIDs = &n, &n
	}
	return p.allowed(ask)
}

// allowed asks the owner's policy, as it is for a VM that starts now: a running one may
// have another, which decides.
func (p *preparation) allowed(ask policy.Ask) error {
	owner, err := p.w.Host.Policy()
	if err != nil {
		return err
	}
	image := p.job.settings.Job.Image
	if image == "" {
		image = api.DefaultImage
	}
	if names := p.w.Host.Images(); len(names) > 0 && !slices.Contains(names, image) {
		return refuse("--image: there is no image %.80q; there is %s", image, strings.Join(names, ", "))
	}
	if p.most, err = owner.Resolve(image, ask); err != nil {
		return usageError{err}
	}
	return nil
}

// takeAlong reads what --input names.
func (p *preparation) takeAlong() error {
	if len(p.c.Inputs) == 0 {
		return nil
	}
	prog := inputs.Program{Name: p.job.settings.Job.Program.Name, Info: p.info}
	set, err := inputs.Find(p.ctx, p.c.Inputs, prog, inputs.Bounds{Files: int(p.most.Files), Bytes: p.most.FilesBytes})
	if err != nil {
		return refuse("--input: %w", err)
	}
	defer set.Close()
	var names twins.Set
	if c := p.job.settings.Check; c != nil {
		names.Add(c.Name)
	}
	for n, i := range set.Items {
		c := p.job.settings.Check
		if _, ok := names.Add(i.Name); !ok || c != nil && (i.Name == c.Name || strings.HasPrefix(i.Name, c.Name+"/")) {
			return refuse("--input: %q has the name of the check: give it another one with PATH=NAME", i.Name)
		}
		b, err := readInput(set, n)
		if err != nil {
			return refuse("--input: %w", err)
		}
		p.job.settings.Job.Inputs = append(p.job.settings.Job.Inputs, engine.File{Name: i.Name, Data: b, Executable: i.Executable, Folder: i.Folder})
	}
	return nil
}

func readInput(set *inputs.Set, n int) ([]byte, error) {
	if set.Items[n].Folder {
		return nil, nil
	}
	r, err := set.Open(n)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}

// stdin reads the program's standard input.
func (p *preparation) stdin() error {
	if p.c.Stdin == "" {
		return nil
	}
	r := p.w.Stdin
	if p.c.Stdin != "-" {
		f, err := os.Open(p.c.Stdin)
		if err != nil {
			return refuse("--stdin: %w", err)
		}
		defer f.Close()
		r = f
	}
	b, err := io.ReadAll(io.LimitReader(r, maxStdin+1))
	if err == nil && len(b) > maxStdin {
		err = fmt.Errorf("it has more than the %v that fit here", units.Size(maxStdin))
	}
	if err != nil {
		return refuse("--stdin: %w", err)
	}
	p.job.settings.Job.Stdin = b
	return nil
}

// places finds where results go, before anything was spent on them.
func (p *preparation) places() (err error) {
	switch "-" {
	case p.c.Output:
		return refuse("--output: want a new file, not \"-\": the program goes to standard output without --output")
	case p.c.History:
		return refuse("--history: want a new file, not \"-\": --json prints all rounds")
	}
	mode := fs.FileMode(0o644)
	if p.info != nil {
		mode = p.info.Mode().Perm()
	}
	if p.c.Output != "" {
		if p.job.output, err = newPlace(p.c.Output, mode); err != nil {
			return refuse("--output: %w", err)
		}
	}
	if p.c.History == "" {
		return nil
	}
	if p.job.history, err = newPlace(p.c.History, 0o600); err != nil {
		return refuse("--history: %w", err)
	}
	if p.job.output != nil && p.job.output.same(p.job.history) {
		return refuse("--history: it is the file of --output: give one of them another name")
	}
	return nil
}

func (p *preparation) getenv(name string) string {
	s, _ := p.w.LookupEnv(name)
	return s
}

// secrets refuses keys in all that a model is told, that a box is given, or that is kept.
func (p *preparation) secrets() error {
	c, s := p.c, p.job.settings
	type text struct {
		where string
		data  []byte
	}
	texts := []text{{"FILE", s.Job.Program.Data}, {"--stdin", s.Job.Stdin}}
	if s.Check != nil {
		texts = append(texts, text{"--check", s.Check.Data}, text{"--check", []byte(s.Check.Name)})
	}
	for _, f := range s.Job.Inputs {
		texts = append(texts, text{"--input", f.Data}, text{"--input", []byte(f.Name)})
	}
	for where, words := range map[string][]string{
		"FILE": {s.Job.Program.Name}, "--goal": {c.Goal}, "--expect": {c.Expect}, "--env": s.Job.Env, "an argument": c.Args, "--output": {c.Output},
		"--model": {c.Model}, "--base-url": {p.job.provider.Server()},
	} {
		for _, w := range words {
			texts = append(texts, text{where, []byte(w)})
		}
	}
	for _, k := range provider.Keys(p.getenv) {
		for _, t := range texts {
			if bytes.Contains(t.data, []byte(k.Value)) {
				return refuse("%s: the value of %s is in it, which no model is told and no box is given: take it out, or unset %s if it is no secret", t.where, k.Variable, k.Variable)
			}
		}
	}
	return nil
}

// who finds the model's provider.
func (p *preparation) who() (err error) {
	p.job.provider, err = provider.Choose(provider.Wish{Provider: p.c.Provider, BaseURL: p.c.BaseURL, Model: p.c.Model, Getenv: p.getenv})
	if errors.Is(err, provider.ErrUsage) {
		return usageError{err}
	}
	return err
}
