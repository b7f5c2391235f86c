// Package kubeproxy runs upstream's kube-proxy inside the process "node", in nftables mode, with
// its configuration file as data. It needs /usr/sbin/nft in PATH; iptables is not in the image.
package kubeproxy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/kubernetes/cmd/kube-proxy/app"
	"k8s.io/kubernetes/pkg/proxy/nftables"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/orchestrator/kubeconfig"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// Name is the component's name.
const Name = "kube-proxy"

// HealthPort is the port of the health endpoint, on loopback without TLS. The endpoint reports
// health after a sync of the rules, and a failure when a sync is overdue.
const HealthPort = 10256

// Component describes kube-proxy without its Run function. If an external component replaces
// kube-proxy, it describes the placeholder.
func Component(spec nodespec.Spec, dirs dirs.Dirs) component.Component {
	path := filepath.Join(dirs.Node, "kube-proxy.yaml")
	if spec.External.Proxy {
		return component.Component{Process: component.Node, Name: Name, Run: func(ctx context.Context, announce component.Announce) error {
			return runExternal(ctx, path, nftables.CleanupLeftovers, announce)
		}}
	}
	client := kubeconfig.NodeFile(spec, dirs, Name, nodespec.ProxyCert, nodespec.ProxyKey)
	config := component.File{Path: path, Mode: 0o600, Content: configuration(spec, client.Path)}
	return component.Component{
		Process: component.Node,
		Name:    Name,
		Args:    []string{"--config=" + config.Path},
		Files:   []component.File{client, config},
	}
}

// configuration returns kube-proxy's configuration file. Node ports answer only on the node's own
// addresses, not on loopback or the bridge. The file lists these addresses and does not use
// upstream's "primary", which reads them from the Node at the start. After a change of the address
// the Node still has the old address, and if the Node has no address, node ports would answer on
// all addresses.
//
// Traffic from the pod ranges is local and keeps its source address; kube-proxy masquerades all
// other traffic to a service address. Without configured ranges, external addresses of Services
// have no effect, also for Services that are older than the admission check. The zeros leave the
// parameters of connection tracking to machined/host, which sets upstream's values or the
// operator's.
func configuration(spec nodespec.Spec, client string) string {
	return fmt.Sprintf(`apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
hostnameOverride: %s
bindAddress: %q
clientConnection:
  kubeconfig: %s
clusterCIDR: %s
detectLocalMode: ClusterCIDR
nodePortAddresses: [%s]
healthzBindAddress: 127.0.0.1:%d
metricsBindAddress: 127.0.0.1:10249
enableProfiling: false
conntrack:
  maxPerCore: 0
  min: 0
  tcpEstablishedTimeout: 0s
  tcpCloseWaitTimeout: 0s
featureGates:
  AllowServiceExternalIPs: %t
%s`, spec.Node.Name, spec.Node.IPs[0], client, component.JoinPrefixes(spec.Network.PodCIDRs), component.JoinPrefixes(nodePorts(spec.Node.IPs)),
		HealthPort, len(spec.Network.ExternalIPs) > 0, gateLines(spec.Kubernetes.FeatureGates))
}

// gateLines returns the configured feature gates as lines of the file.
func gateLines(gates config.FeatureGates) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(gates)) {
		fmt.Fprintf(&b, "  %s: %t\n", name, gates[name])
	}
	return b.String()
}

// nodePorts returns the addresses of node ports: the node's first address of each family, which the
// kubelet also sets on the Node.
func nodePorts(own []netip.Addr) []netip.Prefix {
	ports := []netip.Prefix{netip.PrefixFrom(own[0], own[0].BitLen())}
	if i := slices.IndexFunc(own, func(ip netip.Addr) bool { return ip.Is6() != own[0].Is6() }); i >= 0 {
		ports = append(ports, netip.PrefixFrom(own[i], own[i].BitLen()))
	}
	return ports
}

// Run runs kube-proxy with upstream's flags args until it fails. When ctx is done, Run returns
// although upstream's loop cannot be stopped, so the process has to exit. The rules stay in the
// kernel. Run first waits for rights, because kube-proxy repeats a rejected request only seconds
// later.
func Run(ctx context.Context, args []string, rights func(context.Context) error) error {
	opts, err := parse(args)
	if err != nil {
		return err
	}
	if err := rights(ctx); err != nil {
		return nil // stopped before kube-proxy began
	}
	failed := make(chan error, 1)
	go func() { failed <- opts.Run(ctx) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
		return nil
	}
}

// runExternal removes the rules that an earlier kube-proxy left in the kernel, and then is ready
// until ctx is done. An existing configuration file shows that kube-proxy ran since the boot,
// because the file, like the rules, is only in memory. The cleanup happens only once. An external
// kube-proxy has its rules in tables of the same names, and would not notice for an hour that a
// later cleanup has removed them.
func runExternal(ctx context.Context, configuration string, cleanup func(context.Context) (failed bool), announce component.Announce) error {
	if _, err := os.Stat(configuration); err == nil {
		if cleanup(ctx) && ctx.Err() == nil {
			return errors.New("cannot remove its rules from the kernel; see the log")
		}
		if err := os.Remove(configuration); err != nil {
			return fmt.Errorf("cannot remove its former configuration: %w", err)
		}
	}
	announce(Name, true, component.ExternalDetail("an external component makes Services reachable"))
	<-ctx.Done()
	return nil
}

// parse turns upstream's flags and the configuration file into upstream's options, completed and
// validated.
func parse(args []string) (*app.Options, error) {
	opts := app.NewOptions()
	flags := pflag.NewFlagSet(Name, pflag.ContinueOnError)
	opts.AddFlags(flags)
	if err := flags.Parse(args); err != nil {
		return nil, fmt.Errorf("flags: %w", err)
	}
	if err := opts.Complete(flags); err != nil {
		return nil, fmt.Errorf("flags: %w", err)
	}
	if err := opts.Validate(); err != nil {
		return nil, fmt.Errorf("flags: %w", err)
	}
	return opts, nil
}
