package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/orlop-os/orlop/pkg/strictyaml"
	"github.com/orlop-os/orlop/vm"
)

// startLimit bounds the start and the end of a cluster.
const startLimit = 2 * time.Minute

// parseDir parses the flags of a command with the flag -dir, and returns the directory of the
// cluster.
func parseDir(flags *flag.FlagSet, args []string) (string, error) {
	dir := flags.String("dir", "", "directory of the cluster")
	if err := flags.Parse(args); err != nil {
		return "", err
	}
	if *dir == "" || flags.NArg() > 0 {
		flags.Usage()
		return "", exitStatus(2)
	}
	return *dir, nil
}

func run(ctx context.Context, args []string) error {
	dir, err := parseDir(flag.NewFlagSet("run", flag.ContinueOnError), args)
	if err != nil {
		return err
	}
	return vm.Run(ctx, dir)
}

func start(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("start", flag.ContinueOnError)
	file := flags.String("spec", "", "file with the cluster's specification (JSON, vm.ClusterSpec); without it a stopped cluster runs again")
	dir, err := parseDir(flags, args)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	if *file == "" {
		client, err := vm.Resume(ctx, dir)
		if err != nil {
			return err
		}
		return printStatus(ctx, client)
	}
	data, err := os.ReadFile(*file)
	if err != nil {
		return err
	}
	var spec vm.ClusterSpec
	if err := strictyaml.Decode(data, &spec); err != nil {
		return fmt.Errorf("%s: %w", *file, err)
	}
	client, err := vm.Launch(ctx, dir, spec)
	if err != nil {
		return err
	}
	return printStatus(ctx, client)
}

func status(ctx context.Context, args []string) error {
	dir, err := parseDir(flag.NewFlagSet("status", flag.ContinueOnError), args)
	if err != nil {
		return err
	}
	client, err := vm.Connect(dir)
	if err != nil {
		return err
	}
	return printStatus(ctx, client)
}

func printStatus(ctx context.Context, client *vm.Client) error {
	s, err := client.Status(ctx)
	if err != nil {
		return err
	}
	encoder := json.NewEncoder(os.Stdout)
	encoder.SetIndent("", "  ")
	return encoder.Encode(s)
}

func destroy(ctx context.Context, args []string) error {
	dir, err := parseDir(flag.NewFlagSet("destroy", flag.ContinueOnError), args)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	return vm.Destroy(ctx, dir)
}

// capture prints the flows of a capture to addresses outside the closed network, and fails if there
// are any.
func capture(_ context.Context, args []string) error {
	var inside list
	flags := flag.NewFlagSet("capture", flag.ContinueOnError)
	flags.Var(&inside, "inside", "prefix that counts as inside (repeat; default 10.77.0.0/24)")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: qemu capture [-inside PREFIX]... FILE")
		return exitStatus(2)
	}
	if len(inside) == 0 {
		inside = list{"10.77.0.0/24"}
	}
	var prefixes []netip.Prefix
	for _, s := range inside {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return err
		}
		prefixes = append(prefixes, p)
	}
	report, err := vm.AnalyseCapture(flags.Arg(0), prefixes...)
	if err != nil {
		return err
	}
	fmt.Printf("%d frames, %d to addresses inside, %d flows to groups, %d flows to addresses outside\n",
		report.Frames, report.Inside, len(report.Group), len(report.Outside))
	for _, f := range report.Outside {
		fmt.Println("outside:", f)
	}
	if len(report.Outside) > 0 {
		return exitStatus(1)
	}
	return nil
}
