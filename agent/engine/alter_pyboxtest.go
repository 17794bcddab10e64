//go:build linux && pyboxtest

package engine

import (
	"context"
	"encoding/json"

	"github.com/containerd/typeurl/v2"
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// AlterSpec changes the specification in the container record of id, which nothing
// but a test does: containerd tells it, and no container follows.
func (e *Engine) AlterSpec(ctx context.Context, id string, f func(*specs.Spec)) error {
	ctx, cancel := bounded(ctx, askCeiling)
	defer cancel()
	stored, err := e.StoredSpec(ctx, id)
	if err != nil {
		return err
	}
	spec := new(specs.Spec)
	if err := json.Unmarshal(stored, spec); err != nil {
		return err
	}
	f(spec)
	c, err := e.server.containers.Get(ctx, id)
	if err != nil {
		return err
	}
	if c.Spec, err = typeurl.MarshalAny(spec); err != nil {
		return err
	}
	_, err = e.server.containers.Update(ctx, c, "spec")
	return err
}
