package machines

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/gentype"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/machines/claims"
	"github.com/orlop-os/orlop/orchestrator/machines/hosts"
	"github.com/orlop-os/orlop/orchestrator/machines/overview"
	"github.com/orlop-os/orlop/pkg/machineapi"
	"github.com/orlop-os/orlop/pkg/machineapi/controlplane"
)

// client has the methods for objects of type T, with lists of type L.
type client[T, L runtime.Object] interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (T, error)
	List(ctx context.Context, opts metav1.ListOptions) (L, error)
	Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error)
	Create(ctx context.Context, object T, opts metav1.CreateOptions) (T, error)
	Update(ctx context.Context, object T, opts metav1.UpdateOptions) (T, error)
	UpdateStatus(ctx context.Context, object T, opts metav1.UpdateOptions) (T, error)
	Patch(ctx context.Context, name string, pt types.PatchType, data []byte, opts metav1.PatchOptions, subresources ...string) (T, error)
}

// deletingClient can also delete objects. The controllers delete OrlopHosts of machines that do not
// wait any more, Machines of sets, and Components.
type deletingClient[T, L runtime.Object] interface {
	client[T, L]
	Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error
}

// clients are the clients of one identity.
type clients struct {
	nodes        kubernetes.Interface // for Nodes and other kinds of Kubernetes
	clusters     client[*clusterv1.Cluster, *clusterv1.ClusterList]
	orlopCluster client[*machineapi.OrlopCluster, *machineapi.OrlopClusterList]
	planes       client[*controlplane.OrlopControlPlane, *controlplane.OrlopControlPlaneList]
	machines     deletingClient[*clusterv1.Machine, *clusterv1.MachineList]
	checks       client[*clusterv1.MachineHealthCheck, *clusterv1.MachineHealthCheckList]
	own          client[*machineapi.OrlopMachine, *machineapi.OrlopMachineList]
	hosts        deletingClient[*machineapi.OrlopHost, *machineapi.OrlopHostList]
	health       client[*machineapi.ClusterHealth, *machineapi.ClusterHealthList]
	components   deletingClient[*machineapi.Component, *machineapi.ComponentList]
	ofClaims
}

// ofClaims are the clients of the kinds that only claims need.
type ofClaims struct {
	sets        client[*clusterv1.MachineSet, *clusterv1.MachineSetList]
	deployments client[*clusterv1.MachineDeployment, *clusterv1.MachineDeploymentList]
	templates   client[*machineapi.OrlopMachineTemplate, *machineapi.OrlopMachineTemplateList]
	rules       client[*machineapi.OrlopApprovalRule, *machineapi.OrlopApprovalRuleList]
	// scale performs a merge patch of the number of machines of a MachineDeployment, in its
	// subresource scale.
	scale func(ctx context.Context, deployment string, patch []byte) error
}

