package images

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"
)

const (
	serialA = "img-0123456789abcdef"
	serialB = "img-00000000000000ff"
)

// kernel is a System that "mounts" by filling the mount point.
type kernel struct {
	fail   error
	fill   func(target string) error
	begin  chan struct{} // when set, receives one value a mount
	finish chan struct{} // and the mount waits for one

	mu    sync.Mutex
	calls []string
}

func (k *kernel) note(format string, args ...any) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.calls = append(k.calls, fmt.Sprintf(format, args...))
}

func (k *kernel) Mount(device, target string) error {
	k.note("mount %s %s", device, filepath.Base(target))
	if k.begin != nil {
		k.begin <- struct{}{}
		<-k.finish
	}
	if k.fail != nil {
		return k.fail
	}
	return k.fill(target)
}

func (k *kernel) Unmount(target string) error {
	k.note("unmount %s", filepath.Base(target))
	return os.RemoveAll(target)
}

func makeLayout(target string) error {
	for _, d := range Dirs {
		if err := os.MkdirAll(filepath.Join(target, d), 0o755); err != nil {
			return err
		}
	}
	return nil
}

// disks is a sysfs with disks, each with its serial number.
func disks(serials map[string]string) fstest.MapFS {
	sys := fstest.MapFS{"block": {Mode: fs.ModeDir | 0o755}}
	n := 0
	for disk, serial := range serials {
		sys["block/"+disk+"/dev"] = &fstest.MapFile{Data: fmt.Appendf(nil, "254:%d\n", n)}
		sys["block/"+disk+"/serial"] = &fstest.MapFile{Data: []byte(serial)}
		n += 16
	}
	return sys
}

func mounts(t *testing.T, k *kernel, sys fs.FS) *Mounts {
	t.Helper()
	if k.fill == nil {
		k.fill = makeLayout
	}
	return New(Options{Sys: sys, Dev: "/dev", Dir: filepath.Join(t.TempDir(), "images"), System: k})
}

func TestRootMountsOnceWhenAsked(t *testing.T) {
	k := new(kernel)
	sys := disks(map[string]string{"vda": "root", "vdb": serialA + "\x00\n", "vdc": serialB, "sr0": ""})
	sys["block/loop0/dev"] = &fstest.MapFile{Data: []byte("7:0\n")} // no serial number at all
	sys["block/vdb/dev"] = &fstest.MapFile{Data: []byte("254:16\n")}
	m := mounts(t, k, sys)
	list, err := m.List()
	if err != nil || len(list) != 2 || list[0].Serial != serialB || list[1] != (Image{serialA, "vdb", "254:16", ""}) {
		t.Errorf("list: %+v, %v", list, err)
	}
	if len(k.calls) != 0 {
		t.Errorf("mounted before anybody asked: %v", k.calls)
	}
	for range 2 {
		path, dev, err := m.Root(t.Context(), serialA)
		if err != nil || path != filepath.Join(m.o.Dir, serialA) || dev != "254:16" {
			t.Fatalf("root: %q, %q, %v", path, dev, err)
		}
	}
	if want := []string{"mount /dev/vdb " + serialA}; !slices.Equal(k.calls, want) {
		t.Errorf("%q, want %q", k.calls, want)
	}
	if list, err := m.List(); err != nil || list[1].Path == "" || list[0].Path != "" {
		t.Errorf("list afterwards: %+v, %v", list, err)
	}
}

func TestRootAtTheSameTime(t *testing.T) {
	k := &kernel{begin: make(chan struct{}), finish: make(chan struct{})}
	m := mounts(t, k, disks(map[string]string{"vdb": serialA, "vdc": serialB}))
	var wg sync.WaitGroup
	for _, serial := range []string{serialA, serialB} {
		for range 8 {
			wg.Go(func() {
				if _, _, err := m.Root(t.Context(), serial); err != nil {
					t.Error(err)
				}
			})
		}
	}
	// Both images are being mounted at once: neither waits for the other.
	for range 2 {
		select {
		case <-k.begin:
		case <-time.After(20 * time.Second):
			t.Fatal("no mount has begun")
		}
	}
	// Whoever does not want to wait does not.
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("the client went away"))
	if _, _, err := m.Root(ctx, serialA); !errors.Is(err, context.Cause(ctx)) {
		t.Errorf("with a context that is done: %v", err)
	}
	close(k.finish)
	wg.Wait()
	if len(k.calls) != 2 {
		t.Errorf("%q, want two mounts", k.calls)
	}
}

