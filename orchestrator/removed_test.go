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

// removedNodes checks that the tokens of pods become invalid with their Node, while the pods still
// exist and the API server caches the tokens; that watches end, too; and that a machine that joins
// again with the same name has valid tokens.
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
	// outside returns how long the API server took to reject a caller that it knew.
	outside := func(client kubernetes.Interface) time.Duration {
		t.Helper()
		began := time.Now()
		err := wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, 5*time.Second, true, func(ctx context.Context) (bool, error) {
			_, err := whoAmI(ctx, client)
			return apierrors.IsUnauthorized(err), nil
		})
		if err != nil {
			t.Errorf("a token of a Node that is gone is accepted for more than 5 s: %v", err)
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
	t.Logf("refused %s after the Node went", outside(client).Round(time.Millisecond))
	if _, err := admin.CoreV1().Pods(namespace).Get(ctx, "first", metav1.GetOptions{}); err != nil {
		t.Errorf("the pod went too soon to show it: %v", err)
	}
	late := time.After(5 * time.Second)
	for open := true; open; {
		select {
		case _, open = <-watching.ResultChan():
		case <-late:
			t.Fatal("a watch goes on 5 s after the Node went")
		}
	}
	review, err := admin.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: first}}, metav1.CreateOptions{})
	if err != nil || review.Status.Authenticated {
		t.Errorf("others are told: %+v, %v", review.Status, err)
	}
	// Without the Node no client gets a token.
	if _, err := whoAmI(ctx, m.withToken(t, token("second"))); !apierrors.IsUnauthorized(err) {
		t.Errorf("a token that was issued after the Node went: %v, want 401", err)
	}

	join()
	if _, err := whoAmI(ctx, m.withToken(t, token("third"))); err != nil {
		t.Errorf("a token of a machine that has come again: %v", err)
	}
	if _, err := whoAmI(ctx, client); !apierrors.IsUnauthorized(err) {
		t.Errorf("a token of the machine that had the name before: %v, want 401", err)
	}

	// Without a quorum the Node stays. The revocation names the machine until another machine has
	// its name.
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
	t.Logf("refused %s after the machine was taken out", outside(again).Round(time.Millisecond))
	revoked(`[{"origin": "12ab"}]`)
	waitUser(ctx, t, again, user.Username)

	there, err := nodecontrollers.DeleteRemovedNodes(ctx, m.dirs, nodespec.NodeGCRequest{Names: []string{name, "never-there"}, MadeBefore: time.Now().Add(time.Minute)})
	if err != nil || !slices.Equal(there, []string{name}) {
		t.Errorf("forgotten: %v, %v", there, err)
	}
	outside(again)
	pods, err := admin.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil || len(pods.Items) != 0 {
		t.Errorf("%d pods are there that were on a Node that is forgotten: %v", len(pods.Items), err)
	}
}
