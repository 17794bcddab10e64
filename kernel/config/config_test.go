package config

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestParseFragment(t *testing.T) {
	const text = `# Words about it.
#
# CONFIG_MODULES is not set
CONFIG_NET=y

CONFIG_PANIC_TIMEOUT=-1
CONFIG_BASE=0xff00
CONFIG_LSM="landlock,yama"
CONFIG_PATH="a \"quoted\" back\\slash"
CONFIG_EMPTY=""
CONFIG_64BIT=y`
	got, err := ParseFragment("f", strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	want := []Request{
		{"MODULES", "n", "f:3"}, {"NET", "y", "f:4"}, {"PANIC_TIMEOUT", "-1", "f:6"}, {"BASE", "0xff00", "f:7"},
		{"LSM", `"landlock,yama"`, "f:8"}, {"PATH", `"a \"quoted\" back\\slash"`, "f:9"}, {"EMPTY", `""`, "f:10"},
		{"64BIT", "y", "f:11"},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

func TestParseFragmentRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want error
	}{
		"off by =n":              {"CONFIG_NET=n", ErrSyntax},
		"module":                 {"CONFIG_NET=m", ErrSyntax},
		"no value":               {"CONFIG_NET=", ErrSyntax},
		"no equals sign":         {"CONFIG_NET", ErrSyntax},
		"no prefix":              {"NET=y", ErrSyntax},
		"no name":                {"CONFIG_=y", ErrSyntax},
		"blank behind":           {"CONFIG_NET=y ", ErrSyntax},
		"blank before":           {" CONFIG_NET=y", ErrSyntax},
		"carriage return":        {"CONFIG_NET=y\r\nCONFIG_A=\"b\r\"x", ErrSyntax},
		"comment behind":         {"CONFIG_NET=y # why", ErrSyntax},
		"request commented out":  {"# CONFIG_NET=y", ErrSyntax},
		"slip in is not set":     {"# CONFIG_NET is not  set", ErrSyntax},
		"no blank in is not set": {"#CONFIG_NET is not set", ErrSyntax},
		"more behind not set":    {"# CONFIG_NET is not set.", ErrSyntax},
		"open string":            {`CONFIG_A="b`, ErrSyntax},
		"two strings":            {`CONFIG_A="b" "c"`, ErrSyntax},
		"escaped end":            {`CONFIG_A="b\"`, ErrSyntax},
		"half a number":          {"CONFIG_A=-", ErrSyntax},
		"half a hex number":      {"CONFIG_A=0x", ErrSyntax},
		"word":                   {"CONFIG_A=yes", ErrSyntax},
		"twice the same":         {"CONFIG_A=y\nCONFIG_A=y", ErrConflict},
		"on and off":             {"CONFIG_A=y\n# CONFIG_A is not set", ErrConflict},
		"long line":              {"# " + strings.Repeat("x", MaxLineBytes), ErrSyntax},
		"long file":              {strings.Repeat("# words\n", MaxFileBytes/8+1), ErrSyntax},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ParseFragment("f", strings.NewReader(c.text))
			if !errors.Is(err, c.want) {
				t.Errorf("got %v, error %v; want error %v", got, err, c.want)
			}
		})
	}
}

func TestMerge(t *testing.T) {
	a := []Request{{"B", "y", "a:1"}, {"A", "n", "a:2"}}
	got, err := Merge(a, []Request{{"C", "1", "c:1"}})
	if err != nil {
		t.Fatal(err)
	}
	if s := string(Format(got)); s != "# CONFIG_A is not set\nCONFIG_B=y\nCONFIG_C=1\n" {
		t.Errorf("got %q", s)
	}
	for _, v := range []string{"n", "y"} { // also where both agree
		_, err = Merge(a, []Request{{"B", v, "c:7"}})
		if !errors.Is(err, ErrConflict) || !strings.Contains(err.Error(), "a:1") || !strings.Contains(err.Error(), "c:7") {
			t.Errorf("B=%s in both: %v", v, err)
		}
	}
}

