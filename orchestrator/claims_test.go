package main

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/orlop-os/orlop/pkg/admission/claim"
	"github.com/orlop-os/orlop/pkg/admission/inventory"
	"github.com/orlop-os/orlop/pkg/machineapi"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/pki"
)

// deploymentResource is the resource of upstream's MachineDeployment.
var deploymentResource = schema.GroupVersionResource{Group: "cluster.x-k8s.io", Version: "v1beta2", Resource: "machinedeployments"}

// claimed enables claims. It checks with the real API server that a MachineDeployment claims the
// approved waiting machine, and that the Machine object and the list for machined appear. A signed
// rule approves another machine. A node cannot read templates, rules and sets. `kubectl scale`
// removes the machine again.
func (w machineTest) claimed(t *testing.T, m machine) {
	t.Helper()
	for _, dir := range []string{m.dirs.API, m.dirs.Controllers} {
		write(t, filepath.Join(dir, nodespec.MachineObjectsFile), []byte(`{"enabled":true,"claims":true}`))
	}
	key, listed := "sha256:"+strings.Repeat("ab", 32), "sha256:"+strings.Repeat("cd", 32)
	const name = "rack-abababab"
	operator, admin := newOperator(t)
	list, err := json.Marshal(inventory.Listing{Members: []string{}, Names: []string{}, Operators: pki.EncodeCert(operator), Waiting: []inventory.Entry{
		{Key: key, Address: netip.MustParseAddr("10.0.0.77"), Since: time.Now(), Last: time.Now(), Host: inventory.Host{Serial: "SN-77", CPUs: 2}},
		{Key: listed, Address: netip.MustParseAddr("10.0.0.78"), Since: time.Now(), Last: time.Now(), Host: inventory.Host{Serial: "SN-78", CPUs: 2}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(m.dirs.Controllers, nodespec.HostsFile), list)
	signed := signedTemplate(t, admin)
	ref := map[string]any{"apiGroup": machineapi.GroupVersion.Group, "kind": "OrlopMachineTemplate", "name": "rack"}
	w.create(t, machineapi.OrlopMachineTemplates, "OrlopMachineTemplate", map[string]any{"template": map[string]any{"spec": map[string]any{
		"match": `host.cpus >= 2 && host.serial == "SN-77"`, "documents": string(signed.Documents), "signature": string(signed.Signature),
	}}})
	w.create(t, deploymentResource, "MachineDeployment", map[string]any{
		"clusterName": "test", "replicas": int64(1), "selector": map[string]any{"matchLabels": map[string]any{"set": "rack"}},
		"template": map[string]any{"metadata": map[string]any{"labels": map[string]any{"set": "rack"}}, "spec": map[string]any{
			"clusterName": "test", "bootstrap": map[string]any{"dataSecretName": ""}, "infrastructureRef": ref,
		}},
	})
	w.await(t, machineapi.OrlopMachines, name, "claim", func(o *unstructured.Unstructured) bool {
		fingerprint, _, _ := unstructured.NestedString(o.Object, "spec", "claim", "fingerprint")
		return fingerprint == key
	})
	w.await(t, machineResource, name, "phase Provisioning", func(o *unstructured.Unstructured) bool {
		phase, _, _ := unstructured.NestedString(o.Object, "status", "phase")
		return phase == "Provisioning" && len(o.GetFinalizers()) == 1
	})
	w.listed(t, m, func(l claim.List) bool {
		c, found := l.Of(key)
		_, _, err := l.Templates[c.Template].Verify([]*x509.Certificate{operator}, time.Now())
		return found && c.Name == name && err == nil
	})
	w.ruled(t, admin, listed)
	for _, resource := range []schema.GroupVersionResource{machineapi.OrlopMachineTemplates, machineapi.OrlopApprovalRules, deploymentResource} {
		if _, err := w.worker.Resource(resource).Namespace(machineapi.Namespace).List(w.ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("a node reads %s: %v, want forbidden", resource.Resource, err)
		}
	}
	deployments := w.admin.Resource(deploymentResource).Namespace(machineapi.Namespace)
	if _, err := deployments.Patch(w.ctx, "rack", types.MergePatchType, []byte(`{"spec":{"replicas":0}}`), metav1.PatchOptions{}, "scale"); err != nil {
		t.Errorf("kubectl scale: %v", err)
	}
	w.listed(t, m, func(l claim.List) bool {
		return len(l.Claims) == 0 && len(l.Removals) == 1 && l.Removals[0] == claim.Member{Name: name, Key: key}
	})
	w.await(t, deploymentResource, "rack", "phase Running", func(o *unstructured.Unstructured) bool {
		phase, _, _ := unstructured.NestedString(o.Object, "status", "phase")
		return phase == "Running"
	})
	if _, err := w.admin.Resource(machineResource).Namespace(machineapi.Namespace).Patch(w.ctx, name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
		t.Error(err)
	}
}

// create creates an object with the name rack, as soon as the API server serves its kind.
func (w machineTest) create(t *testing.T, resource schema.GroupVersionResource, kind string, spec map[string]any) {
	t.Helper()
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": resource.GroupVersion().String(), "kind": kind, "metadata": map[string]any{"name": "rack", "namespace": machineapi.Namespace}, "spec": spec,
	}}
	var last error
	err := wait.PollUntilContextTimeout(w.ctx, 100*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		_, last = w.admin.Resource(resource).Namespace(machineapi.Namespace).Create(ctx, object, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
		return last == nil || apierrors.IsInvalid(last) || apierrors.IsBadRequest(last), nil
	})
	if err != nil || last != nil {
		t.Fatalf("%s: %v, %v", kind, err, last)
	}
}

// listed waits until good is true for the list of claims that machined reads.
func (w machineTest) listed(t *testing.T, m machine, good func(claim.List) bool) {
	t.Helper()
	var last string
	err := wait.PollUntilContextTimeout(w.ctx, 100*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
		text, err := os.ReadFile(filepath.Join(m.dirs.Controllers, nodespec.ClaimsFile))
		if err != nil {
			last = err.Error()
			return false, nil
		}
		l, err := claim.ParseList(text, time.Now())
		last = string(text)
		return err == nil && good(l), nil
	})
	if err != nil {
		t.Fatalf("the list of claims: %v: %s", err, last)
	}
}

