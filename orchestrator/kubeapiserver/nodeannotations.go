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

// NodeAnnotations is the admission plugin that keeps kubelets from what the control plane notes on their
// Nodes. The control plane takes away the taints that it has set; a machine that could name others
// there would be rid of them, and upstream's NodeRestriction, which keeps a kubelet from its Node's
// taints, leaves annotations alone. It leaves the Node's share of the pod range alone, too, which
// the API lets anybody set who may change a Node that has none: with one outside the range the
// controllers would not start any more, and with the whole range nobody else would get a share.
const NodeAnnotations = "OrlopNodeNotes"

type nodeNotes struct{ *admission.Handler }

// Validate implements admission.ValidationInterface.
func (nodeNotes) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	who := a.GetUserInfo()
	if a.GetResource().GroupResource() != core.Resource("nodes") || who == nil || !slices.Contains(who.GetGroups(), user.NodesGroup) {
		return nil
	}
	before, err := noted(a.GetOldObject())
	if err != nil {
		return admission.NewForbidden(a, err)
	}
	after, err := noted(a.GetObject())
	if err != nil {
		return admission.NewForbidden(a, err)
	}
	if before != after {
		return admission.NewForbidden(a, errors.New("the annotation "+nodespec.TaintsSet+" is the control plane's"))
	}
	if after, there := a.GetObject().(*core.Node); there && !slices.Equal(shares(a.GetOldObject()), after.Spec.PodCIDRs) {
		return admission.NewForbidden(a, errors.New("spec.podCIDRs is the control plane's"))
	}
	return nil
}

// shares are a Node's shares of the pod ranges.
func shares(object runtime.Object) []string {
	if node, there := object.(*core.Node); there {
		return node.Spec.PodCIDRs
	}
	return nil
}

// noted is the annotation; empty where there is none.
func noted(object runtime.Object) (string, error) {
	if object == nil {
		return "", nil
	}
	accessor, err := meta.Accessor(object)
	if err != nil {
		return "", err
	}
	return accessor.GetAnnotations()[nodespec.TaintsSet], nil
}
