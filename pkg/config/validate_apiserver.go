package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/orlop-os/orlop/pkg/config/upstream"
)

// apiServer validates the settings of the API server.
func (v clusterValidator) apiServer(path string, k *Kubernetes) {
	seen := map[string]bool{}
	for i, san := range k.APIServer.ExtraSANs {
		at := fmt.Sprintf("%s.extraSANs[%d]", path, i)
		if err := hostOrAddr(san); err != nil && san != "" {
			v.on(at, wrong{reason: fmt.Sprintf("%s %v", quote(san), err), expected: "a DNS name in lower case or an IP address"})
		}
		if seen[san] && san != "" {
			v.on(at, wrong{reason: fmt.Sprintf("%s is given twice", quote(san))})
		}
		seen[san] = true
	}
	v.runtimeConfig(path+".runtimeConfig", k.APIServer.RuntimeConfig)
	v.admission(path+".admission", &k.APIServer.Admission)
}

// runtimeConfig validates switches of API versions. A version that is enabled by default cannot be
// disabled, because the system, its controllers or the kubelets use it.
func (v clusterValidator) runtimeConfig(path string, versions map[string]bool) {
	if len(versions) == 0 {
		return
	}
	known := upstream.APIVersions()
	for _, name := range slices.Sorted(maps.Keys(versions)) {
		at := path + `["` + shorten(name) + `"]`
		byDefault, is := known[name]
		switch {
		case strings.HasPrefix(name, "api/"):
			v.on(at, wrong{reason: "switches APIs that the system requires, and differs between versions", expected: "single versions, such as resource.k8s.io/v1beta1"})
		case !is:
			v.on(at, wrong{reason: "Kubernetes has no such version of a group", expected: "a version such as resource.k8s.io/v1beta1", nearest: nearest(name, upstream.Names(known))})
		case !byDefault && !versions[name]:
			v.on(at, wrong{reason: "is off by default", hint: noRemedy})
		case !versions[name]:
			v.on(at, wrong{reason: "components of the system use this API, so it cannot be switched off", hint: "omit it; RBAC keeps users from it"})
		}
	}
}

// lockedPlugins maps the admission plugins that a configuration can neither enable nor disable to
// the reasons.
var lockedPlugins = map[string]string{
	"AlwaysAdmit":                   "it has no effect",
	"AlwaysDeny":                    "it rejects every request",
	"CertificateApproval":           "without it, certificates could be approved without the right to it",
	"CertificateSigning":            "without it, certificates could be signed without the right to it",
	"CertificateSubjectRestriction": "without it, a certificate could be of the group system:masters",
	"ClusterTrustBundleAttest":      "without it, trust bundles could be published without the right to it",
	"DefaultTolerationSeconds":      "podEvictionTimeout depends on it",
	"EventRateLimit":                "admission.eventRateLimits switches it",
	"ImagePolicyWebhook":            "its service could reject the pods of the system",
	"NamespaceLifecycle":            "without it, objects could be created in a namespace that is being deleted",
	"NodeRestriction":               "without it, a node could change the objects of other nodes",
	"PodNodeSelector":               "admission.podNodeSelector switches it",
	"PodSecurity":                   "podSecurity.default: privileged permits all pods",
	"Priority":                      "without it, the pods of the system would have no priority",
	"ServiceAccount":                "without it, pods would have no identity",
	"StorageObjectInUseProtection":  "without it, a volume could be deleted while a pod uses it",
	"TaintNodesByCondition":         "without it, pods could start on a new node that is not ready",
}

