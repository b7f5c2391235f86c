package extensions

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/orlop-os/orlop/pkg/service/notify"
)

// TestParse parses the errors in upstream's form.
func TestParse(t *testing.T) {
	for _, c := range []struct {
		text string
		want refusal
	}{
		{`Internal error occurred: failed calling webhook "a.example.org": failed to call webhook: Post "https://x.y.svc:443/?timeout=10s": dial tcp 10.96.1.2:443: connect: connection refused`,
			refusal{webhook: "a.example.org", failed: true, why: `failed to call webhook: Post "https://x.y.svc:443/?timeout=10s": dial tcp 10.96.1.2:443: connect: connection refused`}},
		{`admission webhook "b.example.org" denied the request: no accounts here`, refusal{webhook: "b.example.org", why: "no accounts here"}},
		{`admission webhook "b.example.org" denied the request without explanation`, refusal{webhook: "b.example.org", why: "without explanation"}},
		{"serviceaccounts \"x\" is forbidden: ValidatingAdmissionPolicy 'frozen' with binding 'frozen-all' denied request: kube-system\nis frozen",
			refusal{policy: "frozen", binding: "frozen-all", why: "kube-system is frozen"}},
		{`policy 'set' with binding 'set-all' denied request: expression failed`, refusal{policy: "set", binding: "set-all", mutates: true, why: "expression failed"}},
		{`policy "set" denied request: no such field`, refusal{policy: "set", mutates: true, why: "no such field"}},
		{`x is forbidden: ValidatingAdmissionPolicy 'frozen' denied request: no such field`, refusal{policy: "frozen", why: "no such field"}},
		{`serviceaccounts is forbidden: User "x" cannot create resource`, refusal{}},
		{`admission webhook "c" does not support dry run`, refusal{}},
		{"", refusal{}},
	} {
		if got := parse(c.text); got != c.want {
			t.Errorf("%q:\n%+v, want\n%+v", c.text, got, c.want)
		}
	}
}

func TestRefusals(t *testing.T) {
	var r RejectionLog
	r.Note(errors.New(`failed calling webhook "a": refused`))
	// Webhook b works, because it denies the request.
	r.Note(errors.New(`admission webhook "b" denied the request: no`))
	if got := r.recent(time.Now()); len(got) != 1 || got["a"] != "refused" {
		t.Errorf("%v", got)
	}
	if got := r.recent(time.Now().Add(retention + time.Second)); len(got) != 0 {
		t.Errorf("after the retention: %v", got)
	}
	for i := range 2 * maxRetained {
		r.Note(fmt.Errorf("failed calling webhook %q: refused", fmt.Sprint(i)))
	}
	if got := r.recent(time.Now()); len(got) != maxRetained {
		t.Errorf("the log retains %d webhooks", len(got))
	}
}

