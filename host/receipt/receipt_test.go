package receipt

import "testing"

func code(n int) *Exit   { return &Exit{Code: &n} }
func signal(n int) *Exit { return &Exit{Signal: &n} }

func TestExitCode(t *testing.T) {
	for name, c := range map[string]struct {
		ending Ending
		exit   *Exit
		want   int
	}{
		"exited":                     {Ending{How: HowExited, By: ByProgram}, code(0), 0},
		"failed":                     {Ending{How: HowExited, By: ByProgram}, code(7), 7},
		"exited like a signal":       {Ending{How: HowExited, By: ByProgram}, code(137), 137},
		"exited like a deadline":     {Ending{How: HowExited, By: ByProgram}, code(124), 124},
		"exited with the most":       {Ending{How: HowExited, By: ByProgram}, code(255), 255},
		"SIGKILL, cause unknown":     {Ending{How: HowSignal, By: ByUnknown}, signal(9), 137},
		"SIGTERM by itself":          {Ending{How: HowSignal, By: ByProgram}, signal(15), 143},
		"SIGSEGV":                    {Ending{How: HowSignal, By: ByUnknown}, signal(11), 139},
		"memory":                     {Ending{How: HowMemory, By: ByKernelOOM}, signal(9), 137},
		"memory, nobody left to say": {Ending{How: HowMemory, By: ByKernelOOM}, nil, 137},
		"the guest's memory":         {Ending{How: HowSignal, By: ByKernelOOM}, nil, 137},
		"deadline":                   {Ending{How: HowDeadline, By: ByAgent}, signal(9), 124},
		"deadline, no status":        {Ending{How: HowDeadline, By: ByAgent}, nil, 124},
		"box timer":                  {Ending{How: HowBoxTimer, By: ByPID1}, nil, 124},
		"cancelled":                  {Ending{How: HowCancelled, By: ByClient}, signal(9), 130},
		"cancelled by the host":      {Ending{How: HowCancelled, By: ByHost}, nil, 125},
		"settings":                   {Ending{How: HowRefused, By: ByAgent, Reason: ReasonSettings}, nil, 126},
		"interpreter":                {Ending{How: HowRefused, By: ByAgent, Reason: ReasonInterpreter}, nil, 125},
		"files":                      {Ending{How: HowRefused, By: ByAgent, Reason: ReasonFiles}, nil, 125},
		"timer":                      {Ending{How: HowRefused, By: ByAgent, Reason: ReasonTimer}, nil, 125},
		"engine":                     {Ending{How: HowRefused, By: ByAgent, Reason: ReasonEngine}, nil, 125},
		"VM lost by the agent":       {Ending{How: HowVMLost, By: ByPID1}, nil, 125},
		"VM lost by a panic":         {Ending{How: HowVMLost, By: ByGuestPanic}, nil, 125},
		"VM lost by the host":        {Ending{How: HowVMLost, By: ByHost}, nil, 125},
		"VM lost after the end":      {Ending{How: HowVMLost, By: ByUnknown}, code(0), 125},
		"unknown":                    {Ending{How: HowUnknown, By: ByUnknown}, nil, 125},
		"unknown, with a status":     {Ending{How: HowUnknown, By: ByAgent}, code(0), 125},

		// What contradicts itself, or is not there, is no success.
		"nothing":                   {Ending{}, nil, 125},
		"nothing but a status":      {Ending{}, code(0), 125},
		"another word":              {Ending{How: "exploded"}, code(0), 125},
		"exited without a status":   {Ending{How: HowExited, By: ByProgram}, nil, 125},
		"exited by an empty status": {Ending{How: HowExited, By: ByProgram}, &Exit{}, 125},
		"exited by a signal":        {Ending{How: HowExited, By: ByProgram}, signal(9), 125},
		"a signal without a status": {Ending{How: HowSignal, By: ByUnknown}, nil, 125},
		"a signal with a code":      {Ending{How: HowSignal, By: ByUnknown}, code(0), 125},
		"memory by nobody":          {Ending{How: HowMemory, By: ByUnknown}, nil, 125},
		"refused for no reason":     {Ending{How: HowRefused, By: ByAgent}, code(0), 125},
		"a reason without refusal":  {Ending{How: HowExited, By: ByProgram, Reason: ReasonSettings}, code(3), 3},
	} {
		r := &Receipt{Ending: c.ending, Observed: Observed{Engine: Engine{Exit: c.exit}}}
		if got := r.ExitCode(); got != c.want {
			t.Errorf("%s: exit code %d, want %d", name, got, c.want)
		}
	}
}
