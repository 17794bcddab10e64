package ociimage

import (
	"errors"
	"strings"
	"testing"
)

var someDigest = digestPrefix + strings.Repeat("0a", 32)

func TestParseSource(t *testing.T) {
	for ref, want := range map[string]Source{
		"r.example/a/b@" + someDigest:         {Registry, "r.example/a/b", someDigest},
		"r.example:5000/a:1.2@" + someDigest:  {Registry, "r.example:5000/a", someDigest},
		"localhost:5000/a@" + someDigest:      {Registry, "localhost:5000/a", someDigest},
		"python:3.13-slim@" + someDigest:      {Registry, "index.docker.io/library/python", someDigest},
		"oci:/srv/my images/x@" + someDigest:  {Layout, "/srv/my images/x", someDigest},
		"oci:a@b@" + someDigest:               {Layout, "a@b", someDigest},
		"tar:../saved.tar@" + someDigest:      {Archive, "../saved.tar", someDigest},
		"tar:C:/odd:name.tar@" + someDigest:   {Archive, "C:/odd:name.tar", someDigest},
		"ghcr.example/o/i:v1-x@" + someDigest: {Registry, "ghcr.example/o/i", someDigest},
	} {
		got, err := ParseSource(ref)
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v", ref, got, err)
			continue
		}
		if again, err := ParseSource(got.String()); err != nil || again != got {
			t.Errorf("%s: its text %s means %+v, %v", ref, got, again, err)
		}
	}
}

// TestReferencesWithoutDigest: what is refused says how to find the digest.
func TestReferencesWithoutDigest(t *testing.T) {
	for ref, says := range map[string]string{
		"python:3.13-slim":                      `docker buildx imagetools inspect python:3.13-slim`,
		"r.example/a/b":                         `crane digest r.example/a/b`,
		"oci:/srv/x":                            "index.json",
		"oci:/srv/a@b":                          "index.json",
		"tar:saved.tar":                         "docker image inspect --format {{.Id}}",
		"python@sha256:12":                      "64 digits",
		"python@sha512:" + someDigest[7:]:       "64 digits",
		"python@" + strings.ToUpper(someDigest): "64 digits",
		"@" + someDigest:                        "nothing stands before",
		"oci:@" + someDigest:                    "nothing stands before",
		"UPPER/Case@" + someDigest:              "repository",
		"a\x1b[0m@" + someDigest:                `\x1b`,
		"":                                      "no digest",
		strings.Repeat("a", maxRefBytes+1):      "aaa",
		"https://r.example/a@" + someDigest:     "leave out",
		"r.example/a@" + someDigest + "@" + someDigest: "",
	} {
		if _, err := ParseSource(ref); !errors.Is(err, ErrReference) || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "\x1b") {
			t.Errorf("%.80q: %v", ref, err)
		}
	}
}

func FuzzParseSource(f *testing.F) {
	for _, s := range []string{"a@" + someDigest, "oci:x@" + someDigest, "tar:x", "a:b/c@d", "[::1]:5000/a@" + someDigest} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, ref string) {
		s, err := ParseSource(ref)
		if err != nil {
			if !errors.Is(err, ErrReference) {
				t.Fatal(err)
			}
			return
		}
		if !isDigest(s.Digest) {
			t.Fatalf("digest %q", s.Digest)
		}
		if again, err := ParseSource(s.String()); err != nil || again != s {
			t.Fatalf("%q is %+v, and its text %+v, %v", ref, s, again, err)
		}
	})
}
