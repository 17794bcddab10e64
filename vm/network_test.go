package vm

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestConfigHasNoNetwork: a machine is what its configuration says, and there is no
// word in that for a network device. Who adds a field has to come by here, and to the
// like tests of the drivers.
func TestConfigHasNoNetwork(t *testing.T) {
	for value, want := range map[reflect.Type][]string{
		reflect.TypeFor[Config](): {"Name string", "Arch string", "CPUs int", "MemoryBytes int64", "Kernel string", "KernelArgs []string",
			"Initramfs string", "Disks []vm.Disk", "Console io.Writer"},
		reflect.TypeFor[Disk](): {"Path string", "Serial string"},
	} {
		var got []string
		for i := range value.NumField() {
			got = append(got, value.Field(i).Name+" "+value.Field(i).Type.String())
		}
		if !slices.Equal(got, want) {
			t.Errorf("%v has the fields %q, want %q", value, got, want)
		}
	}
	for value, want := range map[reflect.Type][]string{
		reflect.TypeFor[Driver]():  {"Check", "Name", "Start"},
		reflect.TypeFor[Machine](): {"Dial", "Kill", "Stop", "Wait"},
		// Optional abilities.
		reflect.TypeFor[Pauser]():      {"Pause", "Resume"},
		reflect.TypeFor[Reporter]():    {"Facts"},
		reflect.TypeFor[ArchChecker](): {"CheckFor"},
	} {
		var got []string
		for m := range value.Methods() {
			got = append(got, m.Name)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%v has the methods %q, want %q: can one of them add a device?", value, got, want)
		}
	}
}

// networkWords are those by which QEMU and Virtualization.framework are asked for a
// network device, or QEMU's monitor for any, in lower case; each with what has to be
// there exactly, where the word alone may mean something else. The models are those that
// QEMU has for the machines that PyBox makes, and the families of those.
var networkWords = map[string]*regexp.Regexp{
	"-netdev": nil, "virtio-net": nil, "virtio_net": nil, "vhost-user-net": nil, "vhost-vdpa": nil, "usb-net": nil,
	"e1000": nil, "rtl8139": nil, "pcnet": nil, "vmxnet": nil, "ne2k": nil, "i8255": nil, "i8257": nil,
	"netdev_add": nil, "device_add": nil, "human-monitor-command": nil,
	"-nic":    regexp.MustCompile(`-nic\b`),
	"-net":    regexp.MustCompile("[\"`]--?net\\b|\\s--?net\\s"),
	"igb":     regexp.MustCompile(`\bigb\b`),
	"tulip":   regexp.MustCompile(`\btulip\b`),
	"rocker":  regexp.MustCompile(`\brocker\b`),
	"network": regexp.MustCompile(`network_?device(s|config|attachment|vir)`),
}

// networkWord is the first such word of a source, "" when it has none.
func networkWord(src string) string {
	src = strings.ToLower(src)
	for word, exactly := range networkWords {
		if strings.Contains(src, word) && (exactly == nil || exactly.MatchString(src)) {
			return word
		}
	}
	return ""
}

// TestNothingAsksForANetwork: no program of PyBox has the words for it, and what can
// add any arguments to QEMU is used by the benchmarks alone.
func TestNothingAsksForANetwork(t *testing.T) {
	files := 0
	err := filepath.WalkDir("..", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (strings.HasPrefix(d.Name(), ".") && d.Name() != ".." || d.Name() == "testdata" || d.Name() == "bin") {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		files++
		src, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if w := networkWord(string(src)); w != "" {
			t.Errorf("%s has %q", name, w)
		}
		rel := filepath.ToSlash(strings.TrimPrefix(name, "../"))
		if why := setsArgs(t, name, src); why != "" && !strings.HasPrefix(rel, "host/bench/") && !strings.HasPrefix(rel, "vm/qemu/") {
			t.Errorf("%s %s: only a benchmark may add to QEMU's arguments", rel, why)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if files < 300 {
		t.Fatalf("only %d files were read", files)
	}
}

// qemuPath is the package whose Options can add to QEMU's arguments.
const qemuPath = "github.com/pybox/pybox/vm/qemu"

// setsArgs says how a file may give QEMU further arguments: it names the field for them,
// in whatever way, or writes Options of that package without the names of fields, or uses
// its names without the package's. "" means that it does none of that.
func setsArgs(t *testing.T, name string, src []byte) string {
	t.Helper()
	if strings.Contains(string(src), "ExtraArgs") {
		return "names ExtraArgs"
	}
	if !strings.Contains(string(src), qemuPath) {
		return ""
	}
	f, err := parser.ParseFile(token.NewFileSet(), name, src, 0)
	if err != nil {
		t.Fatal(err)
	}
	local := ""
	for _, i := range f.Imports {
		if strings.Trim(i.Path.Value, "`\"") != qemuPath {
			continue
		}
		if local = "qemu"; i.Name != nil {
			local = i.Name.Name
		}
	}
	if local == "." {
		return "imports " + qemuPath + " as a part of itself"
	}
	found := ""
	ast.Inspect(f, func(n ast.Node) bool {
		lit, ok := n.(*ast.CompositeLit)
		if !ok || len(lit.Elts) == 0 {
			return true
		}
		if s, ok := lit.Type.(*ast.SelectorExpr); !ok || s.Sel.Name != "Options" {
			return true
		} else if id, ok := s.X.(*ast.Ident); !ok || id.Name != local {
			return true
		}
		if _, keyed := lit.Elts[0].(*ast.KeyValueExpr); !keyed {
			found = "has " + local + ".Options without the names of its fields"
		}
		return true
	})
	return found
}

// TestNetworkWords: the test above can fail.
func TestNetworkWords(t *testing.T) {
	for _, s := range []string{
		`"-netdev", "user,id=n"`, `-nic user`, `"-net"`, "virtio-net-pci", "vz.NewVirtioNetworkDeviceConfiguration", "c.SetNetworkDevicesVirtualMachineConfiguration(", "netdev_add",
		`"-device", "pcnet"`, `"vmxnet3"`, `"ne2k_pci"`, `"igb"`, `"tulip"`, `"virtio_net"`, `"i82559er"`, `append(args, "-net")`, `"-net=user"`, `"--net"`, "`-net user`", `"a -net user"`,
		`{"execute":"human-monitor-command"}`, `"device_add"`, `"I82574"`,
	} {
		if networkWord(s) == "" {
			t.Errorf("%s goes unseen", s)
		}
	}
	const head = "package x; import %s `" + qemuPath + "`; "
	for _, s := range []string{
		"package x; var o = qemu.Options{ExtraArgs: nil}", "package x; func f() { o.ExtraArgs = nil }", "package x; func f() { p := &o.ExtraArgs; *p = nil }",
		`package x; var v = reflect.ValueOf(&o).Elem().FieldByName("ExtraArgs")`,
		fmt.Sprintf(head, "") + "var o = qemu.Options{a, b, c}", fmt.Sprintf(head, "q") + "var o = &q.Options{a, b, c}", fmt.Sprintf(head, ".") + "var o = Options{a, b, c}",
	} {
		if setsArgs(t, "x.go", []byte(s)) == "" {
			t.Errorf("it goes unseen that this adds to QEMU's arguments: %s", s)
		}
	}
	if why := setsArgs(t, "x.go", []byte(fmt.Sprintf(head, "")+"var o = qemu.Options{Binary: b}; var other = x.Options{a}")); why != "" {
		t.Errorf("a file that adds none: %s", why)
	}
}
