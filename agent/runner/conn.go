package runner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Status is how a program ended, as its parent, the box's init, saw it.
type Status struct {
	// OK tells that the init reported the end. Raw is then what waitpid(2)
	// gave it: an exit with its code or a death by its signal.
	OK  bool
	Raw syscall.WaitStatus
	// PID was the program's process, as the agent sees it; 0: it is not known.
	// It is the kernel's word, not the box's.
	PID int
	// Err says why there is no report when OK is false. It matches ErrGone
	// (the init was killed, perhaps with the whole box), ErrNotStarted,
	// ErrBroken, ErrProtocol or net.ErrClosed.
	Err error
}

// Conn is the agent's end of the channel to one box's init. Its methods are for
// one goroutine at a time, but for Started, Ended and Close. After an error other
// than ErrName, ErrNoSpace, ErrNoMemory and fs.PathError the Conn is of no more
// use: close it and end the box.
type Conn struct {
	conn net.Conn
	// from reads a message and tells the process that sent it.
	from func([]byte) (n, pid int, err error)
	// offer sends a message with the end of a new pipe, and gives the other: the init
	// moves the bytes of a file on from there without looking at them.
	offer func(message []byte, size int64) (*os.File, error)
	// unread tells how many bytes of such a pipe were not taken yet.
	unread   func(*os.File) (int, error)
	buf      []byte        // for the pieces of files, until Go
	step     time.Duration // stepTimeout, but in tests
	small    int64         // smallFile, but in tests
	lost     error         // why no call can be made any more
	nameless bool          // the program's name is still to come
	started  chan int
	ended    chan Status
}

func newConn(c net.Conn) *Conn {
	return &Conn{conn: c, step: stepTimeout, small: smallFile, started: make(chan int, 1), ended: make(chan Status, 1)}
}

