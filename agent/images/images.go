// Package images finds the images among the guest's disks and mounts each once,
// read-only, when it is first asked for. An image is an erofs file system on a
// disk of its own whose serial number names it. What is in an image is not
// trusted: nothing here follows a link of it.
package images

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/pybox/pybox/guest/layout"
)

// SerialPrefix and SerialDigits make a serial number: the prefix and that many
// lower-case hexadecimal digits. Both together fill the 20 bytes that a virtio
// block device has for it (Virtual I/O Device version 1.2, section 5.2.6).
const (
	SerialPrefix = "img-"
	SerialDigits = 16
)

// maxDisks bounds how many entries of /sys/block are looked at.
const maxDisks = 256

var (
	// ErrNoImage marks an image that is on no disk of this guest.
	ErrNoImage = errors.New("no such image is attached to the VM")
	// ErrLayout marks an image that no box can be made on: one of Dirs is missing
	// or no directory.
	ErrLayout = errors.New("the image has not the directories that a box needs")
)

// Dirs are what every image has at its root as real directories: mount points of
// a box, as package layout of the image builder has them. A link there would lead
// the mount elsewhere.
var Dirs = layout.Dirs()

// System is the part of the kernel that Mounts needs.
type System interface {
	// Mount mounts the erofs file system of a block device read-only, without
	// devices and set-user-id bits.
	Mount(device, target string) error
	// Unmount unmounts what Mount mounted.
	Unmount(target string) error
}

// Options say where things are.
type Options struct {
	// Sys is sysfs; /sys/block there has the disks.
	Sys fs.FS
	// Dev is the folder with the device nodes, Dir the one under which images are
	// mounted; it is made when it is missing.
	Dev, Dir string
	// System mounts.
	System System
	// Preread is called once for each image, when it has been mounted at root; what it
	// reads is charged to the agent. Nil: nothing is read ahead.
	Preread func(root string)
	// PrereadWait bounds how long Root waits for Preread.
	PrereadWait time.Duration
}

// Mounts are the images of one guest. Methods are safe for concurrent use.
type Mounts struct {
	o     Options
	group singleflight.Group // one mount of each serial at a time

	mu      sync.Mutex
	mounted map[string]Image         // by serial
	ahead   map[string]chan struct{} // by serial: closed when it has been read ahead
}

// Image is one image.
type Image struct {
	// Serial names it: SerialPrefix and SerialDigits digits.
	Serial string
	// Disk is the kernel's name of the disk, Device its "major:minor".
	Disk, Device string
	// Path is where it is mounted, empty when it is not.
	Path string
}

// New mounts nothing yet.
func New(o Options) *Mounts {
	return &Mounts{o: o, mounted: make(map[string]Image), ahead: make(map[string]chan struct{})}
}

// CheckSerial reports whether s can be the serial number of an image.
func CheckSerial(s string) error {
	digits, ok := strings.CutPrefix(s, SerialPrefix)
	if !ok || len(digits) != SerialDigits || strings.Trim(digits, "0123456789abcdef") != "" {
		return fmt.Errorf("image serial number %.40q: want %q and %d hexadecimal digits", s, SerialPrefix, SerialDigits)
	}
	return nil
}

// Root returns where the image is mounted and the "major:minor" of its device,
// and mounts it first when it is not. It fails with ErrNoImage, which lists the
// images that are attached, or with ErrLayout, which names the directory, and
// with the cause of ctx when that is done first; a mount that has begun goes on.
// While the image is being read ahead it waits for a while, so that no page of it is
// charged to whoever asked first.
func (m *Mounts) Root(ctx context.Context, serial string) (path, device string, err error) {
	if err := CheckSerial(serial); err != nil {
		return "", "", err
	}
	i, ok := m.find(serial)
	if !ok {
		select {
		case r := <-m.group.DoChan(serial, func() (any, error) { return m.mount(serial) }):
			if r.Err != nil {
				return "", "", r.Err
			}
			i = r.Val.(Image)
		case <-ctx.Done():
			return "", "", fmt.Errorf("mount the image %s: %w", serial, context.Cause(ctx))
		}
	}
	if err := m.awaitAhead(ctx, serial); err != nil {
		return "", "", err
	}
	return i.Path, i.Device, nil
}

// awaitAhead waits until the image has been read ahead, or for PrereadWait. The only
// error is that of ctx.
func (m *Mounts) awaitAhead(ctx context.Context, serial string) error {
	m.mu.Lock()
	done := m.ahead[serial]
	m.mu.Unlock()
	if done == nil {
		return nil
	}
	limit := time.NewTimer(m.o.PrereadWait)
	defer limit.Stop()
	select {
	case <-done:
	case <-limit.C:
	case <-ctx.Done():
		return fmt.Errorf("read the image %s ahead: %w", serial, context.Cause(ctx))
	}
	return nil
}

// readAhead begins to read a mounted image ahead. m.mu is held.
func (m *Mounts) readAhead(i Image) {
	if m.o.Preread == nil {
		return
	}
	done := make(chan struct{})
	m.ahead[i.Serial] = done
	go func() {
		defer close(done)
		m.o.Preread(i.Path)
	}()
}

func (m *Mounts) find(serial string) (Image, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	i, ok := m.mounted[serial]
	return i, ok
}

