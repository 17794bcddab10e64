package runapi

import (
	"encoding/base64"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/pybox/pybox/host/api"
	"github.com/pybox/pybox/host/receipt"
	"github.com/pybox/pybox/host/reply"
	"github.com/pybox/pybox/host/spool"
)

func (h *Handler) postFile(w http.ResponseWriter, r *http.Request) {
	defer h.o.VM.Use()() // its run is soon to come
	file, err := h.store(w, r)
	if err != nil {
		h.discard(w, r, spool.MaxFileBytes, err)
		reply.Problem(w, h.problem(err))
		return
	}
	reply.JSON(w, file)
}

func (h *Handler) store(w http.ResponseWriter, r *http.Request) (api.StoredFile, error) {
	tooLarge := reply.TooLarge(spool.MaxFileBytes, "one file of a run can be no larger")
	if r.ContentLength > spool.MaxFileBytes {
		return api.StoredFile{}, tooLarge
	}
	file, err := h.o.Files.Put(reply.Body(w, r, spool.MaxFileBytes, h.times.stall, h.times.file))
	var big *http.MaxBytesError
	if errors.As(err, &big) || errors.Is(err, spool.ErrTooLarge) {
		return file, tooLarge
	}
	return file, err
}

// pieceBytes is the size of the pieces that a file is read and written in.
const pieceBytes = 64 << 10

// getFile gives a file that a run left.
func (h *Handler) getFile(w http.ResponseWriter, r *http.Request) {
	f, err := h.o.Files.Read(r.PathValue("file"))
	if err != nil {
		reply.Problem(w, h.lost(err))
		return
	}
	defer f.Close()
	defer h.o.VM.Use()() // which keeps the daemon, and so the file
	out, release := h.writer(w)
	defer release()
	out.Until(time.Now().Add(h.times.file))
	header := w.Header()
	header.Set("Content-Type", "application/octet-stream")
	header.Set("Content-Length", strconv.FormatInt(f.File.Bytes, 10))
	header.Set("Cache-Control", "no-store")
	header.Set("Repr-Digest", reprDigest(f.File.SHA256))
	if r.Method == http.MethodHead {
		return
	}
	if _, err := io.CopyBuffer(out, f, make([]byte, pieceBytes)); err != nil {
		h.o.Log.Info("a client did not take a file", "error", err)
		// The answer is shorter than it says: the connection ends, and the client
		// learns of it.
	}
}

// reprDigest is a SHA-256 as the field Repr-Digest has it (RFC 9530, section 3).
func reprDigest(hexadecimal string) string {
	sum, err := hex.DecodeString(hexadecimal)
	if err != nil {
		panic("runapi: the digest of a stored file: " + err.Error())
	}
	return "sha-256=:" + base64.StdEncoding.EncodeToString(sum) + ":"
}

// deleteFile forgets a file: one that waits for its run, or that a run left.
func (h *Handler) deleteFile(w http.ResponseWriter, r *http.Request) {
	if err := h.o.Files.Forget(r.PathValue("file")); err != nil {
		reply.Problem(w, h.lost(err))
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// lost is the problem of a file that is not there, without the advice for one that a
// run was to have.
func (h *Handler) lost(err error) *api.Problem {
	p := *h.problem(err)
	if errors.Is(err, spool.ErrNotFound) {
		p.Next = ""
	}
	return &p
}

// forget gives up what a run left whose client does not get its receipt, and so no ids.
func (h *Handler) forget(rec *receipt.Receipt) {
	var ids []string
	for _, f := range rec.Program.Files {
		if f.File != "" {
			ids = append(ids, f.File)
		}
	}
	h.forgetFiles(ids)
}

func (h *Handler) forgetFiles(ids []string) {
	for _, id := range ids {
		_ = h.o.Files.Forget(id) // its time may be over
	}
}
