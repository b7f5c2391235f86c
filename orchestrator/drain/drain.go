// Package drain empties the node before the machine reboots into another version. It cordons the
// node, so that the scheduler assigns no more pods, and evicts the pods; their disruption budgets
// may forbid it (PodDisruptionBudget, policy/v1). It uses the certificate of the kubelet, so it has
// no rights on pods of another node. Pods that belong to the node (of DaemonSets, static pods) and
// pods that have ended stay.
//
// A drain outlasts the client that requested it: the Node has an annotation, and Run, which is a
// component of every node, uncordons the node when the machine has booted again.
package drain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/orchestrator/kubelet"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// Name is the component that uncordons the node.
const Name = "uncordon"

// drainedAnnotation marks a Node that a drain, and not an operator, has cordoned.
const drainedAnnotation = "orlop.dev/drained"

// retryInterval is the time between two rounds. Upstream's controller updates the status of a
// budget as soon as a pod changes.
const retryInterval = time.Second

// undoTimeout bounds the uncordoning after a failed drain.
const undoTimeout = 10 * time.Second

// Run uncordons the node, if the machine did not do so before it shut down, and then waits until
// ctx is done. registered waits for the Node object.
func Run(ctx context.Context, env component.Env, registered func(context.Context) error) error {
	if err := registered(ctx); err != nil {
		return nil // asked to stop
	}
	api, err := Client(env.Dirs)
	if err != nil {
		return err
	}
	if err := retryUncordon(ctx, api, env.Spec.Node.Name, func(problem error) { env.Announce(Name, false, problem.Error()) }); err != nil {
		return nil // asked to stop
	}
	env.Announce(Name, true, "")
	<-ctx.Done()
	return nil
}

// Client returns a client with the identity of the node.
func Client(dirs dirs.Dirs) (kubernetes.Interface, error) {
	config, err := component.LoadConfig(component.KubeconfigPath(dirs.Node, kubelet.Name))
	if err != nil {
		return nil, err
	}
	config.Timeout = 10 * time.Second // of one call: the server may be gone
	// A node has at most some hundred pods, with one request for each in a round. The server has
	// its own limits.
	config.QPS = -1
	return component.NewClient(config)
}

// Drain cordons the node and evicts its pods, round after round, until no pod is left or the
// timeout is over. If the result is a refusal, or after an error, it uncordons the node.
func Drain(ctx context.Context, api kubernetes.Interface, node string, o nodespec.DrainRequest) (out nodespec.DrainResult, err error) {
	working, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	if o.Undo {
		return out, retryUncordon(working, api, node, ignore)
	}
	defer func() {
		if err == nil && !out.Refused {
			return
		}
		undoing, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
		defer cancel()
		err = errors.Join(err, retryUncordon(undoing, api, node, ignore))
	}()
	tick := time.NewTicker(retryInterval)
	defer tick.Stop()
	d := drain{api: api, node: node, order: o, evicted: map[types.UID]bool{}}
	problem, forbidden := errors.New("the timeout was too short to request the eviction of all pods"), false
	for {
		left, held, failed := d.round(working)
		if failed == nil && len(left) == 0 {
			return nodespec.DrainResult{Evicted: len(d.evicted)}, nil
		}
		if working.Err() == nil { // the error of a canceled call is not the problem
			out, problem, forbidden = nodespec.DrainResult{Evicted: len(d.evicted), Remaining: left}, failed, held
		}
		select {
		case <-tick.C:
			continue
		case <-working.Done():
		}
		if ctx.Err() != nil {
			return out, context.Cause(ctx)
		}
		out.Refused = o.Refuse && (problem != nil || forbidden)
		if problem != nil {
			out.Remaining = append(out.Remaining, problem.Error())
		}
		return out, nil
	}
}

// ignore drops a problem that matters only if it persists.
func ignore(error) {}

// drain is the state of a running drain.
type drain struct {
	api     kubernetes.Interface
	node    string
	order   nodespec.DrainRequest
	evicted map[types.UID]bool
}

