package shell

import (
	"io"
	"sync"
	"time"
)

const (
	// lingerTimeout bounds the waiting for more of an output whose program, and all
	// that was killed with it, has ended. What they wrote is there already.
	lingerTimeout = 5 * time.Second
	// maxLinger bounds what is read of it then: a pipe holds 64 KiB, and at most 1 MiB
	// unless root allows more (pipe(7)).
	maxLinger = 1 << 20
)

// output is what a program prints. As long as the program runs it is as it comes.
// Once end was called it also ends when somebody whom End did not reach keeps it open:
// after some time of waiting for more, which a slow client does not use up, or after
// some bytes. It has one reader.
type output struct {
	io.ReadCloser
	// held is called when it had to be closed, before that.
	held func()

	mu      sync.Mutex
	ended   bool
	reading bool
	left    time.Duration // of the waiting
	room    int           // bytes
	since   time.Time     // when the waiting that goes on began
	late    *time.Timer
}

// Read implements io.Reader.
func (o *output) Read(b []byte) (int, error) {
	b, ok := o.begin(b)
	if !ok {
		return 0, io.EOF
	}
	n, err := o.ReadCloser.Read(b)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.reading = false
	if o.ended {
		o.late.Stop()
		o.left -= time.Since(o.since)
		o.room -= n
	}
	return n, err
}

// begin gives the part of b that may be read to, and false where nothing may.
func (o *output) begin(b []byte) ([]byte, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ended && o.room <= 0 {
		return nil, false
	}
	if o.ended {
		b = b[:min(len(b), o.room)]
	}
	o.reading = true
	o.limit()
	return b, true
}

// end tells that those have ended whose output it was, and bounds the waiting for more.
func (o *output) end(wait time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ended, o.left, o.room = true, wait, maxLinger
	o.limit()
}

// limit bounds the read that goes on. The lock is held.
func (o *output) limit() {
	if !o.ended || !o.reading {
		return
	}
	o.since = time.Now()
	o.late = time.AfterFunc(o.left, func() {
		o.held()
		_ = o.Close()
	})
}
