package kubeapiserver

import (
	"fmt"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota"
	"k8s.io/kubernetes/plugin/pkg/admission/eventratelimit"
	"k8s.io/kubernetes/plugin/pkg/admission/podnodeselector"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
)

// The configuration files that the component writes into the process's directory.
const (
	admissionFile = "admission.yaml"
	auditFile     = "audit-policy.yaml"
	egressFile    = "egress.yaml"
)

func files(spec nodespec.Spec, dirs dirs.Dirs) []component.File {
	file := func(name, content string) component.File {
		return component.File{Path: filepath.Join(dirs.API, name), Mode: 0o600, Content: content}
	}
	all := []component.File{
		file(admissionFile, admissionConfig(spec, filepath.Join(dirs.API, sealedDir))),
		file(auditFile, auditPolicy(spec.Kubernetes.Audit.Rules)),
	}
	if s := spec.Kubernetes.SealedPolicies; !s.IsZero() {
		all = append(all, file(filepath.Join(sealedDir, sealedFile), sealedPolicies(s)))
	}
	if spec.Network.Forwarder {
		all = append(all, file(egressFile, egressConfig))
	}
	return all
}

// egressConfig makes the server reach webhooks with a URL, and issuers of tokens, through
// machined's forwarder. The server reaches Nodes, pods, Services and etcd directly, because they
// have no entry here.
var egressConfig = fmt.Sprintf(`apiVersion: apiserver.k8s.io/v1beta1
kind: EgressSelectorConfiguration
egressSelections:
- name: controlplane
  connection:
    proxyProtocol: HTTPConnect
    transport:
      uds:
        udsName: %s
`, paths.ForwarderSocket)

// admissionConfig enforces the cluster's Pod Security level in namespaces without their own level.
// A client that applies a Deployment, or another object with a pod template, gets a warning
// according to the same level. The client sees no other sign of a rejection, because the rejected
// pods are those of a controller and the rejection appears as an event of a ReplicaSet. A stricter
// level for warnings would warn about nearly every chart and hide this warning. The configuration
// also lists the addresses that no Service may have. sealed is the directory of sealed policies.
func admissionConfig(spec nodespec.Spec, sealed string) string {
	exempt := "[]"
	if len(spec.Kubernetes.PodSecurity.ExemptNamespaces) > 0 {
		exempt = "\n      - " + strings.Join(spec.Kubernetes.PodSecurity.ExemptNamespaces, "\n      - ")
	}
	return fmt.Sprintf(`apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
- name: PodSecurity
  configuration:
    apiVersion: pod-security.admission.config.k8s.io/v1
    kind: PodSecurityConfiguration
    defaults:
      enforce: %[1]s
      enforce-version: latest
      audit: %[1]s
      audit-version: latest
      warn: %[1]s
      warn-version: latest
    exemptions:
      usernames: []
      runtimeClasses: []
      namespaces: %[2]s
- name: %[3]s
  configuration: %[4]s
%[5]s`, spec.Kubernetes.PodSecurity.Default, exempt, MachinePorts, reservedConfig(spec), pluginConfigs(spec.Kubernetes, sealed))
}

// object is a part of a document.
type object = map[string]any

// pluginConfigs returns the configured settings of upstream's admission plugins as items of the
// list of plugins.
func pluginConfigs(k config.Kubernetes, sealed string) string {
	var items []object
	if !k.SealedPolicies.IsZero() {
		items = append(items, sealedConfig(sealed))
	}
	a := k.APIServer.Admission
	if len(a.EventRateLimits) > 0 {
		var limits []object
		for _, l := range a.EventRateLimits {
			limits = append(limits, object{"type": l.Type, "qps": l.QPS, "burst": l.Burst, "cacheSize": l.CacheSize})
		}
		items = append(items, object{"name": eventratelimit.PluginName, "configuration": object{
			"apiVersion": "eventratelimit.admission.k8s.io/v1alpha1", "kind": "Configuration", "limits": limits,
		}})
	}
	if !a.PodNodeSelector.IsZero() {
		selectors := map[string]string{"clusterDefaultNodeSelector": labels.Set(a.PodNodeSelector.Default).String()}
		for _, n := range a.PodNodeSelector.Allowed {
			selectors[n.Namespace] = labels.Set(n.Labels).String()
		}
		items = append(items, object{"name": podnodeselector.PluginName, "configuration": object{"podNodeSelectorPluginConfig": selectors}})
	}
	if len(a.ResourceQuota.Limited) > 0 {
		var limited []object
		for _, l := range a.ResourceQuota.Limited {
			limited = append(limited, object{"apiGroup": l.APIGroup.String(), "resource": l.Resource, "matchContains": l.Contains})
		}
		items = append(items, object{"name": resourcequota.PluginName, "configuration": object{
			"apiVersion": "apiserver.config.k8s.io/v1", "kind": "ResourceQuotaConfiguration", "limitedResources": limited,
		}})
	}
	if len(items) == 0 {
		return ""
	}
	return component.YAML(items)
}

