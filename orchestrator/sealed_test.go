package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"path/filepath"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	registration "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"

	"github.com/orlop-os/orlop/orchestrator/bootstrap"
	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/kernel/rtnl/rtnltest"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
)

const (
	systemSealed = "system.orlop.static.k8s.io"
	siteSealed   = "frozen.static.k8s.io"
)

// sitePolicy is a sealed policy of a site.
const sitePolicy = `apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: frozen.static.k8s.io}
spec:
  matchConstraints: {resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [configmaps]}]}
  validations: [{expression: "object.metadata.name != 'frozen'", message: "the site is frozen", reason: Forbidden}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: frozen.static.k8s.io}
spec: {policyName: frozen.static.k8s.io, validationActions: [Deny]}
`

// TestSealedPolicies checks that no client of Kubernetes can change or bypass the sealed policies,
// and that the policies permit the requests of the system. After the policies are removed from the
// configuration, the requests that they rejected are permitted.
func TestSealedPolicies(t *testing.T) {
	if !rtnltest.Isolate(t) {
		return
	}
	spec := testSpec()
	spec.Kubernetes.SealedPolicies = config.SealedPolicies{System: true, Manifests: []string{sitePolicy}}
	network(t, spec.Node.IPs[0].String()+"/24")
	m := prepare(t, spec)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	start := func() (api, controllers *started) {
		zero := time.Now()
		api, controllers = m.start(t, component.API, zero), m.start(t, component.Controllers, zero)
		api.waitReady(t, time.Minute, "etcd", "kube-apiserver", "bootstrap")
		controllers.waitReady(t, time.Minute, controllersWork...)
		t.Logf("with the policy of the system %t: api: %s", spec.Kubernetes.SealedPolicies.System, api.usage(t))
		return api, controllers
	}
	m.configure(t, nodespec.Addon{
		Name: "shop", Namespace: "shop", Rights: nodespec.AddonRights{Rules: []nodespec.PolicyRule{
			{APIGroups: []string{"admissionregistration.k8s.io"}, Resources: []string{"validatingwebhookconfigurations"}, Verbs: []string{"get", "create", "patch"}},
		}},
		Manifests: []string{`{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingWebhookConfiguration, metadata: {name: shop, labels: {orlop.dev/own: ""}}}`},
	})
	api, controllers := start()
	controllers.waitDetail(t, time.Minute, "addons", "1 of 1 add-ons are ready")
	root := m.client(t, "root", "system:masters")
	t.Run("objects", func(t *testing.T) { sealedObjects(ctx, t, root) })
	t.Run("attempts", func(t *testing.T) {
		for name, try := range m.sealedAttempts(t) {
			if err := try(ctx, root); !rejectedBySystem(err) {
				t.Errorf("the policy of the system does not reject %s: %v", name, err)
			}
		}
		if _, err := root.RbacV1().ClusterRoles().Get(ctx, "system:node", metav1.GetOptions{}); err != nil {
			t.Errorf("cannot read a ClusterRole after the attempts to change it: %v", err)
		}
	})
	t.Run("impersonation", func(t *testing.T) { m.sealedImpersonation(ctx, t) })
	t.Run("site", func(t *testing.T) {
		if err := freeze(ctx, root); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "the site is frozen") {
			t.Errorf("the policy of the site does not reject the ConfigMap: %v", err)
		}
	})
	t.Run("system", func(t *testing.T) { m.systemPasses(ctx, t, root) })
	stopAll(t, controllers, api)

	spec.Kubernetes.SealedPolicies = config.SealedPolicies{}
	content, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(m.root, paths.NodeSpec), content)
	api, controllers = start()
	if err := freeze(ctx, root); err != nil {
		t.Errorf("the ConfigMap is rejected without the policy of the site: %v", err)
	}
	for name, try := range m.sealedAttempts(t) {
		if err := try(ctx, root); rejectedBySystem(err) {
			t.Errorf("%s is rejected without the policy of the system: %v", name, err)
		}
	}
	stopAll(t, controllers, api)
}

// rejectedBySystem reports whether the policy of the system, or its plugin, has rejected a request.
func rejectedBySystem(err error) bool {
	return apierrors.IsForbidden(err) && (strings.Contains(err.Error(), systemSealed) || strings.Contains(err.Error(), "belongs to the system"))
}

// freeze creates the ConfigMap that the policy of the site rejects.
func freeze(ctx context.Context, client kubernetes.Interface) error {
	_, err := client.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "frozen"}}, metav1.CreateOptions{})
	return err
}

