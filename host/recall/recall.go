// Package recall remembers runs whose ids their clients chose: what was asked for, and
// the whole of what came of it, output included, so that a client that lost its connection
// asks for the same again and gets the same run. Records are in memory alone, for ten
// minutes from the end of their runs, and bounded in bytes and number: the oldest go first.
// It knows nothing of HTTP, and runs nothing.
package recall

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/receipt"
)

const (
	// Keep is how long a record is kept after the end of its run.
	Keep = 10 * time.Minute
	// MaxBytes bounds all records together, in bytes: output and receipts. What a run
	// in progress may still print counts: there is room for two of those that may print
	// as much as the ceiling allows by default.
	MaxBytes = 66 << 20
	// MaxRecords bounds their number.
	MaxRecords = 1024
	// receiptRoom is what is reserved for the receipt of a run in progress.
	receiptRoom = 256 << 10
	// fileBytes is what a stored file counts that a run used up: its id and its digest.
	fileBytes = 256
)

// ErrOther: the id was used for a request that is not the same.
var ErrOther = errors.New("the id was used for another request")

// Digest identifies what a client asks for.
type Digest = [sha256.Size]byte

// limits are MaxBytes and so on; tests have smaller ones.
type limits struct {
	bytes   int64
	records int
}

// Store holds records. It is safe for concurrent use.
type Store struct {
	now    func() time.Time
	forget func(ids []string)
	max    limits

	mu    sync.Mutex
	left  []string // the ids that unlock has forgotten
	all   map[string]*Record
	kept  int   // records that have begun, those that are gone and somebody has too
	bytes int64 // theirs
}

// New makes a Store. now is the clock. forget is called with the ids of the files that runs
// left when their records go and no client has had them, before that returns which made
// them go. It may take its time: others are not kept from their records.
func New(now func() time.Time, forget func(ids []string)) *Store {
	return &Store{now: now, forget: forget, max: limits{MaxBytes, MaxRecords}, all: map[string]*Record{}}
}

// Record is what is remembered of one run.
type Record struct {
	s  *Store
	id string
	// known is closed when it is decided whether there is a run: began tells, and digest
	// does not change from then on.
	known  chan struct{}
	began  bool
	digest Digest
	ended  chan struct{} // closed with the run

	// These are guarded by s.mu.
	files     map[string]string
	change    chan struct{} // closed at the next change
	streams   [2]Output
	exited    *api.Event
	end       *End
	until     time.Time // once it has ended
	bytes     int64     // what is reserved, or used
	readers   int
	gone      bool // it is in the store no more
	delivered bool
}

// End is how a run ended: with a receipt, or with the error that there was none.
type End struct {
	// Receipt has the ids of the files that came back, and no output.
	Receipt *receipt.Receipt
	// NotKept is why it could not be stored.
	NotKept error
	Err     error
}

// Enter gives the record of the run with that id. first tells that there is none, and that
// the caller now makes it: with Begin, or not, and then with Drop. Otherwise the run has
// begun, and the caller may read the record. Both end with Release. Whoever enters while it is not
// decided yet waits for that, until ctx ends; the error is the cause of that.
func (s *Store) Enter(ctx context.Context, id string) (r *Record, first bool, err error) {
	for {
		r, first = s.enter(id)
		if first {
			return r, true, nil
		}
		select {
		case <-r.known:
		case <-ctx.Done():
			r.Release()
			return nil, false, context.Cause(ctx)
		}
		if r.began {
			return r, false, nil
		}
		r.Release()
	}
}

func (s *Store) enter(id string) (*Record, bool) {
	s.mu.Lock()
	defer s.unlock()
	s.sweep()
	if r := s.all[id]; r != nil {
		r.readers++
		return r, false
	}
	r := &Record{s: s, id: id, known: make(chan struct{}), ended: make(chan struct{}), change: make(chan struct{}), readers: 1}
	s.all[id] = r
	return r, true
}

// Begin says that the run has begun, what was asked for with it, the digests of the stored
// files that it used up, by their ids, and how much it can print on each stream. false:
// there is no room for a record, and r is of no use. One goroutine calls Output, Exited and
// Finish then.
func (r *Record) Begin(d Digest, files map[string]string, streamBytes int64) bool {
	s := r.s
	s.mu.Lock()
	defer s.unlock()
	need := int64(len(r.streams))*streamBytes + receiptRoom + fileBytes*int64(len(files))
	if !s.room(need) {
		s.drop(r)
		return false
	}
	r.bytes = need
	s.bytes += need
	s.kept++
	r.began, r.digest, r.files = true, d, files
	close(r.known)
	return true
}

// Drop gives the record of a run up that has not come to a receipt: whoever asks again
// tries again. After Finish it does nothing.
func (r *Record) Drop() {
	s := r.s
	s.mu.Lock()
	defer s.unlock()
	if r.end != nil || r.gone {
		return
	}
	if !r.began {
		s.drop(r)
		return
	}
	r.finish(End{Err: errors.New("the daemon failed while it carried the run out")})
	s.remove(r)
}

