package pyindex

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/url"
	"path"
	"strings"

	"golang.org/x/net/html"

	"github.com/pybox/pybox/guest/internal/printable"
)

// Bounds on a page. The largest of the public index are some 20 MiB.
const (
	maxPageBytes  = 64 << 20
	maxPageFiles  = 200_000
	maxTokenBytes = 1 << 20
)

// Types of pages, and what is said about which is liked best.
const (
	typeJSON   = "application/vnd.pypi.simple.v1+json"
	typeHTML   = "application/vnd.pypi.simple.v1+html"
	typeLegacy = "text/html"
	accept     = typeJSON + ", " + typeHTML + ";q=0.2, " + typeLegacy + ";q=0.01"
)

// errPage is matched by errors about a page that is not as it should be.
var errPage = errors.New("not a page of a package index")

// link is a file that a page names.
type link struct {
	file           string
	url            *url.URL // absolute, without credentials and fragment
	barred         bool     // the page may not name that address
	sha256         string   // lower case; "" where the page does not say
	requiresPython string
	yanked         bool
	reason         string // of yanked
	bytes          int64  // 0 where the page does not say
}

// parsePage reads a project's page; base is where it came from. What has no http or
// https address is left out.
func parsePage(contentType string, body []byte, base *url.URL) ([]link, error) {
	kind, params, err := mime.ParseMediaType(contentType)
	if err != nil {
		kind = contentType
	}
	switch kind {
	case typeJSON:
		return parseJSON(body, base)
	case typeHTML, typeLegacy:
		if cs := params["charset"]; cs != "" && !strings.EqualFold(cs, "utf-8") && !strings.EqualFold(cs, "us-ascii") {
			return nil, fmt.Errorf("%w: its charset is %.40q", errPage, cs)
		}
		return parseHTML(body, base)
	}
	return nil, fmt.Errorf("%w: its type is %.80q; the address of an index often ends in /simple", errPage, contentType)
}

// simplePage is what is read of PEP 691's JSON, with PEP 700's size.
type simplePage struct {
	Meta struct {
		Version string `json:"api-version"`
	} `json:"meta"`
	Files []struct {
		Filename       string            `json:"filename"`
		URL            string            `json:"url"`
		Hashes         map[string]string `json:"hashes"`
		RequiresPython string            `json:"requires-python"`
		Yanked         json.RawMessage   `json:"yanked"`
		Size           int64             `json:"size"`
	} `json:"files"`
}

func parseJSON(body []byte, base *url.URL) ([]link, error) {
	var page simplePage
	if err := json.Unmarshal(body, &page); err != nil {
		return nil, fmt.Errorf("%w: %w", errPage, err)
	}
	if err := checkVersion(page.Meta.Version); err != nil {
		return nil, err
	}
	if len(page.Files) > maxPageFiles {
		return nil, fmt.Errorf("%w: more than %d files", errPage, maxPageFiles)
	}
	links := make([]link, 0, len(page.Files))
	for _, f := range page.Files {
		u := resolve(base, f.URL)
		if u == nil {
			continue
		}
		l := link{file: f.Filename, url: u, barred: !mayLink(base, u), requiresPython: f.RequiresPython, bytes: max(f.Size, 0)}
		l.sha256 = cleanSHA256(f.Hashes["sha256"])
		l.yanked, l.reason = parseYanked(f.Yanked)
		links = append(links, l)
	}
	return links, nil
}

// parseYanked reads a boolean or a reason.
func parseYanked(raw json.RawMessage) (bool, string) {
	var reason string
	if json.Unmarshal(raw, &reason) == nil && len(raw) > 0 && raw[0] == '"' {
		return true, reason
	}
	return bytes.Equal(raw, []byte("true")), ""
}

// checkVersion refuses pages of an API that is not ours; none is the first.
func checkVersion(v string) error {
	if major, _, _ := strings.Cut(cmp.Or(v, "1.0"), "."); major != "1" {
		return fmt.Errorf("%w: it speaks version %.20q of the API, and 1 is what is known here", errPage, v)
	}
	return nil
}

// parseHTML reads PEP 503's page: every link is a file. It goes through the tokens,
// so that the page's depth does not matter.
func parseHTML(body []byte, base *url.URL) ([]link, error) {
	z := html.NewTokenizer(bytes.NewReader(body))
	z.SetMaxBuf(maxTokenBytes)
	var links []link
	from, based := base, false
	for {
		switch z.Next() {
		case html.ErrorToken:
			if errors.Is(z.Err(), io.EOF) {
				return links, nil
			}
			return nil, fmt.Errorf("%w: %w", errPage, z.Err())
		case html.StartTagToken, html.SelfClosingTagToken:
		default:
			continue
		}
		name, more := z.TagName()
		switch tag := string(name); {
		case tag == "base" && !based:
			if u := resolve(base, attributes(z, more)["href"]); u != nil {
				base, based = u, true
			}
		case tag == "meta":
			if a := attributes(z, more); a["name"] == "pypi:repository-version" {
				if err := checkVersion(a["content"]); err != nil {
					return nil, err
				}
			}
		case tag == "a":
			if l, ok := anchor(base, from, attributes(z, more)); ok {
				links = append(links, l)
			}
			if len(links) > maxPageFiles {
				return nil, fmt.Errorf("%w: more than %d links", errPage, maxPageFiles)
			}
		}
	}
}

// attributes are those of the tag that the tokenizer is at; the first of a name
// counts.
func attributes(z *html.Tokenizer, more bool) map[string]string {
	a := map[string]string{}
	for more {
		var key, value []byte
		key, value, more = z.TagAttr()
		if _, twice := a[string(key)]; !twice && len(a) < 64 {
			a[string(key)] = string(value)
		}
	}
	return a
}

// anchor makes a link of an <a>. The page came from an address that need not be the
// base of its links.
func anchor(base, from *url.URL, a map[string]string) (link, bool) {
	href, ok := a["href"]
	if !ok {
		return link{}, false
	}
	href, fragment, _ := strings.Cut(strings.TrimSpace(href), "#")
	u := resolve(base, href)
	if u == nil {
		return link{}, false
	}
	l := link{file: path.Base(u.Path), url: u, barred: !mayLink(from, u), requiresPython: a["data-requires-python"]}
	l.reason, l.yanked = a["data-yanked"]
	for part := range strings.SplitSeq(fragment, "&") {
		if digest, ok := strings.CutPrefix(part, "sha256="); ok {
			l.sha256 = cleanSHA256(digest)
		}
	}
	return l, true
}

// resolve makes the address of a link, or nil where it is none of http or https.
func resolve(base *url.URL, ref string) *url.URL {
	if ref == "" {
		return nil
	}
	r, err := url.Parse(ref)
	if err != nil {
		return nil
	}
	u := base.ResolveReference(r)
	if u.Scheme != "https" && u.Scheme != "http" || u.Host == "" {
		return nil
	}
	u.User, u.Fragment, u.RawFragment = nil, "", ""
	return u
}

// cleanSHA256 is a digest in lower case, or "" where it is none.
func cleanSHA256(s string) string {
	s = strings.ToLower(s)
	if len(s) != 64 || strings.Trim(s, "0123456789abcdef") != "" {
		return ""
	}
	return s
}

// reasonText is what is shown of why a file was withdrawn.
func (l link) reasonText() string {
	if !l.yanked {
		return ""
	}
	text := strings.Join(strings.Fields(l.reason), " ")
	if text == "" {
		return "no reason is given"
	}
	if len(text) > 200 {
		text = strings.ToValidUTF8(text[:200], "") + "…"
	}
	return printable.Text(text)
}
