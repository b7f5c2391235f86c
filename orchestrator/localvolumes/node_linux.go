package localvolumes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/orchestrator/kubeconfig"
	"github.com/orlop-os/orlop/orchestrator/localvolumes/projectquota"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/kernel/mount"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// NodeName is the name of the component that runs the node part.
const NodeName = "volumes"

// Nodes returns the component on each node, to which the caller adds RunNode. The list is empty if
// the configuration disables local volumes.
func Nodes(spec nodespec.Spec, dirs dirs.Dirs) []component.Component {
	if spec.LocalVolumes.Disabled {
		return nil
	}
	return []component.Component{kubeconfig.NodeComponent(spec, dirs, NodeName, nodespec.KubeletCert, nodespec.KubeletKey)}
}

// RunNode serves the kubelet, performs the requests of the controller and updates the reports of
// the node until ctx is done. The kubelet can mount existing volumes even while the API server
// cannot be reached. RunNode fails if the pool on DATA cannot be opened or a server ends.
func RunNode(ctx context.Context, env component.Env) error {
	all, err := newNodes(env.Spec, env.Dirs.LocalVolumes, kernelQuotas{})
	if err != nil {
		return err
	}
	stop, failed, err := all.serve(env.Dirs.Kubelet.Data, func(ok bool, detail string) {
		if ok {
			env.Announce(NodeName, true, all.describe())
		} else {
			env.Announce(NodeName, false, "the kubelet rejected the driver: "+detail)
		}
	})
	if err != nil {
		return err
	}
	defer stop()
	running, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		if err := <-failed; err != nil {
			cancel(err)
		}
	}()
	env.Announce(NodeName, true, all.describe())
	if err := env.Rights(running); err == nil {
		if err := all.watch(running, env); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return nil // stopped
	}
	return context.Cause(running)
}

// node is the node part of one pool.
type node struct {
	name    string
	version string
	pool    string // name of the pool; empty: the pool on DATA
	root    string // the directory of the pool
	// volume is the name of the volume of the machine that holds the pool. It is empty if DATA
	// holds the pool. While the disk of the volume is missing, root does not exist.
	volume     string
	quotas     quotas
	opening    sync.Mutex // guards filesystem, store and problem
	filesystem string
	store      *store // nil: the pool is not open because of problem
	problem    string
	changed    cell.Signal
	copying    copying
	clearing   clearing
	// pods returns namespace/name of each pod of the node, by UID.
	pods func(ctx context.Context) (names map[string]string, err error)
}

// nodes are the pools of a node. The first is the pool without a name.
type nodes []*node

// newNodes returns the pools of a node and opens the first. Each other pool opens at its first use,
// so a damaged disk is a problem of its own pool only.
func newNodes(spec nodespec.Spec, root string, q quotas) (all nodes, err error) {
	first, err := newNode(spec, root, q)
	if err != nil {
		return nil, err
	}
	all = nodes{first}
	for _, pool := range spec.LocalVolumes.Pools {
		all = append(all, &node{name: first.name, version: first.version, pool: pool.Name, root: pool.Dir, volume: pool.Name, quotas: q, changed: first.changed})
	}
	return all, nil
}

// newNode opens the pool without a name. It is on DATA, or on the volume of the machine that holds
// this part of DATA.
func newNode(spec nodespec.Spec, root string, q quotas) (*node, error) {
	n := &node{name: spec.Node.Name, version: spec.Version, root: root, volume: spec.LocalVolumes.Volume, quotas: q, changed: cell.NewSignal()}
	if n.volume == "" {
		if err := os.MkdirAll(root, 0o700); err != nil {
			return nil, fmt.Errorf("cannot create the directory of volumes: %w", err)
		}
	}
	_, err := n.open()
	return n, err
}

// opened is the result of opening a pool.
type opened struct {
	store      *store // nil: the pool is not open because of problem
	filesystem string // ID of the file system; empty: unknown
	problem    string
}

// open opens the pool if it is not open yet. If the file system has no quotas or the disk is
// missing, open returns no error but a problem, which the report of the node contains.
func (n *node) open() (opened, error) {
	n.opening.Lock()
	defer n.opening.Unlock()
	if n.store != nil {
		return opened{n.store, n.filesystem, ""}, nil
	}
	// The root can be a symbolic link. The store needs the real path, because it compares the path
	// of its root with mount points.
	root, err := filepath.EvalSymlinks(n.root)
	if errors.Is(err, fs.ErrNotExist) && n.volume != "" {
		n.problem = fmt.Sprintf("the disk of volume %s is missing", n.volume)
		return opened{problem: n.problem}, nil
	}
	if err != nil {
		return opened{}, err
	}
	if n.filesystem, _, err = filesystem(root); err != nil {
		return opened{}, err
	}
	store, err := openStore(root, n.quotas)
	if errors.Is(err, projectquota.ErrUnsupported) {
		n.problem = err.Error()
		return opened{filesystem: n.filesystem, problem: n.problem}, nil
	}
	if err != nil {
		return opened{}, err
	}
	n.store, n.problem = store, ""
	return opened{store, n.filesystem, ""}, nil
}

