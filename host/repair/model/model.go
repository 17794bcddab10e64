// Package model is what the repair loop needs of a language model: one question,
// one answer in text, and what went wrong in words that a person can use. It knows
// no provider and no wire format, and gives a model no tools.
package model

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Client asks one provider. Its methods are safe for concurrent use.
type Client interface {
	// Ask puts a question and gives the whole answer. on, which may be nil, is called
	// from the goroutine of Ask with how many bytes of text have come so far. Errors:
	// an *Error, or the cause of ctx when that ended.
	Ask(ctx context.Context, q Question, on func(bytes int)) (*Answer, error)
	// Models are the names of the models that the provider has, at most MaxModels.
	// Errors are those of Ask.
	Models(ctx context.Context) ([]string, error)
}

const (
	// MaxModels bounds a list of models.
	MaxModels = 1000
	// MaxText bounds the text of an answer, in bytes. More is an *Error.
	MaxText = 1 << 20
	// MinAnswer is what must be left of tokens for an answer to be worth asking for.
	MinAnswer = 256
	// maxCount bounds the tokens that a provider can tell of one answer.
	maxCount = 1 << 40
)

// Question is all that a model is told.
type Question struct {
	// Model is its name.
	Model string
	// System says what it is to do, User with what.
	System, User string
	// MaxTokens bounds the answer, the model's thinking included.
	MaxTokens int64
}

// Estimate is a guess at its tokens, without those of the answer.
func (q Question) Estimate() int64 { return Estimate(q.System) + Estimate(q.User) }

// Stop is why an answer ended.
type Stop string

// The ends of an answer.
const (
	StopEnd     Stop = "end"     // it is complete
	StopLength  Stop = "length"  // Question.MaxTokens, or the model's own limit
	StopRefusal Stop = "refusal" // the model or its provider declined
	StopOther   Stop = "other"   // a reason that PyBox does not know
	StopKey     Stop = "key"     // none, but it has the key in it, and no text here
)

// Answer is what a model said. Nothing of it is to be trusted.
type Answer struct {
	Text   string
	Stop   Stop
	Tokens Tokens
}

// Tokens are what an answer took, as far as the provider tells.
type Tokens struct {
	Input  int64 `json:"input"`
	Output int64 `json:"output"`
	// Estimated tells that the provider did not say, and that these are a guess by
	// the length of the text.
	Estimated bool `json:"estimated,omitempty"`
}

// Sum is both together.
func (t Tokens) Sum() int64 { return t.Input + t.Output }

// Add is t and u together.
func (t Tokens) Add(u Tokens) Tokens {
	return Tokens{t.Input + u.Input, t.Output + u.Output, t.Estimated || u.Estimated}
}

// Estimate is a guess at the tokens of a text: a quarter of its bytes.
func Estimate(text string) int64 { return int64(len(text)+3) / 4 }

// Counted are the tokens that a provider told, 0 where it did not: what is missing or
// impossible is estimated.
func Counted(q Question, text string, input, output int64) Tokens {
	t := Tokens{Input: input, Output: output}
	if input <= 0 || input > maxCount {
		t.Input, t.Estimated = q.Estimate(), true
	}
	if output <= 0 && text != "" || output < 0 || output > maxCount {
		t.Output, t.Estimated = Estimate(text), true
	}
	return t
}

// Kind is what went wrong, as far as it decides what to do.
type Kind string

// The kinds of errors.
const (
	Network  Kind = "network"   // no connection, or it broke off in the middle
	Stalled  Kind = "stalled"   // an answer began and did not go on
	Busy     Kind = "busy"      // the provider asks for less or later (429)
	Server   Kind = "server"    // the provider is at fault (5xx)
	Denied   Kind = "denied"    // the key is missing, wrong, or may not do that
	Rejected Kind = "rejected"  // the provider takes no such request, as of an unknown model
	Stream   Kind = "stream"    // the answer is not in the format that was asked for
	TooLarge Kind = "too_large" // the answer is larger than any that is wanted
	Redirect Kind = "redirect"  // the provider wants another address to be asked
)

// Error is why there is no answer.
type Error struct {
	Kind Kind
	// Status is that of HTTP, 0 when there was none.
	Status int
	// RetryAfter is how long the provider wants to be left alone; negative: it did
	// not say.
	RetryAfter time.Duration
	// NoRetry tells that the provider wants no second try.
	NoRetry bool
	// Detail is what the provider said: untrusted, and not fit for a terminal.
	Detail string
	// Err is the cause; nil: Detail is all that is known.
	Err error
}

// Error implements error.
func (e *Error) Error() string {
	s := e.meaning()
	if e.Status != 0 {
		s += fmt.Sprintf(" (HTTP status %d)", e.Status)
	}
	switch {
	case e.Detail != "":
		s += ": " + e.Detail
	case e.Err != nil:
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

func (e *Error) meaning() string {
	switch e.Kind {
	case Network:
		return "the model's server could not be reached, or hung up"
	case Stalled:
		return "the model's answer began and did not go on"
	case Busy:
		return "the model's server takes no more questions for now"
	case Server:
		return "the model's server failed"
	case Denied:
		return "the model's server does not accept the key"
	case Rejected:
		return "the model's server does not accept the question"
	case TooLarge:
		return "the model's answer is too large"
	case Redirect:
		return "the model's server sends elsewhere, where no key is sent"
	}
	return "the model's answer is not in the format that was asked for"
}

// temporary tells whether asking again can help.
func (e *Error) temporary() bool {
	switch e.Kind {
	case Network, Stalled, Busy, Server, Stream:
		return !e.NoRetry
	}
	return false
}

// Failure makes an *Error of err, unless it is one or ctx has ended: then that has a
// cause that matters more.
func Failure(ctx context.Context, kind Kind, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var known *Error
	if errors.As(err, &known) {
		return known
	}
	return &Error{Kind: kind, RetryAfter: -1, Err: err}
}
