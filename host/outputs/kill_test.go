package outputs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pybox/pybox/host/receipt"
)

// TestMain lets this binary be a command that is killed at a step of its own.
func TestMain(m *testing.M) {
	if os.Getenv("PYBOX_TEST_ROLE") == "deliver" {
		os.Exit(child())
	}
	os.Exit(m.Run())
}

const killedAt = "PYBOX_TEST_KILLED_AT"

// child delivers what is in left to a folder or an archive and kills itself before the
// step whose number it is told.
func child() int {
	at, err := strconv.Atoi(os.Getenv(killedAt))
	if err != nil {
		return 3
	}
	m := means{mark: unmarked{}, plain: os.Getenv("PYBOX_TEST_PLAIN") == "true"}
	step := 0
	m.before = func(string) error {
		if step++; step == at {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // until it is
		}
		return nil
	}
	open := m.openFolder
	if os.Getenv("PYBOX_TEST_ARCHIVE") == "true" {
		open = m.openArchive
	}
	p, err := open(os.Args[1])
	if err == nil {
		err = errors.Join(p.Deliver(context.Background(), delivery(left)), p.Close())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// killed runs a child in the present folder, and tells whether it was killed.
func killed(t *testing.T, at int, plain, archive bool, path string) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe", path)
	if self, err := os.Executable(); err == nil {
		cmd.Path = self
	}
	cmd.Env = append(os.Environ(), "PYBOX_TEST_ROLE=deliver", fmt.Sprint(killedAt, "=", at), fmt.Sprint("PYBOX_TEST_PLAIN=", plain), fmt.Sprint("PYBOX_TEST_ARCHIVE=", archive))
	out, err := cmd.CombinedOutput()
	var x *exec.ExitError
	switch {
	case err == nil:
		return false
	case errors.As(err, &x) && x.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL && ctx.Err() == nil:
		return true
	}
	t.Fatalf("step %d: %v, %s", at, err, out)
	return false
}

// visible is what there is without stages.
func visible(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := seen(t, dir)
	maps.DeleteFunc(all, func(name, _ string) bool { return strings.HasPrefix(name, stagePrefix) })
	return all
}

// without leaves out what is below a folder, and gives that too.
func without(all map[string]string, folder string) (rest, under map[string]string) {
	rest, under = map[string]string{}, map[string]string{}
	for name, text := range all {
		switch below, ok := strings.CutPrefix(name, folder+"/"); {
		case !ok:
			rest[name] = text
		case below != "":
			under[below] = text
		}
	}
	return rest, under
}

// TestKill kills a command before every single step of its own. What was there before
// is as it was; of what came there is nothing or all, but between two of several moves,
// and then the next command does the rest of them. What was complete is somewhere.
func TestKill(t *testing.T) {
	inMemory(t)
	for _, plain := range []bool{false, true} {
		for name, c := range map[string]struct {
			dir     string
			archive bool
			// root is the folder that things are made in; what is what becomes of left
			// there, if that is known.
			root string
			what map[string]string
		}{
			"new":      {dir: "out", root: ".", what: below("out", left)},
			"existing": {dir: "mine", root: "mine", what: left},
			"archive":  {dir: "out.tar", root: ".", archive: true},
		} {
			t.Run(fmt.Sprintf("%s, plain %t", name, plain), func(t *testing.T) {
				steps, halves, kepts, finished := 0, 0, 0, 0
				for at := 1; ; at++ {
					t.Chdir(t.TempDir())
					write(t, "mine/own", "own")
					before := visible(t, c.root)
					if !killed(t, at, plain, c.archive, c.dir) {
						steps = at - 1
						break
					}
					after := visible(t, c.root)
					for name, text := range before {
						if after[name] != text {
							t.Fatalf("step %d: %s was %q, is %q", at, name, text, after[name])
						}
						delete(after, name)
					}
					// Without a rename that refuses, a folder is made before it gets what it has.
					if plain && onlyEmpty(after) {
						clear(after)
					}
					whole := c.archive && len(after) == 1 || maps.Equal(after, c.what)
					if len(after) != 0 && !whole {
						if halves++; name == "new" || name == "archive" {
							t.Fatalf("step %d: there is a half: %q", at, names(after))
						}
					}
					// The next one.
					next := c.dir
					if c.archive {
						next = "."
					}
					p, err := usual().openFolder(next)
					if err != nil {
						t.Fatal(err)
					}
					p.Close()
					repaired := seen(t, c.root) // with stages: there may be none
					for name := range before {
						delete(repaired, name)
					}
					rest, kept := without(repaired, keptPrefix+"5319e024")
					if plain && onlyEmpty(rest) {
						clear(rest)
					}
					restWhole := c.archive && len(rest) == 1 || maps.Equal(rest, c.what)
					keptWhole := c.archive && len(kept) == 1 || maps.Equal(kept, c.what)
					said := strings.Join(p.Repaired, "\n")
					switch {
					case restWhole && len(kept) == 0 && len(after) == len(rest) && said == "":
					case restWhole && len(kept) == 0 && len(after) > 0 && len(p.Repaired) == 1 && strings.HasSuffix(said, `left into "mine": the rest of it is there now too`):
						finished++
					case plain && name == "existing" && partOf(rest, c.what) && maps.Equal(union(kept, rest), c.what) && len(p.Repaired) == 1 && strings.Contains(said, "is there already"):
						// a folder that was made, and did not get what it has
					case len(rest) == 0 && keptWhole && len(p.Repaired) == 1 && strings.Contains(said, "run 5319e024"):
						kepts++
					case len(rest) == 0 && len(kept) == 0 && len(after) == 0 && said == "":
					default:
						t.Fatalf("step %d: after the repair %q and %q, before %q; said %q", at, names(rest), names(kept), names(after), p.Repaired)
					}
				}
				t.Logf("killed at %d steps; %d times between moves, %d times something was kept, %d times the rest followed", steps, halves, kepts, finished)
				if steps < 15 || kepts == 0 || name == "existing" && (halves == 0 || finished == 0) {
					t.Error("that is not every case")
				}
			})
		}
	}
}

// partOf tells whether all of some is in all.
func partOf(some, all map[string]string) bool {
	for name, text := range some {
		if have, ok := all[name]; !ok || have != text {
			return false
		}
	}
	return true
}

// onlyEmpty tells whether there is but one folder, an empty one.
func onlyEmpty(all map[string]string) bool {
	return len(all) == 1 && strings.HasSuffix(names(all)[0], "/")
}

// inMemory has the folders of a test in memory, where that is possible: syncing is most
// of what they take.
func inMemory(t *testing.T) {
	if dir, err := os.MkdirTemp("/dev/shm", "pybox-test-"); err == nil {
		t.Cleanup(func() { os.RemoveAll(dir) })
		t.Setenv("TMPDIR", dir)
	}
}

// TestKillThenDeliver: the next command's own results get their place, or where the
// killed one's have that by now, a folder of their own. Nothing is lost either way.
func TestKillThenDeliver(t *testing.T) {
	inMemory(t)
	for at := 1; ; at++ {
		t.Chdir(t.TempDir())
		write(t, "mine/own", "own")
		if !killed(t, at, false, false, "mine") {
			break
		}
		begun := len(visible(t, "mine")) > 1
		second := delivery(left)
		second.Run = "second"
		_, err := deliver(t, usual(), "mine", second)
		var k *KeptError
		switch {
		case begun && (!errors.As(err, &k) || k.Path != "mine/"+keptPrefix+"second"):
			t.Fatalf("step %d: %v", at, err)
		case begun:
			expect(t, k.Path, left)
		case err != nil:
			t.Fatalf("step %d: %v", at, err)
		}
		rest, _ := without(seen(t, "mine"), keptPrefix+"5319e024")
		rest, _ = without(rest, keptPrefix+"second")
		delete(rest, keptPrefix+"5319e024/")
		delete(rest, keptPrefix+"second/")
		if !maps.Equal(rest, union(left, map[string]string{"own": "own"})) {
			t.Fatalf("step %d: %q", at, names(rest))
		}
	}
}

// TestEachStepFails: where a step fails there is nothing of it or all, and after an
// error the error says where.
func TestEachStepFails(t *testing.T) {
	inMemory(t)
	for _, plain := range []bool{false, true} {
		for _, archive := range []bool{false, true} {
			for _, dir := range []string{"out", "mine"} {
				if archive && dir == "mine" {
					continue
				}
				kinds := map[string]int{}
				for at := 1; at < 1000; at++ {
					t.Chdir(t.TempDir())
					write(t, "mine/own", "own")
					step, failed := 0, ""
					m := means{mark: unmarked{}, plain: plain, before: func(what string) error {
						if step++; step == at {
							failed = what
							return &fs.PathError{Op: "test", Path: what, Err: syscall.ENOSPC}
						}
						return nil
					}}
					open := m.openFolder
					if archive {
						open = m.openArchive
					}
					p, err := open(dir)
					if err == nil {
						err = p.Deliver(t.Context(), delivery(left))
						p.Close()
					}
					if failed == "" {
						break
					}
					kinds[judge(t, at, failed, dir, archive, err)]++
				}
				t.Logf("plain %t, archive %t, %s: %v", plain, archive, dir, kinds)
				if kinds["nothing"] < 10 || kinds["kept"] == 0 || kinds["all"] == 0 {
					t.Errorf("%v: that is not every case", kinds)
				}
			}
		}
	}
}

// judge tells what became of a delivery, and holds the error to it.
func judge(t *testing.T, at int, failed, dir string, archive bool, err error) string {
	t.Helper()
	complete := func(path string) bool {
		st, err := os.Stat(path)
		if err != nil {
			return false
		}
		if archive {
			return st.Size() > 700<<10
		}
		got := seen(t, path)
		for name := range got {
			if name == "own" || strings.HasPrefix(name, ".pybox") || strings.HasPrefix(name, "pybox-results") {
				delete(got, name)
			}
		}
		return maps.Equal(got, left)
	}
	if got, err := os.ReadFile("mine/own"); err != nil || string(got) != "own" {
		t.Fatalf("%d, %s: what was there is gone", at, failed)
	}
	var kept *KeptError
	var half *HalfError
	switch {
	case err == nil:
		if !complete(dir) {
			t.Errorf("%d, %s: no error, and not all is there: %q", at, failed, names(seen(t, ".")))
		}
		return "all"
	case errors.As(err, &kept):
		if !complete(kept.Path) || dir == "out" && complete(dir) || dir == "mine" && complete(dir) {
			t.Errorf("%d, %s: kept in %q, and there is %q", at, failed, kept.Path, names(seen(t, ".")))
		}
		return "kept"
	case errors.As(err, &half):
		if half.Whole && (!complete(half.Path) || complete(dir)) {
			t.Errorf("%d, %s: whole in %q, and there is %q", at, failed, half.Path, names(seen(t, ".")))
		}
		if !half.Whole {
			got := union(visible(t, dir), seen(t, half.Path))
			delete(got, "own")
			if !maps.Equal(got, left) {
				t.Errorf("%d, %s: here and in %q there is %q", at, failed, half.Path, names(got))
			}
		}
		return "half"
	}
	if !errors.Is(err, syscall.ENOSPC) || strings.Contains(err.Error(), ".pybox-output-") {
		t.Errorf("%d, %s: %v", at, failed, err)
	}
	if dir == "out" {
		if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%d, %s: %v", at, failed, err)
		}
	} else if got := visible(t, dir); !maps.Equal(got, map[string]string{"own": "own"}) {
		t.Errorf("%d, %s: %q", at, failed, names(got))
	}
	return "nothing"
}

