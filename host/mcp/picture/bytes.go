package picture

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

const (
	// maxScans bounds the scans of a JPEG, each of which goes over the whole image: one
	// of 24 bytes is enough for that. Encoders make about ten.
	maxScans = 64
	// maxWork bounds scans times pixels.
	maxWork = 16 * MaxPixels
)

// checkScans refuses a JPEG of many scans. It counts what looks like the beginning of
// one, wherever it stands: no decoder can find more.
func checkScans(b []byte, pixels int) error {
	n := bytes.Count(b, []byte{0xff, startOfScan})
	if n > maxScans || n > maxWork/pixels {
		return fmt.Errorf("%w of work: it has %d scans of %d pixels", ErrLimit, n, pixels)
	}
	return nil
}

// Markers of JPEG (ITU-T T.81, table B.1).
const (
	startOfScan  = 0xda
	endOfImage   = 0xd9
	firstRestart = 0xd0
	startOfImage = 0xd8
)

// cut cuts what stands after the end of an image that was decoded; nil: it has none.
func cut(media string, b []byte) []byte {
	end := endOfJPEG
	if media == PNG {
		end = endOfPNG
	}
	if n := end(b); n > 0 {
		return b[:n]
	}
	return nil
}

// endOfPNG is where a PNG ends, after its chunk IEND; 0: nowhere.
func endOfPNG(b []byte) int {
	const around = 12 // length, type and check of a chunk
	for at := 8; at+around <= len(b); {
		next := uint64(at) + around + uint64(binary.BigEndian.Uint32(b[at:]))
		switch {
		case next > uint64(len(b)):
			return 0
		case string(b[at+4:at+8]) == "IEND":
			return int(next)
		}
		at = int(next)
	}
	return 0
}

// endOfJPEG is where a JPEG ends, after its first end of image; 0: nowhere. Segments
// have their length, and in the data between them 0xff is followed by 0 or a restart.
func endOfJPEG(b []byte) int {
	for at := 2; at+1 < len(b); {
		marker := b[at+1]
		switch {
		case b[at] != 0xff || marker == 0xff:
			at++
		case marker == endOfImage:
			return at + 2
		case marker == 0 || firstRestart <= marker && marker <= startOfImage:
			at += 2
		case at+4 > len(b):
			return 0
		default:
			at += 2 + int(binary.BigEndian.Uint16(b[at+2:]))
		}
	}
	return 0
}
