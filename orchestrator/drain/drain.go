// Package drain empties the node before the machine reboots into another version: the scheduler
// gives it no more pods, and those that it has are evicted, which their disruption budgets may
// forbid (PodDisruptionBudget, policy/v1). It acts with the kubelet's own certificate, so it can do
// nothing to another node's pods. Pods that belong to the node (of DaemonSets, static ones) and
// pods that have ended stay.
//
// A drain outlasts whoever asked for it: the Node carries a mark, and Run, which is a component of
// every node, takes pods again when the machine has come back.
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
	"k8s.io/client-go/tools/clientcmd"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/orchestrator/kubeconfig"
	"github.com/orlop-os/orlop/orchestrator/kubelet"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// Name is the component that takes pods again.
const Name = "schedulable"

// mark is the annotation of a Node that a drain, and no operator, has closed.
const mark = "orlop.dev/drained"

// every is how long after one round the next one looks what has become of the pods. A budget is
// looked at again by upstream's controller as soon as a pod changes.
const every = time.Second

// undoTime bounds taking pods again after a drain that failed.
const undoTime = 10 * time.Second

// Component describes it without its Run function.
func Component() component.Component {
	return component.Component{Process: component.Node, Name: Name}
}

// Run takes pods again, if the machine did not before it went down, and then has nothing to do
// until ctx is done. registered waits for the Node object.
func Run(ctx context.Context, spec nodespec.Spec, dirs dirs.Dirs, registered func(context.Context) error, announce component.Announce) error {
	if err := registered(ctx); err != nil {
		return nil // asked to stop
	}
	api, err := Client(dirs)
	if err != nil {
		return err
	}
	if err := reopen(ctx, api, spec.NodeName, func(problem error) { announce(Name, false, problem.Error()) }); err != nil {
		return nil // asked to stop
	}
	announce(Name, true, "")
	<-ctx.Done()
	return nil
}

// Client speaks for the node.
func Client(dirs dirs.Dirs) (kubernetes.Interface, error) {
	path := kubeconfig.Path(dirs.Node, kubelet.Name)
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return nil, fmt.Errorf("%s: cannot use: %w", path, err)
	}
	config.Timeout = 10 * time.Second // of one call: the server may be gone
	// a node has at most some hundred pods, each of which is asked for once in a round; the server
	// has its own limits
	config.QPS = -1
	api, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("cannot make client: %w", err)
	}
	return api, nil
}

// Drain closes the node and evicts its pods, round after round, until none is left or the time is up.
// If it is refused, or with an error, the node takes pods again.
func Drain(ctx context.Context, api kubernetes.Interface, node string, o nodespec.DrainRequest) (out nodespec.DrainResult, err error) {
	working, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	if o.Undo {
		return out, reopen(working, api, node, untold)
	}
	defer func() {
		if err == nil && !out.Refused {
			return
		}
		undoing, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
		defer cancel()
		err = errors.Join(err, reopen(undoing, api, node, untold))
	}()
	tick := time.NewTicker(every)
	defer tick.Stop()
	d := drain{api: api, node: node, order: o, evicted: map[types.UID]bool{}}
	problem, forbidden := errors.New("the time was too short to ask for the eviction of all pods"), false
	for {
		left, held, failed := d.round(working)
		if failed == nil && len(left) == 0 {
			return nodespec.DrainResult{Evicted: len(d.evicted)}, nil
		}
		if working.Err() == nil { // what a cut call says is not what is wrong
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

// untold is for problems that only count if they last.
func untold(error) {}

// drain is one drain while it goes on.
type drain struct {
	api     kubernetes.Interface
	node    string
	order   nodespec.DrainRequest
	evicted map[types.UID]bool
}

// round closes the node, asks for the eviction of every pod that has not been asked to end, and
// says which are left and why, and whether a budget forbids one of them to go, as far as is known.
// That one cannot be evicted does not keep the others; it is an error of the round all the same.
// The node is closed in each round: process "node", if it is started anew meanwhile, opens it
// (Run).
func (d *drain) round(ctx context.Context) (left []string, forbidden bool, err error) {
	if err := closeNode(ctx, d.api, d.node); err != nil {
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

// evict asks for the eviction of one pod, and says how that went, and whether the pod must stay: by
// a budget, or as long as nobody has looked at that.
func (d *drain) evict(ctx context.Context, p *corev1.Pod) (why string, must bool, failed error) {
	only := &metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(p.UID))}
	err := d.api.PolicyV1().Evictions(p.Namespace).Evict(ctx, &policyv1.Eviction{
		ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: p.Namespace}, DeleteOptions: only,
	})
	budget, forbidden := apierrors.StatusCause(err, policyv1.DisruptionBudgetCause)
	switch {
	case forbidden && !d.order.Delete:
		return "must stay: " + budget.Message, true, nil
	// which is what the server says of a pod with two budgets
	case forbidden, d.order.Delete && apierrors.IsInternalError(err):
		err = d.api.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, *only)
	}
	switch {
	case err == nil:
		d.evicted[p.UID] = true
		return "still ending", false, nil
	// it went by itself, or another one has its name
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return "still ending", false, nil
	// it goes with its namespace
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return "still ending", false, nil
	case apierrors.IsTooManyRequests(err): // the server is busy
		return "not asked yet: " + err.Error(), true, nil
	}
	return "", false, err
}

// stays tells whether a pod belongs to the node or has ended.
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

// closeNode has the scheduler give the node no more pods. One that an operator has closed is not
// marked, and so stays closed; one that is no Node any more gets none.
func closeNode(ctx context.Context, api kubernetes.Interface, name string) error {
	node, err := read(ctx, api, name)
	if err != nil || node == nil || node.Spec.Unschedulable {
		return err
	}
	return patch(ctx, api, name, `{"metadata":{"annotations":{"`+mark+`":"true"}},"spec":{"unschedulable":true}}`)
}

// Uncordon opens the node if a drain has closed it.
func Uncordon(ctx context.Context, api kubernetes.Interface, name string) error {
	node, err := read(ctx, api, name)
	if err != nil || node == nil {
		return err
	}
	if _, marked := node.Annotations[mark]; !marked {
		return nil
	}
	return patch(ctx, api, name, `{"metadata":{"annotations":{"`+mark+`":null}},"spec":{"unschedulable":null}}`)
}

// reopen is Undo until it succeeds, because the server may be gone for a moment, or until ctx is
// done; then the error is the last problem. Each new one is told when it comes.
func reopen(ctx context.Context, api kubernetes.Interface, name string, tell func(problem error)) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for problem := error(nil); ; {
		err := Uncordon(ctx, api, name)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil: // what a cut call says is not what is wrong
			return cmp.Or(problem, err)
		case problem == nil || problem.Error() != err.Error():
			tell(err)
		}
		problem = err
		select {
		case <-tick.C:
		case <-ctx.Done():
			return problem
		}
	}
}

// read reads the node; nil when there is none, because the machine was removed from the cluster.
func read(ctx context.Context, api kubernetes.Interface, name string) (*corev1.Node, error) {
	node, err := api.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the node: %w", err)
	}
	return node, nil
}

func patch(ctx context.Context, api kubernetes.Interface, name, text string) error {
	if _, err := api.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, []byte(text), metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("cannot change whether the node takes pods: %w", err)
	}
	return nil
}
