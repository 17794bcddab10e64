package runs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	agentapi "github.com/pybox/pybox/agent/api"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/guestrun"
	"github.com/pybox/pybox/host/guestrun/guestruntest"
	"github.com/pybox/pybox/host/receipt"
	"github.com/pybox/pybox/host/spool"
)

// keeping gives the service a spool.
func keeping(t *testing.T) (*spool.Spool, func(*Options)) {
	t.Helper()
	s, err := spool.Open(filepath.Join(t.TempDir(), "files"), time.Now)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s, func(o *Options) { o.Files = s }
}

func collect(r *Request) { r.Collect = true }

// content reads a file that a run left.
func content(t *testing.T, s *spool.Spool, id string) string {
	t.Helper()
	r, err := s.Read(id)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// leaving is a program that exits, leaves what f says, and has a full record.
func leaving(f func(*script), change ...func(*agentv1.RunRecord)) func(*script) {
	return func(s *script) {
		if !s.Begin() {
			return
		}
		e, x := guestruntest.ExitWith(0)
		s.Exited(e, x)
		f(s)
		finish(s, e, x, change...)
	}
}

func TestFilesInAndOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		files, use := keeping(t)
		var got map[string][]byte
		var order []string
		b := newBench(t, leaving(func(s *script) {
			got = s.Got
			for _, name := range []string{"main.py", "d", "d/a.csv", "run.sh"} {
				if _, ok := s.Got[name]; ok {
					order = append(order, name)
				}
			}
			s.Leave("out/a.txt", []byte("hello"))
			s.LeaveFile(&agentv1.LeftFile{Name: "out/d", Folder: true})
			s.Leave("out/empty", nil)
			s.LeaveFile(&agentv1.LeftFile{Name: "out/run", Bytes: 1, Executable: true})
			s.LeaveData([]byte("x"))
			s.Others = []*agentv1.NotReturned{{Name: "link", Reason: agentapi.LeftLink}, {Name: `new\nline`, Bytes: 3, Reason: agentapi.LeftName}}
		}, func(r *agentv1.RunRecord) {
			r.Left.Unlisted = []*agentv1.LeftCount{{Reason: agentapi.LeftTooMany, Count: 3, Bytes: 30}}
		}), use)
		sh := text("run.sh", "#!")
		sh.Executable = true
		run := b.begin(t, "run-1", collect, func(r *Request) {
			r.Inputs = []File{sh, text("d/a.csv", "1,2\n"), {Name: "d", Folder: true}}
		})
		rec, notKept, err := run.Do(t.Context(), nobody())
		if err != nil || notKept != nil {
			t.Fatal(err, notKept)
		}
		if len(order) != 4 || string(got["d/a.csv"]) != "1,2\n" || string(got["run.sh"]) != "#!" {
			t.Errorf("the guest got %q", got)
		}
		wantInputs := []receipt.Input{
			{Name: "d", Folder: true},
			{Name: "d/a.csv", Bytes: 4, SHA256: new(sumOf("1,2\n"))},
			{Name: "run.sh", Bytes: 2, SHA256: new(sumOf("#!"))},
		}
		if have, want := jsonOf(t, rec.Configured.Inputs), jsonOf(t, wantInputs); have != want {
			t.Errorf("inputs are %s, want %s", have, want)
		}
		want := []receipt.File{
			{Name: "out/a.txt", Bytes: 5, SHA256: new(sumOf("hello")), Returned: true},
			{Name: "out/d", Folder: true, Returned: true},
			{Name: "out/empty", SHA256: new(sumOf("")), Returned: true},
			{Name: "out/run", Bytes: 1, SHA256: new(sumOf("x")), Executable: true, Returned: true},
			{Name: "link", Reason: receipt.FileLink},
			{Name: `new\nline`, Bytes: 3, Reason: receipt.FileName},
		}
		kept := b.keep.versions("run-1")[0]
		if have := jsonOf(t, kept.Program.Files); have != jsonOf(t, want) {
			t.Errorf("the kept receipt has %s, want %s", have, jsonOf(t, want))
		}
		if have, want := jsonOf(t, kept.Program.FilesUnlisted), `[{"reason":"too_many","count":3,"bytes":30}]`; have != want {
			t.Errorf("unlisted are %s, want %s", have, want)
		}
		for i, want := range map[int]string{0: "hello", 2: "", 3: "x"} {
			f := &rec.Program.Files[i]
			if got := content(t, files, f.File); got != want {
				t.Errorf("%s is %q, want %q", f.Name, got, want)
			}
			f.File = ""
		}
		if have := jsonOf(t, rec.Program.Files); have != jsonOf(t, want) {
			t.Errorf("the answer has %s, want %s and ids", have, jsonOf(t, want))
		}
		if lacks(rec, receipt.FactFiles) || lacks(rec, "inputs") {
			t.Errorf("unknown is %+v", rec.Unknown)
		}
	})
}

