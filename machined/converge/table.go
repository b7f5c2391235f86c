package converge

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/orlop-os/orlop/machined/credentials"
	"github.com/orlop-os/orlop/machined/disk"
	"github.com/orlop-os/orlop/machined/drift"
	"github.com/orlop-os/orlop/machined/firewall"
	"github.com/orlop-os/orlop/machined/host"
	"github.com/orlop-os/orlop/machined/nodeplan"
	"github.com/orlop-os/orlop/machined/transition"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/reconcile"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// domains is the table of all domains, in the order of their activation.
func (r *Reconciler) domains() []domain {
	d := r.deps.Domains
	return []domain{
		diskDomain(d.StorageProblem, d.DiskConfig, d.InMemory),
		volumesDomain(d),
		extensionsDomain(d.ExtensionChanges, d.InMemory),
		firewallDomain(d.Firewall),
		networkDomain(d.Network),
		hostDomain(d.Kernel, d.HostFacts),
		apiDomain(d.HasIdentity, d.UpdatePairing),
		credentialsDomain(),
		servicesDomain(d.Services, r.applyServices),
	}
}

// domain returns the domain of a name.
func (r *Reconciler) domain(name string) domain {
	all := r.domains()
	return all[slices.IndexFunc(all, func(d domain) bool { return d.name == name })]
}

// diskDomain is the system disk. The boot performs its operations; an apply performs them on a
// machine without storage, and may then wipe a disk with foreign data. A system in memory writes to
// no disk.
func diskDomain(storageProblem func() string, configured func(*config.Config) disk.Config, inMemory bool) domain {
	return domain{
		name: "disk",
		want: func(g goal) error {
			if inMemory || g.dry && storageProblem() == "" {
				return drift.ErrAbsent
			}
			return nil
		},
		diff: func(ctx context.Context, g goal) ([]reconcile.Op, error) {
			have, err := disk.Read(ctx, nil)
			var want disk.Want
			if err == nil {
				c := configured(g.config)
				c.Wipe = g.dry
				want, err = disk.Plan(c, have)
			}
			if err != nil && g.dry {
				err = transition.Refuse(fmt.Errorf("no disk to store it on: disk: %w", err))
			}
			if err != nil {
				return nil, err
			}
			return disk.Diff(have, want, nil), nil
		},
	}
}

// volumesDomain is the volumes on other disks. apply passes the configuration to the controller of
// the volumes, which performs the operations; they can take long. A machine without a configuration
// leaves its volumes as they are.
func volumesDomain(d Domains) domain {
	problems := func(ctx context.Context, g goal) ([]reconcile.Op, []string, error) {
		return d.Volumes.DryRun(ctx, nodeplan.Volumes(g.config))
	}
	return domain{
		name: "volumes",
		want: func(g goal) error {
			if d.InMemory || g.config == nil || d.StorageProblem() != "" {
				return drift.ErrAbsent
			}
			return nil
		},
		diff: func(ctx context.Context, g goal) ([]reconcile.Op, error) {
			ops, _, err := problems(ctx, g)
			return ops, err
		},
		apply: func(_ context.Context, g goal, _ func() error) error {
			d.Volumes.Set(nodeplan.Volumes(g.config))
			return nil
		},
		remarks: func(g goal) ([]string, error) {
			_, lines, err := problems(context.Background(), g)
			return lines, err
		},
	}
}

// extensionsDomain is the extensions. A task fetches the extensions, and the next boot activates
// them.
func extensionsDomain(changes func(*config.Config) ([]string, error), inMemory bool) domain {
	return domain{
		name: "extensions",
		want: func(g goal) error {
			if inMemory || g.config == nil {
				return drift.ErrAbsent
			}
			return nil
		},
		diff: func(_ context.Context, g goal) (ops []reconcile.Op, err error) {
			lines, err := changes(g.config)
			for _, l := range lines {
				ops = append(ops, reported(l))
			}
			return ops, err
		},
	}
}

// firewallDomain is the table of the firewall, and the port guard. Package health reports a
// failure.
func firewallDomain(filter *firewall.Filter) domain {
	return domain{
		name: "firewall", keepGoing: true,
		diff: func(_ context.Context, g goal) ([]reconcile.Op, error) {
			return filter.Diff(g.firewall, g.guard), nil
		},
		apply: func(_ context.Context, _ goal, inOrder func() error) error {
			err := inOrder()
			filter.SetProblem(err)
			return err
		},
	}
}

