package receipttest

import (
	"encoding/json"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pybox/pybox/docs"
	"github.com/pybox/pybox/host/receipt"
)

func TestExamplesAreValid(t *testing.T) {
	Check(t, Example())
	Check(t, Lost())
	withText := Example()
	withText.Program.Stdout.Text, withText.Program.Stderr.Base64 = ptr("42\n"), ptr("//4A")
	Check(t, withText)
	Check(t, WithFiles())
	refused := Ended("r", receipt.Ending{How: receipt.HowRefused, By: receipt.ByAgent, Reason: receipt.ReasonSettings, Evidence: []string{}}, nil)
	refused.Run.GuestElapsedMS = nil
	Check(t, refused)
}

// TestBrokenReceiptsFail changes one thing of a good receipt at a time.
func TestBrokenReceiptsFail(t *testing.T) {
	for name, breakIt := range map[string]func(r *receipt.Receipt){
		"format":              func(r *receipt.Receipt) { r.Schema = "pybox.receipt/v2" },
		"id":                  func(r *receipt.Receipt) { r.Run.ID = "../x" },
		"local time":          func(r *receipt.Receipt) { r.Run.StartedAt = r.Run.StartedAt.In(time.FixedZone("", 3600)) },
		"negative time":       func(r *receipt.Receipt) { r.Run.HostElapsedMS = -1 },
		"null stages":         func(r *receipt.Receipt) { r.Run.Stages = nil },
		"stage without name":  func(r *receipt.Receipt) { r.Run.Stages[0].Name = "" },
		"null args":           func(r *receipt.Receipt) { r.Configured.Args = nil },
		"env":                 func(r *receipt.Receipt) { r.Configured.Env = []string{"X"} },
		"digest":              func(r *receipt.Receipt) { r.Configured.Image.Digest = "sha256:abc" },
		"upper case":          func(r *receipt.Receipt) { r.Configured.Program.SHA256 = ptr(strings.Repeat("A", 64)) },
		"network":             func(r *receipt.Receipt) { r.Configured.Network = "host" },
		"folder":              func(r *receipt.Receipt) { r.Configured.HostFolders = []string{"/"} },
		"root":                func(r *receipt.Receipt) { r.Configured.Root = "writable" },
		"user":                func(r *receipt.Receipt) { r.Configured.User = "root" },
		"namespace":           func(r *receipt.Receipt) { r.Configured.Namespaces[0] = "time" },
		"null versions":       func(r *receipt.Receipt) { r.Observed.Engine.RuntimeVersions = nil },
		"code and signal":     func(r *receipt.Receipt) { r.Observed.Engine.Exit.Signal = ptr(9) },
		"neither":             func(r *receipt.Receipt) { r.Observed.Engine.Exit.Code = nil },
		"code 256":            func(r *receipt.Receipt) { r.Observed.Engine.Exit.Code = ptr(256) },
		"exited without exit": func(r *receipt.Receipt) { r.Observed.Engine.Exit = nil },
		"refused with exit": func(r *receipt.Receipt) {
			r.Ending = receipt.Ending{How: "refused", By: "agent", Reason: "timer", Evidence: []string{}}
		},
		"kind of box":          func(r *receipt.Receipt) { r.Observed.Engine.Box.Kind = ptr("warm") },
		"negative count":       func(r *receipt.Receipt) { r.Observed.Kernel.OOM = ptr(int64(-1)) },
		"imprecise count":      func(r *receipt.Receipt) { r.Observed.Kernel.CPUUsec = ptr(int64(1 << 53)) },
		"numbers of nothing":   func(r *receipt.Receipt) { r.Observed.Kernel.Source = "none" },
		"too many samples":     func(r *receipt.Receipt) { r.Observed.Kernel.Samples = make([]receipt.Sample, 601) },
		"kernel kind":          func(r *receipt.Receipt) { r.Observed.VM.KernelKind = "mine" },
		"text and base64":      func(r *receipt.Receipt) { r.Program.Stdout.Text, r.Program.Stdout.Base64 = ptr("x"), ptr("eA==") },
		"no base64":            func(r *receipt.Receipt) { r.Program.Stdout.Base64 = ptr("*") },
		"null files":           func(r *receipt.Receipt) { r.Program.Files = nil },
		"null counts":          func(r *receipt.Receipt) { r.Program.FilesUnlisted = nil },
		"bytes of a folder":    func(r *receipt.Receipt) { r.Configured.Inputs[0].Bytes = 1 },
		"digest of a folder":   func(r *receipt.Receipt) { r.Configured.Inputs[0].SHA256 = ptr(strings.Repeat("a", 64)) },
		"nameless file":        func(r *receipt.Receipt) { r.Program.Files[0].Name = "" },
		"file without digest":  func(r *receipt.Receipt) { r.Program.Files[1].SHA256 = nil },
		"folder with digest":   func(r *receipt.Receipt) { r.Program.Files[0].SHA256 = ptr(strings.Repeat("a", 64)) },
		"folder with an id":    func(r *receipt.Receipt) { r.Program.Files[0].File = strings.Repeat("a", 32) },
		"an id that is none":   func(r *receipt.Receipt) { r.Program.Files[1].File = "../x" },
		"reason for what came": func(r *receipt.Receipt) { r.Program.Files[1].Reason = receipt.FileTwin },
		"no reason":            func(r *receipt.Receipt) { r.Program.Files[2].Reason = "" },
		"another reason":       func(r *receipt.Receipt) { r.Program.Files[2].Reason = "not asked for" },
		"digest of a link":     func(r *receipt.Receipt) { r.Program.Files[4].SHA256 = ptr(strings.Repeat("a", 64)) },
		"id of a link":         func(r *receipt.Receipt) { r.Program.Files[4].File = strings.Repeat("a", 32) },
		"huge file":            func(r *receipt.Receipt) { r.Program.Files[5].Bytes = 1 << 53 },
		"no count":             func(r *receipt.Receipt) { r.Program.FilesUnlisted[0].Count = 0 },
		"too many files":       func(r *receipt.Receipt) { r.Program.Files = slices.Repeat(r.Program.Files[:1], 1281) },
		"how":                  func(r *receipt.Receipt) { r.Ending.How = "finished" },
		"by":                   func(r *receipt.Receipt) { r.Ending.By = "nobody" },
		"by another":           func(r *receipt.Receipt) { r.Ending.By = "agent" },
		"reason of no refusal": func(r *receipt.Receipt) { r.Ending.Reason = "timer" },
		"empty evidence":       func(r *receipt.Receipt) { r.Ending.Evidence = []string{""} },
		"cleanup":              func(r *receipt.Receipt) { r.Cleanup.Status = "done" },
		"source of a removal":  func(r *receipt.Receipt) { r.Cleanup.Confirmations[0].Source = "rumour" },
		"left without detail":  func(r *receipt.Receipt) { r.Cleanup.Confirmations[0].Gone = false },
		"unknown without why":  func(r *receipt.Receipt) { r.Unknown[0].Why = "" },
	} {
		r := WithFiles()
		breakIt(r)
		b, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if Validate(b) == nil {
			t.Errorf("%s: the schema allows it", name)
		}
	}
}

