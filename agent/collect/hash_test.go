package collect

import (
	"math/big"
	"slices"
	"testing"
)

// reference is what hash is to be, by whole numbers of any size.
func reference(k key, content []byte) uint64 {
	p := big.NewInt(prime)
	at := new(big.Int).SetUint64(uint64(k))
	sum := new(big.Int)
	for len(content) > 0 {
		n := min(len(content), word)
		w := slices.Clone(content[:n])
		slices.Reverse(w) // little-endian
		sum.Add(sum, new(big.Int).SetBytes(w)).Mul(sum, at).Mod(sum, p)
		content = content[n:]
	}
	return sum.Uint64()
}

func FuzzHash(f *testing.F) {
	f.Add([]byte(""), uint64(1), uint8(1))
	f.Add([]byte("1234567"), uint64(prime-1), uint8(3))
	f.Add([]byte("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"), uint64(prime-1), uint8(200))
	f.Add(make([]byte, 100), uint64(1<<60), uint8(8))
	f.Fuzz(func(t *testing.T, content []byte, at uint64, pieces uint8) {
		k := key(at%(prime-1) + 1)
		h := hash{key: k}
		for b := content; len(b) > 0; {
			n := min(len(b), int(pieces)+1)
			if m, err := h.Write(b[:n]); m != n || err != nil {
				t.Fatal(m, err)
			}
			b = b[n:]
		}
		if got, want := h.Sum(), reference(k, content); got != want {
			t.Errorf("key %d: %d, want %d", k, got, want)
		}
	})
}

func TestKeysDiffer(t *testing.T) {
	a, b := newKey(), newKey()
	if a == b || a == 0 || a >= prime {
		t.Errorf("%d and %d", a, b)
	}
}

func BenchmarkHash(b *testing.B) {
	buf := make([]byte, bufferBytes)
	h := hash{key: newKey()}
	b.SetBytes(bufferBytes)
	for b.Loop() {
		_, _ = h.Write(buf)
	}
}
