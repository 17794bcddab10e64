package wheel

import (
	"bytes"
	"fmt"
	"path"
	"regexp"
	"strings"
	"unicode/utf8"
)

// Bounds of entry_points.txt.
const (
	maxEntryPointsBytes = 1 << 20
	maxScripts          = 1000
	maxScriptName       = 100
)

// script is a program that a wheel asks for by naming a function.
type script struct{ name, module, function string }

// reference is the object that an entry point names, with the extras of old ones:
// module, and attributes after a colon.
var reference = regexp.MustCompile(`^([\pL_][\pL\pN_]*(?:\.[\pL_][\pL\pN_]*)*)\s*(?::\s*([\pL_][\pL\pN_]*(?:\.[\pL_][\pL\pN_]*)*))?\s*(?:\[[^\[\]]*\])?$`)

// parseScripts reads the programs of entry_points.txt
// (https://packaging.python.org/en/latest/specifications/entry-points/): the sections
// console_scripts and gui_scripts, which are one on Linux.
func parseScripts(b []byte) ([]script, error) {
	if len(b) > maxEntryPointsBytes || !utf8.Valid(b) {
		return nil, wheelErr("its entry_points.txt is too long or not UTF-8")
	}
	var out []script
	seen := map[string]bool{}
	section := ""
	for raw := range bytes.Lines(b) {
		line := strings.TrimSpace(string(raw))
		if line == "" || line[0] == '#' || line[0] == ';' {
			continue
		}
		if line[0] == '[' && line[len(line)-1] == ']' {
			section = line[1 : len(line)-1]
			continue
		}
		if section != "console_scripts" && section != "gui_scripts" {
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		if !ok {
			return nil, wheelErr("its entry_points.txt has the line %.200q, which names no function", line)
		}
		s, err := parseScript(strings.TrimSpace(name), strings.TrimSpace(value))
		if err != nil {
			return nil, wheelErr("its entry_points.txt asks for the program %.200q: %w", name, err)
		}
		if seen[s.name] || len(out) == maxScripts {
			return nil, wheelErr("its entry_points.txt asks for the program %.200q twice, or for too many", name)
		}
		seen[s.name] = true
		out = append(out, s)
	}
	return out, nil
}

func parseScript(name, value string) (script, error) {
	if err := checkName(name); err != nil {
		return script{}, err
	}
	if path.Base(name) != name || len(name) > maxScriptName || name[0] == '.' {
		return script{}, fmt.Errorf("that is no name of a program")
	}
	m := reference.FindStringSubmatch(value)
	if m == nil || m[2] == "" {
		return script{}, fmt.Errorf("%.200q names no function", value)
	}
	return script{name, m[1], m[2]}, nil
}

// text is the program, as pip writes it.
func (s script) text() []byte {
	name, _, _ := strings.Cut(s.function, ".")
	return fmt.Appendf(nil, `#!%s
import sys
from %s import %s
if __name__ == '__main__':
    sys.argv[0] = sys.argv[0].removesuffix('.exe')
    sys.exit(%s())
`, Interpreter, s.module, name, s.function)
}
