package receipts

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	agentapi "github.com/pybox/pybox/agent/api"
	"github.com/pybox/pybox/host/receipt"
)

// encode gives the content of a receipt's file: JSON without the output.
func encode(r *receipt.Receipt) ([]byte, error) {
	if err := check(r); err != nil {
		return nil, err
	}
	bare := *r
	for _, s := range []*receipt.Stream{&bare.Program.Stdout, &bare.Program.Stderr} {
		s.Text, s.Base64 = nil, nil
	}
	b, err := json.Marshal(&bare)
	if err != nil {
		return nil, err
	}
	if b = append(b, '\n'); len(b) > MaxBytes {
		return nil, fmt.Errorf("it has %d bytes, want at most %d", len(b), MaxBytes)
	}
	return b, nil
}

// decode reads what encode wrote. The error matches ErrDamaged or ErrVersion.
func decode(b []byte) (*receipt.Receipt, error) {
	r, err := strict(b)
	if err == nil {
		return r, nil
	}
	// Of another version not much can be read, but which it is.
	var head struct {
		Schema string `json:"schema"`
	}
	if json.Unmarshal(b, &head) == nil && head.Schema != receipt.Schema && strings.HasPrefix(head.Schema, "pybox.receipt/") {
		return nil, fmt.Errorf("%w: %.60q: another version of PyBox wrote it, which can show it", ErrVersion, head.Schema)
	}
	return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
}

func strict(b []byte) (*receipt.Receipt, error) {
	r := new(receipt.Receipt)
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(r); err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the receipt")
	}
	return r, check(r)
}

// check refuses what cannot be filed. What else a receipt says is its maker's.
func check(r *receipt.Receipt) error {
	switch at := r.Run.StartedAt.UTC(); {
	case r.Schema != receipt.Schema:
		return fmt.Errorf("the format is %.60q, want %q", r.Schema, receipt.Schema)
	case agentapi.CheckRunID(r.Run.ID) != nil:
		return agentapi.CheckRunID(r.Run.ID)
	case at.IsZero() || at.Year() < 1 || at.Year() > 9999:
		return errors.New("it does not say when the run was started")
	case r.Ending.How == "" || r.Ending.By == "":
		return errors.New("it does not say how the run ended")
	}
	return nil
}
