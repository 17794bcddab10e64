package collect

import (
	"crypto/rand"
	"encoding/binary"
	"math/bits"
)

// prime is 2^61-1, in whose field contents are hashed.
const prime = 1<<61 - 1

// word is how many bytes of a content are one coefficient: fewer than 61 bits.
const word = 7

// key is the point at which contents are hashed: 1 to prime-1, and nobody's to know.
type key uint64

func newKey() key {
	var b [8]byte
	_, _ = rand.Read(b[:]) // it never fails, says its documentation
	return key(binary.LittleEndian.Uint64(b[:])%(prime-1) + 1)
}

// hash tells contents of the same length apart: it is the value, at the key, of the
// polynomial whose coefficients are the content. Two different ones of n bytes have
// the same hash for at most n/7 of the 2^61 keys, whoever chose them: for 256 MiB
// that is one in 10^10. Package hash/maphash says less and, where the processor is
// emulated, takes ten times as long.
type hash struct {
	key   key
	sum   uint64
	begun [word]byte
	n     int // how much of begun is there
}

// Write implements io.Writer. It does not fail.
func (h *hash) Write(b []byte) (int, error) {
	all := len(b)
	if h.n > 0 {
		n := copy(h.begun[h.n:], b)
		b = b[n:]
		if h.n += n; h.n < word {
			return all, nil
		}
		h.sum = h.key.next(h.sum, h.last())
		h.n = 0
	}
	sum := h.sum
	for len(b) > word { // one more, which is read and not used
		sum = h.key.next(sum, binary.LittleEndian.Uint64(b)&(1<<(8*word)-1))
		b = b[word:]
	}
	h.sum = sum
	h.n = copy(h.begun[:], b)
	return all, nil
}

// last is the word that was begun, as if zeros followed.
func (h *hash) last() (w uint64) {
	for i, b := range h.begun[:h.n] {
		w |= uint64(b) << (8 * i)
	}
	return w
}

// Sum is the hash of everything that was written, which may go on.
func (h *hash) Sum() uint64 {
	if h.n == 0 {
		return h.sum % prime
	}
	return h.key.next(h.sum, h.last()) % prime
}

// next is (sum+w)*k modulo prime, below 2^62 and congruent to it. sum and w are below
// 2^62 and 2^56.
func (k key) next(sum, w uint64) uint64 {
	hi, lo := bits.Mul64(sum+w, uint64(k))
	sum = lo&prime + (hi<<3 | lo>>61)
	return sum&prime + sum>>61
}
