// Package drain empties a node before its machine is away or removed from the cluster. It cordons
// the node, so that the scheduler assigns no more pods, and evicts the pods; a disruption budget
// may forbid an eviction (PodDisruptionBudget, policy/v1). Pods that belong to the node (of
// DaemonSets, static pods) and pods that have ended stay. The conditions of the Node show each
// stage (conditions.go).
//
// A node drains itself with the certificate of the kubelet, which has no rights on pods of another
// node. A control-plane machine drains a node before it removes the node from the cluster, with the
// identity of the controllers.
//
// A drain continues without the client that requested it, and during an outage of the API server:
// the drain retries until its timeout. If its process or its machine is lost, the drain ends by
// itself: the Node has an annotation with the expiry of the drain, and only a running drain renews
// it. A component of every node (the function Run) undoes an expired drain. It also undoes the
// drain of its own node after the machine has booted again.
//
// docs/decisions/0102-drain.md gives the reasons.
package drain

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
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

const (
	// retryInterval is the time between two rounds. Upstream's controller updates the status of a
	// budget as soon as a pod changes, so each round can evict more pods.
	retryInterval = time.Second
	// callTimeout bounds a request: the server may be gone.
	callTimeout = 10 * time.Second
	// undoTimeout bounds the undo of a failed drain. A drain that could not be undone in that time
	// expires later.
	undoTimeout = 10 * time.Second
	// messageInterval is the time between two changes of the message in the conditions.
	messageInterval = 10 * time.Second
)

// Client returns a client with the identity of the node.
func Client(dirs dirs.Dirs) (kubernetes.Interface, error) {
	config, err := component.LoadConfig(component.KubeconfigPath(dirs.Node, kubelet.Name))
	if err != nil {
		return nil, err
	}
	config.Timeout = callTimeout
	// A node has at most some hundred pods, with a request for each in a round. The client
	// therefore has no rate limit; the server has its own limits.
	config.QPS = -1
	return component.NewClient(config)
}

// Drain cordons a node and evicts its pods, round after round, until no pod is left or the timeout
// is over. It calls the function report after each change of the progress. If the result is a
// refusal, or after an error, it undoes the drain. With o.Undo, Drain only undoes an earlier drain.
func Drain(ctx context.Context, api kubernetes.Interface, node string, o nodespec.DrainRequest, report func(nodespec.DrainProgress)) (out nodespec.DrainResult, err error) {
	working, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	if o.Undo {
		return out, retryUndo(working, api, node, undone, ignore)
	}
	defer func() {
		if err == nil && !out.Refused {
			return
		}
		undoing, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
		defer cancel()
		err = errors.Join(err, retryUndo(undoing, api, node, undone, ignore))
	}()
	d := &drain{api: api, node: node, order: o, report: report, evicted: map[types.UID]bool{}}
	d.deadline, _ = working.Deadline()
	done, forbidden := d.work(working)
	out.DrainProgress = done
	switch {
	case ctx.Err() != nil:
		return out, context.Cause(ctx)
	case done.Left == 0 && done.Problem == "":
		d.finish(ctx, drained, fmt.Sprintf("%d pods were evicted", done.Evicted))
		return out, nil
	}
	if out.Refused = o.Refuse && (done.Problem != "" || forbidden); !out.Refused {
		d.finish(ctx, incomplete, "the deadline is over: "+done.Remaining())
	}
	return out, nil
}

// Reporter returns a function that writes each progress to a file, as a line of JSON. An error is
// ignored: if the reader is gone, only the progress is lost.
func Reporter(to io.Writer) func(nodespec.DrainProgress) {
	out := json.NewEncoder(to)
	return func(p nodespec.DrainProgress) { _ = out.Encode(p) }
}

// The function ignore is for callers of retryUndo that do not report each failed attempt. retryUndo
// itself returns a problem that persists.
func ignore(error) {}

// drain is the state of a running drain.
type drain struct {
	api      kubernetes.Interface
	node     string
	order    nodespec.DrainRequest
	deadline time.Time
	report   func(nodespec.DrainProgress)
	evicted  map[types.UID]bool
	reported nodespec.DrainProgress
	written  time.Time // the last change of the message in the conditions
}

