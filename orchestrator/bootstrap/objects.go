package bootstrap

import (
	"slices"
	"strings"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/orlop-os/orlop/pkg/nodespec"
)

// Identities and names in the bindings of this package. The identities are the subjects of the
// certificates that machined issues (pkg/nodespec).
const (
	userKubeletClient  = "kube-apiserver-kubelet-client"
	userDNS            = "orlop:coredns"
	userMetrics        = nodespec.MetricsUser
	groupNodeAgents    = nodespec.NodeAgentGroup
	roleDNS            = "orlop:coredns"
	roleNodeAgent      = "orlop:node-agents"
	roleDNSSlices      = "orlop:dns-endpoints"
	userAddons         = nodespec.AddonsUser
	roleMetrics        = "orlop:metrics"
	roleAddons         = "orlop:addons"
	roleMetricsReader  = "orlop:metrics-reader"
	roleLocalVolumes   = "orlop:local-volumes"
	roleNodeTaints     = "orlop:node-taints"
	roleDrain          = "orlop:drain"
	rolePodSigner      = "orlop:pod-certificates"
	roleSnapshotReader = "orlop:snapshot-reader"
	roleSnapshotEditor = "orlop:snapshot-editor"
)

// GroupAdmins is the group of the administrators' client certificates.
const GroupAdmins = "orlop:cluster-admins"

// DNSService is the name of the cluster DNS Service in kube-system. Each node maintains its own
// EndpointSlices of this Service.
const DNSService = "kube-dns"

// DNSSlice returns the name of a node's EndpointSlice of one address family.
func DNSSlice(node string, family discoveryv1.AddressType) string {
	return DNSService + "-" + node + "-" + strings.ToLower(string(family))
}

// rights returns the roles and bindings of this package, in no particular order. It is pure.
func rights() []runtime.Object {
	return slices.Concat(serverRights(), controllerRights(), podSignerRights(), nodeAgentRights())
}

// serverRights are the rights of admins, of the API server and of the servers behind it.
func serverRights() []runtime.Object {
	return []runtime.Object{
		bind(GroupAdmins, "cluster-admin", rbacv1.GroupKind, GroupAdmins),
		bind("orlop:kubelet-client", "system:kubelet-api-admin", rbacv1.UserKind, userKubeletClient),

		clusterRole(roleDNS,
			rule("", []string{"services", "namespaces"}, "list", "watch"),
			rule("discovery.k8s.io", []string{"endpointslices"}, "list", "watch")),
		bind(roleDNS, roleDNS, rbacv1.UserKind, userDNS),

		// The server of the resource metrics API reads only the metrics of kubelets, lets the API
		// server authorize its readers, and stores its CA in its registration. A user who may read
		// pods may read their metrics.
		clusterRole(roleMetrics,
			rule("", []string{"nodes", "pods"}, "list", "watch"),
			rule("", []string{"nodes/metrics"}, "get"),
			rule("authorization.k8s.io", []string{"subjectaccessreviews"}, "create"),
			rbacv1.PolicyRule{
				APIGroups: []string{apiregistrationv1.GroupName}, Resources: []string{"apiservices"}, ResourceNames: []string{MetricsAPI},
				Verbs: []string{"get", "update"},
			}),
		bind(roleMetrics, roleMetrics, rbacv1.UserKind, userMetrics),
		aggregated("view", clusterRole(roleMetricsReader, rule("metrics.k8s.io", []string{"nodes", "pods"}, "get", "list"))),
	}
}