func TestOverride(t *testing.T) {
	base := []Request{{"A", "y", "b:1"}, {"B", "n", "b:2"}, {"D", "1", "b:3"}}
	own := []Request{{"B", "y", "o:1"}, {"C", "y", "o:2"}, {"D", "1", "o:3"}}
	all, replaced := Override(base, own)
	if got := string(Format(all)); got != "CONFIG_A=y\nCONFIG_B=y\nCONFIG_C=y\nCONFIG_D=1\n" {
		t.Errorf("got\n%s", got)
	}
	if len(replaced) != 1 || replaced[0] != base[1] {
		t.Errorf("replaced %v", replaced)
	}
	if all, replaced := Override(base, nil); !slices.Equal(all, base) || replaced != nil {
		t.Errorf("without own: %v, %v", all, replaced)
	}
}

func TestReadFragments(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	a, b := write("a", "# why\nCONFIG_Z=y\n"), write("b", "CONFIG_A=1\n")
	got, err := ReadFragments(a, b)
	if err != nil || len(got) != 2 || got[0].Symbol != "A" || got[1].Pos != a+":2" {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := ReadFragments(); err != nil || got != nil {
		t.Errorf("no files: %v, %v", got, err)
	}
	for name, c := range map[string]struct {
		files []string
		want  error
		says  string
	}{
		"absent":       {[]string{filepath.Join(dir, "none")}, fs.ErrNotExist, "none"},
		"a device":     {[]string{os.DevNull}, ErrSyntax, "no regular file"}, // as a FIFO, which would wait for a writer
		"empty":        {[]string{write("c", "# nothing\n")}, ErrSyntax, "requests nothing"},
		"no fragment":  {[]string{write("d", "hello\n")}, ErrSyntax, "d:1"},
		"a module":     {[]string{write("e", "CONFIG_A=m\n")}, ErrSyntax, "no modules"},
		"contradicted": {[]string{a, write("f", "# CONFIG_Z is not set\n")}, ErrConflict, "a:2"},
		"twice":        {[]string{a, a}, ErrConflict, "CONFIG_Z"},
		"too long":     {[]string{write("g", strings.Repeat("#\n", MaxFileBytes))}, ErrSyntax, "bytes"},
	} {
		if _, err := ReadFragments(c.files...); !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %v and %q", name, err, c.want, c.says)
		}
	}
}

func TestUnhonoured(t *testing.T) {
	got, err := Parse("c", strings.NewReader("#\n# Automatically generated file\nCONFIG_ON=y\nCONFIG_N=7\nCONFIG_STAYS=y\n# CONFIG_OFF is not set\nCONFIG_M=m\n"))
	if err != nil {
		t.Fatal(err)
	}
	requests := []Request{{"ON", "y", "f:1"}, {"N", "8", "f:2"}, {"STAYS", "n", "f:3"}, {"OFF", "n", "f:4"},
		{"ABSENT", "n", "f:5"}, {"LOST", "y", "f:6"}, {"OFF", "y", "f:7"}, {"M", "y", "f:8"}}
	var lines []string
	for _, m := range Unhonoured(requests, got) {
		lines = append(lines, m.String())
	}
	want := []string{
		"f:2: CONFIG_N: wanted 8, got 7",
		"f:3: CONFIG_STAYS: wanted n, got y",
		"f:6: CONFIG_LOST: wanted y, got n",
		"f:7: CONFIG_OFF: wanted y, got n",
		"f:8: CONFIG_M: wanted y, got m",
	}
	if !slices.Equal(lines, want) {
		t.Errorf("got  %q\nwant %q", lines, want)
	}
}

func TestParseRefuses(t *testing.T) {
	for _, text := range []string{"CONFIG_A=y\nCONFIG_A=y\n", "rubbish", "CONFIG_A=n\n"} {
		if c, err := Parse("c", strings.NewReader(text)); !errors.Is(err, ErrSyntax) {
			t.Errorf("%q: got %v, %v", text, c, err)
		}
	}
}

