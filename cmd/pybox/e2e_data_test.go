//go:build linux

package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	agentapi "github.com/pybox/pybox/agent/api"
	"github.com/pybox/pybox/host/receipt"
	"github.com/pybox/pybox/vm/vmtest"
)

// TestE2EData runs the documents' first program on the image data as a person does: a
// table goes in, another and a picture come out. Emulated, the imports alone take longer
// than the usual ceiling, which is raised here.
func TestE2EData(t *testing.T) {
	p := newPerson(t, "")
	p.install(vmtest.DataBundle(t).Dir())
	p.config("[ceilings]\ntimeout = \"150s\"\n")
	const examples = "../../docs/examples/"
	out := filepath.Join(t.TempDir(), "sales")
	o := p.run("exec", "--image", "data", "--timeout", "150", "--json", "--input", examples+"sales.csv", "--output", out, examples+"sales.py")
	if o.code != 0 {
		t.Fatalf("exit %d\n%s%s", o.code, o.out, o.err)
	}
	var r receipt.Receipt
	if err := json.Unmarshal([]byte(o.out), &r); err != nil {
		t.Fatalf("%v\n%s", err, o.out)
	}
	if text := r.Program.Stdout.Text; text == nil || !strings.Contains(*text, "Lisbon  264.8  52.96      5") {
		t.Errorf("it printed %v", r.Program.Stdout)
	}
	if n := r.Program.Stderr.Bytes; n == nil || *n != 0 {
		t.Errorf("on stderr: %v", r.Program.Stderr)
	}
	l := r.Configured.Limits
	if r.Configured.Image.Name != "data" || l.MemoryBytes != 512<<20 || l.PIDs != 64 || l.CPUs != 1 {
		t.Errorf("image %v, limits %+v", r.Configured.Image, l)
	}
	names := map[string]string{}
	for _, f := range r.Program.Files {
		if f.SHA256 != nil {
			names[f.Name] = *f.SHA256
		}
	}
	for name, begins := range map[string]string{"by_shop.csv": "shop,sum,mean,count\nBerlin,333.8,66.76,5\n", "by_day.png": "\x89PNG\r\n"} {
		b, err := os.ReadFile(filepath.Join(out, name))
		if err != nil {
			t.Error(err)
			continue
		}
		sum := sha256.Sum256(b)
		if !strings.HasPrefix(string(b), begins) || names[name] != hex.EncodeToString(sum[:]) {
			t.Errorf("%s: %d bytes, %.40q, on the receipt %q", name, len(b), b, names[name])
		}
	}
	if entries, err := os.ReadDir(out); err != nil || len(entries) != 2 {
		t.Errorf("%v, %v", entries, err)
	}
}

// TestE2EDataAhead: a box of the image data that imported numpy and pandas before its run
// computes as any other, with the threads of BLAS too, which no fork takes along.
func TestE2EDataAhead(t *testing.T) {
	p := newPerson(t, "")
	p.install(vmtest.DataBundle(t).Dir())
	p.config("[ceilings]\ntimeout = \"150s\"\n[ready]\nstdlib = 0\ndata = 1\ndata_import = [\"numpy\", \"pandas\"]\n")
	p.must("vm", "start")
	program := p.program("ahead.py", `import sys
print(sorted({"numpy", "pandas", "matplotlib"} & set(sys.modules)))
import numpy, pandas
m = numpy.ones((600, 600))
print((m @ m == 600).all(), numpy.linalg.matrix_rank(numpy.eye(200)), pandas.DataFrame({"a": [1, 2]}).a.sum())
`)
	p.untilReady()
	r := p.exec("--image", "data", "--timeout", "150", program)
	if r.code != 0 || r.out != "['numpy', 'pandas']\nTrue 200 3\n" {
		t.Errorf("exit %d, %q, %s", r.code, r.out, r.err)
	}
	b := r.receipt.Observed.Engine.Box
	if b.Kind == nil || *b.Kind != agentapi.BoxReady || !slices.Equal(b.Preimported, []string{"numpy", "pandas"}) {
		t.Errorf("the receipt's box: %+v", b)
	}
}
