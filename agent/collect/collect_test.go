package collect

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pybox/pybox/agent/api"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
)

// wide lets everything back.
var wide = Bounds{Files: api.MaxLeft, Bytes: 1 << 40, Collect: true}

// folder makes a working folder out of the files of what.
func folder(t *testing.T, what map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range what {
		write(t, dir, name, text)
	}
	return dir
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
		t.Fatal(err)
	}
}

// knows is a Known of those files and folders, which end with "/".
func knows(what map[string]string) *Known {
	k := NewKnown()
	for name, text := range what {
		if f, is := strings.CutSuffix(name, "/"); is {
			k.Folder(f)
		} else {
			_, _ = k.File(name, false).Write([]byte(text))
		}
	}
	return k
}

// taken is what a sink got.
type taken struct {
	names []string
	data  map[string]string
}

func (s *taken) sink() Sink {
	s.data = map[string]string{}
	return Sink{
		Begin: func(f *agentv1.LeftFile) error {
			name := f.GetName()
			s.names = append(s.names, name)
			if f.GetFolder() {
				name += "/"
			}
			s.data[name] = ""
			return nil
		},
		Data: func(b []byte) error {
			s.data[s.names[len(s.names)-1]] += string(b)
			return nil
		},
	}
}

// look looks, sends, and holds what was sent to the account.
func lookAt(t *testing.T, dir string, k *Known, b Bounds) (*taken, *agentv1.Left) {
	t.Helper()
	f, err := Look(t.Context(), dir, k, b)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s := &taken{}
	if err := f.Send(t.Context(), s.sink()); err != nil {
		t.Fatal(err)
	}
	left := f.Left()
	if left.GetComplete() != (f.Missing() == "") {
		t.Errorf("complete %v, missing %q", left.GetComplete(), f.Missing())
	}
	if len(left.GetFiles()) != len(s.names) || !slices.IsSorted(s.names) {
		t.Errorf("sent %q, the account says %v", s.names, left.GetFiles())
	}
	total := int64(0)
	for i, m := range left.GetFiles() {
		total += m.GetBytes()
		if m.GetName() != s.names[i] || !m.GetFolder() && int64(len(s.data[m.GetName()])) != m.GetBytes() {
			t.Errorf("%q was sent with %d bytes, the account says %v", s.names[i], len(s.data[m.GetName()]), m)
		}
	}
	if int64(len(s.names)) > b.Files || total > b.Bytes {
		t.Errorf("%d files of %d bytes came back", len(s.names), total)
	}
	event := &agentv1.RunEvent{Event: &agentv1.RunEvent_LeftFile{}}
	for _, m := range left.GetFiles() {
		event.Event = &agentv1.RunEvent_LeftFile{LeftFile: m}
		if err := api.Validate(event); err != nil {
			t.Error(err)
		}
	}
	return s, left
}

// others shows what did not come back, as "reason name bytes".
func others(left *agentv1.Left) (list []string) {
	for _, o := range left.GetOthers() {
		list = append(list, fmt.Sprintf("%s %s %d", o.GetReason(), o.GetName(), o.GetBytes()))
	}
	for _, c := range left.GetUnlisted() {
		list = append(list, fmt.Sprintf("%d %s %d", c.GetCount(), c.GetReason(), c.GetBytes()))
	}
	return list
}

func same(t *testing.T, what string, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s:\n got %q\nwant %q", what, got, want)
	}
}

