//go:build linux && pyboxtest

package box

import "github.com/pybox/pybox/agent/engine"

// Engine is what makes the boxes, nil before there is one: for tests that plant
// something in it.
func (m *Manager) Engine() *engine.Engine {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.engine
}
