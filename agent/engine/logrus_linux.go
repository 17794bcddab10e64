package engine

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/containerd/log"
)

// forwardContainerd sends what containerd logs to l alone: errors for now, and
// warnings too once begun is called (those of its start say what it makes of a file
// system, each time), until ended is.
func forwardContainerd(l *limitedLog) (begun, ended func()) {
	logger := log.L.Logger
	logger.SetOutput(io.Discard)
	logger.SetLevel(log.ErrorLevel)
	ended = func() { logger.ReplaceHooks(emptyLike(logger.ReplaceHooks(nil))) }
	ended() // an earlier engine's
	logger.AddHook(logHook{l})
	return func() { logger.SetLevel(log.WarnLevel) }, ended
}

// emptyLike returns an empty map of m's type, which only logrus has a name for.
func emptyLike[M ~map[K]V, K comparable, V any](M) M { return M{} }

// logHook is a logrus.Hook.
type logHook struct{ l *limitedLog }

// Levels implements logrus.Hook.
func (logHook) Levels() []log.Level {
	return []log.Level{log.PanicLevel, log.FatalLevel, log.ErrorLevel, log.WarnLevel}
}

// Fire implements logrus.Hook.
func (h logHook) Fire(e *log.Entry) error {
	var b strings.Builder
	b.WriteString(e.Message)
	for _, k := range slices.Sorted(maps.Keys(e.Data)) {
		fmt.Fprintf(&b, " %s=%v", k, e.Data[k])
	}
	h.l.line("containerd", b.String())
	return nil
}