// auditPolicy returns the audit policy: first the rules for the requests that are always recorded,
// then the configured rules, then the rules for all other requests.
func auditPolicy(rules []config.AuditRule) string {
	var items []object
	for _, r := range rules {
		item := object{"level": r.Level}
		for field, list := range map[string][]string{
			"users": r.Users, "userGroups": r.UserGroups, "verbs": r.Verbs, "namespaces": r.Namespaces, "nonResourceURLs": r.NonResourceURLs,
		} {
			if len(list) > 0 {
				item[field] = list
			}
		}
		if len(r.OmitStages) > 0 {
			item["omitStages"] = r.OmitStages
		}
		if r.OmitManagedFields {
			item["omitManagedFields"] = true
		}
		var resources []object
		for _, res := range r.Resources {
			resources = append(resources, object{"group": res.Group.String(), "resources": res.Resources, "resourceNames": res.ResourceNames})
		}
		if len(resources) > 0 {
			item["resources"] = resources
		}
		items = append(items, item)
	}
	if len(items) == 0 {
		return auditFirst + auditRest
	}
	return auditFirst + component.YAML(items) + auditRest
}

// auditFirst is the beginning of the audit policy of every cluster, and auditRest is its end. The
// configured rules are between them. The first rule that matches a request decides. So a configured
// rule cannot hide the access to Secrets, a command in a pod or a change of rights, and cannot
// record a token.
//
// The policy records nothing for the server's own requests, leases, events, health and the list of
// APIs, and nothing for the constant reads of the cluster's topology by the components of nodes. Of
// the reads by controllers, it records only those of Secrets, ConfigMaps, pods, Services and
// service accounts. A read of users' objects by these
// components produces one line (docs/decisions/0053-audit-of-reads.md). Changes of RBAC objects are
// recorded in full. For all other requests the policy records the user, the verb and the object,
// but not its content, because the content of a Secret, a token or a command line must not be in a
// log (for URLs see auditlog.go). Reads of Secrets are audited for all users. After the theft of a
// machine, the operator can so find out which Secrets to replace.
const auditFirst = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages:
- RequestReceived
rules:
- level: None
  users:
  - system:apiserver
- level: None
  nonResourceURLs:
  - /healthz*
  - /livez*
  - /readyz*
  - /version
  - /openapi*
  - /api
  - /api/*
  - /apis
  - /apis/*
- level: None
  resources:
  - group: coordination.k8s.io
    resources:
    - leases
  - group: ""
    resources:
    - events
  - group: events.k8s.io
    resources:
    - events
- level: Metadata
  omitStages: # a kubelet watches each Secret of its pods, and restarts the watch every few minutes
  - ResponseStarted
  resources:
  - group: ""
    resources:
    - secrets
    - serviceaccounts/token
- level: Metadata # these requests have an effect even if the verb is get
  resources:
  - group: ""
    resources: [pods/exec, pods/attach, pods/portforward, pods/proxy, services/proxy, nodes/proxy]
- level: Metadata # the content is a token
  resources:
  - group: authentication.k8s.io
    resources: [tokenreviews]
- level: RequestResponse
  verbs:
  - create
  - update
  - patch
  - delete
  - deletecollection
  resources:
  - group: rbac.authorization.k8s.io
`

const auditRest = `- level: None # the components of each node read these kinds all the time
  userGroups:
  - system:nodes
  - orlop:node-agents
  verbs: [get, list, watch]
  resources: &shape
  - group: ""
    resources: [nodes, namespaces]
  - group: discovery.k8s.io
    resources: [endpointslices]
  - group: networking.k8s.io
    resources: [networkpolicies, servicecidrs]
  - group: node.k8s.io
    resources: [runtimeclasses]
  - group: storage.k8s.io
    resources: [csidrivers, csinodes, volumeattachments]
- level: None
  users:
  - system:kube-proxy
  - orlop:coredns
  verbs: [get, list, watch]
  resources: *shape
- level: Metadata # their other reads, once, at the end
  omitStages:
  - ResponseStarted
  userGroups:
  - system:nodes
  - orlop:node-agents
  verbs: [get, list, watch]
- level: Metadata
  omitStages:
  - ResponseStarted
  users:
  - system:kube-proxy
  - orlop:coredns
  verbs: [get, list, watch]
- level: Metadata # controllers read every kind; only their reads of these kinds and of Secrets are recorded
  omitStages:
  - ResponseStarted
  userGroups:
  - system:serviceaccounts:kube-system
  verbs: [get, list, watch]
  resources: &given
  - group: ""
    resources: [configmaps, pods, pods/log, services, serviceaccounts]
- level: Metadata
  omitStages:
  - ResponseStarted
  users:
  - system:kube-controller-manager
  - system:kube-scheduler
  - orlop:metrics
  verbs: [get, list, watch]
  resources: *given
- level: None
  userGroups:
  - system:serviceaccounts:kube-system
  verbs: [get, list, watch]
- level: None
  users:
  - system:kube-controller-manager
  - system:kube-scheduler
  - orlop:metrics
  verbs: [get, list, watch]
- level: Metadata
`
