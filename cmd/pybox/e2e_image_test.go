//go:build linux

package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pybox/pybox/guest/wheel/wheeltest"
	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/images"
)

// shelf is a folder with two wheels that belong together, and the lock file for them.
type shelf struct{ dir, lock string }

func newShelf(t *testing.T) shelf {
	t.Helper()
	s := shelf{dir: t.TempDir(), lock: filepath.Join(t.TempDir(), "requirements.txt")}
	text := "# as uv writes it\n"
	for _, w := range []wheeltest.Wheel{
		{Name: "greeting", Version: "1.2", Requires: []string{"words>=2"}, EntryPoints: "[console_scripts]\ngreet = greeting:main\n",
			Files: map[string]string{"greeting/__init__.py": "import words\ndef main():\n    print(words.HELLO, 'from', __spec__.cached is not None)\n"}},
		{Name: "words", Version: "2.0", Files: map[string]string{"words.py": "HELLO = 'hello'\n"}},
	} {
		_, sum := w.Write(t, s.dir)
		text += fmt.Sprintf("%s==%s \\\n    --hash=sha256:%s\n    # via nobody\n", w.Name, w.Version, sum)
	}
	if err := os.WriteFile(s.lock, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return s
}

// serve is a package index of the wheels, as PEP 503 has it.
func (s shelf) serve(t *testing.T) string {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /simple/{project}/", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		names, _ := filepath.Glob(filepath.Join(s.dir, r.PathValue("project")+"-*.whl"))
		fmt.Fprint(w, "<!DOCTYPE html><html><body>")
		for _, n := range names {
			data, err := os.ReadFile(n)
			if err != nil {
				t.Error(err)
			}
			fmt.Fprintf(w, "<a href=\"/files/%[1]s#sha256=%[2]x\">%[1]s</a>\n", filepath.Base(n), sha256.Sum256(data))
		}
		fmt.Fprint(w, "</body></html>")
	})
	mux.Handle("GET /files/", http.StripPrefix("/files/", http.FileServer(http.Dir(s.dir))))
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	return srv.URL + "/simple/"
}

// machines looks at the command lines of all QEMUs of this person until it is told to
// stop, and gives them by their names.
func (p *person) machines() (stop func() map[string]string) {
	done, seen := make(chan struct{}), map[string]string{}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			for _, pid := range p.qemus() {
				line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
				args := strings.Split(string(line), "\x00")
				if i := slices.Index(args, "-name"); i >= 0 {
					seen[args[i+1]] = strings.Join(args, " ")
				}
			}
			select {
			case <-done:
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	})
	return sync.OnceValue(func() map[string]string {
		close(done)
		wg.Wait()
		return seen
	})
}

func (p *person) imageRecord(name string) *images.Record {
	p.t.Helper()
	var in images.Inspection
	if err := json.Unmarshal([]byte(p.must("image", "inspect", name, "--json")), &in); err != nil || in.Record == nil {
		p.t.Fatalf("image %s: %+v, %v", name, in, err)
	}
	return in.Record
}

// says runs a command that has to succeed and to say something on stderr.
func (p *person) says(words string, args ...string) outcome {
	p.t.Helper()
	o := p.run(args...)
	if o.code != 0 || !strings.Contains(o.err, words) {
		p.t.Errorf("pybox %s: exit %d, want 0 that says %q\n%s%s", strings.Join(args, " "), o.code, words, o.out, o.err)
	}
	return o
}

const greet = "import greeting, sys\ngreeting.main()\nprint(sys.modules['words'].__spec__.cached)\n"

