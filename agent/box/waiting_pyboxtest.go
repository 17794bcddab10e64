//go:build linux && pyboxtest

package box

// Waiting is how many boxes wait for a run, and how many are being made for that, without
// a system call: for tests that count those.
func (m *Manager) Waiting() (ready, making int) {
	for _, s := range m.ahead.Status() {
		ready, making = ready+s.Ready, making+s.Making
	}
	return ready, making
}
