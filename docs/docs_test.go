package docs

import (
	"encoding/json"
	"maps"
	"os"
	"regexp"
	"slices"
	"testing"
)

// TestReceiptPageHasEveryKey: what the schema has, the page for people explains.
func TestReceiptPageHasEveryKey(t *testing.T) {
	page, err := os.ReadFile("receipt.md")
	if err != nil {
		t.Fatal(err)
	}
	var schema struct {
		Properties map[string]any
		Defs       map[string]struct {
			Properties map[string]any
		} `json:"$defs"`
	}
	if err := json.Unmarshal(ReceiptSchema, &schema); err != nil {
		t.Fatal(err)
	}
	if len(schema.Defs) < 20 {
		t.Fatalf("%d definitions", len(schema.Defs))
	}
	// The parts of small objects are explained by their names.
	small := []string{"check", "clock", "confirmation", "exit", "file", "image", "input", "sample", "seccomp", "stage", "unknown"}
	keys := slices.Collect(maps.Keys(schema.Properties))
	for name, def := range schema.Defs {
		if !slices.Contains(small, name) {
			keys = slices.AppendSeq(keys, maps.Keys(def.Properties))
		}
	}
	for _, key := range keys {
		if !regexp.MustCompile("[`.]" + key + "[`.]").Match(page) {
			t.Errorf("receipt.md does not explain %s", key)
		}
	}
}
