package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	registration "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"

	"github.com/orlop-os/orlop/orchestrator/bootstrap"
	"github.com/orlop-os/orlop/orchestrator/breakglass"
	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/extensions"
	"github.com/orlop-os/orlop/pkg/kernel/rtnl/rtnltest"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/service/notify"
)

// controllersWork are the components of the process "controllers" that must work in spite of any
// object of a user.
var controllersWork = []string{"node-ipam", "namespaces", "kube-controller-manager", "kube-scheduler", "local-volumes", "metrics", "addons", "node-taints"}

// TestBrokenExtensions breaks a cluster in each way in which users' objects can, and restarts the
// processes. It checks that they become ready and name the objects, that the objects still apply to
// the requests of other clients, and that an administrator can repair the cluster.
func TestBrokenExtensions(t *testing.T) {
	if !rtnltest.Isolate(t) {
		return
	}
	spec := testSpec()
	network(t, spec.Node.IPs[0].String()+"/24")
	m := prepare(t, spec)
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
	defer cancel()
	zero := time.Now()
	api, controllers := m.start(t, component.API, zero), m.start(t, component.Controllers, zero)
	api.waitReady(t, time.Minute, "etcd", "kube-apiserver", "bootstrap", "extensions")
	controllers.waitReady(t, time.Minute, controllersWork...)
	admin := m.client(t, "admin", "orlop:cluster-admins")
	if _, err := admin.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: spec.Node.Name}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Run("deleted objects are created again", func(t *testing.T) { comesBack(ctx, t, m, admin) })

	breakAll(ctx, t, m, admin)
	named := []string{"APIService v1.dead.example.org", "CustomResourceDefinition things.example.org", "ValidatingWebhookConfiguration dead"}
	api.waitDetail(t, 2*time.Minute, extensions.Name, append(named, nodespec.ProblemPrefix)...)
	for _, p := range []*started{controllers, api} {
		if err := p.stop(t, time.Minute); err != nil {
			t.Errorf("ended with: %v", err)
		}
	}

	zero = time.Now()
	api, controllers = m.start(t, component.API, zero), m.start(t, component.Controllers, zero)
	api.waitReady(t, time.Minute, "etcd", "kube-apiserver", "bootstrap", "extensions")
	controllers.waitReady(t, 90*time.Second, controllersWork...)
	api.waitDetail(t, 2*time.Minute, extensions.Name, named...)

	_, err := admin.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, metav1.CreateOptions{})
	if err == nil || !strings.Contains(err.Error(), "failed calling webhook") {
		t.Errorf("an administrator's request does not reach the webhook: %v", err)
	}
	_, err = m.acting(t, "system:apiserver", "system:masters").CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, metav1.CreateOptions{})
	if err == nil || !strings.Contains(err.Error(), "failed calling webhook") {
		t.Errorf("a client that impersonates the API server bypasses the webhook: %v", err)
	}

	m.suspend(ctx, t, "validatingwebhookconfiguration", "dead")
	m.suspend(ctx, t, "apiservice", "v1.dead.example.org")
	m.suspend(ctx, t, "customresourcedefinition", "things.example.org")
	// Now only the policy rejects requests. The policy also applies to the system's requests in
	// kube-system.
	api.waitDetail(t, 2*time.Minute, extensions.Name, "ValidatingAdmissionPolicyBinding frozen")
	m.suspend(ctx, t, "validatingadmissionpolicybinding", "frozen")
	api.waitState(t, 2*time.Minute, extensions.Name, func(msg notify.Message) bool { return msg.Detail == "" })
	if _, err := admin.CoreV1().ConfigMaps("kube-system").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, metav1.CreateOptions{}); err != nil {
		t.Errorf("after the repair: %v", err)
	}
	healthy := func() {
		api.waitState(t, 2*time.Minute, extensions.Name, func(msg notify.Message) bool { return msg.Detail == "" })
	}
	t.Run("no seats", func(t *testing.T) { noSeats(ctx, t, m, admin, api, healthy) })
	t.Run("mutating policy", func(t *testing.T) { mutatingPolicy(ctx, t, m, admin, api, healthy) })
	t.Run("untrusted converter", func(t *testing.T) { untrustedConverter(ctx, t, m, api, healthy) })
	t.Run("controller manager ends", func(t *testing.T) { managerEnds(ctx, t, controllers) })
	if err := controllers.stop(t, time.Minute); err != nil {
		t.Errorf("controllers ended with: %v", err)
	}
	if err := api.stop(t, time.Minute); err != nil {
		t.Errorf("api ended with: %v", err)
	}
}