func TestInputsThatAreRefused(t *testing.T) {
	many := make([]File, 33)
	for i := range many {
		many[i] = text(fmt.Sprintf("f%d", i), "")
	}
	long := make([]File, 200)
	for i := range long {
		long[i] = text(strings.Repeat(strings.Repeat("x", 255)+"/", 4)+fmt.Sprintf("%03d", i), "")
	}
	for name, c := range map[string]struct {
		inputs []File
		says   string
		change func(*Request)
	}{
		"too many":      {many, "there are 33 inputs, and limits.files of the run is 32", nil},
		"too large":     {[]File{{Name: "a", Bytes: 32 << 20}, {Name: "b", Bytes: 1}}, "more than the 33554432 bytes of limits.files_bytes", nil},
		"negative":      {[]File{{Name: "a", Bytes: -1}}, "-1 bytes", nil},
		"a full folder": {[]File{{Name: "a", Bytes: 1, Folder: true}}, `"a" has 1 bytes`, nil},
		"more than memory": {[]File{{Name: "a", Bytes: 20 << 20}}, "lie in the memory of the box, whose limit is 16777216",
			func(r *Request) { r.Ask.MemoryBytes = new(int64(16 << 20)) }},
		"twice":               {[]File{text("a", "1"), text("a", "2")}, `two inputs have the name "a"`, nil},
		"the program":         {[]File{text("main.py", "1")}, `"main.py" has the name of the program`, nil},
		"a folder of it":      {[]File{{Name: "main.py", Folder: true}}, `"main.py" has the name of the program`, nil},
		"in the program":      {[]File{text("main.py/x", "1")}, `"main.py/x" lies in "main.py", which is a file`, nil},
		"in a file":           {[]File{text("a/b/c", "1"), text("a", "2")}, `"a/b/c" lies in "a", which is a file`, nil},
		"case":                {[]File{text("Data.csv", "1"), text("data.CSV", "2")}, `"data.CSV" and "Data.csv" are one name`, nil},
		"case of a folder":    {[]File{text("D/a", "1"), text("d/b", "2")}, `"d/b" and "D" are one name`, nil},
		"normalisation":       {[]File{text("caf\u00e9", "1"), text("cafe\u0301", "2")}, `are one name`, nil},
		"case of the program": {[]File{text("MAIN.py", "1")}, `"MAIN.py" and "main.py" are one name`, nil},
		"outside":             {[]File{text("../x", "1")}, `file name "../x"`, nil},
		"absolute":            {[]File{text("/x", "1")}, `file name "/x"`, nil},
		"nameless":            {[]File{text("", "1")}, `file name ""`, nil},
		"control":             {[]File{text("a\x1b[2J", "1")}, `a\x1b[2J`, nil},
		"reserved":            {[]File{text(".pybox/x", "1")}, "kept for PyBox", nil},
		"names too long":      {long, "more than 196608 bytes together", func(r *Request) { r.Ask.Files = new(int64(256)) }},
	} {
		b := newBench(t, nil)
		r := Request{Program: text("", source), Inputs: c.inputs}
		if c.change != nil {
			c.change(&r)
		}
		if _, err := b.Begin(r); !errors.Is(err, agentapi.ErrRequest) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want ErrRequest with %q", name, err, c.says)
		}
	}
	// And these are not.
	for name, inputs := range map[string][]File{
		"none":            nil,
		"32":              many[:32],
		"a tree":          {text("a/b/c", ""), {Name: "a/b", Folder: true}, text("a/b-", ""), {Name: "a", Folder: true}},
		"folders implied": {text("a/b", ""), text("a/c", "")},
		"all bytes":       {{Name: "a", Bytes: 32 << 20}},
	} {
		b := newBench(t, nil)
		run, err := b.Begin(Request{Program: text("", source), Inputs: inputs})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for i, f := range run.request.Inputs[min(1, len(inputs)):] {
			if f.Name <= run.request.Inputs[i].Name {
				t.Errorf("%s: %q comes after %q", name, f.Name, run.request.Inputs[i].Name)
			}
		}
	}
}

