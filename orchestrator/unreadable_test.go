package main

import (
	"context"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/orlop-os/orlop/orchestrator/dirs"
)

// etcdClient returns a client of the machine's etcd.
func etcdClient(t *testing.T, dirs dirs.Dirs) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{"unix://" + dirs.EtcdSocket()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// unreadableSecret checks the task of the runbook for a Secret that no key decrypts any more. The
// error of a list names the Secret. An ordinary delete fails, and an administrator can delete the
// Secret with the option ignoreStoreReadErrorWithClusterBreakingPotential. The option deletes no
// readable Secret, and other users may not use it.
func unreadableSecret(ctx context.Context, t *testing.T, m machine, admin kubernetes.Interface) {
	const namespace, name = "default", "lost"
	const ignore = `{"kind":"DeleteOptions","apiVersion":"v1","ignoreStoreReadErrorWithClusterBreakingPotential":true}`
	good := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "good"}, StringData: map[string]string{"word": "w"}}
	if _, err := admin.CoreV1().Secrets(namespace).Create(ctx, good, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	etcd := etcdClient(t, m.dirs)
	value := "k8s:enc:secretbox:v1:key-of-another-cluster:" + strings.Repeat("x", 80)
	if _, err := etcd.Put(ctx, "/registry/secrets/"+namespace+"/"+name, value); err != nil {
		t.Fatal(err)
	}

	_, err := admin.CoreV1().Secrets(namespace).List(ctx, metav1.ListOptions{})
	if err == nil || !strings.Contains(err.Error(), "/secrets/"+namespace+"/"+name) {
		t.Errorf("the error of the list does not name the Secret: %v", err)
	}
	if err := admin.CoreV1().Secrets(namespace).Delete(ctx, name, metav1.DeleteOptions{}); !apierrors.IsInternalError(err) {
		t.Errorf("a delete without the option: %v, want an internal error", err)
	}
	unsafe := func(client kubernetes.Interface, name string) error {
		path := "/api/v1/namespaces/" + namespace + "/secrets/" + name
		return client.CoreV1().RESTClient().Delete().RequestURI(path).Body([]byte(ignore)).Do(ctx).Error()
	}
	if err := unsafe(m.client(t, "system:kube-controller-manager"), name); !apierrors.IsForbidden(err) {
		t.Errorf("a delete with the option by a user without the right: %v, want forbidden", err)
	}
	if err := unsafe(admin, good.Name); err == nil {
		t.Error("a delete with the option removes a readable Secret")
	}
	if err := unsafe(admin, name); err != nil {
		t.Errorf("a delete with the option by an administrator: %v", err)
	}
	if _, err := admin.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the deleted Secret: %v, want not found", err)
	}
	var last error
	err = wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, 20*time.Second, true, func(ctx context.Context) (bool, error) {
		_, last = admin.CoreV1().Secrets(namespace).List(ctx, metav1.ListOptions{})
		return last == nil, nil
	})
	if err != nil {
		t.Errorf("the list still fails after the delete: %v", last)
	}
}
