// Package openai asks models that speak OpenAI's chat completions: OpenAI itself, and
// the servers that are compatible with it, such as those of Ollama, llama.cpp and vLLM.
// It gives them no tools. It is a thin layer on OpenAI's own Go library, which reads
// nothing from the environment here.
package openai

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/ssestream"
	"github.com/pybox/pybox/host/repair/model"
	"github.com/pybox/pybox/host/repair/wire"
)

// OwnHost is where OpenAI itself is. Its newer models take the bound of an answer only
// under a name that others do not know.
const OwnHost = "api.openai.com"

// Client is a model.Client.
type Client struct {
	chat   openai.ChatCompletionService
	models openai.ModelService
	own    bool
}

// New makes a Client for the server at base, which has the path up to "/v1". key may be
// empty: then none is sent.
func New(base *url.URL, key string, l wire.Limits) *Client {
	// Retries are the caller's, who knows how long there is.
	opts := []option.RequestOption{
		option.WithBaseURL(base.String()), option.WithHTTPClient(wire.NewClient(base, l)), option.WithMaxRetries(0),
	}
	if key != "" {
		opts = append(opts, option.WithAPIKey(key))
	}
	return &Client{
		chat: openai.NewChatCompletionService(opts...), models: openai.NewModelService(opts...),
		own: base.Hostname() == OwnHost,
	}
}

// Ask implements model.Client.
func (c *Client) Ask(ctx context.Context, q model.Question, on func(int)) (*model.Answer, error) {
	p := openai.ChatCompletionNewParams{
		Model:         q.Model,
		Messages:      []openai.ChatCompletionMessageParamUnion{openai.SystemMessage(q.System), openai.UserMessage(q.User)},
		StreamOptions: openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)},
	}
	if c.own {
		p.MaxCompletionTokens = openai.Int(q.MaxTokens)
	} else {
		p.MaxTokens = openai.Int(q.MaxTokens)
	}
	s := c.chat.NewStreaming(ctx, p)
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
	finish        string
	refused       bool
	input, output int64
}

func (a *reading) take(c openai.ChatCompletionChunk) error {
	if c.JSON.Usage.Valid() {
		a.input, a.output = c.Usage.PromptTokens, c.Usage.CompletionTokens
	}
	for _, choice := range c.Choices {
		if choice.Index != 0 {
			continue // one was asked for
		}
		a.text.WriteString(choice.Delta.Content)
		a.refused = a.refused || choice.Delta.Refusal != ""
		if choice.FinishReason != "" {
			a.finish = choice.FinishReason
		}
	}
	if a.text.Len() > model.MaxText {
		return &model.Error{Kind: model.TooLarge, RetryAfter: -1, Detail: fmt.Sprintf("it has more than %d bytes", model.MaxText)}
	}
	return nil
}

var errCut = errors.New("the answer ended without saying so")

func (a *reading) answer(ctx context.Context, q model.Question) (*model.Answer, error) {
	if a.finish == "" {
		return nil, model.Failure(ctx, model.Network, errCut)
	}
	text := a.text.String()
	return &model.Answer{Text: text, Stop: a.stop(), Tokens: model.Counted(q, text, a.input, a.output)}, nil
}

func (a *reading) stop() model.Stop {
	switch {
	case a.refused, a.finish == "content_filter":
		return model.StopRefusal
	case a.finish == "stop":
		return model.StopEnd
	case a.finish == "length":
		return model.StopLength
	}
	return model.StopOther
}

// failure tells an error that the server sent as an event from one of the connection,
// and from what is no event.
func failure(ctx context.Context, err error) error {
	var said *ssestream.StreamError
	if errors.As(err, &said) {
		err = &model.Error{Kind: model.Server, RetryAfter: -1, Detail: wire.Message(said.Event.Data)}
	}
	return model.Failure(ctx, wire.KindOf(err), err)
}

// Models implements model.Client. The library would make a thousand bytes of each that
// comes, and has no bound.
func (c *Client) Models(ctx context.Context) ([]string, error) {
	var list []byte
	if _, err := c.models.List(ctx, option.WithResponseBodyInto(&list)); err != nil {
		return nil, failure(ctx, err)
	}
	return wire.Names(list)
}
