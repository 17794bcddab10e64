//go:build linux && pyboxtest

package box

import (
	"context"
	"errors"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// AlterRecord changes the specification in containerd's record of a box.
func (m *Manager) AlterRecord(ctx context.Context, id string, f func(*specs.Spec)) error {
	e := m.Engine()
	if e == nil {
		return errors.New("there is no engine")
	}
	return e.AlterSpec(ctx, id, f)
}
