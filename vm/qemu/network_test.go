//go:build linux

package qemu

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pybox/pybox/vm"
)

// TestNoNetworkDevice: whatever a configuration says, and however it is accelerated,
// QEMU is told of no device but those three kinds, and to add none by itself.
func TestNoNetworkDevice(t *testing.T) {
	full := vm.Config{
		Name: "pybox", Arch: vm.ArchAMD64, CPUs: 2, MemoryBytes: 1 << 30, Kernel: "/k",
		KernelArgs: []string{"-netdev", "user,id=n0", "-device", "virtio-net-pci,netdev=n0", "ip=dhcp"},
	}
	for i := range vm.MaxDisks {
		full.Disks = append(full.Disks, vm.Disk{Path: fmt.Sprintf("/disk,netdev=n%d", i), Serial: fmt.Sprintf("img-%d", i)})
	}
	initramfs := full
	initramfs.Initramfs, initramfs.Name = "/i -nic user", "pybox-compile"
	bare := vm.Config{Name: "pybox", Arch: vm.ArchAMD64, CPUs: 1, MemoryBytes: vm.MinMemoryBytes, Kernel: "/k"}
	for _, c := range []vm.Config{full, initramfs, bare} {
		if err := c.Validate(); err != nil {
			t.Fatal(err)
		}
		for _, arch := range []string{vm.ArchAMD64, vm.ArchARM64} {
			for _, accel := range []string{accelKVM, accelTCG} {
				c.Arch = arch
				checkDevices(t, commandLine(c, accel, nil), 2+len(c.Disks))
			}
		}
	}
}

// options are all words that QEMU may be told, each with what its value, if it has one,
// has to be. What is not among them may add a device, or take one in.
var options = map[string]*regexp.Regexp{
	"-no-user-config": nil, "-nodefaults": nil, "-no-reboot": nil,
	"-name":     regexp.MustCompile(`^[a-z0-9-]+$`),
	"-display":  regexp.MustCompile(`^none$`),
	"-sandbox":  regexp.MustCompile(`^on(,[a-z]+=deny)+$`),
	"-machine":  regexp.MustCompile(`^(q35(,(usb|sata|smbus|i8042|vmport)=off)+|virt),accel=(kvm|tcg),memory-backend=mem,dump-guest-core=off$`),
	"-cpu":      regexp.MustCompile(`^(host|max)(,(-erms|-fsrm|-la57|pauth-impdef=on))*$`),
	"-smp":      regexp.MustCompile(`^[0-9]+$`),
	"-m":        regexp.MustCompile(`^[0-9]+M$`),
	"-object":   regexp.MustCompile(`^(memory-backend-memfd,id=mem,size=[0-9]+M,share=on,seal=on|rng-builtin,id=rng)$`),
	"-rtc":      regexp.MustCompile(`^base=utc$`),
	"-chardev":  regexp.MustCompile(`^socket,id=(qmp|console|vsock),fd=[0-9]+$`), // a descriptor of ours
	"-mon":      regexp.MustCompile(`^chardev=qmp,mode=control$`),
	"-serial":   regexp.MustCompile(`^chardev:console$`),
	"-device":   regexp.MustCompile(`^(vhost-user-vsock-pci-non-transitional,chardev=vsock|virtio-rng-pci-non-transitional,rng=rng|virtio-blk-pci-non-transitional,drive=disk[0-9]+,serial=[a-z0-9-]+)$`),
	"-kernel":   regexp.MustCompile(`^/proc/self/fd/[0-9]+$`),
	"-initrd":   regexp.MustCompile(`^/proc/self/fd/[0-9]+$`),
	"-add-fd":   regexp.MustCompile(`^fd=[0-9]+,set=[0-9]+$`),
	"-blockdev": regexp.MustCompile(`^driver=raw,node-name=disk[0-9]+,read-only=on,file\.driver=file,file\.filename=/dev/fdset/[0-9]+,file\.locking=off$`),
	"-append":   regexp.MustCompile(``), // one word, which is the kernel's alone
}

// unknownTo gives the first of QEMU's arguments that is not among the options, and how
// many devices there are before it.
func unknownTo(args []string) (bad string, devices int) {
	for i := 0; i < len(args); i++ {
		value, known := options[args[i]]
		switch {
		case !known:
			return args[i], devices
		case value == nil:
			continue
		case i+1 == len(args):
			return args[i] + " without a value", devices
		case !value.MatchString(args[i+1]):
			return args[i] + " " + args[i+1], devices
		}
		if args[i] == "-device" {
			devices++
		}
		i++
	}
	return "", devices
}

func checkDevices(t *testing.T, args []string, want int) {
	t.Helper()
	if !slices.Contains(args, "-nodefaults") || !slices.Contains(args, "-no-user-config") {
		t.Errorf("QEMU may add devices by itself: %q", args)
	}
	if bad, got := unknownTo(args); bad != "" || got != want {
		t.Errorf("%q, and %d devices, want %d: %q", bad, got, want, args)
	}
}