// TestTwoFailures: a move fails, and taking back what was moved fails too. The next
// command puts it right.
func TestTwoFailures(t *testing.T) {
	inMemory(t)
	t.Chdir(t.TempDir())
	write(t, "mine/own", "own")
	moves := 0
	m := means{mark: unmarked{}, before: func(what string) error {
		if strings.HasPrefix(what, "move ") {
			if moves++; moves == 4 || moves == 5 { // one is the probe
				return syscall.EIO
			}
		}
		return nil
	}}
	_, err := deliver(t, m, "mine", delivery(left))
	var half *HalfError
	if !errors.As(err, &half) || !errors.Is(err, syscall.EIO) || !strings.HasPrefix(half.Path, "mine/"+stagePrefix) || half.Whole {
		t.Fatalf("%v", err)
	}
	both := union(visible(t, "mine"), seen(t, half.Path))
	if delete(both, "own"); !maps.Equal(both, left) {
		t.Errorf("here and in %q there is %q", half.Path, names(both))
	}
	if got := visible(t, "mine"); len(got) <= 1 {
		t.Errorf("nothing was left behind: %q", names(got))
	}
	p, err := OpenFolder("mine")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	expect(t, "mine", union(map[string]string{"own": "own"}, left))
	if len(p.Repaired) != 1 {
		t.Errorf("%q", p.Repaired)
	}
}

