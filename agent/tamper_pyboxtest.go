//go:build linux && pyboxtest

package agent

import (
	"fmt"
	"net/http"
	"sync"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/pybox/pybox/agent/box"
)

// tamper is one interference with the next box. Of its functions those that are
// set are called, once.
type tamper struct {
	spec                     func(*specs.Spec)
	made, written            func(id string, pid int) error
	ended, removing, deleted func(id string) error
	// tolerate lets the box run though its settings differ.
	tolerate bool
}

// tampers are what a test can ask for by name; files of suites add theirs.
var tampers = map[string]tamper{}

// tampering holds the interference that waits for the next box, and what went
// wrong with earlier ones.
type tampering struct {
	boxes *box.Manager // set before there is a box

	mu   sync.Mutex
	next tamper
	errs []error
}

var pending tampering

// ask takes the tamper "what" for the next box; without one it takes it back, and
// tells of an interference that failed.
func (p *tampering) ask(r *http.Request) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.errs) > 0 {
		err := p.errs[0]
		p.errs, p.next = nil, tamper{}
		return err
	}
	what := r.URL.Query().Get("what")
	t, ok := tampers[what]
	if !ok && what != "" {
		return fmt.Errorf("no tamper %q", what)
	}
	p.next = t
	return nil
}

func (p *tampering) take(f func(*tamper) error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := f(&p.next); err != nil {
		p.errs = append(p.errs, err)
	}
}

// prereadWait: a test of what a box is charged for must not depend on how busy the
// machine is.
const prereadWait = prereadTime

// testHooks gives every box the hooks; most find nothing to do.
func testHooks() box.Hooks {
	return box.Hooks{
		Spec: func(s *specs.Spec) {
			pending.take(func(t *tamper) error {
				if f := t.spec; f != nil {
					t.spec = nil
					f(s)
				}
				return nil
			})
		},
		Made: func(id string, pid int) {
			pending.withPID(func(t *tamper) *func(string, int) error { return &t.made }, id, pid)
		},
		Written: func(id string, pid int) {
			pending.withPID(func(t *tamper) *func(string, int) error { return &t.written }, id, pid)
		},
		Tolerate: func(string) (yes bool) {
			pending.take(func(t *tamper) error { yes = t.tolerate; return nil })
			return yes
		},
		Ended:    func(id string) { pending.withID(func(t *tamper) *func(string) error { return &t.ended }, id) },
		Removing: func(id string) { pending.withID(func(t *tamper) *func(string) error { return &t.removing }, id) },
		Deleted:  func(id string) { pending.withID(func(t *tamper) *func(string) error { return &t.deleted }, id) },
	}
}

func (p *tampering) withPID(which func(*tamper) *func(string, int) error, id string, pid int) {
	p.take(func(t *tamper) error {
		f := which(t)
		if *f == nil {
			return nil
		}
		defer func() { *f = nil }()
		return (*f)(id, pid)
	})
}

func (p *tampering) withID(which func(*tamper) *func(string) error, id string) {
	p.take(func(t *tamper) error {
		f := which(t)
		if *f == nil {
			return nil
		}
		defer func() { *f = nil }()
		return (*f)(id)
	})
}