// TestJudge checks the obstacles that judge finds: the object, the reason, and the arguments with
// which `orlopctl kubernetes suspend` suspends the object.
func TestJudge(t *testing.T) {
	dead, alive := backend{namespace: "a", name: "dead", port: 443}, backend{url: "https://alive"}
	reach := func(b backend) string {
		if b == dead {
			return "Service a/dead has no ready endpoints"
		}
		return ""
	}
	const validating, mutating = "ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"
	for _, c := range []struct {
		name        string
		seen        observation
		failed      map[string]string
		refused     refusal
		unconverted map[string]string
		want        []obstacle
	}{
		{name: "nothing", seen: observation{webhooks: []webhook{{validating, "v", "w", true, alive}}, services: []apiService{{"v1.x", ""}}, terminating: []namespace{{"a", ""}}}},
		{name: "fail-closed", seen: observation{webhooks: []webhook{{validating, "v", "w", true, dead}, {validating, "v", "w2", true, dead}}}, want: []obstacle{
			{validating + " v", "webhook w rejects all requests in its scope, because it cannot be called: Service a/dead has no ready endpoints", "validatingwebhookconfiguration v"},
		}},
		{name: "fail-open", seen: observation{webhooks: []webhook{{mutating, "m", "w", false, dead}}}, failed: map[string]string{"w": "refused"}},
		{name: "accepts connections, but fails calls", seen: observation{webhooks: []webhook{{mutating, "m", "w", true, alive}}}, failed: map[string]string{"w": "x509: unknown authority"}, want: []obstacle{
			{mutating + " m", "webhook w rejects all requests in its scope, because it cannot be called: x509: unknown authority", "mutatingwebhookconfiguration m"},
		}},
		{name: "rejects requests of the system", seen: observation{webhooks: []webhook{{validating, "v", "w", true, alive}}}, refused: refusal{webhook: "w", why: "no"}, want: []obstacle{
			{validating + " v", "webhook w rejects requests of the system in kube-system: no", "validatingwebhookconfiguration v"},
		}},
		{name: "policy", seen: observation{bindings: true}, refused: refusal{policy: "p", binding: "b", why: "frozen"}, want: []obstacle{
			{"ValidatingAdmissionPolicyBinding b", "policy p rejects requests of the system in kube-system: frozen", "validatingadmissionpolicybinding b"},
		}},
		{name: "converter", seen: observation{conversions: []conversion{{"x.example.org", dead, nil}, {"y.example.org", alive, nil}}}, want: []obstacle{
			{"CustomResourceDefinition x.example.org", "its objects cannot be read, because its converter cannot be called: Service a/dead has no ready endpoints", "customresourcedefinition x.example.org"},
		}},
		{name: "converter that fails calls", seen: observation{conversions: []conversion{{"x.example.org", alive, nil}, {"y.example.org", alive, nil}}}, unconverted: map[string]string{"y.example.org": "x509: unknown authority", "gone": "no"}, want: []obstacle{
			{"CustomResourceDefinition y.example.org", "its objects cannot be read, because its converter cannot be called: x509: unknown authority", "customresourcedefinition y.example.org"},
		}},
		{name: "sealed policy", seen: observation{bindings: true}, refused: refusal{policy: "p.static.k8s.io", binding: "b.static.k8s.io", why: "frozen"}, want: []obstacle{
			{"ValidatingAdmissionPolicyBinding b.static.k8s.io", "policy p.static.k8s.io of Cluster.spec.kubernetes.sealedPolicies rejects requests of the system in kube-system: frozen", ""},
		}},
		{name: "mutating policy", seen: observation{bindings: true}, refused: refusal{policy: "p", binding: "b", mutates: true, why: "no"}, want: []obstacle{
			{"MutatingAdmissionPolicyBinding b", "policy p rejects requests of the system in kube-system: no", "mutatingadmissionpolicybinding b"},
		}},
		{name: "policy that cannot be evaluated", seen: observation{bindings: true}, refused: refusal{policy: "p", why: "no such field"}, want: []obstacle{
			{"ValidatingAdmissionPolicy p", "policy p rejects requests of the system in kube-system: no such field", "validatingadmissionpolicy p"},
		}},
		{name: "mutating policy that cannot be evaluated", seen: observation{bindings: true}, refused: refusal{policy: "p", mutates: true, why: "no such field"}, want: []obstacle{
			{"MutatingAdmissionPolicy p", "policy p rejects requests of the system in kube-system: no such field", "mutatingadmissionpolicy p"},
		}},
		{name: "a level without seats", seen: observation{services: []apiService{{"v1.x", "no"}}, throttled: []throttle{{who: "kubelets", schema: "all", level: "none"}, {who: "admins", schema: "all", level: "none"}}}, want: []obstacle{
			{"FlowSchema all", "requests of admins, kubelets get 429 (Too Many Requests), because their priority level has no seat for them", "flowschema all"},
			{"APIService v1.x", "it cannot be reached: no", "apiservice v1.x"},
		}},
		{name: "a level of Kubernetes without seats", seen: observation{throttled: []throttle{{who: "kubelets", schema: "system-nodes", level: "system", ownSchema: true}}}, want: []obstacle{
			{"PriorityLevelConfiguration system", "requests of kubelets get 429 (Too Many Requests), because their priority level has no seat for them", "prioritylevelconfiguration system"},
		}},
		{name: "a level of Kubernetes with too many requests", seen: observation{throttled: []throttle{{who: "kubelets", schema: "system-nodes", level: "system", ownSchema: true, ownLevel: true}}}},
		{name: "an object that rejects requests comes first", seen: observation{services: []apiService{{"v1.x", "no"}}, bindings: true}, refused: refusal{policy: "p", binding: "b", why: "no"}, want: []obstacle{
			{"ValidatingAdmissionPolicyBinding b", "policy p rejects requests of the system in kube-system: no", "validatingadmissionpolicybinding b"},
			{"APIService v1.x", "it cannot be reached: no", "apiservice v1.x"},
		}},
		{name: "API service, and the namespaces that it keeps in Terminating", seen: observation{
			services:    []apiService{{"v1.dead.example.org", "FailedDiscoveryCheck: no"}},
			terminating: []namespace{{"e", "Discovery failed"}, {"a", "Discovery failed"}, {"d", "Discovery failed"}, {"b", "Discovery failed"}, {"c", "finalizers"}},
		}, want: []obstacle{
			{"APIService v1.dead.example.org", "it cannot be reached: FailedDiscoveryCheck: no", "apiservice v1.dead.example.org"},
			{"Namespaces a, b, d and 1 more", "stays Terminating: Discovery failed", ""},
			{"Namespace c", "stays Terminating: finalizers", ""},
		}},
	} {
		if got := judge(c.seen, reach, calls{c.failed, c.refused, c.unconverted}); !slices.Equal(got, c.want) {
			t.Errorf("%s:\n%+v, want\n%+v", c.name, got, c.want)
		}
	}
}

