package api

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/pybox/pybox/agent/api/pid1"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
)

func TestValidateHello(t *testing.T) {
	if err := ValidateHello(goodHello()); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*agentv1.HelloResponse){
		"no version":           func(m *agentv1.HelloResponse) { m.AgentVersion = "" },
		"long version":         func(m *agentv1.HelloResponse) { m.AgentVersion = strings.Repeat("1", 65) },
		"escape in version":    func(m *agentv1.HelloResponse) { m.AgentVersion = "1\x1b[2J" },
		"no boot id":           func(m *agentv1.HelloResponse) { m.BootId = "" },
		"boot id upper case":   func(m *agentv1.HelloResponse) { m.BootId = strings.ToUpper(bootID) },
		"boot id with a path":  func(m *agentv1.HelloResponse) { m.BootId = "../../../../../../../../../etc/pass" },
		"boot id not spaced":   func(m *agentv1.HelloResponse) { m.BootId = strings.ReplaceAll(bootID, "-", "0") },
		"release not ASCII":    func(m *agentv1.HelloResponse) { m.KernelRelease = "6.12-é" },
		"release empty":        func(m *agentv1.HelloResponse) { m.KernelRelease = "" },
		"machine with a space": func(m *agentv1.HelloResponse) { m.Machine = "x86 64" },
		"33 stages":            func(m *agentv1.HelloResponse) { m.Stages = slices.Repeat(m.Stages[:1], 33) },
		"stages out of order":  func(m *agentv1.HelloResponse) { slices.Reverse(m.Stages) },
		"negative stage":       func(m *agentv1.HelloResponse) { m.Stages[0].EndedAtNs = -1 },
		"stage in 300 years":   func(m *agentv1.HelloResponse) { m.Stages[1].EndedAtNs = math.MaxInt64 },
		"stage began after it": func(m *agentv1.HelloResponse) { m.Stages[0].BeganAtNs = m.Stages[0].EndedAtNs + 1 },
		"stage began before 0": func(m *agentv1.HelloResponse) { m.Stages[0].BeganAtNs = -1 },
		"stage without name":   func(m *agentv1.HelloResponse) { m.Stages[0].Name = "" },
		"nil stage":            func(m *agentv1.HelloResponse) { m.Stages[0] = nil },
		"17 runtimes": func(m *agentv1.HelloResponse) {
			for i := range 17 {
				m.RuntimeVersions[string(rune('a'+i))] = "1"
			}
		},
		"runtime name":    func(m *agentv1.HelloResponse) { m.RuntimeVersions["a/b"] = "1" },
		"runtime version": func(m *agentv1.HelloResponse) { m.RuntimeVersions["crun"] = "1\n" },
	} {
		m := goodHello()
		spoil(m)
		if err := ValidateHello(m); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
}