// What comes back and has a twin stays behind, the later one.
func TestTwinsThatComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		files, use := keeping(t)
		b := newBench(t, leaving(func(s *script) {
			s.Leave("A.txt", []byte("upper"))
			s.Leave("D/x", []byte("1"))
			s.Leave("a.txt", []byte("lower"))
			s.LeaveFile(&agentv1.LeftFile{Name: "d", Folder: true})
			s.Leave("d/y", []byte("2"))
		}), use)
		rec, _, err := b.begin(t, "run-1", collect).Do(t.Context(), nobody())
		if err != nil {
			t.Fatal(err)
		}
		reasons := map[string]string{}
		for _, f := range rec.Program.Files {
			reasons[f.Name] = f.Reason
			if f.Returned != (f.Reason == "") || f.Returned != (f.File != "") {
				t.Errorf("%+v", f)
			}
		}
		want := map[string]string{"A.txt": "", "D/x": "", "a.txt": receipt.FileTwin, "d": receipt.FileTwin, "d/y": receipt.FileTwin}
		if jsonOf(t, reasons) != jsonOf(t, want) || content(t, files, rec.Program.Files[0].File) != "upper" {
			t.Errorf("%v", reasons)
		}
		if lacks(rec, "program.files: the bytes of") {
			t.Errorf("a twin is not unknown: %+v", rec.Unknown)
		}
	})
}

// Without Collect, or a place to keep them, files are listed at most.
func TestFilesAreNotAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, changes := range map[string][]func(*Request){"no place": {collect}, "not asked": {}} {
			b := newBench(t, leaving(func(s *script) {
				if s.Start.GetCollect() || s.Start.GetFiles() != 32 || s.Start.GetFilesBytes() != 32<<20 {
					t.Errorf("the guest is asked for files: %v", s.Start)
				}
				s.Others = []*agentv1.NotReturned{{Name: "out.txt", Bytes: 5, Reason: agentapi.LeftNotAsked}}
			}))
			rec := b.do(t, b.begin(t, "run-1", changes...), nobody())
			if f := rec.Program.Files; len(f) != 1 || f[0] != (receipt.File{Name: "out.txt", Bytes: 5, Reason: receipt.FileNotAsked}) || lacks(rec, receipt.FactFiles) {
				t.Errorf("%s: %+v, unknown %+v", name, f, rec.Unknown)
			}
		}
	})
}

