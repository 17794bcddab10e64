package runner

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io/fs"
	"path"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"unicode"
	"unicode/utf8"
)

func TestSHA256(t *testing.T) {
	sum := sha256.Sum256(source)
	if SHA256() != hex.EncodeToString(sum[:]) {
		t.Error(SHA256())
	}
}

func TestEnv(t *testing.T) {
	const dir = "/box/.pybox"
	tests := []struct{ env, want []string }{
		{nil, []string{"PYTHONPATH=" + dir}},
		{[]string{"A=1", "PYTHONPATHS=x"}, []string{"A=1", "PYTHONPATHS=x", "PYTHONPATH=" + dir}},
		{[]string{"PYTHONPATH=/a:/b", "B=2"}, []string{"PYTHONPATH=" + dir + ":/a:/b", "B=2"}},
		{[]string{"PYTHONPATH=", "B=2"}, []string{"PYTHONPATH=" + dir, "B=2"}},
		{[]string{"PYTHONPATH=/a", "PYTHONPATH=/b"}, []string{"PYTHONPATH=" + dir + ":/a"}},
	}
	for _, test := range tests {
		given := append([]string(nil), test.env...)
		if got := Env(test.env); !reflect.DeepEqual(got, test.want) {
			t.Errorf("%q gives %q", test.env, got)
		}
		if !reflect.DeepEqual(test.env, given) {
			t.Errorf("%q was changed", given)
		}
	}
}

func TestCheckName(t *testing.T) {
	good := []string{
		"main.py", "a/b/c", "ä €", ".hidden", "a/.pybox", ".pyboxes", "pybox", "-x", "a..b", "...",
		strings.Repeat("x", MaxNameBytes), strings.Repeat("d/", MaxDepth-1) + "f",
	}
	for _, name := range good {
		if err := CheckName(name); err != nil {
			t.Error(err)
		}
	}
	bad := []string{
		"", ".", "..", "/", "/a", "a/", "a//b", "./a", "a/./b", "a/../b", "../a", "a/..",
		".pybox", ".pybox/s", "a\x00", "a\nb", "\x7f", "\u0085", "\xff",
		strings.Repeat("x", MaxNameBytes+1), strings.Repeat("d/", MaxDepth) + "f",
	}
	for _, name := range bad {
		if err := CheckName(name); !errors.Is(err, ErrName) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func FuzzCheckName(f *testing.F) {
	for _, seed := range []string{"a/b", "../a", ".pybox", "a\x00", "\xff", strings.Repeat("a/", 20)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if CheckName(name) != nil {
			return
		}
		const root = "/r"
		if p := path.Join(root, name); p != root+"/"+name || len(name) > 4095 {
			t.Errorf("%q leads to %q", name, p)
		}
		if !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl) {
			t.Errorf("%q", name)
		}
	})
}

func le(kind byte, numbers ...uint32) string {
	b := []byte{kind}
	for _, n := range numbers {
		b = binary.LittleEndian.AppendUint32(b, n)
	}
	return string(b)
}

