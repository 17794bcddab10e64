//go:build linux

package vhostuser

import (
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestGetConfig(t *testing.T) {
	g := newFrontEnd(t)
	ask := func(offset, length uint32) []byte {
		b := append(le.AppendUint32(state(offset, length), 0), make([]byte, length)...)
		return g.get(reqGetConfig, b)[configHeaderLen:]
	}
	if b := ask(0, 8); le.Uint64(b) != testCID {
		t.Errorf("CID % x", b)
	}
	if b := ask(4, 4); le.Uint32(b) != 0 {
		t.Errorf("upper half % x", b)
	}
	if b := ask(0, 256); le.Uint64(b) != testCID || len(b) != 256 || b[8] != 0 {
		t.Errorf("% x", b)
	}
	if b := ask(200, 56); len(b) != 56 {
		t.Errorf("% x", b)
	}
}

// What the front end may ask to be told about is refused and changes nothing.
func TestRefusedRequests(t *testing.T) {
	sealed, sealedMem := memoryFile(t, 1<<20, true)
	unsealed, unsealedMem := memoryFile(t, 1<<20, false)
	event, eventFD := eventFile(t)
	blocking, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_NONBLOCK|unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	file, err := os.Create(t.TempDir() + "/file")
	if err != nil {
		t.Fatal(err)
	}
	if err := file.Truncate(1 << 20); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, fd := range []int{sealed, unsealed, event, blocking, pipe[0], pipe[1]} {
			unix.Close(fd)
		}
		eventFD.Close()
		file.Close()
		unix.Munmap(sealedMem)
		unix.Munmap(unsealedMem)
	})
	const mib = 1 << 20
	r := func(guest, size, user, offset uint64) regionSpec { return regionSpec{guest, size, user, offset} }
	addr := func(desc, used, avail uint64) []byte { return ringAddr(0, desc, used, avail) }
	flagged := addr(userBase+rxRingAt, userBase+rxRingAt+0x8000, userBase+rxRingAt+0x4000)
	flagged[4] = 1
	nine := make([]regionSpec, 9)
	for i := range nine {
		nine[i] = r(uint64(i)*4096, 4096, uint64(i)*4096, 0)
	}
	tests := []struct {
		name    string
		request request
		body    []byte
		fds     []int
	}{
		{"unknown request", 99, nil, nil},
		{"request 0", 0, nil, nil},
		{"features never offered", reqSetFeatures, u64(1 << 29), nil},
		{"features too short", reqSetFeatures, u64(0)[:7], nil},
		{"features with a descriptor", reqSetFeatures, u64(0), []int{event}},
		{"protocol features never offered", reqSetProtocolFeatures, u64(1 << 5), nil},
		{"owner with payload", reqSetOwner, u64(0), nil},
		{"reset with payload", reqResetOwner, u64(0), nil},

		{"table too short", reqSetMemTable, state(1, 0)[:7], nil},
		{"table of nine regions", reqSetMemTable, memTable(nine...), nil},
		{"table of 4 G regions", reqSetMemTable, state(1<<32-1, 0), nil},
		{"table without its regions", reqSetMemTable, state(1, 0), []int{sealed}},
		{"table without descriptor", reqSetMemTable, memTable(r(0, mib, 0, 0)), nil},
		{"table with one descriptor too many", reqSetMemTable, memTable(r(0, mib, 0, 0)), []int{sealed, sealed}},
		{"region beyond its file", reqSetMemTable, memTable(r(0, mib+1, 0, 0)), []int{sealed}},
		{"region's offset beyond its file", reqSetMemTable, memTable(r(0, 4096, 0, mib)), []int{sealed}},
		{"region's end overflows", reqSetMemTable, memTable(r(0, 1<<63, 0, 1<<63)), []int{sealed}},
		{"region's size overflows", reqSetMemTable, memTable(r(0, 1<<64-1, 0, 1)), []int{sealed}},
		{"region of nothing", reqSetMemTable, memTable(r(0, 0, 0, 0)), []int{sealed}},
		{"region wraps for the guest", reqSetMemTable, memTable(r(1<<64-4096, mib, 0, 0)), []int{sealed}},
		{"region wraps for the front end", reqSetMemTable, memTable(r(0, mib, 1<<64-4096, 0)), []int{sealed}},
		{"regions overlap for the guest", reqSetMemTable, memTable(r(0, 8192, 0, 0), r(4096, 8192, mib, 0)), []int{sealed, sealed}},
		{"regions overlap for the front end", reqSetMemTable, memTable(r(0, 8192, 0, 0), r(mib, 8192, 8191, 0)), []int{sealed, sealed}},
		{"second region is bad", reqSetMemTable, memTable(r(0, 8192, 0, 0), r(mib, 8192, mib, 0)), []int{sealed, unsealed}},
		{"memory that can shrink", reqSetMemTable, memTable(r(0, mib, 0, 0)), []int{unsealed}},
		{"memory on a disk", reqSetMemTable, memTable(r(0, mib, 0, 0)), []int{int(file.Fd())}},
		{"memory is a pipe", reqSetMemTable, memTable(r(0, mib, 0, 0)), []int{pipe[0]}},
		{"memory is an eventfd", reqSetMemTable, memTable(r(0, mib, 0, 0)), []int{event}},

		{"queue of 0", reqSetVringNum, state(0, 0), nil},
		{"queue of 3", reqSetVringNum, state(0, 3), nil},
		{"queue of 2048", reqSetVringNum, state(0, 2048), nil},
		{"size of a running queue", reqSetVringNum, state(0, ringSize), nil},
		{"size of the third queue", reqSetVringNum, state(2, ringSize), nil},
		{"size with short payload", reqSetVringNum, state(0, ringSize)[:4], nil},
		{"base of a running queue", reqSetVringBase, state(0, 0), nil},
		{"base of 65536", reqSetVringBase, state(0, 1<<16), nil},
		{"enable 2", reqSetVringEnable, state(0, 2), nil},
		{"enable the third queue", reqSetVringEnable, state(2, 1), nil},
		{"base of queue 4 G", reqGetVringBase, state(1<<32-1, 0), nil},
		{"ring too short", reqSetVringAddr, addr(0, 0, 0)[:39], nil},
		{"ring of the third queue", reqSetVringAddr, ringAddr(2, userBase, userBase, userBase), nil},
		{"ring with a log", reqSetVringAddr, flagged, nil},

		{"kick is a pipe", reqSetVringKick, u64(0), []int{pipe[0]}},
		{"kick is a file", reqSetVringKick, u64(0), []int{int(file.Fd())}},
		{"kick is memory", reqSetVringKick, u64(0), []int{sealed}},
		{"kick blocks", reqSetVringKick, u64(0), []int{blocking}},
		{"kick by polling", reqSetVringKick, u64(vringNoFD), nil},
		{"kick without descriptor", reqSetVringKick, u64(0), nil},
		{"kick with two", reqSetVringKick, u64(0), []int{event, event}},
		{"kick of the third queue", reqSetVringKick, u64(2), []int{event}},
		{"kick with unknown bits", reqSetVringKick, u64(1 << 9), []int{event}},
		{"kick of queue 256 and more", reqSetVringKick, u64(1 << 32), []int{event}},
		{"kick with short payload", reqSetVringKick, u64(0)[:4], []int{event}},
		{"call is a pipe", reqSetVringCall, u64(0), []int{pipe[1]}},
		{"call blocks", reqSetVringCall, u64(0), []int{blocking}},
		{"call with a descriptor and none", reqSetVringCall, u64(vringNoFD), []int{event}},
	}
	g := newGuest(t)
	c, p := g.pair(7)
	fds := openFDs(t)
	for _, tt := range tests {
		if g.try(tt.request, tt.body, tt.fds...) {
			t.Errorf("%s: accepted", tt.name)
		}
	}
	if now := openFDs(t); now != fds {
		t.Errorf("%d descriptors, %d before", now, fds)
	}
	p.put(opRW, 0, []byte("x"))
	if _, err := c.Read(make([]byte, 1)); err != nil {
		t.Errorf("the device does not work any more: %v", err)
	}
	c.Write([]byte("y"))
	g.expect(opRW)
}

