package answer

import (
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

func TestCode(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"marked", "```python\nprint(1)\n```", "print(1)\n"},
		{"unmarked", "```\nprint(1)\n```\n", "print(1)\n"},
		{"another mark", "```Py title=x\nprint(1)\n```\n", "print(1)\n"},
		{"with words around", "Here:\n\n```python\nprint(1)\n```\n\nThis `works`.", "print(1)\n"},
		{"tildes", "~~~python\ns = '''\n```\n'''\n~~~", "s = '''\n```\n'''\n"},
		{"a longer fence", "````python\n\"\"\"\n```\nno end\n```\n\"\"\"\n````", "\"\"\"\n```\nno end\n```\n\"\"\"\n"},
		{"ends of lines", "```python\r\nif 1:\r\n\tprint(1)\r\n```\r\n", "if 1:\n\tprint(1)\n"},
		{"indented with its fence", "  ```python\n  if 1:\n      print(1)\n```", "if 1:\n    print(1)\n"},
		{"fence in the code's text", "```python\nprint('''\n    ```\n''')\n```", "print('''\n    ```\n''')\n"},
		{"in line", "use ```x``` so\n```python\nprint(1)\n```", "print(1)\n"},
		{"thoughts with blocks", "<think>\n```python\nprint(0)\n```\nno\n</think>\n```python\nprint(1)\n```", "print(1)\n"},
		{"thoughts without a beginning", "I try:\n```python\nprint(0)\n```\nNo.\n</think>\n\n```python\nprint(1)\n```", "print(1)\n"},
		{"at the end of their line", "```\nprint(0)\n```\nNo.</think>\r\n```python\nprint(1)\n```", "print(1)\n"},
		{"their end within the code", "````python\ns = \"\"\"\n</think>\n```\n\"\"\"\n````", "s = \"\"\"\n</think>\n```\n\"\"\"\n"},
		{"their end named afterwards", "```python\nprint(1)\n```\nI wrote no\n</think>\n", "print(1)\n"},
		{"form feed", "```python\nx = 1\n\f\ny = 2\n```", "x = 1\n\f\ny = 2\n"},
	} {
		if got, err := Code(c.text, ""); err != nil || got != c.want {
			t.Errorf("%s: %q, %v; want %q", c.name, got, err, c.want)
		}
	}
}

func TestRefusals(t *testing.T) {
	for _, c := range []struct{ name, text, reason string }{
		{"nothing", "", NoBlock},
		{"words", "I cannot do that.", NoBlock},
		{"code without a fence", "import os\nprint(1)\n", NoBlock},
		{"indented code", "    ```python\n    print(1)\n    ```\n", NoBlock},
		{"two", "```python\nprint(1)\n```\nor\n```python\nprint(2)\n```", SeveralBlocks},
		{"a command beside it", "```bash\npip install x\n```\n```python\nprint(2)\n```", SeveralBlocks},
		{"two after thoughts", "hm\n</think>\n```\na\n```\n```\nb\n```", SeveralBlocks},
		{"no end after thoughts", "```\na\n```\n</think>\n```\nb\n", Unterminated},
		{"no end", "```python\nprint(1)\n", Unterminated},
		{"shorter end", "````python\nprint(1)\n```\n", Unterminated},
		{"another end", "```python\nprint(1)\n~~~\n", Unterminated},
		{"thoughts without an end", "<think>```python\nprint(1)\n```", NoBlock},
		{"a shell's", "```bash\nrm -rf /\n```", NotPython},
		{"a diff", "```diff\n-a\n+b\n```", NotPython},
		{"empty", "```python\n```", Empty},
		{"blank", "```python\n\n   \n```", Empty},
		{"large", "```python\n" + strings.Repeat("#", MaxCode) + "\n```", TooLarge},
		{"NUL", "```python\nx = '\x00'\n```", Binary},
		{"escape", "```python\nx = '\x1b[2J'\n```", Binary},
		{"C1", "```python\nx = '\u009b2J'\n```", Binary},
		{"carriage return within", "```python\nx = 1 # \rimport os\n```", Binary},
		{"direction", "```python\nx = '\u202e'\n```", Binary},
		{"not text", "```python\nx = '\xff'\n```", Binary},
		{"replaced", "```python\nx = '\ufffd'\n```", Binary},
	} {
		_, err := Code(c.text, "")
		var r *Refusal
		if !errors.As(err, &r) || r.Reason != c.reason || r.Detail == "" {
			t.Errorf("%s: %v, want %s", c.name, err, c.reason)
		}
	}
}

// TestUnusual: what the owner's own program has, a repair may have too, but for what
// Python refuses.
func TestUnusual(t *testing.T) {
	text := "```python\nx = '\u202e\x1b'\n```"
	if _, err := Code(text, "y = '\x1b\u202e'"); err != nil {
		t.Error(err)
	}
	if _, err := Code(text, "y = '\x1b'"); err == nil {
		t.Error("a character that turns text was taken, and the original has none")
	}
	if _, err := Code("```\nx = '\x00'\n```", "\x00"); err == nil {
		t.Error("NUL was taken")
	}
}

func FuzzCode(f *testing.F) {
	for _, s := range []string{
		"```python\nprint(1)\n```", "~~~\nx\n~~~\n```\ny\n```", "````\n```\n````", "<think></think>```\nx\n```", "   ```py\r\n x\r\n```", "```\nx\n```\n</think>\n~~~\ny\n~~~", "```\n\x00\n```", "``` `\n```",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		code, err := Code(text, "")
		if err != nil {
			var r *Refusal
			if !errors.As(err, &r) || r.Reason == "" || r.Detail == "" || strings.ContainsFunc(r.Detail, odd) {
				t.Fatalf("%#v", err)
			}
			return
		}
		if len(code) > MaxCode || !utf8.ValidString(code) || !strings.HasSuffix(code, "\n") || strings.TrimSpace(code) == "" || strings.ContainsFunc(code, odd) {
			t.Fatalf("took %q", code)
		}
		// It is the text's own, line by line, and comes out of a block of its own again.
		rest := strings.ReplaceAll(text, "\r\n", "\n")
		for line := range strings.Lines(code) {
			at := strings.Index(rest, strings.TrimSuffix(line, "\n"))
			if at < 0 {
				t.Fatalf("%q is not in %q", line, rest)
			}
			rest = rest[at:]
		}
		long := strings.Repeat("`", len(text)+3)
		again, err := Code(long+"\n"+code+long, "")
		if err != nil || again != code {
			t.Fatalf("%q became %q, %v", code, again, err)
		}
	})
}

func TestLineEnds(t *testing.T) {
	for _, c := range []struct{ original, want string }{
		{"a\nb\n", "x\ny\n"}, {"a\r\nb\r\n", "x\r\ny\r\n"}, {"a\r\nb\r\nc\n", "x\r\ny\r\n"}, {"a\r\nb\n", "x\ny\n"}, {"a", "x\ny\n"}, {"", "x\ny\n"},
	} {
		if got := EndedAs("x\ny\n", c.original); got != c.want || Unix(got) != "x\ny\n" {
			t.Errorf("%q: %q", c.original, got)
		}
	}
}

// TestManyThoughts: the longest answer of ends of thoughts is read once.
func TestManyThoughts(t *testing.T) {
	began := time.Now()
	if _, err := Code(strings.Repeat("</think>\n", 1<<20/9), ""); err == nil || time.Since(began) > 5*time.Second {
		t.Errorf("%v after %v", err, time.Since(began))
	}
}
