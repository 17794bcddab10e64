package userimage

// ProvenancePath is where the note of where everything is from stands in an image,
// as JSON.
const ProvenancePath = "usr/share/pybox/image.json"

// Schema is the format of the note.
const Schema = "pybox.image/v1"

// Provenance says where everything in an image is from. As it stands in the image it
// depends on what the inputs are only: there is no time in it, no path, no address and
// no machine.
type Provenance struct {
	Schema string         `json:"schema"`
	Name   string         `json:"name"`
	Arch   string         `json:"arch"`
	Python string         `json:"python"` // full version
	Base   ProvenanceBase `json:"base"`
	Lock   ProvenanceLock `json:"lock"`
	// Bytecode tells whether the packages' byte code is in the image.
	Bytecode bool `json:"bytecode"`
	// Packages are those of the wheels, sorted by name.
	Packages []Package `json:"packages"`
}

// ProvenanceBase is the image that was built on.
type ProvenanceBase struct {
	Name   string `json:"name"`
	SHA256 string `json:"sha256"`
}

// ProvenanceLock is the lock file.
type ProvenanceLock struct {
	Kind   string `json:"kind"`
	SHA256 string `json:"sha256"`
}

// Package is an installed distribution.
type Package struct {
	Name    string   `json:"name"` // as its metadata writes it
	Version string   `json:"version"`
	Extras  []string `json:"extras,omitempty"`
	Summary string   `json:"summary,omitempty"` // at most 200 bytes, without control characters
	Wheel   string   `json:"wheel"`             // its file name
	URL     string   `json:"-"`                 // where from, without credentials; "" for a local file
	SHA256  string   `json:"sha256"`            // of the wheel
	Files   int      `json:"files"`
	Bytes   int64    `json:"bytes"` // of the installed files, without byte code
}