// admission validates the lists of enabled and disabled plugins, and the configurations of plugins.
func (v clusterValidator) admission(path string, a *Admission) {
	seen := map[AdmissionPlugin]string{}
	defaults := upstream.AdmissionPlugins()
	for _, list := range []struct {
		field   string
		plugins []AdmissionPlugin
		on      bool
	}{{"enabled", a.Enabled, true}, {"disabled", a.Disabled, false}} {
		for i, name := range list.plugins {
			at := fmt.Sprintf("%s.%s[%d]", path, list.field, i)
			switch reason, locked := lockedPlugins[string(name)]; {
			case name == "":
			case seen[name] != "":
				v.on(at, wrong{reason: fmt.Sprintf("%s is in %s already", name, seen[name]), expected: "each plugin once"})
			case locked:
				v.on(at, wrong{reason: fmt.Sprintf("%s cannot be switched here: %s", name, reason), hint: noRemedy})
			case defaults[string(name)] == list.on:
				v.on(at, wrong{reason: fmt.Sprintf("%s is %s by default", name, list.field), hint: noRemedy})
			}
			seen[name] = list.field
		}
	}
	types := map[string]int{}
	for i, l := range a.EventRateLimits {
		at := fmt.Sprintf("%s.eventRateLimits[%d]", path, i)
		v.unique(at+".type", "eventRateLimits", string(l.Type), i, types)
		if l.Burst > 0 && l.Burst < l.QPS {
			v.on(at+".burst", wrong{reason: "is less than qps, which could never be reached", expected: fmt.Sprintf("at least %d", l.QPS)})
		}
	}
	v.podNodeSelector(path+".podNodeSelector", &a.PodNodeSelector)
	if slices.Contains(a.Disabled, "ResourceQuota") && len(a.ResourceQuota.Limited) > 0 {
		v.on(path+".resourceQuota.limited", wrong{reason: "has no effect while the plugin ResourceQuota is disabled", hint: "omit one of them"})
	}
	for i, l := range a.ResourceQuota.Limited {
		at := fmt.Sprintf("%s.resourceQuota.limited[%d]", path, i)
		if err := dnsLabel(l.Resource); err != nil && l.Resource != "" {
			v.on(at+".resource", wrong{reason: fmt.Sprintf("%s %v", quote(l.Resource), err), expected: "the plural of a resource in lower case, such as persistentvolumeclaims"})
		}
		if len(l.Contains) == 0 {
			v.on(at+".contains", wrong{reason: "is empty, so no quota is required", expected: "parts of names of quotas, such as .storageclass.storage.k8s.io/"})
		}
	}
}

// podNodeSelector validates the labels. The plugin gets all labels as a single text, so a label
// must not contain an equals sign or a comma. The rules for labels exclude both characters.
func (v clusterValidator) podNodeSelector(path string, p *PodNodeSelector) {
	labels := func(path string, all map[string]string) {
		for _, key := range slices.Sorted(maps.Keys(all)) {
			at := path + `["` + shorten(key) + `"]`
			if err := qualifiedName(key); err != nil {
				v.on(at, wrong{reason: fmt.Sprintf("the key %s %v", quote(key), err), expected: labelKey})
			}
			v.labelValue(at, all[key])
		}
	}
	labels(path+".default", p.Default)
	var names []string
	for i, n := range p.Allowed {
		at := fmt.Sprintf("%s.allowed[%d].labels", path, i)
		if len(n.Labels) == 0 {
			v.on(at, wrong{reason: "is empty, so the pods of the namespace may require any label", expected: "the permitted labels", hint: "omit the namespace to permit any"})
		}
		labels(at, n.Labels)
		names = append(names, n.Namespace)
	}
	v.namespaces(path+".allowed", names)
}

// maxAuditRules bounds the number of audit rules, because the API server compares each request with
// all of them.
const maxAuditRules = 64

// audit validates the rules of the audit policy as the API server does
// (k8s.io/apiserver/pkg/apis/audit/validation).
func (v clusterValidator) audit(path string, rules []AuditRule) {
	if len(rules) > maxAuditRules {
		v.on(path, wrong{reason: fmt.Sprintf("%d rules", len(rules)), expected: fmt.Sprintf("at most %d", maxAuditRules)})
	}
	for i, r := range rules {
		at := fmt.Sprintf("%s[%d]", path, i)
		if len(r.NonResourceURLs) > 0 && len(r.Resources)+len(r.Namespaces) > 0 {
			v.on(at+".nonResourceURLs", wrong{reason: "a request is for a path or for a resource", expected: "two rules"})
		}
		if len(r.NonResourceURLs) > 0 && (r.Level == AuditRequest || r.Level == AuditRequestResponse) {
			v.on(at+".level", wrong{reason: "requests for paths have no recorded content", expected: "None or Metadata"})
		}
		for k, url := range r.NonResourceURLs {
			if !strings.HasPrefix(url, "/") || strings.Contains(strings.TrimSuffix(url, "*"), "*") {
				v.on(fmt.Sprintf("%s.nonResourceURLs[%d]", at, k), wrong{reason: fmt.Sprintf("%s is not a path", quote(url)), expected: `a path such as /metrics, or a beginning with "*" at the end`})
			}
		}
		for k, res := range r.Resources {
			place := fmt.Sprintf("%s.resources[%d]", at, k)
			if len(res.ResourceNames) > 0 && len(res.Resources) == 0 {
				v.on(place+".resourceNames", wrong{reason: "names of objects have no meaning without their resources", expected: "resources beside them"})
			}
			if strings.ContainsAny(res.Group.String(), "/ ") {
				v.on(place+".group", wrong{reason: fmt.Sprintf("%s is not a group", quote(res.Group.String())), expected: "a group without a version, such as apps"})
			}
		}
		if len(r.OmitStages) == len(AuditStage("").Names()) && r.Level != AuditNone {
			v.on(at+".omitStages", wrong{reason: "no stage is left to record", expected: "level: None"})
		}
	}
}
