// Command orchestrator runs Kubernetes: upstream's components, embedded as libraries, in three
// processes by failure domain and privilege.
//
//	orchestrator api          etcd and kube-apiserver                  user 101, control plane
//	orchestrator controllers  scheduler, IPAM, controllers, metrics    user 102, control plane
//	orchestrator node         kubelet, kube-proxy, CoreDNS, network    root, every node
//
// The controller manager is a separate process. The process "controllers" starts it, and restarts
// it when it ends (docs/decisions/0054-system-requests.md):
//
//	orchestrator kube-controller-manager
//
// machined runs three commands before it accepts a configuration, because only the code of
// Kubernetes can check the configuration:
//
//	orchestrator check-access    reads a nodespec.AccessCheck, and writes the problems; it exits
//	                             with status 1 if there is a problem
//	orchestrator check-settings  reads a nodespec.Spec, checks the settings of its components,
//	                             and writes the problems; it exits with status 1 if there is a
//	                             problem
//	orchestrator match-disks     reads a disk match request, and writes its result (package
//	                             diskselector)
//
// machined runs a command before an approval rule approves a waiting machine:
//
//	orchestrator match-host      reads a host match request, and writes its result (package
//	                             hostmatch)
//
// Commands for a running cluster:
//
//	orchestrator drain                 reads a nodespec.DrainRequest, and evicts the pods of
//	                                   this node. On a control-plane machine, it can also evict
//	                                   the pods of another node. It writes each
//	                                   nodespec.DrainProgress to descriptor 3, and at the end a
//	                                   nodespec.DrainResult
//	orchestrator delete-removed-nodes  reads a nodespec.NodeGCRequest, deletes the Nodes in it,
//	                                   and writes the names of the Nodes that existed; only on
//	                                   a control-plane machine
//	orchestrator list-versions         writes a disruption.Versions
//	orchestrator suspend               reads a nodespec.SuspendRequest, and writes a
//	                                   nodespec.SuspendResult; only on a control-plane machine
//	orchestrator canary                creates a pod sandbox and removes it, or fails with the
//	                                   reason
//
// etcd.Commands lists the commands for the data of etcd.
//
// Each process reads the description of the node (paths.NodeSpec). machined has put the credentials
// of the components into the directory of the process. The process writes the configuration files
// of the components to the same directory, and runs the components until SIGTERM. It reports
// readiness to machined over pkg/service/notify. On SIGPWR the process "node" ends the pods in
// order and reports the end (nodespec.PodsStoppedDetail). When a component ends, its process ends
// with status 1 and a line with the component and the reason.
//
// services.go is the table of components, wire.go connects them, and the package of each component
// describes it.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
	// A CronJob can name a time zone, and the image contains no zone files. So the executable
	// contains them, as the executables of upstream do.
	_ "time/tzdata"

	"k8s.io/client-go/kubernetes"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/klog/v2"

	"github.com/orlop-os/orlop/orchestrator/apiready"
	"github.com/orlop-os/orlop/orchestrator/bootstrap"
	"github.com/orlop-os/orlop/orchestrator/breakglass"
	"github.com/orlop-os/orlop/orchestrator/canary"
	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/controllermanager"
	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/orchestrator/diskselector"
	"github.com/orlop-os/orlop/orchestrator/drain"
	"github.com/orlop-os/orlop/orchestrator/etcd"
	"github.com/orlop-os/orlop/orchestrator/exporter"
	"github.com/orlop-os/orlop/orchestrator/hostmatch"
	"github.com/orlop-os/orlop/orchestrator/kubeapiserver"
	"github.com/orlop-os/orlop/orchestrator/kubeconfig"
	"github.com/orlop-os/orlop/orchestrator/kubelet"
	"github.com/orlop-os/orlop/orchestrator/level"
	"github.com/orlop-os/orlop/orchestrator/nodecontrollers"
	"github.com/orlop-os/orlop/orchestrator/process"
	"github.com/orlop-os/orlop/orchestrator/scheduler"
	"github.com/orlop-os/orlop/orchestrator/skew"
	"github.com/orlop-os/orlop/pkg/emulation"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/service/notify"
	"github.com/orlop-os/orlop/pkg/service/profile"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "orchestrator: usage: orchestrator api|controllers|node|check-access|check-settings|match-disks|match-host|drain|delete-removed-nodes|list-versions|suspend|canary|"+strings.Join(slices.Sorted(maps.Keys(etcd.Commands)), "|"))
		os.Exit(2)
	}
	switch os.Args[1] {
	case "check-access":
		os.Exit(checkAccess(os.Stdin, os.Stdout))
	case "check-settings":
		os.Exit(checkSettings(os.Stdin, os.Stdout))
	case "match-disks", "match-host":
		answer := diskselector.Answer
		if os.Args[1] == "match-host" {
			answer = hostmatch.Answer
		}
		if err := answer(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintf(os.Stderr, "orchestrator: %s: %v\n", os.Args[1], err)
			os.Exit(1)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	var err error
	switch dirs := dirs.System(); os.Args[1] {
	case "drain":
		err = respond(os.Stdin, os.Stdout, func(order nodespec.DrainRequest) (nodespec.DrainResult, error) {
			return drainNode(ctx, dirs, order, os.NewFile(3, "progress"))
		})
	case "delete-removed-nodes":
		err = respond(os.Stdin, os.Stdout, func(order nodespec.NodeGCRequest) ([]string, error) {
			return nodecontrollers.DeleteRemovedNodes(ctx, dirs, order)
		})
	case "list-versions":
		err = listVersions(ctx, dirs, os.Stdout)
	case "canary":
		err = canary.Run(ctx, dirs)
	case controllermanager.Name:
		err = runControllerManager(ctx, dirs)
	case "suspend":
		err = respond(os.Stdin, os.Stdout, func(order nodespec.SuspendRequest) (nodespec.SuspendResult, error) {
			return suspend(ctx, dirs, order)
		})
	default:
		if _, known := etcd.Commands[os.Args[1]]; known {
			err = etcdCommand(ctx, os.Args[1], dirs, os.Stdin, os.Stdout)
		} else {
			err = run(ctx, os.Args[1], dirs)
		}
	}
	stop()
	klog.Flush()
	if err != nil {
		fmt.Fprintf(os.Stderr, "orchestrator: %s: %v\n", os.Args[1], err)
		os.Exit(1)
	}
}

// checkAccess reads a configuration from the reader in, writes the problems that the API server
// would find in it, and returns the exit status.
func checkAccess(in io.Reader, out io.Writer) int {
	problems, err := kubeapiserver.CheckAccess(in)
	if err != nil {
		problems = append(problems, err.Error())
	}
	return writeProblems(out, problems)
}

// checkSettings reads settings from in, writes the reasons why components would not start with
// them, and returns the status of the process.
func checkSettings(in io.Reader, out io.Writer) int {
	spec, err := nodespec.ReadRequest[nodespec.Spec](in)
	if err != nil {
		return writeProblems(out, []string{err.Error()})
	}
	var problems []string
	for _, c := range []struct {
		name  string
		check func(nodespec.Spec) error
	}{
		{kubeapiserver.Name, kubeapiserver.Check}, {scheduler.Name, scheduler.Check},
		{kubelet.Name, func(spec nodespec.Spec) error { return kubelet.Check(context.Background(), spec) }},
	} {
		if err := c.check(spec); err != nil {
			problems = append(problems, c.name+": "+err.Error())
		}
	}
	return writeProblems(out, problems)
}

// writeProblems writes each problem as a line, and returns the status of the process.
func writeProblems(out io.Writer, problems []string) int {
	for _, p := range problems {
		fmt.Fprintln(out, strings.Join(strings.Fields(p), " "))
	}
	if len(problems) > 0 {
		return 1
	}
	return 0
}

// etcdCommand runs a command on etcd and writes its answer.
func etcdCommand(ctx context.Context, command string, dirs dirs.Dirs, in io.Reader, out io.Writer) error {
	spec, err := readSpec(dirs.Spec)
	if err != nil {
		return err
	}
	answer, err := etcd.Commands[command](ctx, spec, dirs, in)
	if err != nil {
		return err
	}
	return nodespec.WriteAnswer(out, answer)
}

// respond decodes a request, calls the function do with it, and writes the answer of do.
func respond[Q, A any](in io.Reader, out io.Writer, do func(order Q) (A, error)) error {
	order, err := nodespec.ReadRequest[Q](in)
	if err != nil {
		return err
	}
	answer, err := do(order)
	if err != nil {
		return err
	}
	return nodespec.WriteAnswer(out, answer)
}

// drainNode evicts the pods of this node, or those of another node.
func drainNode(ctx context.Context, dirs dirs.Dirs, order nodespec.DrainRequest, progress io.Writer) (nodespec.DrainResult, error) {
	spec, err := readSpec(dirs.Spec)
	if err != nil {
		return nodespec.DrainResult{}, err
	}
	started, node := time.Now(), cmp.Or(order.Node, spec.Node.Name)
	api, err := drainClient(ctx, dirs, node == spec.Node.Name, order.Timeout)
	if err != nil {
		return nodespec.DrainResult{}, err
	}
	order.Timeout -= time.Since(started) // the wait for an API server is a part of the drain
	return drain.Drain(ctx, api, node, order, drain.Reporter(progress))
}

// drainClient returns a client for a drain: with the identity of the kubelet if the drain is of
// this node (ownNode), and with an identity of the controllers if it is of another node. In the
// second case, drainClient waits until the API server answers, at most for the time timeout.
func drainClient(ctx context.Context, dirs dirs.Dirs, ownNode bool, timeout time.Duration) (kubernetes.Interface, error) {
	if ownNode {
		return drain.Client(dirs)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return nodecontrollers.CommandClient(ctx, dirs, bootstrap.DrainAccount)
}

// listVersions writes the versions of Kubernetes in the cluster.
func listVersions(ctx context.Context, dirs dirs.Dirs, out io.Writer) error {
	spec, err := readSpec(dirs.Spec)
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(skew.List(ctx, spec, dirs))
}

// suspend performs a step of the suspension of an object of the cluster, or of its resumption.
func suspend(ctx context.Context, dirs dirs.Dirs, order nodespec.SuspendRequest) (nodespec.SuspendResult, error) {
	client, err := breakglass.Client(dirs, order)
	if err != nil {
		return nodespec.SuspendResult{}, err
	}
	return breakglass.Run(ctx, client, order)
}

// runControllerManager runs the controller manager, as the only component of its process.
func runControllerManager(ctx context.Context, dirs dirs.Dirs) error {
	spec, err := readSpec(dirs.Spec)
	if err != nil {
		return err
	}
	if err := applyLevel(ctx, controllermanager.Name, dirs, &spec); err != nil {
		return err
	}
	server := kubeconfig.Local()
	gate, err := apiready.New(server.URL, server.Name, filepath.Join(dirs.Controllers, nodespec.CA))
	if err != nil {
		return err
	}
	go gate.Run(ctx)
	logsapi.ReapplyHandling = logsapi.ReapplyHandlingIgnoreUnchanged
	syscall.Umask(0o077)
	exporter.RunControllerManager(dirs)
	started := process.HeapLimiter{First: 48 << 20}.Manage(ctx)
	return controllermanager.Run(ctx, controllermanager.Component(spec, dirs).Args, func(ctx context.Context) error {
		defer started()
		return gate.WaitRBAC(ctx)
	})
}

// run runs a process until ctx is done or a component of it ends.
func run(ctx context.Context, name string, dirs dirs.Dirs) error {
	to, err := notify.FromEnv()
	if err != nil {
		return err
	}
	if err := errors.Join(profile.FromEnv(), exporter.Run(name, dirs)); err != nil {
		return err
	}
	spec, err := readSpec(dirs.Spec)
	if err != nil {
		return err
	}
	if err := applyLevel(ctx, name, dirs, &spec); err != nil {
		return err
	}
	// All components of a process configure the same global logging. The settings of the first
	// component remain; every component has the default settings.
	logsapi.ReapplyHandling = logsapi.ReapplyHandlingIgnoreUnchanged
	// There is deliberately no call of logs.InitLogs here: logs go to the standard error, each line
	// at once, and the log of the standard library stays separate from klog, the log of Kubernetes.
	// logs.InitLogs would redirect the standard log to klog, and CoreDNS redirects klog to the
	// standard log. With both, each log could wait for the lock of the other: a deadlock.
	powerDown := make(chan os.Signal, 1)
	if name == component.Node {
		signal.Notify(powerDown, syscall.SIGPWR)
	}
	podsEnded := func() {
		if err := to.Send(kubelet.Name, true, nodespec.PodsStoppedDetail); err != nil {
			klog.Error(err) // machined is gone or no longer waits
		}
	}
	wired, memory, err := wire(ctx, name, spec, dirs, powerDown, podsEnded)
	if err != nil {
		return err
	}
	if name != component.Node {
		// All files that the other processes write are private. The process node does not set this
		// mask, because containers enter the directories of the kubelet.
		syscall.Umask(0o077)
	}
	started := memory.Manage(ctx)
	return process.Run(ctx, wired, process.Announcer(to, wired, started))
}

// applyLevel sets the level of the cluster in spec. A process of the control plane starts with this
// level. For other processes, applyLevel changes nothing.
func applyLevel(ctx context.Context, name string, dirs dirs.Dirs, spec *nodespec.Spec) (err error) {
	var start emulation.Minor
	switch name {
	case component.API:
		start, err = etcd.StartLevel(*spec, dirs)
	case component.Controllers, controllermanager.Name:
		start, err = level.Await(ctx, dirs)
	default:
		return nil
	}
	if err != nil {
		return err
	}
	return level.Apply(spec, start)
}

func readSpec(path string) (nodespec.Spec, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nodespec.Spec{}, fmt.Errorf("node description: cannot read: %w", err)
	}
	var spec nodespec.Spec
	if err := json.Unmarshal(content, &spec); err != nil {
		return nodespec.Spec{}, fmt.Errorf("%s: cannot decode: %w", path, err)
	}
	if len(spec.Node.IPs) == 0 || len(spec.Network.PodCIDRs) == 0 || len(spec.Network.ServiceCIDRs) == 0 || len(spec.Network.DNSIPs) == 0 {
		return nodespec.Spec{}, fmt.Errorf("%s: cannot use: an address, a pod range, a service range and a DNS address are needed", path)
	}
	return spec, nil
}
