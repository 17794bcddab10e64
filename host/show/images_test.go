package show

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/images"
)

func importedImage() *images.Inspection {
	at := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	digest := "sha256:" + strings.Repeat("5", 64)
	r := &images.Record{
		Name: "py312", Kind: images.KindImported, Python: "3.12",
		Imported: &images.Imported{
			Source: "registry", Reference: "registry.example/python@" + digest, ManifestDigest: digest, ConfigDigest: digest, Platform: "linux/arm64",
			Layers: []images.Layer{{DiffID: digest, Bytes: 5 << 20}},
		},
		Packages: []images.Package{{Name: "na\x1b[31mme", Version: "1"}},
		Notes:    []string{"a note\x1b]52;c;eA==\x07"},
	}
	return &images.Inspection{
		Summary: images.Summary{Name: "py312", Own: true, Kind: r.Kind, Python: r.Python, Arch: "arm64", SHA256: strings.Repeat("4", 64), Bytes: 40 << 20, CreatedAt: &at},
		InVM:    images.PresenceLeftOut, LeftOut: &api.LeftOut{Name: "py312", Why: "it is damaged", Next: "make it again"}, Record: r,
	}
}

func TestImage(t *testing.T) {
	for _, width := range []int{0, 40, 20} {
		var b bytes.Buffer
		Image(&b, importedImage(), Style{Width: width})
		got := b.String()
		for _, s := range []string{"py312", "OCI image", "3.12", "registry.example/python@sha256:5555", "linux/arm64"} {
			if !strings.Contains(got, s) {
				t.Errorf("width %d: it does not say %q:\n%s", width, s, got)
			}
		}
		if flat := strings.Join(strings.Fields(got), " "); !strings.Contains(flat, "left out: it is damaged; make it again") || !strings.Contains(flat, "5 MiB") {
			t.Errorf("width %d: %s", width, got)
		}
		if strings.ContainsAny(got, "\x1b\x07") {
			t.Errorf("width %d: control characters came through: %q", width, got)
		}
	}
}

func TestImagesNarrow(t *testing.T) {
	list := []images.Summary{importedImage().Summary, {Name: "bad", Own: true, Damaged: "its record is \x1b[31mred", Next: "move\x1b it"}}
	for _, width := range []int{0, 40} {
		var b bytes.Buffer
		Images(&b, list, Style{Width: width})
		got := b.String()
		if !strings.Contains(got, "444444444444") || !strings.Contains(got, "Damaged: bad") || !strings.Contains(got, "move") || strings.Contains(got, "\x1b") {
			t.Errorf("width %d: %q", width, got)
		}
		for _, line := range strings.Split(got, "\n") {
			if limit := max(width, 1) * 2; width > 0 && Columns(line) > limit {
				t.Errorf("a line of %d columns: %s", Columns(line), line)
			}
		}
	}
}

func TestStatusTellsOfImages(t *testing.T) {
	s := api.Status{State: api.StateRunning, VM: &api.VM{
		Images:  []api.Image{{Name: "stdlib", SHA256: strings.Repeat("1", 64), Bytes: 1}, {Name: "mine", SHA256: strings.Repeat("2", 64), Bytes: 1, Own: true}},
		LeftOut: []api.LeftOut{{Name: "bad", Why: "it is damaged", Next: "make it again"}, {Why: "the folder is", Next: "look"}},
	}}
	var b bytes.Buffer
	Status(&b, s, time.Now(), false)
	for _, want := range []string{"mine, 1 B, sha256 222222222222, yours", "bad LEFT OUT: it is damaged; make it again", "yours, all of them LEFT OUT: the folder is; look"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("it does not say %q:\n%s", want, b.String())
		}
	}
	if strings.Contains(b.String(), "111111111111, yours") {
		t.Error("an image of the bundle is no person's")
	}
}