// drop takes a record out that has not begun; the lock is held.
func (s *Store) drop(r *Record) {
	r.gone = true
	delete(s.all, r.id)
	close(r.known)
}

// room makes room for a record of so many bytes, at the cost of the oldest; false: there
// is none, and none is given up for nothing. The lock is held.
func (s *Store) room(bytes int64) bool {
	most, kept := s.bytes, s.kept // what is left if all go that can
	for _, r := range s.all {
		if r.idle() {
			most -= r.bytes
			kept--
		}
	}
	if most+bytes > s.max.bytes || kept >= s.max.records {
		return false
	}
	for s.bytes+bytes > s.max.bytes || s.kept >= s.max.records {
		s.remove(s.oldest((*Record).idle))
	}
	return true
}

// idle tells whether the run has ended and nobody has the record; the lock is held.
func (r *Record) idle() bool { return r.end != nil && r.readers == 0 }

// oldest is the record that ended before all others, of those that match and nobody has;
// nil: there is none. The lock is held.
func (s *Store) oldest(match func(*Record) bool) (first *Record) {
	for _, r := range s.all {
		if r.idle() && match(r) && (first == nil || r.until.Before(first.until)) {
			first = r
		}
	}
	return first
}

// remove takes a record out of the store; its room is free when nobody has it any more.
// The lock is held.
func (s *Store) remove(r *Record) {
	if r.gone {
		return
	}
	r.gone = true
	delete(s.all, r.id)
	if !r.delivered {
		s.left = append(s.left, r.left()...)
	}
	s.free(r)
}

// unlock ends what locking s.mu began, and forgets what the records left that went meanwhile.
func (s *Store) unlock() {
	ids := s.left
	s.left = nil
	s.mu.Unlock()
	if len(ids) > 0 {
		s.forget(ids)
	}
}

// free gives the room of a record back that is gone and that nobody has; the lock is held.
func (s *Store) free(r *Record) {
	if r.gone && r.readers == 0 && r.bytes > 0 {
		s.bytes -= r.bytes
		s.kept--
		r.bytes = 0
	}
}

// left are the ids of the files that came back.
func (r *Record) left() (ids []string) {
	if r.end == nil || r.end.Receipt == nil {
		return nil
	}
	for _, f := range r.end.Receipt.Program.Files {
		if f.File != "" {
			ids = append(ids, f.File)
		}
	}
	return ids
}

// sweep forgets what is over; the lock is held.
func (s *Store) sweep() {
	now := s.now()
	for _, r := range s.all {
		if r.end != nil && !now.Before(r.until) {
			s.remove(r)
		}
	}
}

// Sweep forgets records whose time is over. Enter does so too; the owner calls it now and
// then so that memory is not kept.
func (s *Store) Sweep() {
	s.mu.Lock()
	defer s.unlock()
	s.sweep()
}

// Relieve gives up the oldest records whose files no client has had, until so many files
// and bytes of those are forgotten, or there are no more: other runs wait for that room.
func (s *Store) Relieve(files, bytes int64) {
	s.mu.Lock()
	defer s.unlock()
	for files > 0 || bytes > 0 {
		r := s.oldest(func(r *Record) bool { return !r.delivered && len(r.left()) > 0 })
		if r == nil {
			return
		}
		for _, f := range r.end.Receipt.Program.Files {
			if f.File != "" {
				files--
				bytes -= f.Bytes
			}
		}
		s.remove(r)
	}
}

// Output takes a piece of output; stream is 1 or 2. It does not keep b.
func (r *Record) Output(stream int, b []byte) {
	r.s.mu.Lock()
	defer r.s.unlock()
	if r.end != nil {
		return // it was dropped
	}
	r.streams[stream-1].Add(b)
	r.changed()
}

// Exited takes the event that the program has ended.
func (r *Record) Exited(e api.Event) {
	r.s.mu.Lock()
	defer r.s.unlock()
	r.exited = &e
	r.changed()
}

// Finish takes the end of the run. One without a receipt is forgotten, but for those who
// wait for it.
func (r *Record) Finish(e End) {
	used := int64(1)
	if e.Receipt != nil {
		b, _ := json.Marshal(e.Receipt) // of the size alone
		used = 2 * int64(len(b))
	}
	s := r.s
	s.mu.Lock()
	defer s.unlock()
	if r.end != nil {
		return // it was dropped
	}
	for i := range r.streams {
		r.streams[i].End()
		used += r.streams[i].Len()
	}
	used += fileBytes * int64(len(r.files))
	s.bytes += used - r.bytes
	r.bytes = used
	r.finish(e)
	if e.Receipt == nil {
		s.remove(r)
	}
}