// controllerRights are the rights of the controllers, and of users on their objects.
func controllerRights() []runtime.Object {
	return []runtime.Object{
		// The add-on controller grants the rights that the documents of add-ons state, so it may
		// grant any right. It uses none of these rights itself. Its right to impersonate add-ons is
		// not in this role, because a rule for all namespaces could not be limited to add-ons. The
		// controller grants itself that right in the namespace of add-ons
		// (docs/decisions/0035-addons.md).
		clusterRole(roleAddons,
			rule("", []string{"namespaces"}, "get", "create"),
			rule("", []string{"nodes"}, "get"),
			rule("autoscaling", []string{"horizontalpodautoscalers"}, "list"),
			rule(rbacv1.GroupName, []string{"clusterroles", "roles"}, "list", "create", "update", "delete", "escalate", "bind"),
			rule(rbacv1.GroupName, []string{"clusterrolebindings", "rolebindings"}, "list", "create", "update", "delete")),
		bind(roleAddons, roleAddons, rbacv1.UserKind, userAddons),
		// The controller of local volumes creates and deletes volumes, expands claims, and marks
		// obsolete volumes for the nodes. It creates the StorageClasses of pools on other disks. It
		// reads with the identity of its process, which has the rights for that.
		clusterRole(roleLocalVolumes,
			rule("", []string{"persistentvolumes"}, "get", "create", "patch", "delete"),
			rule("", []string{"persistentvolumeclaims", "persistentvolumeclaims/status", "nodes"}, "patch"),
			rule("", []string{"events"}, "create", "patch", "update"),
			rule("storage.k8s.io", []string{"csistoragecapacities"}, "create", "update", "delete"),
			rule("storage.k8s.io", []string{"storageclasses"}, "create"),
			rule(snapshotv1.GroupName, []string{"volumesnapshotcontents"}, "get", "create", "patch", "delete"),
			rule(snapshotv1.GroupName, []string{"volumesnapshots", "volumesnapshots/status", "volumesnapshotcontents/status"}, "patch")),
		// Users with the right to read claims may read their snapshots, and users with the right to
		// create claims may create snapshots.
		aggregated("view", clusterRole(roleSnapshotReader,
			rule(snapshotv1.GroupName, []string{"volumesnapshots"}, "get", "list", "watch"))),
		aggregated("edit", clusterRole(roleSnapshotEditor,
			rule(snapshotv1.GroupName, []string{"volumesnapshots"}, "create", "update", "patch", "delete", "deletecollection"))),
		bindAccount(roleLocalVolumes, roleLocalVolumes, LocalVolumesAccount),

		// This account sets the configured taints of Nodes: a kubelet may not change the taints of
		// its own Node.
		clusterRole(roleNodeTaints, rule("", []string{"nodes"}, "patch")),
		bindAccount(roleNodeTaints, roleNodeTaints, NodeTaintsAccount),
		// A control-plane machine drains a node before it removes its machine. The right to delete
		// any pod is not unusual: the node controller of Kubernetes has it, too.
		clusterRole(roleDrain,
			rule("", []string{"nodes"}, "get", "patch"),
			rule("", []string{"nodes/status"}, "patch"),
			rule("", []string{"pods"}, "list", "delete"),
			rule("", []string{"pods/eviction"}, "create")),
		bindAccount(roleDrain, roleDrain, DrainAccount),
	}
}

// podSignerRights are the rights of the signer of pod certificates. The signer answers the requests
// for its certificates, publishes its trust bundle, and stores its CAs in a Secret.
func podSignerRights() []runtime.Object {
	return []runtime.Object{
		clusterRole(rolePodSigner,
			rule(certificates.GroupName, []string{"podcertificaterequests/status"}, "update"),
			rule(certificates.GroupName, []string{"clustertrustbundles"}, "create"),
			named(rule(certificates.GroupName, []string{"clustertrustbundles"}, "get", "update"), PodTrust),
			named(rule(certificates.GroupName, []string{"signers"}, "sign", "attest"), PodSigner)),
		bindAccount(rolePodSigner, rolePodSigner, PodCertificatesAccount),
		&rbacv1.Role{
			ObjectMeta: metav1.ObjectMeta{Name: rolePodSigner, Namespace: metav1.NamespaceSystem},
			Rules: []rbacv1.PolicyRule{
				rule("", []string{"secrets"}, "create"),
				named(rule("", []string{"secrets"}, "get", "update"), PodAuthorities),
			},
		},
		&rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: rolePodSigner, Namespace: metav1.NamespaceSystem},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: rolePodSigner},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: PodCertificatesAccount, Namespace: metav1.NamespaceSystem}},
		},
	}
}

