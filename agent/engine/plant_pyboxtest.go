//go:build linux && pyboxtest

package engine

import (
	"context"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/namespaces"
)

// PlantRecord makes a container record in any namespace of containerd and with any
// labels, which nothing but a test does. No container follows.
func (e *Engine) PlantRecord(ctx context.Context, namespace, id string, labels map[string]string) error {
	record, err := newRecord(id, nil, nil)
	if err != nil {
		return err
	}
	record.Labels = labels
	_, err = e.server.containers.Create(namespaces.WithNamespace(ctx, namespace), record)
	return err
}

// Record reads a container record of any namespace.
func (e *Engine) Record(ctx context.Context, namespace, id string) (containers.Container, error) {
	return e.server.containers.Get(namespaces.WithNamespace(ctx, namespace), id)
}

// DropRecord removes a container record of any namespace.
func (e *Engine) DropRecord(ctx context.Context, namespace, id string) error {
	return e.server.containers.Delete(namespaces.WithNamespace(ctx, namespace), id)
}

// HoldStore makes everybody wait who would write to containerd's data base, until
// ctx ends.
func (e *Engine) HoldStore(ctx context.Context) { hold(ctx, e.server.db.Update) }

// hold is in a transaction of the kind T until ctx ends.
func hold[T any](ctx context.Context, update func(func(T) error) error) {
	held := make(chan struct{})
	go func() {
		_ = update(func(T) error {
			close(held)
			<-ctx.Done()
			return nil
		})
	}()
	<-held
}
