// Package controllermanager runs upstream's kube-controller-manager, with its flags as data, in a
// separate process that the process "controllers" starts. The separate process has three reasons.
// Upstream's program ends when one of its controllers cannot start, and the scheduler must not end,
// too. In one process, upstream's program cannot start twice (cache.NewInformerName). Every
// controller acts under its own service account.
//
// The process prepares itself while the API server starts. It runs the controllers only when their
// rights exist, because a controller without rights backs off for seconds.
package controllermanager

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app/options"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/orchestrator/kubeconfig"
	"github.com/orlop-os/orlop/orchestrator/nodecontrollers"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/emulation"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// Name is the name of the component.
const Name = "kube-controller-manager"

// Port is the port of the health endpoint of the controller manager, on loopback.
const Port = 10257

// Component describes the controller manager without its Run function.
func Component(spec nodespec.Spec, dirs dirs.Dirs) component.Component {
	config := kubeconfig.ControllersFile(spec, dirs, Name, nodespec.ControllersCert, nodespec.ControllersKey)
	return component.Component{
		Process: component.Controllers,
		Name:    Name,
		Args:    flags(spec, dirs, config.Path),
		Files:   []component.File{config},
	}
}

func flags(spec nodespec.Spec, dirs dirs.Dirs, client string) []string {
	at := func(name string) string { return filepath.Join(dirs.Controllers, name) }
	args := slices.Concat([]string{"--kubeconfig=" + client}, component.ServingFlags(dirs.Controllers, client, Port), []string{
		// With several machines, package leaderelection elects a process for all of its
		// controllers.
		"--leader-elect=false",
		"--use-service-account-credentials=true",
		"--service-account-private-key-file=" + at(nodespec.ServiceAccountKey),
		"--root-ca-file=" + at(nodespec.CA),
		"--cluster-signing-cert-file=" + at(nodespec.SigningCA),
		"--cluster-signing-key-file=" + at(nodespec.CAKey),
		"--cluster-name=" + spec.Cluster,
		"--controllers=*,-" + strings.Join(nodecontrollers.Extracted, ",-"),
		"--allocate-node-cidrs=false",
		"--controller-start-interval=0s",
		fmt.Sprintf("--terminated-pod-gc-threshold=%d", spec.Kubernetes.FinishedPods),
		// Every controller has a separate limit; the default of 20 requests a second slows the
		// controllers in their first minute.
		"--kube-api-qps=100",
		"--kube-api-burst=200",
		"--profiling=false",
	}, settingFlags(spec.Kubernetes.ControllerManager), component.EmulationFlags(spec), component.GateFlags(spec))
	if spec.PodCertificates && spec.Emulated.Known() && spec.Emulated.OlderThan(emulation.Minor{Major: 1, Minor: 37}) {
		// the controller manager publishes trust bundles for pod certificates, so it needs the
		// feature gates of pod certificates
		args = append(args, component.GateFlag(config.PodCertificateGates()))
	}
	return args
}

// settingFlags are the flags of the configured settings of controllers.
func settingFlags(c config.ControllerManager) []string {
	hpa := c.PodAutoscaler
	return []string{
		"--node-monitor-grace-period=" + c.NodeMonitorGracePeriod.String(),
		"--horizontal-pod-autoscaler-sync-period=" + hpa.SyncPeriod.String(),
		fmt.Sprintf("--horizontal-pod-autoscaler-tolerance=%g", float64(hpa.TolerancePercent)/100),
		"--horizontal-pod-autoscaler-downscale-stabilization=" + hpa.DownscaleStabilization.String(),
		"--horizontal-pod-autoscaler-cpu-initialization-period=" + hpa.CPUInitializationPeriod.String(),
		"--horizontal-pod-autoscaler-initial-readiness-delay=" + hpa.InitialReadinessDelay.String(),
	}
}

// Run works with upstream's flags args until ctx is done. It calls rights after the preparation;
// rights waits until the RBAC rights of the component exist.
func Run(ctx context.Context, args []string, rights func(context.Context) error) error {
	opts, err := options.NewKubeControllerManagerOptions()
	if err != nil {
		return fmt.Errorf("cannot create options: %w", err)
	}
	flags := pflag.NewFlagSet(Name, pflag.ContinueOnError)
	for _, set := range opts.Flags(app.KnownControllers(), app.ControllersDisabledByDefault(), app.ControllerAliases()).FlagSets {
		flags.AddFlagSet(set)
	}
	if err := flags.Parse(args); err != nil {
		return fmt.Errorf("flags: %w", err)
	}
	if err := opts.ComponentGlobalsRegistry.Set(); err != nil {
		return fmt.Errorf("feature gates: %w", err)
	}
	// Controllers watch every API, including old versions, and need no warnings about them.
	rest.SetDefaultWarningHandler(rest.NoWarnings{})
	config, err := opts.Config(ctx, app.KnownControllers(), app.ControllersDisabledByDefault(), app.ControllerAliases())
	if err != nil {
		return fmt.Errorf("flags: %w", err)
	}
	if err := rights(ctx); err != nil {
		return nil // stopped before the start
	}
	return app.Run(ctx, config.Complete())
}