// TestOwnFragments reads what the product ships and holds it to what must never
// be lost from it.
func TestOwnFragments(t *testing.T) {
	promises := map[string]string{
		"MODULES": "n", "IO_URING": "n", "IPV6": "n", "PACKET": "n", "NETDEVICES": "n", "CRYPTO_USER_API_HASH": "n",
		"USERFAULTFD": "n", "KEXEC": "n", "DEVMEM": "n", "PROC_KCORE": "n", "KEYS": "n", "MEMCG_V1": "n",
		"VIRTIO_VSOCKETS": "y", "VIRTIO_PCI": "y", "VIRTIO_MMIO": "y", "VIRTIO_BLK": "y", "VIRTIO_CONSOLE": "y",
		"VIRTIO_BALLOON": "y", "HW_RANDOM_VIRTIO": "y", "EROFS_FS": "y", "OVERLAY_FS": "y", "TMPFS": "y",
		"MEMCG": "y", "CGROUP_PIDS": "y", "CFS_BANDWIDTH": "y", "CGROUP_BPF": "y", "PSI": "y", "USER_NS": "y",
		"SECCOMP_FILTER": "y", "IKCONFIG_PROC": "y", "PANIC_TIMEOUT": "-1", "CPU_MITIGATIONS": "y", "NR_CPUS": "64",
	}
	console := map[string]string{"amd64": "SERIAL_8250_CONSOLE", "arm64": "SERIAL_AMBA_PL011_CONSOLE"}
	for _, arch := range Arches() {
		requests, err := For(arch)
		if err != nil {
			t.Fatal(err)
		}
		got := Config{}
		for _, r := range requests {
			got[r.Symbol] = r.Value
		}
		for s, v := range promises {
			if w, ok := got[s]; !ok || w != v {
				t.Errorf("%s: CONFIG_%s is %q, want %q", arch, s, w, v)
			}
		}
		if got[console[arch]] != "y" {
			t.Errorf("%s: no %s", arch, console[arch])
		}
		if _, err := ParseFragment("again", bytes.NewReader(Format(requests))); err != nil {
			t.Errorf("%s: what Format writes is no fragment: %v", arch, err)
		}
	}
	if _, err := For("riscv64"); err == nil {
		t.Error("there are requests for riscv64")
	}
}

func FuzzParseFragment(f *testing.F) {
	for _, name := range []string{"base.config", "amd64.config", "arm64.config"} {
		b, err := files.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte("CONFIG_A=\"\\\"\n# CONFIG_B is not set\nCONFIG_C=0xZ"))
	f.Fuzz(func(t *testing.T, b []byte) {
		requests, err := ParseFragment("f", bytes.NewReader(b))
		if err != nil {
			if !errors.Is(err, ErrSyntax) && !errors.Is(err, ErrConflict) {
				t.Fatalf("error of no kind: %v", err)
			}
			return
		}
		// What was accepted survives being written and read, and a
		// configuration of the same text honours it.
		text := Format(requests)
		again, err := ParseFragment("f", bytes.NewReader(text))
		if err != nil || len(again) != len(requests) {
			t.Fatalf("%q: read again: %d instead of %d requests, %v", text, len(again), len(requests), err)
		}
		c, err := Parse("c", bytes.NewReader(text))
		if err != nil {
			t.Fatalf("%q: as a configuration: %v", text, err)
		}
		if bad := Unhonoured(requests, c); len(bad) > 0 {
			t.Fatalf("%q: does not honour itself: %v", text, bad)
		}
	})
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("#\n# Linux/x86 6.12 Kernel Configuration\n#\nCONFIG_CC_VERSION_TEXT=\"gcc (Debian) 14\"\nCONFIG_A=m\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if c, err := Parse("c", bytes.NewReader(b)); err == nil {
			for s, v := range c {
				if !isSymbol(s) || v != No && !isValue(v) {
					t.Fatalf("accepted %q=%q", s, v)
				}
			}
		} else if !errors.Is(err, ErrSyntax) {
			t.Fatalf("error of no kind: %v", err)
		}
	})
}
