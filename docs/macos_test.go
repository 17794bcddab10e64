package docs_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/pybox/pybox/vm/vmtest"
)

// step is one step of the checklist.
type step struct {
	number   int
	title    string
	where    string // "", "on a Mac" or "by hand"
	commands []command
}

// command is what a person types, and the lines that have to come, in order.
type command struct {
	text  string
	lines []string
}

var heading = regexp.MustCompile(`^### (\d+)\. (.*?)(?: \((on a Mac|by hand)\))?$`)

// checklist reads the steps of macos.md.
func checklist(t *testing.T) []step {
	t.Helper()
	page, err := os.ReadFile("macos.md")
	if err != nil {
		t.Fatal(err)
	}
	var steps []step
	inside := false
	for _, line := range strings.Split(string(page), "\n") {
		m := heading.FindStringSubmatch(line)
		text, isCommand := strings.CutPrefix(line, "$ ")
		switch {
		case m != nil:
			s := step{title: m[2], where: m[3]}
			fmt.Sscan(m[1], &s.number)
			steps = append(steps, s)
		case line == "```console":
			inside = true
		case line == "```":
			inside = false
		case !inside:
		case isCommand:
			s := &steps[len(steps)-1]
			s.commands = append(s.commands, command{text: text})
		default:
			s := &steps[len(steps)-1]
			c := &s.commands[len(s.commands)-1]
			c.lines = append(c.lines, line)
		}
	}
	return steps
}

func TestChecklistIsInOrder(t *testing.T) {
	steps := checklist(t)
	if len(steps) < 12 {
		t.Fatalf("%d steps", len(steps))
	}
	where := make(map[string]int)
	for i, s := range steps {
		if s.number != i+1 {
			t.Errorf("step %d has the number %d", i+1, s.number)
		}
		if len(s.commands) == 0 {
			t.Errorf("step %d has no command", s.number)
		}
		expects := false
		for _, c := range s.commands {
			expects = expects || len(c.lines) > 0
		}
		if !expects {
			t.Errorf("step %d expects nothing", s.number)
		}
		where[s.where]++
	}
	for _, w := range []string{"", "on a Mac", "by hand"} {
		if where[w] == 0 {
			t.Errorf("no step is marked %q", w)
		}
	}
}

// TestE2EChecklist types the commands of the checklist, all in one shell, and
// holds what comes against the lines that the page says have to come.
func TestE2EChecklist(t *testing.T) {
	b := vmtest.Bundle(t)
	pybox := os.Getenv("PYBOX_TEST_COMMAND")
	if pybox == "" {
		t.Fatal("PYBOX_TEST_COMMAND does not name the pybox command ('make e2e' sets it)")
	}
	clone := fakeClone(t, pybox, b.Dir())
	text, commands := script(checklist(t))

	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	log, err := os.Create(filepath.Join(clone, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.CommandContext(ctx, "sh", "-s")
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = clone, strings.NewReader(text), log, log
	cmd.Env = append(os.Environ(), "HOME="+clone,
		// What step 3 sets, should it not: the checklist ends with a removal.
		"PYBOX_HOME="+filepath.Join(clone, ".pybox-check"), "PYBOX_CACHE="+filepath.Join(clone, ".pybox-check-cache"))
	if err := cmd.Run(); err != nil {
		t.Error(err)
	}
	outputs, err := os.ReadFile(log.Name())
	if err != nil {
		t.Fatal(err)
	}
	compare(t, commands, strings.Split(string(outputs), mark)[1:])
}

// fakeClone is a folder with what the checklist's commands take from a built clone.
// Its path is short: a socket lies below it.
func fakeClone(t *testing.T, pybox, bundle string) string {
	t.Helper()
	clone, err := os.MkdirTemp("/tmp", "pybox-check")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// Whatever the checklist left: its daemon must not stay.
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		stop := exec.CommandContext(ctx, pybox, "vm", "stop", "--force")
		stop.Env = append(os.Environ(), "PYBOX_HOME="+filepath.Join(clone, ".pybox-check"))
		if out, err := stop.CombinedOutput(); err != nil {
			t.Logf("vm stop --force: %v\n%s", err, out)
		}
		if err := os.RemoveAll(clone); err != nil {
			t.Error(err)
		}
	})
	for _, dir := range []string{"bin", ".work"} {
		if err := os.Mkdir(filepath.Join(clone, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for link, target := range map[string]string{"bin/pybox": pybox, ".work/bundle-" + runtime.GOARCH: bundle} {
		if err := os.Symlink(target, filepath.Join(clone, link)); err != nil {
			t.Fatal(err)
		}
	}
	return clone
}

// mark stands in the output before that of each command.
const mark = "\n@@ next command\n"

// script is what a shell reads, and the commands in it.
func script(steps []step) (string, []command) {
	var text strings.Builder
	var commands []command
	for _, s := range steps {
		if s.where == "by hand" || s.where == "on a Mac" && runtime.GOOS != "darwin" {
			continue
		}
		for _, c := range s.commands {
			fmt.Fprintf(&text, "printf '%s'\n%s\n", strings.ReplaceAll(mark, "\n", `\n`), c.text)
			c.text = fmt.Sprintf("step %d: %s", s.number, c.text)
			commands = append(commands, c)
		}
	}
	text.WriteString(":\n") // the shell's own exit code says nothing
	return text.String(), commands
}

func compare(t *testing.T, commands []command, outputs []string) {
	t.Helper()
	if len(outputs) != len(commands) {
		t.Fatalf("%d commands gave %d outputs", len(commands), len(outputs))
	}
	for i, c := range commands {
		if missing := firstMissing(c.lines, outputs[i]); missing != "" {
			t.Errorf("%s\nlacks the line: %s\nin:\n%s", c.text, missing, outputs[i])
		}
	}
}

// firstMissing returns the first of the lines that the output has not, in their
// order, or "". How many blanks stand between words does not matter.
func firstMissing(lines []string, output string) string {
	rest := strings.Split(output, "\n")
next:
	for _, want := range lines {
		parts := strings.Split(strings.Join(strings.Fields(want), " "), "…")
		for i := range parts {
			parts[i] = regexp.QuoteMeta(parts[i])
		}
		pattern := regexp.MustCompile("^" + strings.Join(parts, ".*") + "$")
		for i, line := range rest {
			if pattern.MatchString(strings.Join(strings.Fields(line), " ")) {
				rest = rest[i+1:]
				continue next
			}
		}
		return want
	}
	return ""
}

func TestFirstMissing(t *testing.T) {
	const output = "PyBox receipt · run 1\n\n  Exit code    0\n  Box   removed\nexit code 0\n"
	for want, lines := range map[string][]string{
		"":             {"PyBox receipt · run …", "Exit code 0", "exit code 0"},
		"Exit code 0":  {"Box removed", "Exit code 0"}, // the other way round
		"exit code":    {"exit code"},                  // not all of the line
		"exit code 01": {"exit code 01"},
		"Box.removed":  {"Box.removed"}, // no pattern but …
	} {
		if got := firstMissing(lines, output); got != want {
			t.Errorf("%q: got %q, want %q", lines, got, want)
		}
	}
}
