package ociimage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/pybox/pybox/guest/fetch"
)

const (
	handshakeTimeout = time.Minute
	maxHandshake     = 1 << 20 // bytes of one answer
	archive          = "registry"
	registryGone     = "check the reference; for some registries an image that is not public is one that is not there"
	registryAdvice   = "check the reference, the network and HTTPS_PROXY; for a registry that asks for a name and a password set PYBOX_REGISTRY_USER and PYBOX_REGISTRY_PASSWORD"
)

// registry is a repository of a registry, by the protocol of
// https://github.com/opencontainers/distribution-spec.
type registry struct {
	fetcher  *fetch.Fetcher
	progress func(fetch.Progress)
}

// openRegistry makes the first contact: what the registry wants to be asked with.
func openRegistry(ctx context.Context, o Options) (store, error) {
	d, err := name.NewDigest(o.Source.Where + "@" + o.Source.Digest)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrReference, err)
	}
	repo := d.Context()
	f := &fetch.Fetcher{Dir: o.CacheDir, Log: o.Log, Gone: registryGone, Advice: registryAdvice}
	if o.fetcher != nil {
		o.fetcher(f)
	}
	local := isLoopback(repo.RegistryStr())
	rt, err := meet(ctx, f, repo, o)
	if err != nil {
		return nil, err
	}
	scheme := "https"
	if local && repo.Scheme() == "http" {
		scheme = "http" // the transport changes it where the registry answered to https
	}
	src, err := fetch.At(repo.RegistryStr(), archive, scheme+"://"+repo.RegistryStr()+"/v2/"+repo.RepositoryStr())
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrReference, err)
	}
	f.Sources = []fetch.Source{src}
	f.Client = &http.Client{Transport: accepting{rt}, CheckRedirect: fetch.NewClient().CheckRedirect}
	return &registry{fetcher: f, progress: o.Progress}, nil
}

func credentials(o Options) authn.Authenticator {
	if o.Username == "" && o.Password == "" {
		return authn.Anonymous
	}
	return &authn.Basic{Username: o.Username, Password: o.Password}
}

// meet makes the first contact, as often as a download is tried.
func meet(ctx context.Context, f *fetch.Fetcher, repo name.Repository, o Options) (rt http.RoundTripper, err error) {
	base := o.Transport
	if base == nil {
		base = fetch.NewClient().Transport
	}
	g := &guard{base: base, local: isLoopback(repo.RegistryStr())}
	err = f.Retry(ctx, func() (err error) {
		shake, cancel := context.WithTimeout(context.WithValue(ctx, handshake{}, true), handshakeTimeout)
		defer cancel()
		rt, err = transport.NewWithContext(shake, repo.Registry, credentials(o), g, []string{repo.Scope(transport.PullScope)})
		return judge(err)
	})
	switch {
	case err == nil:
		return rt, nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	}
	return nil, &fetch.SourcesError{File: "the image", Advice: registryAdvice,
		Attempts: []fetch.Attempt{{Source: "the registry", URL: repo.Name(), Err: err}}}
}

// judge sorts what the first contact failed with.
func judge(err error) error {
	var answer *transport.Error
	var dns *net.DNSError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &answer):
		return judgeAnswer(answer, err)
	case errors.Is(err, fetch.ErrInsecure):
		return fmt.Errorf("%w by https, and a registry that is not on this machine is asked by nothing else: %w", fetch.ErrConnect, printable(err))
	case errors.Is(err, fetch.ErrRedirect), errors.Is(err, ErrTooBig):
		return printable(err)
	case errors.As(err, &dns) && dns.IsNotFound:
		return fmt.Errorf("%w: %w", fetch.ErrConnect, printable(err))
	}
	return fetch.Transient(fmt.Errorf("%w: %w", fetch.ErrConnect, printable(err)))
}

// judgeAnswer sorts an answer of the registry or its token service.
func judgeAnswer(a *transport.Error, err error) error {
	switch code := a.StatusCode; {
	case code == http.StatusUnauthorized, code == http.StatusForbidden:
		return fmt.Errorf("%w %d: the name and the password, or none, are not taken: %w", fetch.ErrStatus, code, printable(err))
	case code == http.StatusRequestTimeout, code == http.StatusTooManyRequests, code >= 500:
		return fetch.Transient(fmt.Errorf("%w %d: the registry has trouble; try again later: %w", fetch.ErrStatus, code, printable(err)))
	}
	return fmt.Errorf("%w %d: %w", fetch.ErrStatus, a.StatusCode, printable(err))
}

