package kubeapiserver

import (
	"context"
	"errors"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/kubernetes/pkg/apis/core"

	"github.com/orlop-os/orlop/pkg/nodespec"
)

// NodeAnnotations is the admission plugin that protects two parts of a Node from kubelets. The
// first is the annotation that lists the configured taints that the control plane has set on the
// Node (nodespec.TaintsSet). The control plane removes a listed taint that is not configured, so a
// machine that could add any other taint to the list would get rid of that taint.
// Upstream's NodeRestriction protects taints, but no annotations.
//
// The second is the Node's share of the pod range (spec.podCIDRs), which NodeRestriction does not
// protect, either. The API lets every client with the right to change a Node set a missing share.
// If a kubelet set a share outside the range, the controllers would not start. If it set the whole
// range, no other Node would get a share.
const NodeAnnotations = "OrlopNodeAnnotations"

type nodeAnnotations struct{ *admission.Handler }

// Validate implements admission.ValidationInterface.
func (nodeAnnotations) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	who := a.GetUserInfo()
	if a.GetResource().GroupResource() != core.Resource("nodes") || who == nil || !slices.Contains(who.GetGroups(), user.NodesGroup) {
		return nil
	}
	before, err := taintsSet(a.GetOldObject())
	if err != nil {
		return admission.NewForbidden(a, err)
	}
	after, err := taintsSet(a.GetObject())
	if err != nil {
		return admission.NewForbidden(a, err)
	}
	if before != after {
		return admission.NewForbidden(a, errors.New("only the control plane may change the annotation "+nodespec.TaintsSet))
	}
	if after, there := a.GetObject().(*core.Node); there && !slices.Equal(podCIDRs(a.GetOldObject()), after.Spec.PodCIDRs) {
		return admission.NewForbidden(a, errors.New("only the control plane may change spec.podCIDRs"))
	}
	return nil
}

// podCIDRs returns a Node's shares of the pod ranges.
func podCIDRs(object runtime.Object) []string {
	if node, there := object.(*core.Node); there {
		return node.Spec.PodCIDRs
	}
	return nil
}

// taintsSet returns the value of the annotation nodespec.TaintsSet, or "" if the object has none.
func taintsSet(object runtime.Object) (string, error) {
	if object == nil {
		return "", nil
	}
	accessor, err := meta.Accessor(object)
	if err != nil {
		return "", err
	}
	return accessor.GetAnnotations()[nodespec.TaintsSet], nil
}
