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
	"github.com/orlop-os/orlop/pkg/mount"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// NodeName is the name of the component on each node.
const NodeName = "volumes"

// Nodes describes the component on each node, without its Run function. The list is empty if local
// volumes are disabled.
func Nodes(spec nodespec.Spec, dirs dirs.Dirs) []component.Component {
	if spec.LocalVolumes.Disabled {
		return nil
	}
	return []component.Component{kubeconfig.NodeComponent(spec, dirs, NodeName, nodespec.KubeletCert, nodespec.KubeletKey)}
}

// RunNode serves the kubelet and maintains the Node's report until ctx is done. It serves existing
// volumes without the API server.
func RunNode(ctx context.Context, env component.Env) error {
	n, err := newNode(env.Spec, env.Dirs.LocalVolumes, kernelQuotas{})
	if err != nil {
		return err
	}
	stop, failed, err := n.serve(env.Dirs.Kubelet.Data, func(ok bool, detail string) {
		if ok {
			env.Announce(NodeName, true, n.describe())
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
	env.Announce(NodeName, true, n.describe())
	if err := env.Rights(running); err == nil {
		if err := n.watch(running, env); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return nil // stopped
	}
	return context.Cause(running)
}

// node is the node part.
type node struct {
	name       string
	version    string
	filesystem string
	size       func() (int64, error) // of the file system, which may grow
	store      *store                // nil: the node has no volumes because of problem
	problem    string
	changed    cell.Signal
	copying    copying
	clearing   clearing
	// namespace/name of the node's pods, by UID
	pods func(ctx context.Context) (names map[string]string, err error)
}

// newNode opens the store at root. A file system without quotas is not an error, but a problem in
// the node's report.
func newNode(spec nodespec.Spec, root string, q quotas) (*node, error) {
	if err := os.MkdirAll(root, 0o700); err != nil {
		return nil, fmt.Errorf("cannot create the directory of volumes: %w", err)
	}
	id, _, err := filesystem(root)
	if err != nil {
		return nil, err
	}
	n := &node{name: spec.Node.Name, version: spec.Version, filesystem: id, changed: cell.NewSignal()}
	n.size = func() (int64, error) {
		_, size, err := filesystem(root)
		return size, err
	}
	n.store, err = openStore(root, q)
	if errors.Is(err, projectquota.ErrUnsupported) {
		n.problem = err.Error()
		return n, nil
	}
	return n, err
}

// serve serves CSI on one socket, and the registration on another, which the kubelet discovers (its
// pkg/kubelet/pluginmanager). registered receives the kubelet's result. failed receives the error
// of a server that ended before stop.
func (n *node) serve(kubelet string, registered func(ok bool, detail string)) (stop func(), failed <-chan error, err error) {
	d := &driver{
		node: n.name, filesystem: n.filesystem, version: n.version, store: n.store, problem: n.problem, changed: n.changed.Wake,
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
		listener, err := listen(s.path)
		if err != nil {
			stop()
			return nil, nil, err
		}
		go func() { ends <- s.server.Serve(listener) }()
	}
	return stop, ends, nil
}

// listen makes a socket with access for root only. It replaces the socket of an earlier process.
func listen(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return nil, fmt.Errorf("%s: cannot create its directory: %w", path, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: cannot remove the former socket: %w", path, err)
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("%s: cannot listen: %w", path, err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: cannot restrict access: %w", path, err), listener.Close())
	}
	return listener, nil
}

// watch destroys the obsolete volumes of the own Node's annotation, makes its copies, and maintains
// its report.
func (n *node) watch(ctx context.Context, env component.Env) error {
	api, err := env.Client(NodeName)
	if err != nil {
		return err
	}
	informer, err := env.Nodes.Informer()
	if err != nil {
		return err
	}
	n.pods = func(ctx context.Context) (map[string]string, error) { return podsOf(ctx, api, n.name) }
	defer n.copying.running.Wait()
	defer n.clearing.running.Wait()
	pass := func(ctx context.Context) (string, error) {
		object, there, err := informer.GetStore().GetByKey(n.name)
		own, ok := object.(*corev1.Node)
		if err != nil || !there || !ok {
			return "", nil // the kubelet registers it, after some time
		}
		detail := n.describe()
		if err := n.pass(ctx, api, own); err != nil {
			return "", fmt.Errorf("%s; %w", detail, err)
		}
		return detail, nil
	}
	return component.Reconciler{
		Changed: n.changed, Unsynced: true, RetryInterval: retryInterval, Pass: pass, Report: env.AnnounceReady(NodeName),
		Factories: []component.Factory{env.Nodes}, Watched: []component.Watched{{Informer: informer, Name: n.name, IgnoreDeletes: true}},
	}.Run(ctx)
}

// pass performs the requests of the Node's annotations and updates its report.
func (n *node) pass(ctx context.Context, api kubernetes.Interface, own *corev1.Node) error {
	report, problems := n.perform(ctx, parseObsolete(own.Annotations[ObsoleteAnnotation]), parseCopies(own.Annotations[CopiesAnnotation]))
	if sameNode(Node{Report: report}, Node{Report: parseReport(own.Annotations[ReportAnnotation])}) {
		return problems
	}
	text, err := json.Marshal(report)
	if err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{ReportAnnotation: string(text)}}})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if _, err := api.CoreV1().Nodes().Patch(ctx, n.name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return errors.Join(problems, fmt.Errorf("Node %s: cannot publish its report: %w", n.name, err))
	}
	return problems
}

// perform retires the obsolete volumes, starts their removal and one copy, which end by themselves
// or with ctx, and returns the report. If a list is longer than the report permits, the rest has to
// wait: the controller shortens it when the first entries are done.
func (n *node) perform(ctx context.Context, obsolete []string, copies []Copy) (Report, error) {
	report := Report{Problem: n.problem, Filesystem: n.filesystem}
	obsolete, copies = obsolete[:min(len(obsolete), maxObsolete)], copies[:min(len(copies), maxCopies)]
	// An obsolete volume is not copied, and its copy does not begin after the report of its
	// removal: the controller considers it removed for good.
	copies = slices.DeleteFunc(slices.Clone(copies), func(c Copy) bool { return slices.Contains(obsolete, c.Name) })
	if n.store == nil { // the volumes of an earlier file system are lost with it
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

// describe returns the component's detail.
func (n *node) describe() string {
	if n.store == nil {
		return "no volumes: " + n.problem
	}
	return fmt.Sprintf("%d volumes", len(n.store.sizes()))
}