// WriteFile makes the file name of the working folder, with the permission bits
// of mode, out of exactly size bytes of r, and the folders above it. It overwrites
// nothing: an existing name is an error that matches fs.ErrExist. The pages are
// charged to the box, which may end the box when they go over its limit: ErrGone.
// ctx does not cut a Read of r short.
func (c *Conn) WriteFile(ctx context.Context, name string, mode fs.FileMode, size int64, r io.Reader) error {
	if err := CheckName(name); err != nil {
		return err
	}
	if size < 0 || mode != mode.Perm() {
		return fmt.Errorf("%q: size %d, mode %v: %w", name, size, mode, fs.ErrInvalid)
	}
	var answer report
	err := c.within(ctx, func() (err error) {
		if size <= c.small {
			answer, err = c.sendSmall(name, mode, size, r)
		} else {
			answer, err = c.sendFile(ctx, encodeFile(name, mode, size), size, r)
		}
		if err == nil && answer.errno == 0 && answer.written != size {
			err = fmt.Errorf("%w: %d of %d bytes written", ErrProtocol, answer.written, size)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("write %q into the box: %w", name, err)
	}
	return fileError(name, answer.errno)
}

// sendSmall sends a file in one message, and gives the answer.
func (c *Conn) sendSmall(name string, mode fs.FileMode, size int64, r io.Reader) (answer report, err error) {
	data := make([]byte, size)
	if n, err := io.ReadFull(r, data); err != nil {
		return answer, fewer(size-int64(n), err)
	}
	if err := ended(r); err != nil {
		return answer, err
	}
	err = c.timed(func() (err error) {
		if err = c.send(encodeSmall(name, mode, data)); err != nil {
			return err
		}
		answer, err = c.expect(msgAnswer)
		return err
	})
	return answer, err
}

// fewer explains an error of reading a file of which so many bytes did not come.
func fewer(missing int64, err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: %d bytes fewer", ErrSize, missing)
	}
	return err
}

// ended is an error where more follows.
func ended(r io.Reader) error {
	if n, err := io.ReadFull(r, make([]byte, 1)); n > 0 {
		return fmt.Errorf("%w: more bytes follow", ErrSize)
	} else if !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// sendFile sends the message that begins a file, and its bytes through a pipe, and
// gives the answer. What is in the pipe is not charged to the box: an init that answers
// and has not taken it would keep memory of the guest, with each file more.
func (c *Conn) sendFile(ctx context.Context, message []byte, size int64, r io.Reader) (answer report, err error) {
	var pipe *os.File
	err = c.timed(func() (err error) {
		pipe, err = c.offer(message, size)
		return c.explain(err)
	})
	if err != nil {
		return answer, err
	}
	defer pipe.Close()
	defer context.AfterFunc(ctx, func() { expire(pipe) })()
	if err = c.fill(pipe, size, r); err != nil {
		return answer, err
	}
	err = c.timed(func() (err error) {
		answer, err = c.expect(msgAnswer)
		return err
	})
	if err != nil {
		return answer, err
	}
	left, err := c.unread(pipe)
	if err == nil && left > 0 {
		err = fmt.Errorf("%w: an answer with %d bytes of the file not taken", ErrProtocol, left)
	}
	return answer, err
}

// fill writes the bytes of a file into its pipe.
func (c *Conn) fill(pipe *os.File, size int64, r io.Reader) error {
	c.buf = slices.Grow(c.buf[:0], int(min(size, pipeBytes)))
	b := c.buf[:cap(c.buf)]
	for left := size; left > 0; {
		n, err := io.ReadFull(r, b[:min(left, pipeBytes)])
		if err != nil {
			return fewer(left-int64(n), err)
		}
		err = c.timed(func() error {
			_, err := pipe.Write(b[:n])
			return c.explain(err)
		}, pipe)
		if err != nil {
			return err
		}
		left -= int64(n)
	}
	return ended(r)
}

// MkdirAll makes the folder name of the working folder and those above it, mode
// 0755. One that is there already is no error.
func (c *Conn) MkdirAll(ctx context.Context, name string) error {
	if err := CheckName(name); err != nil {
		return err
	}
	var answer report
	err := c.within(ctx, func() (err error) {
		return c.timed(func() (err error) {
			if err = c.send(encodeFolder(name)); err != nil {
				return err
			}
			answer, err = c.expect(msgAnswer)
			return err
		})
	})
	if err != nil {
		return fmt.Errorf("make the folder %q in the box: %w", name, err)
	}
	return fileError(name, answer.errno)
}

// Name tells the init of a box that was started with Placeholder which program it is
// going to be, and with which arguments. Go needs it then, and is the only call after
// it. args have at most MaxArgsBytes, with one for the end of each.
func (c *Conn) Name(ctx context.Context, name string, args []string) error {
	if err := CheckName(name); err != nil {
		return err
	}
	if strings.Contains(name, "/") || !c.nameless {
		return fmt.Errorf("%w: %.100q as a name that comes late", ErrOrder, name)
	}
	var words []byte
	for _, a := range args {
		if strings.Contains(a, "\x00") {
			return fmt.Errorf("%w: a NUL in an argument", fs.ErrInvalid)
		}
		words = append(append(words, a...), 0)
	}
	if len(words) > MaxArgsBytes {
		return fmt.Errorf("%w: arguments of %d bytes, want at most %d", fs.ErrInvalid, len(words), MaxArgsBytes)
	}
	err := c.within(ctx, func() error {
		err := c.timed(func() error { return c.send(append([]byte{msgName}, name...)) })
		for piece := range slices.Chunk(words, maxArgsPiece) {
			if err == nil {
				err = c.timed(func() error { return c.send(append([]byte{msgArgs}, piece...)) })
			}
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("name the program: %w", err)
	}
	c.nameless = false
	return nil
}

// Go starts the program. ctx bounds the call, not the program. From a nil error
// on, Started and Ended tell what happens; after any error the program may still
// have been started, and the box must be ended.
func (c *Conn) Go(ctx context.Context) error {
	if c.nameless {
		return fmt.Errorf("%w: the program has no name", ErrOrder)
	}
	err := c.within(ctx, func() error { return c.send([]byte{msgGo}) })
	if err != nil {
		return fmt.Errorf("start the program: %w", err)
	}
	c.lost = fmt.Errorf("%w: the program was started", ErrOrder)
	c.buf = nil // the Conn stays as long as the box
	go c.watch()
	return nil
}

// Started delivers, after Go, the program's process id as the agent sees it, and
// is closed then, or without one when there is none.
func (c *Conn) Started() <-chan int { return c.started }

// Ended delivers, after Go, how the program ended, once, and is closed then.
// Close makes it deliver at once.
func (c *Conn) Ended() <-chan Status { return c.ended }

// Close closes the channel. It does not end the box: its init would notice only
// when the program ends. More than one call does no harm.
func (c *Conn) Close() error {
	if err := c.conn.Close(); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// watch is the only reader once the program was started. What it waits for has no
// deadline of its own: the end of the box, which the caller sees to, ends it.
func (c *Conn) watch() {
	defer close(c.ended)
	var s Status
	s.Raw, s.Err = c.follow(&s.PID)
	s.OK = s.Err == nil
	c.ended <- s
}

func (c *Conn) follow(pid *int) (syscall.WaitStatus, error) {
	defer close(c.started)
	r, from, err := c.readFrom()
	switch {
	case err != nil:
		return 0, err
	case r.kind == msgNotStarted:
		return 0, fmt.Errorf("%w: %w", ErrNotStarted, r.errno)
	case r.kind == msgEnded:
		return r.status, nil // killed before it could speak
	case r.kind != msgStarted || from <= 1:
		return 0, unexpected(r)
	}
	*pid = from
	c.started <- from
	r, err = c.expect(msgEnded)
	return r.status, err
}

// within runs one exchange, cut short when ctx ends. An exchange that failed
// leaves the two ends out of step, so that none can follow it.
func (c *Conn) within(ctx context.Context, exchange func() error) error {
	if c.lost != nil {
		return c.lost
	}
	err := ctx.Err()
	if err == nil {
		stop := context.AfterFunc(ctx, func() { expire(c.conn) })
		err = exchange()
		if over := !stop(); (over || err != nil && ctx.Err() != nil) && !errors.Is(err, ErrBroken) {
			err = context.Cause(ctx) // not what it did to what was in progress
		}
	}
	if err != nil {
		c.lost = fmt.Errorf("%w: an earlier one failed: %w", ErrOrder, err)
	}
	return err
}

const (
	// lastWait is how long the last word is waited for, which is there already if at all.
	lastWait = 100 * time.Millisecond
	// lastMessages are how many messages there can be up to it.
	lastMessages = 4
)

// lastWord gives what the runner said when it gave up, if that has come and nobody has read
// it: an init that gives up ends at once, and who waits for both may learn of its end first.
// It is for after an exchange that was cut short.
func (c *Conn) lastWord() error {
	if err := c.conn.SetDeadline(time.Now().Add(lastWait)); err != nil {
		return nil
	}
	defer expire(c.conn)
	for range lastMessages {
		b := make([]byte, maxReport+1)
		n, _, err := c.receive(b)
		if err != nil {
			return nil
		}
		if _, err := judge(b[:n]); errors.Is(err, ErrBroken) {
			return err
		}
	}
	return nil
}

// stepTimeout bounds one step of an exchange, in which the init has next to
// nothing to do: a python3 of an image that takes nothing must not hold a run up.
const stepTimeout = 30 * time.Second

// timed runs one step of an exchange, which waits for the init alone: on the channel,
// and on what else is given.
func (c *Conn) timed(step func() error, others ...deadliner) error {
	late := time.AfterFunc(c.step, func() {
		expire(c.conn)
		for _, on := range others {
			expire(on)
		}
	})
	err := step()
	if !late.Stop() {
		err = fmt.Errorf("%w: it did nothing for %v", ErrProtocol, c.step)
	}
	return err
}

type deadliner interface{ SetDeadline(time.Time) error }

// expire ends what is in progress.
func expire(on deadliner) { _ = on.SetDeadline(time.Unix(1, 0)) }

// send writes one message.
func (c *Conn) send(b []byte) error {
	_, err := c.conn.Write(b)
	return c.explain(err)
}

// explain gives what the init says of an error of writing to it: where it is gone it
// says why, if it still could.
func (c *Conn) explain(err error) error {
	if !isGone(err) {
		return err
	}
	if r, rerr := c.read(); rerr == nil {
		return unexpected(r)
	} else if errors.Is(rerr, ErrBroken) {
		return rerr
	}
	return gone(err)
}

func (c *Conn) expect(kind byte) (report, error) {
	r, err := c.read()
	if err == nil && r.kind != kind {
		err = unexpected(r)
	}
	return r, err
}

// read returns the next message; one in which the runner gives up is an error.
// Descriptors that come along are dropped by the kernel, since no room is given
// for them.
func (c *Conn) read() (report, error) {
	r, _, err := c.readFrom()
	return r, err
}

// readFrom is read, and tells which process sent the message.
func (c *Conn) readFrom() (report, int, error) {
	b := make([]byte, maxReport+1) // one more: a longer one shows
	n, pid, err := c.receive(b)
	if err != nil {
		return report{}, 0, err
	}
	r, err := judge(b[:n])
	return r, pid, err
}

// receive reads a message as it is.
func (c *Conn) receive(b []byte) (n, pid int, err error) {
	n, pid, err = c.from(b)
	if errors.Is(err, syscall.ECONNRESET) {
		// An init that went away with messages unread: said once, and before
		// what it had sent.
		n, pid, err = c.from(b)
	}
	if errors.Is(err, io.EOF) || isGone(err) {
		err = gone(err)
	}
	return n, pid, err
}

// judge decodes a message; one in which the runner gives up is an error.
func judge(b []byte) (report, error) {
	r, err := decode(b)
	if err == nil && (r.kind == msgBroken || r.kind == msgUnable) {
		err = fmt.Errorf("%w, it says %s", ErrBroken, r.text)
		if r.kind == msgUnable {
			err = fmt.Errorf("%w: %w", ErrUnable, err)
		}
	}
	return r, err
}

func isGone(err error) bool {
	return errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET)
}

func gone(err error) error {
	if errors.Is(err, io.EOF) {
		return ErrGone
	}
	return fmt.Errorf("%w: %w", ErrGone, err)
}

func unexpected(r report) error {
	return fmt.Errorf("%w: message %q out of turn", ErrProtocol, r.kind)
}
