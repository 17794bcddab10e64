package engine

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"

	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/v2/cmd/containerd/server"
	"github.com/containerd/containerd/v2/cmd/containerd/server/config"
	"github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/containerd/v2/plugins"
	// containerd's plugins register themselves.
	_ "github.com/containerd/containerd/v2/plugins/content/local/plugin"
	_ "github.com/containerd/containerd/v2/plugins/events"
	_ "github.com/containerd/containerd/v2/plugins/metadata"
	"github.com/containerd/containerd/v2/plugins/services"
	_ "github.com/containerd/containerd/v2/plugins/services/tasks"
	_ "github.com/containerd/containerd/v2/plugins/services/warning"
	_ "github.com/containerd/containerd/v2/plugins/snapshots/native/plugin"
	"github.com/containerd/containerd/v2/version"
	"github.com/containerd/plugin"
	"github.com/containerd/plugin/registry"
	"github.com/containerd/typeurl/v2"
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// embedded is containerd in this process.
type embedded struct {
	server     *server.Server
	db         *metadata.DB
	containers *store
	tasks      tasksapi.TasksClient
}

// embedKey is the context's key of what the plugins of this package get and give.
type embedKey struct{}

type embedding struct {
	runtime *taskRuntime
	out     *embedded
}

// accessPlugin hands the services out; containerd has no other way for a program
// that it is part of than its client, which needs much more of it.
const accessPlugin = plugin.Type("io.pybox.access.v1")

func init() {
	// As containerd's client names it, in whose stead we write the records.
	typeurl.Register(&specs.Spec{}, "types.containerd.io", "opencontainers/runtime-spec", strconv.Itoa(specs.VersionMajor), "Spec")
	registry.Register(&plugin.Registration{
		Type: plugins.RuntimePluginV2, ID: "task",
		InitFn: func(ic *plugin.InitContext) (any, error) {
			e, err := embeddingOf(ic)
			if err != nil {
				return nil, err
			}
			return e.runtime, nil
		},
	})
	registry.Register(&plugin.Registration{
		Type: accessPlugin, ID: "services",
		Requires: []plugin.Type{plugins.MetadataPlugin, plugins.ServicePlugin},
		InitFn:   access,
	})
}

func embeddingOf(ic *plugin.InitContext) (*embedding, error) {
	e, ok := ic.Context.Value(embedKey{}).(*embedding)
	if !ok {
		return nil, errors.New("not started by this package")
	}
	return e, nil
}

func access(ic *plugin.InitContext) (any, error) {
	e, err := embeddingOf(ic)
	if err != nil {
		return nil, err
	}
	db, err := ic.GetSingle(plugins.MetadataPlugin)
	if err != nil {
		return nil, err
	}
	tasks, err := ic.GetByID(plugins.ServicePlugin, services.TasksService)
	if err != nil {
		return nil, err
	}
	e.out.db = db.(*metadata.DB)
	e.out.containers = newStore(metadata.NewContainerStore(e.out.db))
	e.out.tasks = tasks.(tasksapi.TasksClient)
	return e.out, nil
}

// embed starts containerd; ctx is its life.
func embed(ctx context.Context, o Options, r *taskRuntime) (*embedded, error) {
	out := new(embedded)
	ctx = context.WithValue(ctx, embedKey{}, &embedding{r, out})
	c := &config.Config{
		Version:         version.ConfigVersion,
		Root:            o.Root,
		State:           filepath.Join(o.State, "containerd"),
		Timeouts:        map[string]string{"io.containerd.timeout.bolt.open": "5s"},
		RequiredPlugins: []string{string(accessPlugin) + ".services"},
	}
	if err := server.CreateTopLevelDirectories(c); err != nil {
		return nil, err
	}
	s, err := server.New(ctx, c)
	if err != nil {
		return nil, err
	}
	out.server = s
	if err := s.Start(ctx); err != nil {
		return nil, fmt.Errorf("start its servers: %w", err)
	}
	return out, nil
}

func (e *embedded) close() { e.server.Stop() }
