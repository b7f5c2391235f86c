package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/orlop-os/orlop/pkg/backoff"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/vm"
)

// pause is the interval between two attempts of an operation.
const pause = 250 * time.Millisecond

// askLimit is the deadline of one request to the Kubernetes API, which can be unreachable. It is in
// the time of the machines; with time dilation, it is longer on this computer.
const askLimit = 5 * time.Second

// createFigures are the figures of the creation of a cluster.
type createFigures struct {
	outcome
	ControlPlanes int `json:"control_planes"`
	Workers       int `json:"workers"`
	// AllReady is the time until the last Node became Ready. Healthy is the time until `orlopctl
	// cluster create` ended. Both begin at the first power-on.
	AllReady *float64       `json:"poweron_to_all_ready_s,omitempty"`
	Healthy  *float64       `json:"poweron_to_healthy_s,omitempty"`
	Machines []machineTimes `json:"machines,omitempty"`
}

func (f *createFigures) rows() []row {
	rows := []row{
		{"power-on → all Nodes Ready", seconds(f.AllReady), ""},
		{"power-on → every machine healthy", seconds(f.Healthy), ""},
	}
	for _, m := range f.Machines {
		rows = append(rows, row{"  " + m.Name, m.String(), ""})
	}
	return rows
}

// String returns the times of a machine in one line.
func (m machineTimes) String() string {
	return fmt.Sprintf("on %s, userspace %s, API %s, configured %s, etcd votes %s, kube API %s, Node Ready %s",
		seconds(m.PowerOn), seconds(m.Userspace), seconds(m.API), seconds(m.Configured), seconds(m.EtcdVoter), seconds(m.KubeAPI), seconds(m.NodeReady))
}

// create creates the cluster with `orlopctl cluster create`, and then reads the times of all
// machines.
func (b *bench) create(ctx context.Context) (figures, error) {
	f := &createFigures{ControlPlanes: controlPlanes, Workers: workers}
	if err := b.cluster.Create(ctx); err != nil {
		return f, err
	}
	end := time.Now()
	status, err := b.connect(ctx)
	if err != nil {
		return f, err
	}
	first := b.clock.At(status.Machines[0].PoweredOn)
	for _, m := range status.Machines {
		if on := b.clock.At(m.PoweredOn); on.Before(first) {
			first = on
		}
	}
	f.Healthy = since(first, b.clock.At(end))
	ready, err := b.allReady(ctx, controlPlanes+workers)
	if err != nil {
		return f, err
	}
	last := first
	for _, at := range ready {
		if at.After(last) {
			last = at
		}
	}
	f.AllReady = since(first, last)
	contexts := b.cluster.Machines()
	for _, m := range status.Machines {
		err := b.with(ctx, contexts[m.Name], func(c *client.Client) error {
			s, err := ask(ctx, c)
			f.Machines = append(f.Machines, s.times(m.Name, first, b.clock.At(m.PoweredOn), ready[m.Name]))
			return err
		})
		if err != nil {
			return f, fmt.Errorf("machine %s: %w", m.Name, err)
		}
	}
	return f, nil
}

// connect opens the clients of the created cluster, and reads the clock and the state of its
// machines.
func (b *bench) connect(ctx context.Context) (status vm.Status, err error) {
	if b.power, err = b.cluster.Power(); err != nil {
		return status, err
	}
	if status, err = b.power.Status(ctx); err != nil {
		return status, err
	}
	b.clock = status.Clock
	if b.config, err = clientcmd.BuildConfigFromFlags("", b.cluster.Kubeconfig()); err != nil {
		return status, fmt.Errorf("kubeconfig: %w", err)
	}
	// The client uses HTTP/1.1, because with HTTP/1.1 a call that times out closes its connection.
	// A connection to a machine without power would otherwise remain open.
	b.config.NextProtos, b.config.Timeout = []string{"http/1.1"}, b.clock.Outside(askLimit)
	b.config.ContentType = "application/vnd.kubernetes.protobuf"
	b.config.QPS = -1
	// The client ignores warnings, because they concern the security settings of the pods, which
	// this program does not measure.
	b.config.WarningHandler = rest.NoWarnings{}
	if b.kube, err = kubernetes.NewForConfig(b.config); err != nil {
		return status, fmt.Errorf("kubeconfig: %w", err)
	}
	unlimited := rest.CopyConfig(b.config)
	unlimited.Timeout = 0
	if b.watching, err = kubernetes.NewForConfig(unlimited); err != nil {
		return status, fmt.Errorf("kubeconfig: %w", err)
	}
	return status, nil
}

// allReady waits until exactly this number of Nodes exist and all are Ready. It returns the time at
// which each Node became Ready, by name. The kubelet reports this time in whole seconds.
func (b *bench) allReady(ctx context.Context, number int) (map[string]time.Time, error) {
	for {
		list, err := b.kube.CoreV1().Nodes().List(ctx, meta.ListOptions{})
		if err == nil {
			since := map[string]time.Time{}
			for i := range list.Items {
				if at, ok := readySince(&list.Items[i]); ok {
					since[list.Items[i].Name] = at
				}
			}
			if len(since) == number && len(list.Items) == number {
				return since, nil
			}
			err = fmt.Errorf("%d of %d Nodes are Ready, %d are wanted", len(since), len(list.Items), number)
		}
		if end := backoff.Sleep(ctx, pause); end != nil {
			return nil, err
		}
	}
}

func readySince(n *core.Node) (time.Time, bool) {
	i := slices.IndexFunc(n.Status.Conditions, func(c core.NodeCondition) bool { return c.Type == core.NodeReady })
	if i < 0 || n.Status.Conditions[i].Status != core.ConditionTrue {
		return time.Time{}, false
	}
	return n.Status.Conditions[i].LastTransitionTime.Time, true
}