func TestRingsOutsideMemory(t *testing.T) {
	g := newGuest(t)
	good := [3]uint64{userBase + rxRingAt, userBase + rxRingAt + 0x8000, userBase + rxRingAt + 0x4000}
	bad := map[string][3]uint64{
		"nowhere":                  {0, 0, 0},
		"as the guest sees them":   {guestBase + rxRingAt, guestBase + rxRingAt + 0x8000, guestBase + rxRingAt + 0x4000},
		"descriptors over the end": {userBase + guestMemory - 16*ringSize + 1, good[1], good[2]},
		"used over the end":        {good[0], userBase + guestMemory - 8, good[2]},
		"avail over the end":       {good[0], good[1], userBase + guestMemory - 4},
		"avail unaligned":          {good[0], good[1], good[2] + 2},
		"used unaligned":           {good[0], good[1] + 1, good[2]},
		"address wraps":            {1<<64 - 8, good[1], good[2]},
	}
	for name, a := range bad {
		if g.try(reqSetVringAddr, ringAddr(rxQueue, a[0], a[1], a[2])) {
			t.Errorf("%s: accepted", name)
		}
	}
	g.set(reqSetVringAddr, ringAddr(rxQueue, good[0], good[1], good[2]))
	g.pair(7)
}

func openFDs(t testing.TB) int {
	t.Helper()
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(d)
}

// A file of huge pages can be sealed, but where their pool is empty the first
// touch of it is a SIGBUS.
func TestMemoryOfHugePages(t *testing.T) {
	const size = 1 << 30 // a multiple of every size of huge pages; nothing is allocated
	fd, err := unix.MemfdCreate("guest", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_HUGETLB)
	if err != nil {
		t.Skipf("no huge pages: %v", err)
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, size); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW); err != nil {
		t.Fatal(err)
	}
	g := newFrontEnd(t)
	g.negotiate()
	if g.try(reqSetMemTable, memTable(regionSpec{guest: guestBase, size: size, user: userBase}), fd) {
		t.Error("accepted")
	}
	if err := checkMemoryFile(fd, size); !errors.Is(err, errMemoryFile) {
		t.Errorf("%v", err)
	}
}

