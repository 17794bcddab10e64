package provider

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/pybox/pybox/host/repair/model"
)

const (
	// shortKey is the length up to which a key is no secret: local servers are
	// given words such as "none".
	shortKey = 8
	// inPlace is what stands where a key was in an error.
	inPlace = "[key]"
	// maxDetail bounds what is told of an error, in bytes. What is cut before the key
	// is taken out may have half of it.
	maxDetail = 500
)

// discreet keeps keys out of all that a provider gives: an answer goes into a box and
// into the history, an error to a terminal. It never alters an answer. A server may know
// keys that it was not sent: it may be a router with an environment like ours.
type discreet struct {
	client model.Client
	keys   []Key
	// hint is what can be done when the server denies; empty: nothing.
	hint string
}

// Ask implements model.Client.
func (d *discreet) Ask(ctx context.Context, q model.Question, on func(int)) (*model.Answer, error) {
	a, err := d.client.Ask(ctx, q, on)
	if err != nil {
		return nil, d.failure(ctx, err)
	}
	if d.in(a.Text) {
		a.Text, a.Stop = "", model.StopKey
	}
	return a, nil
}

// Models implements model.Client.
func (d *discreet) Models(ctx context.Context) ([]string, error) {
	names, err := d.client.Models(ctx)
	if err != nil {
		return nil, d.failure(ctx, err)
	}
	if slices.ContainsFunc(names, d.in) {
		return nil, &model.Error{Kind: model.Stream, RetryAfter: -1, NoRetry: true, Detail: "the name of a model has a key in it"}
	}
	return names, nil
}

// in tells whether a text has a key in it.
func (d *discreet) in(s string) bool {
	return slices.ContainsFunc(d.keys, func(k Key) bool { return strings.Contains(s, k.Value) })
}

func (d *discreet) without(s string) string {
	for _, k := range d.keys {
		s = strings.ReplaceAll(s, k.Value, inPlace)
	}
	return s
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
	if e.Kind == model.Denied && d.hint != "" {
		clean.Detail = strings.TrimPrefix(clean.Detail+"; "+d.hint, "; ")
	}
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
