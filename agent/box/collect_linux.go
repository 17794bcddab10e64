package box

import (
	"context"
	"errors"
	"fmt"

	"github.com/pybox/pybox/agent/api"
	agentv1 "github.com/pybox/pybox/agent/api/v1"
	"github.com/pybox/pybox/agent/collect"
)

// collect gives the client what the program left, however it ended, once nothing of
// the box runs and before it goes. An error means that the client has a part of a
// file and cannot get the rest.
func (l *life) collect(ctx context.Context) error {
	how := l.rec.GetEnding().GetHow()
	switch {
	case l.p.archive != nil && how == api.HowExited:
		if err := l.p.archive(ctx, l.cfg.Work); err != nil {
			l.unknown("what the program left in its working folder", err.Error())
		}
		l.stage("collected")
	case l.p.archive != nil, l.goAt == 0, how == api.HowRefused, how == api.HowCancelled:
		// There is nothing, or nobody who wants it.
	case l.rec.EmptyAtNs == 0:
		l.unknown(api.FactLeft, "the working folder was not looked at: processes of the box may be left, which can change it")
	default:
		return l.collectFiles(ctx)
	}
	return nil
}

func (l *life) collectFiles(ctx context.Context) error {
	look, cancel := context.WithTimeoutCause(l.giving, lookTimeout, fmt.Errorf("it took more than %v", lookTimeout))
	defer cancel()
	found, err := collect.Look(look, l.cfg.Work, l.p.known, l.p.left)
	if err != nil {
		l.unknown(api.FactLeft, err.Error())
		return nil
	}
	// The working folder cannot be removed before.
	defer func() {
		if err := found.Close(); err != nil {
			l.log.Warn("could not let go of the working folder", "error", err)
		}
	}()
	if found.Sends() {
		err = l.give(ctx, found)
	}
	l.rec.Left = found.Left()
	if why := found.Missing(); why != "" {
		l.unknown(api.FactLeft, why)
	}
	l.stage("files collected")
	return err
}

// errSlow: a client did not fetch its files in time.
var errSlow = fmt.Errorf("the client took more than %v to fetch the files: %w", giveTimeout, context.DeadlineExceeded)

// give sends what was found at the client's pace.
func (l *life) give(ctx context.Context, found *collect.Found) error {
	ctx, cancel := context.WithTimeoutCause(ctx, giveTimeout, errSlow)
	defer cancel()
	l.out.flush(ctx) // the output comes first
	large := false
	if l.p.bulk != nil {
		// A client that takes nothing ends with this, and learns of a file that is cut:
		// it may also have said that it wants no more, and never connect.
		defer l.p.bulk.Close()
		defer context.AfterFunc(ctx, func() { _ = l.p.bulk.Close() })()
		defer context.AfterFunc(l.giving, func() { _ = l.p.bulk.Close() })()
	}
	err := found.Send(l.giving, collect.Sink{
		Begin: func(f *agentv1.LeftFile) error {
			large = l.p.bulk != nil && f.GetBytes() > api.MaxDataPiece
			f.Bulk = large
			return l.out.hand(ctx, &agentv1.RunEvent{Event: &agentv1.RunEvent_LeftFile{LeftFile: f}})
		},
		Data: func(b []byte) error {
			if large {
				_, err := l.p.bulk.Write(b)
				return err
			}
			return l.out.hand(ctx, &agentv1.RunEvent{Event: &agentv1.RunEvent_LeftData{LeftData: b}})
		},
	})
	if err != nil && !errors.Is(err, errStreamOver) && ctx.Err() == nil {
		l.log.Error("what the program left could not be read", "error", err)
	}
	return err
}
