package show

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pybox/pybox/guest/bundle"
	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/receipt"
	"github.com/pybox/pybox/host/receipt/receipttest"
)

var update = flag.Bool("update", false, "write the golden files anew")

func ptr[T any](v T) *T { return &v }

func signalled9() *receipt.Exit { return &receipt.Exit{Signal: ptr(9)} }

// killed is a run that was ended after its 2 s, throttled or not.
func killed(how, by string, exit *receipt.Exit, evidence ...string) *receipt.Receipt {
	r := receipttest.Ended("5319e024", receipt.Ending{How: how, By: by, Evidence: evidence}, exit)
	r.Run.GuestElapsedMS = ptr(2003.4)
	if exit == nil {
		r.Unknown = append(r.Unknown, receipt.Unknown{Fact: "observed.engine.exit", Why: "the box's PID 1 did not report it"})
	}
	return r
}

func refusal(reason string, evidence ...string) *receipt.Receipt {
	r := receipttest.Ended("5319e024", receipt.Ending{How: receipt.HowRefused, By: receipt.ByAgent, Reason: reason, Evidence: evidence}, nil)
	r.Run.GuestElapsedMS = nil
	r.Observed.Engine.SettingsChecked, r.Observed.Engine.Checks = false, []receipt.Check{}
	return r
}

const reported = "the box's PID 1 reports that signal 9 (killed) ended the main process"

// receipts has every ending, and what else is shown when it occurs.
func receipts() map[string]*receipt.Receipt {
	all := map[string]*receipt.Receipt{
		"exited":  receipttest.Example(),
		"vm_lost": receipttest.Lost(),
		"deadline": killed(receipt.HowDeadline, receipt.ByAgent, signalled9(), reported,
			"the agent killed the box at 14.2s, when the program's 2s were over"),
		"box_timer": killed(receipt.HowBoxTimer, receipt.ByPID1, signalled9(), reported,
			"the guest's PID 1 records that its timer killed the box at 15.2s"),
		"memory": killed(receipt.HowMemory, receipt.ByKernelOOM, signalled9(), reported,
			"the kernel's log says that it killed process 312, the main process, since its cgroup was out of memory"),
		"guest_memory": killed(receipt.HowSignal, receipt.ByKernelOOM, nil,
			"the kernel's log says that it killed process 312, the main process, since the guest as a whole was out of memory"),
		"signal": killed(receipt.HowSignal, receipt.ByUnknown, signalled9(), reported,
			"nobody in PyBox has recorded a kill: who sent the signal is not known"),
		"crash": killed(receipt.HowSignal, receipt.ByUnknown, &receipt.Exit{Signal: ptr(11)},
			"the box's PID 1 reports that signal 11 (segmentation fault) ended the main process"),
		"cancelled":        killed(receipt.HowCancelled, receipt.ByClient, signalled9(), "host: interrupted by the client", "the agent killed the box at 13.1s"),
		"cancelled_queued": queued(),
		"stopped":          killed(receipt.HowCancelled, receipt.ByHost, signalled9(), "host: the VM is being stopped"),
		"unknown": killed(receipt.HowUnknown, receipt.ByUnknown, nil,
			"the box's PID 1 was gone before it reported how the main process ended"),
		"unknown_agent":       killed(receipt.HowUnknown, receipt.ByAgent, nil, "the agent killed the box at 13s: its shim was lost"),
		"refused_settings":    refusal(receipt.ReasonSettings, "pids.max (/sys/fs/cgroup/pybox/boxes/5319e024/pids.max) is max, want 32"),
		"refused_interpreter": refusal(receipt.ReasonInterpreter, "python3 did not connect within 10s"),
		"refused_files":       refusal(receipt.ReasonFiles, "writing data.csv: no space left on device"),
		"refused_timer":       refusal(receipt.ReasonTimer, "PID 1 did not answer within 1s"),
		"refused_engine":      refusal(receipt.ReasonEngine, "crun: creating the container: cgroup: device or resource busy"),
		"everything":          receipttest.Example(),
		"partial":             receipttest.Example(),
		"files":               receipttest.WithFiles(),
		"not_asked":           receipttest.Example(),
		"ready":               receipttest.Example(),
		"preimported":         receipttest.Example(),
	}
	all["ready"].Observed.Engine.Box.WaitedMS = ptr(12_345.0)
	imported := all["preimported"]
	imported.Observed.Engine.Box.WaitedMS, imported.Observed.Engine.Box.Preimported = ptr(0.4), []string{"numpy", "pandas"}
	imported.Cleanup = receipt.Cleanup{Status: receipt.CleanupIncomplete, Confirmations: []receipt.Confirmation{{Source: "mounts", Detail: "/x is still mounted"}}}
	all["not_asked"].Program.Files = []receipt.File{{Name: "out.csv", Bytes: 1234, Reason: receipt.FileNotAsked}, {Name: "tmp", Folder: true, Reason: receipt.FileNotAsked}}
	d := all["deadline"]
	d.Observed.Kernel.Periods, d.Observed.Kernel.ThrottledPeriods, d.Observed.Kernel.ThrottledUsec = ptr(int64(3)), ptr(int64(2)), ptr(int64(1_004_000))
	d.Observed.VM.Acceleration = "tcg"
	m := all["memory"].Observed
	*m.Kernel.MemoryPeakBytes, *m.Kernel.OOM, *m.Kernel.OOMKill = 128<<20, 3, 1
	all["refused_settings"].Observed.Engine.Checks = []receipt.Check{
		{Setting: "memory.max", Expected: "134217728", Found: "134217728", Source: "/sys/fs/cgroup/pybox/boxes/5319e024/memory.max", OK: true},
		{Setting: "pids.max", Expected: "32", Found: "max", Source: "/sys/fs/cgroup/pybox/boxes/5319e024/pids.max"},
		{Setting: "uid_map", Expected: "0 100000 65536", Found: "", Source: "/proc/312/uid_map"},
	}
	for name, exit := range map[string]*receipt.Exit{"vm_lost_code": {Code: ptr(0)}, "vm_lost_signal": signalled9()} {
		r := receipttest.Lost()
		r.Observed.Engine.Exit = exit
		r.Unknown = slices.DeleteFunc(r.Unknown, func(u receipt.Unknown) bool { return u.Fact == "observed.engine.exit" })
		all[name] = r
	}
	everything(all["everything"])
	partial(all["partial"])
	return all
}

