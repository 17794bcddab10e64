package fetch

import (
	"context"
	"errors"
	"net/http"
)

// StatusError is nil for answers of 200 and 206, and says of others what they mean;
// gone is what to do where the file is not there. It matches ErrStatus, and is
// transient where time may help: then Retry waits as long as the server asks.
func StatusError(resp *http.Response, gone string) error { return statusError(resp, gone) }

// RequestError sorts what an HTTP client reports of a request, or of reading its
// answer, and leaves the address out. ctx is the request's own. The error matches
// ctx's, or ErrRedirect, ErrCut, ErrStalled or ErrConnect.
func RequestError(ctx context.Context, err error) error { return requestError(ctx, err) }

// IsTransient tells whether an error is about a fault that may pass.
func IsTransient(err error) bool {
	var soft *transientError
	return errors.As(err, &soft)
}