// Runs whose files are not all known of say so, each for its reason.
func TestFilesThatAreNotKnown(t *testing.T) {
	full := func(s *script) { s.Leave("a", []byte("hello")) }
	for name, c := range map[string]struct {
		play     func(*script)
		returned int
		why      string // of FactFiles; empty: it is known
		notKept  string // of the bytes
	}{
		"whole": {play: leaving(full), returned: 1},
		"the guest did not see all": {
			play: leaving(full, func(r *agentv1.RunRecord) {
				r.Left.Complete = false
				r.Unknown = append(r.Unknown, &agentv1.Unknown{Fact: agentapi.FactLeft, Why: "there was no time for all of it"})
			}),
			returned: 1, why: "there was no time for all of it",
		},
		"nor says why":    {play: leaving(full, func(r *agentv1.RunRecord) { r.Left.Complete = false }), returned: 1, why: receipt.WhyFiles},
		"it did not look": {play: leaving(func(*script) {}, func(r *agentv1.RunRecord) { r.Left = nil }), why: receipt.WhyFiles},
		"lost before": {play: func(s *script) {
			s.Begin()
			s.Sleep(time.Second)
			s.Guest.Die(errors.New("it is gone"))
		}, why: receipt.WhyFiles},
		"lost among them": {play: func(s *script) {
			s.Begin()
			s.Exited(guestruntest.ExitWith(0))
			full(s)
			s.LeaveFile(&agentv1.LeftFile{Name: "b", Bytes: 9 + agentapi.MinLeftPiece})
			s.LeaveData(make([]byte, agentapi.MinLeftPiece))
			s.Sleep(time.Second)
			s.Guest.Die(errors.New("it is gone"))
		}, returned: 1, why: receipt.WhyFiles, notKept: "it did not come whole"},
		"never started": {play: func(s *script) {
			s.Admit().Upload()
			e := &agentv1.Ending{How: agentapi.HowRefused, By: agentapi.ByAgent, Reason: agentapi.ReasonFiles, Evidence: []string{"x"}}
			s.Finish(s.Record(e, nil, false))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				files, use := keeping(t)
				b := newBench(t, c.play, use)
				rec, _, err := b.begin(t, "run-1", collect).Do(t.Context(), nobody())
				if err != nil {
					t.Fatal(err)
				}
				returned, why, notKept := 0, "", ""
				for _, f := range rec.Program.Files {
					if f.Returned {
						returned++
						content(t, files, f.File)
					}
				}
				for _, u := range rec.Unknown {
					switch {
					case u.Fact == receipt.FactFiles:
						why = u.Why
					case strings.HasPrefix(u.Fact, "program.files: the bytes of"):
						notKept = u.Why
					}
				}
				if returned != c.returned || why != c.why || notKept != c.notKept {
					t.Errorf("%d returned, unknown %q and %q, want %d, %q, %q", returned, why, notKept, c.returned, c.why, c.notKept)
				}
				b.closeAll(t)
			})
		})
	}
}

// Inputs that were not sent whole have no digest, and are listed as unknown.
func TestInputsThatWereNotSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, func(s *script) {
			s.Admit()
			for n := 0; n < 3; { // the program and a folder
				if s.Next().GetFile() != nil {
					n++
				}
			}
			<-s.Cancelled
			s.Finish(s.Record(&agentv1.Ending{How: agentapi.HowCancelled, By: agentapi.ByClient, Evidence: []string{"x"}}, nil, false))
		})
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		stop := make(chan struct{})
		defer close(stop)
		stuck := File{Name: "e", Bytes: 9, Open: func() (io.ReadCloser, error) { <-stop; return nil, errGone }}
		run := b.begin(t, "run-1", func(r *Request) { r.Inputs = []File{{Name: "d", Folder: true}, stuck, text("f", "1")} })
		rec, _, err := run.Do(ctx, nobody())
		if err != nil {
			t.Fatal(err)
		}
		wantEnding(t, rec, receipt.HowCancelled, receipt.ByClient)
		in := rec.Configured.Inputs
		if len(in) != 3 || in[1].SHA256 != nil || in[1].Bytes != 9 || in[2].SHA256 != nil || !lacks(rec, "configured.inputs.sha256") {
			t.Errorf("inputs %+v, unknown %+v", in, rec.Unknown)
		}
	})
}

