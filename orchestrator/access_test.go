package main

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/renameio/v2"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/orlop-os/orlop/machined/credentials"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/test/issuer"
)

// outside are the servers that an operator's site may have beside the cluster: an issuer of OpenID
// Connect tokens, and the webhooks that the API server calls for authentication and authorization.
type outside struct {
	server *httptest.Server
	id     *issuer.Issuer
	ca     config.Bundle
	mu     sync.Mutex
	asked  []authorizationv1.SubjectAccessReviewSpec
}

func newOutside(t *testing.T) *outside {
	t.Helper()
	o := &outside{}
	mux := http.NewServeMux()
	o.server = httptest.NewTLSServer(mux)
	t.Cleanup(o.server.Close)
	var err error
	if o.id, err = issuer.New(o.server.URL); err != nil {
		t.Fatal(err)
	}
	handler, err := o.id.Handler()
	if err != nil {
		t.Fatal(err)
	}
	mux.Handle("GET /", handler)
	mux.HandleFunc("POST /token", func(w http.ResponseWriter, r *http.Request) {
		var review authenticationv1.TokenReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			t.Error(err)
		}
		if review.Spec.Token == "t1" {
			review.Status.Authenticated = true
			review.Status.User = authenticationv1.UserInfo{Username: "hook:carol", Groups: []string{"hook"}}
		}
		answer(t, w, review)
	})
	mux.HandleFunc("POST /access", func(w http.ResponseWriter, r *http.Request) {
		var review authorizationv1.SubjectAccessReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			t.Error(err)
		}
		o.mu.Lock()
		o.asked = append(o.asked, review.Spec)
		o.mu.Unlock()
		if a := review.Spec.ResourceAttributes; a != nil && a.Namespace == "closed" && a.Resource == "pods" && a.Verb == "delete" {
			review.Status = authorizationv1.SubjectAccessReviewStatus{Denied: true, Reason: "nobody deletes here"}
		}
		answer(t, w, review)
	})
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: o.server.Certificate().Raw})
	if o.ca, err = config.ParseBundle(string(text)); err != nil {
		t.Fatal(err)
	}
	return o
}

func answer(t *testing.T, w http.ResponseWriter, body any) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(body); err != nil {
		t.Error(err)
	}
}