// queued is a run that was given up while it waited for room.
func queued() *receipt.Receipt {
	r := receipttest.Lost()
	r.Ending = receipt.Ending{How: receipt.HowCancelled, By: receipt.ByClient, Evidence: []string{"host: interrupted by the client"}}
	r.Cleanup = receipt.Cleanup{Status: receipt.CleanupNone, Confirmations: []receipt.Confirmation{}}
	return r
}

// everything gives a run that exited all that can be shown of one.
func everything(r *receipt.Receipt) {
	r.Run.QueuedMS, r.Run.GuestElapsedMS = ptr(3210.0), ptr(83_000.0)
	r.Configured.Limits = receipt.Limits{MemoryBytes: 1536 << 20, PIDs: 128, CPUs: 1.5, TimeoutMS: 90_000, TimerMS: 1000, StdoutBytes: 1 << 20, StderrBytes: 1 << 20}
	r.Observed.Engine.Exit.Code = ptr(3)
	r.Ending.Evidence = []string{"the box's PID 1 reports that the main process exited with code 3",
		"the kernel killed 1 process(es) of this box for want of memory (oom_kill); none is known to be the main process"}
	k := &r.Observed.Kernel
	*k.OOMKill, *k.OOM, *k.PIDsMaxHits, *k.Periods, *k.ThrottledPeriods, *k.ThrottledUsec = 1, 4, 1, 90, 40, 21_500_000
	r.Observed.VM.ShellEnabled, r.Observed.VM.KernelKind = true, bundle.KernelDebianCloud
	r.Program.Stdout.Bytes, r.Program.Stdout.KeptBytes = ptr(int64(10_000_001)), 1<<20
	r.Program.Stderr.Bytes, r.Program.Stderr.KeptBytes = ptr(int64(1)), 1
	r.Configured.Inputs = []receipt.Input{{Name: "d", Folder: true}, {Name: "d/in.csv", Bytes: 1 << 20, SHA256: ptr(strings.Repeat("7", 64))}}
	r.Configured.Limits.Files, r.Configured.Limits.FilesBytes = 32, 32<<20
	r.Program.Files = []receipt.File{
		{Name: "evil\x1b]52;c;QQ==\x07\u202egnp.exe", Bytes: 1, Reason: receipt.FileNotKept},
		{Name: "plot.png", Bytes: 20_480, SHA256: ptr(strings.Repeat("8", 64)), Returned: true},
		{Name: `ba\x1bk`, Reason: receipt.FileTwin},
		{Name: `new\nline`, Bytes: 9, Reason: receipt.FileName}, // as the guest has escaped it
		{Name: "日本語のファイル.txt", Bytes: 3, Reason: receipt.FileNotKept},
		{Name: "z\u0335\u0336\u0337\u0338algo", Bytes: 3, Reason: receipt.FileNotKept},
		{Name: "giant", Bytes: 1 << 40, Reason: receipt.FileTooLarge},
		{Name: "link", Reason: receipt.FileLink},
		{Name: "fifo", Reason: receipt.FileSpecial},
	}
	for i := range 5 {
		r.Program.Files = append(r.Program.Files, receipt.File{Name: fmt.Sprintf("more%d", i), Bytes: 1, Reason: receipt.FileTooMany})
	}
	r.Program.FilesUnlisted = []receipt.FileCount{{Reason: receipt.FileTooDeep, Count: 70_000, Bytes: 1 << 50}, {Reason: receipt.FileUnreadable, Count: 1}}
	r.Cleanup = receipt.Cleanup{Status: receipt.CleanupIncomplete, Confirmations: []receipt.Confirmation{
		{Source: "task", Gone: true}, {Source: "mounts", Detail: "/run/pybox/boxes/5319e024/rootfs is still mounted"}}}
}

