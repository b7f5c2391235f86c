// Command clusterbench measures whole clusters of emulated machines, on an otherwise idle computer.
// It adds its figures to the file of `make bench`. docs/bench.md describes each figure and its
// target.
//
//	main.go       flags, and the order of the parts
//	compare.go    the comparison with a former release, and the targets
//	report.go     common code: results, and the stored files of the machines
//	timeline.go   the times of a machine, converted to a single clock
//	create.go     three control-plane machines and two workers, from power-on to all Nodes Ready
//	join.go       a further worker that joins
//	memory.go     the memory of idle machines
//	failover.go   the virtual address, when the machine that holds it loses its power
//	blackout.go   all machines lose their power
//	pods.go       pods that start on a worker, in a cluster of two machines
//	scale.go      one control-plane machine with many simulated nodes (package simulation)
//	histogram.go  percentiles of values, and of the API server's histograms
//	workload.go   the pods that the other parts start
//
// The command does not build the image. A figure that misses its target is not an error.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/orlop-os/orlop/test/command"
	"github.com/orlop-os/orlop/test/localcluster"
	"github.com/orlop-os/orlop/test/targets"
	"github.com/orlop-os/orlop/vm"
)

type options struct {
	image, bin, operator, out string
	only                      []string
	idle                      time.Duration
	cuts                      int
	nodes                     []int
	load                      time.Duration
	dilation, scaleDilation   int
	former                    *targets.Former // nil: no comparison with a former release
	pairs                     int
	command                   string // the command line, which the report contains
}

func main() { command.Main("clusterbench", parse, run) }

func parse(args []string) (options, error) {
	o := options{command: command.Line("go run ./test/clusterbench", args)}
	f := flag.NewFlagSet("clusterbench", flag.ContinueOnError)
	f.StringVar(&o.image, "image", filepath.Join("build", "qemu"), "`directory` of the image")
	f.StringVar(&o.bin, "bin", filepath.Join("build", "bin"), "`directory` of orlopctl")
	f.StringVar(&o.operator, "operator", filepath.Join("build", "operator"), "`directory` of the operator that the image was built for")
	f.StringVar(&o.out, "out", filepath.Join("build", "bench.json"), "`file` whose field cluster is written; consoles and events go to the directory bench-cluster beside it")
	only := f.String("only", "", "only these `parts`, with commas: "+strings.Join(names(), ", "))
	f.DurationVar(&o.idle, "idle", time.Minute, "how long the machines idle before their memory is read")
	f.IntVar(&o.dilation, "time-dilation", 4, "how many times more slowly time passes for the machines of a cluster of several machines")
	f.IntVar(&o.scaleDilation, "scale-time-dilation", 8, "how many times more slowly time passes for the machine with simulated nodes")
	f.IntVar(&o.cuts, "cuts", 2, "how often the machine that answers for the virtual address loses its power")
	nodes := f.String("nodes", "200,1000", "`numbers` of simulated nodes, ascending; each number adds nodes and pods to those of the number before")
	f.DurationVar(&o.load, "load", 90*time.Second, "how long the pods of simulated nodes may take to be created, and to be rolled")
	former := f.String("against", "", "`directory` or bundle of a former release, such as build/previous, for a comparison in all parts except "+strings.Join(notComparable(), " and ")+"; empty: no comparison")
	f.IntVar(&o.pairs, "pairs", 1, "how many times each version is measured; the order changes each time")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	for _, text := range strings.Split(*nodes, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > 9999 || len(o.nodes) > 0 && n <= o.nodes[len(o.nodes)-1] {
			return o, fmt.Errorf("-nodes %s: cannot use: expected numbers from 1 to 9999, each more than the one before", *nodes)
		}
		o.nodes = append(o.nodes, n)
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("arguments: cannot use %q: expected flags only", f.Args())
	}
	if o.cuts < 1 || o.idle < 0 || o.load <= 0 {
		return o, fmt.Errorf("-cuts %d -idle %s -load %s: cannot use: expected one cut or more, an idle time that is not negative, and a load time above 0", o.cuts, o.idle, o.load)
	}
	if o.pairs < 1 {
		return o, fmt.Errorf("-pairs %d: cannot use: expected 1 or more", o.pairs)
	}
	if *former != "" {
		release, err := targets.OpenFormer(*former)
		if err != nil {
			return o, err
		}
		o.former = &release
	}
	o.only = names()
	if *only != "" {
		o.only = strings.Split(*only, ",")
	}
	for _, name := range o.only {
		if !slices.Contains(names(), name) {
			return o, fmt.Errorf("-only: there is no part %q, but %s", name, strings.Join(names(), ", "))
		}
	}
	return o, nil
}

