// Package scheduler runs upstream's kube-scheduler inside the process "controllers". It makes the
// flags and the configuration file of the scheduler. It prepares the scheduler while the API server
// starts, and runs the scheduler as soon as the component has its rights.
package scheduler

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/cmd/kube-scheduler/app"
	"k8s.io/kubernetes/cmd/kube-scheduler/app/options"
	schedulerconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/validation"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/orchestrator/kubeconfig"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// Name is the component's name.
const Name = "kube-scheduler"

// Port is the port of the health endpoint, on loopback.
const Port = 10259

// Component describes the scheduler without its Run function.
func Component(spec nodespec.Spec, dirs dirs.Dirs) component.Component {
	client := kubeconfig.ControllersFile(spec, dirs, Name, nodespec.SchedulerCert, nodespec.SchedulerKey)
	config := component.File{Path: ConfigFile(dirs), Mode: 0o600, Content: configuration(spec, client.Path)}
	return component.Component{
		Process: component.Controllers,
		Name:    Name,
		Args: slices.Concat([]string{"--config=" + config.Path}, component.ServingFlags(dirs.Controllers, client.Path, Port),
			component.EmulationFlags(spec), component.GateFlags(spec)),
		Files: []component.File{client, config},
	}
}

// ConfigFile returns the path of the scheduler's configuration file.
func ConfigFile(dirs dirs.Dirs) string { return filepath.Join(dirs.Controllers, "kube-scheduler.yaml") }

// configuration returns the content of the scheduler's configuration file. client is the path of
// the kubeconfig. The leader election of the scheduler is off, because package leaderelection
// selects the machine that runs the controllers.
func configuration(spec nodespec.Spec, client string) string {
	return fmt.Sprintf(`apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection:
  kubeconfig: %s
leaderElection:
  leaderElect: false
enableProfiling: false
enableContentionProfiling: false
%s`, client, profiles(spec.Kubernetes.Scheduler.Profiles))
}

// apiVersion is the version of the configuration file and of the arguments of plugins.
const apiVersion = "kubescheduler.config.k8s.io/v1"

// object is a part of a YAML document.
type object = map[string]any

// profiles returns the field profiles of the configuration file. Without configured profiles it
// returns "", so upstream's default profile applies.
func profiles(all []config.SchedulerProfile) string {
	if len(all) == 0 {
		return ""
	}
	var items []object
	for _, p := range all {
		item := object{"schedulerName": p.Name, "pluginConfig": pluginConfigs(p)}
		if p.PercentageOfNodesToScore > 0 {
			item["percentageOfNodesToScore"] = p.PercentageOfNodesToScore
		}
		var on, off []object
		for _, w := range p.Weights {
			if w.Weight > 0 {
				on = append(on, object{"name": w.Plugin, "weight": w.Weight})
			} else {
				off = append(off, object{"name": w.Plugin})
			}
		}
		if len(p.Weights) > 0 {
			item["plugins"] = object{"score": object{"enabled": on, "disabled": off}}
		}
		items = append(items, item)
	}
	return component.YAML(object{"profiles": items})
}

// pluginConfigs returns the arguments of the plugins of a profile.
func pluginConfigs(p config.SchedulerProfile) []object {
	var resources, shape, constraints []object
	for _, r := range p.Scoring.Resources {
		resources = append(resources, object{"name": r.Name, "weight": r.Weight})
	}
	for _, point := range p.Scoring.Shape {
		shape = append(shape, object{"utilization": point.Utilization, "score": point.Score})
	}
	strategy := object{"type": p.Scoring.Strategy, "resources": resources}
	if len(shape) > 0 {
		strategy["requestedToCapacityRatio"] = object{"shape": shape}
	}
	args := func(name string, fields object) object {
		fields["apiVersion"], fields["kind"] = apiVersion, name+"Args"
		return object{"name": name, "args": fields}
	}
	configs := []object{args("NodeResourcesFit", object{"scoringStrategy": strategy})}
	for _, c := range p.TopologySpread {
		constraints = append(constraints, object{"topologyKey": c.TopologyKey, "maxSkew": c.MaxSkew, "whenUnsatisfiable": c.WhenUnsatisfiable})
	}
	if len(constraints) > 0 {
		configs = append(configs, args("PodTopologySpread", object{"defaultingType": "List", "defaultConstraints": constraints}))
	}
	return configs
}

// Check returns an error if the scheduler would not start with the settings of spec.
func Check(spec nodespec.Spec) error {
	decoded, _, err := scheme.Codecs.UniversalDecoder().Decode([]byte(configuration(spec, "/kubeconfig")), nil, nil)
	if err != nil {
		return err
	}
	config, ok := decoded.(*schedulerconfig.KubeSchedulerConfiguration)
	if !ok {
		return fmt.Errorf("the configuration is a %T", decoded)
	}
	config.APIVersion = apiVersion
	if errs := validation.ValidateKubeSchedulerConfiguration(config); errs != nil {
		return errs
	}
	// Upstream's validation above does not check the arguments of this plugin. The plugin checks
	// them when it starts.
	for i, p := range config.Profiles {
		for _, c := range p.PluginConfig {
			if args, ok := c.Args.(*schedulerconfig.NodeResourcesFitArgs); ok {
				if err := validation.ValidateNodeResourcesFitArgs(field.NewPath("profiles").Index(i).Child(c.Name), args); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// Run runs the scheduler with the given flags until ctx is done. Between the preparation and the
// start it calls rights, which waits until the component has its rights.
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
		return nil // ctx was done before the scheduler began
	}
	err = app.Run(ctx, config, prepared)
	if ctx.Err() != nil {
		return nil // upstream returns an error even after a regular end
	}
	return err
}
