package kubeapiserver

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	mutatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	validatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	mutatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/mutating"
	validatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/validating"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"

	"github.com/orlop-os/orlop/orchestrator/bootstrap"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// thirdParty are upstream's admission plugins that apply objects of users: webhooks and policies. A
// webhook without a backend rejects all requests in its scope, so some requests of the system skip
// these plugins (docs/decisions/0054-system-requests.md).
var thirdParty = []string{mutatingwebhook.PluginName, validatingwebhook.PluginName, mutatingpolicy.PluginName, validatingpolicy.PluginName}

// exemptSystemRequests wraps the third-party plugins with upstream's own mechanism
// (options.AdmissionOptions.Decorators). rejected receives each error with which a plugin rejects a
// request.
func exemptSystemRequests(opts *options.ServerRunOptions, rejected func(error)) {
	generic := opts.Admission.GenericAdmission
	generic.Decorators = append(slices.Clone(generic.Decorators), admission.DecoratorFunc(func(inner admission.Interface, name string) admission.Interface {
		if !slices.Contains(thirdParty, name) {
			return inner
		}
		return exempting{inner, name, rejected}
	}))
}

// exempting is a plugin that skips the system's own requests.
type exempting struct {
	admission.Interface
	name     string
	rejected func(error)
}

// Admit implements admission.MutationInterface.
func (p exempting) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	inner, mutates := p.Interface.(admission.MutationInterface)
	if !mutates || systemRequest(ctx, a) {
		return nil
	}
	return p.report(inner.Admit(ctx, a, o))
}

// Validate implements admission.ValidationInterface.
func (p exempting) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	inner, validates := p.Interface.(admission.ValidationInterface)
	if !validates || systemRequest(ctx, a) {
		return nil
	}
	if p.name == validatingpolicy.PluginName {
		a = withImpersonator(ctx, a)
	}
	return p.report(inner.Validate(ctx, a, o))
}

func (p exempting) report(err error) error {
	if err != nil && p.rejected != nil {
		p.rejected(err)
	}
	return err
}

// exemption is a set of requests that skip the third-party plugins. Empty fields other than user
// and group match everything.
type exemption struct {
	user, group string // exactly one is set
	// the caller must also be in system:masters; a signed certificate request or a role cannot
	// grant this group
	masters    bool
	operations []admission.Operation
	// "GROUP/RESOURCE" or "GROUP/RESOURCE/SUBRESOURCE"; the core group is empty
	resources []string
	namespace string
	names     []string
}

const (
	create = admission.Create
	update = admission.Update
	remove = admission.Delete
)