// Runs that may leave more than can be kept wait for one another, in vain or not, and
// none loses anything.
func TestRoomForFiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		files, use := keeping(t)
		b := newBench(t, leaving(func(s *script) {
			s.Sleep(time.Second)
			s.Leave("a", []byte(s.Start.GetId()))
		}), use)
		large := func(r *Request) {
			r.Collect, r.Ask.FilesBytes, r.Ask.MemoryBytes = true, new(int64(256<<20)), new(int64(1<<30))
		}
		type result struct {
			id   string
			rec  *receipt.Receipt
			err  error
			took time.Duration
		}
		done := make(chan result)
		const n = 9
		for i := range n {
			run := b.begin(t, fmt.Sprintf("run-%d", i), large)
			go func() {
				from := time.Now()
				rec, _, err := run.Do(t.Context(), nobody())
				done <- result{run.ID(), rec, err, time.Since(from)}
			}()
		}
		var took []time.Duration
		for range n {
			r := <-done
			if r.err != nil || content(t, files, r.rec.Program.Files[0].File) != r.id {
				t.Fatalf("%+v", r)
			}
			took = append(took, r.took)
		}
		// Four fit, less what those before them left, which is little and stays: 3 and then 3.
		if took[0] != time.Second || took[n-1] <= time.Second || took[n-1] > 4*time.Second {
			t.Errorf("they took %v", took)
		}
		// What stays fills everything but for one byte too few.
		room, err := files.Reserve(t.Context(), 1, spool.MaxLeftBytes-256<<20, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer room.Close()
		from := time.Now()
		_, _, err = b.begin(t, "no-room", large).Do(t.Context(), nobody())
		if !errors.Is(err, ErrBusy) || time.Since(from) != 20*time.Second || !strings.Contains(err.Error(), "to keep what the program leaves") {
			t.Errorf("after %v: %v", time.Since(from), err)
		}
		// One who waits can be given up.
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(errGone) })
		from = time.Now()
		_, _, err = b.begin(t, "given-up", large).Do(ctx, nobody())
		if !errors.Is(err, errGone) || time.Since(from) != time.Second {
			t.Errorf("after %v: %v", time.Since(from), err)
		}
		if len(b.Active()) > 0 {
			t.Errorf("active %+v", b.Active())
		}
		b.closeAll(t)
	})
}

// A disk without room loses bytes, says so, and fails no run.
func TestDiskFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		files, use := keeping(t)
		b := newBench(t, leaving(func(s *script) {
			s.Leave("a", []byte("1"))
			files.Close() // stands for a disk that takes nothing more
			s.Leave("b", []byte("2"))
			s.Leave("c", []byte("3"))
		}), use)
		rec, _, err := b.begin(t, "run-1", collect).Do(t.Context(), nobody())
		if err != nil {
			t.Fatal(err)
		}
		wantEnding(t, rec, receipt.HowExited, receipt.ByProgram)
		for _, f := range rec.Program.Files {
			if f.Returned || f.Reason != receipt.FileNotKept || f.File != "" || f.SHA256 != nil {
				t.Errorf("%+v", f)
			}
		}
		if len(rec.Program.Files) != 3 || whyOf(rec, `program.files: the bytes of "a" and 2 more`) != spool.ErrClosed.Error() || whyOf(rec, receipt.FactFiles) != "" {
			t.Errorf("%+v, unknown %+v", rec.Program.Files, rec.Unknown)
		}
	})
}

