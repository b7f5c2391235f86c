package kubelet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/pflag"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/kubernetes"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/kubernetes/cmd/kubelet/app"
	"k8s.io/kubernetes/cmd/kubelet/app/options"
	"k8s.io/kubernetes/pkg/kubelet"
	"k8s.io/kubernetes/pkg/kubelet/kubeletconfig/configfiles"
	"k8s.io/kubernetes/pkg/util/filesystem"

	"github.com/orlop-os/orlop/orchestrator/apiready"
	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// Run runs the kubelet with upstream's flags args until ctx is done. Pods continue to run after
// that. labels are the labels and taints of a new Node. After a signal on down, the kubelet ends
// the pods in order and accepts no new pods, and then Run calls ended. bus is the path of the
// kubelet's D-Bus socket. revoked is the path of the file of revoked client certificates.
// offlineAPI reports whether the offline API server can answer until an API server is ready.
func Run(ctx context.Context, args []string, labels nodespec.NodeLabels, gate *apiready.Waiter, offlineAPI bool, revoked, bus string, down <-chan os.Signal, ended func()) error {
	server, err := parse(ctx, args)
	if err != nil {
		return err
	}
	registerLabels(server, labels)
	assignments, err := assignmentsOf(server.KubeletConfiguration)
	if err != nil {
		return err
	}
	if err := resetAssignments(server.RootDirectory, assignments); err != nil {
		return err
	}
	logind, err := newLogind(bus, server.ShutdownGracePeriod.Duration)
	if err != nil {
		return err
	}
	defer logind.close()
	parts, err := prepare(ctx, server)
	if err != nil {
		return err
	}
	config, err := connect(server, parts, gate)
	if err != nil {
		return err
	}
	if err := rejectRevoked(ctx, server, parts, revoked); err != nil {
		return err
	}
	if offlineAPI {
		if err := holdRemovals(ctx, parts, config, server.HostnameOverride); err != nil {
			return err
		}
	}
	var podsEnded atomic.Bool
	go func() {
		select {
		case <-down:
		case <-ctx.Done():
			return
		}
		if err := logind.shutdown(ctx); err != nil {
			return
		}
		podsEnded.Store(true)
		if err := awaitReports(ctx, parts.KubeClient, server.HostnameOverride); err != nil {
			fmt.Fprintf(os.Stderr, "kubelet: the pods have ended, but the API server may not know about all of them: %v\n", err)
		}
		ended()
	}()
	if err := component.AwaitSocket(ctx, strings.TrimPrefix(server.ContainerRuntimeEndpoint, "unix://")); err != nil {
		return nil // stopped before the kubelet began
	}
	err = app.Run(ctx, server, parts, utilfeature.DefaultFeatureGate)
	if podsEnded.Load() {
		// The next boot may run an earlier version, after a rollback, and that version may not know
		// these assignments.
		return errors.Join(err, resetAssignments(server.RootDirectory, ""))
	}
	return err
}

// reportTimeout bounds the time in which the kubelet reports the ends of the pods to the API
// server. silenceTimeout bounds the time in which the API server does not answer. After either time
// the machine shuts down without the reports.
const (
	reportTimeout  = 15 * time.Second
	silenceTimeout = 5 * time.Second
)

// awaitReports waits until the API server knows that every pod of the node has ended. The kubelet
// releases its lock when the containers have ended, but reports their end only after that.
func awaitReports(ctx context.Context, client kubernetes.Interface, node string) error {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	notEnded := metav1.ListOptions{FieldSelector: "spec.nodeName=" + node + ",status.phase!=Succeeded,status.phase!=Failed"}
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for answered := time.Now(); ; {
		asking, done := context.WithTimeout(ctx, silenceTimeout)
		list, err := client.CoreV1().Pods("").List(asking, notEnded)
		done()
		switch {
		case err != nil && time.Since(answered) > silenceTimeout:
			return err
		case err == nil && len(list.Items) == 0:
			return nil
		case err == nil:
			answered = time.Now()
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			if err == nil {
				err = fmt.Errorf("it still lists %d, the first is %s/%s", len(list.Items), list.Items[0].Namespace, list.Items[0].Name)
			}
			return err
		}
	}
}