// breakAll creates an object of each kind that blocks requests. The policy and then the webhook are
// the last two objects.
func breakAll(ctx context.Context, t *testing.T, m machine, admin kubernetes.Interface) {
	t.Helper()
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	config := m.config(t, "admin", "orlop:cluster-admins")
	apis, err := registration.NewForConfig(config)
	must(apis, err)
	must(apis.APIServices().Create(ctx, &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: "v1.dead.example.org"},
		Spec: apiregistrationv1.APIServiceSpec{
			Group: "dead.example.org", Version: "v1", GroupPriorityMinimum: 100, VersionPriority: 100, InsecureSkipTLSVerify: true,
			Service: &apiregistrationv1.ServiceReference{Namespace: "default", Name: "dead"},
		},
	}, metav1.CreateOptions{}))
	definitions, err := apiextensions.NewForConfig(config)
	must(definitions, err)
	must(definitions.ApiextensionsV1().CustomResourceDefinitions().Create(ctx, deadDefinition(), metav1.CreateOptions{}))
	all := []admissionv1.RuleWithOperations{{
		Operations: []admissionv1.OperationType{admissionv1.OperationAll},
		Rule:       admissionv1.Rule{APIGroups: []string{"*"}, APIVersions: []string{"*"}, Resources: []string{"*/*"}},
	}}
	policies := admin.AdmissionregistrationV1()
	must(policies.ValidatingAdmissionPolicies().Create(ctx, &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "frozen"},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: all[0]}}},
			Validations:      []admissionv1.Validation{{Expression: "false", Message: "kube-system is frozen"}},
		},
	}, metav1.CreateOptions{}))
	must(policies.ValidatingAdmissionPolicyBindings().Create(ctx, &admissionv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "frozen"},
		Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: "frozen", ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
			MatchResources: &admissionv1.MatchResources{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: "kube-system"}}},
		},
	}, metav1.CreateOptions{}))
	must(policies.ValidatingWebhookConfigurations().Create(ctx, &admissionv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "dead"},
		Webhooks: []admissionv1.ValidatingWebhook{{
			Name: "dead.example.org", Rules: all, FailurePolicy: new(admissionv1.Fail), SideEffects: new(admissionv1.SideEffectClassNone),
			AdmissionReviewVersions: []string{"v1"}, TimeoutSeconds: new(int32(2)),
			ClientConfig: admissionv1.WebhookClientConfig{Service: &admissionv1.ServiceReference{Namespace: "default", Name: "dead"}},
		}},
	}, metav1.CreateOptions{}))
}

// deadDefinition is a kind of two versions with a converter that does not answer.
func deadDefinition() *apiextensionsv1.CustomResourceDefinition {
	version := func(name string, stored bool) apiextensionsv1.CustomResourceDefinitionVersion {
		return apiextensionsv1.CustomResourceDefinitionVersion{Name: name, Served: true, Storage: stored, Schema: &apiextensionsv1.CustomResourceValidation{
			OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object"},
		}}
	}
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "things.example.org"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "example.org", Scope: apiextensionsv1.NamespaceScoped, Versions: []apiextensionsv1.CustomResourceDefinitionVersion{version("v1", true), version("v2", false)},
			Names: apiextensionsv1.CustomResourceDefinitionNames{Kind: "Thing", Plural: "things"},
			Conversion: &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.WebhookConverter, Webhook: &apiextensionsv1.WebhookConversion{
				ConversionReviewVersions: []string{"v1"},
				ClientConfig:             &apiextensionsv1.WebhookClientConfig{Service: &apiextensionsv1.ServiceReference{Namespace: "default", Name: "dead"}},
			}},
		},
	}
}

