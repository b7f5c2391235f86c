// Package kubeproxy runs upstream's kube-proxy inside the process "node", in nftables mode, with
// its configuration file as data. It needs /usr/sbin/nft in PATH; iptables is not in the image.
package kubeproxy

import (
	"context"
	"errors"
	"fmt"
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
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// Name is the component's name.
const Name = "kube-proxy"

// HealthPort is where it tells its health, on loopback, without TLS: good after rules were written,
// bad when the last ones are overdue.
const HealthPort = 10256

// Component describes kube-proxy without its Run function, or what stands in its place where
// something else does its work.
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

// configuration is kube-proxy's file. Node ports answer on the node's own addresses only, not on
// loopback or the bridge. They are stated, because upstream itself ("primary") takes what the Node
// says when it starts: after a change of address that is still the old one, and where it is
// nothing, node ports answer on all addresses. Traffic from the pod ranges is local and keeps its
// sender; everything else to a service address is masqueraded. Without ranges for them no Service
// has external addresses, whatever stands in its field: also one that was made before anybody
// looked.
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
featureGates:
  AllowServiceExternalIPs: %t
`, spec.NodeName, spec.NodeIPs[0], client, joined(spec.PodCIDRs), joined(nodePorts(spec.NodeIPs)), HealthPort, len(spec.ExternalIPs) > 0)
}

// nodePorts are the addresses that node ports answer on: the node's first one of each family, as
// the kubelet has them on the Node.
func nodePorts(own []netip.Addr) []netip.Prefix {
	ports := []netip.Prefix{netip.PrefixFrom(own[0], own[0].BitLen())}
	if i := slices.IndexFunc(own, func(ip netip.Addr) bool { return ip.Is6() != own[0].Is6() }); i >= 0 {
		ports = append(ports, netip.PrefixFrom(own[i], own[i].BitLen()))
	}
	return ports
}

func joined(prefixes []netip.Prefix) string {
	var words []string
	for _, p := range prefixes {
		words = append(words, p.String())
	}
	return strings.Join(words, ",")
}

// Run works with upstream's flags args until it fails; upstream's loop cannot be stopped, so when
// ctx is done Run returns and the process has to end. The rules stay in the kernel. rights is asked
// for first: a request that is refused is repeated only seconds later.
func Run(ctx context.Context, args []string, rights func(context.Context) error) error {
	opts, err := parse(args)
	if err != nil {
		return err
	}
	if err := rights(ctx); err != nil {
		return nil // asked to stop before there was anything to stop
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

// runExternal takes the rules away that kube-proxy has left in the kernel when it ran here, and is
// ready until ctx is done. It ran here if its configuration is there, which is in memory, as the
// rules are. That is done once: another kube-proxy has its rules in tables of the same names, and
// would not see for an hour that they are gone.
func runExternal(ctx context.Context, configuration string, cleanup func(context.Context) (failed bool), announce component.Announce) error {
	if _, err := os.Stat(configuration); err == nil {
		if cleanup(ctx) && ctx.Err() == nil {
			return errors.New("cannot take its rules out of the kernel; the log says why")
		}
		if err := os.Remove(configuration); err != nil {
			return fmt.Errorf("cannot remove the configuration that it ran with: %w", err)
		}
	}
	announce(Name, true, component.ExternalDetail("something else makes Services reachable"))
	<-ctx.Done()
	return nil
}

// parse turns upstream's flags and the file that they name into upstream's options, completed and
// checked.
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
