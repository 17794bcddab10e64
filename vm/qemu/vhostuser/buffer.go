//go:build linux

package vhostuser

import "slices"

// buffer is a byte ring of at most limit bytes. It allocates as it fills, four
// times as much each time, so that growing leaves a third of the final size as
// garbage and never more.
type buffer struct {
	limit   int
	b       []byte
	head, n int
}

const minBuffer = 4 << 10

func (q *buffer) len() int { return q.n }

// write appends p. The caller has checked that p fits below the limit.
func (q *buffer) write(p []byte) {
	if q.n+len(p) > len(q.b) {
		q.grow(q.n + len(p))
	}
	for len(p) > 0 {
		tail := q.head + q.n
		if tail >= len(q.b) {
			tail -= len(q.b)
		}
		end := len(q.b)
		if tail < q.head {
			end = q.head
		}
		m := copy(q.b[tail:end], p)
		p = p[m:]
		q.n += m
	}
}

// read moves up to len(p) bytes into p.
func (q *buffer) read(p []byte) int {
	done := 0
	for done < len(p) && q.n > 0 {
		m := copy(p[done:], q.b[q.head:min(len(q.b), q.head+q.n)])
		q.n -= m
		done += m
		if q.head += m; q.head == len(q.b) {
			q.head = 0
		}
	}
	if q.n == 0 {
		q.head = 0
	}
	return done
}

func (q *buffer) grow(need int) {
	size := max(minBuffer, len(q.b))
	for size < need {
		size *= 4
	}
	grown := make([]byte, min(size, q.limit))
	n := q.read(grown[:q.n])
	q.b, q.head, q.n = grown, 0, n
}

// fifo is a queue that keeps its storage.
type fifo[T comparable] struct {
	items []T
	head  int
}

func (f *fifo[T]) len() int { return len(f.items) - f.head }

func (f *fifo[T]) front() T { return f.items[f.head] }

func (f *fifo[T]) push(v T) {
	if f.head > 0 && len(f.items) == cap(f.items) {
		n := copy(f.items, f.items[f.head:])
		clear(f.items[n:])
		f.items, f.head = f.items[:n], 0
	}
	f.items = append(f.items, v)
}

func (f *fifo[T]) pop() T {
	var zero T
	v := f.items[f.head]
	f.items[f.head] = zero
	if f.head++; f.head == len(f.items) {
		f.items, f.head = f.items[:0], 0
	}
	return v
}

// remove takes v out wherever it stands.
func (f *fifo[T]) remove(v T) {
	if i := slices.Index(f.items[f.head:], v); i >= 0 {
		f.items = slices.Delete(f.items, f.head+i, f.head+i+1)
	}
}