func TestNoImage(t *testing.T) {
	m := mounts(t, new(kernel), disks(map[string]string{"vda": "root", "vdb": serialA}))
	_, _, err := m.Root(t.Context(), serialB)
	if !errors.Is(err, ErrNoImage) || !strings.Contains(err.Error(), "attached: "+serialA) || strings.Contains(err.Error(), "root") {
		t.Errorf("%v", err)
	}
	m = mounts(t, new(kernel), disks(nil))
	if _, _, err = m.Root(t.Context(), serialB); !errors.Is(err, ErrNoImage) || !strings.Contains(err.Error(), "none is") {
		t.Errorf("%v", err)
	}
	m = mounts(t, new(kernel), fstest.MapFS{})
	if _, _, err = m.Root(t.Context(), serialB); err == nil || errors.Is(err, ErrNoImage) {
		t.Errorf("without sysfs: %v", err)
	}
}

func TestTwoDisksWithOneSerial(t *testing.T) {
	k := new(kernel)
	m := mounts(t, k, disks(map[string]string{"vdb": serialA, "vdc": serialA}))
	if _, _, err := m.Root(t.Context(), serialA); err == nil || !strings.Contains(err.Error(), "vdb and vdc") {
		t.Errorf("%v", err)
	}
	if len(k.calls) != 0 {
		t.Errorf("%q", k.calls)
	}
}

func TestBadDeviceNumber(t *testing.T) {
	for _, dev := range []string{"", "254", "254:", ":0", "254:0:0", "254:-1", "254:01", "a:0", strings.Repeat("9", 100)} {
		sys := disks(map[string]string{"vdb": serialA})
		sys["block/vdb/dev"].Data = []byte(dev)
		if _, _, err := mounts(t, new(kernel), sys).Root(t.Context(), serialA); err == nil {
			t.Errorf("the device number %q is taken", dev)
		}
	}
}

// A mount that failed is tried again when it is asked for again.
func TestMountFails(t *testing.T) {
	k := &kernel{fail: errors.New("not an erofs")}
	m := mounts(t, k, disks(map[string]string{"vdb": serialA}))
	if _, _, err := m.Root(t.Context(), serialA); !errors.Is(err, k.fail) {
		t.Errorf("%v", err)
	}
	k.fail = nil
	if _, _, err := m.Root(t.Context(), serialA); err != nil {
		t.Error(err)
	}
}

func TestLayout(t *testing.T) {
	outside := t.TempDir()
	for _, dir := range Dirs {
		for what, spoil := range map[string]func(path string) error{
			"is missing": func(string) error { return nil },
			"is a file":  func(p string) error { return os.WriteFile(p, nil, 0o755) },
			// A link is refused wherever it leads, to a directory too.
			"is a symbolic link": func(p string) error { return os.Symlink(outside, p) },
		} {
			t.Run(dir+" "+what, func(t *testing.T) {
				k := &kernel{fill: func(target string) error {
					if err := makeLayout(target); err != nil {
						return err
					}
					p := filepath.Join(target, dir)
					return errors.Join(os.Remove(p), spoil(p))
				}}
				m := mounts(t, k, disks(map[string]string{"vdb": serialA}))
				_, _, err := m.Root(t.Context(), serialA)
				if !errors.Is(err, ErrLayout) || !strings.Contains(err.Error(), "/"+dir+" "+what) {
					t.Errorf("%v", err)
				}
				if want := []string{"mount /dev/vdb " + serialA, "unmount " + serialA}; !slices.Equal(k.calls, want) {
					t.Errorf("%q, want %q", k.calls, want)
				}
				if list, err := m.List(); err != nil || list[0].Path != "" {
					t.Errorf("list: %+v, %v", list, err)
				}
			})
		}
	}
}

