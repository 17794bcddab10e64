package runapi

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/receipt"
	"github.com/pybox/pybox/host/runs"
	"github.com/pybox/pybox/host/spool"
)

// leave stores content as a run does, and gives its id.
func (s *server) leave(content []byte) string {
	s.t.Helper()
	room, err := s.files.Reserve(s.ctx(), 1, int64(len(content)), nil)
	if err != nil {
		s.t.Fatal(err)
	}
	defer room.Close()
	f, err := room.Create(int64(len(content)))
	if err != nil {
		s.t.Fatal(err)
	}
	if _, err := io.Copy(f, bytes.NewReader(content)); err != nil {
		s.t.Fatal(err)
	}
	id, err := f.Publish(sha256.Sum256(content))
	if err != nil {
		s.t.Fatal(err)
	}
	return id
}

// idle waits until nothing of what runs left is there.
func (s *server) idle() {
	s.t.Helper()
	room, err := s.files.Reserve(s.ctx(), spool.MaxLeft, spool.MaxLeftBytes, nil)
	if err != nil {
		s.t.Fatalf("something of a run is still there: %v", err)
	}
	room.Close()
}

func isNoFile(err error) bool {
	var p *api.Problem
	return errors.As(err, &p) && p.Status == 404 && p.Type == api.ProblemFile && p.Next == ""
}

