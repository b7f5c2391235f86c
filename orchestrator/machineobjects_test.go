package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/orlop-os/orlop/orchestrator/machines"
	"github.com/orlop-os/orlop/orchestrator/scheduler"
	"github.com/orlop-os/orlop/pkg/admission/inventory"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/machineapi"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/service/notify"
)

// machineResource is the resource of upstream's Machine.
var machineResource = schema.GroupVersionResource{Group: "cluster.x-k8s.io", Version: "v1beta2", Resource: "machines"}

// checkResource is the resource of upstream's MachineHealthCheck.
var checkResource = machineResource.GroupVersion().WithResource("machinehealthchecks")

// machineTest has two clients of the API server: one of an administrator and one of a worker.
type machineTest struct {
	ctx           context.Context
	admin, worker dynamic.Interface
}

// machineObjects enables the objects of machines and checks them with the real API server. Each
// Node gets its objects, and kubectl shows their columns and descriptions. A node writes only the
// status of its own OrlopMachine. If an operator changes the version of a Machine, its OrlopMachine
// gets a permit. A waiting machine has an OrlopHost, and can be approved and claimed. There are
// objects about the whole cluster, and metrics about the machines. An unhealthy machine gets an
// order. When the objects are disabled, none of them is deleted.
func machineObjects(ctx context.Context, t *testing.T, m machine, admin kubernetes.Interface, api, controllers *started) {
	const name, other = "worker-1", "worker-2"
	for _, n := range []string{name, other} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n, Labels: map[string]string{corev1.LabelHostname: n}}}
		if _, err := m.client(t, "system:node:"+n, "system:nodes").CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		defer admin.CoreV1().Nodes().Delete(context.Background(), n, metav1.DeleteOptions{})
	}
	nodes := admin.CoreV1().Nodes()
	modify(ctx, t, nodes.Get, nodes.UpdateStatus, name, func(n *corev1.Node) {
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now()}}
	})
	w := machineTest{
		ctx:    ctx,
		admin:  dynamic.NewForConfigOrDie(m.config(t, "admin", "orlop:cluster-admins")),
		worker: dynamic.NewForConfigOrDie(m.config(t, "system:node:"+name, "system:nodes")),
	}
	before, began := "api "+api.usage(t)+", controllers "+controllers.usage(t), time.Now()
	m.enableMachineObjects(t, true)
	w.await(t, machineapi.OrlopMachines, name, "object", func(*unstructured.Unstructured) bool { return true })
	w.await(t, machineapi.OrlopMachines, other, "object", func(*unstructured.Unstructured) bool { return true })
	t.Logf("objects after %s", time.Since(began).Round(100*time.Millisecond))
	waitNode(ctx, t, admin, name, "providerID", func(n *corev1.Node) bool { return n.Spec.ProviderID == "orlop:///test/"+name })

	w.shown(t, admin, name)
	w.limited(t, name, other)
	w.updated(t, name)
	w.waiting(t, m.dirs.Controllers)
	w.claimed(t, m)
	w.described(t, m.dirs.Controllers, name)
	w.measured(t, m.config(t, "admin", "orlop:cluster-admins"), name)
	w.repaired(t, name)

	t.Logf("before: %s", before)
	t.Logf("after: api %s, controllers %s", api.usage(t), controllers.usage(t))
	m.enableMachineObjects(t, false)
	controllers.waitState(t, 20*time.Second, machines.Name, func(m notify.Message) bool { return m.Ready && m.Detail == "" })
	if _, err := w.admin.Resource(machineResource).Namespace(machineapi.Namespace).Get(ctx, name, metav1.GetOptions{}); err != nil {
		t.Errorf("cannot read the Machine after the objects are disabled: %v", err)
	}
}

// enableMachineObjects enables or disables the objects of machines in the API server and the
// controllers. It writes the file that machined writes for each of these processes.
func (m machine) enableMachineObjects(t *testing.T, enabled bool) {
	t.Helper()
	for _, dir := range []string{m.dirs.API, m.dirs.Controllers} {
		write(t, filepath.Join(dir, nodespec.MachineObjectsFile), fmt.Appendf(nil, `{"enabled":%t}`, enabled))
	}
}

// await waits, for a minute at most, until the function good returns true for an object. The text
// what describes the expected state in the failure message.
func (w machineTest) await(t *testing.T, resource schema.GroupVersionResource, name, what string, good func(*unstructured.Unstructured) bool) {
	t.Helper()
	var last any
	err := wait.PollUntilContextTimeout(w.ctx, 100*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		object, err := w.admin.Resource(resource).Namespace(machineapi.Namespace).Get(ctx, name, metav1.GetOptions{})
		if last = err; err != nil {
			return false, nil
		}
		last = object.Object
		return good(object), nil
	})
	if err != nil {
		t.Fatalf("%s %s has no %s within a minute: %v", resource.Resource, name, what, last)
	}
}

