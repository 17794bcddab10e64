package ociimage

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// maxSettings bounds each list of an image's configuration.
const maxSettings = 10_000

// What is taken of a document, and no more: a list is counted while it is read, since
// a few bytes of JSON may become hundreds in memory.
type (
	wireDocument struct {
		SchemaVersion int             `json:"schemaVersion"`
		MediaType     types.MediaType `json:"mediaType"`
		Config        *wireDescriptor `json:"config"`
		Layers        json.RawMessage `json:"layers"`
		Manifests     json.RawMessage `json:"manifests"`
		FSLayers      json.RawMessage `json:"fsLayers"` // of the first schema
	}
	wireDescriptor struct {
		MediaType types.MediaType `json:"mediaType"`
		Size      int64           `json:"size"`
		Digest    v1.Hash         `json:"digest"`
		Platform  *wirePlatform   `json:"platform"`
	}
	wirePlatform struct {
		OS           string `json:"os"`
		Architecture string `json:"architecture"`
		Variant      string `json:"variant"`
	}
	wireConfig struct {
		wirePlatform
		RootFS struct {
			Type    string          `json:"type"`
			DiffIDs json.RawMessage `json:"diff_ids"`
		} `json:"rootfs"`
		Config struct {
			Env          json.RawMessage `json:"Env"`
			Entrypoint   json.RawMessage `json:"Entrypoint"`
			Cmd          json.RawMessage `json:"Cmd"`
			Volumes      json.RawMessage `json:"Volumes"`
			ExposedPorts json.RawMessage `json:"ExposedPorts"`
			User         string          `json:"User"`
			WorkingDir   string          `json:"WorkingDir"`
			StopSignal   string          `json:"StopSignal"`
			Healthcheck  json.RawMessage `json:"Healthcheck"`
		} `json:"config"`
	}
)

func (d *wireDescriptor) descriptor() v1.Descriptor {
	out := v1.Descriptor{MediaType: d.MediaType, Size: d.Size, Digest: d.Digest}
	if p := d.Platform; p != nil {
		out.Platform = &v1.Platform{OS: p.OS, Architecture: p.Architecture, Variant: p.Variant}
	}
	return out
}

// decodeDocument decodes an index or manifest. Errors match ErrFormat or ErrTooBig.
func decodeDocument(b []byte) (*document, error) {
	var w wireDocument
	if err := unmarshal(b, &w); err != nil {
		return nil, fmt.Errorf("%w: index or manifest: %w", ErrFormat, err)
	}
	d := &document{SchemaVersion: w.SchemaVersion, MediaType: w.MediaType, FSLayers: w.FSLayers}
	if w.Config != nil {
		c := w.Config.descriptor()
		d.Config = &c
	}
	var err error
	if d.Layers, err = descriptors(w.Layers, "layers", maxLayers); err != nil {
		return nil, err
	}
	d.Manifests, err = descriptors(w.Manifests, "manifests", maxManifests)
	return d, err
}

// descriptors is nil for a list that is not there.
func descriptors(raw json.RawMessage, what string, most int) ([]v1.Descriptor, error) {
	if isNull(raw) {
		return nil, nil
	}
	list := []v1.Descriptor{}
	return list, elements(raw, what, most, '[', func(d *json.Decoder) error {
		var w wireDescriptor
		err := d.Decode(&w)
		list = append(list, w.descriptor())
		return err
	})
}

// decodeConfig decodes an image's configuration. Errors match ErrFormat or ErrTooBig.
func decodeConfig(b []byte) (*v1.ConfigFile, error) {
	var w wireConfig
	if err := unmarshal(b, &w); err != nil {
		return nil, fmt.Errorf("%w: configuration: %w", ErrFormat, err)
	}
	in, out := w.Config, &v1.ConfigFile{OS: w.OS, Architecture: w.Architecture, Variant: w.Variant, RootFS: v1.RootFS{Type: w.RootFS.Type}}
	c := &out.Config
	c.User, c.WorkingDir, c.StopSignal = in.User, in.WorkingDir, in.StopSignal
	if !isNull(in.Healthcheck) {
		c.Healthcheck = &v1.HealthConfig{}
	}
	return out, cmp.Or(
		elements(w.RootFS.DiffIDs, "diff ids", maxLayers, '[', func(d *json.Decoder) error {
			var h v1.Hash
			err := d.Decode(&h)
			out.RootFS.DiffIDs = append(out.RootFS.DiffIDs, h)
			return err
		}),
		texts(in.Env, "variables", &c.Env), texts(in.Entrypoint, "words", &c.Entrypoint), texts(in.Cmd, "words", &c.Cmd),
		names(in.Volumes, "volumes", &c.Volumes), names(in.ExposedPorts, "ports", &c.ExposedPorts))
}

func texts(raw json.RawMessage, what string, out *[]string) error {
	return elements(raw, what, maxSettings, '[', func(d *json.Decoder) error {
		var s string
		err := d.Decode(&s)
		*out = append(*out, s)
		return err
	})
}

func names(raw json.RawMessage, what string, out *map[string]struct{}) error {
	return elements(raw, what, maxSettings, '{', func(d *json.Decoder) error {
		k, err := d.Token()
		if err != nil {
			return err
		}
		if *out == nil {
			*out = map[string]struct{}{}
		}
		(*out)[k.(string)] = struct{}{} // names are strings to the decoder
		var value json.RawMessage
		return d.Decode(&value)
	})
}

// elements calls each for every element of a list or, where open is '{', of an object.
// What is not there has none.
func elements(raw json.RawMessage, what string, most int, open json.Delim, each func(*json.Decoder) error) error {
	if isNull(raw) {
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	if t, err := d.Token(); err != nil || t != open {
		return fmt.Errorf("%w: the %s are no list", ErrFormat, what)
	}
	for n := 0; d.More(); n++ {
		if n == most {
			return fmt.Errorf("%w: more than %d %s", ErrTooBig, most, what)
		}
		if err := each(d); err != nil {
			return fmt.Errorf("%w: %s: %w", ErrFormat, what, err)
		}
	}
	return nil
}

func isNull(raw json.RawMessage) bool { return len(raw) == 0 || string(raw) == "null" }

// unmarshal is json.Unmarshal for hostile documents: nesting is bounded by the
// decoder, and what comes after the value is an error.
func unmarshal(b []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	if err := d.Decode(v); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("there is something after its end")
	}
	return nil
}
