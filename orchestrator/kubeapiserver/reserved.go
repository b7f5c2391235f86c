package kubeapiserver

import (
	"context"
	"errors"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/orlop-os/orlop/pkg/machineapi"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// ReservedNamespaces is the admission plugin that reserves the namespace names with
// nodespec.ReservedPrefix for add-ons and the system, so that objects of an add-on document never
// collide with other objects there. Like kube-system, the namespace with the state of the add-ons
// cannot be deleted.
const ReservedNamespaces = "OrlopReservedNamespaces"

type reservedNamespaces struct{ *admission.Handler }

// Validate implements admission.ValidationInterface.
func (reservedNamespaces) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().GroupResource() != (schema.GroupResource{Resource: "namespaces"}) || a.GetSubresource() != "" {
		return nil
	}
	if a.GetOperation() == admission.Delete {
		if a.GetName() == nodespec.AddonsNamespace {
			return admission.NewForbidden(a, errors.New("it contains the state of the cluster's add-ons"))
		}
		return nil
	}
	object, err := meta.Accessor(a.GetObject())
	if err != nil {
		return admission.NewForbidden(a, err)
	}
	// A name that the server generates begins with generateName.
	if !strings.HasPrefix(object.GetName(), nodespec.ReservedPrefix) && !strings.HasPrefix(object.GetGenerateName(), nodespec.ReservedPrefix) {
		return nil
	}
	who := a.GetUserInfo()
	if who != nil && who.GetName() == user.APIServerUser && object.GetName() == machineapi.Namespace {
		return nil
	}
	if who != nil && (who.GetName() == nodespec.AddonsUser || slices.Contains(who.GetGroups(), serviceaccount.MakeNamespaceGroupName(nodespec.AddonsNamespace))) {
		return nil
	}
	return admission.NewForbidden(a, errors.New("names that begin with "+nodespec.ReservedPrefix+" are reserved for add-ons (documents of kind Addon); use another name"))
}
