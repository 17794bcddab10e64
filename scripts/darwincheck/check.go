package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"iter"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
)

const (
	targetOS   = "darwin"
	targetArch = "arm64"
)

// request is what to check: the patterns as "go list" takes them, in dir.
type request struct {
	dir      string
	tags     string
	patterns []string
}

// result is what a check found.
type result struct {
	problems []string // "file:line:column: message", in the order of files
	ours     int      // packages of the main module that were checked in full
	others   int      // packages that were checked by their declarations
	// importers names, for every package that ours import, those that do.
	importers map[string][]string
}

// reached fails when nothing was checked, or nothing that imports must.
func (r *result) reached(must string) error {
	if r.ours == 0 {
		return errors.New("nothing was checked: no package of this module matches")
	}
	if must != "" && len(r.importers[must]) == 0 {
		return fmt.Errorf("none of the %d packages that were checked imports %s: "+
			"are its importers built for %s with cgo, and part of the patterns?", r.ours, must, targetOS)
	}
	return nil
}

// listed is a package as "go list -json" tells of it. Of a package and its tests
// there are several, told apart by ImportPath: "p", "p [p.test]", "p_test [p.test]".
type listed struct {
	ImportPath string
	Dir        string
	GoFiles    []string
	CgoFiles   []string
	Imports    []string
	ImportMap  map[string]string
	Module     *struct {
		Main      bool
		GoVersion string
	}
}

func (p *listed) own() bool { return p.Module != nil && p.Module.Main }

// generated tells whether p is the main package that go makes for a test: its one
// file, which may not exist yet, is in no package's folder.
func (p *listed) generated() bool {
	return strings.HasSuffix(p.ImportPath, ".test") && len(p.GoFiles) == 1 && filepath.IsAbs(p.GoFiles[0])
}

// check lists the packages with all that they depend on, and checks each of them
// once those that it imports are.
func check(ctx context.Context, req request) (*result, error) {
	packages, err := list(ctx, req)
	if err != nil {
		return nil, err
	}
	c := newChecker(req.dir, packages)
	// Every package has its goroutine, most of which wait for others: the
	// semaphore counts those that work.
	group, ctx := errgroup.WithContext(ctx)
	for _, p := range packages {
		group.Go(func() error { return c.check(ctx, p) })
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return c.result(), nil
}

func list(ctx context.Context, req request) ([]*listed, error) {
	args := []string{"list", "-deps", "-test", "-tags", req.tags,
		"-json=ImportPath,Dir,GoFiles,CgoFiles,Imports,ImportMap,Module", "--"}
	cmd := exec.CommandContext(ctx, "go", append(args, req.patterns...)...)
	cmd.Dir = req.dir
	cmd.Env = append(os.Environ(), "GOOS="+targetOS, "GOARCH="+targetArch, "CGO_ENABLED=1")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, fmt.Errorf("go list: %w\n%s", err, stderr.Bytes())
	}
	var packages []*listed
	for d := json.NewDecoder(&stdout); ; {
		p := new(listed)
		if err := d.Decode(p); errors.Is(err, io.EOF) {
			return packages, nil
		} else if err != nil {
			return nil, fmt.Errorf("output of go list: %w", err)
		}
		if !p.generated() {
			packages = append(packages, p)
		}
	}
}

type checker struct {
	base  string // what file names in problems are relative to
	files *token.FileSet
	work  chan struct{} // a slot for each package that is being checked
	byID  map[string]*checked

	mu  sync.Mutex
	out result
}

// checked is a package whose types may be read once done is closed.
type checked struct {
	done  chan struct{}
	types *types.Package
}

func newChecker(dir string, packages []*listed) *checker {
	c := &checker{
		files: token.NewFileSet(),
		work:  make(chan struct{}, runtime.GOMAXPROCS(0)),
		byID:  map[string]*checked{"unsafe": {done: make(chan struct{}), types: types.Unsafe}},
		out:   result{importers: make(map[string][]string)},
	}
	close(c.byID["unsafe"].done)
	c.base, _ = filepath.Abs(dir) // without it, names stay absolute
	for _, p := range packages {
		if p.ImportPath != "unsafe" {
			c.byID[p.ImportPath] = &checked{done: make(chan struct{})}
		}
	}
	return c
}