// networkDomain is links, addresses and routes. apply passes the configuration to the controller of
// the network, which performs the operations and maintains the leases. It also passes the time
// sources to the time client.
func networkDomain(n Network) domain {
	return domain{
		name: "network",
		diff: func(_ context.Context, g goal) (ops []reconcile.Op, err error) {
			lines, err := n.Controller.DryRun(g.network)
			if err != nil && g.dry {
				err = fmt.Errorf("network: cannot plan: %w", err)
			}
			for _, l := range lines {
				ops = append(ops, reported(l))
			}
			return ops, err
		},
		apply: func(_ context.Context, g goal, _ func() error) error {
			if have, _ := n.Config.Get(); !reflect.DeepEqual(have, g.network) {
				n.Config.Set(g.network)
			}
			want := nodeplan.TimeSources(g.config, g.state)
			if have, _ := n.TimeSources.Get(); !have.Equal(want) {
				n.TimeSources.Set(want)
			}
			return nil
		},
		// problems of the active network: for example, a configured link does not exist
		remarks: func(g goal) ([]string, error) {
			if g.dry {
				return nil, nil
			}
			return g.state.Problems, nil
		},
	}
}

// hostDomain is kernel parameters, modules, mounts and control groups. A boot step reads the facts.
func hostDomain(kernel *host.Kernel, facts func() host.Facts) domain {
	return domain{
		name: "host", keepGoing: true, apply: applyInOrder,
		diff: func(ctx context.Context, g goal) ([]reconcile.Op, error) {
			want := host.Plan(g.host, facts())
			return kernel.Diff(func() host.Want { return want })(ctx)
		},
		// the kernel modules that stay although the configuration no longer names them
		remarks: func(g goal) ([]string, error) {
			left, err := kernel.LeftoverModules(g.host)
			if err != nil || len(left) == 0 {
				return nil, err
			}
			return []string{fmt.Sprintf("kernel modules %s stay in the kernel until the next boot (`orlopctl reboot`): the configuration no longer names them", strings.Join(left, ", "))}, nil
		},
	}
}

// apiDomain is the certificate of apid and the CAs of its callers. hasIdentity reports whether the
// machine key exists; updatePairing begins or ends the pairing.
func apiDomain(hasIdentity func() bool, updatePairing func(c *config.Config, operators []byte)) domain {
	return domain{
		name: "api",
		want: func(g goal) error {
			problem := g.api().problem
			if problem == nil && !hasIdentity() {
				return drift.ErrAbsent
			}
			return problem
		},
		diff: func(_ context.Context, g goal) ([]reconcile.Op, error) { return diffFiles(g.api().want) },
		apply: func(_ context.Context, g goal, inOrder func() error) error {
			updatePairing(g.config, g.api().operators)
			return inOrder()
		},
	}
}

// credentialsDomain is the certificates and keys of the node's processes. It writes no file while
// services are held back.
func credentialsDomain() domain {
	return domain{
		name: "credentials", gates: true, apply: applyInOrder,
		want: func(g goal) error {
			w := g.node()
			if w.Services.Hold != nodeplan.HoldNothing {
				return drift.ErrAbsent
			}
			return w.NodeProblem
		},
		diff: func(_ context.Context, g goal) ([]reconcile.Op, error) { return diffFiles(g.node().Node.Credentials) },
	}
}

func diffFiles(want credentials.Want) ([]reconcile.Op, error) {
	have, err := credentials.Read(want)
	if err != nil {
		return nil, err
	}
	return credentials.Diff(have, want), nil
}

// serviceChange is a start, a restart or a stop of a service, which the service manager performs.
type serviceChange struct{ supervise.Change }

// Do implements reconcile.Op.
func (serviceChange) Do(context.Context) error { return nil }

// servicesDomain is the services. The service manager performs the operations. A dry run includes
// services that are held back at present.
func servicesDomain(manager *supervise.Manager, apply func(context.Context, goal, func() error) error) domain {
	return domain{
		name: "services", apply: apply,
		diff: func(_ context.Context, g goal) (ops []reconcile.Op, err error) {
			services := g.node().Services
			if services.Problem != nil && services.Hold == nodeplan.HoldNothing {
				return nil, nil // no service is started or stopped
			}
			running := manager.Services()
			want := services.Now(running)
			if g.dry {
				want = services.All
			}
			for _, change := range supervise.Diff(running, want) {
				ops = append(ops, serviceChange{change})
			}
			return ops, nil
		},
		// why services cannot be planned, or why the machine refuses the configuration
		remarks: func(g goal) ([]string, error) {
			services := g.node().Services
			// The volumes come up only after the configuration is active; their domain reports
			// their problems.
			if g.dry && services.Hold == nodeplan.HoldVolumes {
				return nil, nil
			}
			return nil, services.Problem
		},
	}
}