// part is one measurement. If measure fails, it returns the incomplete figures with the error.
type part struct {
	name string
	// limit is the deadline of the part, in the time of the machines. With the default flags, the
	// sum of all limits is at most 45 minutes.
	limit   time.Duration
	measure func(*bench, context.Context) (figures, error)
}

// onFive returns the parts that are measured on five machines, in this order. The first part
// creates the cluster.
func onFive() []part {
	return []part{
		{"create", 10 * time.Minute, (*bench).create},
		{"memory", 2 * time.Minute, (*bench).memory},
		{"join", 3 * time.Minute, (*bench).join},
		{"failover", 5 * time.Minute, (*bench).failover},
		{"blackout", 5 * time.Minute, (*bench).blackout},
	}
}

// onTwo returns the parts that are measured on one control-plane machine and one worker. The part
// creates this cluster. With five machines on two processors, the lack of processor time would
// dominate the figures of pods that start concurrently.
func onTwo() []part {
	return []part{{"pods", 8 * time.Minute, (*bench).pods}}
}

// onOne returns the parts that are measured on one control-plane machine. The part creates this
// machine.
func onOne(o options) []part {
	return []part{{"scale", scaleLimit(o), (*bench).scale}}
}

// scaleLimit returns the deadline of the part scale. It is the sum of the times for the boot of the
// machine, for the load of each number of nodes, and for the registration of all nodes.
func scaleLimit(o options) time.Duration {
	limit := 2*time.Minute + time.Duration(len(o.nodes))*(time.Minute+2*o.load)
	if len(o.nodes) > 0 {
		limit += time.Duration(slices.Max(o.nodes)) * 120 * time.Millisecond
	}
	return limit
}

func parts(o options) []part { return slices.Concat(onFive(), onTwo(), onOne(o)) }

// names returns the names of all parts.
func names() []string {
	var all []string
	for _, p := range parts(options{}) {
		all = append(all, p.name)
	}
	return all
}

// notComparable returns the names of the parts that are not measured on a former release.
func notComparable() []string {
	return slices.DeleteFunc(names(), func(name string) bool { return slices.Contains(comparable, name) })
}

const (
	controlPlanes         = 3
	workers               = 2
	controlPlaneMemoryMiB = 3072
	workerMemoryMiB       = 2048
	// cpus is the number of processors of each machine. Five emulated machines with two processors
	// each hardly make progress on a computer with two processors. etcd, the API servers and the
	// health checks then wait for a processor until their timeouts expire.
	cpus = 1
)

// virtualAddress returns an address of the closed network below the addresses that the network
// assigns to machines.
func virtualAddress() netip.Addr { return netip.AddrFrom4([4]byte{10, 77, 0, 9}) }

// clusterPatch returns the patch for the configuration of `cluster create`: the virtual address.
func clusterPatch() string {
	return "kind: Cluster\nspec: {virtualAddresses: [" + virtualAddress().String() + "]}\n"
}

// side is a measured version of our system: this version or a former release.
type side struct {
	dir        string // name of the directory for its logs, below the directory of the pair
	image, bin string
	former     bool
	only       []string // names of the parts to measure
}

// sides returns our version and, if a former release is given, the former release with its
// comparable parts.
func (o options) sides() []side {
	list := []side{{dir: "ours", image: o.image, bin: o.bin, only: o.only}}
	if o.former != nil {
		only := slices.DeleteFunc(slices.Clone(o.only), func(name string) bool { return !slices.Contains(comparable, name) })
		list = append(list, side{dir: "release", image: o.former.Image, bin: o.former.Bin, former: true, only: only})
	}
	return list
}

// bench holds the measured cluster and its clients.
type bench struct {
	options
	side    side
	pair    int
	dir     string // directory for all files except the file of figures
	cluster localcluster.Cluster
	power   *vm.Client
	clock   vm.Clock             // the clock of the machines, set by connect
	config  *rest.Config         // for the Kubernetes API of the first machine
	kube    kubernetes.Interface // each call has the deadline askLimit
	// watching is a client without a deadline, for watches.
	watching kubernetes.Interface
	images   bool // whether the workers have the image of the pods
}