// shown checks the columns of kubectl get and the text of kubectl explain.
func (w machineTest) shown(t *testing.T, admin kubernetes.Interface, name string) {
	t.Helper()
	rest := admin.Discovery().RESTClient()
	table := func(group string) string {
		raw, err := rest.Get().AbsPath("/apis/"+group+"/namespaces/"+machineapi.Namespace+"/"+map[bool]string{true: "machines", false: "orlopmachines"}[strings.HasPrefix(group, "cluster.")]).
			SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").Do(w.ctx).Raw()
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	for group, columns := range map[string][]string{
		"cluster.x-k8s.io/v1beta2":                 {"Cluster", "Node Name", "Ready", "Up-to-date", "Phase", "Version"},
		"infrastructure.cluster.x-k8s.io/v1alpha1": {"Role", "Ready", "Version", "Kubernetes", "Permitted", "Failed"},
	} {
		text := table(group)
		for _, c := range append(columns, name) {
			if !strings.Contains(text, `"`+c+`"`) {
				t.Errorf("%s: the table has no %s: %s", group, c, text)
			}
		}
	}
	raw, err := rest.Get().AbsPath("/openapi/v3/apis/infrastructure.cluster.x-k8s.io/v1alpha1").Do(w.ctx).Raw()
	if err != nil || !strings.Contains(string(raw), "release is the release that an operator wants on this machine") {
		t.Errorf("the OpenAPI document has no description of the field release: %d bytes, %v", len(raw), err)
	}
}

// limited checks that a node can read its own OrlopMachine and write its status, and nothing else.
func (w machineTest) limited(t *testing.T, name, other string) {
	t.Helper()
	own := w.worker.Resource(machineapi.OrlopMachines).Namespace(machineapi.Namespace)
	merge := func(on dynamic.ResourceInterface, name, text string, part ...string) error {
		_, err := on.Patch(w.ctx, name, types.MergePatchType, []byte(text), metav1.PatchOptions{}, part...)
		return err
	}
	if all, err := own.List(w.ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name}); err != nil || len(all.Items) != 1 {
		t.Errorf("a node cannot read its own OrlopMachine: %v", err)
	}
	status := `{"status":{"release":{"version":"1.1.0","kubernetes":"v1.37.2"},"conditions":[{"type":"Ready","status":"True","reason":"Healthy","message":"","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`
	if err := merge(own, name, status, "status"); err != nil {
		t.Errorf("a node cannot write the status of its own OrlopMachine: %v", err)
	}
	upstream := w.worker.Resource(machineResource).Namespace(machineapi.Namespace)
	for what, err := range map[string]error{
		"the status of the OrlopMachine of another machine": merge(own, other, status, "status"),
		"the specification of its own OrlopMachine":         merge(own, name, `{"spec":{"release":{"version":"1.0.0"}}}`),
		"the specification of its own Machine":              merge(upstream, name, `{"spec":{"version":"v1.38.0"}}`),
		"the status of its own Machine":                     merge(upstream, name, `{"status":{"phase":"Running"}}`, "status"),
		"the deletion of its own OrlopMachine":              own.Delete(w.ctx, name, metav1.DeleteOptions{}),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("a node writes %s: %v, want forbidden", what, err)
		}
	}
	if err := merge(w.admin.Resource(machineapi.OrlopMachines).Namespace(machineapi.Namespace), name, `{"spec":{"release":{"version":"latest"}}}`); !apierrors.IsInvalid(err) {
		t.Errorf("a wanted release that is no version: %v, want invalid", err)
	}
}