// TestKeysAreRequiredAndClosed removes every key of a receipt in turn, and adds
// one to every object.
func TestKeysAreRequiredAndClosed(t *testing.T) {
	b, err := json.Marshal(Example())
	if err != nil {
		t.Fatal(err)
	}
	var doc map[string]any
	if err := json.Unmarshal(b, &doc); err != nil {
		t.Fatal(err)
	}
	keys := 0
	var walk func(path string, v any)
	try := func(path string) {
		t.Helper()
		b, err := json.Marshal(doc)
		if err != nil {
			t.Fatal(err)
		}
		if Validate(b) == nil {
			t.Errorf("the schema allows a receipt %s", path)
		}
		keys++
	}
	walk = func(path string, v any) {
		switch v := v.(type) {
		case []any:
			for i, e := range v {
				walk(path+"."+strconv.Itoa(i), e)
			}
		case map[string]any:
			if strings.HasSuffix(path, ".runtime_versions") {
				return
			}
			for key, value := range v {
				delete(v, key)
				try("without " + path + "." + key)
				v[key] = value
				walk(path+"."+key, value)
			}
			v["more"] = 1
			try("with " + path + ".more")
			delete(v, "more")
		}
	}
	walk("", doc)
	if keys < 150 {
		t.Errorf("only %d changes tried", keys)
	}
}