// newClients returns the clients with this configuration.
func newClients(config *rest.Config) (*clients, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clusterv1.AddToScheme, machineapi.AddToScheme, controlplane.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("cannot make client: %w", err)
		}
	}
	parameters := runtime.NewParameterCodec(scheme)
	nodes, err := component.NewClient(config)
	if err != nil {
		return nil, err
	}
	upstream, err := component.GroupClient(config, scheme, clusterv1.GroupVersion)
	if err != nil {
		return nil, err
	}
	ours, err := component.GroupClient(config, scheme, machineapi.GroupVersion)
	if err != nil {
		return nil, err
	}
	plane, err := component.GroupClient(config, scheme, controlplane.GroupVersion)
	if err != nil {
		return nil, err
	}
	const in = machineapi.Namespace
	return &clients{
		nodes: nodes,
		clusters: gentype.NewClientWithList("clusters", upstream, parameters, in,
			func() *clusterv1.Cluster { return &clusterv1.Cluster{} }, func() *clusterv1.ClusterList { return &clusterv1.ClusterList{} }),
		orlopCluster: gentype.NewClientWithList(machineapi.OrlopClusters.Resource, ours, parameters, in,
			func() *machineapi.OrlopCluster { return &machineapi.OrlopCluster{} }, func() *machineapi.OrlopClusterList { return &machineapi.OrlopClusterList{} }),
		planes: gentype.NewClientWithList(controlplane.OrlopControlPlanes.Resource, plane, parameters, in,
			func() *controlplane.OrlopControlPlane { return &controlplane.OrlopControlPlane{} }, func() *controlplane.OrlopControlPlaneList { return &controlplane.OrlopControlPlaneList{} }),
		machines: gentype.NewClientWithList("machines", upstream, parameters, in,
			func() *clusterv1.Machine { return &clusterv1.Machine{} }, func() *clusterv1.MachineList { return &clusterv1.MachineList{} }),
		checks: gentype.NewClientWithList("machinehealthchecks", upstream, parameters, in,
			func() *clusterv1.MachineHealthCheck { return &clusterv1.MachineHealthCheck{} }, func() *clusterv1.MachineHealthCheckList { return &clusterv1.MachineHealthCheckList{} }),
		own: gentype.NewClientWithList(machineapi.OrlopMachines.Resource, ours, parameters, in,
			func() *machineapi.OrlopMachine { return &machineapi.OrlopMachine{} }, func() *machineapi.OrlopMachineList { return &machineapi.OrlopMachineList{} }),
		hosts: gentype.NewClientWithList(machineapi.OrlopHosts.Resource, ours, parameters, in,
			func() *machineapi.OrlopHost { return &machineapi.OrlopHost{} }, func() *machineapi.OrlopHostList { return &machineapi.OrlopHostList{} }),
		ofClaims: newOfClaims(upstream, ours, parameters),
		health: gentype.NewClientWithList(machineapi.ClusterHealths.Resource, ours, parameters, in,
			func() *machineapi.ClusterHealth { return &machineapi.ClusterHealth{} }, func() *machineapi.ClusterHealthList { return &machineapi.ClusterHealthList{} }),
		components: gentype.NewClientWithList(machineapi.Components.Resource, ours, parameters, in,
			func() *machineapi.Component { return &machineapi.Component{} }, func() *machineapi.ComponentList { return &machineapi.ComponentList{} }),
	}, nil
}

// informer returns an informer that watches the objects of a client. example is an empty object of
// the kind.
func informer[T, L runtime.Object](c client[T, L], example T) cache.SharedIndexInformer {
	return cache.NewSharedIndexInformer(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return c.List(ctx, o) },
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return c.Watch(ctx, o)
		},
	}, example, 0, cache.Indexers{})
}

// do performs a change of Plan. It fails with a conflict if the object has changed since Plan read
// it.
func (c *clients) do(ctx context.Context, change Change) error {
	switch o := change.Object.(type) {
	case *clusterv1.Cluster:
		return write(ctx, c.clusters, o, change.Verb)
	case *machineapi.OrlopCluster:
		return write(ctx, c.orlopCluster, o, change.Verb)
	case *controlplane.OrlopControlPlane:
		return write(ctx, c.planes, o, change.Verb)
	case *clusterv1.Machine:
		return write(ctx, c.machines, o, change.Verb)
	case *clusterv1.MachineHealthCheck:
		return write(ctx, c.checks, o, change.Verb)
	case *machineapi.OrlopMachine:
		field := ownField(change.Verb, o)
		if field == nil {
			return write(ctx, c.own, o, change.Verb)
		}
		return patchObject(ctx, c.own, o, map[string]any{"spec": field})
	case *batchv1.Job:
		return write(ctx, c.nodes.BatchV1().Jobs(o.Namespace), o, change.Verb)
	case *corev1.Node:
		spec := map[string]any{"providerID": o.Spec.ProviderID}
		if change.Verb == Taint {
			spec = map[string]any{"taints": o.Spec.Taints}
		}
		return patchObject(ctx, c.nodes.CoreV1().Nodes(), o, map[string]any{"spec": spec})
	}
	return fmt.Errorf("%s %T: unknown change", change.Verb, change.Object)
}

