package apivip

import (
	"context"
	"net"
	"net/netip"
	"path/filepath"
	"slices"

	"k8s.io/klog/v2"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/health"
	"github.com/orlop-os/orlop/orchestrator/kubeconfig"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// RunAnnounced makes this machine serve all virtual addresses while its API server is ready, until
// ctx is done. It passes the served addresses to publish, which announces them to routers (package
// bgp): several machines serve an address at the same time, and no machine answers for it on the
// link.
func RunAnnounced(ctx context.Context, env component.Env, publish func([]netip.Addr)) error {
	prober := &health.Prober{
		CAFile: filepath.Join(env.Dirs.Node, nodespec.CA), Name: kubeconfig.Local().Name, Path: ReadyPath,
		Timeout: timeout, Idle: 10 * probeInterval, Dial: (&net.Dialer{}).DialContext,
	}
	defer prober.Close()
	return announced{env.Spec, writeRedirects, publish}.run(ctx, prober.Probe)
}

type announced struct {
	spec    nodespec.Spec
	write   func([]redirect) error
	publish func([]netip.Addr)
}

func (a announced) run(ctx context.Context, probe func(context.Context, string) health.ProbeResult) error {
	// A killed process leaves its redirects in the kernel.
	if err := a.write(nil); err != nil {
		return err
	}
	answers := make(chan probeAnswer)
	go poll(ctx, a.spec.OwnAddress(), true, probe, answers)
	var served []netip.Addr
	for {
		select {
		case now := <-answers:
			want := a.wanted(now.server)
			if slices.Equal(want, served) {
				continue
			}
			klog.Infof("%s: serves %v; API server of this machine: ready: %t %s", Name, want, now.server.Ready, now.server.Problem)
			// The redirects are written before the routes are announced, and removed after the
			// routes.
			if len(want) == 0 {
				a.publish(nil)
			}
			if err := a.write(redirectsOf(a.spec, want)); err != nil {
				return err
			}
			if len(want) > 0 {
				a.publish(want)
			}
			served = want
		case <-ctx.Done():
			a.publish(nil)
			return a.write(nil)
		}
	}
}

// wanted returns the addresses that this machine serves.
func (a announced) wanted(own APIServer) []netip.Addr {
	if !own.Ready {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(a.spec.VirtualAddresses), func(v netip.Addr) bool { return !ownAddress(a.spec, v).IsValid() })
}

func redirectsOf(spec nodespec.Spec, all []netip.Addr) []redirect {
	var out []redirect
	for _, v := range all {
		out = append(out, redirect{v, ownAddress(spec, v)})
	}
	return out
}

// ownAddress returns the machine's own address of the family of a virtual address; invalid: none.
func ownAddress(spec nodespec.Spec, virtual netip.Addr) netip.Addr {
	for _, a := range append([]netip.Addr{spec.OwnAddress()}, spec.Node.IPs...) {
		if a.Is4() == virtual.Is4() {
			return a
		}
	}
	return netip.Addr{}
}
