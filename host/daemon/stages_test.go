package daemon

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	agentv1 "github.com/pybox/pybox/agent/api/v1"
	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/daemon/daemontest"
)

// TestStagesOfTheHost: they follow each other from the daemon's beginning to the end of
// the start, and leave nothing out.
func TestStagesOfTheHost(t *testing.T) {
	var born time.Time
	var first sync.Once
	o := options(t, &daemontest.Agent{})
	o.Now = func() time.Time {
		now := time.Now()
		first.Do(func() { born = now })
		return now
	}
	r := run(t, o)
	s := r.start()
	var sum, last float64
	for _, st := range s.Stages {
		if st.Source != "host" {
			continue
		}
		if began := st.AtMS - st.MS; st.MS < 0 || began < last-0.01 || began > last+0.01 {
			t.Errorf("%s went from %.3f to %.3f ms, the one before it ended at %.3f", st.Name, began, st.AtMS, last)
		}
		sum, last = sum+st.MS, st.AtMS
	}
	// The daemon is running when the last has ended.
	if whole := ms(s.Since.Sub(born)); sum > whole || sum < whole/2 {
		t.Errorf("the stages have %.1f ms together, the start took %.1f", sum, whole)
	}
}

// TestStagesOfTheGuest: those that ended after the hello are told by the names that
// images have here, each from when it began.
func TestStagesOfTheGuest(t *testing.T) {
	a := &daemontest.Agent{}
	o := options(t, a)
	b, err := o.Bundle()
	if err != nil {
		t.Fatal(err)
	}
	serial := b.Manifest.Images[0].Serial
	a.Steps = []*agentv1.Stage{
		{Name: "hello", EndedAtNs: 12e6},
		{Name: serial, BeganAtNs: 13e6, EndedAtNs: 20e6},
		{Name: "engine", BeganAtNs: 10e6, EndedAtNs: 30e6},
		{Name: "ready-" + serial, BeganAtNs: 31e6, EndedAtNs: 42e6},
		{Name: "img-0000000000000000", BeganAtNs: 1e6, EndedAtNs: 50e6},
	}
	r := run(t, o)
	s := r.start()
	var got []string
	for _, st := range s.Stages {
		if st.Source == "guest" {
			got = append(got, fmt.Sprintf("%s %.0f-%.0f", st.Name, st.AtMS-st.MS, st.AtMS))
		}
	}
	want := "kernel 0-5, listening 5-9, hello 9-12, read ahead: stdlib 13-20, engine 10-30, box ready: stdlib 31-42, img-0000000000000000 1-50"
	if g := strings.Join(got, ", "); g != want {
		t.Errorf("got  %s\nwant %s", g, want)
	}
	i := slices.IndexFunc(s.Guest.Ready, func(r api.ReadyBoxes) bool { return r.Image == "stdlib" })
	if i < 0 || s.Guest.Ready[i].FirstMS == nil || *s.Guest.Ready[i].FirstMS != 30 {
		t.Errorf("ready: %+v, want the first 30 ms after the hello", s.Guest.Ready)
	}
}
