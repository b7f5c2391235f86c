package nodecontrollers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// nodeController is the service account of upstream's controller that looks after Nodes; it may
// delete them, and pods.
const nodeController = "node-controller"

// DeleteRemovedNodes deletes Nodes and then their pods, so that Kubernetes makes others of them, and
// returns which Nodes were there. A Node that is not there is forgotten; pods of it go all the
// same. It works beside the process of the controllers, with whose identity it begins.
func DeleteRemovedNodes(ctx context.Context, dirs dirs.Dirs, order nodespec.NodeGCRequest) ([]string, error) {
	rights := func(context.Context) error { return nil } // a refusal is an answer here
	who, err := begin(ctx, Namespaces, dirs, rights, component.Announce(func(string, bool, string) {}))
	if err != nil {
		return nil, err
	}
	// a Node has more pods than a client may delete in time otherwise; the server has its own
	// limits
	who.config.QPS = -1
	client := who.of(ctx, nodeController)
	if client == nil {
		return nil, fmt.Errorf("Nodes: cannot be deleted: the API server does not answer: %w", context.Cause(ctx))
	}
	return forgetNodes(ctx, client, order, settled)
}

// forgetNodes looks again for what was there: until the API server has seen that its certificate
// counts no more, the node may make its Node anew. One that does so without end is for who looks
// next.
func forgetNodes(ctx context.Context, client kubernetes.Interface, order nodespec.NodeGCRequest, every time.Duration) (there []string, err error) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	var failed []error
	look := order.Names
	for range 3 {
		var was []string
		for _, name := range look {
			node, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
			if made := node.GetCreationTimestamp(); err == nil && made.After(order.MadeBefore) {
				if time.Until(made.Time) > skew {
					failed = append(failed, fmt.Errorf("Node %s: was made at %s, which is in the future by the clock of this machine: nobody can tell whose it is; set the clock right (`orlopctl get time`), or delete it (`kubectl delete node %s`)", name, made.UTC().Format(time.RFC3339), name))
				}
				continue // it is another machine's, and so are its pods
			}
			if err == nil {
				same := metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(node.UID))}
				err = client.CoreV1().Nodes().Delete(ctx, name, same)
			}
			switch {
			case err == nil, apierrors.IsConflict(err): // made anew at this moment
				was = append(was, name)
			case !apierrors.IsNotFound(err):
				failed = append(failed, fmt.Errorf("Node %s: cannot be deleted: %w", name, err))
			}
			if err := endPods(ctx, client, name); err != nil {
				failed = append(failed, err)
			}
		}
		for _, name := range was {
			if !slices.Contains(there, name) {
				there = append(there, name)
			}
		}
		if look = was; len(look) == 0 {
			break
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return there, fmt.Errorf("Nodes %v: nobody knows whether they are made anew: %w", look, context.Cause(ctx))
		}
	}
	return there, errors.Join(failed...)
}

// endPods deletes the pods of a Node without waiting for anybody who would end them: the kubelet
// that would is nobody any more. Upstream's collector does the same 40 to 60 seconds later.
func endPods(ctx context.Context, client kubernetes.Interface, node string) error {
	pods, err := client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String()})
	if err != nil {
		return fmt.Errorf("Node %s: its pods cannot be listed: %w", node, err)
	}
	var failed []error
	for _, p := range pods.Items {
		now := metav1.NewDeleteOptions(0)
		// one that has its name by now is on another machine
		now.Preconditions = metav1.NewUIDPreconditions(string(p.UID))
		err := client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, *now)
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			failed = append(failed, fmt.Errorf("pod %s/%s of the Node %s: cannot be deleted: %w", p.Namespace, p.Name, node, err))
		}
	}
	return errors.Join(failed...)
}

// skew is how much clocks of control-plane machines may differ before the time at which a Node was
// made says nothing.
const skew = 15 * time.Second

// settled is how often it is looked whether a Node is there again; the API server looks each second
// at what is revoked.
const settled = time.Second