// mount mounts one image, unless that happened a moment ago. One whose layout is
// wrong is unmounted again.
func (m *Mounts) mount(serial string) (Image, error) {
	if i, ok := m.find(serial); ok {
		return i, nil
	}
	i, err := m.attached(serial)
	if err != nil {
		return Image{}, err
	}
	i.Path = filepath.Join(m.o.Dir, serial)
	if err := os.MkdirAll(i.Path, 0o755); err != nil {
		return Image{}, fmt.Errorf("mount the image %s: %w", serial, err)
	}
	if err := m.o.System.Mount(filepath.Join(m.o.Dev, i.Disk), i.Path); err != nil {
		return Image{}, fmt.Errorf("mount the image %s of the disk %s: %w", serial, i.Disk, err)
	}
	if err := CheckLayout(i.Path); err != nil {
		return Image{}, errors.Join(fmt.Errorf("image %s: %w", serial, err), m.o.System.Unmount(i.Path))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mounted[serial] = i
	m.readAhead(i)
	return i, nil
}

// attached finds the disk of an image. Two disks with one serial number are
// refused: which of them is meant cannot be told.
func (m *Mounts) attached(serial string) (Image, error) {
	all, err := m.List()
	if err != nil {
		return Image{}, err
	}
	var found []Image
	names := make([]string, 0, len(all))
	for _, i := range all {
		names = append(names, i.Serial)
		if i.Serial == serial {
			found = append(found, i)
		}
	}
	switch len(found) {
	case 0:
		attached := "none is"
		if len(names) > 0 {
			attached = "attached: " + strings.Join(names, ", ")
		}
		return Image{}, fmt.Errorf("%w: %s; %s", ErrNoImage, serial, attached)
	case 1:
		return found[0], nil
	}
	return Image{}, fmt.Errorf("the disks %s and %s both have the serial number %s", found[0].Disk, found[1].Disk, serial)
}

// List returns the images that are attached, in the order of their serial
// numbers. Disks with another kind of serial number, or none, are no images.
func (m *Mounts) List() ([]Image, error) {
	entries, err := readDir(m.o.Sys, "block", maxDisks)
	if err != nil {
		return nil, fmt.Errorf("list the disks: %w", err)
	}
	var list []Image
	for _, e := range entries {
		serial, err := readValue(m.o.Sys, path.Join("block", e.Name(), "serial"))
		if err != nil || CheckSerial(serial) != nil {
			continue // not every kind of disk has a serial number
		}
		device, err := readValue(m.o.Sys, path.Join("block", e.Name(), "dev"))
		if err == nil {
			err = checkDevice(device)
		}
		if err != nil {
			return nil, fmt.Errorf("device number of the disk %s: %w", e.Name(), err)
		}
		i := Image{Serial: serial, Disk: e.Name(), Device: device}
		if mounted, ok := m.find(serial); ok && mounted.Disk == i.Disk {
			i.Path = mounted.Path
		}
		list = append(list, i)
	}
	slices.SortFunc(list, func(a, b Image) int {
		return cmp.Or(cmp.Compare(a.Serial, b.Serial), cmp.Compare(a.Disk, b.Disk))
	})
	return list, nil
}

// checkDevice reports whether s is a device number as sysfs writes it,
// "major:minor".
func checkDevice(s string) error {
	major, minor, _ := strings.Cut(s, ":")
	for _, n := range []string{major, minor} {
		if v, err := strconv.ParseUint(n, 10, 32); err != nil || n != strconv.FormatUint(v, 10) {
			return fmt.Errorf("%.40q: want two numbers with a colon between", s)
		}
	}
	return nil
}

// readDir reads up to limit entries of a folder.
func readDir(fsys fs.FS, name string, limit int) ([]fs.DirEntry, error) {
	f, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	d, ok := f.(fs.ReadDirFile)
	if !ok {
		return nil, &fs.PathError{Op: "readdir", Path: name, Err: errors.New("not a folder")}
	}
	entries, err := d.ReadDir(limit)
	if errors.Is(err, io.EOF) {
		err = nil // it is empty
	}
	return entries, err
}

// readValue reads a small file of sysfs: one value, which a line feed or what
// fills a serial number may follow.
func readValue(fsys fs.FS, name string) (string, error) {
	f, err := fsys.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, 64))
	return strings.TrimRight(string(b), " \n\x00"), err
}

// CheckLayout reports whether the file system at root has Dirs as real
// directories. It fails with ErrLayout when one is missing or anything else.
func CheckLayout(root string) error {
	r, err := os.OpenRoot(root)
	if err != nil {
		return fmt.Errorf("check the image: %w", err)
	}
	defer r.Close()
	for _, name := range Dirs {
		info, err := r.Lstat(name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("%w: /%s is missing", ErrLayout, name)
		case err != nil:
			return fmt.Errorf("check the image: %w", err)
		case !info.IsDir():
			return fmt.Errorf("%w: /%s is %s, want a directory", ErrLayout, name, kind(info.Mode()))
		}
	}
	return nil
}

func kind(m fs.FileMode) string {
	switch {
	case m&fs.ModeSymlink != 0:
		return "a symbolic link"
	case m.IsRegular():
		return "a file"
	}
	return "a special file"
}