// round cordons the node, evicts every pod that is not ending yet, and returns the remaining pods
// with reasons. forbidden reports whether a budget forbids an eviction, as far as is known. A pod
// that cannot be evicted does not stop the others, but is an error of the round. Each round cordons
// the node: if process "node" restarts meanwhile, it uncordons the node (Run).
func (d *drain) round(ctx context.Context) (left []string, forbidden bool, err error) {
	if err := cordon(ctx, d.api, d.node); err != nil {
		return nil, false, err
	}
	list, err := d.api.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", d.node).String(),
	})
	if err != nil {
		return nil, false, fmt.Errorf("cannot list the node's pods: %w", err)
	}
	for _, p := range slices.DeleteFunc(list.Items, stays) {
		why, must, failed := "still ending", false, error(nil)
		if p.DeletionTimestamp == nil {
			why, must, failed = d.evict(ctx, &p)
		}
		forbidden = forbidden || must
		if failed != nil {
			err = cmp.Or(err, fmt.Errorf("pod %s/%s: cannot evict: %w", p.Namespace, p.Name, failed))
			continue
		}
		left = append(left, fmt.Sprintf("pod %s/%s: %s", p.Namespace, p.Name, why))
	}
	return left, forbidden, err
}

// evict requests the eviction of a pod and returns the result. must reports whether the pod must
// stay: because of a budget, or while the server has not checked the budget.
func (d *drain) evict(ctx context.Context, p *corev1.Pod) (why string, must bool, failed error) {
	only := &metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(p.UID))}
	err := d.api.PolicyV1().Evictions(p.Namespace).Evict(ctx, &policyv1.Eviction{
		ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: p.Namespace}, DeleteOptions: only,
	})
	budget, forbidden := apierrors.StatusCause(err, policyv1.DisruptionBudgetCause)
	switch {
	case forbidden && !d.order.Delete:
		return "must stay: " + budget.Message, true, nil
	// The server returns an internal error for a pod with two budgets.
	case forbidden, d.order.Delete && apierrors.IsInternalError(err):
		err = d.api.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, *only)
	}
	switch {
	case err == nil:
		d.evicted[p.UID] = true
		return "still ending", false, nil
	// The pod ended by itself, or another pod has its name.
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return "still ending", false, nil
	// It ends with its namespace.
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return "still ending", false, nil
	case apierrors.IsTooManyRequests(err): // the server is busy
		return "not evicted yet: " + err.Error(), true, nil
	}
	return "", false, err
}

// stays reports whether a pod belongs to the node or has ended.
func stays(p corev1.Pod) bool {
	if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
		return true
	}
	if _, static := p.Annotations[corev1.MirrorPodAnnotationKey]; static {
		return true
	}
	owner := metav1.GetControllerOf(&p)
	return owner != nil && owner.Kind == "DaemonSet"
}

// cordon makes the node unschedulable. It does not mark a node that an operator has cordoned, so
// that node stays cordoned. Without a Node object there is nothing to do.
func cordon(ctx context.Context, api kubernetes.Interface, name string) error {
	node, err := getNode(ctx, api, name)
	if err != nil || node == nil || node.Spec.Unschedulable {
		return err
	}
	return patchNode(ctx, api, name, `{"metadata":{"annotations":{"`+drainedAnnotation+`":"true"}},"spec":{"unschedulable":true}}`)
}

// Uncordon makes the node schedulable if a drain has cordoned it.
func Uncordon(ctx context.Context, api kubernetes.Interface, name string) error {
	node, err := getNode(ctx, api, name)
	if err != nil || node == nil {
		return err
	}
	if _, marked := node.Annotations[drainedAnnotation]; !marked {
		return nil
	}
	return patchNode(ctx, api, name, `{"metadata":{"annotations":{"`+drainedAnnotation+`":null}},"spec":{"unschedulable":null}}`)
}

// retryUncordon calls Uncordon until it succeeds, because the server may be gone for a moment, or
// until ctx is done; then it returns the last problem. It reports each new problem when it occurs.
func retryUncordon(ctx context.Context, api kubernetes.Interface, name string, report func(problem error)) error {
	tick := time.NewTicker(retryInterval)
	defer tick.Stop()
	for problem := error(nil); ; {
		err := Uncordon(ctx, api, name)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil: // the error of a canceled call is not the problem
			return cmp.Or(problem, err)
		case problem == nil || problem.Error() != err.Error():
			report(err)
		}
		problem = err
		select {
		case <-tick.C:
		case <-ctx.Done():
			return problem
		}
	}
}

// getNode returns the Node, or nil if the machine was removed from the cluster.
func getNode(ctx context.Context, api kubernetes.Interface, name string) (*corev1.Node, error) {
	node, err := api.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the node: %w", err)
	}
	return node, nil
}

func patchNode(ctx context.Context, api kubernetes.Interface, name, text string) error {
	if _, err := api.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, []byte(text), metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("cannot cordon or uncordon the node: %w", err)
	}
	return nil
}