func TestValidateStatusAndTime(t *testing.T) {
	for name, m := range map[string]proto.Message{
		"negative memory":      &agentv1.StatusResponse{MemTotalBytes: -1},
		"absurd memory":        &agentv1.StatusResponse{MemTotalBytes: math.MaxInt64},
		"more free than total": &agentv1.StatusResponse{MemTotalBytes: 1, MemAvailableBytes: 2},
		"negative RSS":         &agentv1.StatusResponse{AgentRssBytes: -1},
		"negative uptime":      &agentv1.StatusResponse{UptimeNs: -1},
		"clock before 1970":    &agentv1.StatusResponse{GuestUnixNs: -1},
		"clock at the end":     &agentv1.StatusResponse{GuestUnixNs: math.MaxInt64},
		"absurd count":         &agentv1.StatusResponse{Mounts: math.MaxUint32},
		"17 kinds ready":       &agentv1.StatusResponse{Ready: slices.Repeat([]*agentv1.ReadyState{{Image: "img-0123456789abcdef"}}, 17)},
		"17 ready":             &agentv1.StatusResponse{Ready: []*agentv1.ReadyState{{Image: "img-0123456789abcdef", Ready: 17}}},
		"ready in no image":    &agentv1.StatusResponse{Ready: []*agentv1.ReadyState{{Image: "stdlib"}}},
		"33 stages":            &agentv1.StatusResponse{Stages: slices.Repeat([]*agentv1.Stage{{Name: "hello", EndedAtNs: 1}}, 33)},
		"stages out of order":  &agentv1.StatusResponse{Stages: []*agentv1.Stage{{Name: "hello", EndedAtNs: 2}, {Name: "engine", EndedAtNs: 1}}},
		"stage began after it": &agentv1.StatusResponse{Stages: []*agentv1.Stage{{Name: "hello", BeganAtNs: 2, EndedAtNs: 1}}},
		"trouble with ESC":     &agentv1.StatusResponse{Ready: []*agentv1.ReadyState{{Image: "img-0123456789abcdef", Trouble: "\x1b[2J"}}},
		"time: clock":          &agentv1.SetTimeResponse{GuestUnixNs: math.MinInt64},
		"time: uptime":         &agentv1.SetTimeResponse{GuestBootNs: -1},
		"time: reason":         &agentv1.SetTimeResponse{Deferred: "run\nactive"},
		"time: both":           &agentv1.SetTimeResponse{Stepped: true, Deferred: "run active"},
		"shell: no key":        &agentv1.OpenShellResponse{},
		"shell: long key":      &agentv1.OpenShellResponse{HostKey: make([]byte, KeyBytes+1)},
	} {
		if err := Validate(m); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
}

func goodRecords() *Records {
	return &Records{
		Schema: pid1.Schema, BootID: bootID, NowNS: 9e9, Armed: 1,
		Timers: []TimerRecord{{ID: "box-1", Cgroup: "box-1", ArmedNS: 1, DueNS: 5, FiredNS: 6, DoneNS: 7, Result: pid1.ResultKilled}},
		Agent:  &AgentExit{AtNS: 7, KilledNS: 8, Code: -1, Signal: 9},
	}
}

func TestDecodeRecordsIsStrict(t *testing.T) {
	good, err := json.Marshal(goodRecords())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := DecodeRecords(good); err != nil {
		t.Fatal(err)
	}
	replace := func(old, new string) []byte {
		b := bytes.Replace(good, []byte(old), []byte(new), 1)
		if bytes.Equal(b, good) {
			t.Fatalf("%q is not in %s", old, good)
		}
		return b
	}
	for name, b := range map[string][]byte{
		"nothing":        {},
		"null":           []byte("null"),
		"array":          []byte("[]"),
		"cut off":        good[:len(good)-1],
		"data after it":  append(slices.Clone(good), " {}"...),
		"unknown field":  replace(`"armed":1`, `"armed":1,"extra":1`),
		"other schema":   replace(pid1.Schema, "pybox.init-records/v2"),
		"other boot id":  replace(bootID, "x"),
		"negative time":  replace(`"now_ns":9000000000`, `"now_ns":-1`),
		"fraction":       replace(`"armed":1`, `"armed":1.5`),
		"fired too soon": replace(`"fired_ns":6`, `"fired_ns":0`),
		"result":         replace(`"killed"`, `"pardoned"`),
		"id":             replace(`"id":"box-1"`, `"id":"../box"`),
		"signal 99":      replace(`"signal":9`, `"signal":99`),
		"code 256":       replace(`"code":-1,"signal":9`, `"code":256,"signal":0`),
		"code and sig":   replace(`"code":-1`, `"code":1`),
		"65 timers": func() []byte {
			r := goodRecords()
			r.Timers = slices.Repeat(r.Timers, pid1.MaxTimers+1)
			b, _ := json.Marshal(r)
			return b
		}(),
		"too large": bytes.Repeat([]byte(" "), MaxRecordsBytes+1),
	} {
		if _, err := DecodeRecords(b); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
}

// The largest records that PID 1 may keep fit their bound.
func TestLargestRecordsFit(t *testing.T) {
	r := goodRecords()
	r.Timers[0].ID, r.Timers[0].Cgroup = strings.Repeat("x", 64), strings.Repeat("y", 128)
	r.Timers[0].Result, r.Timers[0].Detail = pid1.ResultFailed, strings.Repeat(`\`, maxDetail)
	r.Timers = slices.Repeat(r.Timers, pid1.MaxTimers)
	if err := ValidateRecords(r); err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	if len(b) > MaxRecordsBytes {
		t.Errorf("%d bytes, the bound is %d", len(b), MaxRecordsBytes)
	}
}

func TestRecordsOverAConnection(t *testing.T) {
	host, guest := net.Pipe()
	sent := make(chan error, 1)
	go func() { sent <- pid1.Send(guest, goodRecords(), 5*time.Second) }()
	r, err := ReadRecords(t.Context(), host)
	if err != nil {
		t.Fatal(err)
	}
	if r.Agent == nil || r.Agent.Signal != 9 || r.Timers[0].Result != pid1.ResultKilled {
		t.Errorf("read %+v", r)
	}
	if err := <-sent; err != nil {
		t.Errorf("SendRecords: %v", err)
	}
}

func TestReadRecordsFromAHostileGuest(t *testing.T) {
	for name, answer := range map[string][]byte{
		"nothing":               {},
		"length of 0xFFFFFFFF":  {0xff, 0xff, 0xff, 0xff},
		"promised and not sent": binary.BigEndian.AppendUint32(nil, MaxRecordsBytes),
		"rubbish":               append(binary.BigEndian.AppendUint32(nil, 4), "\x00\x01\x02\x03"...),
	} {
		host, guest := net.Pipe()
		go func() { _, _ = guest.Write(answer); _, _ = io.Copy(io.Discard, guest) }()
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		start := time.Now()
		if _, err := ReadRecords(ctx, host); err == nil {
			t.Errorf("%s: no error", name)
		}
		if d := time.Since(start); d > 5*time.Second {
			t.Errorf("%s: it took %v", name, d)
		}
		cancel()
		_ = guest.Close()
	}
}

func TestSendRecordsToAHostThatDoesNotRead(t *testing.T) {
	host, guest := net.Pipe()
	defer host.Close()
	if err := pid1.Send(guest, goodRecords(), 50*time.Millisecond); err == nil {
		t.Error("no error")
	}
}

func FuzzValidateHello(f *testing.F) {
	seed := func(m *agentv1.HelloResponse) {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	seed(goodHello())
	seed(&agentv1.HelloResponse{})
	f.Add([]byte{0x1a, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, b []byte) {
		m := new(agentv1.HelloResponse)
		if proto.Unmarshal(b, m) != nil || ValidateHello(m) != nil {
			return
		}
		for _, s := range append([]string{m.GetAgentVersion(), m.GetKernelRelease(), m.GetMachine(), m.GetBootId()}, keys(m)...) {
			if len(s) > 64 || strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' }) {
				t.Errorf("%q passed", s)
			}
		}
	})
}

func keys(m *agentv1.HelloResponse) (out []string) {
	for k, v := range m.GetRuntimeVersions() {
		out = append(out, k, v)
	}
	for _, s := range m.GetStages() {
		out = append(out, s.GetName())
	}
	return out
}

func FuzzValidateStatus(f *testing.F) {
	f.Add(int64(1), int64(1), int64(0), uint32(3))
	f.Add(int64(-1), int64(math.MaxInt64), int64(math.MinInt64), uint32(math.MaxUint32))
	f.Fuzz(func(t *testing.T, total, available, uptime int64, count uint32) {
		m := &agentv1.StatusResponse{MemTotalBytes: total, MemAvailableBytes: available, UptimeNs: uptime, Mounts: count}
		if ValidateStatus(m) == nil && (total-available < 0 || uptime < 0 || total < 0 || available < 0) {
			t.Errorf("%v passed", m)
		}
	})
}

func FuzzDecodeRecords(f *testing.F) {
	good, err := json.Marshal(goodRecords())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte(`{"schema":"pybox.init-records/v1"}`))
	f.Add([]byte(`{"timers":[null]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := DecodeRecords(b)
		if err != nil {
			if !errors.Is(err, ErrInvalid) {
				t.Errorf("%v does not match ErrInvalid", err)
			}
			return
		}
		again, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := DecodeRecords(again); err != nil {
			t.Errorf("what passed once does not pass again: %v", err)
		}
	})
}
