//go:build linux && pyboxtest

package agent

import (
	"encoding/json"
	"errors"
	"net/http"
	"path/filepath"
	"strconv"
	"sync"

	"github.com/pybox/pybox/agent/box"
	"github.com/pybox/pybox/agent/images"
	"github.com/pybox/pybox/agent/peers"
)

// others are the container engines that PyBox is compared with, once they are asked
// for.
var others struct {
	sync.Mutex
	engines *peers.Engines
}

func init() {
	// The engines are started, with the image "image", which a run must have had. The
	// answer is their versions.
	requests["peers-start"] = func(_ *box.Manager, r *http.Request) (string, error) {
		serial := r.URL.Query().Get("image")
		if err := images.CheckSerial(serial); err != nil {
			return "", err
		}
		others.Lock()
		defer others.Unlock()
		if others.engines != nil {
			return "", errors.New("they were started before")
		}
		e, err := peers.Start(r.Context(), filepath.Join(stateDir, "images", serial))
		if err != nil {
			return "", err
		}
		others.engines = e
		return e.Versions, nil
	}
	// One of them, "name", runs an empty program: how many nanoseconds that takes.
	requests["peer-run"] = withPeers(func(e *peers.Engines, p peers.Peer, r *http.Request) (string, error) {
		took, err := e.Run(r.Context(), p)
		return strconv.FormatInt(took.Nanoseconds(), 10), err
	})
	// And one that looks around: the limits that it is held to.
	requests["peer-look"] = withPeers(func(e *peers.Engines, p peers.Peer, r *http.Request) (string, error) {
		f, err := e.Look(r.Context(), p)
		if err != nil {
			return "", err
		}
		b, err := json.Marshal(f)
		return string(b), err
	})
}

// withPeers is a request about the engine "name".
func withPeers(f func(*peers.Engines, peers.Peer, *http.Request) (string, error)) func(*box.Manager, *http.Request) (string, error) {
	return func(_ *box.Manager, r *http.Request) (string, error) {
		others.Lock()
		defer others.Unlock()
		if others.engines == nil {
			return "", errors.New("they were not started")
		}
		return f(others.engines, peers.Peer(r.URL.Query().Get("name")), r)
	}
}