// ruled creates a signed rule that approves the waiting machine with the given key.
func (w machineTest) ruled(t *testing.T, admin *pki.Leaf, key string) {
	t.Helper()
	now := time.Now()
	rule, err := claim.SignRule(claim.Rule{Machines: []claim.Identity{{Serial: "SN-78"}}, Match: "host.cpus == 2", Maximum: 1, Expires: now.Add(30 * time.Minute)}, admin, now)
	if err != nil {
		t.Fatal(err)
	}
	w.create(t, machineapi.OrlopApprovalRules, "OrlopApprovalRule", map[string]any{"rule": string(rule.Text), "signature": string(rule.Signature)})
	w.await(t, machineapi.OrlopHosts, machineapi.HostName(key), "approval by the rule", func(o *unstructured.Unstructured) bool {
		by, _, _ := unstructured.NestedString(o.Object, "spec", "approval", "rule")
		return by == "rack"
	})
	w.await(t, machineapi.OrlopApprovalRules, "rack", "an approval", func(o *unstructured.Unstructured) bool {
		approved, _, _ := unstructured.NestedInt64(o.Object, "status", "approved")
		return approved == 1
	})
}

// newOperator returns the CA of an operator and an admin certificate.
func newOperator(t *testing.T) (*x509.Certificate, *pki.Leaf) {
	t.Helper()
	ca, err := pki.NewCA("operator", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	admin, err := ca.Issue(pki.Spec{CN: "alice", O: []string{pki.RoleAdmin}, Usage: pki.Client, TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	return ca.Cert, admin
}

// signedTemplate returns a template that an operator has signed.
func signedTemplate(t *testing.T, admin *pki.Leaf) claim.Signed {
	t.Helper()
	now := time.Now()
	s, err := claim.Sign(claim.Template{Documents: []byte("kind: Machine\n"), Prefix: "rack", Expires: now.Add(30 * time.Minute).Truncate(time.Second)}, admin, now)
	if err != nil {
		t.Fatal(err)
	}
	return s
}