// ownField returns the field of the spec of an OrlopMachine that a change writes; nil if the change
// writes another part of the object.
func ownField(verb Verb, o *machineapi.OrlopMachine) map[string]any {
	switch verb {
	case Permit:
		return map[string]any{"permit": whole(reflect.ValueOf(o.Spec.Permit))}
	case Repair:
		return map[string]any{"repair": whole(reflect.ValueOf(o.Spec.Repair))}
	case Fence:
		return map[string]any{"fence": whole(reflect.ValueOf(o.Spec.Fence))}
	}
	return nil
}

// whole returns a value for a merge patch, so that the patch replaces the former value as a whole.
// A merge patch does not change a member that it does not name, and the option omitempty omits
// empty members. So whole names these members with the value null. Otherwise a second power cycle
// would have the phase Done of the first power cycle.
func whole(v reflect.Value) any {
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return nil
		}
		return whole(v.Elem())
	}
	if _, encodes := v.Interface().(json.Marshaler); encodes || v.Kind() != reflect.Struct {
		return v.Interface()
	}
	members := map[string]any{}
	for field, value := range v.Fields() {
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		if members[name] = whole(value); options == "omitempty" && value.IsZero() {
			members[name] = nil
		}
	}
	return members
}

// newOfClaims returns the clients of the kinds that only claims need.
func newOfClaims(upstream, ours rest.Interface, parameters runtime.ParameterCodec) ofClaims {
	const in = machineapi.Namespace
	return ofClaims{
		scale: func(ctx context.Context, deployment string, patch []byte) error {
			return upstream.Patch(types.MergePatchType).Namespace(in).Resource("machinedeployments").Name(deployment).SubResource("scale").Body(patch).Do(ctx).Error()
		},
		sets: gentype.NewClientWithList("machinesets", upstream, parameters, in,
			func() *clusterv1.MachineSet { return &clusterv1.MachineSet{} }, func() *clusterv1.MachineSetList { return &clusterv1.MachineSetList{} }),
		deployments: gentype.NewClientWithList("machinedeployments", upstream, parameters, in,
			func() *clusterv1.MachineDeployment { return &clusterv1.MachineDeployment{} }, func() *clusterv1.MachineDeploymentList { return &clusterv1.MachineDeploymentList{} }),
		templates: gentype.NewClientWithList(machineapi.OrlopMachineTemplates.Resource, ours, parameters, in,
			func() *machineapi.OrlopMachineTemplate { return &machineapi.OrlopMachineTemplate{} }, func() *machineapi.OrlopMachineTemplateList { return &machineapi.OrlopMachineTemplateList{} }),
		rules: gentype.NewClientWithList(machineapi.OrlopApprovalRules.Resource, ours, parameters, in,
			func() *machineapi.OrlopApprovalRule { return &machineapi.OrlopApprovalRule{} }, func() *machineapi.OrlopApprovalRuleList { return &machineapi.OrlopApprovalRuleList{} }),
	}
}

// doClaim performs a change of claims.Plan. It fails with a conflict if the object has changed
// since Plan read it.
func (c *clients) doClaim(ctx context.Context, change claims.Change) error {
	verb := Status
	if change.Verb == claims.Create {
		verb = Create
	}
	switch o := change.Object.(type) {
	case *clusterv1.MachineDeployment:
		return write(ctx, c.deployments, o, verb)
	case *machineapi.OrlopMachine:
		return write(ctx, c.own, o, verb)
	case *clusterv1.MachineSet:
		if change.Verb != claims.Adjust {
			return write(ctx, c.sets, o, verb)
		}
		_, err := c.sets.Update(ctx, o, metav1.UpdateOptions{})
		return err
	case *machineapi.OrlopHost:
		spec := map[string]any{"standby": whole(reflect.ValueOf(o.Spec.Standby))}
		if change.Verb != claims.PowerOn && change.Verb != claims.Dismiss {
			spec["claim"] = whole(reflect.ValueOf(o.Spec.Claim))
		}
		if change.Verb == claims.Return {
			spec["approval"] = o.Spec.Approval
		}
		return patchObject(ctx, c.hosts, o, map[string]any{"spec": spec})
	case *clusterv1.Machine:
		switch change.Verb {
		case claims.Delete:
			return c.machines.Delete(ctx, o.Name, asSeen(o))
		case claims.Finalize:
			return patchObject(ctx, c.machines, o, map[string]any{"metadata": map[string]any{"finalizers": o.Finalizers}})
		}
		return write(ctx, c.machines, o, verb)
	}
	return fmt.Errorf("%s: unknown change", change)
}