// TestWholeHalf: a name is taken, and what came cannot get a folder of its own: it is
// said where all of it lies.
func TestWholeHalf(t *testing.T) {
	inMemory(t)
	halves, kepts := 0, 0
	for at := 1; at < 1000; at++ {
		t.Chdir(t.TempDir())
		write(t, "mine/own", "own")
		write(t, "mine/a.csv", "mine")
		step, failed := 0, ""
		m := means{mark: unmarked{}, before: func(what string) error {
			if step++; step == at {
				failed = what
				return syscall.EIO
			}
			return nil
		}}
		p, err := m.openFolder("mine")
		if err != nil {
			continue
		}
		err = p.Deliver(t.Context(), delivery(left))
		p.Close()
		if failed == "" {
			break
		}
		var half *HalfError
		var kept *KeptError
		switch {
		case errors.As(err, &half):
			if halves++; !half.Whole {
				t.Errorf("%s: %v", failed, err)
			}
			expect(t, half.Path, left)
		case errors.As(err, &kept):
			kepts++
			expect(t, kept.Path, left)
			continue
		default:
			continue
		}
		p, err = OpenFolder("mine")
		if err != nil {
			t.Fatal(err)
		}
		p.Close()
		expect(t, "mine", union(map[string]string{"own": "own", "a.csv": "mine"}, below(keptPrefix+"5319e024", left)))
		if len(p.Repaired) != 1 || !strings.HasSuffix(p.Repaired[0], `that lies in "mine/`+keptPrefix+`5319e024"`) {
			t.Errorf("%q", p.Repaired)
		}
	}
	if halves == 0 || kepts < 2 { // also where syncing fails after the renaming
		t.Errorf("%d halves, %d kept: that is not every case", halves, kepts)
	}
}

