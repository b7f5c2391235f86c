package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/klog/v2"

	"github.com/orlop-os/orlop/pkg/backoff"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/test/clusterbench/simulation"
	"github.com/orlop-os/orlop/test/machinestate"
)

const (
	// scaleMemoryMiB is the memory of the control-plane machine under load.
	scaleMemoryMiB = 8192
	// podsPerNode is the number of replicas of the Deployment for each node.
	podsPerNode = 5
	// registerEvery is the minimum interval between the registrations of two nodes. An emulated
	// machine cannot process more registrations.
	registerEvery = 100 * time.Millisecond
	// quietTime is the duration of the measurement without load, while the nodes only renew their
	// Leases and report their status.
	quietTime = 20 * time.Second
	// readyLimit is the deadline for all nodes to report Ready.
	readyLimit = time.Minute
	// readEvery is the interval between reads of single objects, and listEvery the interval between
	// lists.
	readEvery, listEvery = 200 * time.Millisecond, 10 * time.Second
	loadName             = "load"
)

// scalePatch returns the patch for the configuration of the cluster: an address range for the pods
// of many nodes.
func scalePatch() string { return "kind: Cluster\nspec: {networks: {pods: [10.128.0.0/10]}}\n" }

// scaleFigures are the figures of one control-plane machine with simulated nodes.
type scaleFigures struct {
	outcome
	MemoryMiB   int        `json:"memory_mib"`
	PodsPerNode int        `json:"pods_per_node"`
	LoadS       float64    `json:"load_limit_s"` // of each half of the load (loadDeployment)
	Runs        []scaleRun `json:"runs,omitempty"`
}

// scaleRun holds the figures with a given number of nodes.
type scaleRun struct {
	Nodes int `json:"nodes"`
	// RegisterS is the time from the first registration of this run until the last node has
	// reported Ready.
	RegisterS *float64 `json:"register_s,omitempty"`
	// QuietBusy is the busy share of the processors' time while the nodes only renew their Leases
	// and report their status.
	QuietBusy *float64 `json:"quiet_busy,omitempty"`
	Pods      int      `json:"pods"`
	// CreateS and RollS are the durations of the creation and of the replacement of the pods, or
	// nil if their deadline has expired. Running is the number of running pods at the end of the
	// creation, and Rolled the number of replaced pods at the end of the replacement.
	CreateS     *float64      `json:"create_s,omitempty"`
	Running     int           `json:"running"`
	RollS       *float64      `json:"roll_s,omitempty"`
	Rolled      int           `json:"rolled"`
	LoadBusy    *float64      `json:"load_busy,omitempty"`
	API         []verbLatency `json:"api,omitempty"` // under load
	NodesReady  int           `json:"nodes_ready"`   // according to the API, at the end
	FailedCalls int           `json:"failed_calls"`  // of all nodes, up to the end
	Memory      *usage        `json:"memory,omitempty"`
	// ProcessorS is the processor time of each service under load, in seconds.
	ProcessorS map[string]float64 `json:"processor_s,omitempty"`
}

func (f *scaleFigures) rows() []row {
	var rows []row
	for _, r := range f.Runs {
		rows = append(rows, r.rows()...)
	}
	return rows
}

func (r scaleRun) rows() []row {
	rows := []row{
		{fmt.Sprintf("%d simulated nodes", r.Nodes), fmt.Sprintf("registered after %s; %d Ready at the end; %d of their calls failed", seconds(r.RegisterS), r.NodesReady, r.FailedCalls), ""},
		{fmt.Sprintf("  %d pods", r.Pods), fmt.Sprintf("created %s (%d run), rolled %s (%d done)", seconds(r.CreateS), r.Running, seconds(r.RollS), r.Rolled), ""},
		{"  processors busy", fmt.Sprintf("quiet %s, under load %s", share(r.QuietBusy), share(r.LoadBusy)), ""},
	}
	for _, v := range r.API {
		rows = append(rows, row{"  " + v.Verb + ", p50 p99", fmt.Sprintf("%.0f ms  %.0f ms  (%.0f requests)", v.P50Ms, v.P99Ms, v.Requests), ""})
	}
	if r.Memory != nil {
		rows = append(rows, row{"  memory", fmt.Sprintf("%.0f MiB; anonymous: %s", r.Memory.UsedMiB, shares(r.Memory.AnonMiB)), ""})
	}
	return append(rows, row{"  processor time under load, s", shares(r.ProcessorS), ""})
}

// share formats a share as a percentage; "-" for nil.
func share(v *float64) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprintf("%.0f %%", 100**v)
}