func TestE2EImages(t *testing.T) {
	p := newPerson(t, "")
	p.env = append(p.env, "PYBOX_CACHE="+t.TempDir())
	s := newShelf(t)
	prog := p.program("greet.py", greet)
	p.config(patientConfig) // a run waits while images are made
	p.must("vm", "start")
	boot := p.status().Guest.BootID

	t.Run("build", func(t *testing.T) {
		p := p.in(t)
		machines := p.machines()
		p.says("restarting the VM so that it has the image mine", "image", "build", "mine", "--lock", s.lock, "--index-url", s.serve(t))
		all := machines()
		for _, name := range []string{"pybox", "pybox-compile"} {
			if line, ok := all[name]; !ok || !strings.Contains(line, "-nodefaults") || regexp.MustCompile(`-netdev|-nic|-net |virtio-net|e1000`).MatchString(line) {
				t.Errorf("the machine %s was seen: %v, and has a network: %s", name, ok, line)
			}
		}
		st := p.status()
		if st.Guest.BootID == boot {
			t.Error("the VM is the same")
		}
		r := p.imageRecord("mine")
		if in, _ := images.In(st, images.Of(r)); in != images.PresenceYes || !r.Built.Bytecode || len(r.Packages) != 2 {
			t.Errorf("the VM has it: %s; record %+v", in, r)
		}
		out := p.exec("--image", "mine", prog)
		if out.code != 0 || !strings.HasPrefix(out.out, "hello from True\n") || !strings.Contains(out.out, "__pycache__/words.cpython-313.pyc") {
			t.Errorf("a run in it: exit %d, %q, %s", out.code, out.out, out.err)
		}
		if i := out.receipt.Configured.Image; i.Name != "mine" || i.Digest != "sha256:"+r.SHA256 {
			t.Errorf("on the receipt: %+v, want %s", i, r.SHA256)
		}
		p.fails(1, []string{"--replace"}, "image", "build", "mine", "--lock", s.lock, "--find-links", s.dir)
	})

	t.Run("exec brings it", func(t *testing.T) {
		p := p.in(t)
		before := p.status().Guest.BootID
		p.says("until it is restarted: 'pybox vm restart'", "image", "build", "later", "--lock", s.lock, "--find-links", s.dir, "--no-bytecode", "--no-restart")
		if p.status().Guest.BootID != before {
			t.Fatal("--no-restart restarted the VM")
		}
		out := p.exec("--image", "later", prog)
		if out.code != 0 || !strings.Contains(out.err, "restarting the VM so that it has the image later") || out.receipt.Configured.Image.Name != "later" {
			t.Errorf("exit %d, %q, %s", out.code, out.out, out.err)
		}
	})

	t.Run("a VM in use", func(t *testing.T) {
		p := p.in(t)
		before := p.status().Guest.BootID
		wait := p.start(nil, "exec", "--timeout", "10m", "--image", "mine", p.program("wait.py", "print('up', flush=True)\nimport signal\nsignal.pause()\n"))
		wait.see(wait.out, "up")
		p.says("does not have this image third and was left as it is (the VM is in use: a run, a shell or the storing of a file is in progress): run 'pybox vm restart' when that has ended",
			"image", "build", "third", "--lock", s.lock, "--find-links", s.dir, "--no-bytecode")
		p.fails(125, []string{"made after the VM had started", "'pybox vm restart'", "in progress"}, "exec", "--image", "third", prog)
		p.fails(1, []string{"the image mine is used by the run"}, "image", "remove", "mine")
		if out := p.must("image", "inspect", "third"); !strings.Contains(out, "no; 'pybox vm restart' gives it to the VM") {
			t.Errorf("inspect: %s", out)
		}
		if !wait.alive() || p.status().Guest.BootID != before {
			t.Error("the run that was in progress is not any more")
		}
		wait.signal(syscall.SIGINT)
		if o := wait.wait(); o.code != 130 || !strings.Contains(o.out, "up") {
			t.Errorf("the run that was in progress: %+v", o)
		}
	})

	t.Run("export and import", func(t *testing.T) {
		p := p.in(t)
		file := filepath.Join(t.TempDir(), "mine.tar")
		ref := strings.TrimSpace(p.must("image", "export", "mine", file))
		if !strings.HasPrefix(ref, "tar:"+file+"@sha256:") {
			t.Fatalf("export: %q", ref)
		}
		p.expectIdle()
		p.says("restarting the VM so that it has the image back", "image", "import", "back", ref)
		if mine, back := p.imageRecord("mine"), p.imageRecord("back"); back.SHA256 != mine.SHA256 || back.Imported.ManifestDigest != ref[len(ref)-71:] {
			t.Errorf("what came back is %s, %+v, want %s", back.SHA256, back.Imported, mine.SHA256)
		}
		if out := p.exec("--image", "back", prog); out.code != 0 || !strings.HasPrefix(out.out, "hello") {
			t.Errorf("a run in it: exit %d, %q, %s", out.code, out.out, out.err)
		}
		flip(t, file)
		p.fails(1, []string{"digest"}, "image", "import", "again", ref)
	})

	t.Run("damaged", func(t *testing.T) {
		p := p.in(t)
		r := p.imageRecord("third")
		content := images.View(p.home).Path(r)
		flip(t, content)
		p.expectIdle()
		p.says("the image third was left out: the image is damaged", "vm", "restart")
		st := p.status()
		if l := st.VM.LeftOut; st.State != api.StateRunning || len(l) != 1 || l[0].Name != "third" {
			t.Errorf("left out: %+v", l)
		}
		if out := p.exec("--image", "mine", prog); out.code != 0 {
			t.Errorf("the others: exit %d, %s", out.code, out.err)
		}
		p.fails(125, []string{"left the image \"third\" out", "--replace"}, "exec", "--image", "third", prog)
		if o := p.run("doctor"); !strings.Contains(o.out, "third: the VM left it out") {
			t.Errorf("doctor: %s", o.out)
		}
		flip(t, content)
	})

	t.Run("remove", func(t *testing.T) {
		p := p.in(t)
		p.expectIdle()
		o := p.says("restarting the VM so that it lets go of the image mine", "image", "remove", "mine")
		if !strings.Contains(o.out, "The image mine is removed; another image has the same content") {
			t.Errorf("it says %q", o.out)
		}
		p.fails(125, []string{"no such image", "third"}, "exec", "--image", "mine", prog)
		sum := p.imageRecord("back").SHA256
		data := mustRead(t, filepath.Join(p.home, images.Dir, sum+".erofs"))
		if got := sha256.Sum256(data); hex.EncodeToString(got[:]) != sum {
			t.Error("the content that the image back shares with it is gone or changed")
		}
		for _, name := range []string{"back", "later", "third"} {
			p.must("image", "remove", name, "--no-restart")
		}
		left, err := filepath.Glob(filepath.Join(p.home, images.Dir, "*"))
		if err != nil || len(left) != 1 || filepath.Base(left[0]) != "lock" {
			t.Errorf("left: %v, %v", left, err)
		}
	})
}