// kind is a kind of cluster: its machines, the patch of its configuration, and the parts that are
// measured on it.
type kind struct {
	cluster localcluster.Cluster
	patch   string
	parts   []part
}

// kinds returns the kinds of clusters, in the order of the measurements.
func (o options) kinds() []kind {
	five := localcluster.Cluster{Name: "bench", ControlPlanes: controlPlanes, Workers: workers, MemoryMiB: controlPlaneMemoryMiB, WorkerMemoryMiB: workerMemoryMiB, CPUs: cpus, Dilation: o.dilation}
	two := localcluster.Cluster{Name: "pods", ControlPlanes: 1, Workers: 1, MemoryMiB: controlPlaneMemoryMiB, CPUs: cpus, Dilation: o.dilation}
	one := localcluster.Cluster{Name: "scale", ControlPlanes: 1, MemoryMiB: scaleMemoryMiB, Dilation: o.scaleDilation}
	return []kind{{five, clusterPatch(), onFive()}, {two, "kind: Cluster\nspec: {}\n", onTwo()}, {one, scalePatch(), onOne(o)}}
}

// run measures all kinds of clusters, and prints the report. For each kind, it measures this
// version and the former release directly after each other, because the conditions on the computer
// can change over time.
func run(ctx context.Context, o options) error {
	dir, err := filepath.Abs(filepath.Join(filepath.Dir(o.out), "bench-cluster"))
	if err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("logs: cannot empty the directory: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("logs: cannot create the directory: %w", err)
	}
	r := record{file: o.out}
	if o.former != nil {
		r.former = o.former.Version
	}
	if err := r.read(); err != nil {
		return err
	}
	var failed error
	for pair := 1; pair <= o.pairs; pair++ {
		for _, k := range o.kinds() {
			for _, s := range targets.InTurn(o.sides(), pair) {
				b := &bench{options: o, side: s, pair: pair, cluster: k.cluster, dir: filepath.Join(dir, fmt.Sprintf("pair-%d", pair), s.dir)}
				failed = errors.Join(failed, b.onCluster(ctx, k, &r))
			}
		}
	}
	r.print(os.Stdout)
	fmt.Println()
	if err := targets.Store(os.Stdout, filepath.Join(dir, "targets.md"), o.command, results(r.measured, r.former)); err != nil {
		failed = errors.Join(failed, err)
	}
	fmt.Printf("\nThe figures are in the field cluster of %s; consoles and events are in %s.\n", o.out, dir)
	return failed
}

// onCluster measures the selected parts on a cluster of this kind, and then deletes the cluster. It
// does nothing if no part is selected. The first part is always run, because it creates the
// cluster.
func (b *bench) onCluster(ctx context.Context, k kind, r *record) (err error) {
	isWanted := func(p part) bool { return slices.Contains(b.side.only, p.name) }
	if ctx.Err() != nil || !slices.ContainsFunc(k.parts, isWanted) {
		return nil
	}
	c := &b.cluster
	c.Bin, c.Image, c.Operator = b.side.bin, b.side.image, b.operator
	c.Dir, c.Patch = filepath.Join(b.dir, c.Name+"-cluster"), filepath.Join(b.dir, c.Name+".yaml")
	if err := os.MkdirAll(b.dir, 0o755); err != nil {
		return fmt.Errorf("logs: cannot create the directory: %w", err)
	}
	if err := os.WriteFile(c.Patch, []byte(k.patch), 0o600); err != nil {
		return fmt.Errorf("patch: cannot write: %w", err)
	}
	defer func() {
		err = errors.Join(err, b.keep(context.WithoutCancel(ctx)), c.Destroy(ctx))
	}()
	for i, p := range k.parts {
		if i > 0 && !isWanted(p) {
			continue
		}
		figures, failure := p.run(ctx, b)
		if isWanted(p) {
			err = errors.Join(err, r.add(measured{pair: b.pair, former: b.side.former, name: p.name, figures: figures}))
		}
		err = errors.Join(err, failure)
		if i == 0 && failure != nil || ctx.Err() != nil {
			return err // the other parts need the cluster, and a cancelled run ends
		}
	}
	return err
}
