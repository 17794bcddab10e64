package show

import (
	"strings"
	"testing"

	"github.com/pybox/pybox/host/api"
)

func TestStages(t *testing.T) {
	s := api.Status{
		Stages: []api.Stage{
			{Name: "bundle verified", MS: 40, AtMS: 40, Source: "host"},
			{Name: "agent answered", MS: 2960.4, AtMS: 3000.4, Source: "host"},
			{Name: "kernel", MS: 1300, AtMS: 1300, Source: "guest"},
			{Name: "engine", MS: 900, AtMS: 2900, Source: "guest"},
			{Name: "box ready: stdlib", MS: 300, AtMS: 3250, Source: "guest"},
			{Name: "of a newer guest", MS: 9, AtMS: 1, Source: "guest"},
		},
		Guest: &api.Guest{Ready: []api.ReadyBoxes{{Image: "stdlib", FirstMS: new(843.0)}, {Image: "data"}, {Image: "own", Trouble: "it is\x1b[2J broken"}}},
	}
	var b strings.Builder
	Stages(&b, s)
	want := `Start, step by step                  took       from         to
by the host, since the daemon started
  bundle verified                   40 ms       0 ms      40 ms
  agent answered                  2960 ms      40 ms    3000 ms
by the guest, since its kernel started; what overlaps went on at the same time
  kernel up to PID 1              1300 ms       0 ms    1300 ms
  containerd and its shim          900 ms    2000 ms    2900 ms
  box ready: stdlib                300 ms    2950 ms    3250 ms
  of a newer guest                   9 ms       0 ms       1 ms
A first box of stdlib was ready 0.84 s after the hello.
No box of data is ready yet: 'pybox vm status -v' tells when one is.
No box of own is ready: it is[2J broken
`
	if got := b.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	b.Reset()
	Stages(&b, api.Status{Guest: s.Guest})
	if b.Len() != 0 {
		t.Errorf("without steps: %q", b.String())
	}
}