// sealedObjects checks that no client sees, changes, deletes or replaces a sealed object.
func sealedObjects(ctx context.Context, t *testing.T, root kubernetes.Interface) {
	admission := root.AdmissionregistrationV1()
	policies, bindings := admission.ValidatingAdmissionPolicies(), admission.ValidatingAdmissionPolicyBindings()
	all, err := policies.List(ctx, metav1.ListOptions{})
	if err != nil || len(all.Items) != 0 {
		t.Errorf("a client sees the policies %v, %v, want none", all, err)
	}
	for _, name := range []string{systemSealed, siteSealed} {
		policy := &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: admissionv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
				Operations: []admissionv1.OperationType{admissionv1.OperationAll},
				Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
			}}}},
			Validations: []admissionv1.Validation{{Expression: "true"}},
		}}
		binding := &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Warn},
		}}
		for what, err := range map[string]error{
			"delete policy":  policies.Delete(ctx, name, metav1.DeleteOptions{}),
			"delete binding": bindings.Delete(ctx, name, metav1.DeleteOptions{}),
			"change policy":  second(policies.Patch(ctx, name, types.MergePatchType, []byte(`{"spec":{"validations":[{"expression":"true"}]}}`), metav1.PatchOptions{})),
			"update binding": second(bindings.Update(ctx, binding, metav1.UpdateOptions{})),
		} {
			if !apierrors.IsNotFound(err) {
				t.Errorf("%s %s: %v, want not found", what, name, err)
			}
		}
		for what, err := range map[string]error{
			"replace policy":  second(policies.Create(ctx, policy, metav1.CreateOptions{})),
			"replace binding": second(bindings.Create(ctx, binding, metav1.CreateOptions{})),
		} {
			if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "reserved for static manifest-based configurations") {
				t.Errorf("%s %s: %v, want invalid", what, name, err)
			}
		}
	}
}

// second returns the error of a call that returns two values.
func second[T any](_ T, err error) error { return err }

// attempt is a request of a cluster-admin that the policy of the system rejects.
type attempt func(context.Context, kubernetes.Interface) error

// sealedAttempts returns all attempts, with names that describe them.
func (m machine) sealedAttempts(t *testing.T) map[string]attempt {
	t.Helper()
	named := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name} }
	own := metav1.ObjectMeta{Name: "forged", Labels: map[string]string{bootstrap.LabelOwn: ""}}
	all := map[string]attempt{
		"ClusterRole: create": func(ctx context.Context, c kubernetes.Interface) error {
			return second(c.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: named("system:mine")}, metav1.CreateOptions{}))
		},
		"ClusterRole: generated name": func(ctx context.Context, c kubernetes.Interface) error {
			return second(c.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{GenerateName: "system:"}}, metav1.CreateOptions{}))
		},
		"ClusterRole: server-side apply": func(ctx context.Context, c kubernetes.Interface) error {
			text := `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRole","metadata":{"name":"orlop:mine"},"rules":[]}`
			return second(c.RbacV1().ClusterRoles().Patch(ctx, "orlop:mine", types.ApplyPatchType, []byte(text), metav1.PatchOptions{FieldManager: "x"}))
		},
		"ClusterRole: rules": func(ctx context.Context, c kubernetes.Interface) error {
			return second(c.RbacV1().ClusterRoles().Patch(ctx, "system:node", types.JSONPatchType, []byte(`[{"op":"remove","path":"/rules/0"}]`), metav1.PatchOptions{}))
		},
		"ClusterRole: owner": func(ctx context.Context, c kubernetes.Interface) error {
			text := `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"gone","uid":"gone"}]}}`
			return second(c.RbacV1().ClusterRoles().Patch(ctx, "system:node", types.MergePatchType, []byte(text), metav1.PatchOptions{}))
		},
		"ClusterRole: updates switched off": func(ctx context.Context, c kubernetes.Interface) error {
			text := `{"metadata":{"annotations":{"rbac.authorization.kubernetes.io/autoupdate":"false"}}}`
			return second(c.RbacV1().ClusterRoles().Patch(ctx, "system:node", types.MergePatchType, []byte(text), metav1.PatchOptions{}))
		},
		"ClusterRoleBinding: delete": func(ctx context.Context, c kubernetes.Interface) error {
			return c.RbacV1().ClusterRoleBindings().Delete(ctx, "orlop:cluster-admins", metav1.DeleteOptions{})
		},
		"ClusterRoles: delete all": func(ctx context.Context, c kubernetes.Interface) error {
			return c.RbacV1().ClusterRoles().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{FieldSelector: "metadata.name=system:node"})
		},
		"RoleBinding: create": func(ctx context.Context, c kubernetes.Interface) error {
			binding := &rbacv1.RoleBinding{ObjectMeta: named("system:mine"), RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"}}
			return second(c.RbacV1().RoleBindings("kube-system").Create(ctx, binding, metav1.CreateOptions{}))
		},
		"Service: delete": func(ctx context.Context, c kubernetes.Interface) error {
			return c.CoreV1().Services("kube-system").Delete(ctx, bootstrap.DNSService, metav1.DeleteOptions{})
		},
		"Service: label": func(ctx context.Context, c kubernetes.Interface) error {
			return second(c.CoreV1().Services("kube-system").Patch(ctx, bootstrap.MetricsService, types.MergePatchType, []byte(`{"metadata":{"labels":{"`+bootstrap.LabelOwn+`":null}}}`), metav1.PatchOptions{}))
		},
		"APIService: delete": func(ctx context.Context, _ kubernetes.Interface) error {
			return registration.NewForConfigOrDie(m.config(t, "root", "system:masters")).APIServices().Delete(ctx, bootstrap.MetricsAPI, metav1.DeleteOptions{})
		},
		"Secret: CAs of pods": func(ctx context.Context, c kubernetes.Interface) error {
			return second(c.CoreV1().Secrets("kube-system").Create(ctx, &corev1.Secret{ObjectMeta: named(bootstrap.PodAuthorities)}, metav1.CreateOptions{}))
		},
		"Namespace: label of the selector": func(ctx context.Context, c kubernetes.Interface) error {
			return second(c.CoreV1().Namespaces().Patch(ctx, "kube-system", types.MergePatchType, []byte(`{"metadata":{"labels":{"kubernetes.io/metadata.name":"mine","a":"b"}}}`), metav1.PatchOptions{}))
		},
		"state of add-ons": func(ctx context.Context, c kubernetes.Interface) error {
			return second(c.CoreV1().ConfigMaps(nodespec.AddonsNamespace).Create(ctx, &corev1.ConfigMap{ObjectMeta: named("forged")}, metav1.CreateOptions{}))
		},
		"webhook with the label": func(ctx context.Context, c kubernetes.Interface) error {
			return second(c.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(ctx, &admissionv1.ValidatingWebhookConfiguration{ObjectMeta: own}, metav1.CreateOptions{}))
		},
		"binding with the label": func(ctx context.Context, c kubernetes.Interface) error {
			binding := &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: own, Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
				PolicyName: "x", ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
			}}
			return second(c.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Create(ctx, binding, metav1.CreateOptions{}))
		},
	}
	for name, try := range credentialAttempts(t) {
		all["credentials: "+name] = try
	}
	return all
}