// createSeatless sends the requests of all clients to a priority level without seats.
func createSeatless(ctx context.Context, t *testing.T, admin kubernetes.Interface) *flowcontrolv1.PriorityLevelConfiguration {
	t.Helper()
	flows := admin.FlowcontrolV1()
	level := &flowcontrolv1.PriorityLevelConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "seatless"}, Spec: flowcontrolv1.PriorityLevelConfigurationSpec{
		Type: flowcontrolv1.PriorityLevelEnablementLimited,
		Limited: &flowcontrolv1.LimitedPriorityLevelConfiguration{
			NominalConcurrencyShares: new(int32(0)), BorrowingLimitPercent: new(int32(0)), LimitResponse: flowcontrolv1.LimitResponse{Type: flowcontrolv1.LimitResponseTypeReject},
		},
	}}
	if _, err := flows.PriorityLevelConfigurations().Create(ctx, level, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := flows.FlowSchemas().Create(ctx, &flowcontrolv1.FlowSchema{ObjectMeta: metav1.ObjectMeta{Name: "everyone"}, Spec: flowcontrolv1.FlowSchemaSpec{
		PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{Name: level.Name}, MatchingPrecedence: 2,
		Rules: []flowcontrolv1.PolicyRulesWithSubjects{{
			Subjects:      []flowcontrolv1.Subject{{Kind: flowcontrolv1.SubjectKindGroup, Group: &flowcontrolv1.GroupSubject{Name: "system:authenticated"}}},
			ResourceRules: []flowcontrolv1.ResourcePolicyRule{{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}, ClusterScope: true, Namespaces: []string{"*"}}},
		}},
	}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return level
}

// noSeats takes all seats from the system: first with a FlowSchema, then with a priority level of
// Kubernetes.
func noSeats(ctx context.Context, t *testing.T, m machine, admin kubernetes.Interface, api *started, healthy func()) {
	flows, level := admin.FlowcontrolV1(), createSeatless(ctx, t, admin)
	api.waitDetail(t, 2*time.Minute, extensions.Name, nodespec.ProblemPrefix+"FlowSchema everyone: requests of admins, kubelets, the controller manager, the scheduler get 429")
	m.suspend(ctx, t, "flowschema", "everyone")
	healthy()
	// a priority level of Kubernetes itself, which an administrator has changed
	own, err := flows.PriorityLevelConfigurations().Get(ctx, "node-high", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	own.Annotations[flowcontrolv1.AutoUpdateAnnotationKey] = "false"
	own.Spec.Limited = level.Spec.Limited
	if _, err := flows.PriorityLevelConfigurations().Update(ctx, own, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	api.waitDetail(t, 2*time.Minute, extensions.Name, nodespec.ProblemPrefix+"PriorityLevelConfiguration node-high: requests of kubelets get 429")
	m.suspend(ctx, t, "prioritylevelconfiguration", "node-high")
	healthy()
	m.suspend(ctx, t, "prioritylevelconfiguration", level.Name)
}

// TestSeatlessBoot starts the processes of a cluster in which a FlowSchema leaves no seat to any
// client. It checks that the API server becomes ready and names the FlowSchema, and that the
// controllers become ready after the suspension of the FlowSchema.
func TestSeatlessBoot(t *testing.T) {
	if !rtnltest.Isolate(t) {
		return
	}
	spec := testSpec()
	network(t, spec.Node.IPs[0].String()+"/24")
	m := prepare(t, spec)
	ctx, cancel := context.WithTimeout(context.Background(), 8*time.Minute)
	defer cancel()
	api := m.start(t, component.API, time.Now())
	api.waitReady(t, time.Minute, "etcd", "kube-apiserver", "bootstrap", "extensions")
	createSeatless(ctx, t, m.client(t, "admin", "orlop:cluster-admins"))
	if err := api.stop(t, time.Minute); err != nil {
		t.Errorf("ended with: %v", err)
	}
	zero := time.Now()
	api, controllers := m.start(t, component.API, zero), m.start(t, component.Controllers, zero)
	api.waitReady(t, time.Minute, "etcd", "kube-apiserver", "bootstrap", "extensions")
	api.waitDetail(t, 2*time.Minute, extensions.Name, nodespec.ProblemPrefix+"FlowSchema everyone")
	controllers.mu.Lock()
	t.Logf("the controllers before the suspension: %+v", controllers.states)
	controllers.mu.Unlock()
	m.suspend(ctx, t, "flowschema", "everyone")
	controllers.waitReady(t, 2*time.Minute, controllersWork...)
	for _, p := range []*started{controllers, api} {
		if err := p.stop(t, time.Minute); err != nil {
			t.Errorf("ended with: %v", err)
		}
	}
}

// mutatingPolicy creates a policy that cannot be evaluated for the service accounts of kube-system.
func mutatingPolicy(ctx context.Context, t *testing.T, m machine, admin kubernetes.Interface, api *started, healthy func()) {
	policies := admin.AdmissionregistrationV1()
	if _, err := policies.MutatingAdmissionPolicies().Create(ctx, &admissionv1.MutatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "labels"},
		Spec: admissionv1.MutatingAdmissionPolicySpec{
			MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
				Operations: []admissionv1.OperationType{admissionv1.Create},
				Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"serviceaccounts"}},
			}}}},
			FailurePolicy: new(admissionv1.Fail), ReinvocationPolicy: admissionv1.NeverReinvocationPolicy,
			Mutations: []admissionv1.Mutation{{PatchType: admissionv1.PatchTypeApplyConfiguration, ApplyConfiguration: &admissionv1.ApplyConfiguration{
				Expression: `Object{metadata: Object.metadata{labels: {"team": object.metadata.labels["owner"]}}}`,
			}}},
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := policies.MutatingAdmissionPolicyBindings().Create(ctx, &admissionv1.MutatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "labels-all"}, Spec: admissionv1.MutatingAdmissionPolicyBindingSpec{PolicyName: "labels"},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	api.waitDetail(t, 3*time.Minute, extensions.Name, nodespec.ProblemPrefix+"MutatingAdmissionPolicyBinding labels-all: policy labels rejects requests of the system")
	m.suspend(ctx, t, "mutatingadmissionpolicybinding", "labels-all")
	healthy()
	m.suspend(ctx, t, "mutatingadmissionpolicy", "labels")
}