func TestLookTellsNewAndChangedFromWhatWasThere(t *testing.T) {
	given := map[string]string{
		"main.py": "print(1)", "data/same": "same", "data/changed": "abcd", "data/longer": "abc", "data/gone": "x",
		"data/touched": "touched", "data/replaced": "replaced", "data/run": "#!", "data/now a folder": "", "was/": "", "empty": "",
	}
	dir := folder(t, map[string]string{
		"main.py": "print(1)", "data/same": "same", "data/changed": "abce", "data/longer": "abcd", "data/touched": "touched",
		"data/run": "#!", "data/now a folder/f": "", "new/deep/er": "new", "empty": "", "data/also new": "also",
	})
	for _, d := range []string{"was", "new/empty"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write(t, dir, "other", "replaced")
	if err := errors.Join(
		os.Rename(filepath.Join(dir, "other"), filepath.Join(dir, "data/replaced")), // another inode
		os.Chtimes(filepath.Join(dir, "data/touched"), time.Now(), time.Now().Add(time.Hour)),
		os.Chtimes(filepath.Join(dir, "data/changed"), time.Unix(1, 0), time.Unix(1, 0)),
		os.Chmod(filepath.Join(dir, "data/run"), 0o755),
	); err != nil {
		t.Fatal(err)
	}
	s, left := lookAt(t, dir, knows(given), wide)
	same(t, "what came back", s.names, []string{
		"data/also new", "data/changed", "data/longer", "data/now a folder", "data/now a folder/f", "data/run", "new", "new/deep", "new/deep/er", "new/empty",
	})
	same(t, "others", others(left), nil)
	if s.data["data/changed"] != "abce" || s.data["new/deep/er"] != "new" || !left.GetComplete() {
		t.Errorf("%q, %v", s.data, left)
	}
	i := slices.IndexFunc(left.GetFiles(), func(f *agentv1.LeftFile) bool { return f.GetExecutable() })
	if i < 0 || left.GetFiles()[i].GetName() != "data/run" {
		t.Errorf("executable: %v", left)
	}
}

// A large file is compared to its last byte.
func TestLookComparesAllOfAFile(t *testing.T) {
	const size = 3*bufferBytes + 5
	text := strings.Repeat("x", size)
	for _, at := range []int{-1, 0, bufferBytes - 1, bufferBytes, size - 1} {
		now := []byte(text)
		if at >= 0 {
			now[at] = 'y'
		}
		k := NewKnown()
		f := k.File("big", false)
		for b := []byte(text); len(b) > 0; b = b[min(len(b), 1000):] { // in other pieces than it is read
			_, _ = f.Write(b[:min(len(b), 1000)])
		}
		s, _ := lookAt(t, folder(t, map[string]string{"big": string(now)}), k, wide)
		if changed := len(s.names) == 1; changed != (at >= 0) {
			t.Errorf("a change at %d: %v", at, changed)
		}
	}
}

// Nothing but regular files and folders is opened, and no link is followed.
func TestLookAtWhatIsNoFile(t *testing.T) {
	secret := t.TempDir()
	write(t, secret, "secret", "secret")
	dir := folder(t, map[string]string{"file": "x", "inside/f": "y"})
	in := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(
		os.Symlink(filepath.Join(secret, "secret"), in("absolute")), os.Symlink(secret, in("folder elsewhere")),
		os.Symlink("../../../../../../etc/passwd", in("relative")), os.Symlink("file", in("link")), os.Symlink("inside", in("link to folder")),
		os.Symlink("loop", in("loop")), os.Symlink("nowhere", in("nowhere")),
		syscall.Mkfifo(in("fifo"), 0o644), syscall.Mkfifo(in("inside/fifo"), 0o644), os.Link(in("file"), in("hard")),
	); err != nil {
		t.Fatal(err)
	}
	sock, err := net.Listen("unix", in("sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer sock.Close()
	opened := make(chan struct{})
	go func() { // a reader of the FIFO would let this end
		if f, err := os.OpenFile(in("fifo"), os.O_WRONLY, 0); err == nil {
			_ = f.Close()
		}
		close(opened)
	}()
	s, left := lookAt(t, dir, NewKnown(), wide)
	same(t, "what came back", s.names, []string{"file", "hard", "inside", "inside/f"})
	same(t, "others", others(left), []string{
		"link absolute 0", "special fifo 0", "link folder elsewhere 0", "special inside/fifo 0", "link link 0", "link link to folder 0",
		"link loop 0", "link nowhere 0", "link relative 0", "special sock 0",
	})
	if !left.GetComplete() {
		t.Errorf("%v", left)
	}
	select {
	case <-opened:
		t.Error("the FIFO was opened")
	default:
	}
	f, err := os.OpenFile(in("fifo"), os.O_RDONLY|syscall.O_NONBLOCK, 0) // and now it is
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	<-opened
}

// An input whose place a link has taken is a link.
func TestLookAtALinkInThePlaceOfAnInput(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(os.Symlink("/etc/passwd", filepath.Join(dir, "in")), os.Symlink("/etc", filepath.Join(dir, "d"))); err != nil {
		t.Fatal(err)
	}
	s, left := lookAt(t, dir, knows(map[string]string{"in": "x", "d/passwd": "x"}), wide)
	same(t, "what came back", s.names, nil)
	same(t, "others", others(left), []string{"link d 0", "link in 0"})
}

func TestLookAtNames(t *testing.T) {
	long := strings.Repeat("n", 255)
	dir := folder(t, map[string]string{
		"été/日本": "1", "a\nb": "2", "\xff\xfe": "3", "\x1b[2J/f": "4", ".pybox/x": "5", ".hidden": "6", "sub/.Pybox-Output-0/f": "s", long: "7", "a b\\c": "8", "\u0085": "9", "-x": "0",
	})
	s, left := lookAt(t, dir, NewKnown(), wide)
	same(t, "what came back", s.names, []string{"-x", ".hidden", "a b\\c", long, "sub", "été", "été/日本"})
	same(t, "others", others(left), []string{
		"name .pybox 0", "name .pybox/x 1", `name \u0085 1`, `name \x1b[2J 0`, `name \x1b[2J/f 1`, `name \xff\xfe 1`, `name a\nb 1`,
		"name sub/.Pybox-Output-0 0", "name sub/.Pybox-Output-0/f 1",
	})
}

func TestLookDeep(t *testing.T) {
	deep := strings.Repeat("d/", api.MaxNameDepth-1)
	dir := folder(t, map[string]string{deep + "f": "1", deep + "d/f": "22", deep + "d/d/f": "333"})
	s, left := lookAt(t, dir, NewKnown(), wide)
	if len(s.names) != api.MaxNameDepth+1 || s.data[deep+"f"] != "1" {
		t.Errorf("%q", s.names)
	}
	same(t, "others", others(left), []string{"too_deep " + deep + "d/d 0", "too_deep " + deep + "d/f 2"})
	if !left.GetComplete() {
		t.Errorf("%v", left)
	}
}

// A thousand folders in one another, whose path is longer than any call takes.
func TestLookAtAThousandFolders(t *testing.T) {
	dir := t.TempDir()
	at, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	name := strings.Repeat("d", 255)
	for range 1000 {
		if err := at.Mkdir(name, 0o755); err != nil {
			t.Fatal(err)
		}
		below, err := at.OpenRoot(name)
		if err = errors.Join(err, at.Close()); err != nil {
			t.Fatal(err)
		}
		at = below
	}
	_ = at.Close()
	s, left := lookAt(t, dir, NewKnown(), wide)
	// 2,048 bytes hold seven parts of 255; the others are no names.
	if len(s.names) != 8 || len(left.GetOthers()) != api.MaxNameDepth-8+1 {
		t.Errorf("%d came back, others %d", len(s.names), len(left.GetOthers()))
	}
}

func TestBoundsOfWhatComesBack(t *testing.T) {
	files := map[string]string{"a": "1", "b/c": "22", "b/d": "333", "e": "4444", "f": "55555", "g/": ""}
	dir := t.TempDir()
	for name, text := range files {
		if d, is := strings.CutSuffix(name, "/"); is {
			if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
				t.Fatal(err)
			}
			continue
		}
		write(t, dir, name, text)
	}
	for _, c := range []struct {
		name         string
		b            Bounds
		back, others []string
	}{
		{"all", Bounds{7, 15, true}, []string{"a", "b", "b/c", "b/d", "e", "f", "g"}, nil},
		{"one file fewer", Bounds{6, 15, true}, []string{"a", "b", "b/c", "b/d", "e", "f"}, []string{"too_many g 0"}},
		{"one byte fewer", Bounds{7, 14, true}, []string{"a", "b", "b/c", "b/d", "e", "g"}, []string{"too_large f 5"}},
		{"a small one after large ones", Bounds{7, 3, true}, []string{"a", "b", "b/c", "g"}, []string{"too_large b/d 3", "too_large e 4", "too_large f 5"}},
		{"no bytes", Bounds{7, 0, true}, []string{"b", "g"}, []string{"too_large a 1", "too_large b/c 2", "too_large b/d 3", "too_large e 4", "too_large f 5"}},
		{"two files", Bounds{2, 15, true}, []string{"a", "b"}, []string{"too_many b/c 2", "too_many b/d 3", "too_many e 4", "too_many f 5", "too_many g 0"}},
		{"no files", Bounds{0, 15, true}, nil, []string{"too_many a 1", "too_many b 0", "too_many b/c 2", "too_many b/d 3", "too_many e 4", "too_many f 5", "too_many g 0"}},
		{"not asked", Bounds{7, 15, false}, nil, []string{"not_asked a 1", "not_asked b 0", "not_asked b/c 2", "not_asked b/d 3", "not_asked e 4", "not_asked f 5", "not_asked g 0"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, left := lookAt(t, dir, NewKnown(), c.b)
			same(t, "what came back", s.names, c.back)
			same(t, "others", others(left), c.others)
		})
	}
}

// A place that a file has not taken, since it did not fit, goes to the next.
func TestPlacesOfWhatDoesNotFit(t *testing.T) {
	dir := folder(t, map[string]string{"a": "666666", "b": "666666", "c": "1", "d": "1"})
	s, left := lookAt(t, dir, NewKnown(), Bounds{2, 10, true})
	same(t, "what came back", s.names, []string{"a", "c"})
	same(t, "others", others(left), []string{"too_large b 6", "too_many d 1"})
}

// Sparse files of more bytes than there are cost nothing.
func TestLookAtGiants(t *testing.T) {
	dir := folder(t, map[string]string{"small": "x"})
	size := int64(math.MaxInt64)
	for n := range 3 {
		f, err := os.Create(filepath.Join(dir, fmt.Sprintf("giant %d", n)))
		if err != nil {
			t.Fatal(err)
		}
		for f.Truncate(size) != nil { // what this file system takes
			if size /= 2; size < 1<<40 {
				t.Skip("this file system takes no file of a tebibyte")
			}
		}
		_ = f.Close()
	}
	t.Logf("%d bytes", size)
	s, left := lookAt(t, dir, NewKnown(), Bounds{Files: 10, Bytes: 1 << 39, Collect: true})
	same(t, "what came back", s.names, []string{"small"})
	told := min(size, api.MaxLeftSize)
	same(t, "others", others(left), []string{
		fmt.Sprintf("too_large giant 0 %d", told), fmt.Sprintf("too_large giant 1 %d", told), fmt.Sprintf("too_large giant 2 %d", told),
	})
}

// Of very many files the first come back, the next are listed, and the rest is
// counted, in little memory.
func TestLookAtVeryManyFiles(t *testing.T) {
	const n = 10_000
	dir := t.TempDir()
	for i := range n {
		write(t, dir, fmt.Sprintf("%05d %s", (i*7919)%n, strings.Repeat("x", 200)), "ab")
	}
	b := Bounds{Files: 32, Bytes: 1 << 20, Collect: true}
	s, left := lookAt(t, dir, NewKnown(), b)
	for i, name := range s.names {
		if !strings.HasPrefix(name, fmt.Sprintf("%05d ", i)) {
			t.Errorf("file %d is %q", i, name)
		}
	}
	if len(s.names) != 32 || len(left.GetOthers()) != api.MaxNotReturned || !strings.HasPrefix(left.GetOthers()[0].GetName(), "00032 ") {
		t.Errorf("%d came back, %d others, the first %v", len(s.names), len(left.GetOthers()), left.GetOthers()[0])
	}
	const rest = n - 32 - api.MaxNotReturned
	same(t, "unlisted", others(left)[api.MaxNotReturned:], []string{fmt.Sprintf("%d too_many %d", rest, 2*rest)})
}

// What there is no time for is said to be missing.
func TestLookEndsWithItsContext(t *testing.T) {
	dir := folder(t, map[string]string{"a": "1", "b": "2"})
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("time is over"))
	f, err := Look(ctx, dir, NewKnown(), wide)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if !strings.Contains(f.Missing(), "only 0 entries were looked at: time is over") || f.Left().GetComplete() || f.Sends() {
		t.Errorf("%q, %v", f.Missing(), f.Left())
	}
}

func TestLookSeesABoundedNumber(t *testing.T) {
	l := &look{ctx: t.Context(), found: &Found{}, seen: MaxSeen - 1}
	if !l.goesOn() || l.goesOn() || !strings.Contains(l.found.Missing(), "only 131072") {
		t.Errorf("%d seen, %q", l.seen, l.found.Missing())
	}
}

func TestNamesTogetherAreBounded(t *testing.T) {
	dir := t.TempDir()
	for i := range 1000 {
		write(t, dir, fmt.Sprintf("%s/%04d%s", strings.Repeat("d", 250), i, strings.Repeat("x", 240)), "")
	}
	s, left := lookAt(t, dir, NewKnown(), wide)
	names := 0
	for _, n := range s.names {
		names += len(n)
	}
	if names > api.MaxNames || names < api.MaxNames-1000 || len(left.GetOthers()) != api.MaxNotReturned || left.GetOthers()[0].GetReason() != api.LeftTooMany {
		t.Errorf("%d files with names of %d bytes, others %d", len(s.names), names, len(left.GetOthers()))
	}
}

func TestSendEndsWithItsSink(t *testing.T) {
	dir := folder(t, map[string]string{"a": "1", "b": strings.Repeat("x", 3*api.MaxDataPiece)})
	begun := func() *Found {
		f, err := Look(t.Context(), dir, NewKnown(), wide)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		return f
	}
	broken := errors.New("broken")
	pieces := 0
	err := begun().Send(t.Context(), Sink{
		Begin: func(*agentv1.LeftFile) error { return nil },
		Data: func(b []byte) error {
			if pieces++; pieces == 3 {
				return broken
			}
			return nil
		},
	})
	if !errors.Is(err, broken) || pieces != 3 {
		t.Errorf("%v after %d pieces", err, pieces)
	}

	t.Run("a stop", func(t *testing.T) {
		f := begun()
		stop, cancel := context.WithCancelCause(t.Context())
		s := &taken{}
		sink := s.sink()
		data := sink.Data
		sink.Data = func(b []byte) error {
			cancel(errors.New("the client asked for it"))
			return data(b)
		}
		if err := f.Send(stop, sink); err != nil {
			t.Fatal(err)
		}
		same(t, "what was sent", s.names, []string{"a"})
		if s.data["a"] != "1" || f.Left().GetComplete() || !strings.Contains(f.Missing(), "1 of 2 files were not sent: the client asked for it") {
			t.Errorf("%q, %v", f.Missing(), f.Left())
		}
	})
	t.Run("a stop in a file", func(t *testing.T) {
		f := begun()
		stop, cancel := context.WithCancelCause(t.Context())
		s := &taken{}
		sink := s.sink()
		data := sink.Data
		sink.Data = func(b []byte) error {
			if len(s.data["b"]) > 0 { // this is its second piece
				cancel(errors.New("the client asked for it"))
			}
			return data(b)
		}
		if err := f.Send(stop, sink); err != nil {
			t.Fatal(err)
		}
		const size = 3 * api.MaxDataPiece
		why := fmt.Sprintf(`"b" was cut, with %d of its %d bytes not sent: the client asked for it`, api.MaxDataPiece, size)
		if len(s.data["b"]) != 2*api.MaxDataPiece || f.Missing() != why {
			t.Errorf("%d bytes were sent, missing %q", len(s.data["b"]), f.Missing())
		}
		if left := f.Left(); left.GetComplete() || len(left.GetFiles()) != 2 || left.GetFiles()[1].GetBytes() != size {
			t.Errorf("the account has not what was begun: %v", left)
		}
	})
	t.Run("another file", func(t *testing.T) {
		f := begun()
		write(t, dir, "a", "not what was looked at")
		s := &taken{}
		if err := f.Send(t.Context(), s.sink()); err != nil {
			t.Fatal(err)
		}
		same(t, "what was sent", s.names, []string{"b"})
		same(t, "others", others(f.Left()), []string{"unreadable a 1"})
	})
	t.Run("a shorter file", func(t *testing.T) {
		f := begun()
		err := f.Send(t.Context(), Sink{
			Begin: func(m *agentv1.LeftFile) error {
				if m.GetName() == "b" {
					return os.Truncate(filepath.Join(dir, "b"), 5)
				}
				return nil
			},
			Data: func([]byte) error { return nil },
		})
		if !errors.Is(err, ErrChanged) {
			t.Errorf("%v", err)
		}
	})
}

// A sink that fails because nothing more is wanted cuts the file, and the account has it:
// also when it was the file's last piece.
func TestSendIsCutByItsSink(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "a", "a piece")
	f, err := Look(t.Context(), dir, NewKnown(), Bounds{Files: 10, Bytes: 100, Collect: true})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	stop, cancel := context.WithCancel(t.Context())
	err = f.Send(stop, Sink{
		Begin: func(*agentv1.LeftFile) error { return nil },
		Data:  func([]byte) error { cancel(); return io.ErrClosedPipe },
	})
	if left := f.Left(); err != nil || left.GetComplete() || len(left.GetFiles()) != 1 || f.Missing() == "" {
		t.Errorf("%v, %v, missing %q", err, left, f.Missing())
	}
}

