package pyindex

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
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
	defaultTimeout = 90 * time.Second
)

// Sentinels beside those of package fetch.
var (
	errLate  = errors.New("it did not answer in time")
	errLogin = errors.New("a name and password may be missing in --index-url")
)

// elsewhere is an error of a host that an index sent us to.
type elsewhere struct {
	host string
	err  error
}

func (e *elsewhere) Error() string {
	return fmt.Sprintf("%.200s, to which it redirects: %v", e.host, e.err)
}
func (e *elsewhere) Unwrap() error { return e.err }

// fault is whose an error is.
type fault int

const (
	faultNone     fault = iota // there is none, or the project is not known
	faultOfPage                // one project's
	faultOfHost                // the index cannot be reached
	faultOfEither              // the index has trouble, at least with this project
)

func faultOf(err error) fault {
	var other *elsewhere
	switch {
	case err == nil, errors.Is(err, fetch.ErrGone):
		return faultNone
	case errors.As(err, &other), errors.Is(err, errPage):
		return faultOfPage
	case errors.Is(err, fetch.ErrConnect):
		return faultOfHost
	case errors.Is(err, errLate), errors.Is(err, errLogin), fetch.IsTransient(err):
		return faultOfEither
	}
	return faultOfPage
}

// project asks an index for a project's files. The error matches fetch.ErrGone where it
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
	f := fetch.Fetcher{Tries: cmp.Or(c.o.tries, defaultTries), Backoff: c.o.backoff}
	return f.Retry(ctx, fn)
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
		at := req.URL
		var ue *url.Error
		if errors.As(err, &ue) {
			if u, e := url.Parse(ue.URL); e == nil {
				at = u
			}
		}
		return nil, byHost(req.URL, at, requestError(ctx, err))
	}
	if err := statusError(resp); err != nil {
		_ = resp.Body.Close()
		return nil, byHost(req.URL, resp.Request.URL, err)
	}
	return resp, nil
}

// byHost marks an error of another server than the one that was asked.
func byHost(asked, at *url.URL, err error) error {
	if origin(asked) == origin(at) || errors.Is(err, fetch.ErrRedirect) {
		return err
	}
	return &elsewhere{at.Host, err}
}

// statusError says what an answer means, nil for 200 and 206.
func statusError(resp *http.Response) error {
	err := fetch.StatusError(resp, goneAdvice)
	switch resp.StatusCode {
	case http.StatusUnauthorized:
		return fmt.Errorf("%w: %w", err, errLogin)
	case http.StatusProxyAuthRequired:
		return fmt.Errorf("%w: %w", fetch.ErrConnect, err)
	case http.StatusForbidden:
		return fmt.Errorf("%w: %v", err, errLogin) // for this project perhaps
	}
	return err
}

// requestError sorts what the HTTP client reports, without the address, which may
// have a secret in it.
func requestError(ctx context.Context, err error) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("%w: %w", errLate, ctx.Err())
	}
	return fetch.RequestError(ctx, err)
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
	if fetch.IsTransient(err) || errors.Is(err, fetch.ErrGone) || ctx.Err() != nil {
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