func TestDecode(t *testing.T) {
	good := map[string]report{
		"R\x03":                        {kind: msgReady},
		le('A', 0, 5, 1):               {kind: msgAnswer, written: 1<<32 + 5},
		le('A', 28, 0, 0):              {kind: msgAnswer, errno: syscall.ENOSPC},
		"S":                            {kind: msgStarted},
		le('N', 11):                    {kind: msgNotStarted, errno: syscall.EAGAIN},
		le('X', 7<<8):                  {kind: msgEnded, status: 7 << 8},
		le('X', 9):                     {kind: msgEnded, status: 9},
		le('X', 0x80|11):               {kind: msgEnded, status: 0x80 | 11},
		le('X', 64):                    {kind: msgEnded, status: 64},
		"Bbad":                         {kind: msgBroken, text: `"bad"`},
		"B\x1b\xff":                    {kind: msgBroken, text: `"\x1b\ufffd"`},
		"B" + strings.Repeat("x", 511): {kind: msgBroken, text: `"` + strings.Repeat("x", 511) + `"`},
	}
	for message, want := range good {
		if got, err := decode([]byte(message)); err != nil || got != want {
			t.Errorf("%q: %+v, %v", message, got, err)
		}
	}
	bad := []string{
		"", "R", "R\x02", "R\x03\x03", "Q", "\x00", "I", "G",
		le('A', 0, 0), le('A', 5000, 0, 0), le('A', 0, 0, 1<<31), le('A', 0, 0, 0, 0),
		"S\x02", le('S', 2),
		le('N', 0), le('N', 4096), "N",
		le('X', 0x7f), le('X', 0x137f), le('X', 0xffff), le('X', 65), le('X', 0x80),
		le('X', 7<<8|9), le('X', 1<<16), le('X', 1<<31), "X", le('X', 0, 0),
		"B" + strings.Repeat("x", 512),
	}
	for _, message := range bad {
		if got, err := decode([]byte(message)); !errors.Is(err, ErrProtocol) {
			t.Errorf("%q: %+v, %v", message, got, err)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, seed := range []string{"R\x03", le('A', 0, 5, 0), "S", le('N', 11), le('X', 9), "Bx\x1b", "", "X"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := decode(b)
		if err != nil {
			if !errors.Is(err, ErrProtocol) || len(err.Error()) > 400 {
				t.Error(err)
			}
			return
		}
		switch r.kind {
		case msgEnded:
			if r.status.Exited() == r.status.Signaled() || r.status.Stopped() || r.status.Continued() {
				t.Errorf("status %#x", r.status)
			}
		case msgAnswer:
			if r.written < 0 {
				t.Error(r.written)
			}
		case msgNotStarted:
			if r.errno == 0 {
				t.Error("no error")
			}
		}
		for _, c := range r.text {
			if c < ' ' || c > '~' {
				t.Errorf("text %q", r.text)
			}
		}
	})
}

func TestEncode(t *testing.T) {
	if got, want := string(encodeFile("a/b", 0o755, 1<<33+2)), "F\xed\x01\x02\x00\x00\x00\x02\x00\x00\x00a/b"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := string(encodeFolder("a")); got != "Da" {
		t.Errorf("%q", got)
	}
}

func TestFileError(t *testing.T) {
	tests := map[syscall.Errno]error{
		0: nil, syscall.ENOSPC: ErrNoSpace, syscall.EDQUOT: ErrNoSpace, syscall.ENOMEM: ErrNoMemory,
		syscall.EEXIST: fs.ErrExist, syscall.EACCES: fs.ErrPermission,
	}
	for errno, want := range tests {
		if err := fileError("f", errno); !errors.Is(err, want) {
			t.Errorf("%v gives %v", errno, err)
		}
	}
}

func pyc(flags uint32, bytes int) []byte {
	b := binary.LittleEndian.AppendUint32([]byte("\xf3\r\r\n"), flags)
	return append(b, make([]byte, max(0, bytes-8))...)
}

func TestDecodeBytecode(t *testing.T) {
	const name = "sitecustomize.cpython-313.pyc"
	for _, known := range []string{name, "sitecustomize.cpython-313.opt-1.pyc"} {
		code := decodeBytecode(append([]byte(known+"\x00"), pyc(1, 100)...))
		if len(code) != 1 || !bytes.Equal(code[known], pyc(3, 100)) {
			t.Errorf("%s: %q", known, code)
		}
	}
	for why, body := range map[string][]byte{
		"nothing":                 nil,
		"no file":                 []byte(name),
		"by the source's time":    append([]byte(name+"\x00"), pyc(0, 100)...),
		"no code":                 append([]byte(name+"\x00"), pyc(1, 16)...),
		"too long":                append([]byte(name+"\x00"), pyc(1, maxBytecodeBytes+1)...),
		"another module":          append([]byte("other.cpython-313.pyc\x00"), pyc(1, 100)...),
		"in another folder":       append([]byte("../"+name+"\x00"), pyc(1, 100)...),
		"a name with a line more": append([]byte(name+"\n\x00"), pyc(1, 100)...),
	} {
		if code := decodeBytecode(body); code != nil {
			t.Errorf("%s: %q was taken", why, code)
		}
	}
}

func FuzzBytecode(f *testing.F) {
	f.Add("sitecustomize.cpython-313.pyc", pyc(1, 100))
	f.Add("../sitecustomize.cpython-313.pyc", pyc(3, 17))
	f.Add("sitecustomize.x.opt-2.pyc", pyc(0, 4))
	f.Fuzz(func(t *testing.T, name string, b []byte) {
		if bytecodeName.MatchString(name) && (strings.ContainsAny(name, "/\x00") || CheckName(name) != nil) {
			t.Errorf("name %q", name)
		}
		out, ok := checked(b)
		code := decodeBytecode(append([]byte(name+"\x00"), b...))
		if want := ok && bytecodeName.MatchString(name); want != (code != nil) || want && !bytes.Equal(code[name], out) {
			t.Errorf("%q: %q, want it: %t", name, code, want)
		}
		if !ok {
			return
		}
		if len(out) != len(b) || out[4] != 3 || !bytes.Equal(out[8:], b[8:]) || !bytes.Equal(out[:4], b[:4]) {
			t.Errorf("%q became %q", b, out)
		}
	})
}
