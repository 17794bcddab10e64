package docs

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
)

// TestOpenAPI: the description is one, by the judgement of a library of others.
func TestOpenAPI(t *testing.T) {
	doc, err := openapi3.NewLoader().LoadFromData(OpenAPI)
	if err != nil {
		t.Fatal(err)
	}
	if err := doc.Validate(t.Context()); err != nil {
		t.Error(err)
	}
	ids := map[string]bool{}
	for path, item := range doc.Paths.Map() {
		for method, op := range item.Operations() {
			if op.Summary == "" || op.OperationID == "" || ids[op.OperationID] || len(op.Tags) != 1 || doc.Tags.Get(op.Tags[0]) == nil {
				t.Errorf("%s %s: its summary is %q, its id %q, its tags %q", method, path, op.Summary, op.OperationID, op.Tags)
			}
			ids[op.OperationID] = true
			for _, p := range op.Parameters {
				if p.Value.Description == "" {
					t.Errorf("%s %s: the parameter %s is not explained", method, path, p.Value.Name)
				}
			}
		}
	}
	if len(ids) < 15 {
		t.Errorf("only %d operations", len(ids))
	}
}

// TestOpenAPIIsStrict: an object of the description has the members that stand there and no
// others, so that a new one without a description is found, and each is explained.
func TestOpenAPIIsStrict(t *testing.T) {
	components := schemas(t)
	objects := 0
	var walk func(where string, v any)
	walk = func(where string, v any) {
		switch v := v.(type) {
		case []any:
			for _, x := range v {
				walk(where, x)
			}
		case map[string]any:
			props, has := v["properties"].(map[string]any)
			if v["type"] == "object" {
				objects++
				if more, ok := v["additionalProperties"]; !ok || more == true {
					t.Errorf("%s takes any member", where)
				}
			}
			if has && v["type"] == "object" {
				for name, p := range props {
					m, _ := p.(map[string]any)
					if _, isRef := m["$ref"]; !isRef && m["description"] == nil && name != "event" {
						t.Errorf("%s.%s is not explained", where, name)
					}
				}
			}
			for name, x := range v {
				walk(where+"/"+name, x)
			}
		}
	}
	for name, s := range components {
		if !isReceipt(name) {
			walk(name, s)
		}
	}
	if objects < 35 {
		t.Errorf("only %d objects", objects)
	}
	var doc any
	if err := json.Unmarshal(OpenAPI, &doc); err != nil {
		t.Fatal(err)
	}
	used := map[string]bool{}
	findRefs(doc, used)
	for name := range components {
		if !used[name] {
			t.Errorf("the schema %s is not used", name)
		}
	}
}

func findRefs(v any, used map[string]bool) {
	switch v := v.(type) {
	case []any:
		for _, x := range v {
			findRefs(x, used)
		}
	case map[string]any:
		if ref, ok := v["$ref"].(string); ok {
			used[strings.TrimPrefix(ref, "#/components/schemas/")] = true
		}
		for _, x := range v {
			findRefs(x, used)
		}
	}
}

// schemas are those of the description.
func schemas(t *testing.T) map[string]any {
	t.Helper()
	var doc struct {
		Components struct{ Schemas map[string]any }
	}
	if err := json.Unmarshal(OpenAPI, &doc); err != nil {
		t.Fatal(err)
	}
	return doc.Components.Schemas
}

// isReceipt tells whether a schema is a part of the published receipt.
func isReceipt(name string) bool { return name == "Receipt" || strings.HasPrefix(name, "receipt.") }

// TestOpenAPIHasTheReceipt: the receipt in the description is the published one, whose
// parts have names of their own there.
func TestOpenAPIHasTheReceipt(t *testing.T) {
	moved := strings.ReplaceAll(string(ReceiptSchema), `"#/$defs/`, `"#/components/schemas/receipt.`)
	var published map[string]any
	if err := json.Unmarshal([]byte(moved), &published); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"Receipt": published}
	for name, part := range published["$defs"].(map[string]any) {
		want["receipt."+name] = part
	}
	for _, key := range []string{"$schema", "$id", "$defs"} {
		delete(published, key)
	}
	for name, got := range schemas(t) {
		if !isReceipt(name) {
			continue
		}
		if !reflect.DeepEqual(got, want[name]) {
			text, _ := json.MarshalIndent(want[name], "", "  ")
			t.Errorf("%s is not what receipt.v1.schema.json has; there it is\n%s", name, text)
		}
		delete(want, name)
	}
	for name := range want {
		t.Errorf("%s is missing", name)
	}
}
