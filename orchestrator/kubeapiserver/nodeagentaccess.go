package kubeapiserver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/kubernetes/pkg/apis/discovery"

	"github.com/orlop-os/orlop/orchestrator/bootstrap"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// NodeAgentAccess is the admission plugin that restricts the agent of a node to the endpoints of
// the cluster DNS on its own node, as upstream's NodeRestriction restricts a kubelet to its own
// Node. RBAC cannot express this: one role for all agents cannot name the objects of each node, and
// separate roles would require a role for each node.
const NodeAgentAccess = "OrlopNodeAgentAccess"

type nodeAgents struct{ *admission.Handler }

// Validate implements admission.ValidationInterface.
func (nodeAgents) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	user := a.GetUserInfo()
	if user == nil || !slices.Contains(user.GetGroups(), nodespec.NodeAgentGroup) {
		return nil
	}
	refuse := func(why string) error { return admission.NewForbidden(a, errors.New(why)) }
	if a.GetResource().GroupResource() != (schema.GroupResource{Group: discovery.GroupName, Resource: "endpointslices"}) {
		return refuse("a node agent may write only endpoints")
	}
	node, named := strings.CutPrefix(user.GetName(), nodespec.NodeAgentUser)
	if !named || node == "" {
		return refuse("the agent's user name contains no node")
	}
	name := a.GetName()
	if object := a.GetObject(); name == "" && object != nil {
		accessor, err := meta.Accessor(object)
		if err != nil {
			return refuse(err.Error())
		}
		name = accessor.GetName()
	}
	v4, v6 := bootstrap.DNSSlice(node, discoveryv1.AddressTypeIPv4), bootstrap.DNSSlice(node, discoveryv1.AddressTypeIPv6)
	if name != v4 && name != v6 {
		return refuse(fmt.Sprintf("node %s may write only the endpoints %s and %s", node, v4, v6))
	}
	slice, ok := a.GetObject().(*discovery.EndpointSlice)
	if a.GetOperation() == admission.Delete {
		return nil
	}
	if !ok {
		return refuse("the object is not an EndpointSlice")
	}
	if slice.Labels[discoveryv1.LabelServiceName] != bootstrap.DNSService {
		return refuse("its service is not " + bootstrap.DNSService)
	}
	for _, e := range slice.Endpoints {
		if e.NodeName == nil || *e.NodeName != node {
			return refuse("an endpoint belongs to another node")
		}
	}
	return nil
}
