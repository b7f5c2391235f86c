// Command orchestrator is Kubernetes: upstream's components, embedded as libraries, in three
// processes by failure domain and privilege.
//
//	orchestrator api          etcd and kube-apiserver                        user 101, control plane
//	orchestrator controllers  scheduler, IPAM, metrics, controller manager   user 102, control plane
//	orchestrator node         kubelet, kube-proxy, CoreDNS, pod network      root, every node
//
// The controller manager has a process of its own, which the process of the controllers starts, and
// starts again when it ends (docs/decisions/0054-system-requests.md):
//
//	orchestrator kube-controller-manager
//
// And two that machined runs before it accepts a configuration, because the compiler of expressions
// comes with Kubernetes:
//
//	orchestrator check-access  reads a nodespec.AccessCheck, writes what is wrong; status 1 when something is
//	orchestrator match-disks   reads a diskselector.Question, writes the diskselector.Answer
//
// And for upgrades:
//
//	orchestrator save-data     keeps what etcd holds for the version that runs, writes a nodespec.DataSaved (etcd.Commands)
//	orchestrator drain         reads a nodespec.DrainRequest, evicts the node's pods, writes a nodespec.Drained
//	orchestrator forget-nodes  reads a nodespec.NodeGCRequest, deletes those Nodes that are there, writes their names; on a control plane
//	orchestrator suspend       reads a nodespec.SuspendRequest, does it, writes a nodespec.SuspendDone; on a control plane
//	orchestrator canary        makes a pod's sandbox and takes it away again, or says why it cannot
//
// And for whoever looks after the cluster's data (etcd.Commands), some with a file as descriptor 3:
//
//	orchestrator snapshot-data    reads a nodespec.EtcdGive, fills the file with what etcd holds or one that was kept, writes a
//	                              nodespec.EtcdSnapshot
//	orchestrator restore-data     reads a nodespec.EtcdRestore and the file, writes the nodespec.EtcdRestored that comes in force when
//	                              orchestrator api starts next
//	orchestrator keep-snapshot    reads a nodespec.EtcdKeep, keeps one more snapshot on DATA, writes the nodespec.EtcdKept
//	orchestrator kept-snapshots   reads a place (nodespec.EtcdTarget), writes the nodespec.EtcdKept of all of them, the newest first
//	orchestrator send-snapshot    reads a nodespec.EtcdTarget, puts the newest that it does not have there, writes a nodespec.EtcdSent
//	orchestrator data-status      writes a nodespec.EtcdStatus
//	orchestrator remove-member    reads a member's name or id, writes the nodespec.EtcdMember that it has removed
//	orchestrator leave-members    removes this machine's own member if there are others, writes its nodespec.EtcdMember
//	orchestrator recover-data     writes down that etcd goes on as the only member when it starts next, writes a nodespec.EtcdRecovered
//	orchestrator rejoin-data      writes down that the data are dropped when etcd starts next, and the cluster is joined anew
//	orchestrator defragment-data  writes a nodespec.EtcdDefragmented
//	orchestrator reseal-secrets   reads a nodespec.EtcdReseal, seals all Secrets by the key that seals, writes a nodespec.Resealed
//	orchestrator disarm-data      writes the alarms that it has taken back
//
// Each process reads the node's description (paths.NodeSpec), writes its components' configuration
// files beside the credentials that machined put into its folder, and runs its components until
// SIGTERM. Readiness goes to machined over pkg/notify. On SIGPWR the node ends its pods in order
// and says so (nodespec.PodsStoppedFile). When a component ends, its process ends with status 1 and a
// line that says which and why.
//
// main.go wires; what a component is stands in services.go and in the component's own package.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	// a CronJob names its zone, and the image has no zones in files; upstream's own main packages
	// import it too
	_ "time/tzdata"

	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/klog/v2"

	"github.com/orlop-os/orlop/orchestrator/apiready"
	"github.com/orlop-os/orlop/orchestrator/breakglass"
	"github.com/orlop-os/orlop/orchestrator/canary"
	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/controllermanager"
	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/orchestrator/diskselector"
	"github.com/orlop-os/orlop/orchestrator/drain"
	"github.com/orlop-os/orlop/orchestrator/etcd"
	"github.com/orlop-os/orlop/orchestrator/kubeapiserver"
	"github.com/orlop-os/orlop/orchestrator/kubeconfig"
	"github.com/orlop-os/orlop/orchestrator/kubelet"
	"github.com/orlop-os/orlop/orchestrator/nodecontrollers"
	"github.com/orlop-os/orlop/orchestrator/process"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/notify"
	"github.com/orlop-os/orlop/pkg/profile"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "orchestrator: usage: orchestrator api|controllers|node|check-access|match-disks|drain|forget-nodes|suspend|canary|"+strings.Join(slices.Sorted(maps.Keys(etcd.Commands)), "|"))
		os.Exit(2)
	}
	switch os.Args[1] {
	case "check-access":
		os.Exit(checkAccess(os.Stdin, os.Stdout))
	case "match-disks":
		if err := diskselector.Answer(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintf(os.Stderr, "orchestrator: match-disks: %v\n", err)
			os.Exit(1)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	var err error
	switch dirs := dirs.System(); os.Args[1] {
	case "drain":
		err = drainNode(ctx, dirs, os.Stdin, os.Stdout)
	case "forget-nodes":
		err = forgetNodes(ctx, dirs, os.Stdin, os.Stdout)
	case "canary":
		err = canary.Run(ctx, dirs)
	case controllermanager.Name:
		err = manage(ctx, dirs)
	case "suspend":
		err = suspend(ctx, dirs, os.Stdin, os.Stdout)
	default:
		if _, known := etcd.Commands[os.Args[1]]; known {
			err = data(ctx, os.Args[1], dirs, os.Stdin, os.Stdout)
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

// checkAccess writes what the API server would not take of the configuration on in, and returns the
// process's status.
func checkAccess(in io.Reader, out io.Writer) int {
	problems, err := kubeapiserver.CheckAccess(in)
	if err != nil {
		problems = append(problems, err.Error())
	}
	for _, p := range problems {
		fmt.Fprintln(out, strings.Join(strings.Fields(p), " "))
	}
	if len(problems) > 0 {
		return 1
	}
	return 0
}

// data has a command on etcd done, and writes its answer.
func data(ctx context.Context, command string, dirs dirs.Dirs, in io.Reader, out io.Writer) error {
	spec, err := readSpec(dirs.Spec)
	if err != nil {
		return err
	}
	answer, err := etcd.Commands[command](ctx, spec, dirs, in)
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(answer)
}

// drainNode evicts the node's pods, and says how that went.
func drainNode(ctx context.Context, dirs dirs.Dirs, in io.Reader, out io.Writer) error {
	var order nodespec.DrainRequest
	if err := json.NewDecoder(in).Decode(&order); err != nil {
		return fmt.Errorf("the order cannot be decoded: %w", err)
	}
	spec, err := readSpec(dirs.Spec)
	if err != nil {
		return err
	}
	api, err := drain.Client(dirs)
	if err != nil {
		return err
	}
	done, err := drain.Drain(ctx, api, spec.NodeName, order)
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(done)
}

// forgetNodes deletes Nodes, and says which of them were there.
func forgetNodes(ctx context.Context, dirs dirs.Dirs, in io.Reader, out io.Writer) error {
	var order nodespec.NodeGCRequest
	if err := json.NewDecoder(in).Decode(&order); err != nil {
		return fmt.Errorf("the order cannot be decoded: %w", err)
	}
	there, err := nodecontrollers.DeleteRemovedNodes(ctx, dirs, order)
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(there)
}

// suspend does one step of taking an object out of the cluster, or of putting it back.
func suspend(ctx context.Context, dirs dirs.Dirs, in io.Reader, out io.Writer) error {
	var order nodespec.SuspendRequest
	if err := json.NewDecoder(in).Decode(&order); err != nil {
		return fmt.Errorf("the order cannot be decoded: %w", err)
	}
	client, err := breakglass.Client(dirs, order)
	if err != nil {
		return err
	}
	done, err := breakglass.Run(ctx, client, order)
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(done)
}

// manage is the process of the controller manager.
func manage(ctx context.Context, dirs dirs.Dirs) error {
	spec, err := readSpec(dirs.Spec)
	if err != nil {
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
	settle := process.HeapLimiter{First: 48 << 20}.Manage(ctx)
	return controllermanager.Run(ctx, controllermanager.Component(spec, dirs).Args, func(ctx context.Context) error {
		defer settle()
		return gate.WaitRBAC(ctx)
	})
}

// run runs one process until ctx is done or one of its components ends.
func run(ctx context.Context, name string, dirs dirs.Dirs) error {
	to, err := notify.FromEnv()
	if err != nil {
		return err
	}
	if err := profile.FromEnv(); err != nil {
		return err
	}
	spec, err := readSpec(dirs.Spec)
	if err != nil {
		return err
	}
	// NeedsElection components of a process set up the same global logging; the first one's settings,
	// which are all components' defaults, stay.
	logsapi.ReapplyHandling = logsapi.ReapplyHandlingIgnoreUnchanged
	// Logs go to the standard error, each line at once. The standard library's log stays beside
	// Kubernetes' and is not sent through it, as logs.InitLogs would: CoreDNS sends Kubernetes' log
	// to the standard one.
	down := make(chan os.Signal, 1)
	if name == component.Node {
		signal.Notify(down, syscall.SIGPWR)
	}
	podsEnded := func() {
		if err := to.Send(kubelet.Name, true, nodespec.PodsStoppedFile); err != nil {
			klog.Error(err) // machined is gone, or waits no more
		}
	}
	wired, memory, err := wire(ctx, name, spec, dirs, down, podsEnded)
	if err != nil {
		return err
	}
	if name != component.Node {
		// Everything these processes write is for themselves. The kubelet's folders are entered by
		// containers too.
		syscall.Umask(0o077)
	}
	settle := memory.Manage(ctx)
	return process.Run(ctx, wired, process.Announcer(to, wired, settle))
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
	if len(spec.NodeIPs) == 0 || len(spec.PodCIDRs) == 0 || len(spec.ServiceCIDRs) == 0 || len(spec.DNSIPs) == 0 {
		return nodespec.Spec{}, fmt.Errorf("%s: cannot use: an address, a pod range, a service range and a DNS address are needed", path)
	}
	return spec, nil
}
