package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/receipt"
	"github.com/pybox/pybox/host/receipt/receipttest"
	"github.com/pybox/pybox/host/receipts"
)

// pybox runs the command line in a state directory.
func pybox(t *testing.T, dir string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	t.Setenv("PYBOX_HOME", dir)
	var out, errs bytes.Buffer
	code = run(args, &out, &errs)
	return code, out.String(), errs.String()
}

// someReceipts is a state directory with three receipts; the newest is damaged.
func someReceipts(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	store, err := receipts.Open(filepath.Join(dir, "receipts"), 10)
	if err != nil {
		t.Fatal(err)
	}
	for i, id := range []string{"5319e024", "5319ffff"} {
		r := receipttest.Example()
		r.Run.ID, r.Run.StartedAt = id, r.Run.StartedAt.Add(time.Duration(i)*time.Minute)
		if err := store.Put(r); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "receipts", "20270101T000000.000Z-half.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestReceiptList(t *testing.T) {
	dir := someReceipts(t)
	code, out, errs := pybox(t, dir, "receipt", "list")
	lines := strings.Split(out, "\n")
	if code != 0 || errs != "" || !strings.HasPrefix(lines[0], "RUN ") || !strings.HasPrefix(lines[1], "half ") || !strings.HasPrefix(lines[2], "5319ffff ") ||
		!strings.HasPrefix(lines[3], "5319e024 ") || !strings.Contains(out, "Damaged: half") {
		t.Errorf("exit %d\n%s%s", code, out, errs)
	}
	code, out, _ = pybox(t, dir, "receipt", "list", "--json", "-n", "2")
	var list api.Receipts
	if err := json.Unmarshal([]byte(out), &list); err != nil || code != 0 || len(list.Receipts) != 2 || list.Receipts[0].Damaged == "" || list.Receipts[1].ID != "5319ffff" {
		t.Errorf("exit %d, %v\n%s", code, err, out)
	}
}

func TestReceiptShow(t *testing.T) {
	dir := someReceipts(t)
	for _, word := range []string{"5319e024", "5319e"} {
		if code, out, errs := pybox(t, dir, "receipt", "show", word); code != 0 || errs != "" || !strings.HasPrefix(out, "PyBox receipt · run 5319e024 ") {
			t.Errorf("%s: exit %d\n%s%s", word, code, out, errs)
		}
	}
	code, out, _ := pybox(t, dir, "receipt", "show", "5319f", "--json")
	var r receipt.Receipt
	if err := json.Unmarshal([]byte(out), &r); err != nil || code != 0 || r.Run.ID != "5319ffff" {
		t.Errorf("exit %d, %v\n%s", code, err, out)
	}
	if err := receipttest.Validate([]byte(out)); err != nil {
		t.Error(err)
	}
	for word, want := range map[string]struct {
		code int
		say  string
	}{
		"last": {exitFailed, "half.json: the file of the receipt is damaged"}, "5319": {exitFailed, "5319ffff, 5319e024"},
		"0": {exitFailed, "no such receipt is kept"}, "../x": {exitUsage, "ids are 1 to 40"}, "": {exitUsage, "ids are"}, "A\x1b[2J": {exitUsage, "ids are"},
	} {
		code, out, errs := pybox(t, dir, "receipt", "show", word)
		if code != want.code || out != "" || !strings.HasPrefix(errs, "pybox: ") || !strings.Contains(errs, want.say) || strings.Contains(errs, "\x1b") {
			t.Errorf("%q: exit %d, stdout %q, stderr %q; want %d and %q", word, code, out, errs, want.code, want.say)
		}
	}
}

func TestReceiptUsage(t *testing.T) {
	for _, args := range [][]string{
		{"receipt", "frob"}, {"receipt", "show"}, {"receipt", "show", "a", "b"}, {"receipt", "list", "x"}, {"receipt", "list", "-n", "0"},
		{"receipt", "list", "-n", "x"}, {"receipt", "schema", "x"}, {"receipt", "show", "--frob"},
	} {
		if code, out, errs := pybox(t, t.TempDir(), args...); code != exitUsage || out != "" || !strings.HasPrefix(errs, "pybox: ") {
			t.Errorf("%v: exit %d, stdout %q, stderr %q", args, code, out, errs)
		}
	}
}

func TestReceiptsOfNobody(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "none")
	if code, out, errs := pybox(t, dir, "receipt", "list"); code != 0 || out != "" || !strings.Contains(errs, "no receipts are kept") {
		t.Errorf("list: exit %d, %q, %q", code, out, errs)
	}
	code, out, errs := pybox(t, dir, "receipt", "list", "--json")
	var list api.Receipts
	if err := json.Unmarshal([]byte(out), &list); err != nil || code != 0 || errs != "" || list.Receipts == nil || len(list.Receipts) != 0 {
		t.Errorf("list --json: exit %d, %q, %q", code, out, errs)
	}
	for _, word := range []string{"last", "5319e024"} {
		if code, _, errs := pybox(t, dir, "receipt", "show", word); code != exitFailed || !strings.Contains(errs, "kept") {
			t.Errorf("show %s: exit %d, %q", word, code, errs)
		}
	}
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the state directory was made: %v", err)
	}
}

func TestReceiptsThatOthersCouldRead(t *testing.T) {
	dir := someReceipts(t)
	if err := os.Chmod(filepath.Join(dir, "receipts"), 0o755); err != nil {
		t.Fatal(err)
	}
	if code, out, errs := pybox(t, dir, "receipt", "list"); code != exitFailed || out != "" || !strings.Contains(errs, "run 'chmod 700 "+dir) {
		t.Errorf("exit %d, %q, %q", code, out, errs)
	}
}

func TestReceiptSchema(t *testing.T) {
	code, out, _ := pybox(t, t.TempDir(), "receipt", "schema")
	var schema map[string]any
	if err := json.Unmarshal([]byte(out), &schema); err != nil || code != 0 || schema["$schema"] != "https://json-schema.org/draft/2020-12/schema" {
		t.Errorf("exit %d, %v", code, err)
	}
}