// size returns the present capacity of the file system for files, in bytes. It can grow while the
// machine runs.
func (n *node) size() (int64, error) {
	_, size, err := filesystem(n.root)
	return size, err
}

// state returns the result of open. If open fails, the error is the problem of the result.
func (n *node) state() opened {
	o, err := n.open()
	if err != nil {
		o.problem = err.Error()
	}
	return o
}

// find returns the state of the pool with this name. If the node has no such pool, the result has a
// problem.
func (all nodes) find(pool string) opened {
	for _, n := range all {
		if n.pool == pool {
			return n.state()
		}
	}
	return opened{problem: fmt.Sprintf("node %s has no volume %s", all[0].name, pool)}
}

// stores returns the stores of the open pools.
func (all nodes) stores() (out []*store) {
	for _, n := range all {
		if o := n.state(); o.store != nil {
			out = append(out, o.store)
		}
	}
	return out
}

// serve starts two servers: the first serves CSI, and the second serves the registration. The
// kubelet discovers the socket of the second server (pkg/kubelet/pluginmanager). When the kubelet
// has registered or rejected the driver, serve calls the function registered with the result. The
// function stop ends both servers, and the channel failed receives the error of a server that ended
// by itself.
func (all nodes) serve(kubelet string, registered func(ok bool, detail string)) (stop func(), failed <-chan error, err error) {
	d := &driver{
		node: all[0].name, version: all[0].version, find: all.find, stores: all.stores, changed: all[0].changed.Wake,
		endpoint: filepath.Join(kubelet, "plugins", Driver, "csi.sock"),
		bind:     mount.Bind, unmount: mount.Unmount,
		mounted: func(target string) (bool, error) {
			_, there, err := mount.At(target)
			return there, err
		},
		registered: registered,
	}
	speaking, registering := grpc.NewServer(), grpc.NewServer()
	csi.RegisterIdentityServer(speaking, d)
	csi.RegisterNodeServer(speaking, d)
	registration.RegisterRegistrationServer(registering, d)
	ends := make(chan error, 2)
	stop = func() {
		registering.Stop()
		speaking.Stop()
	}
	for _, s := range []struct {
		server *grpc.Server
		path   string
	}{{speaking, d.endpoint}, {registering, filepath.Join(kubelet, "plugins_registry", Driver+"-reg.sock")}} {
		var listener net.Listener
		if err = os.MkdirAll(filepath.Dir(s.path), 0o750); err == nil {
			listener, err = component.Listen(s.path)
		}
		if err != nil {
			stop()
			return nil, nil, err
		}
		go func() { ends <- s.server.Serve(listener) }()
	}
	return stop, ends, nil
}

// diskPoll is the period of the passes on a node with a pool on a volume of the machine. A pass
// detects that a missing disk has returned.
const diskPoll = 15 * time.Second

// watch performs the requests in the annotations of the node's own Node object, and updates the
// reports there, until ctx is done.
func (all nodes) watch(ctx context.Context, env component.Env) error {
	api, err := env.Client(NodeName)
	if err != nil {
		return err
	}
	informer, err := env.Nodes.Informer()
	if err != nil {
		return err
	}
	name, period := all[0].name, time.Duration(0)
	for _, n := range all {
		n.pods = func(ctx context.Context) (map[string]string, error) { return podsOf(ctx, api, name) }
		defer n.copying.running.Wait()
		defer n.clearing.running.Wait()
		if n.volume != "" {
			period = diskPoll
		}
	}
	pass := func(ctx context.Context) (string, error) {
		object, there, err := informer.GetStore().GetByKey(name)
		own, ok := object.(*corev1.Node)
		if err != nil || !there || !ok {
			return "", nil // the kubelet has not created the Node yet
		}
		var problems []error
		for _, n := range all {
			problems = append(problems, n.pass(ctx, api, own))
		}
		problems = append(problems, all.disown(ctx, api, own))
		detail := all.describe()
		if err := errors.Join(problems...); err != nil {
			return "", fmt.Errorf("%s; %w", detail, err)
		}
		return detail, nil
	}
	return component.Reconciler{
		Changed: all[0].changed, Unsynced: true, Period: period, RetryInterval: retryInterval, Pass: pass, Report: env.AnnounceReady(NodeName),
		Factories: []component.Factory{env.Nodes}, Watched: []component.Watched{{Informer: informer, Name: name, IgnoreDeletes: true}},
	}.Run(ctx)
}

