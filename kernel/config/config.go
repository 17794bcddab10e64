// Package config holds the requests that PyBox makes of a Linux configuration
// and compares them with what a kernel build, or a running kernel, has. It
// reads the two text forms of Documentation/kbuild/kconfig.rst: fragments,
// which a person writes and which are read strictly, and .config files, which
// kconfig writes. It runs nothing and knows no kernel source; package kernel
// does.
package config

import (
	"bufio"
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// Bounds on what is read. A complete .config of Linux 6.12 has about 10,000
// lines; 300 KiB hold it.
const (
	MaxFileBytes = 4 << 20
	MaxLineBytes = 4 << 10
)

// No is the value of a symbol that is switched off, or that a configuration
// does not mention: kconfig leaves out what has unmet dependencies.
const No = "n"

// ErrSyntax marks text that is not a fragment or not a .config.
var ErrSyntax = errors.New("invalid kernel configuration")

// ErrConflict marks a symbol that is requested more than once.
var ErrConflict = errors.New("kernel symbol requested more than once")

//go:embed base.config amd64.config arm64.config lost.allow
var files embed.FS

// Arches are the architectures that have fragments, in Go's terms.
func Arches() []string { return []string{"amd64", "arm64"} }

// Request asks for one symbol to have one value.
type Request struct {
	// Symbol is the name without "CONFIG_".
	Symbol string
	// Value is the text that a .config has behind "=": y, a number, a string
	// in quotes with kconfig's escapes; or No. Modules ("m") are no value: our
	// kernel has none.
	Value string
	// Pos is where it was read, as file:line.
	Pos string
}

// Config is a complete configuration: values by symbol name, in the forms of
// Request.Value and "m".
type Config map[string]string

// Value returns a symbol's value, No when the configuration lacks it.
func (c Config) Value(symbol string) string {
	if v, ok := c[symbol]; ok {
		return v
	}
	return No
}

// Mismatch is a request that a configuration does not honour.
type Mismatch struct {
	Request
	// Got is the value found, No when the symbol is absent.
	Got string
}

// String implements fmt.Stringer: position, symbol, wanted and found.
func (m Mismatch) String() string {
	return fmt.Sprintf("%s: CONFIG_%s: wanted %s, got %s", m.Pos, m.Symbol, m.Value, m.Got)
}

// For returns PyBox's own requests for an architecture, sorted by symbol: the
// base fragment and the architecture's.
func For(arch string) ([]Request, error) {
	if !slices.Contains(Arches(), arch) {
		return nil, fmt.Errorf("no kernel configuration for architecture %q: want one of %s",
			arch, strings.Join(Arches(), ", "))
	}
	var fragments [][]Request
	for _, name := range []string{"base.config", arch + ".config"} {
		f, err := files.Open(name)
		if err != nil {
			return nil, fmt.Errorf("open embedded fragment: %w", err)
		}
		requests, err := ParseFragment(name, f)
		f.Close()
		if err != nil {
			return nil, err
		}
		fragments = append(fragments, requests)
	}
	return Merge(fragments...)
}

// ParseFragment reads a fragment. Beside blank lines and comments it takes
//
//	CONFIG_NAME=value
//	# CONFIG_NAME is not set
//
// and nothing else: no "=n", no "=m", no blanks at the end of a line, no symbol
// twice, and no comment that begins like a request, because a request with a
// slip in it would silently be one. name is used in errors and positions. Errors
// match ErrSyntax or ErrConflict.
func ParseFragment(name string, r io.Reader) ([]Request, error) {
	var requests []Request
	seen := map[string]string{}
	err := scan(name, r, func(pos, line string) error {
		symbol, value, err := parseLine(line)
		switch {
		case err != nil:
			return fmt.Errorf("%w: %s: %w", ErrSyntax, pos, err)
		case symbol == "":
			return nil
		case value == "m":
			return fmt.Errorf("%w: %s: CONFIG_%s=m: this kernel has no modules, want y", ErrSyntax, pos, symbol)
		case seen[symbol] != "":
			return fmt.Errorf("%w: CONFIG_%s at %s and %s", ErrConflict, symbol, seen[symbol], pos)
		}
		seen[symbol] = pos
		requests = append(requests, Request{Symbol: symbol, Value: value, Pos: pos})
		return nil
	})
	if err != nil {
		return nil, err
	}
	return requests, nil
}

// Merge joins fragments, sorted by symbol. A symbol that stands in two of them
// is an error that matches ErrConflict, even where both agree: each request has
// one place and one reason.
func Merge(fragments ...[]Request) ([]Request, error) {
	all := slices.Concat(fragments...)
	slices.SortStableFunc(all, func(a, b Request) int { return strings.Compare(a.Symbol, b.Symbol) })
	for i := 1; i < len(all); i++ {
		if a, b := all[i-1], all[i]; a.Symbol == b.Symbol {
			return nil, fmt.Errorf("%w: CONFIG_%s=%s at %s, CONFIG_%s=%s at %s",
				ErrConflict, a.Symbol, a.Value, a.Pos, b.Symbol, b.Value, b.Pos)
		}
	}
	return all, nil
}

// Override puts the requests of own in the place of those of base for the same
// symbols, and adds the others. Both are sorted by symbol and have none twice (see
// Merge); so is what comes back. replaced are the requests of base that gave way to
// another value, in the same order.
func Override(base, own []Request) (all, replaced []Request) {
	mine := map[string]Request{}
	for _, r := range own {
		mine[r.Symbol] = r
	}
	all = slices.Clone(own)
	for _, r := range base {
		o, ok := mine[r.Symbol]
		switch {
		case !ok:
			all = append(all, r)
		case o.Value != r.Value:
			replaced = append(replaced, r)
		}
	}
	slices.SortFunc(all, func(a, b Request) int { return strings.Compare(a.Symbol, b.Symbol) })
	return all, replaced
}

// ReadFragments reads the fragments in files and merges them. Positions name a file
// as it is named here. Errors match ErrSyntax or ErrConflict, or are the system's.
func ReadFragments(names ...string) ([]Request, error) {
	var fragments [][]Request
	for _, name := range names {
		// A FIFO would wait for a writer.
		if st, err := os.Stat(name); err == nil && !st.Mode().IsRegular() {
			return nil, fmt.Errorf("%w: %s is no regular file", ErrSyntax, name)
		}
		f, err := os.Open(name)
		if err != nil {
			return nil, fmt.Errorf("open kernel fragment: %w", err)
		}
		requests, err := ParseFragment(name, f)
		f.Close()
		if err != nil {
			return nil, err
		}
		if len(requests) == 0 {
			return nil, fmt.Errorf("%w: %s requests nothing: want lines such as CONFIG_NAME=y", ErrSyntax, name)
		}
		fragments = append(fragments, requests)
	}
	return Merge(fragments...)
}

// Format writes requests as kconfig reads them from KCONFIG_ALLCONFIG, one per
// line and without positions, so that equal requests give equal bytes.
func Format(requests []Request) []byte {
	var b bytes.Buffer
	for _, r := range requests {
		b.WriteString(r.Line() + "\n")
	}
	return b.Bytes()
}

// Line is the request as a fragment has it, without its position.
func (r Request) Line() string {
	if r.Value == No {
		return "# CONFIG_" + r.Symbol + " is not set"
	}
	return "CONFIG_" + r.Symbol + "=" + r.Value
}

// Parse reads a complete .config, as kconfig writes it and /proc/config.gz
// holds it. name is used in errors, which match ErrSyntax.
func Parse(name string, r io.Reader) (Config, error) {
	c := Config{}
	err := scan(name, r, func(pos, line string) error {
		symbol, value, err := parseLine(line)
		switch {
		case err != nil:
			return fmt.Errorf("%w: %s: %w", ErrSyntax, pos, err)
		case symbol == "":
			return nil
		}
		if _, twice := c[symbol]; twice {
			return fmt.Errorf("%w: %s: CONFIG_%s stands there twice", ErrSyntax, pos, symbol)
		}
		c[symbol] = value
		return nil
	})
	if err != nil {
		return nil, err
	}
	return c, nil
}

// Unhonoured lists the requests whose symbol has another value in got, in the
// order of the requests.
func Unhonoured(requests []Request, got Config) []Mismatch {
	var bad []Mismatch
	for _, r := range requests {
		if v := got.Value(r.Symbol); v != r.Value {
			bad = append(bad, Mismatch{Request: r, Got: v})
		}
	}
	return bad
}

// scan calls fn for each line of r with its position.
func scan(name string, r io.Reader, fn func(pos, line string) error) error {
	limited := &io.LimitedReader{R: r, N: MaxFileBytes + 1}
	s := bufio.NewScanner(limited)
	s.Buffer(nil, MaxLineBytes)
	n := 0
	for s.Scan() {
		n++
		if err := fn(fmt.Sprintf("%s:%d", name, n), s.Text()); err != nil {
			return err
		}
	}
	if err := s.Err(); errors.Is(err, bufio.ErrTooLong) {
		return fmt.Errorf("%w: %s:%d: line of more than %d bytes", ErrSyntax, name, n+1, MaxLineBytes)
	} else if err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	if limited.N == 0 {
		return fmt.Errorf("%w: %s: more than %d bytes", ErrSyntax, name, MaxFileBytes)
	}
	return nil
}

// parseLine returns an empty symbol for blank lines and comments.
func parseLine(line string) (symbol, value string, err error) {
	const prefix, notSet = "CONFIG_", " is not set"
	if line == "" {
		return "", "", nil
	}
	if comment, ok := strings.CutPrefix(line, "#"); ok {
		text := strings.TrimLeft(comment, " \t")
		if !strings.HasPrefix(text, prefix) {
			return "", "", nil
		}
		symbol, ok := strings.CutSuffix(text, notSet)
		symbol = strings.TrimPrefix(symbol, prefix)
		if !ok || comment != " "+text || !isSymbol(symbol) {
			return "", "", fmt.Errorf("%.80q: a comment that begins with %s must be %q", line, prefix, "# CONFIG_NAME is not set")
		}
		return symbol, No, nil
	}
	name, value, ok := strings.Cut(line, "=")
	symbol, prefixed := strings.CutPrefix(name, prefix)
	if !ok || !prefixed || !isSymbol(symbol) {
		return "", "", fmt.Errorf("%.80q: want CONFIG_NAME=value or a comment", line)
	}
	if !isValue(value) {
		return "", "", fmt.Errorf("CONFIG_%s=%.80s: want y, a number or a quoted string; to switch off write %q",
			symbol, value, "# CONFIG_"+symbol+notSet)
	}
	return symbol, value, nil
}

func isSymbol(s string) bool {
	for i := range len(s) {
		if !isWordByte(s[i]) {
			return false
		}
	}
	return s != ""
}

func isWordByte(b byte) bool {
	return b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || b == '_'
}

// isValue tells whether v is a form that kconfig writes: y, m, a decimal or
// hexadecimal number, a quoted string.
func isValue(v string) bool {
	switch {
	case v == "":
		return false
	case v == "y" || v == "m":
		return true
	case v[0] == '"':
		return isQuoted(v)
	}
	if hex, ok := strings.CutPrefix(v, "0x"); ok {
		return hex != "" && strings.Trim(hex, "0123456789abcdefABCDEF") == ""
	}
	digits := strings.TrimPrefix(v, "-")
	return digits != "" && strings.Trim(digits, "0123456789") == ""
}

// isQuoted tells whether v is one quoted string: inside, a backslash takes the
// next byte literally.
func isQuoted(v string) bool {
	for i := 1; i < len(v); i++ {
		switch v[i] {
		case '\\':
			i++
		case '"':
			return i == len(v)-1
		}
	}
	return false
}
