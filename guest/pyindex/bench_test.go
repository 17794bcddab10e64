package pyindex

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/pybox/pybox/guest/pep508"
	"github.com/pybox/pybox/guest/pylock"
)

// BenchmarkChoose looks for 30 packages of which an index has 4,000 files each, as
// the public one has of the largest.
func BenchmarkChoose(b *testing.B) {
	const packages, versions = 30, 1000
	pages := map[string][]byte{}
	var lock strings.Builder
	digest := strings.Repeat("0123456789abcdef", 4)
	for p := range packages {
		var page bytes.Buffer
		page.WriteString(`{"meta":{"api-version":"1.1"},"files":[{}`)
		for v := range versions {
			for _, tag := range []string{"cp313-cp313-manylinux_2_28_x86_64", "cp313-cp313-macosx_14_0_arm64", "cp312-cp312-manylinux_2_28_x86_64", "cp313-cp313-win_amd64"} {
				name := fmt.Sprintf("p%d-1.%d-%s.whl", p, v, tag)
				fmt.Fprintf(&page, `,{"filename":"%s","url":"https://files.example.org/packages/%s/%s","hashes":{"sha256":"%s"},"size":1000,"requires-python":">=3.9","yanked":false}`, name, digest, name, digest)
			}
		}
		page.WriteString("]}")
		pages[fmt.Sprintf("/simple/p%d/", p)] = page.Bytes()
		fmt.Fprintf(&lock, "p%d==1.500 --hash=sha256:%s\n", p, digest)
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", typeJSON)
		_, _ = w.Write(pages[r.URL.Path])
	}))
	defer srv.Close()
	l, err := pylock.Parse("requirements.txt", []byte(lock.String()), pep508.Guest("3.13.5", "x86_64"))
	if err != nil {
		b.Fatal(err)
	}
	c, err := New(Options{Cache: b.TempDir(), IndexURL: srv.URL + "/simple"})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if chosen, err := c.Choose(b.Context(), l, guest); err != nil || len(chosen) != packages {
			b.Fatal(err)
		}
	}
}

// BenchmarkFetch brings 30 wheels of 200 MB together from this machine into an empty
// cache; "hashes" is how many times as long as reading them once through SHA-256.
func BenchmarkFetch(b *testing.B) {
	const wheels, bytesEach = 30, 200 << 20 / 30
	content := make([][]byte, wheels)
	list := make([]Chosen, wheels)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var i int
		if _, err := fmt.Sscanf(r.URL.Path, "/p%d-1.0", &i); err != nil || i >= wheels {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/octet-stream")
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content[i]))
	}))
	defer srv.Close()
	begin := time.Now()
	for i := range wheels {
		content[i] = bytes.Repeat([]byte{byte(i)}, bytesEach)
		sum := sha256.Sum256(content[i])
		name := fmt.Sprintf("p%d-1.0-py3-none-any.whl", i)
		list[i] = Chosen{File: name, URL: srv.URL + "/" + name, SHA256: hex.EncodeToString(sum[:]), Bytes: bytesEach}
	}
	once := time.Since(begin)
	b.SetBytes(wheels * bytesEach)
	for b.Loop() {
		c, err := New(Options{Cache: b.TempDir(), IndexURL: srv.URL})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := c.Fetch(b.Context(), list, nil); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(b.Elapsed().Seconds()/float64(b.N)/once.Seconds(), "hashes")
}
