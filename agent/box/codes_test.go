package box

import (
	"testing"

	agentv1 "github.com/pybox/pybox/agent/api/v1"
	"github.com/pybox/pybox/agent/runner"
)

// give holds what a box of image is given, and whether it is asked, to what is wanted.
func give(t *testing.T, c *codes, image string, env []string, want string, wantAsk bool) runner.Bytecode {
	t.Helper()
	code, ask := c.give(image, env)
	if string(code["name"]) != want || ask != wantAsk {
		t.Errorf("a box of %s with %q is given %q, asked %v; want %q, %v", image, env, code, ask, want, wantAsk)
	}
	return code
}

func TestCodes(t *testing.T) {
	code := func(text string) runner.Bytecode { return runner.Bytecode{"name": []byte(text)} }
	right, wrong := []*agentv1.Check{{Ok: true}}, []*agentv1.Check{{Ok: true}, {Ok: false}, {Ok: true}}
	env := []string{"PYTHONHOME=/box"}
	var c codes
	give(t, &c, "one", nil, "", true)
	give(t, &c, "one", env, "", false)
	c.learn("one", code("of a box with a wrong setting"), wrong)
	c.learn("one", nil, right) // it has none
	give(t, &c, "one", nil, "", true)

	c.learn("one", code("first"), right)
	c.learn("one", code("second"), right)
	give(t, &c, "one", nil, "first", false)
	give(t, &c, "one", env, "first", false)
	give(t, &c, "two", nil, "", true)
}

// TestCodesForget has a box not become ready.
func TestCodesForget(t *testing.T) {
	var c codes
	for _, image := range []string{"one", "two"} {
		c.learn(image, runner.Bytecode{"name": []byte("of " + image)}, nil)
	}
	c.forget("one", nil) // that box compiled the runner itself
	given := give(t, &c, "one", nil, "of one", false)
	c.forget("one", given)
	give(t, &c, "one", nil, "", true)
	give(t, &c, "two", nil, "of two", false)
	c.learn("one", runner.Bytecode{"name": []byte("new")}, nil)
	give(t, &c, "one", nil, "new", false)
}