// credentialAttempts returns the requests by which a cluster-admin could get, from Kubernetes, the
// credentials of an identity of the system.
func credentialAttempts(t *testing.T) map[string]attempt {
	t.Helper()
	const account = "node-controller"
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	request, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: nodespec.AddonsUser}}, key)
	if err != nil {
		t.Fatal(err)
	}
	return map[string]attempt{
		"token": func(ctx context.Context, c kubernetes.Interface) error {
			return second(c.CoreV1().ServiceAccounts("kube-system").CreateToken(ctx, account, &authenticationv1.TokenRequest{}, metav1.CreateOptions{}))
		},
		"Secret": func(ctx context.Context, c kubernetes.Interface) error {
			secret := &corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Name: "stolen", Annotations: map[string]string{corev1.ServiceAccountNameKey: account}}, Type: corev1.SecretTypeServiceAccountToken,
			}
			return second(c.CoreV1().Secrets("kube-system").Create(ctx, secret, metav1.CreateOptions{}))
		},
		"pod": func(ctx context.Context, c kubernetes.Interface) error {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "thief"}, Spec: corev1.PodSpec{ServiceAccountName: account, Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
			return second(c.CoreV1().Pods("kube-system").Create(ctx, pod, metav1.CreateOptions{}))
		},
		"certificate": func(ctx context.Context, c kubernetes.Interface) error {
			return second(c.CertificatesV1().CertificateSigningRequests().Create(ctx, &certificatesv1.CertificateSigningRequest{
				ObjectMeta: metav1.ObjectMeta{Name: "stolen"},
				Spec: certificatesv1.CertificateSigningRequestSpec{
					SignerName: certificatesv1.KubeAPIServerClientSignerName, Usages: []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth},
					Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: request}),
				},
			}, metav1.CreateOptions{}))
		},
	}
}

