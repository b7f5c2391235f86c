package bootstrap

import (
	"context"
	"fmt"

	"golang.org/x/mod/semver"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/pkg/machineapi"
	"github.com/orlop-os/orlop/pkg/machineapi/controlplane"
	"github.com/orlop-os/orlop/pkg/machineapi/definitions"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// MachinesAccount is the service account in kube-system that maintains the objects of the machines
// (package machines).
const MachinesAccount = "orlop-machines"

const (
	roleMachines      = "orlop:machines"
	roleMachineNodes  = "orlop:machine-nodes"
	roleMachineReader = "orlop:machine-reader"
	groupCluster      = "cluster.x-k8s.io"
)

// definedBy is the annotation of a definition of this package: the version of the system that wrote
// it. Machines with different versions maintain the definition of the newest version.
const definedBy = "orlop.dev/defined-by"

var namespacesResource = corev1.SchemeGroupVersion.WithResource("namespaces")

// maintainMachines creates and restores the kinds, the namespace and the rights of machine objects
// while they are enabled, until ctx is done. It deletes none of them.
func maintainMachines(ctx context.Context, env component.Env, config *rest.Config, client kubernetes.Interface, found *problems) error {
	report := found.of("machines")
	return component.WhileMachineObjects(ctx, env.Dirs.API, func() { report("") }, func(ctx context.Context, settings nodespec.MachineObjects) error {
		api, err := clientset.NewForConfig(config)
		if err != nil {
			return fmt.Errorf("cannot create client: %w", err)
		}
		all, err := managedMachines(api, client, env.Spec.Version, settings.Claims)
		if err != nil {
			return err
		}
		for _, k := range all {
			if err := retryUntilDone(ctx, k.text(), func() error { return k.ensure(ctx) }, report); err != nil {
				return err
			}
		}
		report("")
		maintain(ctx, config, all, found)
		return nil
	})
}

// managedMachines returns the namespace, the kinds and the rights of machine objects. If claims is
// true, the list also has the rights and kinds of claims.
func managedMachines(api clientset.Interface, client kubernetes.Interface, version string, claims bool) ([]managed, error) {
	wanted, err := definitions.All(claims)
	if err != nil {
		return nil, err
	}
	all := []managed{{namespacesResource, "", machineapi.Namespace, func(ctx context.Context) error {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: machineapi.Namespace}}
		return ensureObject(ctx, client.CoreV1().Namespaces(), namespace, func(*corev1.Namespace) bool { return false })
	}}}
	for _, d := range wanted {
		apiextensionsv1.SetDefaults_CustomResourceDefinition(d)
		apiextensionsv1.SetDefaults_CustomResourceDefinitionSpec(&d.Spec)
		metav1.SetMetaDataAnnotation(&d.ObjectMeta, definedBy, version)
		all = append(all, managed{definitionsResource, "", d.Name, func(ctx context.Context) error {
			return ensureObject(ctx, api.ApiextensionsV1().CustomResourceDefinitions(), d.DeepCopy(), func(have *apiextensionsv1.CustomResourceDefinition) bool {
				return correctDefinition(have, d)
			})
		}})
	}
	return append(all, managedRBAC(client, machineRights(claims))...), nil
}

// correctDefinition sets the specification of a definition and reports whether it changed. Two
// definitions stay as they are: that of another owner, for example an installation of Cluster API,
// and that of a newer version of the system.
func correctDefinition(have, want *apiextensionsv1.CustomResourceDefinition) bool {
	by := have.Annotations[definedBy]
	if by == "" || semver.Compare("v"+by, "v"+want.Annotations[definedBy]) > 0 {
		return false
	}
	changed := assign(&have.Spec, *want.Spec.DeepCopy())
	if changed {
		have.Annotations[definedBy] = want.Annotations[definedBy]
	}
	return changed
}