// exemptions are the requests that a machine needs to become Ready and reachable after a boot, and
// the requests of its repair. Each row names one identity of the system and the objects that belong
// to it. No row covers the content of users' objects: the plugins still check Deployments,
// ReplicaSets, Jobs and the scheduler's bindings.
var exemptions = []exemption{
	// These are the server's own requests, over its connection to itself. The server never acts for
	// a user on this connection.
	{user: user.APIServerUser, masters: true},

	// This row is for an administrator's repair (Cluster.Suspend and Cluster.Resume of the
	// management API).
	{user: nodespec.BreakGlassUser, masters: true, resources: []string{
		"apiregistration.k8s.io/apiservices", "apiextensions.k8s.io/customresourcedefinitions",
		"admissionregistration.k8s.io/validatingwebhookconfigurations", "admissionregistration.k8s.io/mutatingwebhookconfigurations",
		"admissionregistration.k8s.io/validatingadmissionpolicybindings", "admissionregistration.k8s.io/mutatingadmissionpolicybindings",
		"admissionregistration.k8s.io/validatingadmissionpolicies", "admissionregistration.k8s.io/mutatingadmissionpolicies",
		"flowcontrol.apiserver.k8s.io/flowschemas", "flowcontrol.apiserver.k8s.io/prioritylevelconfigurations",
	}},

	// A kubelet registers its Node, reports the status of the Node and its pods, and fetches the
	// tokens of pods that are bound to it. NodeRestriction, which is not a third-party plugin,
	// restricts it to its own Node and pods.
	{group: user.NodesGroup, operations: []admission.Operation{create, update}, resources: []string{
		"/nodes", "/nodes/status", "/pods/status", "storage.k8s.io/csinodes",
	}},
	{group: user.NodesGroup, operations: []admission.Operation{create, update}, resources: []string{"coordination.k8s.io/leases"}, namespace: "kube-node-lease"},
	{group: user.NodesGroup, operations: []admission.Operation{create}, resources: []string{
		"/serviceaccounts/token", "certificates.k8s.io/podcertificaterequests",
		"authentication.k8s.io/tokenreviews", "authorization.k8s.io/subjectaccessreviews",
	}},
	// A kubelet deletes a pod that has ended.
	{group: user.NodesGroup, operations: []admission.Operation{remove}, resources: []string{"/pods"}},
	{group: nodespec.NodeAgentGroup, resources: []string{"discovery.k8s.io/endpointslices"}, namespace: "kube-system"},

	// The controllers' processes create their service accounts and elect a leader.
	{user: user.KubeControllerManager, operations: []admission.Operation{create, update}, resources: []string{
		"/serviceaccounts", "/serviceaccounts/token", "coordination.k8s.io/leases",
	}, namespace: "kube-system"},
	{user: user.KubeScheduler, operations: []admission.Operation{create, update}, resources: []string{"coordination.k8s.io/leases"}, namespace: "kube-system"},
	{user: user.KubeControllerManager, operations: []admission.Operation{create}, resources: reviews},
	{user: user.KubeScheduler, operations: []admission.Operation{create}, resources: reviews},
	{user: nodespec.MetricsUser, operations: []admission.Operation{create}, resources: reviews},
	{user: nodespec.MetricsUser, operations: []admission.Operation{update}, resources: []string{"apiregistration.k8s.io/apiservices"}, names: []string{bootstrap.MetricsAPI}},

	// The state of the add-ons.
	{user: nodespec.AddonsUser, resources: []string{"/configmaps", "/serviceaccounts"}, namespace: nodespec.AddonsNamespace},

	// The node controller assigns a share of the pod range to a Node, removes the taint of an
	// unready node, and marks the pods of the node as ready.
	{user: account("node-controller"), operations: []admission.Operation{update}, resources: []string{"/nodes", "/nodes/status", "/pods/status"}},
	// The Node of a removed machine is deleted at once: until then other pods would connect to its
	// pods.
	{user: account("node-controller"), operations: []admission.Operation{remove}, resources: []string{"/nodes"}},
	{user: account(bootstrap.NodeTaintsAccount), operations: []admission.Operation{update}, resources: []string{"/nodes"}},
	// After a boot, pods have other addresses than the endpoints of their Services, until the
	// controllers update the endpoints. One of these pods can be the backend of a webhook, which
	// fails until then.
	{user: account("endpointslice-controller"), resources: []string{"discovery.k8s.io/endpointslices"}},
	{user: account("endpoint-controller"), resources: []string{"/endpoints"}},
	// Every namespace needs these two objects to start pods.
	{user: account("service-account-controller"), operations: []admission.Operation{create}, resources: []string{"/serviceaccounts"}, names: []string{"default"}},
	{user: account("root-ca-cert-publisher"), operations: []admission.Operation{create, update}, resources: []string{"/configmaps"}, names: []string{"kube-root-ca.crt"}},
	// The certificates of pods depend on CAs that one Secret stores.
	{user: account(bootstrap.PodCertificatesAccount), operations: []admission.Operation{create, update}, resources: []string{"/secrets"}, namespace: "kube-system", names: []string{bootstrap.PodAuthorities}},
	{user: account(bootstrap.PodCertificatesAccount), operations: []admission.Operation{create, update}, resources: []string{"certificates.k8s.io/clustertrustbundles"}, names: []string{bootstrap.PodTrust}},
	{user: account(bootstrap.PodCertificatesAccount), operations: []admission.Operation{update}, resources: []string{"certificates.k8s.io/podcertificaterequests/status"}},
}

// reviews are queries about rights; they store no object.
var reviews = []string{"authentication.k8s.io/tokenreviews", "authorization.k8s.io/subjectaccessreviews"}