// patchObject changes fields of an object. It fails with a conflict if the object has another
// version now.
func patchObject[T interface {
	runtime.Object
	metav1.Object
}, L runtime.Object](ctx context.Context, c client[T, L], o T, fields map[string]any) error {
	patch, err := component.MergePatch(o, fields)
	if err != nil {
		return err
	}
	_, err = c.Patch(ctx, o.GetName(), types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// doHost performs a change of hosts.Plan. It fails with a conflict if the object has changed since
// Plan read it, for example because an operator has approved the machine.
func (c *clients) doHost(ctx context.Context, change hosts.Change) error {
	if change.Rule != nil {
		return write(ctx, c.rules, change.Rule, Status)
	}
	switch change.Verb {
	case hosts.Create:
		return write(ctx, c.hosts, change.Object, Create)
	case hosts.Status:
		return write(ctx, c.hosts, change.Object, Status)
	case hosts.Approve:
		return patchObject(ctx, c.hosts, change.Object, map[string]any{"spec": map[string]any{"approval": change.Object.Spec.Approval}})
	case hosts.Power:
		return patchObject(ctx, c.hosts, change.Object, map[string]any{"spec": map[string]any{"standby": whole(reflect.ValueOf(change.Object.Spec.Standby))}})
	case hosts.Equip:
		return patchObject(ctx, c.hosts, change.Object, map[string]any{
			"metadata": map[string]any{"labels": change.Object.Labels}, "spec": map[string]any{"power": change.Object.Spec.Power, "standby": whole(reflect.ValueOf(change.Object.Spec.Standby))},
		})
	}
	return c.hosts.Delete(ctx, change.Object.Name, asSeen(change.Object))
}

// asSeen returns options that make a deletion fail if the object has another version now.
func asSeen(o metav1.Object) metav1.DeleteOptions {
	uid, version := o.GetUID(), o.GetResourceVersion()
	return metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &version}}
}

// doOverview performs a change of overview.Plan.
func (c *clients) doOverview(ctx context.Context, change overview.Change) error {
	verb := Status
	if change.Verb == overview.Create {
		verb = Create
	}
	switch {
	case change.Health != nil:
		return write(ctx, c.health, change.Health, verb)
	case change.Verb == overview.Delete:
		return c.components.Delete(ctx, change.Component.Name, asSeen(change.Component))
	}
	return write(ctx, c.components, change.Component, verb)
}

// write creates an object if verb is Create. For any other verb it writes the status of the object.
// It is no error if an object to create exists already.
func write[T, L runtime.Object](ctx context.Context, c client[T, L], o T, verb Verb) error {
	if verb == Create {
		_, err := c.Create(ctx, o, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	}
	_, err := c.UpdateStatus(ctx, o, metav1.UpdateOptions{})
	return err
}

// list reads all objects of a kind from the API server with a quorum of etcd, for a decision that
// must not be based on stale objects.
func list[T, L runtime.Object](ctx context.Context, c client[T, L]) ([]T, error) {
	all, err := c.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	var out []T
	err = meta.EachListItem(all, func(o runtime.Object) error {
		object, ok := o.(T)
		if !ok {
			return fmt.Errorf("%T: unexpected in a list", o)
		}
		out = append(out, object)
		return nil
	})
	return out, err
}
