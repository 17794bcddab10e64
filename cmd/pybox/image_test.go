package main

import (
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pybox/pybox/guest/bundle"
	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/daemon/daemontest"
	"github.com/pybox/pybox/host/home"
	"github.com/pybox/pybox/host/images"
	"github.com/pybox/pybox/vm"
)

// someImages is a state directory with a bundle and images of one's own.
func someImages(t *testing.T, names ...string) (dir string) {
	t.Helper()
	// Sockets lie in it, whose paths are short.
	dir, err := os.MkdirTemp("", "pybox")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	src := t.TempDir()
	daemontest.NewBundle(t, src)
	if _, err := bundle.Install(t.Context(), dir, src); err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		putImage(t, dir, n)
	}
	return dir
}

func putImage(t *testing.T, dir, name string) *images.Record {
	t.Helper()
	s, err := images.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	st, err := s.Stage(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	if err := os.WriteFile(st.Path(), append([]byte(name), make([]byte, 512-len(name))...), 0o600); err != nil {
		t.Fatal(err)
	}
	sum := strings.Repeat("1", 64)
	r, err := s.Commit(t.Context(), st, images.Record{
		Name: name, Arch: vm.HostArch(), Kind: images.KindBuilt, Python: "3.13.5", Notes: []string{"a note"},
		Built:    &images.Built{Base: images.Base{Name: "stdlib", SHA256: sum}, LockSHA256: sum, LockKind: "requirements"},
		Packages: []images.Package{{Name: "six", Version: "1.17.0", Bytes: 2048, SHA256: sum}},
	}, images.Commit{Bundled: 1})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestImageList(t *testing.T) {
	dir := someImages(t, "mine", "other")
	if err := os.WriteFile(filepath.Join(dir, "images", "bad.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	code, out, errs := pybox(t, dir, "image", "list")
	for _, s := range []string{"IMAGE ", "stdlib  PyBox", "mine    wheels on stdlib  512 B  1 ", "bad     damaged", "Damaged: bad", "pybox image remove bad"} {
		if !strings.Contains(out, s) {
			t.Errorf("it does not say %q:\n%s", s, out)
		}
	}
	if code != 0 || errs != "" {
		t.Errorf("exit %d, %s", code, errs)
	}
	code, out, _ = pybox(t, dir, "image", "list", "--json")
	var list images.List
	if err := json.Unmarshal([]byte(out), &list); err != nil || code != 0 || list.Schema != images.ListSchema || len(list.Images) != 4 {
		t.Errorf("exit %d, %v: %s", code, err, out)
	}
	b, err := bundle.Current(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(b.Path(b.Manifest.Root)); err != nil {
		t.Fatal(err)
	}
	code, out, errs = pybox(t, dir, "image", "list")
	if code != 0 || !strings.Contains(out, "mine ") || !strings.Contains(errs, "PyBox's own images are not listed: the guest bundle is damaged") {
		t.Errorf("without a whole bundle: exit %d, %q, %q", code, out, errs)
	}
	code, out, errs = pybox(t, filepath.Join(dir, "none"), "image", "list")
	if code != 0 || out != "" || !strings.Contains(errs, "'pybox setup'") {
		t.Errorf("without any: exit %d, %q, %q", code, out, errs)
	}
	if _, err := os.Stat(filepath.Join(dir, "none")); err == nil {
		t.Error("a list makes a state directory")
	}
}

func TestImageInspect(t *testing.T) {
	dir := someImages(t, "mine")
	code, out, errs := pybox(t, dir, "image", "inspect", "mine")
	for _, s := range []string{"Image mine", "wheels on stdlib", "no VM runs", "six", "1.17.0", "2 KiB", "a note", "Byte code", "requirements, sha256"} {
		if !strings.Contains(out, s) {
			t.Errorf("it does not say %q:\n%s", s, out)
		}
	}
	if code != 0 || errs != "" {
		t.Errorf("exit %d, %s", code, errs)
	}
	for _, line := range strings.Split(out, "\n") {
		if len(line) > 80 && !strings.Contains(line, "SHA-256") && !strings.Contains(line, "File") { // these are one word
			t.Errorf("a line of %d columns: %s", len(line), line)
		}
	}
	code, out, _ = pybox(t, dir, "image", "inspect", "mine", "--json")
	var in images.Inspection
	if err := json.Unmarshal([]byte(out), &in); err != nil || code != 0 || in.Schema != images.InspectSchema || in.InVM != images.PresenceStopped ||
		in.Record == nil || in.Record.Packages[0].Name != "six" || !in.Own {
		t.Errorf("exit %d, %v: %s", code, err, out)
	}
	if code, out, _ = pybox(t, dir, "image", "inspect", "stdlib"); code != 0 || !strings.Contains(out, "Image stdlib  PyBox") {
		t.Errorf("PyBox's own: exit %d, %s", code, out)
	}
	if code, out, errs = pybox(t, dir, "image", "inspect", "nobody"); code != exitFailed || out != "" || !strings.Contains(errs, "'pybox image list'") {
		t.Errorf("one that is not there: exit %d, %q, %q", code, out, errs)
	}
}

// ownVM is a daemon whose VM has these images, and whatever status and runs a test
// wants. It counts the stops that were asked for.
func ownVM(t *testing.T, dir string, vm *api.VM, runs []api.ActiveRun) (stops *[]api.StopRequest) {
	t.Helper()
	h := home.At(dir)
	l, err := net.Listen("unix", h.Socket())
	if err != nil {
		t.Fatal(err)
	}
	stops = &[]api.StopRequest{}
	answer := func(w http.ResponseWriter, status int, v any) {
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(v)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+api.PathStatus, func(w http.ResponseWriter, _ *http.Request) {
		answer(w, 200, api.Status{State: api.StateRunning, Version: "test", Daemon: api.Daemon{PID: os.Getpid()}, VM: vm})
	})
	mux.HandleFunc("GET "+api.PathRuns, func(w http.ResponseWriter, _ *http.Request) { answer(w, 200, api.Runs{Runs: runs}) })
	mux.HandleFunc("POST "+api.PathVMStop, func(w http.ResponseWriter, r *http.Request) {
		var req api.StopRequest
		_ = json.NewDecoder(r.Body).Decode(&req)
		*stops = append(*stops, req)
		answer(w, 409, api.Problem{Type: api.ProblemInUse, Title: "the VM is in use", Status: 409, Detail: "the VM is in use: a run or a shell is in progress"})
	})
	s := &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	go s.Serve(l)
	t.Cleanup(func() { s.Close() })
	return stops
}

func TestImageRemove(t *testing.T) {
	dir := someImages(t, "mine", "used", "kept", "quiet")
	vm := &api.VM{Images: []api.Image{{Name: "stdlib"}, {Name: "mine", Own: true}, {Name: "used", Own: true}, {Name: "quiet", Own: true}}}
	stops := ownVM(t, dir, vm, []api.ActiveRun{{ID: "5319e024", Image: "used"}})
	for name, c := range map[string]struct {
		args []string
		code int
		say  string
		left bool
	}{
		"one that a run uses":         {[]string{"used"}, exitFailed, "used by the run 5319e024", true},
		"one of the bundle":           {[]string{"stdlib"}, exitFailed, "stays whole", true},
		"one that is not there":       {[]string{"nobody"}, exitFailed, "'pybox image list'", true},
		"nothing":                     {nil, exitUsage, "wants NAME", true},
		"one of a VM in use":          {[]string{"mine"}, 0, "keeps the image mine and was left as it is (the VM is in use: a run or a shell is in progress): run 'pybox vm restart'", false},
		"one that the VM has not":     {[]string{"kept"}, 0, "", false},
		"one, and leave the VM alone": {[]string{"quiet", "--no-restart"}, 0, "the running VM keeps the image quiet until it is restarted", false},
	} {
		code, out, errs := pybox(t, dir, append([]string{"image", "remove"}, c.args...)...)
		if code != c.code || !strings.Contains(errs, c.say) || c.code != 0 && out != "" || c.code == 0 && !strings.Contains(out, "is removed.") {
			t.Errorf("%s: exit %d, %q, %q", name, code, out, errs)
		}
		if strings.Contains(errs, "restarting") {
			t.Errorf("%s: a restart is announced that does not happen: %q", name, errs)
		}
		if len(c.args) > 0 && !c.left {
			if _, err := images.View(dir).Get(c.args[0]); err == nil {
				t.Errorf("%s: it is there", name)
			}
		}
	}
	if len(*stops) != 1 || !(*stops)[0].IfIdle || (*stops)[0].Force {
		t.Errorf("stops %+v, want one that is only for an idle VM", *stops)
	}
}

func TestImageUsage(t *testing.T) {
	dir := someImages(t, "mine")
	digest := "@sha256:" + strings.Repeat("0", 64)
	for _, c := range []struct {
		args []string
		code int
		say  string
	}{
		{[]string{"frob"}, exitUsage, "--help"},
		{[]string{"inspect"}, exitUsage, "wants NAME"},
		{[]string{"build", "x"}, exitUsage, "--lock FILE"},
		{[]string{"build", "X", "--lock", "l"}, exitUsage, "a-z"},
		{[]string{"build", "-x", "--lock", "l"}, exitUsage, "--help"},
		{[]string{"build", "stdlib", "--lock", "l"}, exitUsage, "PyBox's own"},
		{[]string{"build", "x", "--lock", filepath.Join(dir, "none")}, exitFailed, ""},
		{[]string{"build", "mine", "--lock", "l"}, exitFailed, "--replace"},
		{[]string{"build", "x", "--base", "data", "--lock", "l"}, exitUsage, "setup --yes --with data"},
		{[]string{"build", "x", "y", "--lock", "l"}, exitUsage, "wants NAME"},
		{[]string{"import", "x"}, exitUsage, "NAME and REFERENCE"},
		{[]string{"import", "x", "python:3.13"}, exitUsage, "digest"},
		{[]string{"import", "mine", "oci:x" + digest}, exitFailed, "--replace"},
		{[]string{"import", "x", "oci:" + filepath.Join(dir, "none") + digest}, exitFailed, "none"},
		{[]string{"export", "mine"}, exitUsage, "NAME and FILE"},
		{[]string{"export", "mine", "-"}, exitUsage, "standard output"},
		{[]string{"export", "mine", dir}, exitUsage, "there already"},
		{[]string{"export", "nobody", filepath.Join(dir, "x")}, exitFailed, "'pybox image list'"},
	} {
		code, out, errs := pybox(t, dir, append([]string{"image"}, c.args...)...)
		if code != c.code || out != "" || !strings.HasPrefix(errs, "pybox: ") || !strings.Contains(errs, c.say) {
			t.Errorf("%v: exit %d, %q, %q; want %d that says %q", c.args, code, out, errs, c.code, c.say)
		}
	}
}

func TestImageCompletion(t *testing.T) {
	dir := someImages(t, "mine")
	for _, c := range []struct {
		args []string
		want []string
	}{
		{[]string{"image", "inspect", ""}, []string{"stdlib", "mine"}},
		{[]string{"image", "export", ""}, []string{"stdlib", "mine"}},
		{[]string{"image", "remove", ""}, []string{"mine"}},
		{[]string{"image", "build", "x", "--base", ""}, []string{"stdlib"}},
		{[]string{"exec", "--image", ""}, []string{"stdlib", "mine"}},
	} {
		_, out, _ := pybox(t, dir, append([]string{"__complete"}, c.args...)...)
		var got []string
		for _, l := range strings.Split(strings.TrimSpace(out), "\n") {
			if !strings.HasPrefix(l, ":") {
				got = append(got, l)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%v: %q, want %q", c.args, got, c.want)
		}
	}
}
