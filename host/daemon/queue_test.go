package daemon

import (
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/daemon/daemontest"
)

// TestHundredBesideSlowClients: of a hundred requests at once each is carried out although
// others hold connections, and runs that have ended or print on, and do nothing with them.
func TestHundredBesideSlowClients(t *testing.T) {
	r := run(t, options(t, &daemontest.Agent{}))
	r.start()
	const each, many = 20, 100
	send := func(format string, a ...any) {
		conn, err := net.Dial("unix", r.home.Socket())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		if _, err := fmt.Fprintf(conn, format, a...); err != nil {
			t.Fatal(err)
		}
	}
	ask := func(id, accept, program string) {
		body := fmt.Sprintf(`{"id": %q, "program": {"text": %q}, "limits": {"output_bytes": 1000000}}`, id, program)
		send("POST /v1/runs HTTP/1.1\r\nHost: x\r\nAccept: %s\r\nContent-Length: %d\r\n\r\n%s", accept, len(body), body)
	}
	for i := range each {
		ask(fmt.Sprint("prints-", i), api.MediaEvents, "flood 900000\nwait")
		ask(fmt.Sprint("ended-", i), "application/json", "flood 900000")
		send("POST /v1/runs HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n\r\n{")
	}
	// The first go on, the second have ended.
	slow := func() bool {
		for i := range each {
			if _, err := r.client.Receipt(r.ctx(), fmt.Sprint("ended-", i)); err != nil {
				return false
			}
		}
		l, err := r.client.Runs(r.ctx())
		return err == nil && len(l) == each
	}
	for deadline := time.Now().Add(bound); !slow(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the slow clients' runs are not where they are to be")
		}
	}
	var all sync.WaitGroup
	var served atomic.Int64
	for i := range many {
		all.Go(func() {
			want := fmt.Sprintf("%d\n", i)
			if out, rec, err := r.exec(api.RunRequest{Program: source("print " + fmt.Sprint(i))}); err != nil || out != want || rec.ExitCode() != 0 {
				t.Errorf("%d: %q, %v", i, out, err)
				return
			}
			served.Add(1)
		})
	}
	all.Wait()
	if s, err := r.client.Status(r.ctx()); err != nil || served.Load() != many || s.Runs.Active != each {
		t.Errorf("%d were served, %+v, %v; want %d, and the %d that print on", served.Load(), s.Runs, err, many, each)
	}
}
