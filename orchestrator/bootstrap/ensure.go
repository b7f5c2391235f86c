package bootstrap

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/orlop-os/orlop/orchestrator/component"
)

// objects are the methods of a typed client for one kind of object.
type objects[T metav1.Object] interface {
	Create(ctx context.Context, object T, opts metav1.CreateOptions) (T, error)
	Get(ctx context.Context, name string, opts metav1.GetOptions) (T, error)
	Update(ctx context.Context, object T, opts metav1.UpdateOptions) (T, error)
}

// ensureObject creates an object. If it exists, correct changes the differing parts and reports
// whether there were any. A correct object is not written: an administrator's admission policy may
// forbid even an unchanged update.
func ensureObject[T metav1.Object](ctx context.Context, all objects[T], want T, correct func(have T) (changed bool)) error {
	have, err := all.Get(ctx, want.GetName(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		if _, err = all.Create(ctx, want, metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
			return err
		}
		// another control-plane machine was faster
		have, err = all.Get(ctx, want.GetName(), metav1.GetOptions{})
	}
	if err != nil || !correct(have) {
		return err
	}
	_, err = all.Update(ctx, have, metav1.UpdateOptions{})
	return err
}

// assign sets have to want and reports whether it changed.
func assign[T any](have *T, want T) bool {
	if equality.Semantic.DeepEqual(*have, want) {
		return false
	}
	*have = want
	return true
}

// LabelOwn is on the Services that this package creates. A Service of the same name without the
// label is from a user who supplies this component. The missing selector is no sign of our Service:
// a user's Service has none, either, if its endpoints are outside the cluster.
const LabelOwn = "orlop.dev/own"

func ours(s *corev1.Service) bool {
	_, marked := s.Labels[LabelOwn]
	return marked
}

// conflictError is returned when another Service has the name or the address of a Service of this
// package. It persists until the operator acts.
type conflictError string

func (w conflictError) Error() string { return string(w) }

// allocated is the message of the server for an address of another Service
// (ipallocator.ErrAllocated).
const allocated = "provided IP is already allocated"

// ensureService creates a Service or corrects its ports and traffic policy. The addresses of a
// Service cannot be changed, so a Service with other addresses is a conflict. A Service of another
// owner with the same name or address is a conflict, too.
func ensureService(ctx context.Context, client kubernetes.Interface, want *corev1.Service) error {
	all := client.CoreV1().Services(want.Namespace)
	have, err := all.Get(ctx, want.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		if err := ensureNamespace(ctx, client); err != nil {
			return err
		}
		if _, err = all.Create(ctx, want, metav1.CreateOptions{}); err == nil {
			return nil
		}
		// The server rejects a used address as invalid, even if the user of the address is this
		// Service, created by another machine a moment ago.
		refusal, getErr := err, error(nil)
		if have, getErr = all.Get(ctx, want.Name, metav1.GetOptions{}); apierrors.IsNotFound(getErr) && strings.Contains(refusal.Error(), allocated) {
			return conflictError(fmt.Sprintf("Service %s/%s: another Service has one of its addresses %v: delete that Service, or change its address: %v",
				want.Namespace, want.Name, want.Spec.ClusterIPs, refusal))
		}
		if getErr != nil {
			return refusal
		}
	} else if err != nil {
		return err
	}
	if !ours(have) {
		return conflictError(fmt.Sprintf("Service %s/%s: belongs to another owner, because it has no label %s: delete it so that it is created again, or name its component in Cluster.spec.external",
			want.Namespace, want.Name, LabelOwn))
	}
	if !equality.Semantic.DeepEqual(have.Spec.ClusterIPs, want.Spec.ClusterIPs) {
		return conflictError(fmt.Sprintf("Service %s/%s: has addresses %v, expected %v: delete it so that it is created again",
			want.Namespace, want.Name, have.Spec.ClusterIPs, want.Spec.ClusterIPs))
	}
	if have.Spec.Selector == nil && equality.Semantic.DeepEqual(have.Spec.InternalTrafficPolicy, want.Spec.InternalTrafficPolicy) &&
		equality.Semantic.DeepEqual(have.Spec.Ports, want.Spec.Ports) {
		return nil
	}
	have.Spec.Selector, have.Spec.Ports, have.Spec.InternalTrafficPolicy = nil, want.Spec.Ports, want.Spec.InternalTrafficPolicy
	_, err = all.Update(ctx, have, metav1.UpdateOptions{})
	return err
}

// deleteService deletes a Service of this package, so that another Service can have its name and
// address. It retains a Service with a selector: a user has changed it, in spite of its label.
func deleteService(ctx context.Context, client kubernetes.Interface, own *corev1.Service) error {
	all := client.CoreV1().Services(own.Namespace)
	have, err := all.Get(ctx, own.Name, metav1.GetOptions{})
	if err == nil && ours(have) && len(have.Spec.Selector) == 0 {
		err = all.Delete(ctx, own.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &have.UID, ResourceVersion: &have.ResourceVersion}})
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// ControlPlaneKey marks a Node for users and schedulers: the key of a label and of a taint.
const ControlPlaneKey = "node-role.kubernetes.io/control-plane"

// labelPatch returns the merge patch by which a control-plane machine's Node gets its label and, if
// tainted, its taint, or loses the taint; nil if no change is needed. The patch replaces the list
// of taints and retains the others in it. Its resourceVersion makes the server reject it if another
// client has changed the Node meanwhile.
func labelPatch(node *corev1.Node, tainted bool) []byte {
	meta, patch := map[string]any{}, map[string]any{}
	if _, labelled := node.Labels[ControlPlaneKey]; !labelled {
		meta["labels"] = map[string]string{ControlPlaneKey: ""}
	}
	own := func(t corev1.Taint) bool {
		return t.Key == ControlPlaneKey && t.Effect == corev1.TaintEffectNoSchedule
	}
	if slices.ContainsFunc(node.Spec.Taints, own) != tainted {
		taints := slices.DeleteFunc(slices.Clone(node.Spec.Taints), own)
		if tainted {
			taints = append(taints, corev1.Taint{Key: ControlPlaneKey, Effect: corev1.TaintEffectNoSchedule})
		}
		meta["resourceVersion"] = node.ResourceVersion
		patch["spec"] = map[string]any{"taints": taints}
	}
	if len(meta) == 0 {
		return nil
	}
	patch["metadata"] = meta
	text, err := json.Marshal(patch)
	if err != nil {
		panic(err) // strings, and a type of upstream's API
	}
	return text
}

// labelNode maintains the label and the taint of the machine's own Node until ctx is done. The
// kubelet's registerWithTaints is not sufficient: upstream applies it only when it creates the Node
// (pkg/kubelet/kubelet_node_status.go, initialNode), and the configuration may change later. A
// rejection, for example by a webhook, is reported and retried after retryInterval.
func labelNode(ctx context.Context, client kubernetes.Interface, name string, tainted bool, retryInterval time.Duration, report func(why string)) error {
	own := informers.NewSharedInformerFactoryWithOptions(client, 0, component.Only(metav1.ObjectNameField, name))
	patches := make(chan []byte, 1)
	onNode := func(object any) {
		node, ok := object.(*corev1.Node)
		if !ok {
			return
		}
		select { // the latest patch replaces an earlier patch
		case <-patches:
		default:
		}
		if patch := labelPatch(node, tainted); patch != nil {
			patches <- patch // there is space: this is the only sender
		}
	}
	handler := cache.ResourceEventHandlerFuncs{AddFunc: onNode, UpdateFunc: func(_, object any) { onNode(object) }}
	if _, err := own.Core().V1().Nodes().Informer().AddEventHandler(handler); err != nil {
		return fmt.Errorf("Node %s: cannot watch: %w", name, err)
	}
	own.Start(ctx.Done())
	var patch []byte
	var retry <-chan time.Time
	for reported := false; ; {
		select {
		case patch = <-patches:
		case <-retry:
		case <-ctx.Done():
			return nil
		}
		retry = nil
		// After a conflict the change of the Node is delivered, too, and produces a new patch.
		_, err := client.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
		if refused := err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) && ctx.Err() == nil; refused {
			report(fmt.Sprintf("Node %s: cannot label as control plane: %v", name, err))
			retry, reported = time.After(retryInterval), true
		} else if reported {
			report("")
			reported = false
		}
	}
}