// partial is a run of which some numbers could not be read.
func partial(r *receipt.Receipt) {
	k := &r.Observed.Kernel
	k.Source, k.Final = "parent", false
	k.MemoryPeakBytes, k.PIDsPeak, k.ThrottledUsec = nil, nil, nil
	*k.ThrottledPeriods = 1
	k.Periods = nil
	const why = "the box's cgroup was gone before it could be read"
	for _, fact := range []string{"memory_peak_bytes", "observed.kernel.pids_peak", "periods", "throttled_usec"} {
		r.Unknown = append(r.Unknown, receipt.Unknown{Fact: fact, Why: why})
	}
	r.Program.Stdout.Complete = false
	r.Program.Stderr = receipt.Stream{Bytes: ptr(int64(900)), KeptBytes: 100}
	r.Cleanup = receipt.Cleanup{Status: receipt.CleanupUnknown, Confirmations: []receipt.Confirmation{}}
}

func text(r *receipt.Receipt, o Style) string {
	var b strings.Builder
	Receipt(&b, r, o)
	return b.String()
}

// TestReceiptGolden compares the text form of every ending with the file that
// somebody has looked at.
func TestReceiptGolden(t *testing.T) {
	styles := map[string]Style{"80": {}, "40": {Width: 40}}
	for name, r := range receipts() {
		receipttest.Check(t, r)
		for suffix, style := range styles {
			golden(t, name+"."+suffix, text(r, style))
		}
	}
	golden(t, "exited.color", text(receipttest.Example(), Style{Color: true}))
	golden(t, "memory.color", text(receipts()["memory"], Style{Width: 40, Color: true}))
	golden(t, "deadline.20", text(receipts()["deadline"], Style{Width: 20}))
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", "receipt", name+".golden")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s: got\n%s\nwant\n%s", name, got, want)
	}
}

// checkLines holds a text to its width and to printable characters.
func checkLines(t *testing.T, got string, o Style) {
	t.Helper()
	for _, s := range []string{bold, dim, plain} {
		if o.Color {
			got = strings.ReplaceAll(got, s, "")
		}
	}
	for line := range strings.SplitSeq(got, "\n") {
		if s := Escape(line, 1<<30); s != line {
			t.Errorf("%q has what is not printable", line)
		}
		if strings.HasSuffix(line, " ") {
			t.Errorf("%q ends with a space", line)
		}
		if Columns(line) <= max(o.Width, minWidth) {
			continue
		}
		value := strings.TrimSpace(line)
		if o.Width >= narrowWidth && len(line) > pageLabel && line[pageLabel-1] == ' ' && strings.HasPrefix(line, "  ") {
			value = strings.TrimSpace(line[pageLabel:])
		}
		if strings.Contains(value, " ") {
			t.Errorf("%q has %d columns of %d", line, Columns(line), o.Width)
		}
	}
}

