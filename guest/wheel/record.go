package wheel

import (
	"bytes"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/csv"
	"fmt"
	"hash"
	"io"
	"strconv"
	"strings"
)

// maxRecordBytes bounds a RECORD: some 300 bytes for each file of the largest wheel.
const maxRecordBytes = 32 << 20

// hashes are those that a RECORD may name: SHA-256 and stronger ones.
var hashes = map[string]func() hash.Hash{"sha256": sha256.New, "sha384": sha512.New384, "sha512": sha512.New}

// row is what a RECORD says of a file.
type row struct {
	algorithm string // of hashes
	sum       []byte
	size      int64 // -1 where it says nothing
}

// record is a RECORD, by the paths in the archive.
type record map[string]row

// parseRecord reads the RECORD of a wheel, whose own path is given: that file and
// signatures of it are the only ones without a hash.
func parseRecord(b []byte, own string) (record, error) {
	r := csv.NewReader(bytes.NewReader(b))
	r.FieldsPerRecord = 3
	r.ReuseRecord = true
	rec := record{}
	for {
		fields, err := r.Read()
		if err == io.EOF {
			return rec, nil
		}
		if err != nil {
			return nil, wheelErr("its RECORD: %w", err)
		}
		name := fields[0]
		if err := checkName(name); err != nil {
			return nil, wheelErr("its RECORD lists %.200q: %w", name, err)
		}
		if _, twice := rec[name]; twice {
			return nil, wheelErr("its RECORD lists %.200q twice", name)
		}
		if isOfRecord(name, own) {
			rec[name] = row{size: -1}
			continue
		}
		if rec[name], err = parseRow(fields[1], fields[2]); err != nil {
			return nil, wheelErr("its RECORD lists %.200q %w", name, err)
		}
	}
}

// isOfRecord tells what a RECORD cannot have a hash of: itself and its signatures.
func isOfRecord(name, own string) bool {
	return name == own || name == own+".jws" || name == own+".p7s"
}

func parseRow(digest, size string) (row, error) {
	algorithm, text, _ := strings.Cut(digest, "=")
	newHash := hashes[algorithm]
	if newHash == nil {
		return row{}, fmt.Errorf("with the hash %.40q, not with sha256, sha384 or sha512", digest)
	}
	sum, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(text, "="))
	if err != nil || len(sum) != newHash().Size() {
		return row{}, fmt.Errorf("with the hash %.200q, which is malformed", digest)
	}
	r := row{algorithm, sum, -1}
	if size != "" {
		if r.size, err = strconv.ParseInt(size, 10, 64); err != nil || r.size < 0 {
			return row{}, fmt.Errorf("with the size %.40q", size)
		}
	}
	return r, nil
}

// digestText is a hash as a RECORD has it.
func digestText(algorithm string, sum []byte) string {
	return algorithm + "=" + base64.RawURLEncoding.EncodeToString(sum)
}

func digestOf(b []byte) string {
	sum := sha256.Sum256(b)
	return digestText("sha256", sum[:])
}

// check holds the RECORD and the members of the archive against one another.
func (rec record) check(members []member, own string) error {
	for _, m := range members {
		if _, listed := rec[m.Name]; !listed && !isOfRecord(m.Name, own) {
			return wheelErr("%.200q is not in its RECORD", m.Name)
		}
	}
	there := make(map[string]bool, len(members))
	for _, m := range members {
		there[m.Name] = true
	}
	missing := ""
	for name := range rec {
		if !there[name] && !isOfRecord(name, own) && (missing == "" || name < missing) {
			missing = name
		}
	}
	if missing != "" {
		return wheelErr("its RECORD lists %.200q, which is not in it", missing)
	}
	return nil
}
