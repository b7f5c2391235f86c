package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/kubernetes"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/etcd"
	"github.com/orlop-os/orlop/orchestrator/level"
	"github.com/orlop-os/orlop/pkg/emulation"
	"github.com/orlop-os/orlop/pkg/kernel/rtnl/rtnltest"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// TestLevels raises the level of a control plane from the previous level to its own. At the
// previous level, API server, controllers and scheduler emulate the previous version. After the
// raise, both processes (API, controllers) exit, and serve their own version at the next start. The
// API for certificates of pods is served at both levels.
func TestLevels(t *testing.T) {
	if !rtnltest.Isolate(t) {
		return
	}
	spec := testSpec()
	spec.PodCertificates = true
	network(t, spec.Node.IPs[0].String()+"/24")
	m := prepare(t, spec)
	zero := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	start := func() (api, controllers *started, admin kubernetes.Interface) {
		api, controllers = m.start(t, component.API, zero), m.start(t, component.Controllers, zero)
		api.waitReady(t, time.Minute, "etcd", "kube-apiserver", "bootstrap", etcd.LevelName)
		controllers.waitReady(t, time.Minute, "kube-controller-manager", "kube-scheduler", "pod-certificates")
		return api, controllers, m.client(t, "admin", "orlop:cluster-admins")
	}
	api, controllers, admin := start()
	emulates(ctx, t, admin, level.Own())
	old := emulation.BeforeLevels
	// A process at the current level reads the stored level only at its next start.
	storeLevel(ctx, t, m, old)
	stopAll(t, api, controllers)
	startsAgain(t, m.start(t, component.API, zero), m.start(t, component.Controllers, zero))

	api, controllers, admin = start()
	emulates(ctx, t, admin, old)
	if _, err := admin.Discovery().ServerResourcesForGroupVersion("storagemigration.k8s.io/v1"); !apierrors.IsNotFound(err) {
		t.Errorf("an API of Kubernetes 1.37 is served at level %s: %v", old, err)
	}
	if _, err := admin.CertificatesV1().PodCertificateRequests("").List(ctx, metav1.ListOptions{}); err != nil {
		t.Error(err)
	}
	rollOut(ctx, t, admin, "old")
	api.waitDetail(t, time.Minute, etcd.LevelName, "level 1.36, finalize possible")

	answer, err := etcd.Commands["raise-level"](ctx, spec, m.dirs, strings.NewReader(`{"by":"dora"}`))
	if err != nil || answer != (nodespec.LevelRaised{From: old, To: level.Own()}) {
		t.Fatalf("%+v, %v", answer, err)
	}
	startsAgain(t, api, controllers)
	api, controllers, admin = start()
	emulates(ctx, t, admin, level.Own())
	if _, err := admin.Discovery().ServerResourcesForGroupVersion("storagemigration.k8s.io/v1"); err != nil {
		t.Error(err)
	}
	rollOut(ctx, t, admin, "new")
	if _, err := admin.AppsV1().Deployments("default").Get(ctx, "old", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	stopAll(t, api, controllers)
}

// stopAll stops processes.
func stopAll(t *testing.T, all ...*started) {
	t.Helper()
	for _, p := range all {
		if err := p.stop(t, time.Minute); err != nil {
			t.Errorf("%s: ended with: %v", p.log, err)
		}
	}
}

// storeLevel replaces the level in etcd by next.
func storeLevel(ctx context.Context, t *testing.T, m machine, next emulation.Minor) {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{"unix://" + m.dirs.EtcdSocket()}, DialTimeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Put(ctx, "/orlop/level", fmt.Sprintf(`{"kubernetes":%q}`, next)); err != nil {
		t.Fatal(err)
	}
}

// startsAgain waits until each process has ended by itself, to be started again.
func startsAgain(t *testing.T, all ...*started) {
	t.Helper()
	for _, p := range all {
		select {
		case err := <-p.ended:
			if log := tail(p.log, 5); err == nil || !strings.Contains(log, "the process starts again") {
				t.Errorf("the process ended with: %v\n%s", err, log)
			}
		case <-time.After(time.Minute):
			t.Fatalf("the process does not end\n%s", tail(p.log, 20))
		}
	}
}

// emulates checks that the API server emulates the minor version want.
func emulates(ctx context.Context, t *testing.T, admin kubernetes.Interface, want emulation.Minor) {
	t.Helper()
	text, err := admin.Discovery().RESTClient().Get().AbsPath("/version").Do(ctx).Raw()
	if err != nil {
		t.Fatal(err)
	}
	var have version.Info
	if err := json.Unmarshal(text, &have); err != nil {
		t.Fatal(err)
	}
	if got := have.EmulationMajor + "." + have.EmulationMinor; got != want.String() {
		t.Errorf("the API server emulates %s, want %s", got, want)
	}
}

// rollOut creates a Deployment and waits until the controllers have created its pod.
func rollOut(ctx context.Context, t *testing.T, admin kubernetes.Interface, name string) {
	t.Helper()
	labels := map[string]string{"app": name}
	_, err := admin.AppsV1().Deployments("default").Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pods, err := admin.CoreV1().Pods("default").Watch(ctx, metav1.ListOptions{LabelSelector: "app=" + name})
	if err != nil {
		t.Fatal(err)
	}
	defer pods.Stop()
	if _, ok := <-pods.ResultChan(); !ok {
		t.Fatalf("the Deployment %s has no pod: %v", name, ctx.Err())
	}
}