// TestUnknownTo: the test above can fail.
func TestUnknownTo(t *testing.T) {
	for _, args := range [][]string{
		{"-netdev", "user,id=n"}, {"-nic", "user"}, {"-net", "user"}, {"-net=user"}, {"--nic", "user"}, {"-usb"}, {"-readconfig", "f"}, {"-incoming", "tcp:0"},
		{"-fsdev", "local,id=f"}, {"-virtfs", "local"}, {"-frobnicate"}, {"user"}, {"-S"}, {"-device"},
		{"-object", "filter-mirror,id=f,netdev=n"}, {"-object", "rng-builtin,id=rng,x=y"}, {"-device", "igb"}, {"-device", "virtio-net-pci"},
		{"-device", "virtio-rng-pci-non-transitional,rng=rng,netdev=n"}, {"-chardev", "socket,id=vsock,host=h,port=1"}, {"-chardev", "socket,id=vsock,fd=3,reconnect=1"},
		{"-machine", "q35,accel=kvm,usb=on"}, {"-serial", "tcp:h:1"}, {"-mon", "chardev=other"}, {"-kernel", "/boot/k"}, {"-smp", "1,x=y"}, {"-rtc", "base=utc\n"},
		{"-blockdev", "driver=nbd,host=h"}, {"-sandbox", "on,spawn=allow"},
	} {
		if bad, _ := unknownTo(append([]string{"-nodefaults"}, args...)); bad == "" {
			t.Errorf("%q pass", args)
		}
	}
}

// TestMonitorCommands: QEMU's monitor, which could add devices, is told these words
// alone, each of which stands in the source; and what adds to its arguments is nothing in
// this package.
func TestMonitorCommands(t *testing.T) {
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	var src []*ast.File
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		src = append(src, f)
	}
	got, extra := monitorCommands(src)
	slices.Sort(got)
	if want := []string{"cont", "qmp_capabilities", "stop"}; !slices.Equal(got, want) {
		t.Errorf("the monitor is told %q, want %q", got, want)
	}
	if extra != 2 {
		t.Errorf("ExtraArgs is named %d times, want 2: where it is a field, and where it goes to the command line", extra)
	}
	hostile, err := parser.ParseFile(token.NewFileSet(), "x.go", `package qemu
func (m *machine) add() { _ = m.qmp.command(ctx, "device_add"); _ = m.control(ctx, word); _, _ = io.WriteString(m.qmp.conn, "x"); m.qmp.conn.Write(nil) }`, 0)
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := monitorCommands([]*ast.File{hostile}); len(got) != 4 {
		t.Errorf("of four ways to tell the monitor something, %q were seen", got)
	}
}

// monitorCommands gives the words that QEMU's monitor is told, as far as they stand in
// the source, and otherwise what it is told instead; and how often ExtraArgs is named.
func monitorCommands(files []*ast.File) (words []string, extra int) {
	for _, f := range files {
		for _, d := range f.Decls {
			in := ""
			if f, ok := d.(*ast.FuncDecl); ok {
				in = f.Name.Name
			}
			ast.Inspect(d, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.Ident:
					if n.Name == "ExtraArgs" {
						extra++
					}
				case *ast.CallExpr:
					words = append(words, told(n, in)...)
				}
				return true
			})
		}
	}
	return words, extra
}

// told is what a call in a function tells the monitor.
func told(call *ast.CallExpr, in string) []string {
	s, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return nil
	}
	switch name := s.Sel.Name; {
	case name == "command" && in == "control", in == "command": // they pass on what they are given
		return nil
	case name == "command" || name == "control":
		if word, ok := call.Args[len(call.Args)-1].(*ast.BasicLit); ok {
			return []string{strings.Trim(word.Value, "`\"")}
		}
		return []string{"what does not stand there, in " + in}
	case name == "Write" && isConn(s.X), name == "WriteString" && isConn(call.Args[0]):
		return []string{"what is written to its socket in " + in}
	}
	return nil
}

// isConn holds for the socket of the monitor.
func isConn(e ast.Expr) bool {
	s, ok := e.(*ast.SelectorExpr)
	return ok && s.Sel.Name == "conn"
}

// TestNoNetworkByName: what a person may choose cannot grow into another option.
func TestNoNetworkByName(t *testing.T) {
	for name, change := range map[string]func(*vm.Config){
		"name":   func(c *vm.Config) { c.Name = "x,netdev=n" },
		"serial": func(c *vm.Config) { c.Disks = []vm.Disk{{Path: "/d", Serial: "a,netdev=n"}} },
		"arch":   func(c *vm.Config) { c.Arch = "amd64,usb=on" },
		"kernel": func(c *vm.Config) { c.KernelArgs = []string{"a -nic user"} },
	} {
		c := vm.Config{Name: "x", Arch: vm.ArchAMD64, CPUs: 1, MemoryBytes: vm.MinMemoryBytes, Kernel: "/k"}
		change(&c)
		if err := c.Validate(); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}
