package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/config"
	"github.com/pybox/pybox/host/engine"
	"github.com/pybox/pybox/host/execute"
	"github.com/pybox/pybox/host/gate"
	"github.com/pybox/pybox/host/home"
	"github.com/pybox/pybox/host/images"
	"github.com/pybox/pybox/host/mcp"
	"github.com/pybox/pybox/host/policy"
	"github.com/pybox/pybox/host/show"
	"github.com/pybox/pybox/host/units"
	"github.com/pybox/pybox/host/version"
	"github.com/spf13/cobra"
)

const mcpLong = `Serves the Model Context Protocol on standard input and output, for AI clients: one
tool, run_python, runs a program in a new box, as 'pybox exec' does. The VM is started
by the first call. Calls can ask for no more than config.toml allows, and for less
where a flag says so. Nothing but the protocol goes to standard output; what else there
is to say goes to standard error. docs/mcp.md has the configuration of several clients.

--http serves on a port of this machine instead, for clients that hold the token in the
file mcp-token of the state folder, which is made at the first time.

TIME is seconds or "1m30s", SIZE bytes or "256MiB".`

// mcpOptions are the flags of 'pybox mcp'.
type mcpOptions struct {
	images                           []string
	maxTimeout, maxMemory, maxOutput string
	http                             string
	noStart, verbose                 bool
}

func mcpCommand() *cobra.Command {
	var o mcpOptions
	c := &cobra.Command{
		Use:   "mcp",
		Short: "Serve a tool to AI clients by the Model Context Protocol",
		Long:  mcpLong,
		Example: `  pybox mcp
  pybox mcp --images stdlib --max-timeout 10 --max-memory 256MiB
  pybox mcp --http 127.0.0.1:8765`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return o.run(c) },
	}
	f := c.Flags()
	f.SortFlags = false
	f.StringSliceVar(&o.images, "images", nil, "`NAMES` of the images that calls may have, by commas (default all)")
	f.StringVar(&o.maxTimeout, "max-timeout", "", "the longest `TIME` that calls may ask for")
	f.StringVar(&o.maxMemory, "max-memory", "", "`SIZE` of the memory that boxes have (default the image's)")
	f.StringVar(&o.maxOutput, "max-output", "", "`SIZE` up to which each output stream is kept (default the\nimage's)")
	f.StringVar(&o.http, "http", "", "serve HTTP on `ADDRESS` instead, such as 127.0.0.1:8765")
	f.BoolVar(&o.noStart, "no-start", false, "do not start a VM that does not run")
	f.BoolVarP(&o.verbose, "verbose", "v", false, "tell on standard error what goes on")
	mustComplete(c, "images", completeImages)
	return c
}

// limits reads the flags into what the server takes.
func (o *mcpOptions) limits() (mcp.Options, error) {
	m := mcp.Options{Version: version.String()}
	for _, name := range o.images {
		if err := images.CheckName(name); err != nil && !images.Reserved(name) {
			return m, fmt.Errorf("--images: %w", err)
		}
		m.Images = append(m.Images, name)
	}
	var err error
	if o.maxTimeout != "" {
		if m.MaxTimeout, err = units.ParseDuration(o.maxTimeout); err == nil && m.MaxTimeout == 0 {
			err = errors.New("no program can run in no time")
		}
		if err != nil {
			return m, fmt.Errorf("--max-timeout: %w", err)
		}
	}
	for flag, to := range map[string]struct {
		text string
		n    *int64
	}{"max-memory": {o.maxMemory, &m.MaxMemory}, "max-output": {o.maxOutput, &m.MaxOutput}} {
		if to.text == "" {
			continue
		}
		n, err := units.ParseSize(to.text)
		if err == nil && n == 0 {
			err = errors.New("want more than nothing")
		}
		if err != nil {
			return m, fmt.Errorf("--%s: %w", flag, err)
		}
		*to.n = int64(n)
	}
	return m, nil
}