// TestLasting checks that an obstacle is reported only if it still exists 10 s later. 10 s pass
// between two cases.
func TestLasting(t *testing.T) {
	a, b := obstacle{object: "A"}, obstacle{object: "B"}
	first, at := map[string]time.Time{}, time.Unix(0, 0)
	for i, c := range []struct{ now, want []obstacle }{
		{[]obstacle{a}, nil},
		{[]obstacle{a, b}, []obstacle{a}},
		{[]obstacle{b}, []obstacle{b}},
		{[]obstacle{a, b}, []obstacle{b}},
	} {
		if got := lasting(c.now, first, at, 10*time.Second); !slices.Equal(got, c.want) {
			t.Errorf("pass %d: %v, want %v", i, got, c.want)
		}
		at = at.Add(10 * time.Second)
	}
}

// TestText checks that the text about any number of obstacles fits into an announcement, and that
// it names the first objects.
func TestText(t *testing.T) {
	if got := text(nil); got != "" {
		t.Error(got)
	}
	two := []obstacle{{"APIService v1.x", "it cannot be reached: no", "apiservice v1.x"}, {"Namespace a", "stays Terminating", ""}}
	if got, want := text(two), "APIService v1.x: it cannot be reached: no; Namespace a: stays Terminating; suspend an object with `orlopctl kubernetes suspend`"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	four := []obstacle{
		{"ValidatingAdmissionPolicyBinding frozen", strings.Repeat("x", 200), "x"}, {"ValidatingWebhookConfiguration dead", strings.Repeat("x", 200), "x"},
		{"APIService v1.dead.example.org", strings.Repeat("x", 200), "x"}, {"CustomResourceDefinition things.example.org", strings.Repeat("x", 200), "x"},
	}
	for _, o := range four {
		if got := text(four); !strings.Contains(got, o.object+": xxx") {
			t.Errorf("%s is not in: %s", o.object, got)
		}
	}
	var many []obstacle
	for i := range 40 {
		many = append(many, obstacle{fmt.Sprintf("APIService v1.%02d.example.org", i), strings.Repeat("x", 300), "apiservice"})
	}
	got := text(many)
	const limit = 500 - len("problem: ") // pkg/service/notify
	if len(got) > limit || !strings.HasPrefix(got, many[0].object) || !strings.Contains(got, "more") || !strings.HasSuffix(got, "suspend an object with `orlopctl kubernetes suspend`") {
		t.Errorf("%d bytes: %s", len(got), got)
	}
	if w := notify.NewWriter(new(strings.Builder)); w.Send(Name, true, got) != nil {
		t.Error("the text is too long for an announcement")
	}
}

// TestReach checks the problems of a backend. A function replaces the connections: it accepts the
// addresses in open.
func TestReach(t *testing.T) {
	service := func(name string, kind corev1.ServiceType, port string) runtime.Object {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "a"}, Spec: corev1.ServiceSpec{
			Type: kind, ExternalName: "outside.example.org", Ports: []corev1.ServicePort{{Name: port, Port: 443}},
		}}
	}
	slice := func(service, port string, ready bool, addresses ...string) runtime.Object {
		return &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Name: service, Namespace: "a", Labels: map[string]string{discoveryv1.LabelServiceName: service}},
			Ports:      []discoveryv1.EndpointPort{{Name: &port, Port: new(int32(9443))}},
			Endpoints:  []discoveryv1.Endpoint{{Addresses: addresses, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}},
		}
	}
	client := fake.NewClientset(
		service("works", corev1.ServiceTypeClusterIP, "https"), slice("works", "https", true, "192.0.2.1", "fd00::1"),
		service("unready", corev1.ServiceTypeClusterIP, ""), slice("unready", "", false, "192.0.2.1"),
		service("refuses", corev1.ServiceTypeClusterIP, ""), slice("refuses", "", true, "192.0.2.2"),
		service("empty", corev1.ServiceTypeClusterIP, ""), service("outside", corev1.ServiceTypeExternalName, ""),
	)
	open := map[string]bool{"[fd00::1]:9443": true, "outside.example.org:443": true, "hook.example.org:8443": true}
	r := reacher{client, func(_ context.Context, address string) error {
		if open[address] {
			return nil
		}
		return fmt.Errorf("dial %s: refused", address)
	}}
	for _, c := range []struct {
		backend
		want string
	}{
		{backend{namespace: "a", name: "works", port: 443}, ""},
		{backend{namespace: "a", name: "works", port: 8443}, "Service a/works has no port 8443"},
		{backend{namespace: "a", name: "unready", port: 443}, "Service a/unready has no ready endpoints"},
		{backend{namespace: "a", name: "empty", port: 443}, "Service a/empty has no ready endpoints"},
		{backend{namespace: "a", name: "refuses", port: 443}, "Service a/refuses: dial 192.0.2.2:9443: refused"},
		{backend{namespace: "a", name: "gone", port: 443}, "no Service a/gone"},
		{backend{namespace: "a", name: "outside", port: 443}, ""},
		{backend{url: "https://hook.example.org:8443/x"}, ""},
		{backend{url: "https://hook.example.org/x"}, "dial hook.example.org:443: refused"},
		{backend{url: "https:///x"}, "its URL has no host"},
		{backend{}, "it names neither a Service nor a URL"},
	} {
		if got := r.reach(t.Context(), c.backend); got != c.want {
			t.Errorf("%+v: %q, want %q", c.backend, got, c.want)
		}
	}
}
