package fetch

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"path"
)

// Fresh downloads a file whose size and digest are not known beforehand, of at
// most max bytes, without the cache. The caller must verify it otherwise, as
// with a signature. Sources and retries are those of Get.
func (f *Fetcher) Fresh(ctx context.Context, archive, file string, max int64) ([]byte, error) {
	fail := &SourcesError{File: file, Advice: f.Advice}
	for _, s := range f.Sources {
		addr := s.url(archive, file)
		if addr == "" {
			continue
		}
		var body []byte
		err := f.Retry(ctx, func() (err error) {
			body, err = f.freshOnce(ctx, addr, max)
			return err
		})
		if err == nil {
			if f.Progress != nil {
				n := int64(len(body))
				f.Progress(Progress{File: path.Base(file), Source: s.Label, Done: n, Total: n})
			}
			return body, nil
		}
		if ctx.Err() != nil {
			return nil, err
		}
		fail.Attempts = append(fail.Attempts, Attempt{Source: s.Label, URL: redact(addr), Err: err})
	}
	return nil, fail
}

func (f *Fetcher) freshOnce(ctx context.Context, addr string, max int64) ([]byte, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, addr, nil)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConnect, err)
	}
	req.Header.Set("User-Agent", userAgent)
	req.Header.Set("Cache-Control", "no-cache") // a proxy's old list is of no use
	watch := newWatchdog(or(f.StallAfter, DefaultStallAfter), cancel)
	defer watch.stop()
	resp, err := or(f.Client, defaultClient).Do(req)
	if err != nil {
		return nil, requestError(ctx, err)
	}
	defer resp.Body.Close()
	watch.restart()
	if err := statusError(resp, f.Gone); err != nil {
		return nil, err
	}
	if hint := pageHint(resp); hint != "" {
		return nil, fmt.Errorf("%w: it answered%s", ErrContent, hint)
	}
	b, err := io.ReadAll(io.LimitReader(readerFunc(func(p []byte) (int, error) {
		n, err := resp.Body.Read(p)
		if n > 0 {
			watch.arrived(n)
		}
		return n, err
	}), max+1))
	if err != nil {
		return nil, requestError(ctx, err)
	}
	if int64(len(b)) > max {
		return nil, fmt.Errorf("%w: it sent more than %d bytes", ErrContent, max)
	}
	return b, nil
}
