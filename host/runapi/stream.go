package runapi

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"unicode/utf8"

	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/recall"
	"github.com/pybox/pybox/host/reply"
)

// maxPiece bounds the output in one event, in bytes.
const maxPiece = 64 << 10

// stream is the answer of a client that wants events.
type stream struct {
	w      http.ResponseWriter
	out    *reply.Writer
	client context.Context // ends when the client hangs up
	named  bool            // the run goes on without its client
	open   bool            // the answer has begun
	gone   error           // the client does not read any more
	// short tells that an event is not all on its way, so that the client cannot have
	// it. Of one that is it may have everything although what follows failed: it goes
	// away when it has the last event.
	short bool
	buf   bytes.Buffer
}

// event sends an event at once. An error gives the run up.
func (s *stream) event(e api.Event) error {
	if s.gone == nil {
		s.gone = s.send(e)
	}
	if s.named {
		return nil
	}
	return s.gone
}

func (s *stream) send(e api.Event) error {
	if !s.open {
		s.open = true
		s.w.Header().Set("Content-Type", api.MediaEvents)
		s.w.Header().Set("Cache-Control", "no-store")
	}
	s.buf.Reset()
	enc := json.NewEncoder(&s.buf) // ends the line
	enc.SetEscapeHTML(false)
	if err := enc.Encode(e); err != nil {
		return err
	}
	if _, err := s.out.Write(s.buf.Bytes()); err != nil {
		s.short = true
		return err
	}
	return s.out.Flush()
}

// output sends a piece of output, as several events where it is long.
func (s *stream) output(ms float64, n int, b []byte) error {
	for len(b) > 0 {
		piece := b
		if len(b) > maxPiece {
			piece = b[:maxPiece]
			piece = piece[:recall.Whole(piece)]
		}
		e := api.Event{Event: api.EventOutput, MS: ms, Stream: streamName(n)}
		if utf8.Valid(piece) {
			text := string(piece)
			e.Text = &text
		} else {
			text := base64.StdEncoding.EncodeToString(piece)
			e.Base64 = &text
		}
		if err := s.event(e); err != nil {
			return err
		}
		b = b[len(piece):]
	}
	return nil
}

// streamName is the name of an output stream.
func streamName(n int) string {
	if n == 2 {
		return "stderr"
	}
	return "stdout"
}
