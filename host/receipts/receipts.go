// Package receipts keeps the receipts of runs in a folder of the state directory,
// bounded in number and without the programs' output. It composes, judges and
// shows none.
//
// Each receipt is one file, called by the time of its run and its id, so that
// names sort by time. Files that the store did not make are never touched. Any
// number of processes may use one folder: the daemon does, and a client whose
// daemon has died.
package receipts

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"

	agentapi "github.com/pybox/pybox/agent/api"
	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/receipt"
)

// MaxBytes bounds the file of one receipt. A receipt at all of its bounds is
// smaller.
const MaxBytes = 8 << 20

var (
	// ErrNotFound: no receipt with that id is kept.
	ErrNotFound = errors.New("no such receipt is kept")
	// ErrAmbiguous: several of the kept ids begin like that.
	ErrAmbiguous = errors.New("several receipts have ids that begin like that")
	// ErrBadID: no run can have that id.
	ErrBadID = errors.New("no run has such an id")
	// ErrDamaged: a file of the folder is not what the store wrote.
	ErrDamaged = errors.New("the file of the receipt is damaged")
	// ErrVersion: a receipt is of a format that this PyBox does not know.
	ErrVersion = errors.New("the receipt has a format that this PyBox does not know")
	// ErrReadOnly: the store was opened by View.
	ErrReadOnly = errors.New("the receipts were opened for reading only")
)

// Store is one folder of receipts. It is safe for concurrent use.
type Store struct {
	folder folder
	keep   int          // 0: read-only
	sync   func() error // makes names durable

	// changing is held by who has the folder's lock, or waits for it: so the wait
	// for that is for other processes only. It comes before mu.
	changing sync.Mutex

	mu    sync.Mutex // held for memory and the folder's mark, never for a wait
	index index
	// change is the folder's mark of the last change that the index knows of.
	change string
}

func newStore(dir string, keep int) *Store {
	f := folder(dir)
	return &Store{folder: f, keep: keep, sync: f.sync}
}

// Open opens the folder at dir, which it makes when it is missing, to keep at
// most keep receipts: the oldest go. It removes what a crash has left half
// written. The error matches home.ErrUnsafe when others can read or change what
// is in the folder.
func Open(dir string, keep int) (*Store, error) {
	if keep < 1 {
		return nil, fmt.Errorf("keeping %d receipts: want at least 1", keep)
	}
	s := newStore(dir, keep)
	if err := s.folder.prepare(); err != nil {
		return nil, err
	}
	unlock, err := s.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	stale, err := s.scan()
	if err != nil {
		return nil, err
	}
	if err := s.folder.clearLeftovers(); err != nil {
		return nil, err
	}
	for _, e := range stale {
		s.drop(e)
	}
	s.prune("")
	return s, nil
}

// View opens the folder at dir for reading as it is now: it changes nothing there
// and makes nothing. A folder that is missing has no receipts.
func View(dir string) (*Store, error) {
	s := newStore(dir, 0)
	err := s.folder.check()
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return nil, err
	}
	if _, err := s.scan(); err != nil {
		return nil, err
	}
	return s, nil
}

// Put stores r durably, in the place of the one with its id if there is one. The
// output itself is left out. When it fails nothing that was kept is lost. The error
// is a sentence about the receipt: it may be kept, and not be durable.
func (s *Store) Put(r *receipt.Receipt) error {
	b, err := encode(r)
	if err == nil {
		err = s.put(entry{id: r.Run.ID, ms: r.Run.StartedAt.UnixMilli()}, b)
	}
	if err != nil {
		return fmt.Errorf("the receipt could not be kept: %w", err)
	}
	if err := s.sync(); err != nil {
		return fmt.Errorf("the receipt is kept, but a crash of this machine could lose it: %w", err)
	}
	return nil
}

func (s *Store) put(e entry, b []byte) error {
	if s.keep == 0 {
		return ErrReadOnly
	}
	unlock, err := s.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if err := s.rescan(); err != nil {
		return err
	}
	// The mark goes first: whoever sees it waits for the lock before reading.
	if err := s.mark(); err != nil {
		return err
	}
	if err := s.folder.write(e.name(), b); err != nil {
		return err
	}
	if old, ok := s.find(e.id); ok && old != e {
		s.drop(old)
	}
	s.mu.Lock()
	s.index.add(e)
	s.mu.Unlock()
	s.prune(e.id)
	return nil
}

// lock takes the folder's lock, which every change of the index needs too.
func (s *Store) lock() (unlock func(), err error) {
	s.changing.Lock()
	free, err := s.folder.lock()
	if err != nil {
		s.changing.Unlock()
		return nil, err
	}
	return func() { free(); s.changing.Unlock() }, nil
}

// mark marks the folder as changed by this store. Called with the lock.
func (s *Store) mark() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, err := s.folder.mark()
	if err == nil {
		s.change = m
	}
	return err
}

func (s *Store) find(id string) (entry, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.index.find(id)
}

// entries are those of the index, oldest first.
func (s *Store) entries() []entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.index.entries)
}

// prune removes the oldest beyond what is kept, but not the one of the id spare. A
// file that cannot be removed is tried again next time. Called with the lock.
func (s *Store) prune(spare string) {
	entries := s.entries()
	extra := len(entries) - s.keep
	for _, e := range entries {
		if extra <= 0 {
			return
		}
		if e.id != spare && s.drop(e) {
			extra--
		}
	}
}

