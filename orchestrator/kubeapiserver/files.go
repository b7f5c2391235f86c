package kubeapiserver

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/layout"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// The configuration files that the component writes into the process's folder.
const (
	admissionFile = "admission.yaml"
	auditFile     = "audit-policy.yaml"
)

func files(spec nodespec.Spec, dirs layout.Dirs) []component.File {
	file := func(name, content string) component.File {
		return component.File{Path: filepath.Join(dirs.API, name), Mode: 0o600, Content: content}
	}
	return []component.File{
		file(admissionFile, admissionConfig(spec)),
		file(auditFile, audit),
	}
}

// admission enforces the cluster's Pod Security level where a namespace does not say otherwise. The same level warns the client
// that applies a Deployment or another object with a pod template: the refusal itself reaches only the controller that creates
// the pods, as an event of a ReplicaSet. A stricter level would warn about nearly every chart, and hide that warning. The
// configuration also names the addresses that no Service may have.
func admissionConfig(spec nodespec.Spec) string {
	exempt := "[]"
	if len(spec.PodSecurityExempt) > 0 {
		exempt = "\n      - " + strings.Join(spec.PodSecurityExempt, "\n      - ")
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
`, spec.PodSecurity, exempt, MachinePorts, reservedConfig(spec))
}

// audit is one policy for every cluster; the first rule that matches a request decides.
//
// Nothing is kept of the server's and the system's own reads, of leases and of health; of who changed the rules of
// access everything; of everything else who did what to which object, never its content: a Secret's content, a token or
// a command line must not end in a log (for what stands in the URL see auditlog.go). Who has read a Secret is told of everybody, because when a
// machine was stolen somebody has to know which to replace.
const audit = `apiVersion: audit.k8s.io/v1
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
  omitStages: # a kubelet watches each Secret of its pods, and begins anew every few minutes
  - ResponseStarted
  resources:
  - group: ""
    resources:
    - secrets
    - serviceaccounts/token
- level: None
  userGroups:
  - system:nodes
  - system:serviceaccounts:kube-system
  - orlop:node-agents
  verbs:
  - get
  - list
  - watch
- level: None
  users:
  - system:kube-controller-manager
  - system:kube-scheduler
  - system:kube-proxy
  - orlop:coredns
  - orlop:metrics
  verbs:
  - get
  - list
  - watch
- level: RequestResponse
  verbs:
  - create
  - update
  - patch
  - delete
  - deletecollection
  resources:
  - group: rbac.authorization.k8s.io
- level: Metadata
`
