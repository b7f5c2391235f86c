package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/backoff"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/test/machinestate"
	"github.com/orlop-os/orlop/vm"
)

// joining is the name of the machine that joins as a worker.
const joining = "w3"

// joinFigures are the figures of a worker that joins the running cluster.
type joinFigures struct {
	outcome
	// Ready is the time from power-on until a watch delivered the Node with condition Ready.
	Ready *float64 `json:"poweron_to_ready_s,omitempty"`
	// FromConfigured is the part of Ready after the machine accepted its configuration.
	FromConfigured *float64     `json:"configured_to_ready_s,omitempty"`
	Machine        machineTimes `json:"machine"`
}

func (f *joinFigures) rows() []row {
	return []row{
		{"power-on → Node Ready", seconds(f.Ready), ""},
		{"configured → Node Ready", seconds(f.FromConfigured), ""},
		{"  " + f.Machine.Name, f.Machine.String(), ""},
	}
}

// join adds a worker: it creates a join ticket, starts a machine with an empty disk, and applies
// the configuration as soon as the machine answers. Then it removes the machine, so the next part
// has the same cluster as before.
func (b *bench) join(ctx context.Context) (_ figures, err error) {
	f := &joinFigures{Machine: machineTimes{Name: joining}}
	ticket := filepath.Join(b.dir, joining+".yaml")
	if err := b.cluster.Orlopctl(ctx, "--context", b.cluster.Name, "nodes", "add", joining, "--out", ticket, "--force"); err != nil {
		return f, err
	}
	documents, err := os.ReadFile(ticket)
	if err != nil {
		return f, fmt.Errorf("ticket: %w", err)
	}
	cert, err := tls.LoadX509KeyPair(filepath.Join(b.operator, "admin.crt"), filepath.Join(b.operator, "admin.key"))
	if err != nil {
		return f, fmt.Errorf("operator: cannot read its certificate: %w", err)
	}
	m, err := b.power.Add(ctx, vm.MachineSpec{
		Name: joining, MemoryMiB: workerMemoryMiB, CPUs: cpus, Disks: vm.BootDisk(filepath.Join(b.image, "disk.raw"), 8<<10), Watchdog: true,
	})
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, b.leave(context.WithoutCancel(ctx))) }()
	on := b.clock.At(m.PoweredOn)
	forward, err := b.power.Forward(ctx, vm.ForwardSpec{Machine: joining, Port: paths.PortApid})
	if err != nil {
		return f, err
	}
	fingerprint, err := identity(ctx, m.Console)
	if err != nil {
		return f, err
	}
	c, err := b.firstAnswer(ctx, client.Endpoint{Address: forward.Addr, Cert: cert, Fingerprint: fingerprint})
	if err != nil {
		return f, err
	}
	defer c.Close() // an error has no effect, because no more data is sent
	if _, err := c.Config.Apply(ctx, &api.ApplyRequest{Documents: documents, Filename: joining + ".yaml"}); err != nil {
		return f, fmt.Errorf("machine %s: cannot apply its configuration: %w", joining, err)
	}
	configured := b.clock.Now()
	ready, err := b.nodeReady(ctx, joining)
	if err != nil {
		return f, err
	}
	f.Ready, f.FromConfigured = since(on, ready), since(configured, ready)
	s, err := ask(ctx, c)
	f.Machine = s.times(joining, on, on, ready)
	return f, err
}

// leaveLimit is the deadline for the removal of the worker, in the time of the machines.
const leaveLimit = time.Minute

// leave cuts the power of the joined machine and removes the machine from the cluster.
func (b *bench) leave(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, b.clock.Outside(leaveLimit))
	defer cancel()
	return errors.Join(b.power.Act(ctx, joining, vm.ActionPowerCut), b.cluster.Orlopctl(ctx, "--context", b.cluster.Name, "nodes", "remove", joining))
}

// identity waits until the machine prints the fingerprint of its key on its console, and returns
// the fingerprint. The parameter console is the path of the console log.
func identity(ctx context.Context, console string) (string, error) {
	for {
		text, err := os.ReadFile(console)
		if err != nil {
			return "", fmt.Errorf("console: cannot read: %w", err)
		}
		if match := machinestate.IdentityLine.FindSubmatch(text); match != nil {
			return string(match[1]), nil
		}
		if backoff.Sleep(ctx, pause/5) != nil {
			return "", fmt.Errorf("console %s: it shows no identity", console)
		}
	}
}

// dialLimit is the deadline of one attempt to connect to a booting machine. An attempt that begins
// before the machine has an address never succeeds.
const dialLimit = 5 * time.Second

// firstAnswer retries until a call of Version succeeds, and returns the connected client. It fails
// at once if the machine rejects the operator or presents another key.
func (b *bench) firstAnswer(ctx context.Context, e client.Endpoint) (*client.Client, error) {
	for {
		trying, cancel := context.WithTimeout(ctx, b.clock.Outside(dialLimit))
		c, err := client.Dial(trying, e)
		if err == nil {
			if _, err = c.Machine.Version(trying, &api.VersionRequest{}); err == nil {
				cancel()
				return c, nil
			}
			c.Close() // the next attempt opens a new connection
		}
		cancel()
		if errors.Is(err, client.ErrRefused) || errors.Is(err, client.ErrUntrusted) {
			return nil, fmt.Errorf("first answer: %w; the image answers only to the operator that it was built for", err)
		}
		if backoff.Sleep(ctx, pause/5) != nil {
			return nil, fmt.Errorf("first answer: %w", err)
		}
	}
}

// nodeReady waits for the Node with this name and returns the time when a watch delivered it with
// the condition Ready.
func (b *bench) nodeReady(ctx context.Context, name string) (time.Time, error) {
	selected := fields.OneTermEqualSelector("metadata.name", name).String()
	list := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o meta.ListOptions) (runtime.Object, error) {
			o.FieldSelector = selected
			return b.watching.CoreV1().Nodes().List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o meta.ListOptions) (watch.Interface, error) {
			o.FieldSelector = selected
			return b.watching.CoreV1().Nodes().Watch(ctx, o)
		},
	}
	var at time.Time
	_, err := watchtools.UntilWithSync(ctx, list, &core.Node{}, nil, func(e watch.Event) (bool, error) {
		n, isNode := e.Object.(*core.Node)
		if !isNode || e.Type == watch.Deleted {
			return false, nil
		}
		at = b.clock.Now()
		_, ready := readySince(n)
		return ready, nil
	})
	if err != nil {
		return at, fmt.Errorf("Node %s: not Ready: %w", name, err)
	}
	return at, nil
}
