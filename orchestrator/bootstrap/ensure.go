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
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// objects is what a typed client does with one kind of object.
type objects[T metav1.Object] interface {
	Create(ctx context.Context, object T, opts metav1.CreateOptions) (T, error)
	Get(ctx context.Context, name string, opts metav1.GetOptions) (T, error)
	Update(ctx context.Context, object T, opts metav1.UpdateOptions) (T, error)
}

// ensureObject makes an object. When it is there already, settle puts right in it what differs, and
// says whether anything did. Nothing is written that is there as it should be: an administrator's
// policy, which admission asks first, may forbid even that.
func ensureObject[T metav1.Object](ctx context.Context, all objects[T], want T, settle func(have T) (changed bool)) error {
	have, err := all.Get(ctx, want.GetName(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		if _, err = all.Create(ctx, want, metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
			return err
		}
		// another control-plane machine was faster
		have, err = all.Get(ctx, want.GetName(), metav1.GetOptions{})
	}
	if err != nil || !settle(have) {
		return err
	}
	_, err = all.Update(ctx, have, metav1.UpdateOptions{})
	return err
}

// settle makes have what is wanted and tells whether it was something else.
func settle[T any](have *T, want T) bool {
	if equality.Semantic.DeepEqual(*have, want) {
		return false
	}
	*have = want
	return true
}

// labelOwn marks the Services that are made here. Another one of the same name is somebody's who
// supplies that part himself; it may have no selector either, when what it leads to is outside the
// cluster.
const labelOwn = "orlop.dev/own"

func ours(s *corev1.Service) bool {
	_, marked := s.Labels[labelOwn]
	return marked
}

// inTheWay says of another Service that it has the name or the address of one of ours, which lasts
// until somebody does something about it.
type inTheWay string

func (w inTheWay) Error() string { return string(w) }

// allocated is what the server says of an address that another Service has
// (ipallocator.ErrAllocated).
const allocated = "provided IP is already allocated"

// ensureService makes a Service or puts its ports and traffic policy right. Its addresses cannot be
// changed; a Service with other addresses than wanted is in the way, and so is one that is not
// ours, or has the address of ours.
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
		// An address that is taken is refused as invalid, also when this Service has it by now.
		refusal, getErr := err, error(nil)
		if have, getErr = all.Get(ctx, want.Name, metav1.GetOptions{}); apierrors.IsNotFound(getErr) && strings.Contains(refusal.Error(), allocated) {
			return inTheWay(fmt.Sprintf("Service %s/%s: another Service has one of its addresses %v: delete that one, or give it another address: %v",
				want.Namespace, want.Name, want.Spec.ClusterIPs, refusal))
		}
		if getErr != nil {
			return refusal
		}
	} else if err != nil {
		return err
	}
	if !ours(have) {
		return inTheWay(fmt.Sprintf("Service %s/%s: somebody else's, it has no label %s: delete it to have it made, or name the part in Cluster.spec.external",
			want.Namespace, want.Name, labelOwn))
	}
	if !equality.Semantic.DeepEqual(have.Spec.ClusterIPs, want.Spec.ClusterIPs) {
		return inTheWay(fmt.Sprintf("Service %s/%s: has addresses %v, its own are %v: delete it to have it made again",
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

// withdraw deletes a Service of our own, so that another one can have its name and address. One
// that selects pods is not ours any more, whatever its label says: somebody has changed it into
// his.
func withdraw(ctx context.Context, client kubernetes.Interface, own *corev1.Service) error {
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

// markControlPlane marks a Node for people and schedulers: the key of a label, and of a taint.
const markControlPlane = "node-role.kubernetes.io/control-plane"

// mark is the merge patch by which a control-plane machine's Node has its label, and, with tainted
// and only then, its taint; nil when it is so already. Which other taints there are is not changed:
// resourceVersion has the patch refused when somebody has changed the Node meanwhile.
func mark(node *corev1.Node, tainted bool) []byte {
	meta, patch := map[string]any{}, map[string]any{}
	if _, labelled := node.Labels[markControlPlane]; !labelled {
		meta["labels"] = map[string]string{markControlPlane: ""}
	}
	own := func(t corev1.Taint) bool {
		return t.Key == markControlPlane && t.Effect == corev1.TaintEffectNoSchedule
	}
	if slices.ContainsFunc(node.Spec.Taints, own) != tainted {
		taints := slices.DeleteFunc(slices.Clone(node.Spec.Taints), own)
		if tainted {
			taints = append(taints, corev1.Taint{Key: markControlPlane, Effect: corev1.TaintEffectNoSchedule})
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
		panic(err) // strings, and a type that upstream sends so
	}
	return text
}

// markNode keeps the machine's own Node as mark has it until ctx is done. The kubelet's own
// registerWithTaints is not enough: upstream looks at it only when it makes the Node
// (pkg/kubelet/kubelet_node_status.go, initialNode), and the configuration may change later. A
// refusal, which may be a webhook's, is told and tried again after again.
func markNode(ctx context.Context, client kubernetes.Interface, name string, tainted bool, again time.Duration, tell func(why string)) error {
	own := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
	}))
	patches := make(chan []byte, 1)
	look := func(object any) {
		node, ok := object.(*corev1.Node)
		if !ok {
			return
		}
		select { // only the latest counts
		case <-patches:
		default:
		}
		if patch := mark(node, tainted); patch != nil {
			patches <- patch // there is room: nobody else sends
		}
	}
	handler := cache.ResourceEventHandlerFuncs{AddFunc: look, UpdateFunc: func(_, object any) { look(object) }}
	if _, err := own.Core().V1().Nodes().Informer().AddEventHandler(handler); err != nil {
		return fmt.Errorf("Node %s: cannot watch: %w", name, err)
	}
	own.Start(ctx.Done())
	var patch []byte
	var late <-chan time.Time
	for told := false; ; {
		select {
		case patch = <-patches:
		case <-late:
		case <-ctx.Done():
			return nil
		}
		late = nil
		// What is refused because of a change is made anew at that change, which is delivered too.
		_, err := client.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
		if refused := err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) && ctx.Err() == nil; refused {
			tell(fmt.Sprintf("Node %s: cannot mark as control plane: %v", name, err))
			late, told = time.After(again), true
		} else if told {
			tell("")
			told = false
		}
	}
}