// machineRights are the rights on machine objects. A node reads the objects of the namespace except
// for the waiting machines, and writes the status of an OrlopMachine; kubeapiserver.MachineAccess
// limits a node to the object of its own machine. The controllers create and maintain the objects
// and name the machine of a Node (spec.providerID). They also read MachineHealthChecks. With
// claims, they also maintain MachineSets, scale MachineDeployments, approve by signed rules and
// claim the waiting machines, and delete Machines. They write no approval rule, because an operator
// signs each rule.
func machineRights(claims bool) []runtime.Object {
	const clusters, machines, checks, sets, deployments = "clusters", "machines", "machinehealthchecks", "machinesets", "machinedeployments"
	group, infra, own, hosts := machineapi.GroupVersion.Group, machineapi.OrlopClusters.Resource, machineapi.OrlopMachines.Resource, machineapi.OrlopHosts.Resource
	healths, components := machineapi.ClusterHealths.Resource, machineapi.Components.Resource
	ours := []string{infra, own, hosts, healths, components}
	upstream := []string{clusters, machines, checks}
	planes := controlplane.OrlopControlPlanes
	write := []string{"get", "create", "update", "patch"}
	var ofClaims []rbacv1.PolicyRule
	if claims {
		rules := machineapi.OrlopApprovalRules.Resource
		ours, upstream = append(ours, machineapi.OrlopMachineTemplates.Resource, rules), append(upstream, sets, deployments)
		ofClaims = []rbacv1.PolicyRule{
			rule(groupCluster, []string{sets, sets + "/status"}, write...),
			rule(groupCluster, []string{deployments + "/status"}, write...),
			rule(groupCluster, []string{deployments + "/scale"}, "patch"), // power on demand
			rule(groupCluster, []string{machines}, "delete"),
			rule(group, []string{hosts}, "patch"),
			rule(group, []string{rules + "/status"}, "update"),
		}
	}
	return []runtime.Object{
		&rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: roleMachineNodes, Namespace: machineapi.Namespace}, Rules: []rbacv1.PolicyRule{
			rule(groupCluster, []string{machines}, "get", "list", "watch"),
			rule(group, []string{own}, "get", "list", "watch"),
			rule(group, []string{own + "/status"}, "get", "update", "patch"),
		}},
		bindIn(machineapi.Namespace, roleMachineNodes, rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: user.NodesGroup}),
		&rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: roleMachines, Namespace: machineapi.Namespace}, Rules: append([]rbacv1.PolicyRule{
			rule(groupCluster, []string{clusters, clusters + "/status", machines, machines + "/status"}, write...),
			rule(groupCluster, upstream, "list"),
			rule(groupCluster, []string{checks, checks + "/status"}, "get"),
			rule(groupCluster, []string{checks + "/status"}, "update"),
			rule(group, []string{infra, infra + "/status", own}, write...),
			rule(group, []string{hosts, components}, "get", "create", "delete"),
			rule(group, []string{healths}, "get", "create"),
			rule(group, []string{hosts + "/status", healths + "/status", components + "/status"}, "get", "update"),
			rule(group, ours, "list"),
			rule(planes.Group, []string{planes.Resource, planes.Resource + "/status"}, write...),
			rule(planes.Group, []string{planes.Resource}, "list"),
			rule("batch", []string{"jobs"}, "create"), // the jobs of gates
		}, ofClaims...)},
		bindIn(machineapi.Namespace, roleMachines, rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Name: MachinesAccount, Namespace: metav1.NamespaceSystem}),
		clusterRole(roleMachines, rule("", []string{"nodes"}, "patch")),
		bindAccount(roleMachines, roleMachines, MachinesAccount),
		aggregated("view", clusterRole(roleMachineReader,
			rule(groupCluster, upstream, "get", "list", "watch"),
			rule(group, ours, "get", "list", "watch"),
			rule(planes.Group, []string{planes.Resource}, "get", "list", "watch"))),
	}
}

// bindIn binds a role of a namespace to a subject, under the name of the role.
func bindIn(namespace, role string, subject rbacv1.Subject) *rbacv1.RoleBinding {
	return &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role, Namespace: namespace},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role},
		Subjects:   []rbacv1.Subject{subject},
	}
}