// TestPersonsOwn: what a person did with what had been moved is theirs, and stays
// where it is; and what is said of it is true.
func TestPersonsOwn(t *testing.T) {
	inMemory(t)
	rest := map[string]string{"d/": "", "z": left["z"]}
	for name, c := range map[string]struct {
		change func(t *testing.T)
		after  map[string]string // beside what is in rest
		kept   map[string]string // the rest of it
		says   string
	}{
		"work in a folder": {func(t *testing.T) {
			write(t, "mine/b/thesis.tex", "years of work")
			write(t, "mine/b/c/deep.tex", "years of work")
			write(t, "mine/b/run.sh", "edited by its owner")
		}, map[string]string{"a.csv": left["a.csv"], "b/": "", "b/run.sh*": "edited by its owner", "b/c/": "", "b/c/empty": "", "b/thesis.tex": "years of work", "b/c/deep.tex": "years of work"}, nil,
			"the rest of it is there now too"},
		"changed": {func(t *testing.T) { write(t, "mine/a.csv", "changed") },
			union(below("b", map[string]string{"run.sh*": "#!", "c/": "", "c/empty": ""}), map[string]string{"a.csv": "changed"}), nil,
			`the rest of it is there now too; changed or gone since it was put there: "a.csv"`},
		"gone": {func(t *testing.T) {
			if err := errors.Join(os.Remove("mine/a.csv"), os.RemoveAll("mine/b")); err != nil {
				t.Fatal(err)
			}
		}, nil, nil, `the rest of it is there now too; changed or gone since it was put there: "a.csv", "b"`},
		"taken": {func(t *testing.T) { write(t, "mine/z", "mine") },
			union(below("b", map[string]string{"run.sh*": "#!", "c/": "", "c/empty": ""}), map[string]string{"a.csv": left["a.csv"], "z": "mine"}), rest,
			`the rest of it lies in "mine/pybox-results-5319e024", since "mine/z" is there already`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			killedBefore(t, "d")
			c.change(t)
			p, err := OpenFolder("mine")
			if err != nil {
				t.Fatal(err)
			}
			p.Close()
			want := union(c.after, map[string]string{"own": "own"})
			if c.kept == nil {
				want = union(want, rest)
			} else {
				want = union(want, below(keptPrefix+"5319e024", c.kept))
			}
			expect(t, "mine", want)
			if len(p.Repaired) != 1 || !strings.HasSuffix(p.Repaired[0], `run 5319e024 left into "mine": `+c.says) {
				t.Errorf("said %q", p.Repaired)
			}
		})
	}
}

