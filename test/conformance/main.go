package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/orlop-os/orlop/test/command"
	"github.com/orlop-os/orlop/test/localcluster"
)

type options struct {
	image, bin, out string
	focus, skip     string
	images          string
	batch, parallel int
	memoryMiB       int
	maxPods         int
	limit           time.Duration
	resume          bool
}

func main() { command.Main("conformance", parse, run) }

func parse(args []string) (options, error) {
	var o options
	f := flag.NewFlagSet("conformance", flag.ContinueOnError)
	f.StringVar(&o.image, "image", filepath.Join("build", "qemu"), "`directory` of the image")
	f.StringVar(&o.bin, "bin", filepath.Join("build", "bin"), "`directory` of orlopctl and kubectl")
	f.StringVar(&o.out, "out", filepath.Join("build", "conformance.json"), "`file` to write; everything else goes to a directory beside it")
	f.StringVar(&o.focus, "focus", `\[Conformance\]`, "only tests whose name matches the `regexp`")
	f.StringVar(&o.skip, "skip", "", "no tests whose name matches the `regexp`")
	f.StringVar(&o.images, "images", "", "import only images whose name matches the `regexp`: importing all takes a quarter of an hour, and many tests use agnhost alone")
	f.IntVar(&o.batch, "batch", 40, "number of tests in a batch; the report is written after each batch")
	f.IntVar(&o.parallel, "parallel", 5, "number of tests that run at once; a test marked [Serial] runs alone")
	f.IntVar(&o.memoryMiB, "memory", 3072, "memory of each machine in `MiB`")
	f.IntVar(&o.maxPods, "max-pods", 50, "number of pods that a machine can have; the suite derives from it how many pods some tests create within their fixed time limits (40 for 50, 100 for the default of 110)")
	f.DurationVar(&o.limit, "limit", 20*time.Minute, "time limit of a batch for each of its tests")
	f.BoolVar(&o.resume, "continue", false, "retain the tests that passed or were skipped in an earlier run, and run the other tests")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("arguments: cannot use %q: expected flags only", f.Args())
	}
	if o.batch < 1 || o.parallel < 1 || o.memoryMiB < 1 || o.maxPods < 1 || o.limit <= 0 {
		return o, fmt.Errorf("-batch %d -parallel %d -memory %d -max-pods %d -limit %s: cannot use: expected more than 0", o.batch, o.parallel, o.memoryMiB, o.maxPods, o.limit)
	}
	return o, nil
}

// run builds the suite and its images, and runs the tests batch after batch. It returns an error if
// a test failed or has no outcome.
func run(ctx context.Context, o options) (err error) {
	dir, err := filepath.Abs(strings.TrimSuffix(o.out, filepath.Ext(o.out)))
	if err != nil {
		return err
	}
	if o.bin, err = filepath.Abs(o.bin); err != nil { // the suite runs in another directory
		return err
	}
	programs, cache, archive := filepath.Join(dir, "programs"), filepath.Join(dir, "packages"), filepath.Join(dir, "images.tar")
	for _, needed := range []string{programs, cache} {
		if err := os.MkdirAll(needed, 0o755); err != nil {
			return fmt.Errorf("directory: cannot make: %w", err)
		}
	}
	say("building the suite and its images")
	if err := buildPrograms(ctx, programs); err != nil {
		return err
	}
	c := localcluster.Cluster{
		Name: "conformance", Bin: o.bin, Image: o.image, Dir: filepath.Join(dir, "cluster"),
		ControlPlanes: 1, Workers: 1, MemoryMiB: o.memoryMiB, Patch: filepath.Join(dir, "cluster.yaml"),
	}
	if err := os.WriteFile(c.Patch, []byte(clusterPatch(o.maxPods)), 0o600); err != nil {
		return fmt.Errorf("configuration: cannot write the patch: %w", err)
	}
	r := runner{programs: programs, bin: o.bin, dir: dir, kubeconfig: c.Kubeconfig(), parallel: o.parallel, limit: o.limit}
	list, err := r.images(ctx)
	if err != nil {
		return err
	}
	if err := writeImages(ctx, list, o.images, programs, cache, archive); err != nil {
		return err
	}
	all, err := r.list(ctx)
	if err != nil {
		return err
	}
	names, err := choose(all, o.focus, o.skip)
	if err != nil {
		return err
	}
	result := report{Tests: map[string]outcome{}}
	if o.resume {
		if result, err = readReport(o.out); err != nil {
			return err
		}
	}
	result.Focus, result.Skip = o.focus, o.skip
	if result.Kubernetes, err = goTool(ctx, "list", "-m", "-f", "{{.Version}}", "k8s.io/kubernetes"); err != nil {
		return err
	}
	result.count(names)
	if left := result.left(names); len(left) > 0 {
		if err := judge(ctx, o, c, r, archive, names, left, &result); err != nil {
			return err
		}
	}
	if result.Failed+result.Left > 0 {
		return fmt.Errorf("%d tests failed, %d are left; -continue runs them again", result.Failed, result.Left)
	}
	return nil
}

// clusterPatch returns the patch for the default configuration of a cluster: the maximum number of
// pods of a machine.
func clusterPatch(maxPods int) string {
	return fmt.Sprintf("kind: Cluster\nspec: {kubernetes: {maxPods: %d}}\n", maxPods)
}

// judge creates the cluster, runs the tests in left batch after batch, and deletes the cluster. It
// writes the report after each batch.
func judge(ctx context.Context, o options, c localcluster.Cluster, r runner, archive string, names, left []string, result *report) (err error) {
	defer func() { err = errors.Join(err, c.Destroy(ctx)) }()
	if err := c.Create(ctx); err != nil {
		return err
	}
	if err := c.Import(ctx, archive); err != nil {
		return err
	}
	if err := startMirror(ctx, c, filepath.Join(o.bin, "kubectl")); err != nil {
		return err
	}
	commit, err := commitOf(ctx)
	if err != nil {
		return err
	}
	for i, batch := range batches(left, o.batch) {
		found, failure := r.run(ctx, i+1, batch)
		for _, name := range slices.Sorted(maps.Keys(found)) {
			o := found[name]
			o.Commit = commit
			result.Tests[name] = o
			say("%-7s %6.1f s  %s", found[name].Outcome, found[name].Seconds, name)
		}
		result.count(names)
		say("of %d tests %d passed, %d failed, %d were skipped, %d are left", result.Total, result.Passed, result.Failed, result.Skipped, result.Left)
		if err := errors.Join(failure, result.write(o.out, names)); err != nil {
			return err
		}
		if err := c.Healthy(ctx); err != nil {
			return err
		}
	}
	return nil
}

func say(format string, values ...any) { fmt.Printf(format+"\n", values...) }