// untrustedConverter creates a definition with a converter that accepts connections, but has a
// certificate that the API server does not trust.
func untrustedConverter(ctx context.Context, t *testing.T, m machine, api *started, healthy func()) {
	converter := httptest.NewTLSServer(http.NotFoundHandler())
	defer converter.Close()
	config := m.config(t, "admin", "orlop:cluster-admins")
	definitions, err := apiextensions.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	d := deadDefinition()
	d.Name, d.Spec.Names = "others.example.org", apiextensionsv1.CustomResourceDefinitionNames{Kind: "Other", Plural: "others"}
	d.Spec.Conversion.Webhook.ClientConfig = &apiextensionsv1.WebhookClientConfig{URL: new(converter.URL + "/convert"), CABundle: m.ca.CertPEM()}
	if _, err := definitions.ApiextensionsV1().CustomResourceDefinitions().Create(ctx, d, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	objects := dynamic.NewForConfigOrDie(config).Resource(schema.GroupVersionResource{Group: "example.org", Version: "v1", Resource: "others"}).Namespace("default")
	object := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.org/v1", "kind": "Other", "metadata": map[string]any{"name": "one"}}}
	err = wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		_, err := objects.Create(ctx, object, metav1.CreateOptions{})
		return err == nil || apierrors.IsAlreadyExists(err), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	api.waitDetail(t, 3*time.Minute, extensions.Name, nodespec.ProblemPrefix+"CustomResourceDefinition others.example.org", "its converter cannot be called", "tls: failed to verify")
	m.suspend(ctx, t, "customresourcedefinition", "others.example.org")
	healthy()
}

// comesBack deletes built-in objects of the cluster, and waits until they are created again.
func comesBack(ctx context.Context, t *testing.T, m machine, admin kubernetes.Interface) {
	apis, err := registration.NewForConfig(m.config(t, "admin", "orlop:cluster-admins"))
	if err != nil {
		t.Fatal(err)
	}
	roles, classes, services := admin.RbacV1().ClusterRoles(), admin.StorageV1().StorageClasses(), admin.CoreV1().Services("kube-system")
	for _, c := range []struct {
		name   string
		get    func(context.Context) (metav1.Object, error)
		delete func() error
	}{
		{"metrics API", func(ctx context.Context) (metav1.Object, error) {
			return apis.APIServices().Get(ctx, bootstrap.MetricsAPI, metav1.GetOptions{})
		}, func() error {
			return apis.APIServices().Delete(ctx, bootstrap.MetricsAPI, metav1.DeleteOptions{})
		}},
		{"Service of the DNS", func(ctx context.Context) (metav1.Object, error) {
			return services.Get(ctx, bootstrap.DNSService, metav1.GetOptions{})
		}, func() error { return services.Delete(ctx, bootstrap.DNSService, metav1.DeleteOptions{}) }},
		{"class of volumes", func(ctx context.Context) (metav1.Object, error) {
			return classes.Get(ctx, bootstrap.LocalClass, metav1.GetOptions{})
		}, func() error { return classes.Delete(ctx, bootstrap.LocalClass, metav1.DeleteOptions{}) }},
		{"own role", func(ctx context.Context) (metav1.Object, error) {
			return roles.Get(ctx, "orlop:metrics", metav1.GetOptions{})
		}, func() error { return roles.Delete(ctx, "orlop:metrics", metav1.DeleteOptions{}) }},
		{"upstream's role", func(ctx context.Context) (metav1.Object, error) {
			return roles.Get(ctx, "system:node", metav1.GetOptions{})
		}, func() error { return roles.Delete(ctx, "system:node", metav1.DeleteOptions{}) }},
	} {
		before, err := c.get(ctx)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if err := c.delete(); err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		err = wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
			after, err := c.get(ctx)
			if apierrors.IsNotFound(err) {
				return false, nil
			}
			return err == nil && after.GetUID() != before.GetUID(), err
		})
		if err != nil {
			t.Errorf("%s: is not created again: %v", c.name, err)
		}
	}
}

