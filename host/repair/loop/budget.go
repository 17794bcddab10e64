package loop

import (
	"context"
	"errors"
	"math"
	"time"
)

// Causes by which a context ends whose budget is spent.
var (
	errWall  = errors.New("the time of the whole is over")
	errModel = errors.New("the time for the model is over")
	errRun   = errors.New("the time for runs is over")
)

// budget is an amount of time that is spent in pieces. It belongs to one goroutine.
type budget struct {
	total, used time.Duration
	over        error // the cause by which a context ends that has spent it
}

// part is the budget for a part of the whole. One that is no less than that is left
// to it: which of two timers is first at the same moment means nothing.
func part(total, whole time.Duration, over error) budget {
	if total >= whole {
		total = math.MaxInt64
	}
	return budget{total: total, over: over}
}

// left is what of it is not spent; at least 0.
func (b *budget) left() time.Duration { return max(b.total-b.used, 0) }

// spend begins to spend it. The context ends when nothing is left.
func (b *budget) spend(ctx context.Context) (context.Context, *piece) {
	ctx, cancel := context.WithCancelCause(ctx)
	p := &piece{budget: b, cancel: cancel, began: time.Now(), runs: true}
	p.timer = time.AfterFunc(b.left(), func() { cancel(b.over) })
	return ctx, p
}

// piece is a part of a budget that is being spent. Its methods are for the goroutine
// of the budget.
type piece struct {
	budget *budget
	cancel context.CancelCauseFunc
	timer  *time.Timer
	began  time.Time
	runs   bool
	spent  time.Duration
}

// pause keeps the budget as it is until resume.
func (p *piece) pause() {
	if !p.runs {
		return
	}
	p.timer.Stop()
	p.take()
	p.runs = false
}

func (p *piece) resume() {
	if p.runs {
		return
	}
	p.began, p.runs = time.Now(), true
	p.timer.Reset(p.budget.left())
}

// left is what is left of the budget at this moment.
func (p *piece) left() time.Duration {
	if !p.runs {
		return p.budget.left()
	}
	return max(p.budget.left()-time.Since(p.began), 0)
}

// end ends the context and gives what was spent.
func (p *piece) end() time.Duration {
	p.pause()
	p.cancel(nil)
	return p.spent
}

func (p *piece) take() {
	d := time.Since(p.began)
	p.budget.used += d
	p.spent += d
}
