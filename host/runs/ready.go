package runs

import (
	agentapi "github.com/pybox/pybox/agent/api"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
	"github.com/pybox/pybox/host/policy"
)

// Ready is how many boxes of an image are to be kept ready, and which modules they
// import ahead.
type Ready struct {
	Image   string
	Count   int
	Imports []string
}

// Ready gives what to ask of the guest so that runs find boxes ready which ask for
// nothing but their image: its limits are the defaults, as far as the ceilings allow
// them. An image that this VM has not is left out. The error matches
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
		r.Ready = append(r.Ready, &agentv1.Ready{
			Image: image.Serial, Count: uint32(k.Count), Limits: limitsOf(l), OutputBytes: 2 * l.OutputBytes, Imports: k.Imports,
		})
	}
	return r, agentapi.CheckSetReady(r)
}
