package readback

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func TestParseStatus(t *testing.T) {
	m, err := parseStatus([]byte("Name:\ta:b\nUid:\t1\t2\t 3\nGroups:\t \n"))
	if err != nil || m["Name"] != "a:b" || m["Uid"] != "1 2 3" || m["Groups"] != "" {
		t.Errorf("%q, %v", m, err)
	}
	for _, bad := range []string{"x\n", ":\n", "A:\t1", "A:\t1\nA:\t2\n", "A:\t1\n\n"} {
		if m, err := parseStatus([]byte(bad)); err == nil {
			t.Errorf("%q is taken as %q", bad, m)
		}
	}
}

func TestParseIDMap(t *testing.T) {
	for in, want := range map[string]string{
		"         0     100000      65536\n": "0 100000 65536", "0 1 1\n5 6 7\n": "0 1 1; 5 6 7", "": "",
	} {
		if got, err := parseIDMap([]byte(in)); err != nil || got != want {
			t.Errorf("%q: %q, %v", in, got, err)
		}
	}
	for _, bad := range []string{"0 1\n", "0 1 2 3\n", "0 -1 2\n", "0 x 2\n", "0 4294967296 1\n", "0 1 2", "\n"} {
		if got, err := parseIDMap([]byte(bad)); err == nil {
			t.Errorf("%q is taken as %q", bad, got)
		}
	}
}

func TestParseLimits(t *testing.T) {
	const head = "Limit                     Soft Limit           Hard Limit           Units     \n"
	line := func(name, rest string) string {
		return name + strings.Repeat(" ", limitWidth-len(name)) + " " + rest + "\n"
	}
	m, err := parseLimits([]byte(head + line("Max open files", "1 unlimited files") + line("Max something new", "?")))
	if err != nil || len(m) != 1 || m["RLIMIT_NOFILE"] != "1 unlimited" {
		t.Errorf("%q, %v", m, err)
	}
	for _, bad := range []string{"", "\n", line("Max open files", "1 1"), head + "Max open files\n", head + line("Max open files", "1"),
		head + line("Max open files", "1 2 3 4"), head + line("Max open files", "-1 1"), head + line("Max open files", "01 1"),
		head + line("Max open files", "1 max"), head + line("Max open files", "1 1") + line("Max open files", "1 1")} {
		if m, err := parseLimits([]byte(bad)); err == nil {
			t.Errorf("%q is taken as %q", bad, m)
		}
	}
}

