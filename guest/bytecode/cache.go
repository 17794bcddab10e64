package bytecode

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/renameio/v2"
)

// cacheFormat is the first word of every file of the cache, and part of all keys.
const cacheFormat = "pybox-bytecode/v2"

// unit is what the cache keeps under one key: the byte code of some sources.
type unit struct {
	sources map[string][]byte
	key     string
}

// newUnit computes the key: everything that the byte code depends on.
func newUnit(versions []string, sources map[string][]byte) unit {
	h := sha256.New()
	for _, v := range versions {
		fmt.Fprintf(h, "%q\n", v)
	}
	for _, p := range slices.Sorted(maps.Keys(sources)) {
		fmt.Fprintf(h, "%q %x\n", p, sha256.Sum256(sources[p]))
	}
	return unit{sources, hex.EncodeToString(h.Sum(nil))}
}

// units parts the sources in those of every architecture and those of this one, and
// both by group, which may be nil.
func units(versions []string, all map[string][]byte, group func(source string) string) []unit {
	type key struct {
		group  string
		native bool
	}
	parts := map[key]map[string][]byte{}
	for p, b := range all {
		k := key{native: isNative(p, b)}
		if group != nil {
			k.group = group(p)
		}
		if parts[k] == nil {
			parts[k] = map[string][]byte{}
		}
		parts[k][p] = b
	}
	var out []unit
	for _, part := range parts {
		out = append(out, newUnit(versions, part))
	}
	slices.SortFunc(out, func(a, b unit) int { return strings.Compare(a.key, b.key) })
	return out
}

// errDamaged marks a file of the cache whose content is not what was written.
var errDamaged = errors.New("damaged file in the cache of byte code")

// load returns what is known of a unit. It is an error that matches
// os.ErrNotExist when it is not there, errDamaged when it is not what was kept or
// when complete says that it is not enough.
func load(dir string, u unit, complete func(f *found, sources map[string][]byte) error) (*found, error) {
	f, err := loadArchive(dir, u.key, u.sources)
	if err != nil {
		return nil, err
	}
	if err := complete(f, u.sources); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", errDamaged, u.key, err)
	}
	return f, nil
}

// loadArchive returns what is kept under a key. Errors are as those of load.
func loadArchive(dir, key string, sources map[string][]byte) (*found, error) {
	f, err := os.Open(filepath.Join(dir, key))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, int64(MaxArchiveBytes+len(cacheHead(nil))+len("\n"))))
	if err != nil {
		return nil, err
	}
	head, archive, _ := bytes.Cut(b, []byte("\n"))
	if string(head) != cacheHead(archive) {
		return nil, fmt.Errorf("%w: %s: wrong digest", errDamaged, f.Name())
	}
	out, err := read(bytes.NewReader(archive), sources)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", errDamaged, f.Name(), err)
	}
	return out, nil
}

// store keeps files, by their paths in an image, under a key.
func store(dir, key string, files map[string][]byte) error {
	archive, err := write(files)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	b := append([]byte(cacheHead(archive)+"\n"), archive...)
	return renameio.WriteFile(filepath.Join(dir, key), b, 0o644)
}

func cacheHead(archive []byte) string {
	return fmt.Sprintf("%s %x", cacheFormat, sha256.Sum256(archive))
}
