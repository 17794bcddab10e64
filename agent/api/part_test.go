package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"google.golang.org/protobuf/proto"

	agentv1 "github.com/pybox/pybox/agent/api/v1"
)

// Parts of every kind come as they were sent, in memory that is there already.
func TestPartsAreReceivedIntoTheSameMemory(t *testing.T) {
	big := bytes.Repeat([]byte("0123456789abcdef"), MaxDataPiece/16)
	sent := []*agentv1.RunRequest{
		{Part: &agentv1.RunRequest_File{File: &agentv1.RunFile{Name: "f", Bytes: 3}}},
		{Part: &agentv1.RunRequest_Data{Data: big}},
		{Part: &agentv1.RunRequest_Data{Data: []byte("x")}},
		{},
		{Part: &agentv1.RunRequest_Data{Data: big[1:]}},
		{Part: &agentv1.RunRequest_Go{Go: &agentv1.RunGo{Stdin: true}}},
		{Part: &agentv1.RunRequest_Stdin{Stdin: big[2:]}},
		{Part: &agentv1.RunRequest_Stdin{}},
	}
	var at *byte // where the largest one is
	s := newStreamService(map[string]func(context.Context, *serverStream) error{"parts": func(_ context.Context, stream *serverStream) error {
		var p Part
		for i, want := range sent {
			if err := p.Receive(stream.Conn()); err != nil {
				return err
			}
			if !proto.Equal(p.Request, want) {
				return fmt.Errorf("part %d is %T with %d bytes", i, p.Request.GetPart(), len(p.Request.GetData()))
			}
			b := append(p.Request.GetData(), p.Request.GetStdin()...)[:0]
			if at == nil && cap(b) > 0 {
				at = &b[:1][0]
			} else if i > 1 && len(want.GetData()) > 0 && at != &b[:1][0] {
				return fmt.Errorf("part %d is elsewhere", i)
			}
		}
		if err := p.Receive(stream.Conn()); !errors.Is(err, io.EOF) {
			return fmt.Errorf("after the last part: %w", err)
		}
		return nil
	}})
	stream := startRun(t, t.Context(), newClient(t, dial(t, serve(t, s))), "parts")
	for _, m := range sent {
		if err := stream.Send(m); err != nil {
			t.Fatal(err)
		}
	}
	if err := stream.CloseRequest(); err != nil {
		t.Fatal(err)
	}
	if err := <-s.ended; err != nil {
		t.Error(err)
	}
}

// A Part takes exactly what protobuf takes, and is what protobuf makes of it.
func FuzzPart(f *testing.F) {
	for _, m := range []*agentv1.RunRequest{
		{},
		{Part: &agentv1.RunRequest_Data{Data: []byte("data")}},
		{Part: &agentv1.RunRequest_Data{}},
		{Part: &agentv1.RunRequest_Stdin{Stdin: []byte("in")}},
		{Part: &agentv1.RunRequest_File{File: &agentv1.RunFile{Name: "f"}}},
	} {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
		f.Add(append(b, b...))
	}
	f.Add([]byte{3<<3 | 2, 5, 'x'})
	f.Add([]byte{3<<3 | 2, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, b []byte) {
		p := Part{Request: &agentv1.RunRequest{}, buf: []byte("what was there before")}
		var want agentv1.RunRequest
		err, wantErr := codec{}.Unmarshal(b, &p), proto.Unmarshal(b, &want)
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("%v, protobuf says %v", err, wantErr)
		}
		if err == nil && !proto.Equal(p.Request, &want) {
			t.Errorf("%v, protobuf has %v", p.Request, &want)
		}
	})
}

func TestCodecTakesMessagesOnly(t *testing.T) {
	if err := (codec{}).Unmarshal(nil, 1); !errors.Is(err, errNoMessage) {
		t.Error(err)
	}
	if _, err := (codec{}).Marshal("x"); !errors.Is(err, errNoMessage) {
		t.Error(err)
	}
}
