package guestrun

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pybox/pybox/agent/api"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
)

// reader makes a function a file's content.
type reader func([]byte) (int, error)

func (f reader) Read(b []byte) (int, error) { return f(b) }
func (f reader) Close() error               { return nil }

// hangs is a reader that gives nothing until the test's bubble ends.
func hangs(t *testing.T) reader {
	stop := make(chan struct{})
	t.Cleanup(func() { close(stop) })
	return func([]byte) (int, error) { <-stop; return 0, io.EOF }
}

// endless gives spaces for ever.
func endless(b []byte) (int, error) { return copy(b, bytes.Repeat([]byte{' '}, len(b))), nil }

// Files that cannot be sent cancel the run; the error names the file.
func TestFilesThatFail(t *testing.T) {
	broken := errors.New("input/output error")
	for name, c := range map[string]struct {
		file func(t *testing.T) File
		want string
		took time.Duration
	}{
		"does not open": {
			file: func(*testing.T) File { return File{Open: func() (io.ReadCloser, error) { return nil, broken }} },
			want: "input/output error",
		},
		"does not read": {
			file: func(*testing.T) File {
				return File{Bytes: 9, Open: func() (io.ReadCloser, error) {
					return reader(func([]byte) (int, error) { return 0, broken }), nil
				}}
			},
			want: "input/output error",
		},
		"is shorter":  {file: func(*testing.T) File { return short(9, "12345678") }, want: "not the 9 bytes"},
		"is longer":   {file: func(*testing.T) File { return short(7, "12345678") }, want: "not the 7 bytes"},
		"is no empty": {file: func(*testing.T) File { return short(0, "1") }, want: "not the 0 bytes"},
		"is endless": {
			file: func(*testing.T) File {
				return File{Bytes: 600 << 10, Open: func() (io.ReadCloser, error) { return reader(endless), nil }}
			},
			want: "not the 614400 bytes",
		},
		"hangs in open": {
			file: func(t *testing.T) File {
				h := hangs(t)
				return File{Bytes: 9, Open: func() (io.ReadCloser, error) { _, _ = h.Read(nil); return h, nil }}
			},
			want: "gave nothing for 30s", took: ReadWait,
		},
		"hangs in read": {
			file: func(t *testing.T) File {
				h := hangs(t)
				return File{Bytes: 9, Open: func() (io.ReadCloser, error) { return h, nil }}
			},
			want: "gave nothing for 30s", took: ReadWait,
		},
		"drips": {
			file: func(t *testing.T) File {
				return File{Bytes: 1 << 20, Open: func() (io.ReadCloser, error) {
					return reader(func(b []byte) (int, error) {
						select {
						case <-time.After(time.Second):
						case <-t.Context().Done():
						}
						return copy(b, "x"), nil
					}), nil
				}}
			},
			want: "gave nothing for 30s", took: ReadWait,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ended := &agentv1.Ending{How: api.HowCancelled, By: api.ByClient}
				g := newGuest(t, func(s *script) {
					s.Admit()
					go s.Upload()
					<-s.Cancelled
					s.Finish(newScript().Record(ended, nil, false))
				})
				r := request()
				f := c.file(t)
				f.Name = "data"
				r.Files = append(r.Files, f)
				// Shorter than the wait for a file: the guest is not to blame.
				res, err := Run(t.Context(), g, r, nil, Options{Silence: ReadWait / 3})
				if !errors.Is(err, ErrFiles) || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), `"data"`) {
					t.Errorf("%v, want ErrFiles with %q", err, c.want)
				}
				wantEnding(t, res, api.HowCancelled, api.ByClient)
				if took := res.Times.Ended.Sub(res.Times.Sent); took != c.took {
					t.Errorf("it took %v, want %v", took, c.took)
				}
				if len(g.Killed()) > 0 || len(res.Inputs) != 1 {
					t.Errorf("killed %q, inputs %v", g.Killed(), res.Inputs)
				}
			})
		})
	}
}

func short(size int64, content string) File {
	f := text("data", content)
	f.Bytes = size
	return f
}

