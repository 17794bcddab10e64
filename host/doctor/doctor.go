// Package doctor looks at everything that PyBox needs on this host and says, row by
// row, what it saw, what it thinks of it, and what to run next. It changes nothing:
// no file is made, no process but QEMU's own "--version" and the like is started,
// and a daemon is only asked for its status.
//
// It repairs nothing either, and its judgement of a row is about the present: a VM
// that does not run is no fault.
package doctor

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/pybox/pybox/guest/bundle"
	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/config"
	"github.com/pybox/pybox/host/home"
	"github.com/pybox/pybox/vm"
)

// Schema names the form of a Report as JSON.
const Schema = "pybox.doctor/v1"

// Verdict is what is thought of a row.
type Verdict string

// The verdicts. Failed alone means that PyBox cannot do its work.
const (
	OK      Verdict = "ok"
	Advice  Verdict = "advice"  // works, and could be better
	Failed  Verdict = "failed"  // keeps PyBox from working, or did the last time
	Unknown Verdict = "unknown" // could not be found out, or nothing is there to look at
)

// Row is one observation.
type Row struct {
	// ID is stable; docs/doctor.md explains each.
	ID string `json:"id"`
	// Title is a word or two for people.
	Title   string  `json:"title"`
	Verdict Verdict `json:"verdict"`
	// Observed is what was seen. Parts of it may come from the guest or from files
	// that anybody wrote: it must be escaped before a terminal sees it.
	Observed string `json:"observed"`
	// Next says what to run or change; it is never empty in a row of Advice or
	// Failed.
	Next string `json:"next,omitempty"`
	// Untrusted are lines of the guest's console, for a row that is about them.
	Untrusted []string `json:"untrusted,omitempty"`
	// MS is how long the row took, in milliseconds.
	MS float64 `json:"ms"`
}

// Report is all rows, in a fixed order.
type Report struct {
	Schema  string    `json:"schema"`
	Version string    `json:"version"`
	At      time.Time `json:"at"`
	Home    string    `json:"home"`
	// Verdict is Failed when a row failed, otherwise Advice or OK: what is not
	// known makes nothing worse.
	Verdict Verdict `json:"verdict"`
	Rows    []Row   `json:"rows"`
	MS      float64 `json:"ms"`
}

// Count tells how many rows have the verdict.
func (r Report) Count(v Verdict) (n int) {
	for _, row := range r.Rows {
		if row.Verdict == v {
			n++
		}
	}
	return n
}

const (
	// limitDefault is each row's time. The daemon answers a status within a second
	// whatever the guest does, and a healthy disk hashes a bundle in less.
	limitDefault = 2 * time.Second
	// grace is what a row has beyond that to say what it was waiting for. What then
	// still hangs, in a system call on a file system that is gone, is left behind.
	grace = 300 * time.Millisecond
)

// Options are what is looked at and with which eyes.
type Options struct {
	// Getenv is os.Getenv.
	Getenv func(string) string
	// Version is this program's.
	Version string
	// Driver makes the driver of this host's VMs for a configuration and a state
	// directory, which may be missing. It must change nothing.
	Driver func(*home.Home, config.Config) vm.Driver
	// CacheDir says where downloads are kept.
	CacheDir func() (string, error)
	// Limit is each row's time; 0 means 2 s. All rows run at once, the driver's
	// have an eighth more, and Run ends 0.3 s after that at the latest.
	Limit time.Duration
	// Now is the host's wall clock; nil is time.Now.
	Now func() time.Time

	// host is what is known of this host, and room how many bytes may be written at
	// a path; nil asks the system.
	host func() (Host, error)
	room func(path string) (int64, error)
}

// check is one or more rows that one goroutine finds out.
type check struct {
	// id and title are of the row that stands where none came in time.
	id, title string
	run       func(ctx context.Context) []Row
}

