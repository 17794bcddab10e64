package runner

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// BenchmarkStart compares the CPU time of an empty program, all children included,
// without the runner, with its source and with its byte code. They take turns, so
// that all see the same machine.
func BenchmarkStart(b *testing.B) {
	code := readBytecode(b, compileAs(b, source, source))
	var plain, fromSource, compiled sample
	for b.Loop() {
		plain.add(startPlain(b))
		fromSource.add(startHooked(b))
		compiled.add(startHooked(b, code))
	}
	b.ReportMetric(plain.median(), "plain-ms")
	b.ReportMetric(fromSource.median(), "source-ms")
	b.ReportMetric(compiled.median(), "bytecode-ms")
}

type sample []time.Duration

func (s *sample) add(d time.Duration) { *s = append(*s, d) }

// median is in milliseconds.
func (s sample) median() float64 {
	slices.Sort(s)
	return float64(s[len(s)/2]) / float64(time.Millisecond)
}

func startPlain(b *testing.B) time.Duration {
	b.Helper()
	work := workFolder(b)
	if err := os.WriteFile(filepath.Join(work, "main.py"), nil, 0o644); err != nil {
		b.Fatal(err)
	}
	cmd := pythonIn(b, work, baseEnv, "main.py")
	if err := cmd.Run(); err != nil {
		b.Skip(err)
	}
	return cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
}

func startHooked(b *testing.B, code ...Bytecode) time.Duration {
	b.Helper()
	box := boxSpec{env: baseEnv, args: []string{"main.py"}, code: code}.mustStart(b)
	box.start("main.py", "")
	box.finish()
	<-box.gone
	return box.cmd.ProcessState.UserTime() + box.cmd.ProcessState.SystemTime()
}

// BenchmarkGo measures from the go to the program's first byte and to its reported
// end.
func BenchmarkGo(b *testing.B) {
	var first, end sample
	for b.Loop() {
		box := newBox(b, baseEnv, "main.py")
		box.write("main.py", "import os\nos.write(1, b'x')\nos.read(0, 1)\n")
		start := time.Now()
		if err := box.conn.Go(box.ctx()); err != nil {
			b.Fatal(err)
		}
		box.out.wait(b, "x")
		first.add(time.Since(start))
		_ = box.in.Close()
		start = time.Now()
		box.ended()
		end.add(time.Since(start))
	}
	b.ReportMetric(first.median(), "go-to-byte-ms")
	b.ReportMetric(end.median(), "eof-to-end-ms")
}

// TestInitMemory bounds what the waiting init has for itself: pages that it shares
// with nobody and has written.
func TestInitMemory(t *testing.T) {
	b := newBox(t, baseEnv, "main.py")
	b.start("main.py", "print('alive')\ninput()")
	b.out.wait(t, "alive")
	rollup, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(b.cmd.Process.Pid), "smaps_rollup"))
	if err != nil {
		t.Skip(err)
	}
	kib := map[string]int{}
	for line := range strings.Lines(string(rollup)) {
		if f := strings.Fields(line); len(f) == 3 && f[2] == "kB" {
			kib[f[0]], _ = strconv.Atoi(f[1])
		}
	}
	t.Logf("Rss %d KiB, Pss %d, written alone %d", kib["Rss:"], kib["Pss:"], kib["Private_Dirty:"])
	if rss, dirty := kib["Rss:"], kib["Private_Dirty:"]; rss == 0 || rss > 40<<10 || dirty > 8<<10 {
		t.Errorf("%d KiB resident, %d KiB written alone", rss, dirty)
	}
	b.in.WriteString("\n")
	b.finish()
}