// TestRemovalCutOff: a stage whose removal was cut off is none that has something.
func TestRemovalCutOff(t *testing.T) {
	inMemory(t)
	for at := 1; ; at++ {
		t.Chdir(t.TempDir())
		killedHalf(t)
		m := usual()
		step, failed, begun := 0, false, false
		m.before = func(string) error {
			if !begun {
				return nil
			}
			if step++; step == at {
				failed = true
				return syscall.EIO
			}
			return nil
		}
		f, err := m.folder("mine")
		if err != nil {
			t.Fatal(err)
		}
		s := &stage{at: f, name: stageIn(t, "mine")}
		if err := s.take(); err != nil {
			t.Fatal(err)
		}
		begun = true
		_ = s.remove()
		f.close()
		if !failed {
			break
		}
		// Of what is removed as a whole half is gone by now.
		if half, err := filepath.Glob("mine/" + stagePrefix + "*/" + filesName + "/z"); err != nil || len(half) == 1 && os.Remove(half[0]) != nil {
			t.Fatal(half, err)
		}
		p, err := OpenFolder("mine")
		if err != nil {
			t.Fatal(err)
		}
		p.Close()
		if journal := at <= 2; journal != (len(p.Repaired) == 1) {
			t.Errorf("step %d: said %q", at, p.Repaired)
		}
	}
}

// TestOtherDevice: the number of the device is another one than it was.
func TestOtherDevice(t *testing.T) {
	inMemory(t)
	for _, path := range []string{markName, journalName} {
		t.Chdir(t.TempDir())
		killedHalf(t)
		name := filepath.Join("mine", stageIn(t, "mine"), path)
		b, err := os.ReadFile(name)
		if err != nil || !strings.Contains(string(b), `"dev":`) {
			t.Fatal(string(b), err)
		}
		write(t, name, strings.ReplaceAll(string(b), `"dev":`, `"dev":7`))
		p, err := OpenFolder("mine")
		if err != nil {
			t.Fatal(err)
		}
		p.Close()
		expect(t, "mine", union(map[string]string{"own": "own"}, left))
		if len(p.Repaired) != 1 || !strings.HasSuffix(p.Repaired[0], "the rest of it is there now too") {
			t.Errorf("%s: %q", path, p.Repaired)
		}
	}
}