// Requests that no guest takes never reach one.
func TestRequestsThatAreRefused(t *testing.T) {
	for name, spoil := range map[string]func(*Request){
		"no start":           func(r *Request) { r.Start = nil },
		"no program":         func(r *Request) { r.Files[0].Name = "other.py" },
		"program as folder":  func(r *Request) { r.Files[0].Folder = true },
		"no files":           func(r *Request) { r.Files = nil },
		"twice":              func(r *Request) { r.Files = append(r.Files, r.Files[0]) },
		"outside":            func(r *Request) { r.Files = append(r.Files, text("../x", "")) },
		"negative size":      func(r *Request) { r.Files[0].Bytes = -1 },
		"too many":           func(r *Request) { r.Files = append(r.Files, make([]File, api.MaxInputs)...) },
		"time of zero":       func(r *Request) { r.Start.TimeoutNs = 0 },
		"more than a folder": func(r *Request) { r.Start.Limits.WorkBytes = 1 << 40 },
	} {
		r := request()
		spoil(&r)
		if res, err := Run(t.Context(), nil, r, nil, Options{}); !errors.Is(err, api.ErrRequest) || res != nil {
			t.Errorf("%s: %v, %v, want ErrRequest", name, res, err)
		}
	}
}

// Standard input reaches the program in pieces and with its end, and never holds
// up the end of the run.
func TestStandardInput(t *testing.T) {
	for name, c := range map[string]struct {
		stdin   func(*testing.T) io.Reader
		heard   int // bytes, when the program hears all of it
		end     bool
		unknown bool
	}{
		"none":                   {stdin: func(*testing.T) io.Reader { return nil }},
		"empty":                  {stdin: func(*testing.T) io.Reader { return strings.NewReader("") }, end: true},
		"large":                  {stdin: func(*testing.T) io.Reader { return strings.NewReader(strings.Repeat("x", 3<<20)) }, heard: 3 << 20, end: true},
		"with data at its end":   {stdin: func(*testing.T) io.Reader { return &lastWords{text: "bye", err: io.EOF} }, heard: 3, end: true},
		"that fails":             {stdin: func(*testing.T) io.Reader { return &lastWords{text: "abc", err: errors.New("broken")} }, heard: 3, end: true, unknown: true},
		"that gives nothing":     {stdin: func(*testing.T) io.Reader { return reader(func([]byte) (int, error) { return 0, nil }) }, end: true, unknown: true},
		"that never comes":       {stdin: func(t *testing.T) io.Reader { return hangs(t) }},
		"that never ends":        {stdin: func(*testing.T) io.Reader { return reader(endless) }},
		"that nobody reads from": {stdin: func(*testing.T) io.Reader { return reader(endless) }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				heard, end := 0, false
				g := newGuest(t, func(s *script) {
					if !s.Begin() {
						return
					}
					if !strings.HasPrefix(name, "that n") && s.Stdin {
						for m := s.Next(); m != nil && !end; m = s.Next() {
							heard += len(m.GetStdin())
							if end = len(m.GetStdin()) == 0; end {
								break
							}
						}
					} else if name == "that never ends" {
						for range 100 {
							s.Next()
						}
					}
					synctest.Wait()
					s.End(0)
				})
				r := request()
				r.Stdin = c.stdin(t)
				res, err := Run(t.Context(), g, r, nil, Options{})
				if err != nil {
					t.Fatal(err)
				}
				wantEnding(t, res, api.HowExited, api.ByProgram)
				wantAfter(t, res, 0)
				if heard != c.heard || end != c.end {
					t.Errorf("the program heard %d bytes, end %v; want %d, %v", heard, end, c.heard, c.end)
				}
				if (len(res.Unknown) > 0) != c.unknown {
					t.Errorf("unknown is %v", res.Unknown)
				}
			})
		})
	}
}

// lastWords gives its text and its error at once.
type lastWords struct {
	text string
	err  error
}

func (r *lastWords) Read(b []byte) (int, error) { return copy(b, r.text), r.err }
