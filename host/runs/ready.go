package runs

import (
	"sync"

	"google.golang.org/protobuf/proto"

	agentapi "github.com/pybox/pybox/agent/api"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
	"github.com/pybox/pybox/host/policy"
	"github.com/pybox/pybox/host/receipt"
)

// Ready is how many boxes of an image are to be kept ready, and which modules they
// import ahead.
type Ready struct {
	Image   string
	Count   int
	Imports []string
}

// Ready gives what to ask of the guest so that runs find boxes ready: with the limits
// that Options.Usual tells of, and before that with the defaults, as far as the ceilings
// allow them. An image that this VM has not is left out. The error matches
// agent/api.ErrRequest.
func (s *Service) Ready(list []Ready) (*agentv1.SetReadyRequest, error) {
	r := &agentv1.SetReadyRequest{}
	for _, k := range list {
		image, err := s.image(k.Image)
		if err != nil || k.Count == 0 {
			continue
		}
		l, err := s.o.Policy.Resolve(k.Image, policy.Ask{})
		if err != nil {
			return nil, err
		}
		limits := limitsOf(l)
		if u := s.usual.of(image.Serial); u != nil && (len(k.Imports) == 0 || u.GetMemoryBytes() >= l.MemoryBytes) {
			limits = u // but for too little to import anything in
		}
		r.Ready = append(r.Ready, &agentv1.Ready{
			Image: image.Serial, Count: uint32(k.Count), Limits: limits, OutputBytes: 2 * l.OutputBytes, Imports: k.Imports,
		})
	}
	return r, agentapi.CheckSetReady(r)
}

// usual are the limits that the runs of each image ask for, by its serial number: the
// same two times in a row are, of programs that ended by themselves, so that such a box
// can be made, and Python in it. So somebody who always asks for more than the defaults
// finds boxes ready too, and one run that differs takes nobody's.
type usual struct {
	mu          sync.Mutex
	last, twice map[string]*agentv1.Limits
}

// of gives those of an image; nil: no two runs in a row were alike.
func (u *usual) of(image string) *agentv1.Limits {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.twice[image]
}

// note takes the limits of a run, and tells whether those of of have changed.
func (u *usual) note(image string, l *agentv1.Limits) (changed bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.last == nil {
		u.last, u.twice = map[string]*agentv1.Limits{}, map[string]*agentv1.Limits{}
	}
	alike := proto.Equal(u.last[image], l)
	u.last[image] = l
	if !alike || proto.Equal(u.twice[image], l) {
		return false
	}
	u.twice[image] = l
	return true
}

// noteUsual takes a run that has ended into account. One with an environment of its own
// could have no box that was made for others.
func (s *Service) noteUsual(start *agentv1.RunStart, e *receipt.Ending) {
	if e.How != receipt.HowExited || len(start.GetEnv()) > 0 {
		return
	}
	if s.usual.note(start.GetImage(), start.GetLimits()) && s.o.Usual != nil {
		s.o.Usual()
	}
}
