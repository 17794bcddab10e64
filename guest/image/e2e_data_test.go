//go:build linux

package image

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	goerofs "github.com/erofs/go-erofs"

	"github.com/pybox/pybox/agent/boxtest"
	"github.com/pybox/pybox/guest/bundle"
	"github.com/pybox/pybox/guest/layout"
	"github.com/pybox/pybox/vm"
	"github.com/pybox/pybox/vm/qemu"
	"github.com/pybox/pybox/vm/vmtest"
)

//go:embed testdata/data.py
var dataCheck string

// examples is the folder of the documents' programs.
const examples = "../../docs/examples"

// patience is the time of a program: emulated, imports take half a minute.
const patience = 100 * time.Second

// dataGuest is a machine with the image "data" for its image, and with the same image
// without the list of files to read ahead; that one's serial is returned.
func dataGuest(t *testing.T) (*boxtest.Guest, string) {
	t.Helper()
	b := vmtest.DataBundle(t)
	at := slices.IndexFunc(b.Manifest.Images, func(i bundle.Image) bool { return i.Name == "data" })
	if at < 0 {
		t.Fatal("the bundle has no image \"data\"")
	}
	plain, serial := withoutList(t, b.Path(b.Manifest.Images[at].File))
	c := boxtest.Config(b, 2<<30)
	c.Disks = append(c.Disks, vm.Disk{Path: plain, Serial: serial})
	m, _ := vmtest.Harness{Driver: qemu.New(qemu.Options{Logger: vmtest.Logger(t)}), Config: c}.Start(t)
	ctx, cancel := context.WithTimeout(t.Context(), boxtest.Bound)
	defer cancel()
	g, err := boxtest.Attach(ctx, b, m)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Client.Close() })
	g.Image = b.Manifest.Images[at].Serial
	return g, serial
}