// token returns a token of the issuer.
func (o *outside) token(t *testing.T, subject, audience string) string {
	t.Helper()
	token, err := o.id.Token(subject, audience, "writers")
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func (o *outside) issuer(username string) config.JWTIssuer {
	return config.JWTIssuer{URL: o.server.URL, CA: o.ca, Audiences: []string{"orlop"}, Username: username, Groups: "claims.groups"}
}

// tokens is the webhook for authentication.
func (o *outside) tokens() *config.AuthenticationWebhook {
	return &config.AuthenticationWebhook{URL: o.server.URL + "/token", CA: o.ca}
}

func (o *outside) policy() config.AuthorizationWebhook {
	return config.AuthorizationWebhook{
		Name: "policy", URL: o.server.URL + "/access", CA: o.ca, Timeout: config.Duration(3 * time.Second),
		AuthorizedTTL: config.Duration(time.Second), UnauthorizedTTL: config.Duration(time.Second), FailurePolicy: config.FailureDeny,
		MatchConditions: []string{"has(request.resourceAttributes) && request.resourceAttributes.namespace == 'closed'"},
	}
}

// use writes the API server's files as machined does when a configuration changes.
func (m machine) use(t *testing.T, a credentials.Access) {
	t.Helper()
	for _, f := range a.Files(m.dirs.API) {
		if err := renameio.WriteFile(filepath.Join(m.dirs.API, f.Name), f.Content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// withToken returns a client with a bearer token.
func (m machine) withToken(t *testing.T, token string) kubernetes.Interface {
	t.Helper()
	c := m.config(t, "nobody")
	c.CertData, c.KeyData, c.BearerToken = nil, nil, token
	return kubernetes.NewForConfigOrDie(c)
}

// whoAmI returns the API server's description of the caller.
func whoAmI(ctx context.Context, client kubernetes.Interface) (authenticationv1.UserInfo, error) {
	review, err := client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return authenticationv1.UserInfo{}, err
	}
	return review.Status.UserInfo, nil
}

// waitUser waits until the API server identifies the caller by the given user name.
func waitUser(ctx context.Context, t *testing.T, client kubernetes.Interface, name string) authenticationv1.UserInfo {
	t.Helper()
	var user authenticationv1.UserInfo
	var last error
	err := wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		user, last = whoAmI(ctx, client)
		return last == nil && user.Username == name, nil
	})
	if err != nil {
		t.Fatalf("the caller is %+v (%v), want %s: %v", user, last, name, err)
	}
	return user
}

// callers tests every method of authentication.
func callers(ctx context.Context, t *testing.T, m machine, admin kubernetes.Interface, o *outside) {
	t.Run("certificate", func(t *testing.T) {
		user, err := whoAmI(ctx, m.client(t, "alice", "team-a", "team-b"))
		if err != nil || user.Username != "alice" || !slices.Equal(user.Groups, []string{"team-a", "team-b", "system:authenticated"}) {
			t.Errorf("the user is %+v, %v", user, err)
		}
	})
	t.Run("program", func(t *testing.T) {
		leaf, err := m.ca.Issue(pki.Spec{CN: "bob", Usage: pki.Client, TTL: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		credential, err := json.Marshal(map[string]any{
			"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
			"status": map[string]string{"clientCertificateData": string(leaf.CertPEM()), "clientKeyData": string(leaf.KeyPEM())},
		})
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "credential")
		write(t, file, credential)
		c := m.config(t, "nobody")
		c.CertData, c.KeyData = nil, nil
		c.ExecProvider = &clientcmdapi.ExecConfig{
			Command: "cat", Args: []string{file}, APIVersion: "client.authentication.k8s.io/v1", InteractiveMode: clientcmdapi.NeverExecInteractiveMode,
		}
		if user, err := whoAmI(ctx, kubernetes.NewForConfigOrDie(c)); err != nil || user.Username != "bob" {
			t.Errorf("the user is %+v, %v", user, err)
		}
	})
	t.Run("name and password", func(t *testing.T) {
		c := m.config(t, "nobody")
		c.CertData, c.KeyData, c.Username, c.Password = nil, nil, "admin", "admin"
		if _, err := whoAmI(ctx, kubernetes.NewForConfigOrDie(c)); !apierrors.IsUnauthorized(err) {
			t.Errorf("%v, want 401", err)
		}
	})
	t.Run("service account", func(t *testing.T) { boundToken(ctx, t, m, admin) })
	t.Run("OpenID Connect", func(t *testing.T) {
		mine := m.withToken(t, o.token(t, "dora", "orlop"))
		if _, err := whoAmI(ctx, mine); !apierrors.IsUnauthorized(err) {
			t.Errorf("a token of an unknown issuer: %v, want 401", err)
		}
		access := credentials.Access{Authentication: config.Authentication{JWT: []config.JWTIssuer{o.issuer("'first:' + claims.sub")}, Webhook: o.tokens()}}
		m.use(t, access)
		if user := waitUser(ctx, t, mine, "first:dora"); !slices.Contains(user.Groups, "writers") {
			t.Errorf("groups %v", user.Groups)
		}
		if _, err := whoAmI(ctx, m.withToken(t, o.token(t, "dora", "another"))); !apierrors.IsUnauthorized(err) {
			t.Errorf("a token for another audience: %v, want 401", err)
		}
		access.Authentication.JWT = []config.JWTIssuer{o.issuer("'second:' + claims.sub")}
		m.use(t, access)
		waitUser(ctx, t, mine, "second:dora")
	})
	t.Run("token webhook", func(t *testing.T) {
		waitUser(ctx, t, m.withToken(t, "t1"), "hook:carol")
		if _, err := whoAmI(ctx, m.withToken(t, "t2")); !apierrors.IsUnauthorized(err) {
			t.Errorf("a token that the webhook rejects: %v, want 401", err)
		}
	})
}

// boundToken checks that the token of a pod names the pod, and is rejected after the pod was
// deleted.
func boundToken(ctx context.Context, t *testing.T, m machine, admin kubernetes.Interface) {
	pod, err := admin.CoreV1().Pods("default").Create(ctx, plainPod("bound"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	request, err := admin.CoreV1().ServiceAccounts("default").CreateToken(ctx, "default", &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var claims struct {
		jwt.RegisteredClaims
		Kubernetes struct {
			Pod struct{ Name, UID string } `json:"pod"`
		} `json:"kubernetes.io"`
	}
	if _, _, err := jwt.NewParser().ParseUnverified(request.Status.Token, &claims); err != nil {
		t.Fatal(err)
	}
	if claims.Subject != "system:serviceaccount:default:default" || claims.Kubernetes.Pod.UID != string(pod.UID) || claims.ExpiresAt == nil {
		t.Errorf("claims %+v", claims)
	}
	client := m.withToken(t, request.Status.Token)
	if user, err := whoAmI(ctx, client); err != nil || user.Username != claims.Subject {
		t.Errorf("the user is %+v, %v", user, err)
	}
	now := int64(0)
	if err := admin.CoreV1().Pods("default").Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
		t.Fatal(err)
	}
	err = wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, 30*time.Second, true, func(ctx context.Context) (bool, error) {
		_, err := whoAmI(ctx, client)
		return apierrors.IsUnauthorized(err), nil
	})
	if err != nil {
		t.Errorf("the token is valid after the deletion of its pod: %v", err)
	}
}

// rights checks that access reviews agree with RBAC, and that a webhook can forbid operations that
// RBAC allows. The API server does not call the webhook for the cluster's own components.
func rights(ctx context.Context, t *testing.T, m machine, admin kubernetes.Interface, o *outside) {
	for _, name := range []string{"open", "closed"} {
		if _, err := admin.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		binding := &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "erin"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "admin"},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "erin"}},
		}
		if _, err := admin.RbacV1().RoleBindings(name).Create(ctx, binding, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	erin := m.client(t, "erin")
	deletion := func(namespace string) *authorizationv1.ResourceAttributes {
		return &authorizationv1.ResourceAttributes{Namespace: namespace, Verb: "delete", Resource: "pods"}
	}
	may := func(namespace string) authorizationv1.SubjectAccessReviewStatus {
		t.Helper()
		review, err := erin.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: deletion(namespace)},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return review.Status
	}
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, 20*time.Second, true, func(context.Context) (bool, error) {
		// both bindings have reached the authorizer
		return may("open").Allowed && may("closed").Allowed && !may("default").Allowed, nil
	})
	if err != nil {
		t.Fatalf("reviews do not agree with RBAC: %+v", may("open"))
	}
	local := &authorizationv1.LocalSubjectAccessReview{
		ObjectMeta: metav1.ObjectMeta{Namespace: "open"},
		Spec:       authorizationv1.SubjectAccessReviewSpec{User: "frank", ResourceAttributes: deletion("open")},
	}
	if review, err := erin.AuthorizationV1().LocalSubjectAccessReviews("open").Create(ctx, local, metav1.CreateOptions{}); err != nil || review.Status.Allowed {
		t.Errorf("a review by an administrator of the namespace: %+v, %v", review, err)
	}
	whole := &authorizationv1.SubjectAccessReview{Spec: local.Spec}
	if _, err := erin.AuthorizationV1().SubjectAccessReviews().Create(ctx, whole, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a review of the whole cluster: %v, want 403", err)
	}
	whole.Spec.User = "erin"
	if review, err := admin.AuthorizationV1().SubjectAccessReviews().Create(ctx, whole, metav1.CreateOptions{}); err != nil || !review.Status.Allowed {
		t.Errorf("the administrator's review: %+v, %v", review, err)
	}
	list, err := erin.AuthorizationV1().SelfSubjectRulesReviews().Create(ctx, &authorizationv1.SelfSubjectRulesReview{
		Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: "open"},
	}, metav1.CreateOptions{})
	if err != nil || !slices.ContainsFunc(list.Status.ResourceRules, func(r authorizationv1.ResourceRule) bool {
		return slices.Contains(r.Resources, "pods") && slices.Contains(r.Verbs, "delete")
	}) {
		t.Errorf("list of rights: %+v, %v", list, err)
	}

	m.use(t, credentials.Access{Authorization: config.Authorization{Webhooks: []config.AuthorizationWebhook{o.policy()}}})
	err = wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, 90*time.Second, true, func(context.Context) (bool, error) {
		return may("closed").Denied, nil
	})
	if err != nil {
		t.Fatalf("the webhook's denial has no effect: %+v", may("closed"))
	}
	for namespace, allowed := range map[string]bool{"open": true, "closed": false} {
		if _, err := admin.CoreV1().Pods(namespace).Create(ctx, plainPod("p"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		err := erin.CoreV1().Pods(namespace).Delete(ctx, "p", metav1.DeleteOptions{})
		switch {
		case allowed && err != nil:
			t.Errorf("delete in %s: %v", namespace, err)
		case !allowed && (!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "nobody deletes here")):
			t.Errorf("delete in %s: %v, want 403 with the webhook's reason", namespace, err)
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, q := range o.asked {
		if strings.HasPrefix(q.User, "system:kube-") || slices.Contains(q.Groups, "system:serviceaccounts:kube-system") {
			t.Errorf("the webhook is called for the cluster's own %s", q.User)
		}
	}
}

// withoutServices stops the webhooks, and checks that callers that do not need them can continue.
func withoutServices(ctx context.Context, t *testing.T, m machine, o *outside) {
	o.server.Close()
	if _, err := whoAmI(ctx, m.withToken(t, "t3")); !apierrors.IsUnauthorized(err) {
		t.Errorf("an unknown token: %v, want 401", err)
	}
	if user, err := whoAmI(ctx, m.client(t, "alice")); err != nil || user.Username != "alice" {
		t.Errorf("with a certificate: %+v, %v", user, err)
	}
	controller := m.client(t, "system:kube-controller-manager")
	if _, err := controller.CoreV1().Secrets("closed").List(ctx, metav1.ListOptions{}); err != nil {
		t.Errorf("the controller manager in a namespace that the webhook checks: %v", err)
	}
	// No authorizer allows the call, so it fails. The status is 500, not 403, because no webhook
	// has denied the call.
	erin := m.client(t, "erin")
	if err := erin.CoreV1().Pods("closed").Delete(ctx, "p", metav1.DeleteOptions{}); !apierrors.IsInternalError(err) {
		t.Errorf("a call that the stopped webhook would decide: %v, want 500", err)
	}
}

// plainPod is a pod of the default service account that no node will run.
func plainPod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			Containers:   []corev1.Container{{Name: "c", Image: "none.local/x"}},
			NodeSelector: map[string]string{"none.local/x": "y"},
		},
	}
}