func (c *checker) check(ctx context.Context, p *listed) error {
	if p.ImportPath == "unsafe" {
		return nil
	}
	for _, path := range p.Imports {
		if path == "C" {
			continue
		}
		dep := c.byID[path]
		if dep == nil {
			return fmt.Errorf("%s imports %s, which go list did not name", p.ImportPath, path)
		}
		select {
		case <-dep.done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	select {
	case c.work <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-c.work }()

	self := c.byID[p.ImportPath]
	pkg, problems, err := c.typeCheck(p)
	if err != nil {
		return err
	}
	self.types = pkg
	close(self.done)
	c.record(p, problems)
	return nil
}

// typeCheck reads and checks one package whose imports are checked.
func (c *checker) typeCheck(p *listed) (*types.Package, []error, error) {
	var problems []error
	var files []*ast.File
	for _, name := range slices.Concat(p.GoFiles, p.CgoFiles) {
		file, err := parser.ParseFile(c.files, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
		if file == nil { // not even read
			return nil, nil, err
		}
		if err != nil {
			problems = append(problems, err)
		}
		files = append(files, file)
	}
	conf := types.Config{
		FakeImportC:      true,
		IgnoreFuncBodies: !p.own(),
		Sizes:            types.SizesFor("gc", targetArch),
		Importer:         importer{c.byID, p.ImportMap},
		Error:            func(err error) { problems = append(problems, err) },
	}
	if p.Module != nil && p.Module.GoVersion != "" {
		conf.GoVersion = "go" + p.Module.GoVersion
	}
	var info types.Info
	if p.own() {
		info.Types = make(map[ast.Expr]types.TypeAndValue)
	}
	// The error is the first of those that Error was told.
	pkg, _ := conf.Check(strings.Fields(p.ImportPath)[0], c.files, files, &info)
	if p.own() && len(problems) == 0 {
		problems = c.unseen(p, &info)
	}
	return pkg, problems, nil
}

// unseen returns what of a package could not be checked since it has types of the
// C side: go/types takes every use of those for right.
func (c *checker) unseen(p *listed, info *types.Info) []error {
	if len(p.CgoFiles) > 0 {
		return []error{fmt.Errorf("%s:1:1: imports \"C\": what it does with that cannot be checked here",
			filepath.Join(p.Dir, p.CgoFiles[0]))}
	}
	var problems []error
	for expr, tv := range info.Types {
		if !tv.IsBuiltin() && hasInvalid(tv.Type) {
			problems = append(problems, types.Error{Fset: c.files, Pos: expr.Pos(),
				Msg: "has a type of the C side, so its use cannot be checked here"})
		}
	}
	return problems
}

// hasInvalid tells whether t is made of a type that go/types could not know. It
// does not look into named types: their fields and methods are expressions of
// their own where they are used.
func hasInvalid(t types.Type) bool {
	switch t := t.(type) {
	case nil:
		return false
	case *types.Basic:
		return t.Kind() == types.Invalid
	case *types.Named:
		return t.Underlying() == types.Typ[types.Invalid] || anyInvalid(t.TypeArgs().Types())
	case *types.Alias:
		return hasInvalid(types.Unalias(t))
	case *types.Pointer:
		return hasInvalid(t.Elem())
	case *types.Slice:
		return hasInvalid(t.Elem())
	case *types.Array:
		return hasInvalid(t.Elem())
	case *types.Chan:
		return hasInvalid(t.Elem())
	case *types.Map:
		return hasInvalid(t.Key()) || hasInvalid(t.Elem())
	case *types.Tuple:
		for v := range t.Variables() {
			if hasInvalid(v.Type()) {
				return true
			}
		}
		return false
	case *types.Signature:
		return hasInvalid(t.Params()) || hasInvalid(t.Results())
	}
	// What is left is written out in our own code, part by part.
	return false
}

func anyInvalid(all iter.Seq[types.Type]) bool {
	for t := range all {
		if hasInvalid(t) {
			return true
		}
	}
	return false
}

// importer finds a package among the checked ones, as one importing package
// names it: vendored packages and those under test have other names.
type importer struct {
	byID  map[string]*checked
	names map[string]string
}

func (i importer) Import(path string) (*types.Package, error) {
	if id, ok := i.names[path]; ok {
		path = id
	}
	if p := i.byID[path]; p != nil && p.types != nil {
		return p.types, nil
	}
	return nil, fmt.Errorf("package %s was not checked", path)
}

func (c *checker) record(p *listed, problems []error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, err := range problems {
		text := strings.TrimPrefix(err.Error(), c.base+string(filepath.Separator))
		c.out.problems = append(c.out.problems, text)
	}
	if !p.own() {
		c.out.others++
		return
	}
	c.out.ours++
	for _, path := range p.Imports {
		c.out.importers[path] = append(c.out.importers[path], p.ImportPath)
	}
}

// result returns what was found. What a package and its variant for tests share
// is told once.
func (c *checker) result() *result {
	slices.SortFunc(c.out.problems, cmp.Compare[string])
	c.out.problems = slices.Compact(c.out.problems)
	return &c.out
}