// TestBeginningOfAMark: it is removed where it is one of that very folder.
func TestBeginningOfAMark(t *testing.T) {
	inMemory(t)
	for n, goes := range []bool{true, true, true, true, true, false, false, false} {
		t.Chdir(t.TempDir())
		dir := "mine/" + stagePrefix + "0123456789abcdef"
		file := dir + "/" + markName + newSuffix
		write(t, file, "")
		st, err := os.Stat(dir)
		if err != nil {
			t.Fatal(err)
		}
		id := identityOf(st)
		whole := fmt.Sprintf(`{"stage":%q,"ino":%d,"dev":%d}`, filepath.Base(dir), id.Ino, id.Dev)
		text := []string{"", "{", whole[:20], whole, strings.Replace(whole, `"dev":`, `"dev":7`, 1), "a person's note", whole + "x", `{"stage":"x"`}[n]
		if n == 6 {
			text = strings.Replace(whole, `"ino":`, `"ino":7`, 1)
		}
		write(t, file, text)
		p, err := OpenFolder("mine")
		if err != nil {
			t.Fatal(err)
		}
		p.Close()
		if _, err := os.Stat(file); (err != nil) != goes || goes != (len(p.Repaired) == 0) {
			t.Errorf("%q: %v, said %q", text, err, p.Repaired)
		}
	}
}

// TestNoLocks: where nothing tells whether somebody is at work, everything is left
// alone, and said; and results are delivered all the same.
func TestNoLocks(t *testing.T) {
	inMemory(t)
	t.Chdir(t.TempDir())
	killedHalf(t)
	before := seen(t, "mine")
	m := usual()
	m.before = func(what string) error {
		if what == "lock" {
			return syscall.ENOTSUP
		}
		return nil
	}
	p, err := m.openFolder("mine")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	expect(t, "mine", before)
	if len(p.Repaired) != 1 || !strings.Contains(p.Repaired[0], "looks like what a killed command left") || !strings.Contains(p.Repaired[0], "no locks: look at it yourself") {
		t.Errorf("%q", p.Repaired)
	}
	if err := p.Deliver(t.Context(), delivery(map[string]string{"other": "x"})); err != nil {
		t.Error(err)
	}
	expect(t, "mine", union(before, map[string]string{"other": "x"}))
}

// TestNotOurs: what only looks like something of ours is left alone, and so is what
// another command is busy with.
func TestNotOurs(t *testing.T) {
	inMemory(t)
	t.Chdir(t.TempDir())
	killedHalf(t)
	ours := stageIn(t, "mine")
	// A copy.
	if out, err := exec.Command("cp", "-a", "mine", "copy").CombinedOutput(); err != nil {
		t.Fatal(err, string(out))
	}
	// A person's own folders.
	if err := os.MkdirAll("mine/"+stagePrefix+"archive", 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, "mine/"+stagePrefix+"x/"+markName+newSuffix, "a person's note")
	// A stage without a mark, and a link to a real one.
	write(t, "mine/"+stagePrefix+"0000000000000000/precious", "mine")
	if err := os.Symlink(ours, "mine/"+stagePrefix+"1111111111111111"); err != nil {
		t.Fatal(err)
	}
	write(t, "mine/"+stagePrefix+"2222222222222222", "a file")
	before, copied := seen(t, "mine"), seen(t, "copy")
	p, err := OpenFolder("copy")
	if err != nil {
		t.Fatal(err)
	}
	p.Close()
	expect(t, "copy", copied)
	if len(p.Repaired) != 1 || !strings.Contains(p.Repaired[0], fmt.Sprintf("%q looks like what a killed command left", "copy/"+ours)) {
		t.Errorf("%q", p.Repaired)
	}
	// Somebody is at it.
	busy, err := usual().folder("mine")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.close()
	s := &stage{at: busy, name: ours}
	if err := s.take(); err != nil {
		t.Fatal(err)
	}
	p, err = OpenFolder("mine")
	if err != nil {
		t.Fatal(err)
	}
	p.Close()
	expect(t, "mine", before)
	if len(p.Repaired) != 1 || !strings.Contains(p.Repaired[0], stagePrefix+"0000000000000000") {
		t.Errorf("%q", p.Repaired)
	}
	s.close()
	// Nobody is any more, and one of the files was changed meanwhile.
	write(t, "mine/a.csv", "changed by its owner")
	p, err = OpenFolder("mine")
	if err != nil {
		t.Fatal(err)
	}
	p.Close()
	got := seen(t, "mine")
	if got["a.csv"] != "changed by its owner" || got[stagePrefix+"0000000000000000/precious"] != "mine" || got["own"] != "own" || len(p.Repaired) != 2 {
		t.Errorf("%q, said %q", got, p.Repaired)
	}
	if _, err := os.Lstat(filepath.Join("mine", ours)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the stage: %v", err)
	}
}