// withoutList copies an image and changes the name of the list in its folder, where
// the names stand one after the other. All else stays where it is.
func withoutList(t *testing.T, image string) (file, serial string) {
	t.Helper()
	b, err := os.ReadFile(image)
	if err != nil {
		t.Fatal(err)
	}
	names, changed := []byte("...prereadtmp"), []byte("...prereaXtmp")
	if n := bytes.Count(b, names); n != 1 {
		t.Fatalf("the image has the folder of the list %d times", n)
	}
	b = bytes.Replace(b, names, changed, 1)
	file = filepath.Join(t.TempDir(), "plain.erofs")
	if err := os.WriteFile(file, b, 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	img, err := goerofs.Open(f)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fs.Stat(img, layout.Preread); err == nil {
		t.Fatal("the copy still has the list")
	}
	return file, bundle.ImageSerial(strings.Repeat("0", 64))
}

// TestE2EData runs first programs with numpy, pandas and matplotlib.
func TestE2EData(t *testing.T) {
	g, plain := dataGuest(t)
	program := func(source string) boxtest.Program {
		return boxtest.Program{Source: source, Memory: 512 << 20, PIDs: 64, MilliCPU: 2000, Timeout: patience}
	}
	t.Run("ReadAhead", func(t *testing.T) { testReadAhead(t, g, plain, program("import numpy, pandas\n")) })
	t.Run("Facts", func(t *testing.T) { testDataFacts(t, g, program(dataCheck)) })
	t.Run("Example", func(t *testing.T) { testExample(t, g, program("")) })
	for _, pids := range []int64{8, 16, 32} {
		t.Run(fmt.Sprintf("Algebra/%d", pids), func(t *testing.T) {
			p := program(algebra)
			p.PIDs = pids
			testAlgebra(t, g, p)
		})
	}
}

// testReadAhead: what an import touches of the image is not charged to the box, not
// even to the first that touches it.
func testReadAhead(t *testing.T, g *boxtest.Guest, plain string, p boxtest.Program) {
	peak := func() int64 {
		t.Helper()
		o := g.Run(t, p)
		if o.Code() != 0 || len(o.Stderr) > 0 {
			t.Fatal(o)
		}
		return o.Record.GetCounters().GetMemoryPeakBytes().GetValue()
	}
	with := g.Image
	g.Image = plain
	charged := peak()
	g.Image = with
	first := peak()
	t.Logf("import numpy, pandas: memory peak %d MiB, without reading ahead %d MiB", first>>20, charged>>20)
	if first == 0 || first > charged*3/4 {
		t.Errorf("the first box was charged with %d bytes, that of an image that was not read ahead with %d", first, charged)
	}
}

func testDataFacts(t *testing.T, g *boxtest.Guest, p boxtest.Program) {
	o := g.Run(t, p)
	if o.Code() != 0 || len(o.Stderr) > 0 {
		t.Fatal(o)
	}
	expectFacts(t, o.Stdout, map[string]any{
		"pictures":     []any{"\u0089PNG", "<?xm", "%PDF", "agg"},
		"fonts":        []any{"/tmp/matplotlib", 1, true},
		"not_compiled": []any{},
		"tables":       []any{map[string]any{"a": 1, "b": 7}, 2, 4},
		"dates": []any{"2026-07-01 14:00:00+02:00", "2026-07-01 08:00:00-04:00", "2026-07-01 17:30:00+05:30",
			[]any{0, 1, 3, 4}},
		"testing":   true,
		"read_only": []any{},
		"threads":   []any{"2", "2"},
	})
}

// expectFacts compares as text: JSON has one kind of number.
func expectFacts(t *testing.T, printed []byte, want map[string]any) {
	t.Helper()
	var got map[string]any
	if err := json.Unmarshal(printed, &got); err != nil {
		t.Fatalf("%v: %s", err, printed)
	}
	for name, w := range want {
		if g, w := fmt.Sprint(got[name]), fmt.Sprint(w); g != w {
			t.Errorf("%s: %s, want %s", name, g, w)
		}
		delete(got, name)
	}
	if len(got) > 0 {
		t.Errorf("nobody looks at %v", got)
	}
}

// testExample runs the program that 'make demo-data' and the documents show, with its
// input, and takes back what it leaves.
func testExample(t *testing.T, g *boxtest.Guest, p boxtest.Program) {
	read := func(name string) string {
		t.Helper()
		b, err := os.ReadFile(filepath.Join(examples, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	p.Source, p.Name, p.Files = read("sales.py"), "sales.py", map[string]string{"sales.csv": read("sales.csv")}
	o := g.Run(t, p)
	if o.Code() != 0 || len(o.Stderr) > 0 || !strings.Contains(string(o.Stdout), "Berlin  333.8  66.76      5\n") {
		t.Fatal(o)
	}
	table, picture := o.File("by_shop.csv"), o.File("by_day.png")
	if table == nil || picture == nil || len(o.Left) != 2 {
		t.Fatalf("%d files came back: %v", len(o.Left), o.Record.GetLeft())
	}
	if want := "shop,sum,mean,count\nBerlin,333.8,66.76,5\nLisbon,264.8,52.96,5\n"; string(table.Data) != want {
		t.Errorf("by_shop.csv: %q, want %q", table.Data, want)
	}
	if !strings.HasPrefix(string(picture.Data), "\x89PNG\r\n") || len(picture.Data) < 5000 {
		t.Errorf("by_day.png: %d bytes, %.20q", len(picture.Data), picture.Data)
	}
}

// algebra multiplies what it takes apart, with as many threads as OpenBLAS starts.
const algebra = `
import json, os
import numpy as np

r = np.random.default_rng(1)
a = r.standard_normal((300, 300))
b = a @ np.ones(300)
u, s, v = np.linalg.svd(a)
w, q = np.linalg.eig(a)
print(json.dumps({
    "solve": bool(np.allclose(np.linalg.solve(a, b), 1)),
    "svd": bool(np.allclose(u * s @ v, a)),
    "eig": bool(np.allclose(a @ q, q * w)),
    "tasks": len(os.listdir("/proc/self/task")),
}))
`

// testAlgebra: OpenBLAS starts as many threads as the box has CPUs, and does not meet
// the limit of processes (it crashes where it does).
func testAlgebra(t *testing.T, g *boxtest.Guest, p boxtest.Program) {
	o := g.Run(t, p)
	if o.Code() != 0 || len(o.Stderr) > 0 {
		t.Fatal(o)
	}
	expectFacts(t, o.Stdout, map[string]any{"solve": true, "svd": true, "eig": true, "tasks": 2})
}
