package box

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/pybox/pybox/agent/api"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
	"github.com/pybox/pybox/agent/bulk"
)

func TestUploadHoldsFilesToTheBounds(t *testing.T) {
	file := func(name string, bytes int64) *agentv1.RunFile { return &agentv1.RunFile{Name: name, Bytes: bytes} }
	folder := func(name string) *agentv1.RunFile { return &agentv1.RunFile{Name: name, Folder: true} }
	many := func(n int) (files []*agentv1.RunFile) {
		for i := range n {
			files = append(files, file(fmt.Sprint(i), 0))
		}
		return files
	}
	long := func(n int) (files []*agentv1.RunFile) {
		for i := range n {
			files = append(files, file(fmt.Sprintf("%0*d", api.MaxNamePart, i), 0))
		}
		return files
	}
	for _, c := range []struct {
		name       string
		maxFiles   int64
		maxBytes   int64
		files      []*agentv1.RunFile
		last, want string
	}{
		{"the program does not count", 0, 0, []*agentv1.RunFile{file("main.py", 1<<20)}, "", ""},
		{"exactly", 3, 10, []*agentv1.RunFile{file("a", 4), file("main.py", 9), folder("b"), file("b/c", 6)}, "", ""},
		{"one file more", 3, 10, []*agentv1.RunFile{file("a", 1), folder("b"), file("b/c", 1), file("d", 0)}, "d", "more than 3 files and folders"},
		{"one folder more", 1, 10, []*agentv1.RunFile{file("a", 1), folder("b")}, "b", "more than 1 files and folders"},
		{"one byte more", 3, 10, []*agentv1.RunFile{file("a", 4), file("b", 7)}, "b", "more than 10 bytes together"},
		{"no overflow", 3, 10, []*agentv1.RunFile{file("a", 4), file("b", api.MaxMemoryBytes)}, "b", "more than 10 bytes together"},
		{"twice", 3, 10, []*agentv1.RunFile{file("a", 1), file("a", 1)}, "a", `two files have the name "a"`},
		{"the program's name", 3, 10, []*agentv1.RunFile{file("main.py", 1), file("main.py", 1)}, "main.py", `two files have the name "main.py"`},
		{"no name", 3, 10, []*agentv1.RunFile{file("../a", 1)}, "../a", "relative path"},
		{"very many", 2000, 10, many(api.MaxInputs + 1), fmt.Sprint(api.MaxInputs), "more than 1024 files"},
		{"long names", 2000, 10, long(api.MaxNames/api.MaxNamePart + 1), fmt.Sprintf("%0*d", api.MaxNamePart, api.MaxNames/api.MaxNamePart), "names have more than"},
	} {
		t.Run(c.name, func(t *testing.T) {
			u := &upload{program: "main.py", maxFiles: c.maxFiles, maxBytes: c.maxBytes}
			var err error
			last := ""
			for _, f := range c.files {
				if err = u.admit(f); err != nil {
					last = f.GetName()
					break
				}
			}
			if c.want == "" && err == nil {
				return
			}
			if !errors.Is(err, api.ErrRequest) || !strings.Contains(err.Error(), c.want) || last != c.last {
				t.Errorf("%v at %q, want %q at %q", err, last, c.want, c.last)
			}
		})
	}
}

// parts is an input that is there already.
type parts []*agentv1.RunRequest

func (p *parts) Next(context.Context) (*agentv1.RunRequest, error) {
	if len(*p) == 0 {
		return nil, io.EOF
	}
	next := (*p)[0]
	*p = (*p)[1:]
	return next, nil
}

func (*parts) Bulk() *bulk.Line { return nil }

// reused is parts whose bytes are gone once the next one is asked for.
type reused struct {
	parts
	last []byte
}

func (r *reused) Next(ctx context.Context) (*agentv1.RunRequest, error) {
	clear(r.last)
	next, err := r.parts.Next(ctx)
	r.last = next.GetData()
	return next, err
}

// The bytes of a file are hashed as they are read, whatever the pieces.
func TestPartReaderHashesWhatItGives(t *testing.T) {
	var all []byte
	var in reused
	for i := range 20 {
		b := bytes.Repeat([]byte{byte(i)}, 1+i*10_000)
		all = append(all, b...)
		in.parts = append(in.parts, &agentv1.RunRequest{Part: &agentv1.RunRequest_Data{Data: b}})
	}
	digest := sha256.New()
	r := &partReader{ctx: t.Context(), u: &upload{in: &in}, left: int64(len(all)), hashed: digest}
	got, err := io.ReadAll(r)
	want := sha256.Sum256(all)
	if err != nil || !bytes.Equal(got, all) || !bytes.Equal(digest.Sum(nil), want[:]) {
		t.Errorf("%d of %d bytes, %v, or another hash", len(got), len(all), err)
	}
}

func TestPartReaderRefusesOtherData(t *testing.T) {
	data := func(n int) *agentv1.RunRequest {
		return &agentv1.RunRequest{Part: &agentv1.RunRequest_Data{Data: make([]byte, n)}}
	}
	for name, in := range map[string]parts{
		"too much":    {data(3), data(8)},
		"empty":       {data(0)},
		"a long part": {data(maxPart + 1)},
		"another":     {data(3), {Part: &agentv1.RunRequest_Go{Go: &agentv1.RunGo{}}}},
	} {
		left := int64(10)
		if name == "a long part" {
			left = 2 * maxPart
		}
		r := &partReader{ctx: t.Context(), u: &upload{in: &in}, left: left, hashed: io.Discard}
		_, err := io.ReadAll(r)
		if !errors.Is(err, api.ErrRequest) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
