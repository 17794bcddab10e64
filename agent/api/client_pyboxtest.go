//go:build pyboxtest

package api

import (
	"context"
	"fmt"
	"io"
	"net/http"
)

// TestPath leads the paths of what only test builds of the agent answer.
const TestPath = "/pyboxtest/"

// Test asks the agent's test build for what, with a query.
func (c *Client) Test(ctx context.Context, what, query string) error {
	_, err := c.TestOutput(ctx, what, query)
	return err
}

// TestOutput is Test, and gives the answer's text.
func (c *Client) TestOutput(ctx context.Context, what, query string) (string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, baseURL+TestPath+what+"?"+query, http.NoBody)
	if err != nil {
		return "", err
	}
	response, err := (doer{c}).Do(r)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	b, err := io.ReadAll(io.LimitReader(response.Body, 64<<10))
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %q", what, response.Status, b)
	}
	return string(b), err
}
