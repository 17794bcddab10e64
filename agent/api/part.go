package api

import (
	"errors"
	"fmt"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	agentv1 "github.com/pybox/pybox/agent/api/v1"
)

// Numbers of the fields of a RunRequest that are bytes.
const (
	fieldData  = 3
	fieldStdin = 5
)

// Part receives the parts of a run, one after the other, into the same memory: a
// file of 64 MiB would otherwise be as much garbage. The codec of a Server
// knows it. The zero value is ready; it is for one goroutine at a time.
type Part struct {
	// Request is what was received last. The bytes of a file or of standard input
	// in it are valid until the next one is received.
	Request *agentv1.RunRequest
	buf     []byte
}

// Receive receives the next one. The error is io.EOF after the last one.
func (p *Part) Receive(conn connect.StreamingHandlerConn) error {
	p.Request = &agentv1.RunRequest{} // an empty message is not even decoded
	return conn.Receive(p)
}

// unmarshal decodes b, of which it keeps nothing.
func (p *Part) unmarshal(b []byte) error {
	number, kind, n := protowire.ConsumeTag(b)
	if n < 0 || kind != protowire.BytesType || number != fieldData && number != fieldStdin {
		return proto.Unmarshal(b, p.Request)
	}
	v, m := protowire.ConsumeBytes(b[n:])
	if m < 0 || n+m != len(b) {
		return proto.Unmarshal(b, p.Request) // it says what is wrong, or takes the last
	}
	p.buf = append(p.buf[:0], v...)
	if number == fieldData {
		p.Request.Part = &agentv1.RunRequest_Data{Data: p.buf}
	} else {
		p.Request.Part = &agentv1.RunRequest_Stdin{Stdin: p.buf}
	}
	return nil
}

// codec is protobuf's, as connect has it, and knows Part.
type codec struct{}

// errNoMessage is a mistake of this program.
var errNoMessage = errors.New("no protobuf message")

// Name implements connect.Codec.
func (codec) Name() string { return "proto" }

// Marshal implements connect.Codec.
func (c codec) Marshal(m any) ([]byte, error) { return c.MarshalAppend(nil, m) }

// MarshalAppend is for connect, which marshals into buffers that it has.
func (codec) MarshalAppend(b []byte, m any) ([]byte, error) {
	if p, ok := m.(proto.Message); ok {
		return proto.MarshalOptions{}.MarshalAppend(b, p)
	}
	return nil, fmt.Errorf("%w: %T", errNoMessage, m)
}

// Unmarshal implements connect.Codec.
func (codec) Unmarshal(b []byte, m any) error {
	switch m := m.(type) {
	case *Part:
		return m.unmarshal(b)
	case proto.Message:
		return proto.Unmarshal(b, m)
	}
	return fmt.Errorf("%w: %T", errNoMessage, m)
}
