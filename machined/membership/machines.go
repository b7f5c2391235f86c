package membership

import (
	"cmp"
	"context"
	"net/netip"
	"slices"

	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/paths"
)

// Machine is another machine of the cluster, as this machine knows it.
type Machine struct {
	// Name is empty for a control-plane machine that has never reported its name.
	Name         string
	Address      netip.Addr
	ControlPlane bool
}

// Machines returns the other machines of the cluster: the control-plane machines in the order of
// the configuration, then the members by name.
func (p *Peers) Machines(c *config.Config) []Machine {
	var all []Machine
	known := p.ledger.Current()
	for _, addr := range p.Others(c) {
		all = append(all, Machine{Name: known.ControlPlanes[addr.String()], Address: addr, ControlPlane: true})
	}
	planes := len(all)
	for _, m := range known.Members {
		if addr, err := netip.ParseAddr(m.Address); err == nil {
			all = append(all, Machine{Name: m.Name, Address: addr})
		}
	}
	slices.SortStableFunc(all[planes:], func(a, b Machine) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// CallMachine makes a call to another machine of the cluster. The connection to a worker ends with
// the call.
func (p *Peers) CallMachine(ctx context.Context, m Machine, do func(*client.Client) error) error {
	if m.ControlPlane {
		return p.Call(ctx, m.Address, do)
	}
	e, err := p.Endpoint(netip.AddrPortFrom(m.Address, paths.PortApid).String())
	if err != nil {
		return err
	}
	c, err := p.deps.Transport.Dial(ctx, e)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }() // no more data is sent
	return do(c)
}