// work makes rounds until no pod is left or ctx is done. It returns the progress after the last
// round that ended before ctx was done. forbidden is true if a budget or a busy server forbade an
// eviction in this round.
func (d *drain) work(ctx context.Context) (now nodespec.DrainProgress, forbidden bool) {
	tick := time.NewTicker(retryInterval)
	defer tick.Stop()
	now.Problem = "the timeout was too short to request the eviction of all pods"
	for {
		pods, held, failed := d.round(ctx)
		complete := failed == nil && len(pods) == 0
		if complete || ctx.Err() == nil { // the result of a canceled call is not the progress
			now, forbidden = d.progress(now, pods, failed), held
			d.reportChange(now)
		}
		if complete {
			return now, false
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return now, forbidden
		}
	}
}

// progress returns the progress after a round. A round that could not list the pods retains the
// pods of the round before.
func (d *drain) progress(before nodespec.DrainProgress, pods []nodespec.DrainPod, failed error) nodespec.DrainProgress {
	now := nodespec.DrainProgress{Evicted: len(d.evicted), Left: len(pods), Pods: pods}
	if failed != nil {
		now.Problem = head(failed.Error())
		if pods == nil {
			now.Left, now.Pods = before.Left, before.Pods
		}
	}
	slices.SortStableFunc(now.Pods, func(a, b nodespec.DrainPod) int {
		return cmp.Compare(rank(a.State), rank(b.State))
	})
	now.Pods = now.Pods[:min(len(now.Pods), nodespec.MaxDrainPods)]
	return now
}

// rank orders pods: those that block the drain are first.
func rank(s nodespec.DrainPodState) int {
	if s == nodespec.DrainEnding {
		return 1
	}
	return 0
}

// reportChange calls report if the progress has changed.
func (d *drain) reportChange(now nodespec.DrainProgress) {
	if now.Evicted == d.reported.Evicted && now.Left == d.reported.Left && now.Problem == d.reported.Problem && slices.Equal(now.Pods, d.reported.Pods) {
		return
	}
	d.reported = now
	d.report(now)
}

// round cordons the node, requests the eviction of every pod that is not ending yet, and returns
// the remaining pods. The list is nil if the pods are unknown. forbidden is true if evict reported
// for a pod that it must stay for now. A pod that cannot be evicted does not stop the others, but
// is an error of the round. Each round cordons the node again, because process "node" undoes the
// drain if the process restarts meanwhile (Run).
func (d *drain) round(ctx context.Context) (left []nodespec.DrainPod, forbidden bool, err error) {
	if err := d.hold(ctx); err != nil {
		return nil, false, err
	}
	list, err := d.api.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", d.node).String(),
	})
	if err != nil {
		return nil, false, fmt.Errorf("cannot list the node's pods: %w", err)
	}
	left = []nodespec.DrainPod{}
	for _, p := range slices.DeleteFunc(list.Items, stays) {
		pod, mustStay, failed := nodespec.DrainPod{State: nodespec.DrainEnding}, false, error(nil)
		if p.DeletionTimestamp == nil {
			pod, mustStay, failed = d.evict(ctx, &p)
		}
		pod.Pod, pod.Message = p.Namespace+"/"+p.Name, head(pod.Message)
		forbidden = forbidden || mustStay
		if failed != nil {
			err = cmp.Or(err, fmt.Errorf("pod %s: cannot evict: %w", pod.Pod, failed))
		}
		left = append(left, pod)
	}
	return left, forbidden, err
}

// hold cordons the node, renews the drain, and maintains the conditions of the Node. Without a Node
// there is nothing to do. The conditions only inform: a drain continues without them.
func (d *drain) hold(ctx context.Context) error {
	n, err := getNode(ctx, d.api, d.node)
	if err != nil || n == nil {
		return err
	}
	now := time.Now()
	if err := mark(ctx, d.api, n, drainLife, now); err != nil {
		return err
	}
	have := condition(n, corev1.NodeDrainInProgress)
	if have != nil && have.Status == corev1.ConditionTrue && now.Sub(d.written) < messageInterval {
		return nil
	}
	message := fmt.Sprintf("%s, asked by %s, until %s", d.order.Operation, d.order.By, d.deadline.UTC().Format(time.RFC3339))
	if d.reported.Left > 0 {
		message += fmt.Sprintf(": %d pods are left: %s", d.reported.Left, d.reported.Remaining())
	}
	if setConditions(ctx, d.api, n, draining, cause{reasonOf(d.order.Operation), head(message)}, now) == nil {
		d.written = now
	}
	return nil
}

