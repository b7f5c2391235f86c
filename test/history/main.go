package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/test/command"
	"github.com/orlop-os/orlop/test/localcluster"
	"github.com/orlop-os/orlop/test/register"
	"github.com/orlop-os/orlop/vm"
)

type options struct {
	image, bin, out string
	rounds          int
	controlPlanes   int
	clients         int
	memoryMiB       int
	dilation        int
	search          time.Duration
	seed            uint64
}

func main() { command.Main("history", parse, run) }

func parse(args []string) (options, error) {
	var o options
	f := flag.NewFlagSet("history", flag.ContinueOnError)
	f.StringVar(&o.image, "image", filepath.Join("build", "qemu"), "`directory` of the image")
	f.StringVar(&o.bin, "bin", filepath.Join("build", "bin"), "`directory` of orlopctl")
	f.StringVar(&o.out, "out", filepath.Join("build", "history.json"), "`file` to write; everything else goes to a directory beside it")
	f.IntVar(&o.rounds, "n", 30, "number of faults")
	f.IntVar(&o.controlPlanes, "control-planes", 3, "number of control-plane machines")
	f.IntVar(&o.clients, "clients", 4, "number of clients")
	f.IntVar(&o.memoryMiB, "memory", 3072, "memory of each machine in `MiB`")
	f.IntVar(&o.dilation, "time-dilation", 4, "factor by which time passes more slowly for the machines")
	f.DurationVar(&o.search, "search", 5*time.Minute, "time limit of the check for linearizability at the end")
	f.Uint64Var(&o.seed, "seed", 0, "seed of the random faults and operations; 0: a random seed")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("arguments: cannot use %q: expected flags only", f.Args())
	}
	if o.rounds < 1 || o.controlPlanes < 1 || o.clients < 1 || o.memoryMiB < 1 || o.search <= 0 {
		return o, errors.New("flags: cannot use: all numbers have to be more than 0")
	}
	if o.seed == 0 {
		o.seed = rand.Uint64()
	}
	return o, nil
}

// reportDir returns the directory for the other files of a report: the path of the report without
// its extension.
func reportDir(file string) string { return strings.TrimSuffix(file, filepath.Ext(file)) }

func run(ctx context.Context, o options) (err error) {
	dir, err := filepath.Abs(reportDir(o.out))
	if err != nil {
		return err
	}
	c := localcluster.Cluster{
		Name: "history", Bin: o.bin, Image: o.image, Dir: filepath.Join(dir, "cluster"), ControlPlanes: o.controlPlanes, MemoryMiB: o.memoryMiB,
		CPUs: 1, Dilation: o.dilation,
	}
	defer func() { err = errors.Join(err, c.Destroy(ctx)) }()
	if err := c.Create(ctx); err != nil {
		return err
	}
	power, err := c.Power()
	if err != nil {
		return err
	}
	status, err := power.Status(ctx)
	if err != nil {
		return err
	}
	var addresses []string
	for _, m := range status.Machines {
		addresses = append(addresses, status.Forward(m.Name, paths.PortKubernetes))
	}
	clock := status.Clock
	servers, err := register.Clients(c.Kubeconfig(), addresses, clock)
	if err != nil {
		return err
	}
	result := report{Seed: o.seed, ControlPlanes: o.controlPlanes, Dilation: max(clock.Dilation, 1)}
	r := register.NewRecord(clock)
	if err := r.NextRound(ctx, servers); err != nil {
		return err
	}
	going, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan struct{})
	go func() {
		r.Run(going, servers, o.clients, o.seed)
		close(ended)
	}()
	machines := slices.Sorted(maps.Keys(c.Machines()))
	dice := rand.New(rand.NewPCG(o.seed, 0))
	var disturbed error
	for n := 0; n < o.rounds && disturbed == nil; n++ {
		if n > 0 {
			disturbed = r.NextRound(ctx, servers)
		}
		if disturbed == nil {
			f := draw(dice, machines)
			fmt.Printf("round %d of %d: %s for %s\n", n+1, o.rounds, f, f.Lasts.Round(time.Second))
			disturbed = disturb(ctx, f, c, power, clock, r, &result)
		}
	}
	stop()
	<-ended
	unread := r.ReadAll(ctx, servers, o.clients)
	return errors.Join(disturbed, unread, conclude(o, r.Operations(), &result))
}

// disturb causes a fault and waits until all machines are healthy again. It adds the fault and its
// effects to result.
func disturb(ctx context.Context, f fault, c localcluster.Cluster, p power, clock vm.Clock, r *register.Record, result *report) error {
	from := r.Now()
	if err := f.inflict(ctx, p, clock); err != nil {
		return err
	}
	undone := r.Now()
	if err := c.Healthy(ctx); err != nil {
		return fmt.Errorf("after %s: %w", f, err)
	}
	of := slices.DeleteFunc(r.Operations(), func(o register.Operation) bool { return o.Answered < from })
	for i := range of {
		of[i].Answered -= from
	}
	result.Rounds++
	result.Faults = append(result.Faults, round{f, register.Silence(of).Seconds(), (r.Now() - undone).Seconds()})
	return nil
}

// conclude checks whether the history is linearizable, and writes the report. If the verdict is not
// linearizable, it also writes a page that shows the operations, and returns an error.
func conclude(o options, history []register.Operation, result *report) error {
	fmt.Printf("checking whether the history of %d operations is linearizable\n", len(history))
	var picture register.Picture
	result.count(history)
	result.Verdict, picture = register.Judge(history, o.search)
	if err := result.write(o.out, history); err != nil {
		return err
	}
	fmt.Printf("%d operations, %d of them without an answer, in %d rounds: %s; no answer for %.1f s at most\n",
		result.Operations, result.Unknown, result.Rounds, result.Verdict, result.SilenceS)
	if result.Verdict == register.Linearizable {
		return nil
	}
	page := filepath.Join(reportDir(o.out), "operations.html")
	return errors.Join(fmt.Errorf("the history is %s: see %s", result.Verdict, page), picture.Write(page))
}
