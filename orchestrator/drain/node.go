package drain

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// The annotations of a Node that is drained.
const (
	// drainedAnnotation marks a Node that a drain, and not an operator, has cordoned.
	drainedAnnotation = "orlop.dev/drained"
	// expiresAnnotation is the time at which the drain expires unless it renews the annotation (RFC
	// 3339). After that time the node undoes the drain by itself, because the process that ran the
	// drain is gone.
	expiresAnnotation = "orlop.dev/drain-expires"
)

const (
	// drainLife is the time from a renewal to the expiry, for a drain that runs.
	drainLife = 2 * time.Minute
	// doneLife is the time from a renewal to the expiry, for a drain that has ended. Within this
	// time the machine asks the cluster for permission again, leaves etcd and shuts down.
	doneLife = 10 * time.Minute
	// maxSkew is the largest supported difference between the clocks of the machine that drains and
	// of the drained machine.
	maxSkew = time.Minute
)

// expiry returns the time at which the drain of a Node expires, and whether it is recorded. If the
// recorded text is not a time, at is the zero time, so the drain has expired.
func expiry(n *corev1.Node) (at time.Time, recorded bool) {
	text, recorded := n.Annotations[expiresAnnotation]
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return time.Time{}, recorded
	}
	return at, recorded
}

// expired reports whether a drain of a Node is recorded and has expired.
func expired(n *corev1.Node, now time.Time) bool {
	at, recorded := expiry(n)
	return recorded && now.After(at.Add(maxSkew))
}

// mark cordons a Node, and renews the expiry of its drain. It leaves the expiry unchanged while at
// least half of life is left, except if the expiry is later than any drain sets it. A Node that an
// operator has cordoned does not get drainedAnnotation, so that Node stays cordoned.
func mark(ctx context.Context, api kubernetes.Interface, n *corev1.Node, life time.Duration, now time.Time) error {
	meta, change := map[string]string{}, map[string]any{}
	if at, _ := expiry(n); at.Sub(now) < life/2 || at.Sub(now) > doneLife+maxSkew {
		meta[expiresAnnotation] = now.Add(life).UTC().Format(time.RFC3339)
	}
	if !n.Spec.Unschedulable {
		meta[drainedAnnotation] = "true"
		change["spec"] = map[string]any{"unschedulable": true}
	}
	if len(meta) == 0 {
		return nil
	}
	change["metadata"] = map[string]any{"annotations": meta}
	return patchNode(ctx, api, n.Name, change)
}

// setConditions gives a Node the conditions of a stage.
func setConditions(ctx context.Context, api kubernetes.Interface, n *corev1.Node, s stage, why cause, now time.Time) error {
	changes := conditionChanges(n, s, why, now)
	if len(changes) == 0 {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": changes}})
	if err == nil {
		_, err = api.CoreV1().Nodes().Patch(ctx, n.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	}
	if err != nil {
		return fmt.Errorf("cannot write the conditions of the node: %w", err)
	}
	return nil
}

// undo ends the drain of a Node with the conditions of a stage, and makes the Node schedulable if a
// drain has cordoned it. The annotations are removed last: while they exist, the undo can be
// repeated. A drain that still runs cordons the Node again in its next round.
func undo(ctx context.Context, api kubernetes.Interface, name string, s stage, only func(*corev1.Node) bool) error {
	n, err := getNode(ctx, api, name)
	if err != nil || n == nil || only != nil && !only(n) {
		return err
	}
	if err := setConditions(ctx, api, n, s, cause{}, time.Now()); err != nil {
		return err
	}
	_, recorded := n.Annotations[expiresAnnotation]
	_, marked := n.Annotations[drainedAnnotation]
	if !recorded && !marked {
		return nil
	}
	change := map[string]any{"metadata": map[string]any{"annotations": map[string]any{expiresAnnotation: nil, drainedAnnotation: nil}}}
	if marked {
		change["spec"] = map[string]any{"unschedulable": nil}
	}
	return patchNode(ctx, api, n.Name, change)
}

// Undo ends the drain of a node: it removes the conditions of the drain, and makes the node
// schedulable if a drain has cordoned it.
func Undo(ctx context.Context, api kubernetes.Interface, name string) error {
	return undo(ctx, api, name, undone, nil)
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

func patchNode(ctx context.Context, api kubernetes.Interface, name string, change map[string]any) error {
	patch, err := json.Marshal(change)
	if err == nil {
		_, err = api.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	}
	if err != nil {
		return fmt.Errorf("cannot cordon or uncordon the node: %w", err)
	}
	return nil
}
