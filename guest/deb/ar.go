package deb

import (
	"bytes"
	"fmt"
	"io"
	"strconv"
)

// ar(5) as deb(5) uses it: the common format with short names, where GNU's
// trailing slash is allowed. It is little enough to need no library.
const (
	arMagic       = "!<arch>\n"
	arHeaderBytes = 60
	arMaxMembers  = 8
	arMaxBytes    = 4 << 30 // of one member
)

type arReader struct {
	r      io.Reader
	pad    int64
	count  int
	member *arMember
}

// arMember is a member's header and, until the next one is asked for, its body.
type arMember struct {
	name string
	size int64
	body io.LimitedReader
}

// Read implements io.Reader. A body that ends early is ErrFormat.
func (m *arMember) Read(p []byte) (int, error) {
	n, err := m.body.Read(p)
	if err == io.EOF && m.body.N > 0 {
		return n, formatErr("member %s ends early", m.name)
	}
	return n, err
}

func newArReader(r io.Reader) (*arReader, error) {
	var magic [len(arMagic)]byte
	if _, err := io.ReadFull(r, magic[:]); err != nil {
		return nil, shortErr(err)
	}
	if string(magic[:]) != arMagic {
		return nil, formatErr("it is no ar archive")
	}
	return &arReader{r: r}, nil
}

// next skips to the next member; io.EOF after the last.
func (a *arReader) next() (*arMember, error) {
	if err := a.skip(); err != nil {
		return nil, err
	}
	var h [arHeaderBytes]byte
	if _, err := io.ReadFull(a.r, h[:]); err == io.EOF {
		return nil, io.EOF
	} else if err != nil {
		return nil, shortErr(err)
	}
	if a.count++; a.count > arMaxMembers {
		return nil, fmt.Errorf("%w: more than %d members", ErrTooBig, arMaxMembers)
	}
	if h[58] != '`' || h[59] != '\n' {
		return nil, formatErr("bad ar header")
	}
	name := string(bytes.TrimSuffix(bytes.TrimRight(h[:16], " "), []byte{'/'}))
	if !isMemberName(name) {
		return nil, formatErr("ar member name %.20q", name)
	}
	size, err := strconv.ParseUint(string(bytes.TrimRight(h[48:58], " ")), 10, 63)
	if err != nil {
		return nil, formatErr("ar member size %.20q", h[48:58])
	}
	if size > arMaxBytes {
		return nil, fmt.Errorf("%w: a member of %d bytes", ErrTooBig, size)
	}
	a.member = &arMember{name: name, size: int64(size), body: io.LimitedReader{R: a.r, N: int64(size)}}
	a.pad = int64(size & 1)
	return a.member, nil
}

// skip reads what is left of the current member and its padding byte. Some
// writers leave out the padding after the last member.
func (a *arReader) skip() error {
	if a.member == nil {
		return nil
	}
	if _, err := io.Copy(io.Discard, a.member); err != nil {
		return err
	}
	a.member = nil
	_, err := io.CopyN(io.Discard, a.r, a.pad)
	if err == io.EOF {
		return nil
	}
	return err
}

func isMemberName(s string) bool {
	if s == "" {
		return false
	}
	for i := range len(s) {
		b := s[i]
		if !(b >= 'a' && b <= 'z' || b >= '0' && b <= '9' || b == '.' || b == '-' || b == '_') {
			return false
		}
	}
	return true
}

func shortErr(err error) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return formatErr("it ends early")
	}
	return err
}
