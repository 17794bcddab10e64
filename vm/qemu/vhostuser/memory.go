//go:build linux

package vhostuser

import (
	"errors"
	"fmt"
	"math"
	"os"

	"golang.org/x/sys/unix"
)

// maxRegions is the most that a SET_MEM_TABLE message carries (vhost-user.rst,
// "Memory regions description").
const maxRegions = 8

// regionSpec is one region as the front end describes it.
type regionSpec struct {
	guest  uint64 // guest physical address
	size   uint64
	user   uint64 // address in the front end's process, used for the rings
	offset uint64 // where the region starts in its file
}

// region is a mapped one: mem is exactly size bytes, mapping what munmap wants.
type region struct {
	regionSpec
	mem, mapping []byte
}

// memory is the guest's memory as far as the front end shares it. The zero
// value has none. Slices of it are valid until unmap, so they never leave the
// device's lock.
type memory struct{ regions []region }

// mapMemory maps every region, or none. It leaves the descriptors open: they
// are the caller's.
func mapMemory(specs []regionSpec, fds []int) (memory, error) {
	var m memory
	for i, s := range specs {
		if err := s.check(); err != nil {
			m.unmap()
			return memory{}, fmt.Errorf("memory region %d: %w", i, err)
		}
		for _, r := range m.regions {
			if overlap(r.guest, s.guest, r.size, s.size) || overlap(r.user, s.user, r.size, s.size) {
				m.unmap()
				return memory{}, fmt.Errorf("memory region %d overlaps another one", i)
			}
		}
		r, err := mapRegion(s, fds[i])
		if err != nil {
			m.unmap()
			return memory{}, fmt.Errorf("memory region %d: %w", i, err)
		}
		m.regions = append(m.regions, r)
	}
	return m, nil
}

func overlap(a, b, sizeA, sizeB uint64) bool {
	return a < b+sizeB && b < a+sizeA // neither sum wraps: both passed check
}

// check refuses what arithmetic further down could not bear.
func (s regionSpec) check() error {
	switch {
	case s.size == 0:
		return errors.New("it is empty")
	case s.size > math.MaxUint64-s.guest, s.size > math.MaxUint64-s.user:
		return errors.New("it wraps around the address space")
	case s.offset > math.MaxInt64, s.size > math.MaxInt64-s.offset-uint64(os.Getpagesize()):
		return errors.New("it is too large")
	}
	return nil
}

// mapRegion maps one region after making sure that the front end cannot turn a
// touch of it into a SIGBUS; see checkMemoryFile.
func mapRegion(s regionSpec, fd int) (region, error) {
	if err := checkMemoryFile(fd, s.offset+s.size); err != nil {
		return region{}, err
	}
	// mmap wants a page's multiple; QEMU's offsets are that, but need not be.
	base := s.offset &^ uint64(os.Getpagesize()-1)
	lead := s.offset - base
	mapping, err := unix.Mmap(fd, int64(base), int(s.size+lead), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		return region{}, fmt.Errorf("mmap: %w", err)
	}
	// The guest's memory does not belong into a core dump of this process.
	_ = unix.Madvise(mapping, unix.MADV_DONTDUMP)
	return region{regionSpec: s, mem: mapping[lead:][:s.size:s.size], mapping: mapping}, nil
}

// errMemoryFile tells what to do, since a changed QEMU command line is the only
// way to get there.
var errMemoryFile = errors.New("guest memory must be a sealed memory file of ordinary pages (memory-backend-memfd with share=on, seal=on and hugetlb=off)")

// checkMemoryFile makes sure that a mapping of the file up to end is backed by
// it for ever, and that a page which is not there yet can be had wherever this
// process gets memory at all:
//
//   - A touch beyond the file's end is a SIGBUS: the file must be long enough and
//     sealed against shrinking. (Growing does no harm, nor do holes.)
//   - A hole in a file of huge pages is a SIGBUS when their pool is empty, and
//     one in a tmpfs of limited size when that is full. The first is told by the
//     file system's type; the second cannot be sealed, only files of
//     memfd_create(2) can, and the tmpfs inside the kernel that they are in has
//     no limit (mm/shmem.c, SB_KERNMOUNT).
func checkMemoryFile(fd int, end uint64) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("stat: %w", err)
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return fmt.Errorf("statfs: %w", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || fs.Type != unix.TMPFS_MAGIC {
		return errMemoryFile
	}
	// F_GET_SEALS is defined for memory files only (fcntl(2)). The seal first,
	// the size after it: what is sealed cannot shrink any more.
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || seals&unix.F_SEAL_SHRINK == 0 {
		return errMemoryFile
	}
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("stat: %w", err)
	}
	if st.Size < 0 || uint64(st.Size) < end {
		return fmt.Errorf("its file has %d bytes, the region ends at %d", st.Size, end)
	}
	return nil
}

func (m *memory) unmap() {
	for _, r := range m.regions {
		_ = unix.Munmap(r.mapping)
	}
	m.regions = nil
}

// user gives n bytes at an address of the front end, nil unless they are wholly
// in one region.
func (m *memory) user(addr, n uint64) []byte {
	for i := range m.regions {
		r := &m.regions[i]
		if addr >= r.user && addr-r.user < r.size && n <= r.size-(addr-r.user) {
			return r.mem[addr-r.user:][:n:n]
		}
	}
	return nil
}

// guest gives n bytes at a guest physical address, nil unless they are wholly in
// one region.
func (m *memory) guest(addr, n uint64) []byte {
	b := m.from(addr)
	if uint64(len(b)) < n {
		return nil
	}
	return b[:n:n]
}

// appendGuest appends n bytes at a guest physical address to pieces. They may
// run through adjacent regions; false when a byte of them is in none.
func (m *memory) appendGuest(pieces [][]byte, addr, n uint64) ([][]byte, bool) {
	for n > 0 {
		b := m.from(addr)
		if len(b) == 0 {
			return pieces, false
		}
		take := min(n, uint64(len(b)))
		pieces = append(pieces, b[:take:take])
		addr, n = addr+take, n-take
	}
	return pieces, true
}

// from gives a region's memory from a guest physical address to its end.
func (m *memory) from(addr uint64) []byte {
	for i := range m.regions {
		r := &m.regions[i]
		if addr >= r.guest && addr-r.guest < r.size {
			return r.mem[addr-r.guest:]
		}
	}
	return nil
}