// Close implements store.
func (r *registry) Close() error { return nil }

// small implements store.
func (r *registry) small(ctx context.Context, digest string, manifest bool, max int64) ([]byte, error) {
	kind := "blobs"
	if manifest {
		kind = "manifests"
	}
	b, err := r.fetcher.Fresh(ctx, archive, kind+"/"+digest, max)
	return b, notThere(err)
}

// notThere makes what a registry has not match ErrNotFound too.
func notThere(err error) error {
	if errors.Is(err, fetch.ErrGone) {
		return fmt.Errorf("%w: %w", ErrNotFound, err)
	}
	return err
}

// layers implements store. What is downloaded is verified.
func (r *registry) layers(ctx context.Context, list []stored) ([]opener, error) {
	items, labels := make([]fetch.Item, 0, len(list)), map[string]string{}
	for i, l := range list {
		labels[l.Digest] = fmt.Sprintf("layer %d of %d", i+1, len(list))
		items = append(items, fetch.Item{Archive: archive, Path: "blobs/" + l.Digest, Bytes: l.Bytes, SHA256: strings.TrimPrefix(l.Digest, digestPrefix)})
	}
	f := *r.fetcher
	if r.progress != nil {
		f.Progress = func(p fetch.Progress) {
			p.File = labels[p.File]
			r.progress(p)
		}
	}
	files, err := f.GetAll(ctx, items)
	if err != nil {
		return nil, notThere(err)
	}
	out := make([]opener, 0, len(files))
	for _, f := range files {
		out = append(out, func() (io.ReadCloser, error) { return os.Open(f) })
	}
	return out, nil
}

// accepting asks for the kinds of manifests that are known here.
type accepting struct{ http.RoundTripper }

func (a accepting) RoundTrip(in *http.Request) (*http.Response, error) {
	r := in.Clone(in.Context())
	if strings.Contains(r.URL.Path, "/manifests/") {
		for _, t := range []types.MediaType{types.OCIImageIndex, types.OCIManifestSchema1, types.DockerManifestList, types.DockerManifestSchema2} {
			r.Header.Add("Accept", string(t))
		}
	}
	resp, err := a.RoundTripper.RoundTrip(r)
	var answer *transport.Error // of the token service, when a token was used up
	if errors.As(err, &answer) {
		return nil, judgeAnswer(answer, err)
	}
	return resp, err
}

// handshake marks the context of requests whose answers are short.
type handshake struct{}

// guard keeps requests off the clear: plain http is for a registry on this machine,
// and stays there.
type guard struct {
	base  http.RoundTripper
	local bool
}

func (g *guard) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != "https" && !(g.local && isLoopback(r.URL.Host)) {
		if r.Body != nil {
			r.Body.Close()
		}
		return nil, fmt.Errorf("%w: %s://%s is not on this machine", fetch.ErrInsecure, r.URL.Scheme, r.URL.Host)
	}
	resp, err := g.base.RoundTrip(r)
	if err == nil && r.Context().Value(handshake{}) != nil {
		resp.Body = &capped{ReadCloser: resp.Body, left: maxHandshake}
	}
	return resp, err
}

// capped fails instead of reading for ever.
type capped struct {
	io.ReadCloser
	left int64
}

func (c *capped) Read(p []byte) (int, error) {
	if c.left <= 0 {
		return 0, fmt.Errorf("%w: an answer of more than %d bytes", ErrTooBig, maxHandshake)
	}
	n, err := c.ReadCloser.Read(p[:min(int64(len(p)), c.left)])
	c.left -= int64(n)
	return n, err
}

// isLoopback tells by the text of HOST or HOST:PORT whether it is this machine.
func isLoopback(hostport string) bool {
	host := hostport
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		host = h
	}
	host = strings.Trim(host, "[]")
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// printable bounds and escapes a text that a server may have written.
func printable(err error) error {
	return &escaped{text: escape(err.Error(), 500), err: err}
}

type escaped struct {
	text string
	err  error
}

func (e *escaped) Error() string { return e.text }
func (e *escaped) Unwrap() error { return e.err }

// escape makes a text fit for a terminal, of about max bytes.
func escape(s string, max int) string {
	if len(s) > max {
		s = s[:max] + "…"
	}
	q := fmt.Sprintf("%+q", s)
	return strings.ReplaceAll(q[1:len(q)-1], `\"`, `"`)
}