// disown updates the reports of pools that an earlier configuration had. The new report has a
// problem, because the pool cannot be used. It retains the ID of the file system, because the data
// are still on the disk.
func (all nodes) disown(ctx context.Context, api kubernetes.Interface, own *corev1.Node) error {
	var problems []error
	for _, pool := range reportedPools(own.Annotations) {
		if slices.ContainsFunc(all, func(n *node) bool { return n.pool == pool }) {
			continue
		}
		before := parseReport(own.Annotations[annotation(ReportAnnotation, pool)])
		after := Report{Filesystem: before.Filesystem, Problem: fmt.Sprintf("the document of volume %s was removed", pool)}
		problems = append(problems, publish(ctx, api, own, pool, after))
	}
	return errors.Join(problems...)
}

// pass performs the requests for the pool in the annotations of the Node, and updates the report of
// the pool. If the file system is unknown because the disk is missing, the report retains the ID of
// the previous report.
func (n *node) pass(ctx context.Context, api kubernetes.Interface, own *corev1.Node) error {
	report, problems := n.perform(ctx, parseObsolete(own.Annotations[annotation(ObsoleteAnnotation, n.pool)]), parseCopies(own.Annotations[annotation(CopiesAnnotation, n.pool)]))
	if report.Filesystem == "" {
		report.Filesystem = parseReport(own.Annotations[annotation(ReportAnnotation, n.pool)]).Filesystem
	}
	return errors.Join(problems, publish(ctx, api, own, n.pool, report))
}

// publish writes the report of a pool to the Node if it differs from the present report.
func publish(ctx context.Context, api kubernetes.Interface, own *corev1.Node, pool string, report Report) error {
	name := annotation(ReportAnnotation, pool)
	if sameNode(Node{Report: report}, Node{Report: parseReport(own.Annotations[name])}) {
		return nil
	}
	text, err := json.Marshal(report)
	if err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{name: string(text)}}})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if _, err := api.CoreV1().Nodes().Patch(ctx, own.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("Node %s: cannot publish its report: %w", own.Name, err)
	}
	return nil
}

// perform retires the obsolete volumes, starts their removal and at most one copy, and returns the
// report. The removal and the copy run in the background, and end at the latest when ctx is done.
// perform uses only the first entries of a list that is longer than limitsOf permits. The
// controller removes entries from the list when they are done.
func (n *node) perform(ctx context.Context, obsolete []string, copies []Copy) (Report, error) {
	o, err := n.open()
	if err != nil {
		return Report{Problem: err.Error()}, err
	}
	report := Report{Problem: o.problem, Filesystem: o.filesystem}
	if o.filesystem == "" { // the disk with the volumes is missing
		return report, nil
	}
	most := limitsOf(n.pool)
	obsolete, copies = obsolete[:min(len(obsolete), most.obsolete)], copies[:min(len(copies), most.copies)]
	// A copy with the name of an obsolete volume must not begin, because the controller relies on
	// the report that this volume is removed.
	copies = slices.DeleteFunc(slices.Clone(copies), func(c Copy) bool { return slices.Contains(obsolete, c.Name) })
	// Without a store, the file system has no volumes. The obsolete volumes were on a former file
	// system and are lost.
	if o.store == nil {
		report.Removed = slices.Sorted(slices.Values(obsolete))
		return report, nil
	}
	var problems []error
	n.copying.prune(func(name string) bool {
		return slices.ContainsFunc(copies, func(c Copy) bool { return c.Name == name })
	})
	for _, name := range slices.Sorted(slices.Values(obsolete)) {
		left, err := n.store.retire(name)
		problems = append(problems, err)
		if !left {
			report.Removed = append(report.Removed, name)
		}
	}
	problems = append(problems, n.clear(ctx))
	problems = append(problems, n.copy(ctx, copies, &report))
	size, err := n.size()
	if err != nil {
		return report, errors.Join(append(problems, err)...)
	}
	report.Size, report.Volumes = size, n.store.sizes()
	return report, errors.Join(problems...)
}

// describe returns the status text of the component: the number of volumes, and the problem of each
// pool.
func (all nodes) describe() string {
	count, problems := 0, ""
	for _, n := range all {
		o := n.state()
		if o.store != nil {
			count += len(o.store.sizes())
			continue
		}
		problems += "; no volumes"
		if n.pool != "" {
			problems += " of class " + className(n.pool)
		}
		problems += ": " + o.problem
	}
	if len(all) == 1 && problems != "" {
		return problems[len("; "):]
	}
	return fmt.Sprintf("%d volumes%s", count, problems)
}
