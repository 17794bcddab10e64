package bytecode_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/pybox/pybox/guest/bytecode"
	"github.com/pybox/pybox/guest/bytecode/bytecodetest"
	"github.com/pybox/pybox/guest/layout"
	"github.com/pybox/pybox/guest/tree"
)

const fontList = layout.Seeds + "/matplotlib/fontlist-v390.json"

// TestRecord: what a run of the image touched gets in, in one order, and only what is
// there; also for an image of the other architecture.
func TestRecord(t *testing.T) {
	so := func(triplet string) string { return "usr/lib/python3/dist-packages/n.cpython-313-" + triplet + ".so" }
	c := &bytecodetest.Compiler{GuestArch: "amd64", Record: map[string]string{
		layout.Preread: strings.Join([]string{lib + "json/data.txt", "etc/shadow", so("x86_64-linux-gnu"), bytecode.Target(lib + "abc.py"),
			"../" + lib + "abc.py", "/" + lib + "abc.py", lib + "json", lib + "json/data.txt", "\x1b", ""}, "\n"),
		fontList: `{"_version": 390, "ttflist": [{"fname": "b", "w": 4e2}, {"w": 1.50, "fname": "a<"}], "size": null, "defaultFamily": {"ttf": "a"}, "afmlist": []}`,
	}}
	o := options(t, c)
	image := func(arch, triplet string) *tree.Tree {
		return imageTree(t, arch, map[string]string{so(triplet): "ELF", layout.Preread: "old\n", layout.Seeds + "/matplotlib/fontlist-v1.json": "old"})
	}
	expect := func(arch, triplet string) {
		t.Helper()
		tr := image(arch, triplet)
		add(t, tr, o)
		want := []string{bytecode.Target(lib+"abc.py") + "\n", lib + "json/data.txt\n", so(triplet) + "\n"}
		slices.Sort(want)
		if got := string(tr.Lookup(layout.Preread).Data); got != strings.Join(want, "") {
			t.Errorf("%s: the list is\n%s", arch, got)
		}
		const fonts = `{"_version":390,"afmlist":[],"defaultFamily":{"ttf":"a"},"size":null,"ttflist":[{"fname":"a<","w":1.50},{"fname":"b","w":4e2}]}` + "\n"
		if got := string(tr.Lookup(fontList).Data); got != fonts {
			t.Errorf("%s: fonts\n%s", arch, got)
		}
		if tr.Lookup(layout.Seeds+"/matplotlib/fontlist-v1.json") != nil {
			t.Errorf("%s: an older list of fonts is left", arch)
		}
	}
	expect("amd64", "x86_64-linux-gnu")
	expect("amd64", "x86_64-linux-gnu")
	if len(c.Jobs) != 1 {
		t.Errorf("%d jobs: nothing was kept", len(c.Jobs))
	}
	o.Arch = "arm64"
	o.Foreign = func(context.Context) (*tree.Tree, error) { return image("amd64", "x86_64-linux-gnu"), nil }
	expect("arm64", "aarch64-linux-gnu")

	// All byte code is known, and only another file is there.
	o.Arch = "amd64"
	jobs, compiled := len(c.Jobs), len(c.Compiled)
	tr := imageTree(t, "amd64", map[string]string{"usr/lib/more.so": "ELF"})
	add(t, tr, o)
	if len(c.Jobs) != jobs+1 || len(c.Compiled) != compiled {
		t.Errorf("%d jobs more that compiled %q", len(c.Jobs)-jobs, c.Compiled[compiled:])
	}
}

// TestRecordOfEither: whichever architecture's guest records what programs touch, an
// image gets the same list.
func TestRecordOfEither(t *testing.T) {
	loaders := map[string]string{"amd64": "usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2", "arm64": "usr/lib/aarch64-linux-gnu/ld-linux-aarch64.so.1"}
	image := func(arch string) *tree.Tree {
		return imageTree(t, arch, map[string]string{loaders[arch]: "ELF", lib + "json/data.txt": "data"})
	}
	list := func(arch, guest string) string {
		o := options(t, &bytecodetest.Compiler{GuestArch: guest, Record: map[string]string{layout.Preread: loaders[guest] + "\n" + lib + "json/data.txt\n"}})
		o.Arch = arch
		o.Foreign = func(context.Context) (*tree.Tree, error) { return image(guest), nil }
		tr := image(arch)
		add(t, tr, o)
		return string(tr.Lookup(layout.Preread).Data)
	}
	for arch := range loaders {
		of := map[string]string{"amd64": list(arch, "amd64"), "arm64": list(arch, "arm64")}
		if of["amd64"] != of["arm64"] || !strings.Contains(of["amd64"], loaders[arch]+"\n") {
			t.Errorf("the list of an image for %s, by what recorded it: %q", arch, of)
		}
	}
}

// TestRecordRefused: a list of fonts that is none, or would grow, fails the build.
func TestRecordRefused(t *testing.T) {
	for _, text := range []string{
		"", "[]", "{}{}", `{"a": [`, "\x00", "null", `{"a": [1]}`, `{"a": [[]]}`, `{"a": [{"b": []}]}`, `{"a": {"b": {}}}`,
		`{"a": ` + strings.Repeat("[", 2000) + strings.Repeat("]", 2000) + "}",
		`{"a": "` + strings.Repeat("\xff", 1<<19) + `"}`,
	} {
		c := &bytecodetest.Compiler{GuestArch: "amd64", Record: map[string]string{fontList: text}}
		if err := bytecode.Add(t.Context(), imageTree(t, "amd64", nil), options(t, c)); !errors.Is(err, bytecode.ErrArchive) {
			t.Errorf("%.60q: %v", text, err)
		}
	}
}
