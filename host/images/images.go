// Package images is the store of images of one's own: those that 'pybox image'
// builds or imports, each an erofs file that is named by its content, and a small
// record of what is in it and where that came from. It makes no images, and knows
// nothing of wheels, registries or VMs beyond how many disks one has.
//
// The layout below the state folder:
//
//	images/NAME.json       the record of an image
//	images/SHA256.erofs    its content; images with the same content share it
//	images/stage-*/        images that are being made
//	images/lock            held shared by who reads contents, exclusively by who changes anything
//
// A record appears only when the content that it names is complete and on disk, and
// a content goes only when no record names it. Records and contents are checked
// whenever they are read: nothing but their owner keeps them from being changed.
package images

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/gofrs/flock"
)

// Dir is the store's folder in a state folder.
const Dir = "images"

// MaxImages is how many images of one's own a store keeps: as many disks as a
// machine has (vm.MaxDisks) without the root and the one image that every bundle
// has. Where the bundle has more images, fewer fit; see Room.
const MaxImages = 14

const (
	lockName     = "lock"
	recordSuffix = ".json"
	imageSuffix  = ".erofs"
	stagePrefix  = "stage-"
	// lockPoll is how often a lock is tried, lockWait how long a change waits for
	// those who read: a VM that starts holds it while it verifies all contents.
	lockPoll = 20 * time.Millisecond
	lockWait = 2 * time.Minute
	// maxEntries bounds the entries of the folder.
	maxEntries = 1000
)

// Sentinels, to be tested with errors.Is.
var (
	// ErrNotFound: the store has no image of that name.
	ErrNotFound = errors.New("there is no image of your own with that name")
	// ErrExists: it has one, and it was not to be replaced.
	ErrExists = errors.New("an image with that name exists")
	// ErrFull: there is no room for one more.
	ErrFull = errors.New("no room for another image")
	// ErrDamaged: a record or a content is not what it has to be.
	ErrDamaged = errors.New("the image is damaged")
	// ErrName: an image cannot have that name.
	ErrName = errors.New("not a name for an image")
)

// errStray goes with ErrDamaged: what is there can be no record, and no command of
// PyBox makes or removes it.
var errStray = errors.New("is no record of an image")

// Store is the images below one folder. Its methods are safe for concurrent use,
// also by several processes.
type Store struct{ dir string }

// Open opens the store in the state folder home, and makes its folder when it is
// missing.
func Open(home string) (*Store, error) {
	s := View(home)
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return nil, fmt.Errorf("making the folder of images: %w", err)
	}
	return s, nil
}

// View opens the store for who only looks. It makes nothing: where there is no folder
// there are no images.
func View(home string) *Store { return &Store{dir: filepath.Join(home, Dir)} }

// Dir is the store's folder.
func (s *Store) Dir() string { return s.dir }

// Path is the file with an image's content.
func (s *Store) Path(r *Record) string { return filepath.Join(s.dir, r.SHA256+imageSuffix) }

// Entry is an image of the store: its record, or why that cannot be read, by an error
// that matches ErrDamaged or comes from the system.
type Entry struct {
	Name   string
	Record *Record
	Err    error
}

// List gives all images by their names. It reads the records alone, no content. What
// is named as a record and is none is among them, as damaged.
func (s *Store) List() ([]Entry, error) {
	names, err := s.names()
	if err != nil {
		return nil, err
	}
	var list []Entry
	for _, n := range names {
		name, ok := strings.CutSuffix(n, recordSuffix)
		if !ok {
			continue
		}
		r, err := s.read(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed a moment ago
		}
		list = append(list, Entry{name, r, err})
	}
	slices.SortFunc(list, func(a, b Entry) int { return cmp.Compare(a.Name, b.Name) })
	return list, nil
}

// Bases are the images of the bundle that those of the store were built upon, by name.
func (s *Store) Bases() map[string]string {
	bases := map[string]string{}
	list, _ := s.List() // as far as it goes
	for _, e := range list {
		if e.Record != nil && e.Record.Built != nil {
			bases[e.Name] = e.Record.Built.Base.Name
		}
	}
	return bases
}

// names are those of the folder's entries. More than maxEntries are an error: who sees
// only some of them can say of no image that it is not there.
func (s *Store) names() ([]string, error) {
	d, err := os.Open(s.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing the images: %w", err)
	}
	defer d.Close()
	names, err := d.Readdirnames(maxEntries + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("listing the images: %w", err)
	}
	if len(names) > maxEntries {
		return nil, fmt.Errorf("listing the images: %s has more than %d entries; move away what does not belong there", s.dir, maxEntries)
	}
	return names, nil
}

// Get gives the record of an image. The error matches ErrNotFound or ErrDamaged.
func (s *Store) Get(name string) (*Record, error) {
	if err := CheckName(name); err != nil {
		return nil, fmt.Errorf("%w: %.80q", ErrNotFound, name)
	}
	r, err := s.read(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %q", ErrNotFound, name)
	}
	return r, err
}

func (s *Store) recordPath(name string) string { return filepath.Join(s.dir, name+recordSuffix) }

// read reads a record and holds it to its rules and its name.
func (s *Store) read(name string) (*Record, error) {
	if st, err := os.Lstat(s.recordPath(name)); err == nil && (CheckName(name) != nil || st.IsDir()) {
		return nil, fmt.Errorf("%w: %s %w", ErrDamaged, s.recordPath(name), errStray)
	}
	b, err := readSmall(s.recordPath(name))
	if err != nil {
		return nil, err
	}
	r, err := ParseRecord(b)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %s: %w", ErrDamaged, s.recordPath(name), err)
	case r.Name != name:
		return nil, fmt.Errorf("%w: %s is the record of another image, %q", ErrDamaged, s.recordPath(name), r.Name)
	}
	return r, nil
}