// What is not kept is told with the reason of each, and a file is told of once.
func TestReasonsOfWhatIsNotKept(t *testing.T) {
	full := fmt.Errorf("%w: no space", spool.ErrFull)
	c := composer{Run: &Run{}, res: &guestrun.Result{}, listed: map[string]bool{}}
	for name, err := range map[string]error{"a": full, "b": nil, "c": errGone, "d": full, "e": full, "f": twinError("b"), "g": errGone} {
		c.res.Left = append(c.res.Left, guestrun.Left{Name: name, Err: err})
	}
	slices.SortFunc(c.res.Left, func(a, b guestrun.Left) int { return strings.Compare(a.Name, b.Name) })
	c.left()
	want := []receipt.Unknown{
		{Fact: `program.files: the bytes of "a" and 2 more`, Why: full.Error()},
		{Fact: `program.files: the bytes of "c" and 1 more`, Why: errGone.Error()},
	}
	if have := jsonOf(t, c.unknown); have != jsonOf(t, want) {
		t.Errorf("unknown is %s, want %s", have, jsonOf(t, want))
	}
}

// The wait for room for what a run may leave is told, and counts.
func TestQueueForFiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		files, use := keeping(t)
		b := newBench(t, leaving(func(*script) {}, func(r *agentv1.RunRecord) { r.QueuedNs = int64(time.Second) }), use)
		room, err := files.Reserve(t.Context(), spool.MaxLeft, 0, nil)
		if err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(3*time.Second, room.Close)
		for _, c := range []struct {
			id     string
			events string
			ms     float64
		}{
			{"run-1", "accepted queued admitted", 4000},
			{"run-2", "accepted admitted", 1000}, // there is room again
		} {
			var events []string
			sink := nobody()
			sink.Event = func(e api.Event) error {
				events = append(events, e.Event)
				if e.Event == api.EventQueued && (*e.Ahead != 0 || e.For != api.ForFiles || e.MS != 0) {
					t.Errorf("%s: %+v", c.id, e)
				}
				return nil
			}
			rec, _, err := b.begin(t, c.id, collect).Do(t.Context(), sink)
			if err != nil {
				t.Fatal(err)
			}
			if ms := rec.Run.QueuedMS; ms == nil || *ms != c.ms || !strings.HasPrefix(strings.Join(events, " "), c.events) {
				t.Errorf("%s: it waited %v ms, events %q", c.id, *ms, events)
			}
		}
	})
}

// A run that is cancelled among its files keeps what had come whole.
func TestCancelledAmongFiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		files, use := keeping(t)
		b := newBench(t, leaving(func(s *script) {
			s.Leave("a", []byte("hello"))
			s.LeaveFile(&agentv1.LeftFile{Name: "b", Bytes: 2 + agentapi.MinLeftPiece})
			s.LeaveData(make([]byte, agentapi.MinLeftPiece))
			<-s.Cancelled
			s.LeaveData([]byte("23"))
		}), use)
		run := b.begin(t, "run-1", collect)
		time.AfterFunc(time.Second, func() { b.Cancel("run-1", errGone) })
		rec, _, err := run.Do(t.Context(), nobody())
		if err != nil {
			t.Fatal(err)
		}
		wantEnding(t, rec, receipt.HowExited, receipt.ByProgram)
		f := rec.Program.Files
		if len(f) != 2 || content(t, files, f[0].File) != "hello" || f[1].Reason != receipt.FileNotKept || !lacks(rec, `program.files: the bytes of "b"`) {
			t.Errorf("%+v, unknown %+v", f, rec.Unknown)
		}
	})
}

// A run that ends with an error after all leaves nothing in the spool.
func TestNothingStaysOfNoRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		files, use := keeping(t)
		b := newBench(t, func(s *script) { s.Refuse(8, "no room") }, use)
		_, _, err := b.begin(t, "run-1", collect, func(r *Request) { r.Ask.FilesBytes = new(int64(256 << 20)) }).Do(t.Context(), nobody())
		if !errors.Is(err, ErrBusy) {
			t.Errorf("%v", err)
		}
		room, err := files.Reserve(t.Context(), spool.MaxLeft, spool.MaxLeftBytes, nil)
		if err != nil {
			t.Fatalf("its room is not given back: %v", err)
		}
		room.Close()
	})
}

func jsonOf(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