// finish gives the Node the conditions of stage s at the end of the drain, and a later expiry, so
// that the operation behind the drain has time. Failures are ignored. The conditions only inform.
// Without the later expiry, the component of the node (Run) may uncordon it too early, but only
// while its machine still runs.
func (d *drain) finish(ctx context.Context, s stage, message string) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	n, err := getNode(ctx, d.api, d.node)
	if err != nil || n == nil {
		return
	}
	if mark(ctx, d.api, n, doneLife, time.Now()) == nil {
		_ = setConditions(ctx, d.api, n, s, cause{reasonOf(d.order.Operation), head(message)}, time.Now())
	}
}

// maxMessage bounds the message of a condition, of a pod and of a problem, in bytes: a webhook that
// denies an eviction chooses the text, and machined reads only a limited output of a command.
const maxMessage = 1024

// head returns the start of a message.
func head(text string) string {
	if len(text) <= maxMessage {
		return text
	}
	return strings.ToValidUTF8(text[:maxMessage-len("…")], "") + "…"
}

// evict requests the eviction of a pod and returns its state. mustStay reports whether the pod
// cannot be evicted yet, because of a budget, or because the server has not checked the budget.
func (d *drain) evict(ctx context.Context, p *corev1.Pod) (pod nodespec.DrainPod, mustStay bool, failed error) {
	ending := nodespec.DrainPod{State: nodespec.DrainEnding}
	only := &metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(p.UID))}
	err := d.api.PolicyV1().Evictions(p.Namespace).Evict(ctx, &policyv1.Eviction{
		ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: p.Namespace}, DeleteOptions: only,
	})
	budget, forbidden := apierrors.StatusCause(err, policyv1.DisruptionBudgetCause)
	switch {
	case forbidden && !d.order.Delete:
		return nodespec.DrainPod{State: nodespec.DrainBlocked, Budget: budgetIn(budget.Message), Message: budget.Message}, true, nil
	// With order.Delete, a pod that a budget protects is deleted. For a pod with two budgets, the
	// server returns an internal error.
	case forbidden, d.order.Delete && apierrors.IsInternalError(err):
		err = d.api.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, *only)
	}
	switch {
	case err == nil:
		d.evicted[p.UID] = true
		return ending, false, nil
	// The pod ended by itself, or another pod has its name.
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return ending, false, nil
	// The pod ends with its namespace.
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return ending, false, nil
	case apierrors.IsTooManyRequests(err): // the server is busy
		return nodespec.DrainPod{State: nodespec.DrainBlocked, Message: "not evicted yet: " + err.Error()}, true, nil
	}
	return nodespec.DrainPod{State: nodespec.DrainFailed, Message: err.Error()}, false, err
}

// budgetName finds the name of the budget in the answer of the API server, which has the name in
// the text only (k8s.io/kubernetes/pkg/registry/core/pod/storage/eviction.go). A drain cannot list
// the budgets instead, because a kubelet has no right to read them.
var budgetName = regexp.MustCompile(`^The disruption budget (\S+) `)

// budgetIn returns the name of the budget in an answer of the API server; empty if it names none.
func budgetIn(message string) string {
	if found := budgetName.FindStringSubmatch(message); found != nil {
		return found[1]
	}
	return ""
}

// stays reports whether a drain leaves a pod on the node: the pod belongs to the node, or has
// ended.
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

// retryUndo undoes the drain of a node. It repeats a failed attempt, because the server may be gone
// for a moment. When ctx is done, it returns the last problem. It reports each new problem when it
// occurs.
func retryUndo(ctx context.Context, api kubernetes.Interface, name string, s stage, report func(problem error)) error {
	tick := time.NewTicker(retryInterval)
	defer tick.Stop()
	for problem := error(nil); ; {
		err := undo(ctx, api, name, s, nil)
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
