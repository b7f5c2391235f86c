package main

import (
	"context"
	"crypto/ecdsa"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/google/renameio/v2"

	"github.com/orlop-os/orlop/machined/activeconfig"
	"github.com/orlop-os/orlop/machined/hosts"
	"github.com/orlop-os/orlop/machined/lldp"
	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/machined/ownership"
	"github.com/orlop-os/orlop/pkg/admission/inventory"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/trust"
)

// acceptsInventories reports whether a configuration lets the machine list waiting machines.
func acceptsInventories(c *config.Config) bool {
	return c.IsControlPlane() && c.Cluster.Spec.Kubernetes.MachineObjects.Enabled && c.Cluster.Spec.Kubernetes.MachineObjects.Inventory
}

// newHosts makes the list of waiting machines.
func newHosts(m *machine) *hosts.Register {
	return hosts.NewRegister(hosts.RegisterDeps{
		Enabled:     func() bool { return acceptsInventories(m.config.active.Current().Config) },
		CheckSource: m.members.Requests.CheckSource,
		Members: func() (keys []string) {
			for _, member := range m.members.Ledger.Current().Members {
				keys = append(keys, member.Key)
			}
			return keys
		},
		Names: func() (names []string) {
			known := m.members.Ledger.Current()
			for _, member := range known.Members {
				names = append(names, member.Name)
			}
			for _, ticket := range known.OpenTickets(time.Now()) {
				names = append(names, ticket.Name)
			}
			return names
		},
		Approvals: func() []trust.Approval { return m.members.Ledger.Current().Approvals },
		Operators: func() []byte {
			// Claims reports an error.
			list, _ := ownership.Operators(m.config.active.Current().Config)
			return list
		},
		Offer: m.domains.claims.Offer,
		Write: func(content []byte) error {
			return writeForControllers(paths.KubeControllers, nodespec.HostsFile, content)
		},
		Event: m.reports.events.From("inventory"),
		Now:   time.Now,
	})
}

// writeForControllers writes a file for the controllers, to which the directory belongs.
func writeForControllers(dir, name string, content []byte) error {
	if _, err := os.Stat(dir); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	// The directory is in memory: a flush would have no effect. The mask of the process would make
	// the file unreadable for the controllers.
	if err := renameio.WriteFile(filepath.Join(dir, name), content, 0o444, renameio.IgnoreUmask()); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// newReporter makes the sender of the inventory of a machine without a configuration.
func newReporter(m *machine) *hosts.Reporter {
	return hosts.NewReporter(hosts.ReporterDeps{
		Waits:   cell.Map(m.config.active.Cell(), func(now activeconfig.Active) bool { return now.Config == nil }),
		Domains: cell.Map(m.domains.network.State, func(s network.State) []string { return s.Search }),
		Lookup: func(ctx context.Context, name string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", name)
		},
		Host: func() inventory.Host { return readHost(m) },
		Key: func() *ecdsa.PrivateKey {
			if own := m.identity.Load(); own != nil {
				return own.Key
			}
			return nil
		},
		Send: func(ctx context.Context, address netip.Addr, key *ecdsa.PrivateKey, h inventory.Host) (inventory.Answer, error) {
			return client.ReportInventory(ctx, address.String(), key, h)
		},
		Adopt: func(ctx context.Context, from netip.Addr, answer inventory.Answer) error {
			return adoptTemplate(ctx, m, from, answer)
		},
		Event: m.reports.events.From("inventory"),
	})
}

// readHost reads the inventory of the machine. A part that cannot be read is missing.
func readHost(m *machine) inventory.Host {
	const sys, mib = "/sys", 1 << 20
	h := hosts.ReadFirmware(sys, inventory.Host{CPUs: m.system.hardware.CPUs, MemoryMiB: m.system.hardware.Memory / mib, Release: m.system.release.Version, Medium: m.system.bootMedium})
	if s, err := m.system.kernel.ReadSystem(); err == nil {
		h.CPUModel = s.CPUModel
	}
	disks, _ := m.domains.disks.State().Get()
	for _, d := range disks.Disks {
		h.Disks = append(h.Disks, inventory.Disk{Name: filepath.Base(d.Path), SizeMiB: int64(d.Size / mib), Model: d.Model, Serial: d.Serial, Rotational: d.Rotational})
	}
	state, _ := m.domains.network.State.Get()
	neighbors, _ := m.domains.lldp.Neighbors().Get()
	h.NICs = nics(state, neighbors, func(link string) int { return hosts.ReadSpeed(sys, link) })
	return h.Bounded()
}

// nics returns the physical links of a network with their neighbors.
func nics(s network.State, neighbors []lldp.Neighbor, speed func(link string) int) (out []inventory.NIC) {
	for _, l := range s.Links {
		if l.Kind != "" || l.Name == "lo" {
			continue
		}
		n := inventory.NIC{Name: l.Name, MAC: l.MAC, Driver: l.Driver, Carrier: l.Carrier, SpeedMbps: speed(l.Name)}
		for _, a := range l.Addresses {
			if ip := a.Prefix.Addr(); ip.IsGlobalUnicast() {
				n.Addresses = append(n.Addresses, ip.WithZone(""))
			}
		}
		for _, seen := range neighbors {
			if seen.Link == l.Name {
				n.Neighbors = append(n.Neighbors, inventory.Neighbor{System: seen.SystemName, Port: seen.Port})
			}
		}
		out = append(out, n)
	}
	return out
}
