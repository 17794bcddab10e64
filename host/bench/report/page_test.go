package report

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// docs is the folder of the committed page.
const docs = "../../../docs"

// TestCommittedPage holds the page and the plot that are in the repository to its
// figures: nobody edits them by hand.
func TestCommittedPage(t *testing.T) {
	b := read(t, JSONName)
	r, err := Decode(b)
	if err != nil {
		t.Fatal(err)
	}
	for _, why := range lacks(r) {
		t.Errorf("docs/%s is not of one whole run of 'make bench': %s", JSONName, why)
	}
	again, err := r.Encode()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string][]byte{JSONName: again, PageName: Page(r), PlotName: Plot(r)} {
		if !bytes.Equal(read(t, name), want) {
			t.Errorf("docs/%s is not what is made of docs/%s: run 'make bench', then 'make bench-page'", name, JSONName)
		}
	}
}

// lacks is what keeps a report from being of one whole run of a source that is known.
func lacks(r *Report) []string {
	var why []string
	if r.Quick {
		why = append(why, "it was quick")
	}
	for _, x := range r.Failed {
		why = append(why, x.Group+" failed")
	}
	if r.Commit == "" || strings.HasSuffix(r.Commit, "+") {
		why = append(why, fmt.Sprintf("its commit is %q", r.Commit))
	}
	if len(r.Groups) == 0 {
		why = append(why, "it has no groups")
	}
	for _, g := range r.Groups {
		if len(r.of(g.Name)) == 0 {
			why = append(why, "it has no figure of "+g.Name)
		}
	}
	return why
}

func TestLacks(t *testing.T) {
	whole := example()
	whole.Groups = whole.Groups[:1]
	if got := lacks(whole); len(got) != 0 {
		t.Errorf("a whole report lacks %q", got)
	}
	for name, alter := range map[string]func(*Report){
		"quick":     func(r *Report) { r.Quick = true },
		"failed":    func(r *Report) { r.Fail("Runs", errors.New("no VM")) },
		"altered":   func(r *Report) { r.Commit += "+" },
		"no commit": func(r *Report) { r.Commit = "" },
		"no groups": func(r *Report) { r.Groups = nil },
		"a group":   func(r *Report) { r.Groups = example().Groups },
	} {
		r := example()
		r.Groups = r.Groups[:1]
		if alter(r); len(lacks(r)) != 1 {
			t.Errorf("%s: it lacks %q", name, lacks(r))
		}
	}
}

// TestReadme: that the guest of the plot was emulated is said beside it, where it was.
func TestReadme(t *testing.T) {
	r, err := Decode(read(t, JSONName))
	if err != nil {
		t.Fatal(err)
	}
	said := strings.Contains(string(read(t, "../README.md")), "guest was emulated (TCG)")
	if emulated := r.Machine.Acceleration == "tcg"; said != emulated {
		t.Errorf("the guest was emulated: %v; README.md says so: %v", emulated, said)
	}
}

// TestPageLinks: what the page names is there.
func TestPageLinks(t *testing.T) {
	links := regexp.MustCompile(`\]\(([^)#]+)\)`).FindAllSubmatch(read(t, PageName), -1)
	if len(links) < 2 {
		t.Fatalf("%d links, want the plot and the figures", len(links))
	}
	for _, l := range links {
		if _, err := os.Stat(filepath.Join(docs, string(l[1]))); err != nil {
			t.Error(err)
		}
	}
}

func read(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(docs, name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestPageSays(t *testing.T) {
	r := example()
	page := oneLine(string(Page(r)))
	for _, want := range []string{
		"QEMU 7.2.22 on linux/amd64", "emulated (TCG)", "Of 3 budgets that PyBox holds itself to, all were kept.",
		"## Runs What they take. Ratios are to: bare `python3`.", `| &emsp;a \| part |`, "![",
		"| to the exit | 79.9 ms | 83.5 ms | 30 | 0.533 | ratio at most 0.6 |", `| 27.9\* |`,
	} {
		if !strings.Contains(page, want) {
			t.Errorf("it lacks %q:\n%s", want, page)
		}
	}
	if strings.Contains(page, "## Nothing") || strings.Contains(page, "missed") {
		t.Errorf("it says what is not so:\n%s", page)
	}
	r.Figures[0] = r.Figures[0].RatioAtMost(0.5)
	r.Machine.Acceleration = "kvm"
	r.Fail("data", errors.New("first\n<b>_second_"))
	page = oneLine(string(Page(r)))
	for _, want := range []string{
		"**1 missed**, and the others kept: - Runs: to the exit has the ratio 0.533, where at most 0.5 is allowed", "ratio at most 0.5 **missed**",
		`**Not measured whole**: data: first \<b\>\_second\_`, "Acceleration: kvm.",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("it lacks %q:\n%s", want, page)
		}
	}
	if strings.Contains(page, "TCG") {
		t.Errorf("nothing was emulated:\n%s", page)
	}
}

func TestPlotIsDrawn(t *testing.T) {
	svg := Plot(example())
	d := xml.NewDecoder(bytes.NewReader(svg))
	circles := 0
	for {
		tok, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("it is no XML: %v", err)
		}
		if e, ok := tok.(xml.StartElement); ok && e.Name.Local == "circle" {
			circles++
		}
	}
	// One for each sample, and two in the legend.
	if circles != 30+10+2 {
		t.Errorf("%d circles, want 42", circles)
	}
	for _, want := range []string{"&lt;other&gt;", "prefers-color-scheme: dark", "guest was emulated", ">0.533<", "ready: median 0.533, from 0.507 to"} {
		if !bytes.Contains(svg, []byte(want)) {
			t.Errorf("it lacks %q", want)
		}
	}
	if !bytes.Equal(svg, Plot(example())) {
		t.Error("it is not the same twice")
	}
	// The quickest comes first.
	if first, second := bytes.Index(svg, []byte(">ready<")), bytes.Index(svg, []byte(">&lt;other&gt;<")); first < 0 || second < first {
		t.Errorf("labels at %d and %d", first, second)
	}
}

func TestNoPlotOfNothing(t *testing.T) {
	r := example()
	for i := range r.Figures {
		r.Figures[i].Samples = nil
	}
	if Plot(r) != nil || bytes.Contains(Page(r), []byte("![")) {
		t.Error("there is a plot without samples")
	}
}

// FuzzDecode: whatever is a report can be told.
func FuzzDecode(f *testing.F) {
	b, err := example().Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(`{"schema":"pybox.bench/v2","figures":[{"id":"a","group":"g","name":"n","unit":"x","n":1,"ratio":1e-300,"base":"a","median":1e300,"samples":[1e-300,1e300]}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := Decode(b)
		if err != nil {
			return
		}
		if Page(r) == nil || r.WriteTable(io.Discard) != nil {
			t.Error("it cannot be told")
		}
		Plot(r)
		_ = Compare(r, r).String()
	})
}
