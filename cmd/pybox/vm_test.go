package main

import (
	"testing"

	"github.com/pybox/pybox/host/api"
)

// What 'vm start -v' waits for is a first box of each image, as long as one may come.
func TestMaking(t *testing.T) {
	ready := api.ReadyBoxes{Image: "stdlib", Wanted: 1, FirstMS: new(1.0)}
	for name, c := range map[string]struct {
		guest *api.Guest
		want  bool
	}{
		"no guest":             {nil, false},
		"none is wanted":       {&api.Guest{}, false},
		"one was ready":        {&api.Guest{Ready: []api.ReadyBoxes{ready}}, false},
		"one is being made":    {&api.Guest{Ready: []api.ReadyBoxes{{Image: "stdlib", Wanted: 1, Making: 1}}}, true},
		"the second is to be":  {&api.Guest{Ready: []api.ReadyBoxes{ready, {Image: "data", Wanted: 2}}}, true},
		"it cannot be made":    {&api.Guest{Ready: []api.ReadyBoxes{{Image: "data", Wanted: 2, Trouble: "no numpy"}}}, false},
		"wanted no more":       {&api.Guest{Ready: []api.ReadyBoxes{{Image: "data"}}}, false},
		"taken before we look": {&api.Guest{Ready: []api.ReadyBoxes{{Image: "stdlib", Wanted: 1, FirstMS: new(5.0)}}}, false},
	} {
		if got := making(api.Status{Guest: c.guest}); got != c.want {
			t.Errorf("%s: %t, want %t", name, got, c.want)
		}
	}
}
