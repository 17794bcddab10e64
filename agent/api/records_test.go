package api

import (
	"encoding/binary"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/pybox/pybox/agent/api/pid1"
)

// Records count as sent when the host says that it has them, and in no other
// case; what is said instead is an error that can be read.
func TestSendRecordsWantsItsAcknowledgement(t *testing.T) {
	for answer, want := range map[string]string{
		string(pid1.Ack): "",
		"x":              "acknowledged with 0x78, want 0x6b",
		"":               "no acknowledgement: EOF",
	} {
		guest, host := net.Pipe()
		go func() {
			defer host.Close()
			var head [4]byte
			if _, err := io.ReadFull(host, head[:]); err != nil {
				return
			}
			_, _ = io.CopyN(io.Discard, host, int64(binary.BigEndian.Uint32(head[:])))
			_, _ = io.WriteString(host, answer)
		}()
		err := pid1.Send(guest, goodRecords(), 10*time.Second)
		_ = guest.Close()
		switch {
		case want == "" && err != nil:
			t.Errorf("%q: %v", answer, err)
		case want != "" && (err == nil || !strings.HasSuffix(err.Error(), want)):
			t.Errorf("%q: %v, want %q", answer, err, want)
		}
	}
}