func TestGetFile(t *testing.T) {
	s := serve(t, program(nil))
	for _, content := range [][]byte{nil, []byte("a\x00\xff"), bytes.Repeat([]byte("0123456789"), 100_000)} {
		id := s.leave(content)
		for range 2 {
			f, err := s.client.File(s.ctx(), id)
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(f)
			f.Close()
			if err != nil || !bytes.Equal(b, content) {
				t.Errorf("%d of %d bytes came, %v", len(b), len(content), err)
			}
		}
		sum := sha256.Sum256(content)
		for _, method := range []string{"GET", "HEAD"} {
			resp, _, b := s.ask(method, "/v1/files/"+id, "")
			h := resp.Header
			if resp.StatusCode != 200 || h.Get("Content-Type") != "application/octet-stream" || h.Get("Content-Length") != fmt.Sprint(len(content)) ||
				h.Get("Repr-Digest") != "sha-256=:"+base64.StdEncoding.EncodeToString(sum[:])+":" || method == "GET" != bytes.Equal(b, content) && len(content) > 0 {
				t.Errorf("%s: %s %v", method, resp.Status, h)
			}
		}
		if err := s.client.ForgetFile(s.ctx(), id); err != nil {
			t.Error(err)
		}
		if _, err := s.client.File(s.ctx(), id); !isNoFile(err) {
			t.Errorf("a forgotten one: %v", err)
		}
		if err := s.client.ForgetFile(s.ctx(), id); !isNoFile(err) {
			t.Errorf("forgotten twice: %v", err)
		}
	}
	for _, id := range []string{"x", "../status", strings.Repeat("0", 32), "\x1b[2J\xff", strings.Repeat("a", 5000)} {
		if _, err := s.client.File(s.ctx(), id); !isNoFile(err) {
			t.Errorf("%.50q: %v", id, err)
		}
	}
	if s.users.Load() != 0 {
		t.Errorf("%d requests still use the VM", s.users.Load())
	}
	// A body that waits for its run cannot be read, and can be forgotten.
	f, err := s.client.StoreFile(s.ctx(), strings.NewReader("abc"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.client.File(s.ctx(), f.File); !isNoFile(err) {
		t.Errorf("a body of a run: %v", err)
	}
	if err := s.client.ForgetFile(s.ctx(), f.File); err != nil {
		t.Error(err)
	}
	s.idle()
	// A daemon that ends has no files, and says why.
	s.files.Close()
	var p *api.Problem
	_, err = s.client.File(s.ctx(), f.File)
	for _, err := range []error{err, s.client.ForgetFile(s.ctx(), f.File)} {
		if !errors.As(err, &p) || p.Status != 409 || p.Type != api.ProblemStopping || p.Next == "" {
			t.Errorf("of a daemon that ends: %v", err)
		}
	}
}

// A client that does not read has its connection ended, and one that reads learns of an
// end in the middle.
func TestGetFileOfSlowClients(t *testing.T) {
	s := serve(t, program(nil))
	s.h.times.file = 300 * time.Millisecond
	id := s.leave(make([]byte, 32<<20))
	c, err := net.Dial("unix", s.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(bound))
	io.WriteString(c, "GET /v1/files/"+id+" HTTP/1.1\r\nHost: x\r\n\r\n")
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.client.ForgetFile(s.ctx(), id); err != nil { // it is still read
		t.Fatal(err)
	}
	s.idle() // until the daemon has given the client up
	if n, err := io.Copy(io.Discard, resp.Body); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%d bytes came, %v", n, err)
	}
}

// A daemon that dies in the middle of a file, and a client that gives up.
func TestFileThatIsCutOff(t *testing.T) {
	s := serve(t, program(nil))
	id := s.leave(make([]byte, 32<<20))
	ctx, cancel := context.WithCancelCause(s.ctx())
	f, err := s.client.File(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	mine := errors.New("mine")
	cancel(mine)
	if _, err := io.Copy(io.Discard, f); !errors.Is(err, mine) {
		t.Errorf("given up: %v", err)
	}
	f.Close()
	f, err = s.client.File(s.ctx(), id)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := io.ReadFull(f, make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	s.h.Hurry(time.Nanosecond) // the daemon is on its way out
	if _, err := io.Copy(io.Discard, f); !errors.Is(err, api.ErrHungUp) {
		t.Errorf("cut off: %v", err)
	}
}

// leaves accepts every request as a run that leaves hello.txt.
func (s *server) leaves(ids chan<- string, do func(context.Context, runs.Sink) error) func(runs.Request) (Run, error) {
	return func(r runs.Request) (Run, error) {
		run, err := program(do)(r)
		run.(*fakeRun).leaves = func(rec *receipt.Receipt) {
			rec.Ending.Evidence = append(rec.Ending.Evidence, strings.Repeat("x", 20_000)) // as long as real ones
			id := s.leave([]byte("hello"))
			rec.Program.Files = []receipt.File{{Name: "hello.txt", Bytes: 5, Returned: true, File: id}, {Name: "d", Folder: true, Returned: true}}
			ids <- id
		}
		return run, err
	}
}

// What came back is there for a client that has its answer.
func TestAnswersHaveIDs(t *testing.T) {
	ids := make(chan string, 1)
	s := serve(t, nil)
	s.begin = s.leaves(ids, nil)
	out, err := s.client.Run(s.ctx(), api.RunRequest{Program: text(""), Collect: true}, func(api.Event) error { return nil })
	if err != nil || out.Receipt.Program.Files[0].File != <-ids {
		t.Fatalf("%+v, %v", out, err)
	}
	_, _, b := s.ask("POST", "/v1/runs", `{"program": {"text": ""}}`)
	id := <-ids
	if !bytes.Contains(b, []byte(`"file":"`+id+`"`)) {
		t.Errorf("the answer is %s", b)
	}
	for _, id := range []string{out.Receipt.Program.Files[0].File, id} {
		f, err := s.client.File(s.ctx(), id)
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
}

// A client goes away as soon as it has the line with the ids, and keeps what came back:
// what the daemon still writes then, the end of a chunk, tells nothing.
func TestClientsThatGoAtOnceKeepTheirFiles(t *testing.T) {
	ids := make(chan string, 1)
	s := serve(t, nil)
	s.begin = s.leaves(ids, nil)
	body := `{"program": {"text": ""}}`
	for range 300 {
		c, err := net.Dial("unix", s.socket)
		if err != nil {
			t.Fatal(err)
		}
		c.SetDeadline(time.Now().Add(bound))
		fmt.Fprintf(c, "POST /v1/runs HTTP/1.1\r\nHost: x\r\nAccept: %s\r\nContent-Length: %d\r\n\r\n%s", api.MediaEvents, len(body), body)
		for lines := bufio.NewReader(c); ; {
			line, err := lines.ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			if strings.HasPrefix(line, `{"event":"receipt"`) {
				break
			}
		}
		c.Close()
		f, err := s.client.File(s.ctx(), <-ids)
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
}

// Where the answer cannot be delivered what came back is forgotten at once: nobody has
// its ids. Of a run whose id its client chose it is when another run needs the room.
func TestFilesOfNobodyAreForgotten(t *testing.T) {
	for name, head := range map[string]string{"receipt": "", "events": "Accept: " + api.MediaEvents + "\r\n", "named": "Accept: " + api.MediaEvents + "\r\n"} {
		t.Run(name, func(t *testing.T) {
			ids := make(chan string, 1)
			s := serve(t, nil)
			begun := make(chan struct{})
			gone := make(chan struct{})
			s.begin = s.leaves(ids, func(context.Context, runs.Sink) error {
				close(begun)
				<-gone
				return nil
			})
			body := `{"program": {"text": ""}}`
			if name == "named" {
				body = `{"id": "x", "program": {"text": ""}}`
			}
			c, err := net.Dial("unix", s.socket)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(c, "POST /v1/runs HTTP/1.1\r\nHost: x\r\n%sContent-Length: %d\r\n\r\n%s", head, len(body), body)
			<-begun
			c.Close()
			close(gone)
			id := <-ids
			if name == "named" {
				f, err := s.files.Read(id)
				if err != nil {
					t.Fatalf("it is forgotten: %v", err)
				}
				f.Close()
			}
			s.idle()
			if _, err := s.files.Read(id); !errors.Is(err, spool.ErrNotFound) {
				t.Errorf("it is still there: %v", err)
			}
		})
	}
}

// inputs gives what the service is asked for with those inputs.
func (s *server) inputs(req api.RunRequest) ([]runs.File, map[string]string, error) {
	var got []runs.File
	contents := map[string]string{}
	s.begin = func(r runs.Request) (Run, error) {
		got = r.Inputs
		for _, f := range r.Inputs {
			if f.Open == nil {
				continue
			}
			c, err := f.Open()
			if err != nil {
				return nil, err
			}
			b, err := io.ReadAll(c)
			if err != nil || int64(len(b)) != f.Bytes {
				return nil, fmt.Errorf("%s: %d of %d bytes, %w", f.Name, len(b), f.Bytes, err)
			}
			contents[f.Name] = string(b)
		}
		return program(nil)(r)
	}
	_, err := s.client.Run(s.ctx(), req, func(api.Event) error { return nil })
	return got, contents, err
}

func TestInputs(t *testing.T) {
	s := serve(t, nil)
	large := strings.Repeat("x", 3<<20)
	stored, err := s.client.StoreFile(s.ctx(), strings.NewReader(large))
	if err != nil {
		t.Fatal(err)
	}
	plain, binary := "1,2\n", "AP8="
	req := api.RunRequest{Program: text(""), Inputs: []api.InputFile{
		{Source: api.Source{Name: "d"}, Folder: true},
		{Source: api.Source{Name: "d/a.csv", Text: &plain}},
		{Source: api.Source{Name: "b.bin", Base64: &binary}, Executable: true},
		{Source: api.Source{Name: "large", File: stored.File}},
	}}
	got, contents, err := s.inputs(req)
	if err != nil || len(got) != 4 || !got[0].Folder || got[0].Open != nil || !got[2].Executable || got[1].Executable ||
		contents["d/a.csv"] != plain || contents["b.bin"] != "\x00\xff" || contents["large"] != large {
		t.Fatalf("%+v, %v", got, err)
	}
	// As many as a ceiling can allow, and no more.
	req.Inputs = slices.Repeat([]api.InputFile{{Source: api.Source{Name: "f", Text: &plain}}}, 1024)
	if got, _, err := s.inputs(req); err != nil || len(got) != 1024 {
		t.Errorf("%d, %v", len(got), err)
	}
	req.Inputs = append(req.Inputs, req.Inputs[0])
	if _, _, err := s.inputs(req); err == nil || !strings.Contains(err.Error(), "inputs: more than the 1024 members") {
		t.Errorf("1025 inputs: %v", err)
	}
	for says, in := range map[string]string{
		"inputs[0]: want exactly one of text, base64 and file": `{"name": "a"}`,
		"inputs[0]: want exactly one":                          `{"name": "a", "text": "", "base64": ""}`,
		"inputs[0]: a folder has a name alone":                 `{"name": "a", "folder": true, "text": ""}`,
		"inputs[0]: a folder":                                  `{"name": "a", "folder": true, "executable": true}`,
		"inputs[0].base64":                                     `{"name": "a", "base64": "*"}`,
		"inputs[0].file":                                       `{"name": "a", "file": "` + stored.File + `"}`, // it was used
		"inputs[0].text: 1048577 bytes":                        `{"name": "a", "text": "` + strings.Repeat("x", 1<<20+1) + `"}`,
		"unknown field":                                        `{"name": "a", "text": "", "mode": 493}`,
		"twice":                                                `{"name": "a", "name": "b", "text": ""}`,
		"does not fit":                                         `{"name": 3, "text": ""}`,
	} {
		resp, p, b := s.ask("POST", "/v1/runs", `{"program": {"text": ""}, "inputs": [`+in+`]}`)
		if resp.StatusCode/100 != 4 || !strings.Contains(p.Detail, says) {
			t.Errorf("%s: %s %.300s", says, resp.Status, b)
		}
	}
}

// Stored inputs that a refused run has taken are given back, and so are those of a
// request that was not understood.
func TestRefusedInputsAreGivenBack(t *testing.T) {
	s := serve(t, func(runs.Request) (Run, error) { return nil, os.ErrInvalid })
	for _, more := range []string{"", `, {"name": "b"}`} {
		for range 3 { // three do not fit at a time
			f, err := s.client.StoreFile(s.ctx(), io.LimitReader(zeros{}, 200<<20))
			if err != nil {
				t.Fatal(err)
			}
			s.ask("POST", "/v1/runs", `{"program": {"text": ""}, "inputs": [{"name": "a", "file": "`+f.File+`"}`+more+`]}`)
			if _, err := s.files.Take(f.File); !errors.Is(err, spool.ErrNotFound) {
				t.Errorf("it can be used again: %v", err)
			}
		}
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }
