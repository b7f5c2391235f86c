package main

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/pkg/emulation"
	"github.com/orlop-os/orlop/pkg/kernel/rtnl/rtnltest"
)

// TestComponentSettings runs the control plane with the settings of config.Reference, which has an
// example of each setting. Then it runs the control plane at the former level of the cluster.
func TestComponentSettings(t *testing.T) {
	if !rtnltest.Isolate(t) {
		return
	}
	spec := referenceSpec(t)
	network(t, spec.Node.IPs[0].String()+"/24")
	m := prepare(t, spec)
	zero := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	start := func() (api, controllers *started) {
		api, controllers = m.start(t, component.API, zero), m.start(t, component.Controllers, zero)
		api.waitReady(t, time.Minute, "etcd", "kube-apiserver", "bootstrap")
		controllers.waitReady(t, time.Minute, "namespaces", "kube-controller-manager", "kube-scheduler")
		return api, controllers
	}
	api, controllers := start()
	servesSettings(ctx, t, m.client(t, "admin", "orlop:cluster-admins"))
	// The processes find another level in etcd than the one at which they run. They end, so that
	// they start again with the stored level.
	storeLevel(ctx, t, m, emulation.BeforeLevels)
	stopAll(t, api, controllers)
	startsAgain(t, m.start(t, component.API, zero), m.start(t, component.Controllers, zero))

	api, controllers = start()
	emulates(ctx, t, m.client(t, "admin", "orlop:cluster-admins"), emulation.BeforeLevels)
	stopAll(t, api, controllers)
}

// servesSettings checks that the settings of config.Reference have an effect in the API server.
func servesSettings(ctx context.Context, t *testing.T, admin kubernetes.Interface) {
	t.Helper()
	if _, err := admin.Discovery().ServerResourcesForGroupVersion("resource.k8s.io/v1beta1"); err != nil {
		t.Errorf("runtimeConfig does not enable an API: %v", err)
	}
	if _, err := admin.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name:        "batch",
		Labels:      map[string]string{"pod-security.kubernetes.io/enforce": "privileged"},
		Annotations: map[string]string{"scheduler.alpha.kubernetes.io/node-selector": "example.com/pool=batch"},
	}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "batch"},
		Spec:       corev1.PodSpec{ServiceAccountName: "default", Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	created, err := admin.CoreV1().Pods("batch").Create(ctx, pod, metav1.CreateOptions{})
	for ; err != nil && strings.Contains(err.Error(), "serviceaccount"); created, err = admin.CoreV1().Pods("batch").Create(ctx, pod, metav1.CreateOptions{}) {
		select { // the controllers create the service account
		case <-ticker.C:
		case <-ctx.Done():
			t.Fatal(err)
		}
	}
	if err != nil || created.Spec.NodeSelector["example.com/pool"] != "batch" {
		t.Errorf("podNodeSelector does not set the node selector of a pod: %v, %v", created, err)
	}
	class := "orlop-local"
	_, err = admin.CoreV1().PersistentVolumeClaims("batch").Create(ctx, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "a"},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}, metav1.CreateOptions{})
	if err == nil || !strings.Contains(err.Error(), "insufficient quota") {
		t.Errorf("resourceQuota does not reject a claim without a quota: %v", err)
	}
}