// readSmall reads a record's file: a regular one, and no more of it than a record
// can have.
func readSmall(name string) ([]byte, error) {
	f, err := openRegular(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxRecordBytes+1))
}

// openRegular opens a regular file and nothing else: no link, and no FIFO that would
// block, whenever it came there.
func openRegular(name string) (*os.File, error) {
	st, err := os.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%w: %s is no regular file", ErrDamaged, name)
	}
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if now, err := f.Stat(); err != nil || !os.SameFile(st, now) {
		f.Close()
		return nil, fmt.Errorf("%w: %s was replaced while it was opened", ErrDamaged, name)
	}
	return f, nil
}

// Room reports whether an image called name can be added where the bundle has so
// many images: one more, or in the place of one with that name. The error matches
// ErrFull and says what to do.
func (s *Store) Room(name string, bundled int) error {
	list, err := s.List()
	if err != nil {
		return err
	}
	return room(list, name, bundled)
}

func room(list []Entry, name string, bundled int) error {
	if slices.ContainsFunc(list, func(e Entry) bool { return e.Name == name }) {
		return nil
	}
	most := Slots(bundled)
	if len(list) < most {
		return nil
	}
	return fmt.Errorf("%w: a VM has %d disks, one for its root, %d for the images of the guest bundle and %d for images of your own, and there are %d of those: 'pybox image list' lists them, 'pybox image remove NAME' makes room",
		ErrFull, maxDisks, max(bundled, 1), most, len(list))
}

// flock is the store's lock, which nobody has yet.
func (s *Store) flock() *flock.Flock {
	return flock.New(filepath.Join(s.dir, lockName), flock.SetPermissions(0o600))
}

// lock takes the store's lock, exclusively or shared, until the function that it
// gives is called. It waits until ctx ends, and for no longer than wait if that is not 0.
func (s *Store) lock(ctx context.Context, exclusive bool, wait time.Duration) (unlock func(), err error) {
	l := s.flock()
	bounded := ctx
	if wait > 0 {
		var cancel context.CancelFunc
		bounded, cancel = context.WithTimeout(ctx, wait)
		defer cancel()
	}
	try := l.TryRLockContext
	if exclusive {
		try = l.TryLockContext
	}
	if _, err := try(bounded, lockPoll); err != nil {
		_ = l.Close()
		if ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
			return nil, fmt.Errorf("another command holds %s for longer than %v; try again when it has ended", l.Path(), wait)
		}
		return nil, fmt.Errorf("waiting for the lock of the images: %w", err)
	}
	return func() { _ = l.Close() }, nil
}

// change calls f while nobody else reads or changes the store, and then removes what
// nothing needs, whatever became of f.
func (s *Store) change(ctx context.Context, f func() error) error {
	unlock, err := s.lock(ctx, true, lockWait)
	if err != nil {
		return err
	}
	err = f()
	abandoned := s.prune()
	unlock()
	closeAll(abandoned)
	return err
}

// tidy removes what nothing needs, unless somebody has the store just now.
func (s *Store) tidy() {
	l := s.flock()
	defer l.Close()
	if ok, err := l.TryLock(); err != nil || !ok {
		return
	}
	abandoned := s.prune()
	_ = l.Unlock()
	closeAll(abandoned)
}

// Remove removes an image: its record, and its content unless another image has the
// same. A VM that runs keeps the disk that it has. It gives the record, which is nil
// when it was damaged. The error matches ErrNotFound.
func (s *Store) Remove(ctx context.Context, name string) (r *Record, err error) {
	if _, err := s.Get(name); err != nil && !errors.Is(err, ErrDamaged) {
		return nil, err
	}
	err = s.change(ctx, func() error {
		r, err = s.Get(name)
		if errors.Is(err, errStray) {
			return fmt.Errorf("%w: %s", err, s.remedy(name, err))
		}
		if err != nil && !errors.Is(err, ErrDamaged) {
			return err
		}
		err := os.Remove(s.recordPath(name))
		if err == nil {
			err = syncDir(s.dir)
		}
		if err != nil {
			return fmt.Errorf("removing the image: %w", err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return r, nil
}

// remedy says what to do about an image, by what is wrong with it.
func (s *Store) remedy(name string, err error) string {
	if errors.Is(err, errStray) {
		return "move " + s.recordPath(name) + " away"
	}
	return fmt.Sprintf("make it again with --replace, or 'pybox image remove %s'", name)
}

// prune removes contents without a record, and gives the stages of makers that were cut
// off, for the caller to close when others can have the store again: they may be large.
// The lock is held exclusively. It is best effort: what stays is only space. Where it is
// not sure of all records, no content goes.
func (s *Store) prune() (abandoned []*Stage) {
	names, err := s.names()
	if err != nil {
		return nil
	}
	list, err := s.List()
	if err != nil {
		return nil
	}
	used, whole := map[string]bool{}, true
	for _, e := range list {
		if e.Err != nil {
			whole = false // nobody knows what it names
			continue
		}
		used[e.Record.SHA256] = true
	}
	for _, n := range names {
		sum, content := strings.CutSuffix(n, imageSuffix)
		switch {
		case content && isSHA256(sum) && whole && !used[sum]:
			_ = os.Remove(filepath.Join(s.dir, n))
		case strings.HasPrefix(n, stagePrefix):
			if st := abandonedStage(filepath.Join(s.dir, n)); st != nil {
				abandoned = append(abandoned, st)
			}
		}
	}
	return abandoned
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