// nodeAgentRights are the rights of node agents. A node agent reads Nodes, and Services with their
// endpoints, as the kubelet and kube-proxy of any node may, and maintains the DNS endpoints of its
// node. It also enforces network policies, which refer to the labels of all Pods and Namespaces
// (docs/decisions/0030-network-policy.md).
func nodeAgentRights() []runtime.Object {
	return []runtime.Object{
		clusterRole(roleNodeAgent,
			rule("", []string{"nodes"}, "get", "list", "watch"),
			rule("", []string{"pods", "namespaces", "services"}, "list", "watch"),
			rule("networking.k8s.io", []string{"networkpolicies"}, "list", "watch"),
			rule("discovery.k8s.io", []string{"endpointslices"}, "list", "watch")),
		bind(roleNodeAgent, roleNodeAgent, rbacv1.GroupKind, groupNodeAgents),
		&rbacv1.Role{
			ObjectMeta: metav1.ObjectMeta{Name: roleDNSSlices, Namespace: metav1.NamespaceSystem},
			Rules: []rbacv1.PolicyRule{
				rule("discovery.k8s.io", []string{"endpointslices"}, "get", "create", "update", "patch", "delete"),
			},
		},
		&rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: roleDNSSlices, Namespace: metav1.NamespaceSystem},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: roleDNSSlices},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: groupNodeAgents}},
		},
	}
}

// dnsService returns the Service of the cluster DNS. The Service has no selector, because no pod
// serves it. Every node answers the queries of its own pods, so a query never leaves the node.
func dnsService(spec nodespec.Spec) *corev1.Service {
	local := corev1.ServiceInternalTrafficPolicyLocal
	policy := corev1.IPFamilyPolicySingleStack
	var addresses []string
	var families []corev1.IPFamily
	for _, ip := range spec.Network.DNSIPs {
		addresses = append(addresses, ip.String())
		if ip.Is6() {
			families = append(families, corev1.IPv6Protocol)
		} else {
			families = append(families, corev1.IPv4Protocol)
		}
	}
	if len(families) == 2 {
		policy = corev1.IPFamilyPolicyRequireDualStack
	}
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Name:      DNSService,
			Namespace: metav1.NamespaceSystem,
			Labels: map[string]string{
				// the established label for clients
				"k8s-app":                       DNSService,
				"kubernetes.io/cluster-service": "true",
				"kubernetes.io/name":            "CoreDNS",
				LabelOwn:                        "",
			},
		},
		Spec: corev1.ServiceSpec{
			Type:                  corev1.ServiceTypeClusterIP,
			ClusterIP:             addresses[0],
			ClusterIPs:            addresses,
			IPFamilies:            families,
			IPFamilyPolicy:        &policy,
			InternalTrafficPolicy: &local,
			Ports: []corev1.ServicePort{
				{Name: "dns", Protocol: corev1.ProtocolUDP, Port: 53, TargetPort: intstr.FromInt32(53)},
				{Name: "dns-tcp", Protocol: corev1.ProtocolTCP, Port: 53, TargetPort: intstr.FromInt32(53)},
			},
		},
	}
}

// aggregated adds the rules of a role to upstream's role view or edit, which the parameter to
// names. The role edit includes view, and the role admin includes both.
func aggregated(to string, role *rbacv1.ClusterRole) *rbacv1.ClusterRole {
	role.Labels = map[string]string{"rbac.authorization.k8s.io/aggregate-to-" + to: "true"}
	return role
}

func clusterRole(name string, rules ...rbacv1.PolicyRule) *rbacv1.ClusterRole {
	return &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules}
}

func bind(name, role, kind, subject string) *rbacv1.ClusterRoleBinding {
	return &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: kind, Name: subject}},
	}
}

// bindAccount binds a role to a service account of kube-system.
func bindAccount(name, role, account string) *rbacv1.ClusterRoleBinding {
	b := bind(name, role, rbacv1.ServiceAccountKind, account)
	b.Subjects[0].APIGroup, b.Subjects[0].Namespace = "", metav1.NamespaceSystem
	return b
}

// named restricts a rule to objects of these names.
func named(r rbacv1.PolicyRule, names ...string) rbacv1.PolicyRule {
	r.ResourceNames = names
	return r
}

func rule(group string, resources []string, verbs ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: resources, Verbs: verbs}
}