// managerEnds kills the process of the controller manager, and checks that it restarts while the
// other components continue.
func managerEnds(ctx context.Context, t *testing.T, controllers *started) {
	child := onlyChild(t, controllers.cmd.Process.Pid)
	t.Logf("controllers: %s", controllers.usage(t))
	if status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", child.Pid)); err == nil {
		_, anonymous, _ := strings.Cut(string(status), "RssAnon:")
		t.Logf("controller manager: anonymous memory %s", strings.TrimSpace(anonymous[:strings.IndexByte(anonymous, '\n')]))
	}
	if err := child.Kill(); err != nil {
		t.Fatal(err)
	}
	controllers.waitState(t, time.Minute, "kube-controller-manager", func(m notify.Message) bool { return strings.Contains(m.Detail, "it restarts in") })
	controllers.waitState(t, time.Minute, "kube-controller-manager", func(m notify.Message) bool { return m.Ready && m.Detail == "" })
	controllers.mu.Lock()
	defer controllers.mu.Unlock()
	if controllers.done {
		t.Error("the process of the controllers has ended")
	}
}

// suspend performs the steps by which a machine handles Cluster.Suspend.
func (m machine) suspend(ctx context.Context, t *testing.T, kind, name string) {
	t.Helper()
	leaf, err := m.ca.Issue(pki.Spec{CN: nodespec.BreakGlassUser, O: []string{"system:masters"}, Usage: pki.Client, TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	order := nodespec.SuspendRequest{Action: nodespec.SuspendRead, Kind: kind, Name: name, Cert: leaf.CertPEM(), Key: leaf.KeyPEM()}
	client, err := breakglass.Client(m.dirs, order)
	if err != nil {
		t.Fatal(err)
	}
	read, err := breakglass.Run(ctx, client, order)
	if err != nil {
		t.Fatalf("%s %s: %v", kind, name, err)
	}
	if !json.Valid(read.Object) {
		t.Errorf("%s %s: the copy is no valid JSON: %s", kind, name, read.Object)
	}
	order.Action, order.UID = nodespec.SuspendRemove, read.UID
	if _, err := breakglass.Run(ctx, client, order); err != nil {
		t.Fatalf("%s %s: %v", kind, name, err)
	}
}

// acting returns a client of an administrator that impersonates a user.
func (m machine) acting(t *testing.T, who string, groups ...string) kubernetes.Interface {
	t.Helper()
	config := m.config(t, "admin", "system:masters")
	config.Impersonate = rest.ImpersonationConfig{UserName: who, Groups: groups}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// waitState waits until good is true for the last announcement of a component.
func (p *started) waitState(t *testing.T, deadline time.Duration, name string, good func(notify.Message) bool) {
	t.Helper()
	late := time.AfterFunc(deadline, func() { p.cond.Broadcast() })
	defer late.Stop()
	end := time.Now().Add(deadline)
	p.mu.Lock()
	defer p.mu.Unlock()
	for !good(p.states[name]) {
		if p.done || time.Now().After(end) {
			t.Fatalf("%s is not as wanted after %s (ended: %t): %+v", name, deadline, p.done, p.states[name])
		}
		p.cond.Wait()
	}
}

// waitDetail waits until a component is ready and its detail contains all of the words.
func (p *started) waitDetail(t *testing.T, deadline time.Duration, name string, words ...string) {
	t.Helper()
	p.waitState(t, deadline, name, func(m notify.Message) bool {
		return m.Ready && !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(m.Detail, w) })
	})
}

// onlyChild returns the only child of a process.
func onlyChild(t *testing.T, pid int) *os.Process {
	t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		t.Fatal(err)
	}
	var children []string
	for _, path := range threads {
		if text, err := os.ReadFile(path); err == nil { // a thread can end meanwhile
			children = append(children, strings.Fields(string(text))...)
		}
	}
	if len(children) != 1 {
		t.Fatalf("process %d has the children %v, want one", pid, children)
	}
	child, err := strconv.Atoi(children[0])
	if err != nil {
		t.Fatal(err)
	}
	process, err := os.FindProcess(child)
	if err != nil {
		t.Fatal(err)
	}
	return process
}
