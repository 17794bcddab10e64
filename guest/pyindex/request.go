package pyindex

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/pybox/pybox/guest/fetch"
)

// Defaults of requests for pages. The time is for one request with its body.
const (
	defaultTries   = 3
	defaultBackoff = 500 * time.Millisecond
	defaultTimeout = 90 * time.Second
	maxBackoff     = 10 * time.Second
)

// errNotThere: the server does not know the project.
var errNotThere = errors.New("the server does not have it")

// passing marks a fault that may pass.
type passing struct{ error }

func (p passing) Unwrap() error { return p.error }

// project asks an index for a project's files. The error matches errNotThere where it
// has none of that name.
func (c *Client) project(ctx context.Context, p *place, name string) (links []link, err error) {
	err = c.retry(ctx, func() error {
		links, err = c.projectOnce(ctx, p, name)
		return err
	})
	return links, err
}

// retry calls fn until it succeeds, or fails with what time does not mend.
func (c *Client) retry(ctx context.Context, fn func() error) error {
	pause := cmp.Or(c.o.backoff, defaultBackoff)
	for try := 1; ; try++ {
		err := fn()
		var soft passing
		if err == nil || !errors.As(err, &soft) || ctx.Err() != nil || try == cmp.Or(c.o.tries, defaultTries) {
			return err
		}
		wait := time.NewTimer(min(pause, maxBackoff))
		pause *= 2
		select {
		case <-wait.C:
		case <-ctx.Done():
			wait.Stop()
			return ctx.Err()
		}
	}
}

func (c *Client) projectOnce(ctx context.Context, p *place, name string) ([]link, error) {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(c.o.timeout, defaultTimeout))
	defer cancel()
	resp, err := c.request(ctx, http.MethodGet, p.project(name), p, "Accept", accept)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxPageBytes+1))
	switch {
	case err != nil:
		return nil, requestError(ctx, err)
	case len(body) > maxPageBytes:
		return nil, fmt.Errorf("%w: it is larger than %d MiB", errPage, maxPageBytes>>20)
	}
	base := *resp.Request.URL
	return parsePage(resp.Header.Get("Content-Type"), body, &base)
}

// request asks, and takes answers of 200 and 206. The credentials are p's.
func (c *Client) request(ctx context.Context, method, address string, p *place, header ...string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, address, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("User-Agent", userAgent)
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := c.withCredentials(p).Do(req)
	if err != nil {
		return nil, requestError(ctx, err)
	}
	if err := statusError(resp); err != nil {
		_ = resp.Body.Close()
		return nil, err
	}
	return resp, nil
}

func statusError(resp *http.Response) error {
	code := resp.StatusCode
	text := strconv.Itoa(code) + " " + http.StatusText(code)
	switch {
	case code == http.StatusOK, code == http.StatusPartialContent:
		return nil
	case code == http.StatusNotFound, code == http.StatusGone:
		return errNotThere
	case code == http.StatusUnauthorized, code == http.StatusForbidden:
		return fmt.Errorf("it answered %s: a name and password may be missing in --index-url", text)
	case code == http.StatusProxyAuthRequired:
		return fmt.Errorf("the proxy answered %s: put its name and password into HTTPS_PROXY", text)
	case code == http.StatusTooManyRequests, code == http.StatusRequestTimeout, code >= 500:
		return passing{fmt.Errorf("it answered %s; try again later", text)}
	}
	return fmt.Errorf("it answered %s", text)
}

// requestError sorts what the HTTP client reports, without the address, which may
// have a secret in it.
func requestError(ctx context.Context, err error) error {
	var ue *url.Error
	if errors.As(err, &ue) {
		err = ue.Err
	}
	var dns *net.DNSError
	switch {
	case errors.Is(err, fetch.ErrRedirect):
		return err
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return fmt.Errorf("it did not answer in time: %w", ctx.Err())
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, &dns) && dns.IsNotFound:
		return fmt.Errorf("there is no address for the host %s", dns.Name)
	}
	return passing{err}
}

// sizeOf asks a server how many bytes a file has.
func (c *Client) sizeOf(ctx context.Context, address string, p *place) (size int64, err error) {
	err = c.retry(ctx, func() error {
		size, err = c.sizeOnce(ctx, address, p)
		return err
	})
	return size, err
}

// sizeOnce tries HEAD, and then a GET for the first byte, since some have no HEAD.
func (c *Client) sizeOnce(ctx context.Context, address string, p *place) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(c.o.timeout, defaultTimeout))
	defer cancel()
	resp, err := c.request(ctx, http.MethodHead, address, p, "Accept-Encoding", "identity")
	if err == nil {
		_ = resp.Body.Close()
		if resp.ContentLength > 0 {
			return resp.ContentLength, nil
		}
	}
	var soft passing
	if errors.As(err, &soft) || errors.Is(err, errNotThere) || ctx.Err() != nil {
		return 0, err
	}
	resp, err = c.request(ctx, http.MethodGet, address, p, "Accept-Encoding", "identity", "Range", "bytes=0-0")
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusOK && resp.ContentLength > 0 {
		return resp.ContentLength, nil
	}
	_, total, _ := strings.Cut(resp.Header.Get("Content-Range"), "/")
	if n, err := strconv.ParseInt(total, 10, 64); err == nil && n > 0 {
		return n, nil
	}
	return 0, errors.New("the server does not say how large the file is; download it and give its folder with --find-links")
}
