package maker

import "testing"

// TestBuildIsTheSameFromAnywhere: where wheels are from is for the record, and no part of
// the image; its name is.
func TestBuildIsTheSameFromAnywhere(t *testing.T) {
	dir, lock := wheels(t, alpha, beta)
	sums := map[string]string{}
	for name, from := range map[string]Build{
		"an index": {Name: "one", IndexURL: index(t, dir).URL + "/simple/"},
		"a mirror": {Name: "one", IndexURL: index(t, dir).URL + "/simple/"},
		"a folder": {Name: "one", FindLinks: []string{dir}},
		"renamed":  {Name: "two", FindLinks: []string{dir}},
	} {
		from.Lock, from.Base = lock, "stdlib"
		r, err := newBench(t).Build(t.Context(), from)
		if err != nil {
			t.Fatal(err)
		}
		sums[name] = r.SHA256
	}
	if sums["an index"] != sums["a mirror"] || sums["an index"] != sums["a folder"] {
		t.Errorf("the same wheels make other images: %v", sums)
	}
	if sums["renamed"] == sums["a folder"] {
		t.Error("the name is not in the image: docs/user-images.md, docs/wheels.md and the help say that it counts")
	}
}