// updated changes the version of Kubernetes in the Machine of the worker. It checks that the
// controllers permit the matching release of the catalogue, and that they remove the permit when
// the worker has reported this release.
func (w machineTest) updated(t *testing.T, name string) {
	t.Helper()
	merge := func(on dynamic.Interface, resource schema.GroupVersionResource, name, text string, part ...string) {
		t.Helper()
		if _, err := on.Resource(resource).Namespace(machineapi.Namespace).Patch(w.ctx, name, types.MergePatchType, []byte(text), metav1.PatchOptions{}, part...); err != nil {
			t.Fatal(err)
		}
	}
	merge(w.admin, machineapi.OrlopClusters, "test", `{"spec":{"releases":[{"version":"1.2.0","kubernetes":"v1.37.3"}],"rollout":{"maxUnavailable":100}}}`)
	merge(w.admin, machineResource, name, `{"spec":{"version":"v1.37.3"}}`)
	w.await(t, machineapi.OrlopMachines, name, "permit", func(o *unstructured.Unstructured) bool {
		version, _, _ := unstructured.NestedString(o.Object, "spec", "permit", "release", "version")
		return version == "1.2.0"
	})
	merge(w.worker, machineapi.OrlopMachines, name, `{"status":{"release":{"version":"1.2.0","kubernetes":"v1.37.3"}}}`, "status")
	w.await(t, machineResource, name, "condition UpToDate", func(o *unstructured.Unstructured) bool {
		conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
		return slices.ContainsFunc(conditions, func(c any) bool {
			values, ok := c.(map[string]any)
			return ok && values["type"] == "UpToDate" && values["status"] == "True" && values["observedGeneration"] == o.GetGeneration()
		})
	})
	w.await(t, machineapi.OrlopMachines, name, "removal of its permit", func(o *unstructured.Unstructured) bool {
		_, permitted, _ := unstructured.NestedMap(o.Object, "spec", "permit")
		return !permitted
	})
}