// TestCheckAccess checks that checkAccess reports an invalid value by its field in the
// configuration, and accepts a valid configuration.
func TestCheckAccess(t *testing.T) {
	certificate := func() config.Bundle {
		ca, err := pki.NewCA("x", time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		c, err := config.ParseBundle(string(ca.CertPEM()))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}()
	issuer := config.JWTIssuer{URL: "https://id.example.org", CA: certificate, Audiences: []string{"orlop"}, Username: "claims.sub"}
	webhook := config.AuthorizationWebhook{
		Name: "policy", URL: "https://policy.example.org", CA: certificate, Timeout: config.Duration(time.Second),
		AuthorizedTTL: config.Duration(time.Second), UnauthorizedTTL: config.Duration(time.Second), FailurePolicy: config.FailureDeny,
		MatchConditions: []string{"request.user != 'root'"},
	}
	for _, c := range []struct {
		name   string
		change func(*credentials.Access)
		want   string // empty if there is no problem
	}{
		{"a valid configuration", func(*credentials.Access) {}, ""},
		{"a proxy and a CA of the site", func(a *credentials.Access) {
			a.Issuers = credentials.IssuerAccess{Proxy: true, CAs: certificate.PEM()}
		}, ""},
		{"an expression for the user name that is invalid", func(a *credentials.Access) { a.Authentication.JWT[0].Username = "claims.sub ==" }, "Cluster.spec.kubernetes.authentication.jwt[0].username: Invalid value"},
		{"a claim rule that is not boolean", func(a *credentials.Access) {
			a.Authentication.JWT[0].ClaimRules = []config.Rule{{Expression: "claims.sub + 'x'"}}
		}, "Cluster.spec.kubernetes.authentication.jwt[0].claimRules[0].expression: "},
		{"the cluster's own issuer", func(a *credentials.Access) {
			a.Authentication.JWT[0].URL = "https://kubernetes.default.svc.cluster.local"
		}, "Cluster.spec.kubernetes.authentication.jwt[0].url: "},
		{"an unknown field", func(a *credentials.Access) {
			a.Authorization.Webhooks[0].MatchConditions = []string{"request.nobody == 'x'"}
		}, "Cluster.spec.kubernetes.authorization.webhooks[policy].matchConditions[0].expression: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			access := credentials.Access{
				Authentication: config.Authentication{JWT: []config.JWTIssuer{issuer}},
				Authorization:  config.Authorization{Webhooks: []config.AuthorizationWebhook{webhook}},
			}
			c.change(&access)
			in, err := json.Marshal(access.Check("cluster.local"))
			if err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			status := checkAccess(strings.NewReader(string(in)), &out)
			got := credentials.InDocument(out.String())
			if (status != 0) != (c.want != "") || !strings.HasPrefix(got, c.want) || (c.want == "" && got != "") {
				t.Errorf("status %d, %q; want %q", status, got, c.want)
			}
		})
	}
}