// A sink may go on using a piece while the next one is read.
func TestPiecesStayUntilTheNextCallReturns(t *testing.T) {
	var all bytes.Buffer
	for i := range 5 {
		all.Write(bytes.Repeat([]byte{byte(i)}, api.MaxDataPiece))
	}
	f, err := Look(t.Context(), folder(t, map[string]string{"f": all.String()}), NewKnown(), wide)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var held []byte
	n := byte(0)
	err = f.Send(t.Context(), Sink{
		Begin: func(*agentv1.LeftFile) error { return nil },
		Data: func(b []byte) error {
			if held != nil && held[0] != n-1 {
				t.Errorf("piece %d has become %d", n-1, held[0])
			}
			held, n = b, n+1
			return nil
		},
	})
	if err != nil || n != 5 {
		t.Errorf("%v after %d pieces", err, n)
	}
}

// first keeps the first, whatever the order in which items come.
func FuzzFirst(f *testing.F) {
	f.Add("b a c", uint8(2))
	f.Add("", uint8(0))
	f.Fuzz(func(t *testing.T, names string, most uint8) {
		all := strings.Fields(names)
		kept := newFirst(int(most))
		var out []string
		for _, name := range all {
			if i, full := kept.offer(item{name: name}); full {
				out = append(out, i.name)
			}
		}
		var in []string
		for _, i := range kept.sorted() {
			in = append(in, i.name)
		}
		slices.Sort(all)
		slices.Sort(out)
		n := min(len(all), int(most))
		if !slices.Equal(in, all[:n]) || !slices.Equal(out, all[n:]) {
			t.Errorf("of %q in %q, out %q", all, in, out)
		}
	})
}
