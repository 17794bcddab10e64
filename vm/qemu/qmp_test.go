//go:build linux

package qemu

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"
)

// FuzzQMP is a QEMU that a guest has taken over: whatever it says, the reader ends
// with its socket and invents nothing.
func FuzzQMP(f *testing.F) {
	f.Add([]byte(greeting + `{"return": {}, "id": 1}` + "\n" + `{"event": "SHUTDOWN", "data": {"reason": "guest-reset"}}` + "\n"))
	f.Add([]byte(greeting + greeting + `{"error": {"class": "x", "desc": "y"}, "id": 1}`))
	f.Add([]byte(`{"QMP": null}` + "\n" + `{"event": 7}`))
	f.Add([]byte(strings.Repeat("[", 1000)))
	f.Fuzz(func(t *testing.T, said []byte) {
		ours, theirs := net.Pipe()
		go func() {
			go func() { // takes whatever is asked
				b := make([]byte, 256)
				for {
					if _, err := theirs.Read(b); err != nil {
						return
					}
				}
			}()
			theirs.Write(said)
			theirs.Close()
		}()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		q, err := newQMP(ctx, ours)
		if ctx.Err() != nil {
			t.Fatal("hangs")
		}
		if err == nil {
			<-q.done
			if r := q.reason(); r != "" && !strings.Contains(string(said), "SHUTDOWN") && !strings.Contains(string(said), "PANICKED") && !strings.Contains(string(said), `\u`) {
				t.Errorf("reason %q out of nothing", r)
			}
		}
		ours.Close()
	})
}
