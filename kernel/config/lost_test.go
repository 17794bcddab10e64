package config

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"
)

func TestLost(t *testing.T) {
	plain := Config{"MITIGATION_NEW": "y", "MITIGATION_KEPT": "y", "ARM64_ERRATUM_1": "y", "STRICT_DEVMEM": "y",
		"HID_APPLE": "y", "HARDENED_OFF_BY_DEFAULT": "n", "FORTIFY_SOURCE": "y"}
	around := Config{"HARDENED_PROMPTED": "y"}
	ours := Config{"MITIGATION_KEPT": "y", "FORTIFY_SOURCE": "n", "STRICT_DEVMEM": "n"}
	allow := []Allowed{{Arch: "amd64", Symbol: "STRICT_DEVMEM"}, {Arch: "amd64", Symbol: "MITIGATION_KEPT"},
		{Arch: "arm64", Symbol: "FORTIFY_SOURCE"}}

	l := Lost("amd64", ours, allow, plain, around)
	want := []string{"ARM64_ERRATUM_1", "FORTIFY_SOURCE", "HARDENED_PROMPTED", "MITIGATION_NEW"}
	if !slices.Equal(l.Lost, want) {
		t.Errorf("lost %v, want %v", l.Lost, want)
	}
	if len(l.Allowed) != 1 || l.Allowed[0].Symbol != "STRICT_DEVMEM" {
		t.Errorf("allowed %v", l.Allowed)
	}
	if len(l.Stale) != 1 || l.Stale[0].Symbol != "MITIGATION_KEPT" {
		t.Errorf("stale %v", l.Stale)
	}
	if l.OK() {
		t.Error("that is OK")
	}
	if l := Lost("amd64", plain, nil, plain); !l.OK() {
		t.Errorf("a configuration loses something to itself: %v", l)
	}
	if l := Lost("amd64", plain, allow[1:2], plain); l.OK() {
		t.Error("a stale entry is OK")
	}
}

// TestProtective holds the pattern to names that were once lost silently, and to
// names that are none of its business.
func TestProtective(t *testing.T) {
	for name, want := range map[string]bool{
		"MITIGATION_SPECTRE_V1": true, "MITIGATE_SPECTRE_BRANCH_HISTORY": true, "ARM64_ERRATUM_3194386": true,
		"CAVIUM_TX2_ERRATUM_219": true, "NVIDIA_CARMEL_CNP_ERRATUM": true, "SOCIONEXT_SYNQUACER_PREITS": true,
		"UNMAP_KERNEL_AT_EL0": true, "X86_KERNEL_IBT": true, "X86_UMIP": true, "ARM64_PAN": true, "ARM64_EPAN": true,
		"ARM64_BTI_KERNEL": true, "VMAP_STACK": true, "RANDOMIZE_KSTACK_OFFSET": true, "INIT_STACK_ALL_ZERO": true,
		"STACKPROTECTOR_STRONG": true, "SECURITY_DMESG_RESTRICT": true, "HARDENED_USERCOPY": true,
		"HID_APPLE": false, "PANIC_TIMEOUT": false, "HW_RANDOM_VIA": false, "CPU_FREQ": false, "COMPANION": false,
	} {
		if got := protective.MatchString(name); got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}

func TestParseAllowListRefuses(t *testing.T) {
	for text, want := range map[string]error{
		"amd64 STRICT_DEVMEM":                    ErrSyntax,
		"amd64 STRICT_DEVMEM ":                   ErrSyntax,
		"mips STRICT_DEVMEM why":                 ErrSyntax,
		"amd64 CONFIG-X why":                     ErrSyntax,
		" amd64 A why":                           ErrSyntax,
		"amd64 A why\namd64 A why":               ErrConflict,
		"amd64 A why\narm64 A why\namd64 A else": ErrConflict,
	} {
		if l, err := ParseAllowList("l", strings.NewReader(text)); !errors.Is(err, want) {
			t.Errorf("%q: got %v, error %v, want %v", text, l, err, want)
		}
	}
}

func TestOwnAllowList(t *testing.T) {
	l, err := AllowList()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range l {
		if !protective.MatchString(a.Symbol) {
			t.Errorf("%s: %s is nothing that the comparison finds", a.Pos, a.Symbol)
		}
	}
}

func FuzzParseAllowList(f *testing.F) {
	b, err := files.ReadFile("lost.allow")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte("amd64  A  why\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := ParseAllowList("l", bytes.NewReader(b))
		if err != nil && !errors.Is(err, ErrSyntax) && !errors.Is(err, ErrConflict) {
			t.Fatalf("error of no kind: %v", err)
		}
		for _, a := range l {
			if a.Reason == "" || !isSymbol(a.Symbol) {
				t.Fatalf("accepted %+v", a)
			}
		}
	})
}
