package machines

import (
	"maps"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/orlop-os/orlop/pkg/machineapi"
	"github.com/orlop-os/orlop/pkg/machineapi/controlplane"
)

// adoptCluster creates the missing objects of the cluster. It creates the Cluster first and the
// others in a later pass, because the Cluster owns them. It does not change existing objects,
// because an operator may have changed them.
func (s Snapshot) adoptCluster(r *Result) {
	c := s.Settings
	if s.Cluster == nil {
		r.Changes = append(r.Changes, Change{Create, &clusterv1.Cluster{
			ObjectMeta: s.meta(c.Name),
			Spec: clusterv1.ClusterSpec{
				ClusterNetwork: clusterv1.ClusterNetwork{
					APIServerPort: c.Port, Pods: clusterv1.NetworkRanges{CIDRBlocks: c.Pods},
					Services: clusterv1.NetworkRanges{CIDRBlocks: c.Services}, ServiceDomain: c.Domain,
				},
				ControlPlaneEndpoint: clusterv1.APIEndpoint{Host: c.Host, Port: c.Port},
				InfrastructureRef:    reference(machineapi.GroupVersion.Group, "OrlopCluster", c.Name),
				ControlPlaneRef:      reference(controlplane.GroupVersion.Group, "OrlopControlPlane", c.Name),
			},
		}})
		return
	}
	owned := s.meta(c.Name)
	owned.OwnerReferences = []metav1.OwnerReference{s.clusterOwner(true)}
	if s.OrlopCluster == nil {
		r.Changes = append(r.Changes, Change{Create, &machineapi.OrlopCluster{
			ObjectMeta: owned,
			Spec:       machineapi.OrlopClusterSpec{ControlPlaneEndpoint: &machineapi.APIEndpoint{Host: c.Host, Port: c.Port}},
		}})
	}
	if s.ControlPlane == nil {
		r.Changes = append(r.Changes, Change{Create, &controlplane.OrlopControlPlane{ObjectMeta: owned}})
	}
}

// adopt creates the missing objects of a machine that has a Node: the Machine first, and the
// OrlopMachine in a later pass. It also sets the missing provider ID of the Node. A Machine without
// a Node stays until an operator deletes it.
func (s Snapshot) adopt(r *Result, m *machine) {
	if m.node == nil {
		return
	}
	id := machineapi.ProviderID(s.Settings.Name, m.name)
	if m.object == nil {
		object := &clusterv1.Machine{
			ObjectMeta: s.meta(m.name),
			Spec: clusterv1.MachineSpec{
				ClusterName: s.Settings.Name, ProviderID: id,
				// The empty name means that the machine needs no bootstrap data. For Cluster API,
				// nil would mean that the data are missing.
				Bootstrap:         clusterv1.Bootstrap{DataSecretName: new(string)},
				InfrastructureRef: reference(machineapi.GroupVersion.Group, "OrlopMachine", m.name),
			},
		}
		object.OwnerReferences = []metav1.OwnerReference{s.clusterOwner(false)}
		if m.controlPlane {
			object.Labels[clusterv1.MachineControlPlaneLabel] = ""
			object.Labels[clusterv1.MachineControlPlaneNameLabel] = s.Settings.Name
			object.OwnerReferences = []metav1.OwnerReference{{
				APIVersion: controlplane.GroupVersion.String(), Kind: "OrlopControlPlane", Name: s.ControlPlane.Name, UID: s.ControlPlane.UID, Controller: new(true),
			}}
		}
		r.Changes = append(r.Changes, Change{Create, object})
	} else if m.own == nil {
		object := &machineapi.OrlopMachine{ObjectMeta: s.meta(m.name), Spec: machineapi.OrlopMachineSpec{ProviderID: id, Role: machineapi.RoleWorker}}
		maps.Copy(object.Labels, m.object.Labels)
		object.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: clusterv1.GroupVersion.String(), Kind: "Machine", Name: m.name, UID: m.object.UID, Controller: new(true),
		}}
		if m.controlPlane {
			object.Spec.Role = machineapi.RoleControlPlane
		}
		r.Changes = append(r.Changes, Change{Create, object})
	}
	if m.node.Spec.ProviderID == "" {
		node := m.node.DeepCopy()
		node.Spec.ProviderID = id
		r.Changes = append(r.Changes, Change{Identify, node})
	}
}

// meta returns the metadata of a new object with this name.
func (s Snapshot) meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Namespace: machineapi.Namespace, Labels: map[string]string{clusterv1.ClusterNameLabel: s.Settings.Name}}
}

// clusterOwner returns the reference to the Cluster as the owner of an object. If controller is
// true, the Cluster also is the controller of the object.
func (s Snapshot) clusterOwner(controller bool) metav1.OwnerReference {
	owner := metav1.OwnerReference{APIVersion: clusterv1.GroupVersion.String(), Kind: "Cluster", Name: s.Cluster.Name, UID: s.Cluster.UID}
	if controller {
		owner.Controller = new(true)
	}
	return owner
}

func reference(group, kind, name string) clusterv1.ContractVersionedObjectReference {
	return clusterv1.ContractVersionedObjectReference{APIGroup: group, Kind: kind, Name: name}
}