func TestReceiptKeepsToItsWidth(t *testing.T) {
	for name, r := range receipts() {
		for _, width := range []int{20, 21, 33, 40, 55, 56, 57, 80, 100, 300} {
			o := Style{Width: width, Color: width%2 == 0}
			t.Run(fmt.Sprint(name, width), func(t *testing.T) { checkLines(t, text(r, o), o) })
		}
	}
}

// TestReceiptSaysWhatToDo: whoever ran into a limit learns the flag.
func TestReceiptSaysWhatToDo(t *testing.T) {
	all := receipts()
	for name, want := range map[string]string{
		"deadline": "--timeout 4", "memory": "--memory 256MiB", "everything": "--pids 256", "refused_files": "--memory 256MiB",
		"refused_settings": "pybox vm restart", "refused_engine": "pybox vm restart", "refused_timer": "pybox vm restart",
		"refused_interpreter": "--memory", "vm_lost": "pybox vm logs", "box_timer": "--timeout 4", "guest_memory": "[vm] memory",
	} {
		if got := strings.Join(strings.Fields(text(all[name], Style{Width: 300})), " "); !strings.Contains(got, "What next") || !strings.Contains(got, want) {
			t.Errorf("%s lacks %q:\n%s", name, want, got)
		}
	}
	env := refusal(receipt.ReasonInterpreter, "the image's python3 ended with code 1 before it was ready")
	env.Configured.Env = []string{"A=PYTHON", "PYTHONHOME=/nope"}
	if got := text(env, Style{Width: 300}); !strings.Contains(got, "Leave out of its environment what Python itself reads: PYTHONHOME.") {
		t.Errorf("a variable that Python reads is not named:\n%s", got)
	}
	for name, r := range all {
		if r.Ending.How == receipt.HowExited {
			continue
		}
		got := text(r, Style{Width: 4000})
		for _, e := range r.Ending.Evidence {
			if !strings.Contains(got, e) {
				t.Errorf("%s lacks the evidence %q", name, e)
			}
		}
		if strings.Index(got, "What it means") > strings.Index(got, "From the container engine") {
			t.Errorf("%s: what went wrong does not come first", name)
		}
	}
}

func TestReceiptsGolden(t *testing.T) {
	local := time.Local
	time.Local = time.UTC
	defer func() { time.Local = local }()
	list := []api.ReceiptSummary{
		{ID: "half", StartedAt: now, How: receipt.HowUnknown, Damaged: "/h/receipts/20260102T030405.000Z-half.json: the file is damaged\x1b"},
		{ID: "5319e024", StartedAt: now, Image: "stdlib", Program: "main.py", How: receipt.HowExited, ElapsedMS: ptr(166.1)},
		{ID: "nightly-7", StartedAt: now, Image: "data", Program: "日本\x1b[2J.py", How: receipt.HowVMLost, ExitCode: 125},
	}
	for suffix, o := range map[string]Style{"80": {Width: 80}, "40": {Width: 40}} {
		var b strings.Builder
		Receipts(&b, list, o)
		checkLines(t, b.String(), o)
		golden(t, "list."+suffix, b.String())
	}
}

func TestEveryUnknownIsShown(t *testing.T) {
	r := receipttest.Example()
	r.Unknown = nil
	for i := range maxRows + 5 {
		r.Unknown = append(r.Unknown, receipt.Unknown{Fact: fmt.Sprintf("fact%d", i), Why: fmt.Sprintf("why%d", i)})
	}
	got := text(r, Style{})
	for i := range maxRows {
		if !strings.Contains(got, fmt.Sprintf("fact%d: why%d\n", i, i)) {
			t.Errorf("lacks fact %d:\n%s", i, got)
		}
	}
	if !strings.Contains(got, "and 5 more") {
		t.Errorf("does not say that there are more:\n%s", got)
	}
}

