package box

import (
	"slices"
	"sync"

	agentv1 "github.com/pybox/pybox/agent/api/v1"
	"github.com/pybox/pybox/agent/runner"
)

// codes are what images' own Pythons have made of the runner. A box of an image wrote
// each, so that it goes to boxes of that very image only. It is safe for concurrent use.
type codes struct {
	mu sync.Mutex
	of map[string]runner.Bytecode // by image
}

// give gives what is known for a box of image in which env comes from a client. ask tells
// whether that box is to be asked for what its Python makes of the runner: not one in
// which a client's environment may decide that.
func (c *codes) give(image string, env []string) (code runner.Bytecode, ask bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	code = c.of[image]
	return code, code == nil && len(env) == 0
}

// learn keeps what a box of image that was asked has given, if it has. It is from before
// anything of a program was in the box. Its settings, as checks tell, must all be right.
func (c *codes) learn(image string, code runner.Bytecode, checks []*agentv1.Check) {
	if code == nil || slices.ContainsFunc(checks, func(c *agentv1.Check) bool { return !c.Ok }) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		c.of = map[string]runner.Bytecode{}
	}
	if c.of[image] == nil {
		c.of[image] = code
	}
}

// forget drops what is known for image, after a box that was given code has not become
// ready: the code may be to blame. The next box compiles the runner itself.
func (c *codes) forget(image string, code runner.Bytecode) {
	if code == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.of, image)
}