// scale creates a control-plane machine and loads it with each number of simulated nodes.
func (b *bench) scale(ctx context.Context) (_ figures, err error) {
	f := &scaleFigures{MemoryMiB: scaleMemoryMiB, PodsPerNode: podsPerNode, LoadS: b.load.Seconds()}
	if err := b.cluster.Create(ctx); err != nil {
		return f, err
	}
	if _, err := b.connect(ctx); err != nil {
		return f, err
	}
	// The libraries of the nodes write their log to a file, because the log would hide the figures
	// on the terminal.
	log, err := os.Create(filepath.Join(b.dir, "simulation.log"))
	if err != nil {
		return f, fmt.Errorf("logs: %w", err)
	}
	defer log.Close()
	klog.LogToStderr(false)
	klog.SetOutput(log)
	defer klog.Flush()
	living, stop := context.WithCancel(ctx)
	fleet := simulation.New(living, b.config, b.clock)
	defer fleet.Wait()
	defer stop()
	for _, nodes := range b.nodes {
		r := scaleRun{Nodes: nodes, Pods: nodes * podsPerNode}
		err := b.loadWith(ctx, fleet, &r)
		f.Runs = append(f.Runs, r)
		if err != nil {
			return f, fmt.Errorf("%d nodes: %w", nodes, err)
		}
	}
	return f, nil
}

// loadWith adds nodes to the fleet up to the number in r, applies the load, and stores the figures
// in r.
func (b *bench) loadWith(ctx context.Context, fleet *simulation.Fleet, r *scaleRun) error {
	say("scale: %d nodes are registered", r.Nodes)
	began := b.clock.Now()
	if err := fleet.Grow(ctx, r.Nodes, registerEvery); err != nil {
		return fmt.Errorf("%w; the last failure: %w", err, fleet.Stats().Last)
	}
	if err := b.allSayReady(ctx, fleet, r.Nodes); err != nil {
		return err
	}
	r.RegisterS = since(began, b.clock.Now())
	say("scale: %d nodes only renew their Leases and report their status", r.Nodes)
	before, err := b.lookAtMachine(ctx)
	if err != nil {
		return err
	}
	if err := backoff.Sleep(ctx, b.clock.Outside(quietTime)); err != nil {
		return err
	}
	after, err := b.lookAtMachine(ctx)
	if err != nil {
		return err
	}
	r.QuietBusy = after.BusySince(before.Use)
	requests, err := b.latencies(ctx)
	if err != nil {
		return err
	}
	reading, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		b.read(reading, r.Nodes)
		close(ended)
	}()
	loaded := b.loadDeployment(ctx, r, fleet)
	stop()
	<-ended
	return errors.Join(loaded, b.sumUp(ctx, r, fleet, after, requests))
}

// sumUp reads the figures after the load, and stores in r the differences from the figures before
// the load.
func (b *bench) sumUp(ctx context.Context, r *scaleRun, fleet *simulation.Fleet, before machineLook, requests latencies) error {
	after, err := b.lookAtMachine(ctx)
	if err != nil {
		return err
	}
	r.LoadBusy, r.Memory, r.ProcessorS = after.BusySince(before.Use), &after.usage, after.Since(before.Use)
	now, err := b.latencies(ctx)
	if err != nil {
		return err
	}
	r.API = now.since(requests).table()
	r.FailedCalls = fleet.Stats().Failed
	list, err := b.watching.CoreV1().Nodes().List(ctx, meta.ListOptions{LabelSelector: simulation.Label, ResourceVersion: "0"})
	if err != nil {
		return fmt.Errorf("Nodes: %w", err)
	}
	for i := range list.Items {
		if _, ready := readySince(&list.Items[i]); ready {
			r.NodesReady++
		}
	}
	return nil
}

// allSayReady waits until this number of nodes of the fleet have reported Ready. It fails at
// readyLimit.
func (b *bench) allSayReady(ctx context.Context, fleet *simulation.Fleet, nodes int) error {
	ctx, cancel := context.WithTimeout(ctx, b.clock.Outside(readyLimit))
	defer cancel()
	for {
		s := fleet.Stats()
		if s.Ready >= nodes {
			return nil
		}
		if backoff.Sleep(ctx, pause) != nil {
			return fmt.Errorf("%d of %d nodes have reported that they are Ready; the last failure: %w", s.Ready, nodes, s.Last)
		}
	}
}

// loadDeployment creates the Deployment or increases its replicas. Then it changes the template, so
// new pods replace all pods. The creation and the replacement are the halves of the load, and each
// half has its own deadline. A half that does not finish in time is no error; r has its progress.
func (b *bench) loadDeployment(ctx context.Context, r *scaleRun, fleet *simulation.Fleet) error {
	say("scale: %d pods are created", r.Pods)
	began := b.clock.Now()
	_, err := b.watching.AppsV1().Deployments(namespace).Create(ctx, loadObject(int32(r.Pods)), meta.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		err = b.patchLoad(ctx, fmt.Sprintf(`{"spec": {"replicas": %d}}`, r.Pods))
	}
	if err != nil {
		return fmt.Errorf("Deployment %s: %w", loadName, err)
	}
	_, done, err := b.until(ctx, r.Pods, b.half(ctx, 2))
	if err != nil {
		return err
	}
	if done {
		r.CreateS = since(began, b.clock.Now())
	}
	r.Running = fleet.Stats().Pods
	say("scale: the pods are replaced; %d of them run", r.Running)
	began = b.clock.Now()
	if err := b.patchLoad(ctx, fmt.Sprintf(`{"spec": {"template": {"metadata": {"annotations": {"round": "%d"}}}}}`, r.Nodes)); err != nil {
		return fmt.Errorf("Deployment %s: %w", loadName, err)
	}
	r.Rolled, done, err = b.until(ctx, r.Pods, b.half(ctx, 1))
	if done {
		r.RollS = since(began, b.clock.Now())
	}
	return err
}

