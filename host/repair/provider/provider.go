// Package provider decides which model is asked, where and with which key, from what a
// person says and from the environment, and says it aloud. Keys come from the
// environment alone. One is sent to its provider's own server, or to one for which a
// person asked for that, and to no other, never over a connection that others can read.
// All of them are taken out of errors that come back, and no answer that has one is given.
package provider

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"

	"github.com/pybox/pybox/host/repair/anthropic"
	"github.com/pybox/pybox/host/repair/model"
	"github.com/pybox/pybox/host/repair/openai"
	"github.com/pybox/pybox/host/repair/wire"
)

// Names of providers.
const (
	OpenAI    = "openai"
	Anthropic = "anthropic"
)

// kind is what is known of a provider.
type kind struct {
	name, keyVar, baseVar, base string
	// host is its own, models are what names of its own models begin with.
	host   string
	models []string
}

var kinds = [...]kind{
	{OpenAI, "OPENAI_API_KEY", "OPENAI_BASE_URL", "https://api.openai.com/v1", openai.OwnHost, []string{"gpt-", "o1", "o3", "o4"}},
	{Anthropic, "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "https://api.anthropic.com", "api.anthropic.com", []string{"claude"}},
}

// Wish is what a person says; what is empty was not said.
type Wish struct {
	// Provider is a name, BaseURL where it is, Model the model's name.
	Provider, BaseURL, Model string
	// Getenv is os.Getenv.
	Getenv func(string) string
}

// Provider is who is asked.
type Provider struct {
	// Name is OpenAI or Anthropic: the format that is spoken.
	Name string
	// Base is the base URL. It has no user, query or fragment.
	Base *url.URL
	// KeyFrom is the variable that the key is from; empty: none is sent. Unsent is then
	// the one whose key nobody asked to be sent to this server; empty: none is set.
	KeyFrom, Unsent string
	// Why is how the provider was found, where the person did not name it.
	Why string
	key string
	all []Key
}

// ErrUsage: what was said does not name a provider, or not one that can be asked.
var ErrUsage = errors.New("no model can be asked")

func refuse(format string, a ...any) error {
	return fmt.Errorf("%w: %w", ErrUsage, fmt.Errorf(format, a...))
}

// Choose finds the provider. Errors match ErrUsage and have no key in them.
func Choose(w Wish) (*Provider, error) {
	k, why, err := w.kind()
	if err != nil {
		return nil, err
	}
	p := &Provider{Name: k.name, Why: why, key: w.Getenv(k.keyVar), all: Keys(w.Getenv)}
	from, base := "--base-url", w.BaseURL
	if base == "" {
		from, base = k.baseVar, w.Getenv(k.baseVar)
	}
	if base == "" {
		base = k.base
	}
	if p.Base, err = readBase(k.name, base); err != nil {
		return nil, refuse("%s: %w", from, err)
	}
	switch {
	case p.key == "":
	case w.trusts(p.Base, k):
		p.KeyFrom = k.keyVar
	default:
		p.key, p.Unsent = "", k.keyVar
	}
	return p, p.check(k)
}

// trusts tells whether a provider's key is for the server at base: it is the provider's
// own, or the person named the provider, or its variable names the server.
func (w Wish) trusts(base *url.URL, k kind) bool {
	if base.Hostname() == k.host || w.Provider != "" {
		return true
	}
	named, err := readBase(k.name, w.Getenv(k.baseVar))
	return err == nil && *named == *base
}

// Key is a provider's key in the environment.
type Key struct{ Variable, Value string }

// Keys are those of all providers that are set and long enough to be secrets.
func Keys(getenv func(string) string) (all []Key) {
	for _, k := range kinds {
		if v := getenv(k.keyVar); len(v) > shortKey {
			all = append(all, Key{k.keyVar, v})
		}
	}
	return all
}

// IsKey tells whether a variable is one for a key.
func IsKey(variable string) bool {
	return slices.ContainsFunc(kinds[:], func(k kind) bool { return k.keyVar == variable })
}

// kind finds what is to be spoken, and says by what.
func (w Wish) kind() (kind, string, error) {
	if w.Provider != "" {
		for _, k := range kinds {
			if k.name == w.Provider {
				return k, "", nil
			}
		}
		return kind{}, "", refuse("--provider: %.40q is not known; there are %s and %s", w.Provider, OpenAI, Anthropic)
	}
	if w.BaseURL != "" {
		k, why := w.byBase()
		return k, why, nil
	}
	var others []kind // for which another server than their own is named
	for _, k := range kinds {
		if base, err := readBase(k.name, w.Getenv(k.baseVar)); err == nil && base.Hostname() != k.host {
			others = append(others, k)
		}
	}
	if len(others) == 1 { // a router, perhaps, that has all models
		return others[0], "chosen by " + others[0].baseVar, nil
	}
	if k, ok := w.byModel(); ok {
		return k, "chosen by the model's name", nil
	}
	return w.byEnvironment()
}

// byBase finds what the server of --base-url speaks. Which keys are set says nothing
// about it.
func (w Wish) byBase() (kind, string) {
	for _, k := range kinds {
		base, err := readBase(k.name, w.BaseURL)
		if err == nil && base.Hostname() == k.host {
			return k, "chosen by --base-url"
		}
		if err == nil && w.trusts(base, k) {
			return k, "chosen by " + k.baseVar
		}
	}
	if k, ok := w.byModel(); ok {
		return k, "chosen by the model's name"
	}
	return kinds[0], "as most servers speak it; --provider says otherwise"
}

func (w Wish) byModel() (kind, bool) {
	name := strings.ToLower(w.Model)
	for _, k := range kinds {
		if slices.ContainsFunc(k.models, func(s string) bool { return strings.HasPrefix(name, s) }) {
			return k, true
		}
	}
	return kind{}, false
}

func (w Wish) byEnvironment() (kind, string, error) {
	var found []kind
	var by []string
	for _, k := range kinds {
		for _, v := range []string{k.keyVar, k.baseVar} {
			if w.Getenv(v) != "" {
				found, by = append(found, k), append(by, v)
				break
			}
		}
	}
	switch len(found) {
	case 0:
		return kind{}, "", refuse("no provider is named: set %s or %s, or name a server of your own, as in --base-url http://127.0.0.1:11434/v1 --model NAME", kinds[0].keyVar, kinds[1].keyVar)
	case 1:
		return found[0], "chosen by " + by[0], nil
	}
	return kind{}, "", refuse("%s are both set: --provider %s or --provider %s says which", strings.Join(by, " and "), OpenAI, Anthropic)
}

// readBase reads a base URL as the providers' libraries want it.
func readBase(name, s string) (*url.URL, error) {
	u, err := url.Parse(s)
	switch {
	case err != nil, u.Scheme != "http" && u.Scheme != "https", hostname(u) == "":
		return nil, errors.New("it is not a URL such as http://127.0.0.1:11434/v1") // the text may have a password in it
	case u.User != nil:
		return nil, errors.New("it has a user or password in it; a key is taken from the environment alone")
	case u.RawQuery != "", u.ForceQuery, u.Fragment != "":
		return nil, errors.New("it has a query or fragment, want none")
	case u.RawPath != "":
		return nil, errors.New("its path has characters in it that are written as %XX, want none")
	}
	u.Path = strings.TrimRight(u.Path, "/")
	switch {
	case name == OpenAI && u.Path == "":
		u.Path = "/v1"
	case name == Anthropic:
		u.Path = strings.TrimSuffix(u.Path, "/v1")
	}
	u.Path += "/"
	return &url.URL{Scheme: u.Scheme, Host: host(u), Path: u.Path}, nil
}

// hostname is a URL's, in the one way of several to write it that others are compared
// with.
func hostname(u *url.URL) string { return strings.TrimSuffix(strings.ToLower(u.Hostname()), ".") }

// host is hostname with the port; an address is as it was.
func host(u *url.URL) string {
	switch name := hostname(u); {
	case strings.Contains(name, ":"):
		return u.Host
	case u.Port() != "":
		return net.JoinHostPort(name, u.Port())
	default:
		return name
	}
}

// check refuses what would give the key away, and what cannot work without one.
func (p *Provider) check(k kind) error {
	switch {
	case strings.ContainsFunc(p.key, func(r rune) bool { return r <= ' ' || r > '~' }):
		return refuse("%s has white space or other characters in it that no key has", k.keyVar)
	case p.key != "" && p.Base.Scheme == "http" && !p.Loopback():
		return refuse("%s would be sent to %s where others can read it: use https, or unset %s if that server wants no key", k.keyVar, p.Server(), k.keyVar)
	case p.key == "" && p.Base.Hostname() == k.host:
		return refuse("%s is not set, and %s wants a key", k.keyVar, k.host)
	}
	return nil
}

// Loopback tells whether the server is on this machine, by an address or name that is
// never anywhere else.
func (p *Provider) Loopback() bool {
	host := p.Base.Hostname()
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// Server is the base URL as text.
func (p *Provider) Server() string { return strings.TrimSuffix(p.Base.String(), "/") }

// String says who is asked, how, and with what.
func (p *Provider) String() string {
	format, key := "OpenAI's format", "without a key"
	if p.Name == Anthropic {
		format = "Anthropic's format"
	}
	if p.Why != "" {
		format += " (" + p.Why + ")"
	}
	switch {
	case p.KeyFrom != "":
		key = "with the key of " + p.KeyFrom
	case p.Unsent != "":
		key += " (" + p.hint() + ")"
	}
	return fmt.Sprintf("%s, %s, in %s", p.Server(), key, format)
}

// Plain tells whether what is sent can be read on its way: it leaves this machine
// without encryption.
func (p *Provider) Plain() bool { return p.Base.Scheme == "http" && !p.Loopback() }

// hint says what has a key sent that is not; empty: there is none.
func (p *Provider) hint() string {
	if p.Unsent == "" {
		return ""
	}
	return fmt.Sprintf("--provider %s has that of %s sent there", p.Name, p.Unsent)
}

// Client asks the provider. All that it gives is without the key.
func (p *Provider) Client(l wire.Limits) model.Client {
	if p.Name == Anthropic {
		return &discreet{anthropic.New(p.Base, p.key, l), p.all, p.hint()}
	}
	return &discreet{openai.New(p.Base, p.key, l), p.all, p.hint()}
}

// ModelOf finds the model where a person named none: that of a server that has one.
func ModelOf(ctx context.Context, c model.Client) (string, error) {
	names, err := c.Models(ctx)
	if err != nil {
		return "", fmt.Errorf("asking which models there are: %w; or name one with --model", err)
	}
	switch len(names) {
	case 0:
		return "", refuse("no --model is given, and the server has none")
	case 1:
		return names[0], nil
	}
	const most = 12
	list, more := names, ""
	if len(list) > most {
		list, more = list[:most], fmt.Sprintf(" and %d more", len(names)-most)
	}
	return "", refuse("no --model is given, and the server has %d: %s%s", len(names), strings.Join(list, ", "), more)
}