// waiting writes the list of waiting machines, as machined does. It checks that the machine in the
// list gets an OrlopHost, that an administrator can approve the machine, and that a node can
// neither read nor write an OrlopHost.
func (w machineTest) waiting(t *testing.T, dir string) {
	t.Helper()
	key := "sha256:" + strings.Repeat("ab", 32)
	list, err := json.Marshal(inventory.Listing{Waiting: []inventory.Entry{{
		Key: key, Address: netip.MustParseAddr("10.0.0.77"), Since: time.Now(), Last: time.Now(),
		Host: inventory.Host{Serial: "SN-77", CPUs: 2, MemoryMiB: 2048, Disks: []inventory.Disk{{Name: "vda", SizeMiB: 8192}}},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, nodespec.HostsFile), list)
	name := machineapi.HostName(key)
	w.await(t, machineapi.OrlopHosts, name, "inventory", func(o *unstructured.Unstructured) bool {
		serial, _, _ := unstructured.NestedString(o.Object, "status", "inventory", "serial")
		return serial == "SN-77"
	})
	approve := func(fingerprint string) error {
		text := fmt.Sprintf(`{"spec":{"approval":{"fingerprint":%q}}}`, fingerprint)
		_, err := w.admin.Resource(machineapi.OrlopHosts).Namespace(machineapi.Namespace).Patch(w.ctx, name, types.MergePatchType, []byte(text), metav1.PatchOptions{})
		return err
	}
	if err := approve("sha256:" + strings.Repeat("cd", 32)); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "compare it with the console of the machine") {
		t.Errorf("an approval with the fingerprint of another machine: %v, want invalid", err)
	}
	if err := approve(key); err != nil {
		t.Fatal(err)
	}
	w.await(t, machineapi.OrlopHosts, name, "condition Approved", func(o *unstructured.Unstructured) bool {
		conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
		return slices.ContainsFunc(conditions, func(c any) bool {
			values, ok := c.(map[string]any)
			return ok && values["type"] == machineapi.ConditionApproved && values["status"] == "True"
		})
	})
	hosts := w.worker.Resource(machineapi.OrlopHosts).Namespace(machineapi.Namespace)
	if _, err := hosts.List(w.ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a node reads the OrlopHosts of waiting machines: %v, want forbidden", err)
	}
	if _, err := hosts.Patch(w.ctx, name, types.MergePatchType, []byte(`{"spec":{"approval":null}}`), metav1.PatchOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a node writes the OrlopHost of a waiting machine: %v, want forbidden", err)
	}
}

// described writes the report about the health of the cluster, as machined does. It checks that the
// objects ClusterHealth and Component show the report, and that a node cannot read them.
func (w machineTest) described(t *testing.T, dir, name string) {
	t.Helper()
	health, err := proto.Marshal(&api.ClusterHealthResponse{
		Cluster: "test", Machine: "node-1", Healthy: true, At: timestamppb.Now(), Etcd: &api.ClusterEtcd{Leader: "node-1"},
		Machines: []*api.ClusterMachine{
			{Name: "node-1", Address: "127.0.0.1", Role: "controlplane", Version: "1.1.0", Kubernetes: "v1.37.2", Ready: true},
			{Name: name, Address: "10.0.0.21", Role: "worker", Version: "1.1.0", Kubernetes: "v1.37.2", Failed: []string{"kubelet"}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	report, err := json.Marshal(nodespec.ClusterReport{Health: health, Access: nodespec.AccessPoints{Issuers: []string{"https://login.example.com"}}})
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, nodespec.ClusterReportFile), report)
	ready := func(status string) func(*unstructured.Unstructured) bool {
		return func(o *unstructured.Unstructured) bool {
			conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
			return slices.ContainsFunc(conditions, func(c any) bool {
				values, ok := c.(map[string]any)
				return ok && values["type"] == machineapi.ConditionReady && values["status"] == status
			})
		}
	}
	w.await(t, machineapi.ClusterHealths, "test", "condition Ready", ready("True"))
	w.await(t, machineapi.Components, "kubelet", "failed check", ready("False"))
	w.await(t, machineapi.Components, "kube-scheduler", "list of plugins", func(o *unstructured.Unstructured) bool {
		return ready("True")(o) && strings.Contains(fmt.Sprint(o.Object), "NodeResourcesFit")
	})
	w.await(t, machineapi.Components, "kube-apiserver", "list of plugins", func(o *unstructured.Unstructured) bool {
		text := fmt.Sprint(o.Object)
		return ready("True")(o) && strings.Contains(text, "OrlopMachineAccess") && strings.Contains(text, "https://login.example.com") && strings.Contains(text, "RBAC")
	})
	for _, resource := range []schema.GroupVersionResource{machineapi.ClusterHealths, machineapi.Components} {
		if _, err := w.worker.Resource(resource).Namespace(machineapi.Namespace).List(w.ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("a node reads %s: %v, want forbidden", resource.Resource, err)
		}
	}
}

// measured checks that the endpoint of the controllers has the metrics of the machines.
func (w machineTest) measured(t *testing.T, admin *rest.Config, name string) {
	t.Helper()
	admin = rest.CopyConfig(admin)
	admin.Host, admin.ServerName = fmt.Sprintf("https://127.0.0.1:%d", scheduler.Port), "localhost"
	text, err := kubernetes.NewForConfigOrDie(admin).Discovery().RESTClient().Get().AbsPath("/metrics").Do(w.ctx).Raw()
	if err != nil {
		t.Fatalf("cannot read the metrics of the controllers: %v", err)
	}
	for _, want := range []string{
		fmt.Sprintf(`orlop_machine_ready{machine=%q}`, name), fmt.Sprintf(`orlop_machine_condition{condition="UpToDate",machine=%q,status="True"} 1`, name),
		fmt.Sprintf(`orlop_machine_info{kubernetes="v1.37.3",machine=%q,release="1.2.0",role="worker"} 1`, name), `orlop_rollout_machines{state="UpToDate"}`,
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the metrics of the controllers have no %s", want)
		}
	}
}

// repaired creates a MachineHealthCheck that finds the worker unhealthy. It checks that the
// controllers order the first step of the repair, and that the status of the MachineHealthCheck
// counts one unhealthy machine.
func (w machineTest) repaired(t *testing.T, name string) {
	t.Helper()
	// The check is about a condition that Kubernetes does not know. A check of the condition Ready
	// would not work, because Kubernetes changes this condition of a Node without a kubelet.
	broken := `{"status":{"conditions":[{"type":"DiskBroken","status":"True"}]}}`
	if _, err := w.admin.Resource(corev1.SchemeGroupVersion.WithResource("nodes")).Patch(w.ctx, name, types.StrategicMergePatchType, []byte(broken), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	check := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineHealthCheck", "metadata": map[string]any{"name": "all"},
		"spec": map[string]any{
			"clusterName": "test", "selector": map[string]any{"matchLabels": map[string]any{"cluster.x-k8s.io/cluster-name": "test"}},
			"checks": map[string]any{"unhealthyNodeConditions": []any{map[string]any{"type": "DiskBroken", "status": "True", "timeoutSeconds": int64(0)}}},
		},
	}}
	checks := w.admin.Resource(checkResource).Namespace(machineapi.Namespace)
	if _, err := w.worker.Resource(checkResource).Namespace(machineapi.Namespace).Create(w.ctx, check, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a node creates a MachineHealthCheck: %v, want forbidden", err)
	}
	if _, err := checks.Create(w.ctx, check, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.await(t, machineapi.OrlopMachines, name, "order", func(o *unstructured.Unstructured) bool {
		step, _, _ := unstructured.NestedString(o.Object, "spec", "repair", "step")
		return step == "RestartServices"
	})
	w.await(t, checkResource, "all", "status", func(o *unstructured.Unstructured) bool {
		expected, _, _ := unstructured.NestedInt64(o.Object, "status", "expectedMachines")
		healthy, _, _ := unstructured.NestedInt64(o.Object, "status", "currentHealthy")
		return expected > 0 && healthy == expected-1
	})
	if err := checks.Delete(w.ctx, "all", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
}
