package main

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/renameio/v2"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/orlop-os/orlop/orchestrator/nodecontrollers"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// removedNodes checks that the tokens of pods become invalid when their Node is deleted, although
// the pods still exist and the API server has cached the tokens. Watches with these tokens end,
// too. If a machine joins again with the same name, the tokens of its new pods are valid.
func removedNodes(ctx context.Context, t *testing.T, m machine, admin kubernetes.Interface) {
	const namespace, name = "removed", "removed-1"
	if _, err := admin.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	waitAccount(ctx, t, admin, namespace)
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "look"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: "default"}},
	}
	if _, err := admin.RbacV1().RoleBindings(namespace).Create(ctx, binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	join := func() {
		t.Helper()
		if _, err := admin.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	// token returns a token of a new pod on the Node, which need not exist.
	token := func(pod string) string {
		t.Helper()
		p := plainPod(pod)
		p.Spec.NodeName = name
		if _, err := admin.CoreV1().Pods(namespace).Create(ctx, p, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		request, err := admin.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, "default", &authenticationv1.TokenRequest{
			Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return request.Status.Token
	}
	// outside waits until the API server rejects a client that it accepted before. It returns how
	// long this took, and fails the test after 5 seconds.
	outside := func(client kubernetes.Interface) time.Duration {
		t.Helper()
		began := time.Now()
		err := wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, 5*time.Second, true, func(ctx context.Context) (bool, error) {
			_, err := whoAmI(ctx, client)
			return apierrors.IsUnauthorized(err), nil
		})
		if err != nil {
			t.Errorf("the API server accepts the token of a deleted Node for more than 5 s: %v", err)
		}
		return time.Since(began)
	}

	join()
	first := token("first")
	client := m.withToken(t, first)
	user := waitUser(ctx, t, client, fmt.Sprintf("system:serviceaccount:%s:default", namespace))
	if !slices.Equal(user.Extra["authentication.kubernetes.io/node-name"], authenticationv1.ExtraValue{name}) {
		t.Errorf("the caller is %+v", user)
	}
	watching, err := client.CoreV1().Pods(namespace).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer watching.Stop()
	if err := admin.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Logf("the token is rejected %s after the deletion of the Node", outside(client).Round(time.Millisecond))
	if _, err := admin.CoreV1().Pods(namespace).Get(ctx, "first", metav1.GetOptions{}); err != nil {
		t.Errorf("the pod was deleted, so the test does not show that its token was invalid before: %v", err)
	}
	late := time.After(5 * time.Second)
	for open := true; open; {
		select {
		case _, open = <-watching.ResultChan():
		case <-late:
			t.Fatal("a watch has not ended 5 s after the deletion of the Node")
		}
	}
	review, err := admin.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: first}}, metav1.CreateOptions{})
	if err != nil || review.Status.Authenticated {
		t.Errorf("a TokenReview of the token: %+v, %v, want not authenticated", review.Status, err)
	}
	// Without the Node, no client can get a valid token.
	if _, err := whoAmI(ctx, m.withToken(t, token("second"))); !apierrors.IsUnauthorized(err) {
		t.Errorf("a token that was issued after the deletion of the Node: %v, want 401", err)
	}

	join()
	if _, err := whoAmI(ctx, m.withToken(t, token("third"))); err != nil {
		t.Errorf("the token of a machine that has joined again is rejected: %v", err)
	}
	if _, err := whoAmI(ctx, client); !apierrors.IsUnauthorized(err) {
		t.Errorf("a token of the deleted Node, after a machine has joined with its name: %v, want 401", err)
	}

	// If the control plane has no quorum, the Node of a removed machine cannot be deleted. Then the
	// list of revocations names the machine, until another machine joins with this name.
	again := m.withToken(t, token("fourth"))
	if _, err := whoAmI(ctx, again); err != nil {
		t.Error(err)
	}
	revoked := func(list string) {
		t.Helper()
		if err := renameio.WriteFile(filepath.Join(m.dirs.API, nodespec.Revoked), []byte(`{"revoked": `+list+`}`), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	revoked(`[{"origin": "12ab", "machine": "` + name + `"}]`)
	t.Logf("the token is rejected %s after the revocation of the machine", outside(again).Round(time.Millisecond))
	revoked(`[{"origin": "12ab"}]`)
	waitUser(ctx, t, again, user.Username)

	there, err := nodecontrollers.DeleteRemovedNodes(ctx, m.dirs, nodespec.NodeGCRequest{Names: []string{name, "never-there"}, MadeBefore: time.Now().Add(time.Minute)})
	if err != nil || !slices.Equal(there, []string{name}) {
		t.Errorf("deleted Nodes: %v, %v", there, err)
	}
	outside(again)
	pods, err := admin.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil || len(pods.Items) != 0 {
		t.Errorf("%d pods of the deleted Node still exist: %v", len(pods.Items), err)
	}
}