func (o *mcpOptions) run(c *cobra.Command) error {
	m, err := o.limits()
	if err != nil {
		return usageError{err}
	}
	stderr := c.ErrOrStderr()
	level := slog.LevelWarn
	if o.verbose {
		level = slog.LevelInfo
	}
	m.Log = slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: level}))
	host, overhead, err := mcpHost()
	if err != nil {
		// A client is told why when it calls the tool, and not by silence.
		fmt.Fprintf(stderr, "pybox: %s; calls will say so\n", show.Clean(err.Error()))
		host = unavailable{err}
	}
	m.Overhead = overhead
	s, err := mcp.New(engine.New(host, engine.Options{NoStart: o.noStart}), m)
	if errors.Is(err, mcp.ErrOptions) {
		return usageError{err}
	}
	if err != nil {
		return err
	}
	if o.http != "" {
		return o.serveHTTP(c, s)
	}
	// A client that is gone is an error of a write, and not our end.
	pipes := make(chan os.Signal, 1)
	signal.Notify(pipes, syscall.SIGPIPE)
	defer signal.Stop(pipes)
	return s.Stdio(c.Context(), c.InOrStdin(), unchecked(c.OutOrStdout()))
}

// overheadOfFiles is what a call may take for files, and for the removal of its box.
const overheadOfFiles = 2 * time.Minute

// mcpHost is this machine's PyBox, and what a call may take beside its program's time.
func mcpHost() (engine.Host, time.Duration, error) {
	ctl, err := controller()
	if err != nil {
		return nil, 0, err
	}
	cfg, err := config.Load(ctl.Home.Config(), getenv)
	if err != nil { // calls say so, until it is corrected
		cfg = config.Default()
	}
	return execute.NewHost(ctl, getenv), time.Duration(cfg.VM.StartTimeout) + time.Duration(cfg.VM.QueueWait) + overheadOfFiles, nil
}

// serveHTTP serves on a port until it is interrupted.
func (o *mcpOptions) serveHTTP(c *cobra.Command, s *mcp.Server) error {
	h, err := openHome()
	if err != nil {
		return err
	}
	l, token, err := listen(h, o.http)
	if err != nil {
		return err
	}
	fmt.Fprintf(c.ErrOrStderr(), "pybox: MCP at http://%s%s for who sends \"Authorization: Bearer TOKEN\"; the token is in %s\n",
		l.Addr(), mcp.HTTPPath, show.Clean(h.Path(mcpToken)))
	return s.HTTP(c.Context(), l, token)
}

// mcpToken is the file with the token of 'pybox mcp --http'.
const mcpToken = "mcp-token"

func listen(h *home.Home, address string) (net.Listener, string, error) {
	if _, err := gate.ParseAddress(address); err != nil {
		return nil, "", usageError{fmt.Errorf("--http: %w", err)}
	}
	token, err := gate.Token(h.Path(mcpToken))
	if err != nil {
		return nil, "", err
	}
	l, err := gate.Listen(address)
	return l, token, err
}

// unavailable is the host of a machine where PyBox cannot work.
type unavailable struct{ why error }

func (u unavailable) problem() *api.Problem {
	return &api.Problem{Type: api.ProblemStart, Title: "PyBox cannot work", Detail: u.why.Error(), Next: "'pybox doctor' says more, 'pybox setup --yes' sets it up; then restart this MCP server"}
}

// Run implements engine.Host.
func (u unavailable) Run(context.Context, api.RunRequest, func(api.Event) error) (*api.Outcome, error) {
	return nil, u.problem()
}

// StoreFile implements engine.Host.
func (u unavailable) StoreFile(context.Context, io.Reader) (api.StoredFile, error) {
	return api.StoredFile{}, u.problem()
}

// File implements engine.Host.
func (u unavailable) File(context.Context, string) (io.ReadCloser, error) { return nil, u.problem() }

// ForgetFile implements engine.Host.
func (u unavailable) ForgetFile(context.Context, string) error { return u.problem() }

// Start implements engine.Host.
func (u unavailable) Start(context.Context, func(api.Status)) error { return u.problem() }

// Policy implements engine.Host.
func (u unavailable) Policy() (*policy.Policy, error) { return nil, u.problem() }

// Images implements engine.Host.
func (u unavailable) Images() []string { return nil }
