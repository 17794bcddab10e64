//go:build darwin && cgo

package right

import "testing"

func TestConfiguration(t *testing.T) {
	if _, err := configuration("/nowhere"); err == nil {
		t.Error("no error")
	}
}
