package vm

import (
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
// network device, or QEMU's monitor for any.
var networkWords = regexp.MustCompile(`(?i)-netdev\b|-nic\b|"-net"|virtio-net|vhost-user-net|e1000|rtl8139|usb-net|netdev_add|device_add|network_?device(s|config|attachment|vir)`)

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
		if w := networkWords.Find(src); w != nil {
			t.Errorf("%s has %q", name, w)
		}
		if rel := filepath.ToSlash(strings.TrimPrefix(name, "../")); !strings.HasPrefix(rel, "host/bench/") && setsArgs(t, name, src) {
			t.Errorf("%s adds to QEMU's arguments: only a benchmark may", rel)
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

// setsArgs tells whether a file gives a value to a field ExtraArgs.
func setsArgs(t *testing.T, name string, src []byte) (found bool) {
	if !strings.Contains(string(src), "ExtraArgs") {
		return false
	}
	f, err := parser.ParseFile(token.NewFileSet(), name, src, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.KeyValueExpr:
			if id, ok := n.Key.(*ast.Ident); ok && id.Name == "ExtraArgs" {
				found = true
			}
		case *ast.AssignStmt:
			for _, l := range n.Lhs {
				if s, ok := l.(*ast.SelectorExpr); ok && s.Sel.Name == "ExtraArgs" {
					found = true
				}
			}
		}
		return true
	})
	return found
}

// TestNetworkWords: the test above can fail.
func TestNetworkWords(t *testing.T) {
	for _, s := range []string{`"-netdev", "user,id=n"`, `-nic user`, `"-net"`, "virtio-net-pci", "vz.NewVirtioNetworkDeviceConfiguration", "c.SetNetworkDevicesVirtualMachineConfiguration(", "netdev_add"} {
		if !networkWords.MatchString(s) {
			t.Errorf("%s goes unseen", s)
		}
	}
	if !setsArgs(t, "x.go", []byte(`package x; var o = qemu.Options{ExtraArgs: nil}`)) || !setsArgs(t, "x.go", []byte(`package x; func f() { o.ExtraArgs = nil }`)) {
		t.Error("a file that sets ExtraArgs goes unseen")
	}
}
