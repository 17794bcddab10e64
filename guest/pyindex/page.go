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
	maxPageBytes    = 64 << 20
	maxPageFiles    = 200_000
	maxTokenBytes   = 1 << 20
	maxAddressBytes = 4 << 10 // signed ones have some 2 KiB
	maxFileBytes    = 255     // of a file's name; what is longer is passed over
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

// link is a file that a page names. Its address is made when it is wanted: a page can
// have many links, and all of them count from an address that is long.
type link struct {
	file           string
	ref            string   // the address as the page has it, without its fragment
	base           *url.URL // what ref counts from
	from           *url.URL // where the page came from
	sha256         string   // lower case; "" where the page does not say
	requiresPython string
	yanked         bool
	reason         string // of yanked
	bytes          int64  // 0 where the page does not say
}

// url is the address, without credentials and fragment, or nil where it is none of
// http or https.
func (l link) url() *url.URL { return resolve(l.base, l.ref) }

// parsePage reads a project's page; base is where it came from. What can have no http
// or https address is left out.
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

// simpleFile is what is read of a file in PEP 691's JSON, with PEP 700's size.
type simpleFile struct {
	Filename string `json:"filename"`
	URL      string `json:"url"`
	Hashes   struct {
		SHA256 string `json:"sha256"`
	} `json:"hashes"`
	RequiresPython string          `json:"requires-python"`
	Yanked         json.RawMessage `json:"yanked"`
	Size           int64           `json:"size"`
}

// ignored is a value that is passed over.
type ignored struct{}

func (*ignored) UnmarshalJSON([]byte) error { return nil }

// parseJSON goes through the page file by file: what a page may hold is bounded before
// it is kept.
func parseJSON(body []byte, base *url.URL) ([]link, error) {
	p := jsonReader{dec: json.NewDecoder(bytes.NewReader(body)), base: base}
	if err := p.read(); err != nil {
		if errors.Is(err, errPage) {
			return nil, err
		}
		return nil, fmt.Errorf("%w: %w", errPage, err)
	}
	return p.links, checkVersion(p.version)
}

// jsonReader is a page on its way in.
type jsonReader struct {
	dec     *json.Decoder
	base    *url.URL
	version string
	files   int
	links   []link
}

func (p *jsonReader) read() error {
	if err := p.expect('{'); err != nil {
		return err
	}
	for p.dec.More() {
		key, err := p.dec.Token()
		if err != nil {
			return err
		}
		switch key {
		case "meta":
			var meta struct {
				Version string `json:"api-version"`
			}
			err = p.dec.Decode(&meta)
			p.version = meta.Version
		case "files":
			err = p.readFiles()
		default:
			err = p.dec.Decode(&ignored{})
		}
		if err != nil {
			return err
		}
	}
	if err := p.expect('}'); err != nil {
		return err
	}
	if _, err := p.dec.Token(); err != io.EOF {
		return errors.New("there is more behind its end")
	}
	return nil
}

func (p *jsonReader) expect(want json.Delim) error {
	t, err := p.dec.Token()
	if err == nil && t != want {
		err = fmt.Errorf("%.20v where %v should be", t, want)
	}
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return err
}

func (p *jsonReader) readFiles() error {
	if err := p.expect('['); err != nil {
		return err
	}
	for p.dec.More() {
		if p.files++; p.files > maxPageFiles {
			return fmt.Errorf("%w: more than %d files", errPage, maxPageFiles)
		}
		var f simpleFile
		if err := p.dec.Decode(&f); err != nil {
			return err
		}
		if err := p.add(f); err != nil {
			return err
		}
	}
	return p.expect(']')
}

func (p *jsonReader) add(f simpleFile) error {
	ok, err := mayFollow(f.URL)
	if !ok || len(f.Filename) > maxFileBytes {
		return err
	}
	l := link{file: f.Filename, ref: f.URL, base: p.base, from: p.base, requiresPython: f.RequiresPython, bytes: max(f.Size, 0)}
	l.sha256 = cleanSHA256(f.Hashes.SHA256)
	l.yanked, l.reason = parseYanked(f.Yanked)
	p.links = append(p.links, l)
	return nil
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
	anchors := 0
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
			href := attributes(z, more)["href"]
			if _, err := mayFollow(href); err != nil {
				return nil, err
			}
			if u := resolve(base, href); u != nil {
				base, based = u, true
			}
		case tag == "meta":
			if a := attributes(z, more); a["name"] == "pypi:repository-version" {
				if err := checkVersion(a["content"]); err != nil {
					return nil, err
				}
			}
		case tag == "a":
			l, ok, err := anchor(base, from, attributes(z, more))
			if err != nil {
				return nil, err
			}
			if ok {
				links = append(links, l)
			}
			if anchors++; anchors > maxPageFiles {
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
func anchor(base, from *url.URL, a map[string]string) (l link, ok bool, err error) {
	ref, fragment, _ := strings.Cut(strings.TrimSpace(a["href"]), "#")
	if ok, err = mayFollow(ref); !ok {
		return link{}, false, err
	}
	u, err := url.Parse(ref)
	if err != nil {
		return link{}, false, nil
	}
	l = link{file: path.Base(u.Path), ref: ref, base: base, from: from, requiresPython: a["data-requires-python"]}
	if len(l.file) > maxFileBytes {
		return link{}, false, nil
	}
	l.reason, l.yanked = a["data-yanked"]
	for part := range strings.SplitSeq(fragment, "&") {
		if digest, ok := strings.CutPrefix(part, "sha256="); ok {
			l.sha256 = cleanSHA256(digest)
		}
	}
	return l, true, nil
}

// mayFollow tells whether a page's address can be one of http or https. One that is
// too long is an error.
func mayFollow(ref string) (bool, error) {
	if len(ref) > maxAddressBytes {
		return false, fmt.Errorf("%w: it names an address of %d bytes; one has %d at most", errPage, len(ref), maxAddressBytes)
	}
	if ref == "" {
		return false, nil
	}
	u, err := url.Parse(ref)
	return err == nil && (u.Scheme == "" || u.Scheme == "https" || u.Scheme == "http"), nil
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