func TestParseNetwork(t *testing.T) {
	dev := sample(t, "net_dev")
	if got, err := parseInterfaces([]byte(dev + "eth0:1 2\n")); err != nil || !slices.Equal(got, []string{"lo", "eth0"}) {
		t.Errorf("%q, %v", got, err)
	}
	for _, bad := range []string{"", "a|\n", "a\nb\n", dev + "x\n", dev + " :1\n", dev + "\n", dev[:len(dev)-1]} {
		if got, err := parseInterfaces([]byte(bad)); err == nil {
			t.Errorf("interfaces: %q is taken as %q", bad, got)
		}
	}
	route := sample(t, "net_route")
	for _, bad := range []string{"", "x\n", route + "eth0\n", route + "\n", route + "x"} {
		if got, err := parseRoutes([]byte(bad)); err == nil {
			t.Errorf("routes: %q is taken as %q", bad, got)
		}
	}
	if got, err := parseRoutes6([]byte(route6("lo") + route6("eth0"))); err != nil || !slices.Equal(got, []string{"lo", "eth0"}) {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := parseRoutes6([]byte("x\n")); err == nil {
		t.Errorf("%q", got)
	}
}

func TestParseForwarding(t *testing.T) {
	// More than one table, a prefix of several types, a route to everywhere.
	in := "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n        /0 universe BLACKHOLE\nId 7:\n  |-- 10.0.0.0\n     /8 link UNICAST tos=8\nLocal:\n"
	got, err := parseForwarding([]byte(in))
	if want := []string{"0.0.0.0/0 BLACKHOLE", "0.0.0.0/0 UNICAST", "10.0.0.0/8 UNICAST"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v", got, err)
	}
	for _, bad := range []string{
		"\n", "Main:", "Main:\n /8 host LOCAL\n", "Main:\n |-- 1.2.3\n", "Main:\n |-- ::1\n", "Main:\n |-- 1.2.3.4 x\n", "Main:\n x\n",
		"Main:\n |-- 1.2.3.4\n /33 host LOCAL\n", "Main:\n |-- 1.2.3.4\n 8 host LOCAL\n", "Main:\n |-- 1.2.3.4\n /8 host\n",
		"Main:\n |-- 1.2.3.4\n /+8 host LOCAL\n", "Main:\n |-- 1.2.3.4\n /08 host LOCAL\n", "Main:\n |-- 1.2.3.4\nLocal:\n /8 host LOCAL\n", "Main:\n |-- 1.2.3.4\n +-- 1.2.3.0/31 1 0 0\n /8 host LOCAL\n",
	} {
		if got, err := parseForwarding([]byte(bad)); err == nil {
			t.Errorf("%q is taken as %q", bad, got)
		}
	}
}

func TestParseMounts(t *testing.T) {
	all, err := parseMounts([]byte(`36 35 98:0 /a\040b /c\134\011 rw,noatime shared:1 master:2 - ext3 /dev/root rw,errors=continue` + "\n"))
	if err != nil || len(all) != 1 {
		t.Fatalf("%+v, %v", all, err)
	}
	m := all[0]
	if v, ok := m.superOption("errors"); m.device != "98:0" || m.root != "/a b" || m.target != "/c\\\t" || !m.has("noatime") || m.has("ro") ||
		propagation(m) != " shared:1 master:2" || m.kind != "ext3" || !ok || v != "continue" {
		t.Errorf("%+v", m)
	}
	for _, bad := range []string{"\n", "1 2 3:4 / / rw - x y\n", "1 2 3 / / rw - x y z\n", "x 2 3:4 / / rw - x y z\n", "1 -2 3:4 / / rw - x y z\n",
		"1 2 3:4:5 / / rw - x y z\n", "1 2 3:4 / / rw x x y z\n", "1 2 3:4 / / rw - x y z more\n", `1 2 3:4 /\04 / rw - x y z` + "\n",
		`1 2 3:4 / /\999 rw - x y z` + "\n", `1 2 3:4 / /\777 rw - x y z` + "\n", `1 2 3:4 / /\0 rw - x y z` + "\n", "1 2 3:4 / / rw - x y z"} {
		if got, err := parseMounts([]byte(bad)); err == nil {
			t.Errorf("%q is taken as %+v", bad, got)
		}
	}
}

// fuzz runs a parser on everything, the real file first.
func fuzz(f *testing.F, name string, parse func(*testing.T, []byte)) {
	if name != "" {
		f.Add([]byte(sample(f, name)))
	}
	f.Add([]byte("1 2 3:4 /\\040 / rw a:1 - x y z\n"))
	f.Add([]byte(route6("lo")))
	f.Add([]byte("A:\t1\n"))
	f.Fuzz(parse)
}

func FuzzStatus(f *testing.F) {
	fuzz(f, "status", func(t *testing.T, b []byte) {
		m, err := parseStatus(b)
		for k, v := range m {
			if err != nil || k == "" || strings.ContainsAny(k+v, "\n\t") && !strings.Contains(k, "\t") {
				t.Errorf("%q: %q, %v", k, v, err)
			}
		}
	})
}

func FuzzIDMap(f *testing.F) {
	fuzz(f, "uid_map", func(t *testing.T, b []byte) {
		if s, err := parseIDMap(b); err == nil && strings.Trim(s, "0123456789; ") != "" {
			t.Errorf("%q", s)
		}
	})
}

func FuzzLimits(f *testing.F) {
	fuzz(f, "limits", func(t *testing.T, b []byte) {
		m, _ := parseLimits(b)
		for k, v := range m {
			if !strings.HasPrefix(k, "RLIMIT_") || len(strings.Fields(v)) != 2 {
				t.Errorf("%q: %q", k, v)
			}
		}
	})
}

func FuzzNetwork(f *testing.F) {
	f.Add([]byte(sample(f, "net_dev")))
	fuzz(f, "net_route", func(t *testing.T, b []byte) {
		for _, parse := range []func([]byte) ([]string, error){parseInterfaces, parseRoutes, parseRoutes6} {
			names, _ := parse(b)
			if slices.Contains(names, "") {
				t.Errorf("%q", names)
			}
		}
	})
}

func FuzzForwarding(f *testing.F) {
	fuzz(f, "net_fib_trie", func(t *testing.T, b []byte) {
		found, err := parseForwarding(b)
		if err != nil && found != nil || len(found) > strings.Count(string(b), "\n") {
			t.Errorf("%q and %v", found, err)
		}
		for _, s := range found {
			if prefix, kind, ok := strings.Cut(s, " "); !ok || kind == "" {
				t.Errorf("%q", s)
			} else if _, err := netip.ParsePrefix(prefix); err != nil {
				t.Errorf("%q: %v", s, err)
			}
		}
	})
}

func FuzzMounts(f *testing.F) {
	fuzz(f, "mountinfo", func(t *testing.T, b []byte) {
		all, err := parseMounts(b)
		if err != nil && all != nil {
			t.Errorf("%+v and %v", all, err)
		}
		if len(all) > strings.Count(string(b), "\n") {
			t.Errorf("%d mounts out of %q", len(all), b)
		}
	})
}
