package kubeapiserver

import (
	"strings"
	"testing"

	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	auditpolicy "k8s.io/apiserver/pkg/audit/policy"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// TestAudit checks that every read of users' objects produces a line, even if a system component
// reads them, and that the constant reads of the cluster's topology by these components produce
// none.
func TestAudit(t *testing.T) {
	policy, err := auditpolicy.LoadPolicyFromBytes([]byte(auditPolicy(nil)))
	if err != nil {
		t.Fatal(err)
	}
	rules := auditpolicy.NewPolicyRuleEvaluator(policy)
	kubelet := &user.DefaultInfo{Name: "system:node:w", Groups: []string{"system:nodes", "system:authenticated"}}
	agent := &user.DefaultInfo{Name: "orlop:node-agent:w", Groups: []string{"orlop:node-agents", "system:authenticated"}}
	controller := &user.DefaultInfo{Name: "system:serviceaccount:kube-system:replicaset-controller", Groups: []string{"system:serviceaccounts", "system:serviceaccounts:kube-system"}}
	proxy, scheduler := &user.DefaultInfo{Name: "system:kube-proxy"}, &user.DefaultInfo{Name: "system:kube-scheduler"}
	person := &user.DefaultInfo{Name: "jane", Groups: []string{"system:authenticated"}}
	const none, line, all = auditinternal.LevelNone, auditinternal.LevelMetadata, auditinternal.LevelRequestResponse
	for _, c := range []struct {
		who                              user.Info
		verb, group, resource, subobject string
		want                             auditinternal.Level
		// late is true if the policy omits the line at the start of the response; a watch is then
		// recorded only at its end.
		late bool
	}{
		{kubelet, "get", "", "secrets", "", line, true},
		{kubelet, "watch", "", "configmaps", "", line, true},
		{kubelet, "list", "", "pods", "", line, true},
		{kubelet, "get", "", "services", "", line, true},
		{kubelet, "list", "", "persistentvolumeclaims", "", line, true},
		// the request is forbidden, and the line records that
		{kubelet, "list", "apps", "deployments", "", line, true},
		{kubelet, "get", "", "nodes", "", none, false},
		{kubelet, "watch", "node.k8s.io", "runtimeclasses", "", none, false},
		{kubelet, "update", "coordination.k8s.io", "leases", "", none, false},
		{kubelet, "patch", "", "pods", "status", line, false},
		{agent, "watch", "", "pods", "", line, true},
		{agent, "list", "", "services", "", line, true},
		{agent, "watch", "networking.k8s.io", "networkpolicies", "", none, false},
		{proxy, "watch", "", "services", "", line, true},
		{proxy, "watch", "discovery.k8s.io", "endpointslices", "", none, false},
		{controller, "get", "", "pods", "", line, true},
		{controller, "get", "", "configmaps", "", line, true},
		{controller, "watch", "apps", "replicasets", "", none, false},
		{controller, "get", "", "pods", "exec", line, false},
		{controller, "get", "", "nodes", "proxy", line, false},
		{kubelet, "get", "", "nodes", "proxy", line, false},
		{scheduler, "watch", "", "pods", "", line, true},
		{scheduler, "watch", "storage.k8s.io", "csinodes", "", none, false},
		{person, "watch", "", "pods", "", line, false},
		{person, "get", "apps", "deployments", "", line, false},
		{person, "create", "rbac.authorization.k8s.io", "roles", "", all, false},
	} {
		got := rules.EvaluatePolicyRule(authorizer.AttributesRecord{
			User: c.who, Verb: c.verb, APIGroup: c.group, Resource: c.resource, Subresource: c.subobject, ResourceRequest: true,
		})
		late := false
		for _, s := range got.OmitStages {
			late = late || s == auditinternal.StageResponseStarted
		}
		if got.Level != c.want || late != c.late {
			t.Errorf("%s %s %s/%s: %s, without its beginning: %v", c.who.GetName(), c.verb, c.resource, c.subobject, got.Level, late)
		}
	}
}

// TestAuditRules checks that the configured rules decide before the system's rules. No configured
// rule can hide accesses to Secrets, commands in pods, and changes of rights. No rule records the
// content of a Secret or token.
func TestAuditRules(t *testing.T) {
	person := &user.DefaultInfo{Name: "jane", Groups: []string{"system:authenticated"}}
	const none, line, request, all = auditinternal.LevelNone, auditinternal.LevelMetadata, auditinternal.LevelRequest, auditinternal.LevelRequestResponse
	for level, own := range map[config.AuditLevel]auditinternal.Level{config.AuditNone: none, config.AuditRequest: request} {
		policy, err := auditpolicy.LoadPolicyFromBytes([]byte(auditPolicy([]config.AuditRule{{Level: level}})))
		if err != nil {
			t.Fatal(err)
		}
		rules := auditpolicy.NewPolicyRuleEvaluator(policy)
		for _, c := range []struct {
			verb, group, resource, subobject string
			want                             auditinternal.Level
		}{
			{"get", "apps", "deployments", "", own},
			{"create", "", "pods", "", own},
			{"get", "", "secrets", "", line},
			{"create", "", "secrets", "", line},
			{"create", "", "serviceaccounts", "token", line},
			{"create", "authentication.k8s.io", "tokenreviews", "", line},
			{"create", "", "pods", "exec", line},
			{"create", "rbac.authorization.k8s.io", "clusterrolebindings", "", all},
		} {
			got := rules.EvaluatePolicyRule(authorizer.AttributesRecord{
				User: person, Verb: c.verb, APIGroup: c.group, Resource: c.resource, Subresource: c.subobject, ResourceRequest: true,
			})
			if got.Level != c.want {
				t.Errorf("rules of level %s: %s %s/%s: %s, want %s", level, c.verb, c.resource, c.subobject, got.Level, c.want)
			}
		}
	}
}

// TestSettings checks that upstream accepts the settings of the reference, which has an example of
// each.
func TestSettings(t *testing.T) {
	reference, problems := config.Parse("", []byte(config.Reference))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	spec := nodespec.Spec{Kubernetes: reference.Cluster.Spec.Kubernetes}
	if err := Check(spec); err != nil {
		t.Error(err)
	}
	spec.Kubernetes.APIServer.Admission.EventRateLimits[0].Type = "Cluster"
	if err := Check(spec); err == nil || !strings.Contains(err.Error(), "Cluster") {
		t.Errorf("an unknown type: %v", err)
	}
	spec = nodespec.Spec{Kubernetes: config.DefaultKubernetes()}
	spec.Kubernetes.Audit.Rules = []config.AuditRule{{Level: "All"}}
	if err := Check(spec); err == nil || !strings.Contains(err.Error(), "All") {
		t.Errorf("an unknown level: %v", err)
	}
}
