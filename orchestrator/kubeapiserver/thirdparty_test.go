package kubeapiserver

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"
	"k8s.io/kubernetes/pkg/apis/core"
)

// refuses is a fake third-party plugin that rejects every request.
type refuses struct{ *admission.Handler }

var errNo = errors.New("no")

func (refuses) Admit(context.Context, admission.Attributes, admission.ObjectInterfaces) error {
	return errNo
}

func (refuses) Validate(context.Context, admission.Attributes, admission.ObjectInterfaces) error {
	return errNo
}

// asked is a request: its caller who, the operation how, the resource, and the subresource part.
type asked struct {
	who             string
	groups          []string
	how             admission.Operation
	group, resource string
	part            string
	namespace, name string
}

func (r asked) attributes() admission.Attributes {
	// The name of a new object is only in the object.
	object, name := &core.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: r.name, Namespace: r.namespace}}, r.name
	if r.how == admission.Create && r.part == "" {
		name = ""
	}
	return admission.NewAttributesRecord(object, nil, schema.GroupVersionKind{}, r.namespace, name,
		schema.GroupVersionResource{Group: r.group, Version: "v1", Resource: r.resource}, r.part, r.how, nil, false,
		&user.DefaultInfo{Name: r.who, Groups: r.groups})
}

// TestSystemRequests checks which requests skip the third-party plugins: only those of the system
// for boot and repair, not other requests of the same identities, and not requests of other
// identities.
func TestSystemRequests(t *testing.T) {
	const (
		manager   = "system:kube-controller-manager"
		scheduler = "system:kube-scheduler"
		kubelet   = "system:node:a"
		accounts  = "system:serviceaccount:kube-system:"
	)
	masters, nodes := []string{"system:masters"}, []string{"system:nodes"}
	create, update, remove := admission.Create, admission.Update, admission.Delete
	for _, c := range []struct {
		name string
		asked
		passes bool
	}{
		{"token of a controller", asked{manager, nil, create, "", "serviceaccounts", "token", "kube-system", "resourcequota-controller"}, true},
		{"account of a controller", asked{manager, nil, create, "", "serviceaccounts", "", "kube-system", "x"}, true},
		{"token of a user's account", asked{manager, nil, create, "", "serviceaccounts", "token", "shop", "till"}, false},
		{"Secret by the controllers", asked{manager, nil, create, "", "secrets", "", "kube-system", "x"}, false},
		{"lease", asked{scheduler, nil, update, "coordination.k8s.io", "leases", "", "kube-system", "kube-scheduler"}, true},
		{"lease of a user", asked{scheduler, nil, update, "coordination.k8s.io", "leases", "", "shop", "x"}, false},
		{"binding", asked{scheduler, nil, create, "", "pods", "binding", "shop", "x"}, false},

		{"Node registers", asked{kubelet, nodes, create, "", "nodes", "", "", "a"}, true},
		{"Node is deleted by a kubelet", asked{kubelet, nodes, remove, "", "nodes", "", "", "a"}, false},
		{"Node reports", asked{kubelet, nodes, update, "", "nodes", "status", "", "a"}, true},
		{"heartbeat", asked{kubelet, nodes, update, "coordination.k8s.io", "leases", "", "kube-node-lease", "a"}, true},
		{"token of a pod", asked{kubelet, nodes, create, "", "serviceaccounts", "token", "shop", "till"}, true},
		{"mirror pod", asked{kubelet, nodes, create, "", "pods", "", "shop", "x"}, false},
		{"pod that has ended", asked{kubelet, nodes, remove, "", "pods", "", "shop", "x"}, true},
		{"named like a Node, without its group", asked{kubelet, nil, update, "", "nodes", "status", "", "a"}, false},

		{"pod range of a Node", asked{accounts + "node-controller", nil, update, "", "nodes", "", "", "a"}, true},
		{"Node of a removed machine", asked{accounts + "node-controller", nil, remove, "", "nodes", "", "", "a"}, true},
		{"deletion of a pod by the node controller", asked{accounts + "node-controller", nil, remove, "", "pods", "", "shop", "x"}, false},
		{"endpoints", asked{accounts + "endpointslice-controller", nil, create, "discovery.k8s.io", "endpointslices", "", "shop", "x"}, true},
		{"pod of a ReplicaSet", asked{accounts + "replicaset-controller", nil, create, "", "pods", "", "kube-system", "x"}, false},
		{"default account", asked{accounts + "service-account-controller", nil, create, "", "serviceaccounts", "", "shop", "default"}, true},
		{"another account", asked{accounts + "service-account-controller", nil, create, "", "serviceaccounts", "", "shop", "x"}, false},
		{"CA of a namespace", asked{accounts + "root-ca-cert-publisher", nil, update, "", "configmaps", "", "shop", "kube-root-ca.crt"}, true},
		{"another ConfigMap", asked{accounts + "root-ca-cert-publisher", nil, update, "", "configmaps", "", "shop", "x"}, false},
		{"account of a user's namespace", asked{"system:serviceaccount:shop:node-controller", nil, update, "", "nodes", "", "", "a"}, false},

		{"API server", asked{"system:apiserver", masters, create, "rbac.authorization.k8s.io", "clusterroles", "", "", "x"}, true},
		{"user with the name of the API server, without its group", asked{"system:apiserver", []string{"orlop:cluster-admins"}, create, "", "configmaps", "", "shop", "x"}, false},
		{"repair", asked{"orlop:break-glass", masters, remove, "apiregistration.k8s.io", "apiservices", "", "", "v1.x"}, true},
		{"repair that deletes a pod", asked{"orlop:break-glass", masters, remove, "", "pods", "", "shop", "x"}, false},
		{"repair by a user with this name, without the group", asked{"orlop:break-glass", nil, remove, "apiregistration.k8s.io", "apiservices", "", "", "v1.x"}, false},
		{"administrator", asked{"alice", []string{"orlop:cluster-admins"}, create, "", "configmaps", "", "kube-system", "x"}, false},
		{"administrator in system:masters", asked{"admin", masters, create, "", "configmaps", "", "kube-system", "x"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var reported []error
			p := exempting{refuses{admission.NewHandler(c.how)}, "", func(err error) { reported = append(reported, err) }}
			for _, got := range []error{p.Admit(t.Context(), c.attributes(), nil), p.Validate(t.Context(), c.attributes(), nil)} {
				if (got == nil) != c.passes {
					t.Errorf("%v, want that the request skips the plugin: %t", got, c.passes)
				}
			}
			if (len(reported) == 0) != c.passes {
				t.Errorf("the reported errors are %v", reported)
			}
			impersonated := context.WithValue(t.Context(), impersonating{}, new(string))
			if p.Admit(impersonated, c.attributes(), nil) == nil || p.Validate(impersonated, c.attributes(), nil) == nil {
				t.Error("a request of a caller who impersonates this identity skips the plugin")
			}
		})
	}
}

