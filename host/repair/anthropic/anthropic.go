// Package anthropic asks models by Anthropic's messages. It gives them no tools. It is
// a thin layer on Anthropic's own Go library, which reads nothing from the environment
// or from the disk here.
package anthropic

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/anthropics/anthropic-sdk-go/v2"
	"github.com/anthropics/anthropic-sdk-go/v2/option"
	"github.com/pybox/pybox/host/repair/model"
	"github.com/pybox/pybox/host/repair/wire"
)

// Client is a model.Client.
type Client struct {
	messages anthropic.MessageService
	models   anthropic.ModelService
}

// New makes a Client for the server at base, which has the path up to "/v1", without
// that. key may be empty: then none is sent.
func New(base *url.URL, key string, l wire.Limits) *Client {
	// Retries are the caller's, who knows how long there is.
	opts := []option.RequestOption{
		option.WithBaseURL(base.String()), option.WithHTTPClient(wire.NewClient(base, l)), option.WithMaxRetries(0),
	}
	if key != "" {
		opts = append(opts, option.WithAPIKey(key))
	}
	return &Client{anthropic.NewMessageService(opts...), anthropic.NewModelService(opts...)}
}

// Ask implements model.Client.
func (c *Client) Ask(ctx context.Context, q model.Question, on func(int)) (*model.Answer, error) {
	s := c.messages.NewStreaming(ctx, anthropic.MessageNewParams{
		Model: q.Model, MaxTokens: q.MaxTokens,
		System:   []anthropic.TextBlockParam{{Text: q.System}},
		Messages: []anthropic.MessageParam{anthropic.NewUserMessage(anthropic.NewTextBlock(q.User))},
	})
	defer s.Close()
	var a reading
	for ctx.Err() == nil && s.Next() {
		if err := a.take(s.Current()); err != nil {
			return nil, err
		}
		if on != nil {
			on(a.text.Len())
		}
	}
	if err := s.Err(); err != nil {
		return nil, failure(ctx, err)
	}
	return a.answer(ctx, q)
}

// reading is an answer as far as it has come.
type reading struct {
	text          strings.Builder
	reason        anthropic.StopReason
	stopped       bool
	input, output int64
}

func (a *reading) take(e anthropic.MessageStreamEventUnion) error {
	switch e.Type {
	case "message_start":
		u := e.Message.Usage
		a.input = u.InputTokens + u.CacheCreationInputTokens + u.CacheReadInputTokens
	case "content_block_delta":
		if e.Delta.Type == "text_delta" { // and not what it thinks
			a.text.WriteString(e.Delta.Text)
		}
	case "message_delta":
		a.output = e.Usage.OutputTokens // all of it so far
		a.reason = e.Delta.StopReason
	case "message_stop":
		a.stopped = true
	}
	if a.text.Len() > model.MaxText {
		return &model.Error{Kind: model.TooLarge, RetryAfter: -1, Detail: fmt.Sprintf("it has more than %d bytes", model.MaxText)}
	}
	return nil
}

var errCut = errors.New("the answer ended without saying so")

func (a *reading) answer(ctx context.Context, q model.Question) (*model.Answer, error) {
	if !a.stopped {
		return nil, model.Failure(ctx, model.Network, errCut)
	}
	text := a.text.String()
	return &model.Answer{Text: text, Stop: a.stop(), Tokens: model.Counted(q, text, a.input, a.output)}, nil
}

func (a *reading) stop() model.Stop {
	switch a.reason {
	case anthropic.StopReasonEndTurn, anthropic.StopReasonStopSequence:
		return model.StopEnd
	case anthropic.StopReasonMaxTokens, anthropic.StopReasonModelContextWindowExceeded:
		return model.StopLength
	case anthropic.StopReasonRefusal:
		return model.StopRefusal
	}
	return model.StopOther
}

// failure tells an error that the server sent as an event from one of the connection,
// and from what is no event.
func failure(ctx context.Context, err error) error {
	var said *anthropic.Error
	if errors.As(err, &said) {
		kind := model.Rejected
		switch said.Type() {
		case anthropic.ErrorTypeOverloadedError, anthropic.ErrorTypeAPIError, anthropic.ErrorTypeTimeoutError:
			kind = model.Server
		case anthropic.ErrorTypeRateLimitError:
			kind = model.Busy
		}
		err = &model.Error{Kind: kind, RetryAfter: -1, Detail: wire.Message([]byte(said.RawJSON()))}
	}
	return model.Failure(ctx, wire.KindOf(err), err)
}

// Models implements model.Client. The library would make a thousand bytes of each that
// comes, and has no bound.
func (c *Client) Models(ctx context.Context) ([]string, error) {
	var list []byte
	if _, err := c.models.List(ctx, anthropic.ModelListParams{}, option.WithResponseBodyInto(&list)); err != nil {
		return nil, failure(ctx, err)
	}
	return wire.Names(list)
}
