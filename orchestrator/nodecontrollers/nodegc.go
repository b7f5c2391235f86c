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

// nodeController is the service account of upstream's node lifecycle controller. It may delete
// Nodes and pods.
const nodeController = "node-controller"

// DeleteRemovedNodes deletes Nodes and then their pods, so Kubernetes replaces the pods. It returns
// the names of the Nodes that existed. For a missing Node it deletes only the pods. It runs in a
// command, outside the process of the controllers, and uses the identity of that process to get the
// identity of nodeController.
func DeleteRemovedNodes(ctx context.Context, dirs dirs.Dirs, order nodespec.NodeGCRequest) ([]string, error) {
	client, err := CommandClient(ctx, dirs, nodeController)
	if err != nil {
		return nil, fmt.Errorf("Nodes: cannot be deleted: %w", err)
	}
	return deleteNodes(ctx, client, order, nodeGCInterval)
}

// CommandClient returns a client with the identity of a service account of kube-system, for a
// command of the orchestrator on a control-plane machine. It waits until the API server answers,
// and returns an error when ctx is done first.
func CommandClient(ctx context.Context, dirs dirs.Dirs, account string) (kubernetes.Interface, error) {
	// A command announces no status. It does not wait for its rights, and returns a rejected
	// request as an error.
	env := component.Env{
		Dir: dirs.Controllers, Dirs: dirs, Announce: func(string, bool, string) {},
		Rights: func(context.Context) error { return nil },
	}
	who, err := begin(ctx, env, Namespaces)
	if err != nil {
		return nil, err
	}
	if who == nil {
		return nil, fmt.Errorf("the API server does not answer: %w", context.Cause(ctx))
	}
	// The default limit of the client is too low to delete the pods of a Node in time. The API
	// server has limits of its own.
	who.config.QPS = -1
	client := who.of(ctx, account)
	if client == nil {
		return nil, fmt.Errorf("the API server does not answer: %w", context.Cause(ctx))
	}
	return client, nil
}

// deleteNodes deletes Nodes and their pods, and returns the names of the Nodes that existed. It
// makes at most three passes, with the delay every between two passes. The later passes are
// necessary because a removed machine may register its Node again until the API server has loaded
// the revocation. If a Node exists even after the last pass, the next request of the caller deletes
// it.
func deleteNodes(ctx context.Context, client kubernetes.Interface, order nodespec.NodeGCRequest, every time.Duration) (there []string, err error) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	var failed []error
	look := order.Names
	for range 3 {
		var was []string
		for _, name := range look {
			node, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
			if made := node.GetCreationTimestamp(); err == nil && made.After(order.MadeBefore) {
				if time.Until(made.Time) > maxSkew {
					failed = append(failed, fmt.Errorf("Node %s: was created at %s, which is in the future by the clock of this machine: its machine cannot be determined; correct the clock (`orlopctl get time`), or delete it (`kubectl delete node %s`)", name, made.UTC().Format(time.RFC3339), name))
				}
				continue // the Node belongs to another machine, and so do its pods
			}
			if err == nil {
				same := metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(node.UID))}
				err = client.CoreV1().Nodes().Delete(ctx, name, same)
			}
			switch {
			// a conflict: a new Node has replaced the Node that was read
			case err == nil, apierrors.IsConflict(err):
				was = append(was, name)
			case !apierrors.IsNotFound(err):
				failed = append(failed, fmt.Errorf("Node %s: cannot be deleted: %w", name, err))
			}
			if err := deletePods(ctx, client, name); err != nil {
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
			return there, fmt.Errorf("Nodes %v: cannot determine whether they are registered again: %w", look, context.Cause(ctx))
		}
	}
	return there, errors.Join(failed...)
}

// deletePods deletes the pods of a Node without a grace period, because no kubelet would confirm
// their end. Upstream's pod garbage collector would delete them 40 to 60 seconds later.
func deletePods(ctx context.Context, client kubernetes.Interface, node string) error {
	pods, err := client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String()})
	if err != nil {
		return fmt.Errorf("Node %s: its pods cannot be listed: %w", node, err)
	}
	var failed []error
	for _, p := range pods.Items {
		now := metav1.NewDeleteOptions(0)
		// The UID protects a newer pod with the same name, which runs on another machine.
		now.Preconditions = metav1.NewUIDPreconditions(string(p.UID))
		err := client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, *now)
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			failed = append(failed, fmt.Errorf("pod %s/%s of the Node %s: cannot be deleted: %w", p.Namespace, p.Name, node, err))
		}
	}
	return errors.Join(failed...)
}

// maxSkew is the largest accepted difference between the clocks of control-plane machines.
// deleteNodes does not delete a Node with a creation time further in the future, because the time
// does not show whether the Node belongs to the removed machine.
const maxSkew = 15 * time.Second

// nodeGCInterval is the time between two passes of deleteNodes. The API server reloads the
// revocations every second.
const nodeGCInterval = time.Second