// TestThirdPartiesAreWrapped checks that exactly those of upstream's plugins are wrapped that call
// webhooks or apply policies. The wrapper of a plugin that neither changes nor checks objects
// accepts all.
func TestThirdPartiesAreWrapped(t *testing.T) {
	opts := options.NewServerRunOptions()
	exemptSystemRequests(opts, nil)
	generic := opts.Admission.GenericAdmission
	var wrapped []string
	for _, name := range generic.RecommendedPluginOrder {
		last := generic.Decorators[len(generic.Decorators)-1]
		if _, is := last.Decorate(refuses{}, name).(exempting); is {
			wrapped = append(wrapped, name)
		}
	}
	slices.Sort(wrapped)
	want := []string{"MutatingAdmissionPolicy", "MutatingAdmissionWebhook", "ValidatingAdmissionPolicy", "ValidatingAdmissionWebhook"}
	if !slices.Equal(wrapped, want) {
		t.Errorf("wrapped: %v, want %v", wrapped, want)
	}
	neither := exempting{admission.NewHandler(admission.Create), "", nil}
	attributes := asked{"alice", nil, admission.Create, "", "pods", "", "shop", "x"}.attributes()
	if neither.Admit(t.Context(), attributes, nil) != nil || neither.Validate(t.Context(), attributes, nil) != nil {
		t.Error("the wrapper of a plugin without the method Admit or Validate rejects an object")
	}
}

// TestMarkImpersonation checks that a request with the header for impersonation is marked in its
// context, where the mark stays when the header is removed.
func TestMarkImpersonation(t *testing.T) {
	for _, as := range []string{"", "system:apiserver"} {
		var marked bool
		h := markImpersonation(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			marked = r.Context().Value(impersonating{}) != nil
		}))
		r := httptest.NewRequest(http.MethodPost, "/api", nil)
		if as != "" {
			r.Header.Set("impersonate-user", as)
		}
		h.ServeHTTP(httptest.NewRecorder(), r)
		if marked != (as != "") {
			t.Errorf("with the header %q: marked %t", as, marked)
		}
	}
}

// sees is a fake plugin for validating policies, which records the user of a request.
type sees struct {
	*admission.Handler
	user *user.Info
}

func (s sees) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	*s.user = a.GetUserInfo()
	return nil
}

// TestImpersonator checks that policies see which client impersonates a user, and that a client
// cannot forge this information.
func TestImpersonator(t *testing.T) {
	const forged = "orlop:addons"
	for _, c := range []struct {
		name  string
		as    string
		extra map[string][]string // of the user after the filters
		want  map[string][]string
	}{
		{"no impersonation", "", nil, nil},
		{"other fields", "", map[string][]string{"scopes": {"a"}}, map[string][]string{"scopes": {"a"}}},
		{"forged by a token", "", map[string][]string{impersonatorKey: {forged}, "scopes": {"a"}}, map[string][]string{"scopes": {"a"}}},
		{"impersonates", "bob", nil, map[string][]string{impersonatorKey: {"alice"}}},
		{"impersonates with a forged header", "bob", map[string][]string{impersonatorKey: {forged}}, map[string][]string{impersonatorKey: {"alice"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var seen user.Info
			authenticate := recordImpersonator(authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
				return &authenticator.Response{User: &user.DefaultInfo{Name: "alice"}}, true, nil
			}))
			chain := markImpersonation(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				if _, _, err := authenticate.AuthenticateRequest(r); err != nil {
					t.Fatal(err)
				}
				a := admission.NewAttributesRecord(nil, nil, schema.GroupVersionKind{}, "", "x", schema.GroupVersionResource{Resource: "secrets"}, "", admission.Delete, nil, false,
					&user.DefaultInfo{Name: "bob", Groups: []string{"g"}, Extra: c.extra})
				p := exempting{sees{admission.NewHandler(admission.Delete), &seen}, "ValidatingAdmissionPolicy", nil}
				if err := p.Validate(r.Context(), a, nil); err != nil {
					t.Error(err)
				}
			}))
			r := httptest.NewRequest(http.MethodDelete, "/api", nil)
			if c.as != "" {
				r.Header.Set("Impersonate-User", c.as)
			}
			chain.ServeHTTP(httptest.NewRecorder(), r)
			if got := seen.GetExtra(); !maps.EqualFunc(got, c.want, slices.Equal) || seen.GetName() != "bob" || !slices.Equal(seen.GetGroups(), []string{"g"}) {
				t.Errorf("a policy sees %+v, want the extra fields %v", seen, c.want)
			}
		})
	}
}