func (b *bench) patchLoad(ctx context.Context, patch string) error {
	_, err := b.watching.AppsV1().Deployments(namespace).Patch(ctx, loadName, types.MergePatchType, []byte(patch), meta.PatchOptions{})
	return err
}

// sumUpTime is the time that is reserved for reading the figures after the load.
const sumUpTime = 45 * time.Second

// half returns the time limit for a half of the load, in the time of this computer. The parameter
// left is the number of halves that are not finished. The limit is shorter than configured if the
// deadline of ctx would otherwise leave too little time to read the figures.
func (b *bench) half(ctx context.Context, left int) time.Duration {
	wanted := b.clock.Outside(b.load)
	end, ok := ctx.Deadline()
	if !ok {
		return wanted
	}
	return max(0, min(wanted, (time.Until(end)-b.clock.Outside(sumUpTime))/time.Duration(left)))
}

// loadObject returns a Deployment whose pods run on simulated nodes only. The pods have no token,
// because no container runs that would use the token.
func loadObject(pods int32) *apps.Deployment {
	labels := map[string]string{appLabel: loadName}
	no, most := false, intstr.FromString("25%")
	spec := core.PodSpec{AutomountServiceAccountToken: &no, Containers: []core.Container{{Name: "c", Image: "simulated.invalid/c:1"}}}
	simulation.Tolerate(&spec)
	return &apps.Deployment{
		ObjectMeta: meta.ObjectMeta{Name: loadName},
		Spec: apps.DeploymentSpec{
			Replicas: &pods, Selector: &meta.LabelSelector{MatchLabels: labels},
			Strategy: apps.DeploymentStrategy{Type: apps.RollingUpdateDeploymentStrategyType, RollingUpdate: &apps.RollingUpdateDeployment{MaxSurge: &most, MaxUnavailable: &most}},
			Template: core.PodTemplateSpec{ObjectMeta: meta.ObjectMeta{Labels: labels}, Spec: spec},
		},
	}
}

// The method until waits until all pods of the Deployment are updated and available, at most for
// the duration limit in the time of this computer. It returns the number of updated pods. done is
// true if all pods were updated and available in time. The method fails only if ctx ends.
func (b *bench) until(ctx context.Context, pods int, limit time.Duration) (updated int, done bool, err error) {
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		d, err := b.kube.AppsV1().Deployments(namespace).Get(limited, loadName, meta.GetOptions{})
		if err == nil {
			updated = int(d.Status.UpdatedReplicas)
			if rolled(d, pods) {
				return updated, true, nil
			}
		}
		if backoff.Sleep(limited, 4*pause) != nil {
			if ctx.Err() != nil {
				return updated, false, errors.Join(context.Cause(ctx), err)
			}
			return updated, false, nil
		}
	}
}

// rolled reports whether the number of pods is reached, all pods are updated and available, and no
// other pods exist.
func rolled(d *apps.Deployment, pods int) bool {
	s := d.Status
	return s.ObservedGeneration >= d.Generation && int(s.UpdatedReplicas) == pods && int(s.AvailableReplicas) == pods && int(s.Replicas) == pods
}

// read gets single objects and lists at fixed intervals until ctx ends. It ignores errors, because
// the metrics of the API server show them.
func (b *bench) read(ctx context.Context, nodes int) {
	single, lists := time.NewTicker(b.clock.Outside(readEvery)), time.NewTicker(b.clock.Outside(listEvery))
	defer single.Stop()
	defer lists.Stop()
	for {
		select {
		case <-single.C:
			b.kube.CoreV1().Nodes().Get(ctx, simulation.Name(rand.IntN(nodes)), meta.GetOptions{})
		case <-lists.C:
			b.kube.CoreV1().Pods(namespace).List(ctx, meta.ListOptions{Limit: 500})
			b.kube.CoreV1().Nodes().List(ctx, meta.ListOptions{ResourceVersion: "0"})
		case <-ctx.Done():
			return
		}
	}
}

// latencies reads the request durations from the metrics of the API server.
func (b *bench) latencies(ctx context.Context) (latencies, error) {
	text, err := b.watching.CoreV1().RESTClient().Get().AbsPath("/metrics").Timeout(b.clock.Outside(time.Minute)).DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("metrics of the API server: %w", err)
	}
	return readLatencies(strings.NewReader(string(text)))
}

// machineLook holds the use of memory and of processors that a machine reports.
type machineLook struct {
	usage
	machinestate.Use
}

// lookAtMachine reads the use of memory and of processors from the control-plane machine.
func (b *bench) lookAtMachine(ctx context.Context) (machineLook, error) {
	var l machineLook
	err := b.with(ctx, b.cluster.Name, func(c *client.Client) (err error) {
		if l.usage, err = readUsage(ctx, c, "cp1"); err == nil {
			l.Use, err = machinestate.ReadUse(ctx, c)
		}
		return err
	})
	return l, err
}