func TestWrap(t *testing.T) {
	for _, c := range []struct {
		text string
		n    int
		want []string
	}{
		{"", 9, []string{""}},
		{" one  two three ", 7, []string{"one two", "three"}},
		{"a abcdefgh i", 3, []string{"a", "abc", "def", "gh", "i"}},
		{"abcd e", 3, []string{"abc", "d e"}},
		{"雪雪雪 x", 5, []string{"雪雪", "雪 x"}},
		{"雪雪", 1, []string{"雪", "雪"}},
		{"aae\u0301\u0301 b", 3, []string{"aae\u0301\u0301", "b"}},
	} {
		if got := Wrap(c.text, c.n); !slices.Equal(got, c.want) {
			t.Errorf("Wrap(%q, %d) is %q, want %q", c.text, c.n, got, c.want)
		}
	}
}

func TestEscape(t *testing.T) {
	for in, want := range map[string]string{
		"plain é 日本 😀": "plain é 日本 😀", "a\nb\tc\r\x00": `a\x0ab\x09c\x0d\x00`, "\x1b[2J\x7f\u009b": `\x1b[2J\x7f\x9b`,
		"\xff\xc3": `\xff\xc3`, "\ufffd": "\ufffd", "\u202e\u2066\u200b": `\u202e\u2066\u200b`, "\u00a0\u2028": `\xa0\u2028`,
		"\U000e0001": `\U000e0001`, "e\u0301": "e\u0301", "e\u0301\u0302\u0303": "e\u0301\u0302\\u0303", "": "",
	} {
		if got := Escape(in, 100); got != want {
			t.Errorf("Escape(%q) is %q, want %q", in, got, want)
		}
	}
	if got := Escape(strings.Repeat("x", 100)+"yz", 100); got != strings.Repeat("x", 100)+"... (2 more bytes)" {
		t.Error(got)
	}
}

// TestEveryReasonHasWords holds the text to the schema's words for why a file did not
// come back, and to the bounds of a list of them.
func TestEveryReasonHasWords(t *testing.T) {
	schema, err := os.ReadFile("../../docs/receipt.v1.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, f := range []string{receipt.FileNotAsked, receipt.FileTooMany, receipt.FileTooLarge, receipt.FileTooDeep, receipt.FileName,
		receipt.FileTwin, receipt.FileLink, receipt.FileSpecial, receipt.FileUnreadable, receipt.FileNotKept} {
		if words := reason(f, receipt.Limits{}); words == f || strings.Contains(words, "_") {
			t.Errorf("%s has no words: %q", f, words)
		}
		if n += strings.Count(string(schema), `"`+f+`"`); n == 0 {
			t.Errorf("the schema does not know %s", f)
		}
	}
	r := receipttest.Example()
	for i := range 1280 {
		r.Program.Files = append(r.Program.Files, receipt.File{Name: fmt.Sprintf("%04d", i), Reason: receipt.FileLink})
	}
	r.Program.FilesUnlisted = []receipt.FileCount{{Reason: receipt.FileTooMany, Count: 7}}
	got := text(r, Style{})
	if strings.Count(got, "\n") > 50 || !strings.Contains(got, "1287 NOT returned") || !strings.Contains(got, "and 1272 others") || !strings.Contains(got, "7 more: ") {
		t.Errorf("%s", got)
	}
}

func FuzzReceipt(f *testing.F) {
	for _, r := range receipts() {
		b, err := json.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, uint8(80), "", false)
	}
	f.Add([]byte(`{}`), uint8(0), "\x1b[31m\u202e", true)
	f.Add([]byte(`{"ending":{"how":"\u001b[2J","evidence":[" "]}}`), uint8(30), "\xff \n", true)
	f.Fuzz(func(t *testing.T, b []byte, width uint8, evil string, color bool) {
		var r receipt.Receipt
		_ = json.Unmarshal(b, &r) // as far as it goes
		r.Ending.Evidence = append(r.Ending.Evidence, evil)
		r.Program.Files = append(r.Program.Files, receipt.File{Name: evil, Reason: evil}, receipt.File{Name: evil, Reason: receipt.FileTwin})
		r.Program.FilesUnlisted = append(r.Program.FilesUnlisted, receipt.FileCount{Reason: evil, Count: -1})
		r.Unknown = append(r.Unknown, receipt.Unknown{Fact: evil, Why: evil})
		r.Observed.Engine.Checks = append(r.Observed.Engine.Checks, receipt.Check{Setting: evil, Found: evil, Source: evil})
		o := Style{Width: max(minWidth, int(width)), Color: color}
		checkLines(t, text(&r, o), o)
	})
}