// sealedImpersonation checks that the policies reject a client that has all rights and impersonates
// an identity of the system.
func (m machine) sealedImpersonation(ctx context.Context, t *testing.T) {
	addon := "system:serviceaccount:" + nodespec.AddonsNamespace + ":shop"
	for _, as := range []rest.ImpersonationConfig{
		{UserName: "system:apiserver", Groups: []string{"system:masters"}},
		{UserName: nodespec.AddonsUser, Groups: []string{"system:masters"}},
		{UserName: addon, Groups: []string{"system:masters"}},
		{UserName: addon, Groups: []string{"system:masters"}, Extra: map[string][]string{"orlop.dev/impersonator": {nodespec.AddonsUser}}},
		{UserName: nodespec.BreakGlassUser, Groups: []string{"system:masters"}},
		{UserName: "system:serviceaccount:kube-system:generic-garbage-collector", Groups: []string{"system:masters"}},
		{UserName: "system:node:node-1", Groups: []string{"system:masters", "system:nodes"}},
	} {
		config := m.config(t, "root", "system:masters")
		config.Impersonate = as
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		if err := client.RbacV1().ClusterRoles().Delete(ctx, "system:node", metav1.DeleteOptions{}); !rejectedBySystem(err) {
			t.Errorf("an impersonation of %s is not rejected: %v", as.UserName, err)
		}
	}
}

// systemPasses checks that the policies permit the requests of the system. It does not repeat
// requests that the processes made at their start: the API server created its objects, the
// controllers got their tokens, and the metrics server registered its CA.
func (m machine) systemPasses(ctx context.Context, t *testing.T, root kubernetes.Interface) {
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	await := func(what string, good func(context.Context) bool) {
		t.Helper()
		if err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) { return good(ctx), nil }); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	roles := root.RbacV1().ClusterRoles()
	has := func(name string) func(context.Context) bool {
		return func(ctx context.Context) bool { return second(roles.Get(ctx, name, metav1.GetOptions{})) == nil }
	}

	// The controller of add-ons may delete roles. Kubernetes and the system restore them. It
	// creates the webhook of an add-on with the identity of this add-on.
	manager := m.client(t, nodespec.AddonsUser)
	for _, name := range []string{"system:node", "orlop:metrics-reader"} {
		must(manager.RbacV1().ClusterRoles().Delete(ctx, name, metav1.DeleteOptions{}))
		await(name+" is restored", has(name))
	}
	hooks := root.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	await("an add-on creates its webhook", func(ctx context.Context) bool { return second(hooks.Get(ctx, "shop", metav1.GetOptions{})) == nil })
	for _, err := range []error{
		roles.Delete(ctx, "orlop:addon:shop", metav1.DeleteOptions{}),
		hooks.Delete(ctx, "shop", metav1.DeleteOptions{}),
		second(hooks.Patch(ctx, "shop", types.MergePatchType, []byte(`{"metadata":{"labels":null}}`), metav1.PatchOptions{})),
	} {
		if !rejectedBySystem(err) {
			t.Errorf("a change of an object of an add-on is not rejected: %v", err)
		}
	}
	m.suspend(ctx, t, "validatingwebhookconfiguration", "shop")

	// A migration of the storage version updates an object without a change.
	role, err := roles.Get(ctx, "system:node", metav1.GetOptions{})
	must(err)
	must(second(roles.Update(ctx, role, metav1.UpdateOptions{})))
	// A kubelet creates its Node.
	kubelet := m.client(t, "system:node:node-1", "system:nodes")
	must(second(kubelet.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}}, metav1.CreateOptions{})))
	// The controller that aggregates roles adds the rules of a labeled role to the role view.
	must(second(roles.Create(ctx, &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "shop-reader", Labels: map[string]string{"rbac.authorization.k8s.io/aggregate-to-view": "true"}},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{"shop.example.com"}, Resources: []string{"orders"}, Verbs: []string{"get"}}},
	}, metav1.CreateOptions{})))
	await("view has the rule", func(ctx context.Context) bool {
		view, err := roles.Get(ctx, "view", metav1.GetOptions{})
		return err == nil && strings.Contains(view.String(), "shop.example.com")
	})
	// The namespace controller deletes the objects in a deleted namespace, among them a role with a
	// name of the system. The garbage collector deletes an object if its owner does not exist.
	must(second(root.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "left"}}, metav1.CreateOptions{})))
	must(second(root.RbacV1().Roles("left").Create(ctx, &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "system:left"}}, metav1.CreateOptions{})))
	owned := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owned", OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "gone", UID: "gone"}}}}
	must(second(root.CoreV1().ConfigMaps("kube-system").Create(ctx, owned, metav1.CreateOptions{})))
	must(root.CoreV1().Namespaces().Delete(ctx, "left", metav1.DeleteOptions{}))
	await("the namespace is deleted", func(ctx context.Context) bool {
		return apierrors.IsNotFound(second(root.CoreV1().Namespaces().Get(ctx, "left", metav1.GetOptions{})))
	})
	await("the object without an owner is deleted", func(ctx context.Context) bool {
		return apierrors.IsNotFound(second(root.CoreV1().ConfigMaps("kube-system").Get(ctx, "owned", metav1.GetOptions{})))
	})
	// The policies permit a token of an account that has no rights of the system.
	must(second(root.CoreV1().ServiceAccounts("kube-system").CreateToken(ctx, "default", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})))
}
