package api

import (
	"fmt"
	"math"
	"time"

	"google.golang.org/protobuf/proto"

	agentv1 "github.com/pybox/pybox/agent/api/v1"
)

// Bounds of what the agent answers.
const (
	maxVersion  = 64
	maxStages   = 32
	maxRuntimes = 16
	maxImages   = 16
	// maxBytes bounds memory figures: far above any machine, far below an
	// overflow of their sums.
	maxBytes = 1 << 50
	maxCount = 1 << 24
)

// latestUnixNS bounds wall clocks, in 2116: differences of two never overflow.
const latestUnixNS = math.MaxInt64 / 2

// Validate holds any message that the guest can answer to its bounds. The error
// matches ErrInvalid or, for a hello of another version, ErrProtocol. A message
// of a type that it does not know is invalid: nothing passes unchecked.
func Validate(m proto.Message) error {
	switch m := m.(type) {
	case *agentv1.HelloResponse:
		return ValidateHello(m)
	case *agentv1.SetTimeResponse:
		return ValidateSetTime(m)
	case *agentv1.StatusResponse:
		return ValidateStatus(m)
	case *agentv1.PowerOffResponse, *agentv1.CancelRunResponse, *agentv1.SetReadyResponse:
		return nil // they have no fields
	case *agentv1.OpenShellResponse:
		return validateOpenShell(m)
	case *agentv1.RunEvent:
		return validateRunEvent(m)
	case *agentv1.BuildEvent:
		return validateBuildEvent(m)
	default:
		return fmt.Errorf("%w: unexpected message %T", ErrInvalid, m)
	}
}

// ValidateHello checks a hello: the protocol version first, since with another
// one the rest may mean anything.
func ValidateHello(m *agentv1.HelloResponse) error {
	if err := CheckProtocol(m.GetProtocolVersion()); err != nil {
		return err
	}
	c := checker{what: "hello"}
	c.text("agent version", m.GetAgentVersion(), 1, maxVersion)
	c.check("boot id", isUUID(m.GetBootId()))
	c.text("kernel release", m.GetKernelRelease(), 1, maxVersion)
	c.word("machine", m.GetMachine(), 32)
	c.stages(m.GetStages())
	c.check("number of runtime versions", len(m.GetRuntimeVersions()) <= maxRuntimes)
	for name, version := range m.GetRuntimeVersions() {
		c.word("runtime name", name, 32)
		c.text("runtime version", version, 1, maxVersion)
	}
	return c.err
}

// ValidateSetTime checks the answer to a time push.
func ValidateSetTime(m *agentv1.SetTimeResponse) error {
	c := checker{what: "answer to the time"}
	c.check("guest clock", isUnix(m.GetGuestUnixNs()))
	c.check("uptime", isTime(m.GetGuestBootNs()))
	c.text("reason of deferral", m.GetDeferred(), 0, 64)
	c.check("stepped and deferred", !m.GetStepped() || m.GetDeferred() == "")
	return c.err
}

// ValidateStatus checks a status.
func ValidateStatus(m *agentv1.StatusResponse) error {
	c := checker{what: "status"}
	for _, n := range []int64{m.GetMemTotalBytes(), m.GetMemAvailableBytes(), m.GetAgentRssBytes(), m.GetInitRssBytes(), m.GetShimRssBytes()} {
		c.check("bytes", n >= 0 && n <= maxBytes)
	}
	c.check("available memory", m.GetMemAvailableBytes() <= m.GetMemTotalBytes())
	c.check("uptime", isTime(m.GetUptimeNs()))
	c.check("guest clock", isUnix(m.GetGuestUnixNs()))
	for _, n := range []uint32{m.GetBoxes(), m.GetOpenFiles(), m.GetGoroutines(), m.GetMounts(), m.GetWaiting(), m.GetCgroups()} {
		c.check("count", n <= maxCount)
	}
	c.text("engine", m.GetEngine(), 0, MaxSentence)
	c.check("engine", isEngine(m.GetEngine()))
	c.check("number of images", len(m.GetImages()) <= maxImages)
	for _, image := range m.GetImages() {
		c.check("image", isImage(image))
	}
	c.check("number of ready boxes", len(m.GetReady()) <= MaxReady)
	for _, r := range m.GetReady() {
		c.check("image of ready boxes", isImage(r.GetImage()))
		for _, n := range []uint32{r.GetWanted(), r.GetReady(), r.GetMaking()} {
			c.check("number of ready boxes", n <= MaxReady)
		}
		c.text("trouble with ready boxes", r.GetTrouble(), 0, MaxSentence)
	}
	c.stages(m.GetStages())
	return c.err
}

func validateOpenShell(m *agentv1.OpenShellResponse) error {
	c := checker{what: "shell"}
	c.check("host key", len(m.GetHostKey()) == KeyBytes)
	return c.err
}

// stages holds steps of the boot to their order.
func (c *checker) stages(all []*agentv1.Stage) {
	c.check("number of stages", len(all) <= maxStages)
	var last int64
	for _, s := range all {
		c.word("stage name", s.GetName(), 32)
		c.check("stage time", isTime(s.GetEndedAtNs()) && s.GetEndedAtNs() >= last && s.GetBeganAtNs() >= 0 && s.GetBeganAtNs() <= s.GetEndedAtNs())
		last = s.GetEndedAtNs()
	}
}

// checker keeps the first bound that what broke.
type checker struct {
	what string
	err  error
}

// check notes that field is out of bounds unless ok.
func (c *checker) check(field string, ok bool) {
	if !ok && c.err == nil {
		c.err = fmt.Errorf("%w: %s: %s out of bounds", ErrInvalid, c.what, field)
	}
}

// text wants low to high bytes of printable ASCII.
func (c *checker) text(field, s string, low, high int) {
	ok := len(s) >= low && len(s) <= high
	for i := 0; ok && i < len(s); i++ {
		ok = s[i] >= ' ' && s[i] <= '~'
	}
	c.check(field, ok)
}

// word wants 1 to high bytes of letters, digits, "-", "_" and ".".
func (c *checker) word(field, s string, high int) {
	ok := len(s) >= 1 && len(s) <= high
	for i := 0; ok && i < len(s); i++ {
		b := s[i]
		ok = b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || b == '-' || b == '_' || b == '.'
	}
	c.check(field, ok)
}

// isTime tells whether ns can be a CLOCK_BOOTTIME: up to a century.
func isTime(ns int64) bool { return ns >= 0 && ns <= int64(100*365*24*time.Hour) }

func isUnix(ns int64) bool { return ns >= 0 && ns <= latestUnixNS }

// isUUID tells whether s is a lower-case UUID in the form of RFC 9562, as the
// kernel prints a boot id.
func isUUID(s string) bool {
	if len(s) != 36 {
		return false
	}
	for i := range len(s) {
		b := s[i]
		switch i {
		case 8, 13, 18, 23:
			if b != '-' {
				return false
			}
		default:
			if !(b >= '0' && b <= '9' || b >= 'a' && b <= 'f') {
				return false
			}
		}
	}
	return true
}