func TestCheckSerial(t *testing.T) {
	for _, s := range []string{"", "img-", serialA[:19], serialA + "0", "root", "img-0123456789abcdeF", "img-../../../../../etc",
		"IMG-0123456789abcdef", "img-0123456789abcde\n"} {
		if CheckSerial(s) == nil {
			t.Errorf("%q is taken", s)
		}
		if _, _, err := mounts(t, new(kernel), disks(nil)).Root(t.Context(), s); err == nil || errors.Is(err, ErrNoImage) {
			t.Errorf("root of %q: %v", s, err)
		}
	}
	if err := CheckSerial(serialA); err != nil || len(serialA) != 20 {
		t.Errorf("%q: %v", serialA, err)
	}
}

// Neither the serial number nor the device number of a disk leads outside or
// breaks anything.
func FuzzList(f *testing.F) {
	f.Add([]byte(serialA), []byte("254:0\n"))
	f.Add([]byte("img-../../x\x00"), []byte(":"))
	f.Add([]byte{}, []byte("4294967296:1"))
	f.Fuzz(func(t *testing.T, serial, dev []byte) {
		m := New(Options{System: new(kernel), Sys: fstest.MapFS{
			"block/vdb/serial": {Data: serial}, "block/vdb/dev": {Data: dev},
		}})
		list, err := m.List()
		if err != nil {
			return
		}
		for _, i := range list {
			if CheckSerial(i.Serial) != nil || checkDevice(i.Device) != nil || !filepath.IsLocal(i.Serial) {
				t.Errorf("%+v", i)
			}
		}
	})
}

// TestPreread: an image is read ahead once, when it is mounted; whoever asks waits for
// that, but not longer than the bound and its own context.
func TestPreread(t *testing.T) {
	begun, end := make(chan string, 9), make(chan struct{})
	m := mounts(t, new(kernel), disks(map[string]string{"vdb": serialA, "vdc": serialB}))
	m.o.Preread = func(root string) { begun <- filepath.Base(root); <-end }
	m.o.PrereadWait = time.Millisecond
	if _, _, err := m.Root(t.Context(), serialA); err != nil {
		t.Errorf("one that takes long: %v", err)
	}
	m.o.PrereadWait = time.Hour
	ctx, cancel := context.WithCancelCause(t.Context())
	away := errors.New("the client went away")
	cancel(away)
	if _, _, err := m.Root(ctx, serialA); !errors.Is(err, away) {
		t.Errorf("a client that went away: %v", err)
	}
	got := make(chan error, 1)
	go func() {
		path, _, err := m.Root(t.Context(), serialA)
		if err == nil && filepath.Base(path) != serialA {
			err = fmt.Errorf("mounted at %s", path)
		}
		got <- err
	}()
	select {
	case err := <-got:
		t.Fatalf("it did not wait: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	close(end)
	if err := <-got; err != nil {
		t.Error(err)
	}
	if _, _, err := m.Root(t.Context(), serialB); err != nil {
		t.Error(err)
	}
	if first, second := <-begun, <-begun; first != serialA || second != serialB || len(begun) != 0 {
		t.Errorf("read ahead: %s, %s and %d more", first, second, len(begun))
	}
}

// TestNoPreread: what was not mounted is not read.
func TestNoPreread(t *testing.T) {
	m := mounts(t, &kernel{fail: errors.New("no erofs")}, disks(map[string]string{"vdb": serialA}))
	m.o.Preread = func(root string) { t.Errorf("%s is read", root) }
	if _, _, err := m.Root(t.Context(), serialA); err == nil {
		t.Error("it was mounted")
	}
}
