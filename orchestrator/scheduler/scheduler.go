// Package scheduler runs upstream's kube-scheduler inside the process "controllers", with its flags
// and configuration file as data. It prepares the scheduler while the API server starts and runs it
// as soon as its rights exist.
package scheduler

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/spf13/pflag"
	"k8s.io/kubernetes/cmd/kube-scheduler/app"
	"k8s.io/kubernetes/cmd/kube-scheduler/app/options"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/orchestrator/kubeconfig"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// Name is the component's name.
const Name = "kube-scheduler"

// Port is the port of the health endpoint, on loopback.
const Port = 10259

// Component describes the scheduler without its Run function.
func Component(spec nodespec.Spec, dirs dirs.Dirs) component.Component {
	client := kubeconfig.ControllersFile(spec, dirs, Name, nodespec.SchedulerCert, nodespec.SchedulerKey)
	config := component.File{Path: ConfigFile(dirs), Mode: 0o600, Content: configuration(client.Path)}
	return component.Component{
		Process: component.Controllers,
		Name:    Name,
		Args:    slices.Concat([]string{"--config=" + config.Path}, component.ServingFlags(dirs.Controllers, client.Path, Port), component.EmulationFlags(spec)),
		Files:   []component.File{client, config},
	}
}

// ConfigFile returns the path of the scheduler's configuration file.
func ConfigFile(dirs dirs.Dirs) string { return filepath.Join(dirs.Controllers, "kube-scheduler.yaml") }

// configuration returns the scheduler's configuration file. The scheduler's own leader election is
// off, because package leaderelection runs the controllers of a single process.
func configuration(client string) string {
	return fmt.Sprintf(`apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection:
  kubeconfig: %s
leaderElection:
  leaderElect: false
enableProfiling: false
enableContentionProfiling: false
`, client)
}

// Run runs the scheduler with upstream's flags args until ctx is done. After the preparation it
// waits for rights, which returns when the component has its rights.
func Run(ctx context.Context, args []string, rights func(context.Context) error) error {
	opts := options.NewOptions()
	flags := pflag.NewFlagSet(Name, pflag.ContinueOnError)
	for _, set := range opts.Flags.FlagSets {
		flags.AddFlagSet(set)
	}
	if err := flags.Parse(args); err != nil {
		return fmt.Errorf("flags: %w", err)
	}
	if err := opts.ComponentGlobalsRegistry.Set(); err != nil {
		return fmt.Errorf("feature gates: %w", err)
	}
	config, prepared, err := app.Setup(ctx, opts)
	if err != nil {
		return fmt.Errorf("cannot prepare: %w", err)
	}
	if err := rights(ctx); err != nil {
		return nil // stopped before the scheduler began
	}
	err = app.Run(ctx, config, prepared)
	if ctx.Err() != nil {
		return nil // upstream returns an error for every end
	}
	return err
}
