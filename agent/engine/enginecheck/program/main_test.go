//go:build linux

package main

import "testing"

// TestCalls: a call's name appears once, and each has a result to want.
func TestCalls(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range calls() {
		if seen[c.name] || c.name == "" || c.want == "" {
			t.Errorf("the call %q", c.name)
		}
		seen[c.name] = true
	}
}