// Run looks at everything at once. It ends within 9/8 of Options.Limit and 0.3 s,
// whatever hangs: a row that is not known then has the verdict Unknown.
func Run(ctx context.Context, o Options) Report {
	if o.Limit == 0 {
		o.Limit = limitDefault
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.host == nil {
		o.host = thisHost
	}
	if o.room == nil {
		o.room = room
	}
	began := time.Now()
	r := Report{Schema: Schema, Version: o.Version, At: o.Now().UTC(), Verdict: OK}
	ctx, cancel := context.WithTimeout(ctx, o.Limit)
	defer cancel()
	e := newExam(ctx, o)
	r.Home = e.dir
	r.Rows = runAll(ctx, e.checks(), o.Limit+driverExtra(o.Limit)+grace)
	switch {
	case r.Count(Failed) > 0:
		r.Verdict = Failed
	case r.Count(Advice) > 0:
		r.Verdict = Advice
	}
	r.MS = ms(time.Since(began))
	return r
}

// runAll runs the checks at once and gives their rows in order. It ends when all
// have, or after bound.
func runAll(ctx context.Context, checks []check, bound time.Duration) (rows []Row) {
	began := time.Now()
	found := make([]chan []Row, len(checks))
	for i, c := range checks {
		found[i] = make(chan []Row, 1) // one that comes too late goes on by itself
		go func() {
			rows := c.run(ctx)
			for j := range rows {
				rows[j].MS = ms(time.Since(began))
			}
			found[i] <- rows
		}()
	}
	patience, cancel := context.WithTimeout(context.WithoutCancel(ctx), bound)
	defer cancel()
	for i, c := range checks {
		select {
		case r := <-found[i]:
			rows = append(rows, r...)
			continue
		default:
		}
		select {
		case r := <-found[i]:
			rows = append(rows, r...)
		case <-patience.Done():
			rows = append(rows, Row{ID: c.id, Title: c.title, Verdict: Unknown, MS: ms(time.Since(began)),
				Observed: fmt.Sprintf("no answer from this host within %v; does it wait for a disk or a network file system?", bound)})
		}
	}
	return rows
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// exam is one look. What several rows need is found out once, beside them.
type exam struct {
	o      Options
	dir    string
	dirErr error // no directory is named
	home   *home.Home

	config *later[config.Config]
	bundle *later[*bundle.Bundle]
	owner  *later[owner]
	status *later[api.Status]
	end    *later[*api.End]
}

// later is a value that is being found out.
type later[T any] struct {
	done  chan struct{}
	value T
	err   error
}

func find[T any](f func() (T, error)) *later[T] {
	l := &later[T]{done: make(chan struct{})}
	go func() {
		defer close(l.done)
		l.value, l.err = f()
	}()
	return l
}

// errLate: a value was not found out in time.
type errLate struct{ error }

// get waits for the value until ctx ends; the error is then an errLate.
func (l *later[T]) get(ctx context.Context) (T, error) {
	select {
	case <-l.done:
		return l.value, l.err
	default:
	}
	select {
	case <-l.done:
		return l.value, l.err
	case <-ctx.Done():
		var zero T
		return zero, errLate{ctx.Err()}
	}
}

// one makes a check of a single row.
func one(id, title string, f func(ctx context.Context, r *Row)) check {
	return check{id, title, func(ctx context.Context) []Row {
		r := Row{ID: id, Title: title}
		f(ctx, &r)
		return []Row{r}
	}}
}

func (r *Row) say(v Verdict, next, format string, a ...any) {
	r.Verdict, r.Next, r.Observed = v, next, fmt.Sprintf(format, a...)
}

func (r *Row) ok(format string, a ...any)           { r.say(OK, "", format, a...) }
func (r *Row) unknown(format string, a ...any)      { r.say(Unknown, "", format, a...) }
func (r *Row) advise(next, format string, a ...any) { r.say(Advice, next, format, a...) }
func (r *Row) fail(next, format string, a ...any)   { r.say(Failed, next, format, a...) }

// newExam begins to find out what several rows need. Nothing of it outlives ctx but
// what hangs in the system.
func newExam(ctx context.Context, o Options) *exam {
	e := &exam{o: o}
	if e.dir, e.dirErr = home.Locate(o.Getenv); e.dirErr != nil {
		e.home = home.At(os.DevNull) // a driver finds nothing there
		return e
	}
	e.home = home.At(e.dir)
	e.config = find(func() (config.Config, error) { return config.Load(e.home.Config(), o.Getenv) })
	e.bundle = find(func() (*bundle.Bundle, error) { return bundle.Current(e.dir) })
	e.owner = find(func() (owner, error) { return findOwner(ctx, e.home) })
	e.status = find(func() (api.Status, error) { return e.askDaemon(ctx) })
	e.end = find(func() (*api.End, error) { return e.lastEnd(ctx) })
	return e
}

// checks are all checks, in the order of their rows.
func (e *exam) checks() []check {
	list := []check{
		one("platform", "Platform", e.platform),
		one("virtualization", "Virtualization", e.virtualization),
		{"driver", "Driver", e.driver},
		one("home.dir", "Directory", e.directory),
	}
	if e.dirErr != nil { // nothing else has a place
		return list
	}
	return append(list,
		one("home.config", "config.toml", e.configuration),
		one("home.room", "Disk room", e.homeRoom),
		one("cache.room", "Cache's room", e.cacheRoom),
		one("home.receipts", "Receipts", e.receipts),
		one("bundle.installed", "Guest bundle", e.bundleInstalled),
		one("bundle.intact", "Its contents", e.bundleIntact),
		one("images.own", "Your images", e.ownImages),
		one("daemon.owner", "Daemon", e.daemonOwner),
		one("daemon.socket", "Socket", e.daemonSocket),
		one("vm.answer", "VM", e.vmAnswer),
		one("vm.guest", "Guest", e.vmGuest),
		one("vm.clock", "Guest's clock", e.vmClock),
		one("versions", "Versions", e.versions),
		one("vm.last", "Last VM", e.lastVM),
	)
}

// IDs are the ids of all rows but the driver's own, which begin with its name.
func IDs() (ids []string) {
	var e exam
	for _, c := range e.checks() {
		ids = append(ids, c.id)
	}
	return ids
}