// TestDamagedJournal: what cannot be understood is said and left alone.
func TestDamagedJournal(t *testing.T) {
	inMemory(t)
	for _, journal := range []string{"", "{", `{"run": "../x"}`, `{"run":"a","entries":[{"name":"../../own"}]}`, `{"run":"a","entries":[{"name":""}]}`, strings.Repeat(" ", maxFile+1)} {
		t.Chdir(t.TempDir())
		killedHalf(t)
		write(t, filepath.Join("mine", stageIn(t, "mine"), journalName), journal)
		before := seen(t, "mine")
		p, err := OpenFolder("mine")
		if err != nil {
			t.Fatal(err)
		}
		p.Close()
		expect(t, "mine", before)
		if len(p.Repaired) != 1 || !strings.Contains(p.Repaired[0], "could not be repaired") {
			t.Errorf("%.50q: %q", journal, p.Repaired)
		}
	}
}

// killedBefore has a command killed between two moves to the folder "mine": all that
// comes before name was moved, and name was not.
func killedBefore(t *testing.T, name string) {
	t.Helper()
	for at := 1; ; at++ {
		if err := os.RemoveAll("mine"); err != nil {
			t.Fatal(err)
		}
		write(t, "mine/own", "own")
		if !killed(t, at, false, false, "mine") {
			t.Fatal("it was never killed there")
		}
		_, there := os.Lstat("mine/b")
		_, err := os.Lstat("mine/" + name)
		if there == nil && err != nil {
			return
		}
	}
}

// killedHalf has a command killed between two moves to the folder "mine".
func killedHalf(t *testing.T) {
	t.Helper()
	write(t, "mine/own", "own")
	for at := 1; killed(t, at, false, false, "mine"); at++ {
		if _, err := os.Lstat("mine/a.csv"); err == nil {
			if _, err := os.Lstat("mine/z"); err == nil {
				t.Fatal("it was done")
			}
			return
		}
		if err := os.RemoveAll("mine"); err != nil {
			t.Fatal(err)
		}
		write(t, "mine/own", "own")
	}
	t.Fatal("it was never killed between two moves")
}

func stageIn(t *testing.T, dir string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, stagePrefix+"????????????????"))
	if err != nil || len(found) != 1 {
		t.Fatalf("%q, %v", found, err)
	}
	return filepath.Base(found[0])
}

// TestInterrupted: what ends the reading ends it, and nothing is there.
func TestInterrupted(t *testing.T) {
	t.Chdir(t.TempDir())
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("interrupted")
	d := delivery(left)
	open, n := d.Open, 0
	d.Open = func(ctx context.Context, f receipt.File) (io.ReadCloser, error) {
		if n++; n == 3 {
			cancel(why)
			return nil, context.Cause(ctx)
		}
		return open(ctx, f)
	}
	p, err := OpenFolder("out")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := p.Deliver(ctx, d); !errors.Is(err, why) {
		t.Errorf("%v", err)
	}
	expect(t, ".", nil)
}
