package nodelabels

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/orchestrator/kubeconfig"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// NodeName is the name of the component on each node.
const NodeName = "node-labels"

// retryInterval is the delay after a failure. timeout bounds a request.
const (
	retryInterval = 2 * time.Second
	timeout       = 10 * time.Second
)

// NodeComponent describes the component on each node, without its Run function.
func NodeComponent(spec nodespec.Spec, dirs dirs.Dirs) component.Component {
	return kubeconfig.NodeComponent(spec, dirs, NodeName, nodespec.KubeletCert, nodespec.KubeletKey)
}

// Read reads the labels and taints that the configuration specifies for the Node. machined replaces
// the file after a change of the configuration.
func Read(dirs dirs.Dirs) (nodespec.NodeLabels, error) {
	file := filepath.Join(dirs.Node, nodespec.NodeLabelsFile)
	content, err := os.ReadFile(file)
	if err != nil {
		return nodespec.NodeLabels{}, fmt.Errorf("labels and taints of the configuration: %w", err)
	}
	var m nodespec.NodeLabels
	if err := json.Unmarshal(content, &m); err != nil {
		return nodespec.NodeLabels{}, fmt.Errorf("labels and taints of the configuration: %s: cannot decode: %w", file, err)
	}
	return m, nil
}

// RunNode maintains the labels of the machine's own Node, and the annotation with its configured
// taints, until ctx is done. registered are the labels and taints with which the kubelet of this
// process has registered the Node. The component is always ready, because missing labels are no
// fault of the running version of the system.
func RunNode(ctx context.Context, env component.Env, registered nodespec.NodeLabels) error {
	env.Announce(NodeName, true, "")
	if err := env.Rights(ctx); err != nil {
		return nil // ctx was done before the component had its rights
	}
	api, err := env.Client(NodeName)
	if err != nil {
		return err
	}
	n := &node{name: env.Spec.Node.Name, dirs: env.Dirs, registered: registered, api: api, watched: env.Nodes, changed: cell.NewSignal()}
	return n.run(ctx, env.AnnounceReady(NodeName))
}

// node is the component on a node. It changes only the Node of its own machine.
type node struct {
	name       string
	dirs       dirs.Dirs
	registered nodespec.NodeLabels
	api        kubernetes.Interface
	watched    *component.Nodes
	nodes      cache.SharedIndexInformer // the informer of watched
	changed    cell.Signal
}

func (n *node) run(ctx context.Context, tell func(detail string)) error {
	var err error
	if n.nodes, err = n.watched.Informer(); err != nil {
		return err
	}
	go component.WatchFile(ctx, filepath.Join(n.dirs.Node, nodespec.NodeLabelsFile), n.changed.Wake)
	return component.Reconciler{
		Changed: n.changed, Unsynced: true, RetryInterval: retryInterval, Pass: n.pass, Report: tell,
		Factories: []component.Factory{n.watched}, Watched: []component.Watched{{Informer: n.nodes, Name: n.name, IgnoreDeletes: true}},
	}.Run(ctx)
}

// pass applies the file to the Node once, and returns the status text. It does nothing while the
// Node is missing, because the kubelet creates it.
func (n *node) pass(ctx context.Context) (string, error) {
	object, there, err := n.nodes.GetStore().GetByKey(n.name)
	own, ok := object.(*corev1.Node)
	if err != nil || !there || !ok {
		return "", nil
	}
	want, err := Read(n.dirs)
	if err != nil {
		return "", err
	}
	have := readNode(own)
	if err := write(ctx, n.api, own, LabelStep(have, want, n.registered)); err != nil {
		return "", err
	}
	return describe(n.name, have, want), nil
}

// write performs a change of a Node. A conflict is not an error: the Node in the cache was out of
// date, and its next update triggers the next pass. A missing Node is not an error.
func write(ctx context.Context, api kubernetes.Interface, n *corev1.Node, c change) error {
	if c.empty() {
		return nil
	}
	patch, err := component.MergePatch(n, c.patch())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	_, err = api.CoreV1().Nodes().Patch(ctx, n.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if err == nil || apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf("Node %s: labels and taints of the configuration cannot be set: %w", n.Name, err)
}
