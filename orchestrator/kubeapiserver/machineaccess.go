package kubeapiserver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/orlop-os/orlop/pkg/machineapi"
	"github.com/orlop-os/orlop/pkg/machineapi/controlplane"
)

// MachineAccess is the admission plugin that limits the writes of a node to the objects of
// machines: it may write only the status of the OrlopMachine with its own name. The limit also
// holds if an administrator grants nodes further rights. NodeAgentAccess limits node agents in the
// same way.
const MachineAccess = "OrlopMachineAccess"

// kubeletUser is the prefix of the user name of a kubelet.
const kubeletUser = "system:node:"

// machineGroups are the API groups of the objects of machines.
var machineGroups = []string{"cluster.x-k8s.io", machineapi.GroupVersion.Group, controlplane.GroupVersion.Group}

type machineAccess struct{ *admission.Handler }

// Validate implements admission.ValidationInterface.
func (machineAccess) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	who := a.GetUserInfo()
	if who == nil || !slices.Contains(who.GetGroups(), user.NodesGroup) || !slices.Contains(machineGroups, a.GetResource().Group) {
		return nil
	}
	name, named := strings.CutPrefix(who.GetName(), kubeletUser)
	if !named || name == "" {
		return admission.NewForbidden(a, errors.New("the user name contains no node"))
	}
	if a.GetResource().GroupResource() != machineapi.OrlopMachines.GroupResource() || a.GetSubresource() != "status" || a.GetOperation() != admission.Update ||
		a.GetNamespace() != machineapi.Namespace || a.GetName() != name {
		return admission.NewForbidden(a, fmt.Errorf("node %s may write only the status of the OrlopMachine %s/%s", name, machineapi.Namespace, name))
	}
	return nil
}