func TestNullNumbersMustBeListed(t *testing.T) {
	lost := Lost()
	for i, u := range lost.Unknown {
		if u.Why != "the guest gave no record of the run" {
			continue
		}
		r := Lost()
		r.Unknown = slices.Delete(r.Unknown, i, i+1)
		if err := Unlisted(r); err == nil {
			t.Errorf("%s is missed by nobody", u.Fact)
		}
	}
	r := Example()
	r.Observed.Kernel.OOM = nil
	r.Unknown = append(r.Unknown, receipt.Unknown{Fact: "oom_kill", Why: "no"})
	if Unlisted(r) == nil {
		t.Error("oom is listed by oom_kill")
	}
	r.Unknown = append(r.Unknown, receipt.Unknown{Fact: "observed.kernel.oom", Why: "no"})
	if err := Unlisted(r); err != nil {
		t.Error(err)
	}
}

// node is a schema as far as this test reads it.
type node struct {
	Ref         string          `json:"$ref"`
	Description string          `json:"description"`
	Properties  map[string]node `json:"properties"`
	Required    []string        `json:"required"`
	Items       *node           `json:"items"`
	OneOf       []node          `json:"oneOf"`
	Defs        map[string]node `json:"$defs"`
}

// TestSchemaHasTheFields compares the schema with the Go types, both ways.
func TestSchemaHasTheFields(t *testing.T) {
	var root node
	if err := json.Unmarshal(docs.ReceiptSchema, &root); err != nil {
		t.Fatal(err)
	}
	used := map[string]bool{}
	var resolve func(n node) node
	resolve = func(n node) node {
		if len(n.OneOf) > 0 && n.OneOf[0].Ref != "" {
			n = n.OneOf[0]
		}
		if name, ok := strings.CutPrefix(n.Ref, "#/$defs/"); ok {
			used[name] = true
			return resolve(root.Defs[name])
		}
		return n
	}
	var same func(path string, typ reflect.Type, n node)
	same = func(path string, typ reflect.Type, n node) {
		for typ.Kind() == reflect.Pointer {
			typ = typ.Elem()
		}
		n = resolve(n)
		if typ.Kind() == reflect.Slice {
			if n.Items == nil {
				t.Errorf("%s: the schema has no items", path)
				return
			}
			same(path+"[]", typ.Elem(), *n.Items)
			return
		}
		if typ.Kind() != reflect.Struct || typ == reflect.TypeFor[time.Time]() {
			if len(n.Properties) > 0 {
				t.Errorf("%s: an object in the schema, %v in Go", path, typ)
			}
			return
		}
		left := map[string]bool{}
		for key := range n.Properties {
			left[key] = true
		}
		for f := range typ.Fields() {
			key, options, _ := strings.Cut(f.Tag.Get("json"), ",")
			p, ok := n.Properties[key]
			switch {
			case !ok:
				t.Errorf("%s.%s is not in the schema", path, key)
				continue
			case p.Description == "":
				t.Errorf("%s.%s has no description", path, key)
			case slices.Contains(n.Required, key) == strings.Contains(options, "omitempty"):
				t.Errorf("%s.%s: required in one, not in the other", path, key)
			}
			delete(left, key)
			same(path+"."+key, f.Type, p)
		}
		for key := range left {
			t.Errorf("%s.%s is not in Go", path, key)
		}
	}
	same("", reflect.TypeFor[receipt.Receipt](), root)
	for name := range root.Defs {
		if !used[name] {
			t.Errorf("$defs.%s is not used", name)
		}
	}
}
