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

// TestAudit checks which requests the audit policy records. Each read of users' objects has a line,
// even if a component of the system reads them. The constant reads of the cluster's topology by
// these components have none.
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
	const none, metadata, all = auditinternal.LevelNone, auditinternal.LevelMetadata, auditinternal.LevelRequestResponse
	for _, c := range []struct {
		caller                           user.Info
		verb, group, resource, subobject string
		want                             auditinternal.Level
		// omitsStart is true if the policy omits the line at the start of the response. A
		// watch is then recorded only at its end.
		omitsStart bool
	}{
		{kubelet, "get", "", "secrets", "", metadata, true},
		{kubelet, "watch", "", "configmaps", "", metadata, true},
		{kubelet, "list", "", "pods", "", metadata, true},
		{kubelet, "get", "", "services", "", metadata, true},
		{kubelet, "list", "", "persistentvolumeclaims", "", metadata, true},
		// The request is forbidden, and its line records that.
		{kubelet, "list", "apps", "deployments", "", metadata, true},
		{kubelet, "get", "", "nodes", "", none, false},
		{kubelet, "watch", "node.k8s.io", "runtimeclasses", "", none, false},
		{kubelet, "update", "coordination.k8s.io", "leases", "", none, false},
		{kubelet, "patch", "", "pods", "status", metadata, false},
		{agent, "watch", "", "pods", "", metadata, true},
		{agent, "list", "", "services", "", metadata, true},
		{agent, "watch", "networking.k8s.io", "networkpolicies", "", none, false},
		{proxy, "watch", "", "services", "", metadata, true},
		{proxy, "watch", "discovery.k8s.io", "endpointslices", "", none, false},
		{controller, "get", "", "pods", "", metadata, true},
		{controller, "get", "", "configmaps", "", metadata, true},
		{controller, "watch", "apps", "replicasets", "", none, false},
		{controller, "get", "", "pods", "exec", metadata, false},
		{controller, "get", "", "nodes", "proxy", metadata, false},
		{kubelet, "get", "", "nodes", "proxy", metadata, false},
		{scheduler, "watch", "", "pods", "", metadata, true},
		{scheduler, "watch", "storage.k8s.io", "csinodes", "", none, false},
		{person, "watch", "", "pods", "", metadata, false},
		{person, "get", "apps", "deployments", "", metadata, false},
		{person, "create", "rbac.authorization.k8s.io", "roles", "", all, false},
	} {
		got := rules.EvaluatePolicyRule(authorizer.AttributesRecord{
			User: c.caller, Verb: c.verb, APIGroup: c.group, Resource: c.resource, Subresource: c.subobject, ResourceRequest: true,
		})
		omitsStart := false
		for _, s := range got.OmitStages {
			omitsStart = omitsStart || s == auditinternal.StageResponseStarted
		}
		if got.Level != c.want || omitsStart != c.omitsStart {
			t.Errorf("%s %s %s/%s: level %s, without the start of the response: %v", c.caller.GetName(), c.verb, c.resource, c.subobject, got.Level, omitsStart)
		}
	}
}

// TestAuditRules checks that the configured rules take precedence over the rules of the system. But
// no configured rule can hide accesses to Secrets, commands in pods, and changes of rights. No rule
// records the content of a Secret or token.
func TestAuditRules(t *testing.T) {
	person := &user.DefaultInfo{Name: "jane", Groups: []string{"system:authenticated"}}
	const none, metadata, request, all = auditinternal.LevelNone, auditinternal.LevelMetadata, auditinternal.LevelRequest, auditinternal.LevelRequestResponse
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
			{"get", "", "secrets", "", metadata},
			{"create", "", "secrets", "", metadata},
			{"create", "", "serviceaccounts", "token", metadata},
			{"create", "authentication.k8s.io", "tokenreviews", "", metadata},
			{"create", "", "pods", "exec", metadata},
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

// TestSettings checks that upstream accepts the settings of the reference configuration, which has
// an example of each, and that Check rejects unknown values.
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
		t.Errorf("an unknown type of event rate limit: %v", err)
	}
	spec = nodespec.Spec{Kubernetes: config.DefaultKubernetes()}
	spec.Kubernetes.Audit.Rules = []config.AuditRule{{Level: "All"}}
	if err := Check(spec); err == nil || !strings.Contains(err.Error(), "All") {
		t.Errorf("an unknown audit level: %v", err)
	}
}