// What cannot be answered ends the conversation with an error that says why.
func TestServeEndsOnRubbish(t *testing.T) {
	head := func(req, flags, size uint32) []byte {
		return le.AppendUint32(le.AppendUint32(le.AppendUint32(nil, req), flags), size)
	}
	manyFDs := make([]int, maxMessageFDs+1)
	event, f := eventFile(t)
	defer f.Close()
	defer unix.Close(event)
	for i := range manyFDs {
		manyFDs[i] = event
	}
	tests := []struct {
		name string
		raw  []byte
		fds  []int
		want string // in the error; empty for an end without error
	}{
		{"version 2", head(1, 2, 0), nil, "bad header"},
		{"a reply", head(1, 1|flagReply, 0), nil, "bad header"},
		{"payload of 4 GiB", head(1, 1, 1<<32-1), nil, "bad header"},
		{"payload of 513 bytes", head(1, 1, 513), nil, "bad header"},
		{"request that is not known", head(77, 1, 0), nil, "unknown request"},
		{"request that fails without REPLY_ACK", head(5, 1, 0), nil, "malformed memory table"},
		{"NEED_REPLY before REPLY_ACK", head(77, 1|flagNeedReply, 0), nil, "unknown request"},
		{"malformed GET_CONFIG", append(head(24, 1, 12), state(0, 8)...), nil, "EOF"},
		{"GET_CONFIG too long", append(head(24, 1, 12), append(state(0, 1<<32-1), 0, 0, 0, 0)...), nil, "malformed GET_CONFIG"},
		{"GET_CONFIG beyond the end", append(head(24, 1, 20), append(state(252, 8), make([]byte, 12)...)...), nil, "malformed GET_CONFIG"},
		{"GET_FEATURES with payload", append(head(1, 1, 8), u64(0)...), nil, "want 0 and 0"},
		{"nine descriptors", head(1, 1, 0), manyFDs, "more than 8 descriptors"},
		{"end inside a header", head(1, 1, 0)[:5], nil, "EOF"},
		{"end inside a payload", head(2, 1, 8), nil, "EOF"},
		{"end between messages", nil, nil, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			fds := openFDs(t)
			dev, err := New(testCID)
			if err != nil {
				t.Fatal(err)
			}
			ours, theirs := socketPair(t)
			served := later(func() error { return dev.Serve(t.Context(), theirs) })
			if tt.raw != nil {
				var oob []byte
				if tt.fds != nil {
					oob = unix.UnixRights(tt.fds...)
				}
				if _, _, err := ours.WriteMsgUnix(tt.raw, oob, nil); err != nil {
					t.Fatal(err)
				}
			}
			ours.CloseWrite()
			err = receiveFrom(t, "Serve", served)
			switch {
			case tt.want == "" && err != nil:
				t.Errorf("Serve: %v", err)
			case tt.want == "EOF" && (err == nil || !errors.Is(err, io.ErrUnexpectedEOF)):
				t.Errorf("Serve: %v", err)
			case tt.want != "EOF" && tt.want != "" && (err == nil || !errors.Is(err, errFrontEnd) || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("Serve: %v, want %q", err, tt.want)
			}
			ours.Close()
			if now := openFDs(t); now != fds {
				t.Errorf("%d descriptors, %d before", now, fds)
			}
		})
	}
}

// A message may come in as many pieces as it likes.
func TestMessageInPieces(t *testing.T) {
	g := newFrontEnd(t)
	raw := le.AppendUint32(le.AppendUint32(le.AppendUint32(nil, uint32(reqGetVringBase)), flagVersion), 8)
	for _, b := range append(raw, state(1, 0)...) {
		if _, err := g.sock.Write([]byte{b}); err != nil {
			t.Fatal(err)
		}
	}
	if b, err := g.reply(reqGetVringBase); err != nil || le.Uint32(b) != 1 {
		t.Error(b, err)
	}
}

// Older front ends do not know protocol features; rings are enabled as they start.
func TestWithoutProtocolFeatures(t *testing.T) {
	g := newFrontEnd(t)
	g.freshDriver()
	if err := g.send(reqSetFeatures, 0, u64(featVersion1)); err != nil {
		t.Fatal(err)
	}
	g.send(reqSetMemTable, 0, memTable(g.wholeMemory()), g.memfd)
	for _, r := range []*driverRing{g.rx, g.tx} {
		g.send(reqSetVringNum, 0, state(r.index, ringSize))
		g.send(reqSetVringBase, 0, state(r.index, 0))
		g.send(reqSetVringAddr, 0, ringAddr(r.index, userBase+r.at, userBase+r.at+0x8000, userBase+r.at+0x4000))
		g.send(reqSetVringKick, 0, u64(uint64(r.index)), r.kickRaw)
		g.send(reqSetVringCall, 0, u64(uint64(r.index)), r.callRaw)
	}
	g.fillRx()
	g.pair(7)
}