// drop removes a file of the store and tells whether it is gone. Called with the
// lock.
func (s *Store) drop(e entry) bool {
	if err := os.Remove(s.folder.path(e.name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.index.remove(e)
	return true
}

// Has tells whether a receipt with that id is kept. It waits for nobody: what
// another process is just storing it may not know of.
func (s *Store) Has(id string) bool {
	s.glance()
	e, ok := s.find(id)
	if !ok {
		return false
	}
	_, err := os.Lstat(s.folder.path(e.name()))
	return !errors.Is(err, fs.ErrNotExist)
}

// Get reads the receipt with that id. The error matches ErrNotFound, ErrDamaged or
// ErrVersion.
func (s *Store) Get(id string) (*receipt.Receipt, error) {
	e, err := s.entry(id)
	if err != nil {
		return nil, err
	}
	r, err := s.folder.read(e)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, notFound(id)
	}
	return r, err
}

func (s *Store) entry(id string) (entry, error) {
	if err := s.refresh(); err != nil {
		return entry{}, err
	}
	e, ok := s.find(id)
	if !ok {
		return entry{}, notFound(id)
	}
	return e, nil
}

func notFound(id string) error { return fmt.Errorf("%w: %q", ErrNotFound, id) }

// Find gives the id that prefix is, or the only kept one that begins with it. The
// error matches ErrBadID, ErrNotFound or ErrAmbiguous.
func (s *Store) Find(prefix string) (string, error) {
	if agentapi.CheckRunID(prefix) != nil {
		return "", fmt.Errorf("%w: %.60q: ids are 1 to %d of a-z, 0-9 and \"-\"", ErrBadID, prefix, agentapi.MaxRunID)
	}
	if err := s.refresh(); err != nil {
		return "", err
	}
	if e, ok := s.find(prefix); ok {
		return e.id, nil
	}
	const some = 5
	var ids []string
	for _, e := range slices.Backward(s.entries()) {
		if strings.HasPrefix(e.id, prefix) {
			ids = append(ids, e.id)
		}
	}
	switch {
	case len(ids) == 0:
		return "", notFound(prefix)
	case len(ids) == 1:
		return ids[0], nil
	case len(ids) > some:
		return "", fmt.Errorf("%w: %q: %s and %d more", ErrAmbiguous, prefix, strings.Join(ids[:some], ", "), len(ids)-some)
	}
	return "", fmt.Errorf("%w: %q: %s", ErrAmbiguous, prefix, strings.Join(ids, ", "))
}

// List gives the newest of the receipts, newest first, at most limit. One whose
// file cannot be read is among them, with Damaged saying why.
func (s *Store) List(limit int) ([]api.ReceiptSummary, error) {
	newest, err := s.newest(limit)
	if err != nil {
		return nil, err
	}
	list := make([]api.ReceiptSummary, 0, len(newest))
	for _, e := range newest {
		r, err := s.folder.read(e)
		switch {
		case errors.Is(err, fs.ErrNotExist): // removed meanwhile
		case err != nil:
			list = append(list, api.ReceiptSummary{
				ID: e.id, StartedAt: e.at(), How: receipt.HowUnknown, ExitCode: receipt.ExitFailed, Damaged: err.Error(),
			})
		default:
			list = append(list, summary(r))
		}
	}
	return list, nil
}

// Count is how many receipts are kept, whether they can be read or not.
func (s *Store) Count() (int, error) {
	if err := s.refresh(); err != nil {
		return 0, err
	}
	return len(s.entries()), nil
}

// Newest gives the id of the receipt whose run was started last, if there is one.
func (s *Store) Newest() (id string, ok bool) {
	e, err := s.newest(1)
	if err != nil || len(e) == 0 {
		return "", false
	}
	return e[0].id, true
}

func (s *Store) newest(limit int) ([]entry, error) {
	if err := s.refresh(); err != nil {
		return nil, err
	}
	newest := s.entries()
	newest = newest[max(0, len(newest)-max(0, limit)):]
	slices.Reverse(newest)
	return newest, nil
}

func summary(r *receipt.Receipt) api.ReceiptSummary {
	return api.ReceiptSummary{
		ID: r.Run.ID, StartedAt: r.Run.StartedAt, Image: r.Configured.Image.Name, Program: r.Configured.Program.Name,
		How: r.Ending.How, ExitCode: r.ExitCode(), ElapsedMS: r.Run.GuestElapsedMS,
	}
}

// stale tells whether others have changed the folder since the index was read.
func (s *Store) stale() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.keep != 0 && s.folder.lastChange() != s.change
}

// refresh brings the index up to what other processes have stored.
func (s *Store) refresh() error {
	if !s.stale() {
		return nil
	}
	unlock, err := s.lock()
	if err != nil {
		return err
	}
	defer unlock()
	return s.rescan()
}

// glance is refresh where nobody changes the folder just now.
func (s *Store) glance() {
	if !s.stale() || !s.changing.TryLock() {
		return
	}
	defer s.changing.Unlock()
	if unlock, ok := s.folder.tryLock(); ok {
		defer unlock()
		_ = s.rescan() // what was known before is the best answer then
	}
}

// rescan is refresh for who holds the lock.
func (s *Store) rescan() error {
	if !s.stale() {
		return nil
	}
	_, err := s.scan()
	return err
}

// scan reads the index from the names in the folder. Called with the lock, or
// before the store is used.
func (s *Store) scan() (stale []entry, err error) {
	change := s.folder.lastChange()
	index, stale, err := s.folder.scan()
	if err == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.index, s.change = index, change
	}
	return stale, err
}
