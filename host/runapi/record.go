package runapi

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"

	agentapi "github.com/pybox/pybox/agent/api"
	"github.com/pybox/pybox/host/recall"
	"github.com/pybox/pybox/host/receipt"
	"github.com/pybox/pybox/host/reply"
)

// NotKept is the header of an answer whose receipt could not be stored; it says why.
const NotKept = "PyBox-Not-Kept"

// record is the answer of a client that wants receipt and output in one piece.
type record struct {
	w       http.ResponseWriter
	out     *reply.Writer
	client  context.Context // ends when the client hangs up
	streams [2]recall.Output
}

// add keeps a piece of output, as long as there is somebody to give it to.
func (r *record) add(_ float64, n int, b []byte) error {
	if r.client.Err() != nil {
		r.streams = [2]recall.Output{}
		return nil // a run without a name is being cancelled for that
	}
	r.streams[n-1].Add(b)
	return nil
}

// answer writes the receipt with the output in it. The output may be large and its
// JSON several times as large, so that it is never in memory as a whole. An error means
// that the client did not get it.
func (r *record) answer(rec *receipt.Receipt, notKept error) error {
	full := *rec // the receipt is also somebody else's
	marks := [2]string{rand.Text(), rand.Text()}
	for i, s := range []*receipt.Stream{&full.Program.Stdout, &full.Program.Stderr} {
		if r.streams[i].End(); r.streams[i].Text() {
			s.Text = &marks[i]
		} else {
			s.Base64 = &marks[i]
		}
	}
	b, err := json.Marshal(full)
	if err != nil { // no value of a receipt
		http.Error(r.w, err.Error(), http.StatusInternalServerError)
		return err
	}
	r.w.Header().Set("Content-Type", "application/json")
	if notKept != nil {
		r.w.Header().Set(NotKept, agentapi.Text(notKept.Error(), agentapi.MaxSentence))
	}
	for i := range r.streams {
		before, after, _ := bytes.Cut(b, []byte(marks[i]))
		if _, err := r.out.Write(before); err != nil {
			return err
		}
		if err := writeOutput(r.out, &r.streams[i]); err != nil {
			return err
		}
		b = after
	}
	_, err = r.out.Write(append(b, '\n'))
	return err
}

// writeOutput writes the inside of the JSON string that the output becomes.
func writeOutput(w io.Writer, o *recall.Output) error {
	if o.Text() {
		for _, c := range o.Chunks() {
			if _, err := w.Write(inString(c)); err != nil {
				return err
			}
		}
		return nil
	}
	enc := base64.NewEncoder(base64.StdEncoding, w)
	for _, c := range o.Chunks() {
		if _, err := enc.Write(c); err != nil {
			return err
		}
	}
	return enc.Close()
}

// inString is text as it stands between the quotes of a JSON string.
func inString(text []byte) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.Encode(string(text)) // no string fails
	return bytes.TrimSuffix(b.Bytes(), []byte("\"\n"))[1:]
}
