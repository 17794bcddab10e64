package provider

import (
	"context"
	"errors"
	"strings"

	"github.com/pybox/pybox/host/repair/model"
)

const (
	// shortKey is the length up to which a key is no secret: local servers are
	// given words such as "none".
	shortKey = 8
	// inPlace is what stands where a key was.
	inPlace = "[key]"
	// maxDetail bounds what is told of an error, in bytes. What is cut before the key
	// is taken out may have half of it.
	maxDetail = 500
)

// discreet takes the key out of all that a provider gives: an answer goes into a box
// and into the history, an error to a terminal.
type discreet struct {
	client model.Client
	key    string
}

// Ask implements model.Client.
func (d *discreet) Ask(ctx context.Context, q model.Question, on func(int)) (*model.Answer, error) {
	a, err := d.client.Ask(ctx, q, on)
	if err != nil {
		return nil, d.failure(ctx, err)
	}
	a.Text = d.without(a.Text)
	return a, nil
}

// Models implements model.Client.
func (d *discreet) Models(ctx context.Context) ([]string, error) {
	names, err := d.client.Models(ctx)
	if err != nil {
		return nil, d.failure(ctx, err)
	}
	for i, n := range names {
		names[i] = d.without(n)
	}
	return names, nil
}

func (d *discreet) without(s string) string {
	if len(d.key) <= shortKey {
		return s
	}
	return strings.ReplaceAll(s, d.key, inPlace)
}

// failure is err without the key in any of its texts.
func (d *discreet) failure(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var e *model.Error
	if !errors.As(err, &e) {
		return errors.New(short(d.without(err.Error())))
	}
	clean := *e
	clean.Detail = short(d.without(e.Detail))
	if e.Err != nil {
		clean.Err = errors.New(short(d.without(e.Err.Error())))
	}
	return &clean
}

func short(s string) string {
	if len(s) <= maxDetail {
		return s
	}
	return strings.ToValidUTF8(s[:maxDetail], "") + "..."
}