// parse turns upstream's flags and the configuration file into upstream's options. Upstream's Run
// validates them.
func parse(ctx context.Context, args []string) (*options.KubeletServer, error) {
	server, err := options.NewKubeletServer()
	if err != nil {
		return nil, fmt.Errorf("cannot make options: %w", err)
	}
	flags := pflag.NewFlagSet(Name, pflag.ContinueOnError)
	server.KubeletFlags.AddFlags(flags)
	if err := flags.Parse(args); err != nil {
		return nil, fmt.Errorf("flags: %w", err)
	}
	loader, err := configfiles.NewFsLoader(&filesystem.DefaultFs{}, server.KubeletConfigFile)
	if err != nil {
		return nil, fmt.Errorf("%s: cannot read: %w", server.KubeletConfigFile, err)
	}
	config, err := loader.Load(ctx)
	if err != nil {
		return nil, fmt.Errorf("%s: cannot use: %w", server.KubeletConfigFile, err)
	}
	if err := utilfeature.DefaultMutableFeatureGate.SetFromMap(config.FeatureGates); err != nil {
		return nil, fmt.Errorf("%s: feature gates: %w", server.KubeletConfigFile, err)
	}
	server.KubeletConfiguration = *config
	return server, nil
}

// prepare returns upstream's dependencies of a kubelet, but without the prober for FlexVolume
// drivers. The prober runs programs of a directory as root. The directory could only be on the DATA
// partition, and the system runs no programs from that partition.
func prepare(ctx context.Context, server *options.KubeletServer) (*kubelet.Dependencies, error) {
	parts, err := app.UnsecuredDependencies(ctx, server, utilfeature.DefaultFeatureGate)
	if err != nil {
		return nil, fmt.Errorf("cannot prepare: %w", err)
	}
	parts.DynamicPluginProber = nil
	return parts, nil
}

// registerLabels makes the kubelet create a new Node with the configured labels. If the
// configuration has taints, the Node also gets a taint that keeps pods off until the configured
// taints are set.
func registerLabels(server *options.KubeletServer, labels nodespec.NodeLabels) {
	for key, value := range labels.Labels {
		server.NodeLabels[key] = value
	}
	if len(labels.Taints) > 0 {
		server.RegisterWithTaints = append(server.RegisterWithTaints, v1.Taint{Key: nodespec.TaintsPending, Effect: v1.TaintEffectNoSchedule})
	}
}

// connect gives the kubelet its three clients as upstream makes them, and returns the configuration
// of the first client. The requests of each client wait for gate.
func connect(server *options.KubeletServer, parts *kubelet.Dependencies, gate *apiready.Waiter) (*rest.Config, error) {
	config, err := component.LoadConfig(server.KubeConfig)
	if err != nil {
		return nil, err
	}
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	config.QPS, config.Burst = float32(server.KubeAPIQPS), int(server.KubeAPIBurst)
	config.Wrap(gate.WrapTransport)
	if parts.KubeClient, err = component.NewClient(config); err != nil {
		return nil, err
	}
	events := rest.CopyConfig(config)
	events.QPS, events.Burst = float32(server.EventRecordQPS), int(server.EventBurst)
	if parts.EventClient, err = corev1.NewForConfig(events); err != nil {
		return nil, fmt.Errorf("cannot make client for events: %w", err)
	}
	// Heartbeats are never rate-limited, and a heartbeat times out when the next is due.
	heartbeat := rest.CopyConfig(config)
	heartbeat.QPS = -1
	heartbeat.Timeout = server.NodeStatusUpdateFrequency.Duration
	client, err := rest.HTTPClientFor(heartbeat)
	if err != nil {
		return nil, fmt.Errorf("cannot make client for heartbeats: %w", err)
	}
	if parts.HeartbeatClient, err = kubernetes.NewForConfigAndClient(heartbeat, client); err != nil {
		return nil, fmt.Errorf("cannot make client for heartbeats: %w", err)
	}
	parts.OnHeartbeatFailure = client.CloseIdleConnections
	return config, nil
}
