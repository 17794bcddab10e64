package fetch

import (
	"bufio"
	"bytes"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pybox/pybox/guest/debian"
)

// Bounds of apt's configuration, which only root can write but which may be
// anything at all.
const (
	maxAptFiles     = 64
	maxAptFileBytes = 1 << 20
	maxAptBases     = 16
)

// AptMirrors returns the archive bases that apt is set up with in root (the
// folder that holds sources.list, usually /etc/apt), in the order of the files.
// Both formats of sources.list(5) are read. A base is an http or https address
// whose path ends in "/debian" or "/debian-security". What cannot be read or
// understood is passed over: these are only hints where to ask.
func AptMirrors(root string) []string {
	files := []string{filepath.Join(root, "sources.list")}
	for _, pattern := range []string{"*.list", "*.sources"} {
		more, _ := filepath.Glob(filepath.Join(root, "sources.list.d", pattern))
		slices.Sort(more)
		files = append(files, more...)
	}
	var bases []string
	for i, f := range files {
		if i == maxAptFiles {
			break
		}
		for _, uri := range aptFileURIs(f) {
			if base, ok := archiveBase(uri); ok && !slices.Contains(bases, base) && len(bases) < maxAptBases {
				bases = append(bases, base)
			}
		}
	}
	return bases
}

func aptFileURIs(file string) []string {
	f, err := os.Open(file)
	if err != nil {
		return nil
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxAptFileBytes))
	if err != nil {
		return nil
	}
	if filepath.Ext(file) == ".sources" {
		return parseDeb822Sources(b)
	}
	return parseOneLineSources(b)
}

// parseOneLineSources reads "deb [option=value …] URI suite component…".
func parseOneLineSources(b []byte) (uris []string) {
	s := bufio.NewScanner(bytes.NewReader(b))
	for s.Scan() {
		line, _, _ := strings.Cut(s.Text(), "#")
		rest, ok := strings.CutPrefix(strings.TrimSpace(line), "deb")
		if !ok || rest == "" || rest[0] != ' ' && rest[0] != '\t' && rest[0] != '[' {
			continue
		}
		rest = strings.TrimSpace(rest)
		if strings.HasPrefix(rest, "[") {
			_, rest, _ = strings.Cut(rest, "]")
		}
		if f := strings.Fields(rest); len(f) >= 2 {
			uris = append(uris, f[0])
		}
	}
	return uris
}

// parseDeb822Sources reads paragraphs with Types, URIs and Enabled.
func parseDeb822Sources(b []byte) (uris []string) {
	_ = debian.ReadParagraphs(bytes.NewReader(b), func(p debian.Paragraph) error {
		off := slices.Contains([]string{"no", "false", "off", "0"}, strings.ToLower(p["Enabled"]))
		if !off && slices.Contains(strings.Fields(p["Types"]), "deb") {
			uris = append(uris, strings.Fields(p["URIs"])...)
		}
		return nil
	})
	return uris
}

// archiveBase says whether uri is the base of one of Debian's archives.
func archiveBase(uri string) (string, bool) {
	u, err := url.Parse(strings.TrimRight(uri, "/"))
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.RawQuery != "" || u.Fragment != "" {
		return "", false
	}
	return u.String(), archiveOf(u.Path) != ""
}

// archiveOf is the archive that a base's path stands for, or "".
func archiveOf(path string) string {
	for _, a := range []string{debian.ArchiveMain, debian.ArchiveSecurity} {
		if path == a || strings.HasSuffix(path, "/"+a) {
			return a
		}
	}
	return ""
}
