package show

import (
	"bytes"
	"strings"
	"testing"

	"github.com/pybox/pybox/host/doctor"
)

func report() doctor.Report {
	return doctor.Report{Version: "1.2.3", Verdict: doctor.Failed, MS: 410, Rows: []doctor.Row{
		{ID: "platform", Title: "Platform", Verdict: doctor.OK, Observed: "Linux 6.1 (Debian), amd64"},
		{ID: "virtualization", Title: "Virtualization", Verdict: doctor.Advice, Observed: "none: emulated", Next: "run 'pybox setup' and then 'pybox setup --yes' or 'pybox vm restart'"},
		{ID: "bundle.intact", Title: "Its contents", Verdict: doctor.Failed, Observed: "/a/" + strings.Repeat("long", 40) + " is damaged", Next: "'pybox setup'"},
		{ID: "vm.guest", Title: "Guest", Verdict: doctor.Unknown, Observed: "no VM runs"},
		{ID: "vm.last", Title: "Last VM", Verdict: doctor.Failed, Observed: "did not start: \x1b[2Jgone\u202e", Next: "'pybox vm start'",
			Untrusted: []string{"\x1b]52;c;AAAA\x07panic", strings.Repeat("x", 5000)}},
	}}
}

func TestDoctorStaysInItsColumns(t *testing.T) {
	for _, width := range []int{20, 40, 56, 80, 200} {
		var b bytes.Buffer
		Doctor(&b, report(), Style{Width: width})
		for line := range strings.Lines(b.String()) {
			if n := Columns(strings.TrimRight(line, "\n")); n > width {
				t.Errorf("width %d: a line of %d columns: %q", width, n, line)
			}
		}
		if strings.ContainsAny(b.String(), "\x1b\x07\u202e") {
			t.Errorf("width %d: what the guest wrote reaches the terminal", width)
		}
		for _, s := range []string{"FAILED", "advice", "unknown", "| "} {
			if !strings.Contains(b.String(), s) {
				t.Errorf("width %d: does not say %q:\n%s", width, s, b.String())
			}
		}
	}
}

func TestDoctorText(t *testing.T) {
	var b bytes.Buffer
	Doctor(&b, report(), Style{})
	for _, s := range []string{
		"ok      Platform        Linux 6.1 (Debian), amd64\n",
		"                        → run 'pybox setup' and then 'pybox setup --yes' or\n                          'pybox vm restart'\n",
		"the guest's console, untrusted:\n                        | \\x1b]52;c;AAAA\\x07panic\n",
		"Something keeps PyBox from working: 2 failed, 1 advice, 1 unknown, 1 ok",
	} {
		if !strings.Contains(b.String(), s) {
			t.Errorf("does not say %q:\n%s", s, b.String())
		}
	}
	var c bytes.Buffer
	Doctor(&c, report(), Style{Color: true})
	colours := strings.NewReplacer(red, "", green, "", yellow, "", bold, "", dim, "", plain, "")
	if c.String() == b.String() || colours.Replace(c.String()) != b.String() {
		t.Errorf("colours change the text:\n%s", c.String())
	}
}