func account(name string) string { return serviceaccount.MakeUsername("kube-system", name) }

// systemRequest reports whether a request skips the third-party plugins. A caller that impersonates
// another user is never the system: an administrator must not bypass the site's policies by
// impersonation.
func systemRequest(ctx context.Context, a admission.Attributes) bool {
	who := a.GetUserInfo()
	if who == nil || ctx.Value(impersonating{}) != nil {
		return false
	}
	return slices.ContainsFunc(exemptions, func(e exemption) bool { return e.appliesTo(who) && e.covers(a) })
}

func (e exemption) appliesTo(who user.Info) bool {
	if e.masters && !slices.Contains(who.GetGroups(), user.SystemPrivilegedGroup) {
		return false
	}
	if e.user != "" {
		return who.GetName() == e.user
	}
	return slices.Contains(who.GetGroups(), e.group)
}

func (e exemption) covers(a admission.Attributes) bool {
	return (len(e.operations) == 0 || slices.Contains(e.operations, a.GetOperation())) &&
		(len(e.resources) == 0 || slices.Contains(e.resources, resourceOf(a.GetResource(), a.GetSubresource()))) &&
		(e.namespace == "" || e.namespace == a.GetNamespace()) &&
		(len(e.names) == 0 || slices.Contains(e.names, nameOf(a)))
}

func resourceOf(r schema.GroupVersionResource, subresource string) string {
	return strings.TrimSuffix(r.Group+"/"+r.Resource+"/"+subresource, "/")
}

// nameOf returns the name of the object; a create request may have no name in its path.
func nameOf(a admission.Attributes) string {
	if a.GetName() != "" || a.GetObject() == nil {
		return a.GetName()
	}
	object, err := meta.Accessor(a.GetObject())
	if err != nil {
		return ""
	}
	return object.GetName()
}

// impersonating is the context key of requests with impersonation headers. Its value is a *string,
// the name of the client that impersonates.
type impersonating struct{}

// markImpersonation marks requests with impersonation headers. It precedes all filters, because
// upstream's filter removes the headers.
func markImpersonation(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if len(r.Header.Values(authenticationv1.ImpersonateUserHeader)) > 0 {
			r = r.WithContext(context.WithValue(r.Context(), impersonating{}, new(string)))
		}
		next.ServeHTTP(w, r)
	})
}

// recordImpersonator records the name of the client that impersonates. It wraps the authenticator,
// which precedes upstream's filter for impersonation. The filter replaces the user of the request;
// afterwards, only the audit event contains the name of the client.
func recordImpersonator(next authenticator.Request) authenticator.Request {
	return authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
		response, ok, err := next.AuthenticateRequest(r)
		if by, is := r.Context().Value(impersonating{}).(*string); is && ok {
			*by = response.User.GetName()
		}
		return response, ok, err
	})
}

// impersonatorKey is the key of the extra fields of a user by which policies see the client that
// impersonates this user: request.userInfo.extra in expressions. No client can set it.
const impersonatorKey = "orlop.dev/impersonator"

// withImpersonator sets the field impersonatorKey if a client impersonates the user of the request.
// For any other request, it removes the field, which an authenticator can have accepted from the
// client.
func withImpersonator(ctx context.Context, a admission.Attributes) admission.Attributes {
	who := a.GetUserInfo()
	if who == nil {
		return a
	}
	by, impersonated := ctx.Value(impersonating{}).(*string)
	if _, has := who.GetExtra()[impersonatorKey]; !impersonated && !has {
		return a
	}
	extra := maps.Clone(who.GetExtra())
	delete(extra, impersonatorKey)
	if impersonated {
		if extra == nil {
			extra = map[string][]string{}
		}
		extra[impersonatorKey] = []string{*by}
	}
	return attributesWithUser{a, &user.DefaultInfo{Name: who.GetName(), UID: who.GetUID(), Groups: who.GetGroups(), Extra: extra}}
}

// attributesWithUser are the attributes of a request with another user.
type attributesWithUser struct {
	admission.Attributes
	user user.Info
}

// GetUserInfo implements admission.Attributes.
func (i attributesWithUser) GetUserInfo() user.Info { return i.user }
