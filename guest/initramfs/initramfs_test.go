package initramfs

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"testing"
)

func lines(n int, name string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "%s\n", ModulePath(fmt.Sprint(name, i)))
	}
	return b.String()
}

func TestParseList(t *testing.T) {
	got, err := ParseList("modules/a.ko\nmodules/b_c.ko\n")
	if err != nil || !slices.Equal(got, []string{ModulePath("a"), ModulePath("b_c")}) {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := ParseList(""); err != nil || len(got) != 0 { // every driver is built in
		t.Errorf("an empty list: %q, %v", got, err)
	}
	if got, err := ParseList(lines(MaxModules, "m")); err != nil || len(got) != MaxModules {
		t.Errorf("as many as can be: %d, %v", len(got), err)
	}
	for name, c := range map[string]struct{ list, say string }{
		"elsewhere": {"a.ko\n", "no module"}, "deeper": {"modules/x/a.ko\n", "no module"},
		"absolute": {"/modules/a.ko\n", "no module"}, "up": {"modules/../init.ko\n", "no module"},
		"no suffix": {"modules/a\n", "no module"}, "empty line": {"modules/a.ko\n\n", "no module"},
		"zero byte": {"modules/a\x00.ko\n", "no module"},
		"many":      {lines(MaxModules+1, "m"), "more than 128 modules"},
		"long":      {lines(100, strings.Repeat("m", MaxListBytes/100)), "more than 65536 bytes"},
	} {
		if got, err := ParseList(c.list); err == nil || !strings.Contains(err.Error(), c.say) {
			t.Errorf("%s: %q, %v, want an error with %q", name, got, err, c.say)
		}
	}
}

func FuzzParseList(f *testing.F) {
	f.Add("modules/a.ko\nmodules/b.ko\n")
	f.Add("modules/../init.ko\n\x00")
	f.Fuzz(func(t *testing.T, list string) {
		got, err := ParseList(list)
		if err != nil {
			return
		}
		if len(got) > MaxModules {
			t.Fatalf("%d modules", len(got))
		}
		for _, p := range got {
			if path.Dir(p) != ModuleDir || strings.ContainsAny(strings.TrimPrefix(p, ModuleDir+"/"), "/\n\x00") {
				t.Fatalf("%q", p)
			}
		}
	})
}