// finish ends the record; the lock is held.
func (r *Record) finish(e End) {
	r.end, r.until = &e, r.s.now().Add(Keep)
	close(r.ended)
	r.changed()
}

// Ended is closed when the run has ended.
func (r *Record) Ended() <-chan struct{} { return r.ended }

// changed wakes those who wait; the lock is held.
func (r *Record) changed() {
	close(r.change)
	r.change = make(chan struct{})
}

// Untaken is how many runs have ended whose receipts no client has had.
func (s *Store) Untaken() (n int) {
	s.mu.Lock()
	defer s.unlock()
	now := s.now()
	for _, r := range s.all {
		if r.end != nil && !r.delivered && now.Before(r.until) {
			n++
		}
	}
	return n
}

// Delivered says that a client has had the receipt, and with it the ids of the files that
// the run left: they are no more forgotten with the record.
func (r *Record) Delivered() {
	r.s.mu.Lock()
	defer r.s.unlock()
	r.delivered = true
}

// GiveUp forgets a record whose files no client has had, if nobody has it: others wait for
// their room.
func (r *Record) GiveUp() {
	r.s.mu.Lock()
	defer r.s.unlock()
	if r.idle() && !r.delivered && len(r.left()) > 0 {
		r.s.remove(r)
	}
}

// Release ends the use of a record.
func (r *Record) Release() {
	r.s.mu.Lock()
	defer r.s.unlock()
	r.readers--
	r.s.free(r)
}

// Files are the digests of the stored files that the run, and those who asked for it again,
// used up, by their ids.
func (r *Record) Files() map[string]string {
	r.s.mu.Lock()
	defer r.s.unlock()
	return maps.Clone(r.files)
}

// Used takes the stored files that somebody used up who asked for the run again, as long as
// there is room: whoever does so once more finds them.
func (r *Record) Used(files map[string]string) {
	s := r.s
	s.mu.Lock()
	defer s.unlock()
	room := fileBytes * int64(len(files))
	if r.gone || room == 0 || !s.room(room) { // r itself has a reader
		return
	}
	if r.files == nil {
		r.files = map[string]string{}
	}
	maps.Copy(r.files, files)
	s.bytes += room
	r.bytes += room
}

// Check tells whether the run is the one that d asks for. The error matches ErrOther.
func (r *Record) Check(d Digest) error {
	if d != r.digest {
		return fmt.Errorf("%w: %s", ErrOther, r.id)
	}
	return nil
}

// Wait waits for the end of the run and gives that and the output, which nobody changes.
// The error is the cause of ctx.
func (r *Record) Wait(ctx context.Context) (End, [2]Output, error) {
	for {
		r.s.mu.Lock()
		end, streams, change := r.end, r.streams, r.change
		r.s.mu.Unlock()
		if end != nil {
			return *end, streams, nil
		}
		select {
		case <-change:
		case <-ctx.Done():
			return End{}, [2]Output{}, context.Cause(ctx)
		}
	}
}

// Part is the next that a reader gets. It has exactly one of Output, Exited and End.
type Part struct {
	// Stream is 1 or 2, with Output, which must not be changed.
	Stream int
	Output []byte
	Exited *api.Event
	End    *End
}

// Cursor reads a record from its beginning. One goroutine at a time may use it.
type Cursor struct {
	r      *Record
	at     [2]place
	exited bool
}

// place is where a cursor is in an Output.
type place struct{ chunk, off int }

// Read begins to read r.
func (r *Record) Read() *Cursor { return &Cursor{r: r} }

// Next waits for the next part. Everything that was printed comes before End, which is the
// last; how the two streams were mixed is not remembered. The error is the cause of ctx.
func (c *Cursor) Next(ctx context.Context) (Part, error) {
	for {
		p, change := c.next()
		if change == nil {
			return p, nil
		}
		select {
		case <-change:
		case <-ctx.Done():
			return Part{}, context.Cause(ctx)
		}
	}
}

// next gives a part that is there, or what is closed when there may be one.
func (c *Cursor) next() (Part, <-chan struct{}) {
	r := c.r
	r.s.mu.Lock()
	defer r.s.unlock()
	for i := range r.streams {
		if b := c.at[i].read(r.streams[i].chunks); len(b) > 0 {
			return Part{Stream: i + 1, Output: b}, nil
		}
	}
	switch {
	case r.exited != nil && !c.exited:
		c.exited = true
		return Part{Exited: r.exited}, nil
	case r.end != nil:
		return Part{End: r.end}, nil
	}
	return Part{}, r.change
}

// read gives the rest of a chunk.
func (p *place) read(chunks [][]byte) []byte {
	for ; p.chunk < len(chunks); p.chunk, p.off = p.chunk+1, 0 {
		if b := chunks[p.chunk][p.off:]; len(b) > 0 {
			p.off += len(b)
			return b
		}
		if p.chunk == len(chunks)-1 {
			break // it may grow
		}
	}
	return nil
}
