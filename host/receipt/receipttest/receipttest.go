// Package receipttest holds receipts to what docs promises of them, for tests.
package receipttest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"sync"
	"testing"

	"github.com/pybox/pybox/docs"
	"github.com/pybox/pybox/host/receipt"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

// Check fails the test where r breaks the published schema, has null in the place
// of an array, or has a number that is null without an entry of Unknown that names
// it.
func Check(t testing.TB, r *receipt.Receipt) {
	t.Helper()
	b, err := json.Marshal(r)
	if err != nil {
		t.Errorf("the receipt has no JSON form: %v", err)
		return
	}
	if err := Validate(b); err != nil {
		t.Errorf("%v\nin %s", err, b)
	}
	if err := Unlisted(r); err != nil {
		t.Errorf("%v\nin %s", err, b)
	}
}

// schema is compiled once; it is safe for concurrent use.
var schema = sync.OnceValues(func() (*jsonschema.Schema, error) {
	const name = "receipt.v1.schema.json"
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(docs.ReceiptSchema))
	if err != nil {
		return nil, err
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	c.AssertContent()
	if err := c.AddResource(name, doc); err != nil {
		return nil, err
	}
	return c.Compile(name)
})

// Validate holds the JSON form of a receipt to the published schema, in which no
// array and no map can be null.
func Validate(b []byte) error {
	s, err := schema()
	if err != nil {
		return fmt.Errorf("the schema itself: %w", err)
	}
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(b))
	if err != nil {
		return err
	}
	return s.Validate(v)
}

// words are the parts of a fact that can be the name of a key.
var words = regexp.MustCompile(`[a-z0-9_]+`)

// Unlisted names the numbers of r that are null although they should be known, and
// that Unknown does not list. An entry lists a number when its fact has the name
// of the number's key as a word, as in "cpu_usec" or "observed.kernel.cpu_usec";
// for the bytes of a stream it has the stream's, as in "stdout.bytes".
func Unlisted(r *receipt.Receipt) error {
	var errs []error
	want := func(known bool, key string, also ...string) {
		listed := slices.ContainsFunc(r.Unknown, func(u receipt.Unknown) bool {
			has := words.FindAllString(u.Fact, -1)
			return u.Why != "" && !slices.ContainsFunc(append(also, key), func(w string) bool { return !slices.Contains(has, w) })
		})
		if !known && !listed {
			errs = append(errs, fmt.Errorf("%s is null and not listed as unknown", key))
		}
	}
	never := r.Ending.How == receipt.HowRefused // there is nothing that could be known
	k := r.Observed.Kernel
	for _, n := range []struct {
		key   string
		value *int64
	}{
		{"memory_peak_bytes", k.MemoryPeakBytes},
		{"pids_peak", k.PIDsPeak},
		{"cpu_usec", k.CPUUsec},
		{"periods", k.Periods},
		{"throttled_periods", k.ThrottledPeriods},
		{"throttled_usec", k.ThrottledUsec},
		{"oom", k.OOM},
		{"oom_kill", k.OOMKill},
		{"oom_group_kill", k.OOMGroupKill},
		{"pids_max_hits", k.PIDsMaxHits},
	} {
		want(n.value != nil, n.key)
	}
	want(r.Program.Stdout.Bytes != nil, "bytes", "stdout")
	want(r.Program.Stderr.Bytes != nil, "bytes", "stderr")
	want(r.Run.QueuedMS != nil, "queued_ms")
	want(never || r.Run.GuestElapsedMS != nil, "guest_elapsed_ms")
	want(never || r.Observed.Engine.Exit != nil, "exit")
	return errors.Join(errs...)
}
