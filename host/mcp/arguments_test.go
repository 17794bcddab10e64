package mcp

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestParseRefuses(t *testing.T) {
	for name, c := range map[string]struct{ in, say string }{
		"nothing":          {``, "code is missing"},
		"null":             {`null`, "code is missing"},
		"a list":           {`[]`, "want an object with code"},
		"no code":          {`{}`, "code is missing"},
		"a number":         {`{"code":1}`, "code: a JSON number does not fit there: want a string"},
		"unknown":          {`{"code":"","memory":"1GiB"}`, `unknown field "memory": a call has code, image,`},
		"another case":     {`{"Code":""}`, `the arguments has an unknown field "Code"`},
		"twice":            {`{"code":"a","code":"b"}`, "twice"},
		"deep":             {`{"code":` + strings.Repeat("[", 100) + strings.Repeat("]", 100) + `}`, "nests deeper"},
		"cut off":          {`{"code":"`, "unexpected EOF"},
		"more":             {`{"code":""} {}`, "more than one"},
		"not UTF-8":        {"{\"code\":\"\xff\"}", "not UTF-8"},
		"half a character": {`{"code":"\ud800"}`, "half of a character"},
		"long":             {`{"code":"` + strings.Repeat("x", maxCode+1) + `"}`, "code: 1048577 bytes"},
		"time":             {`{"code":"","timeout":0}`, "timeout: 0 seconds"},
		"time before":      {`{"code":"","timeout":-1}`, "timeout: -1 seconds"},
		"time as text":     {`{"code":"","timeout":"5"}`, "timeout: a JSON string does not fit there: want a number of seconds"},
		"files":            {`{"code":"","files":{"a":"b"}}`, "files: a JSON object does not fit there"},
		"args":             {`{"code":"","args":[1]}`, "want a list of strings"},
		"null as an arg":   {`{"code":"","args":["a",null]}`, "args[1]: a JSON null"},
		"long args":        {`{"code":"","args":["` + strings.Repeat("<", 60<<10) + `","` + strings.Repeat("<", 60<<10) + `"]}`, "args: 122880 bytes, want at most 65536"},
		"a file's content": {`{"code":"","files":[{"name":"a","content":"x"}]}`, `unknown field "content": a call has code, image, files, return_files, timeout, stdin, args; each of files has name, and text or base64`},
		"a file's name":    {`{"code":"","files":[{"text":"x"}]}`, "files[0], \"\": it has no name"},
		"a long name":      {`{"code":"","files":[{"name":"` + strings.Repeat("n/", 4<<20) + `","text":""}]}`, "a name of 8388608 bytes, want at most 2048"},
		"a long part":      {`{"code":"","files":[{"name":"a/` + strings.Repeat("n", 256) + `","text":""}]}`, "a part of 256 bytes, want at most 255"},
		"absolute":         {`{"code":"","return_files":["/etc/passwd"]}`, "relative"},
		"above":            {`{"code":"","return_files":["a/../../b"]}`, "relative"},
		"empty":            {`{"code":"","return_files":[""]}`, "return_files[0]: 0 bytes"},
		"bad pattern":      {`{"code":"","return_files":["ok","["]}`, "return_files[1]"},
		"many patterns":    {`{"code":"","return_files":["` + strings.Repeat(`a","`, 32) + `a"]}`, "33 of them"},
	} {
		if _, err := parse(json.RawMessage(c.in)); err == nil || !strings.Contains(err.Error(), c.say) {
			t.Errorf("%s: %v, want %q", name, err, c.say)
		}
	}
}

func TestInputs(t *testing.T) {
	for in, say := range map[string]string{
		`{"name":"a","text":null}`:                 "exactly one",
		`{"name":"a"}`:                             "exactly one",
		`{"name":"a","text":"","base64":""}`:       "exactly one",
		`{"name":"a\u001b","base64":"!"}`:          `files[0], "a\x1b": base64`,
		`{"name":"a","base64":"QQ"}`:               "padding",
		`{"name":"a","base64":"Q\nQ=="}`:           "one line",
		`{"name":"b/c.txt","base64":"/w=="}`:       "",
		`{"name":"b/c.txt","text":"\ud83d\ude00"}`: "",
	} {
		a, err := parse(json.RawMessage(`{"code":"","files":[` + in + `]}`))
		if err != nil {
			t.Fatal(err)
		}
		files, err := a.inputs()
		if say == "" && (err != nil || len(files) != 1 || files[0].Name != "b/c.txt") || say != "" && (err == nil || !strings.Contains(err.Error(), say)) {
			t.Errorf("%s: %v, %v, want %q", in, files, err, say)
		}
	}
}

func TestMatches(t *testing.T) {
	for _, c := range []struct {
		pattern, name string
		want          bool
	}{
		{"a.png", "a.png", true}, {"a.png", "out/a.png", true}, {"out/a.png", "a.png", false}, {"./a.png", "a.png", true},
		{"*.png", "a.png", true}, {"*.png", "out/a.png", true}, {"*.png", "a.pn", false}, {"out/*", "out/a", true},
		{"out/*", "out/b/a", false}, {"out/**", "out/b/a", true}, {"out/**", "out", true}, {"**", "a/b/c", true}, {"**/a", "a", true},
		{"**/a", "b/c/a", true}, {"**/a", "b/c/d", false}, {"a/**/b", "a/b", true}, {"a/**/b", "a/x/y/b", true}, {"a/**/b", "a/x/y/c", false},
		{"[ab].txt", "b.txt", true}, {`\*`, "*", true}, {`\*`, "x", false},
	} {
		if got, err := matches(c.pattern, c.name); err != nil || got != c.want {
			t.Errorf("%q and %q: %t, %v", c.pattern, c.name, got, err)
		}
	}
}

// FuzzParse: whatever a client sends is taken whole or refused in words that can be
// shown, and no pattern takes long.
func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"code":"print(1)","image":"data","timeout":1.5,"args":["a"],"stdin":"x","return_files":["*.png"],"files":[{"name":"a","text":"b"}]}`), "a/b")
	f.Add([]byte(`{"code":"","return_files":["**/**/**/**/a*b*c*d*"]}`), "a/b/c/d/e/f/g")
	f.Add([]byte(`{"code":"\ud800"}`), "")
	f.Fuzz(func(t *testing.T, in []byte, name string) {
		a, err := parse(in)
		if err != nil {
			if len(err.Error()) > 1000 {
				t.Errorf("%d bytes are said of %q", len(err.Error()), in)
			}
			return
		}
		if a.Code == nil || len(a.ReturnFiles) > maxPatterns || !json.Valid(in) {
			t.Errorf("%q was taken", in)
		}
		if d, err := a.time(); err != nil || d != nil && *d <= 0 {
			t.Errorf("time %v, %v", d, err)
		}
		if files, err := a.inputs(); err == nil && len(files) != len(a.Files) {
			t.Errorf("%d of %d files", len(files), len(a.Files))
		}
		for _, p := range a.ReturnFiles {
			if _, err := matches(p, name); err != nil {
				t.Errorf("%q was taken and is no pattern", p)
			}
		}
	})
}
