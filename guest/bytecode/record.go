package bytecode

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/pybox/pybox/guest/layout"
	"github.com/pybox/pybox/guest/tree"
)

// fontsDir is where the list of fonts is that matplotlib makes and looks for.
const fontsDir = layout.Seeds + "/matplotlib"

// maxFontsBytes bounds a list of fonts; that of "data" has 30 kB.
const maxFontsBytes = 1 << 20

// isRecord tells whether a file of an archive is something recorded, rather than byte
// code, and how large it may be.
func isRecord(name string) (max int64, ok bool) {
	if name == layout.Preread {
		return layout.MaxPrereadBytes, true
	}
	ok, _ = path.Match(fontsDir+"/fontlist-v[0-9]*.json", name)
	return maxFontsBytes, ok && len(name) < 100
}

// recordKey is the key of what is recorded on a run of the image t: that depends on
// all that is in it.
func recordKey(versions []string, t *tree.Tree) string {
	h := sha256.New()
	fmt.Fprintf(h, "record\n")
	for _, v := range versions {
		fmt.Fprintf(h, "%q\n", v)
	}
	for _, n := range t.Nodes() {
		fmt.Fprintf(h, "%q %d %q %x\n", n.Path, n.Kind, n.Target, sha256.Sum256(n.Data))
	}
	return hex.EncodeToString(h.Sum(nil))
}

// removeRecord removes what t has of a record.
func removeRecord(t *tree.Tree) {
	t.Remove(layout.Preread)
	t.Remove(fontsDir)
}

// addRecord puts what was recorded into t, an image for arch.
func addRecord(t *tree.Tree, arch string, record map[string][]byte) error {
	for name, b := range record {
		clean, err := cleanRecord(name, b, t, arch)
		if err != nil {
			return archiveErr("%q: %w", name, err)
		}
		if err := t.WriteFile(name, clean, tree.Attr{Mode: 0o644}); err != nil {
			return err
		}
	}
	return nil
}

// cleanRecord returns what was recorded in the form that it is put into the image in:
// whatever a guest hands back, these are lists of files of the image, in an order
// that depends on what they are. arch is that of the image. An error means that it
// is no such list.
func cleanRecord(name string, data []byte, t *tree.Tree, arch string) ([]byte, error) {
	if name == layout.Preread {
		return cleanList(data, t, arch), nil
	}
	return cleanFonts(data)
}

// cleanList keeps the lines that name a file of t. What was recorded on an image of
// another architecture has that one's triplet in names, and its loader.
func cleanList(data []byte, t *tree.Tree, arch string) []byte {
	triplet, loader := tripletOf[arch], loaderOf[arch]
	var keep []string
	for line := range strings.Lines(string(data)) {
		p := strings.TrimSuffix(line, "\n")
		for arch, other := range tripletOf {
			if other != triplet {
				p = strings.ReplaceAll(strings.ReplaceAll(p, other, triplet), loaderOf[arch], loader)
			}
		}
		if n := t.Lookup(p); n != nil && n.Kind == tree.File && tree.CheckPath(p) == nil {
			keep = append(keep, p+"\n")
		}
	}
	slices.Sort(keep)
	return []byte(strings.Join(slices.Compact(keep), ""))
}

// cleanFonts gives a list of fonts as matplotlib writes one: an object of scalars, flat
// objects, and lists of flat objects. The lists are sorted, since matplotlib finds fonts
// in no particular order.
func cleanFonts(data []byte) ([]byte, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var list map[string]any
	if err := d.Decode(&list); err != nil {
		return nil, fmt.Errorf("list of fonts: %w", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("list of fonts: more after its end")
	}
	if list == nil {
		return nil, errors.New("list of fonts: no object")
	}
	for _, v := range list {
		fonts, isList := v.([]any)
		if !isList && !isScalar(v) && !isFlat(v) || !allFlat(fonts) {
			return nil, errors.New("list of fonts: not of matplotlib's form")
		}
		if err := sortAsText(fonts); err != nil {
			return nil, err
		}
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(list); err != nil {
		return nil, fmt.Errorf("list of fonts: %w", err)
	}
	if b.Len() > maxFontsBytes {
		return nil, fmt.Errorf("list of fonts: %d bytes, at most %d", b.Len(), maxFontsBytes)
	}
	return b.Bytes(), nil
}

// allFlat tells whether all of a list are flat objects.
func allFlat(values []any) bool {
	return !slices.ContainsFunc(values, func(v any) bool { return !isFlat(v) })
}

// isFlat tells whether a value is an object of scalars.
func isFlat(v any) bool {
	object, ok := v.(map[string]any)
	for _, field := range object {
		ok = ok && isScalar(field)
	}
	return ok
}

func isScalar(v any) bool {
	switch v.(type) {
	case nil, bool, string, json.Number:
		return true
	}
	return false
}

// sortAsText sorts values by their JSON text.
func sortAsText(values []any) error {
	type pair struct {
		text  string
		value any
	}
	pairs := make([]pair, len(values))
	for i, v := range values {
		b, err := json.Marshal(v)
		if err != nil {
			return err
		}
		pairs[i] = pair{string(b), v}
	}
	slices.SortFunc(pairs, func(a, b pair) int { return strings.Compare(a.text, b.text) })
	for i, p := range pairs {
		values[i] = p.value
	}
	return nil
}
