package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/kubernetes/pkg/registry/core/service/ipallocator"

	"github.com/orlop-os/orlop/pkg/nodespec"
)

// TestEnsure checks that a missing role or binding is created, that a correct object is left alone,
// that missing parts are added, and that a binding to another role is deleted and created again.
func TestEnsure(t *testing.T) {
	client := fake.NewClientset()
	roles, bindings := client.RbacV1().ClusterRoles(), client.RbacV1().ClusterRoleBindings()
	role := clusterRole("r", rule("", []string{"pods"}, "get"))
	binding := bind("b", "r", rbacv1.UserKind, "u")
	newer := clusterRole("r", rule("", []string{"pods"}, "get", "list"), rule("", []string{"nodes"}, "get"))
	for _, c := range []struct {
		what   string
		change func()
		writes int
		rights string
	}{
		{"missing objects", func() {}, 2, "[get] for r: u"},
		{"correct objects", func() {}, 0, "[get] for r: u"}, // a policy could forbid such an update
		{"more rights are wanted", func() {
			role.Rules[0].Verbs = []string{"get", "list"}
			binding.Subjects[0].Name = "w"
		}, 2, "[get] [list] for r: u w"},
		{"a role of a newer version", func() {
			if _, err := roles.Update(t.Context(), newer, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}, 0, "[get list] [get] for r: u w"},
		{"a binding to another role", func() { binding.RoleRef.Name = "s" }, 2, "[get list] [get] for s: w"},
	} {
		c.change()
		client.ClearActions()
		for _, object := range []runtime.Object{role.DeepCopy(), binding.DeepCopy()} {
			if err := Ensure(client, object); err != nil {
				t.Fatalf("%s: %v", c.what, err)
			}
		}
		writes := 0
		for _, a := range client.Actions() {
			if a.GetVerb() != "get" {
				writes++
			}
		}
		if writes != c.writes {
			t.Errorf("%s: %d writes, want %d", c.what, writes, c.writes)
		}
		haveRole, err := roles.Get(t.Context(), "r", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		haveBinding, err := bindings.Get(t.Context(), "b", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var rights strings.Builder
		for _, r := range haveRole.Rules {
			fmt.Fprint(&rights, r.Verbs, " ")
		}
		fmt.Fprintf(&rights, "for %s:", haveBinding.RoleRef.Name)
		for _, s := range haveBinding.Subjects {
			fmt.Fprint(&rights, " ", s.Name)
		}
		if rights.String() != c.rights {
			t.Errorf("%s: the rights are %s, want %s", c.what, rights.String(), c.rights)
		}
	}
}

// TestServiceOfOthers checks that a Service of another owner with the name of ours is left as it
// is, and that the error names the next step.
func TestServiceOfOthers(t *testing.T) {
	own := dnsService(nodespec.Spec{Network: nodespec.Network{DNSIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")}}})
	theirs := own.DeepCopy()
	theirs.Labels, theirs.Spec.Selector = nil, map[string]string{"app": "dns"}
	client := fake.NewClientset(theirs.DeepCopy())
	err := ensureService(t.Context(), client, own)
	if err == nil || !strings.Contains(err.Error(), "Service kube-system/kube-dns: belongs to another owner") {
		t.Errorf("the error is %v", err)
	}
	if left, err := client.CoreV1().Services(own.Namespace).Get(t.Context(), own.Name, metav1.GetOptions{}); err != nil || left.Spec.Selector["app"] != "dns" {
		t.Errorf("the Service of the other owner is now %+v, %v", left, err)
	}
}

// TestConflict checks that a conflicting Service of another owner is reported, that the start
// continues without our Service, and that our Service is created when the conflict has ended.
func TestConflict(t *testing.T) {
	own := dnsService(nodespec.Spec{Network: nodespec.Network{DNSIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")}}})
	theirs, moved, other := own.DeepCopy(), own.DeepCopy(), own.DeepCopy()
	theirs.Labels = nil
	moved.Spec.ClusterIP, moved.Spec.ClusterIPs = "10.96.0.99", []string{"10.96.0.99"}
	other.Name = "other"
	for what, c := range map[string]struct {
		there *corev1.Service
		want  string
	}{
		"a Service of another owner":       {theirs, "kube-dns: belongs to another owner"},
		"our Service with another address": {moved, "kube-dns: has addresses [10.96.0.99], expected [10.96.0.10]"},
		"another Service with the address": {other, "kube-dns: another Service has one of its addresses [10.96.0.10]"},
		"no conflict":                      {nil, ""},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		client := fake.NewClientset()
		all := client.CoreV1().Services(own.Namespace)
		if c.there != nil {
			if _, err := all.Create(ctx, c.there.DeepCopy(), metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		client.PrependReactor("create", "services", func(clienttesting.Action) (bool, runtime.Object, error) {
			if _, err := client.Tracker().Get(corev1.SchemeGroupVersion.WithResource("services"), own.Namespace, other.Name); err != nil {
				return false, nil, nil
			}
			return true, nil, apierrors.NewInvalid(schema.GroupKind{Kind: "Service"}, own.Name, field.ErrorList{
				field.Invalid(field.NewPath("spec", "clusterIPs"), own.Spec.ClusterIPs, "failed to allocate IP 10.96.0.10: "+ipallocator.ErrAllocated.Error())})
		})
		told := make(chan string, 10)
		next := func() string {
			select {
			case why := <-told:
				return why
			case <-ctx.Done():
				t.Fatalf("%s: no report", what)
				return ""
			}
		}
		waits := func(why string) { t.Errorf("%s: the start waits: %s", what, why) }
		if err := ensurePlaced(ctx, own.Name, func() error { return ensureService(ctx, client, own.DeepCopy()) }, waits, func(why string) { told <- why }); err != nil {
			t.Fatal(err)
		}
		if c.there != nil {
			if why := next(); !strings.Contains(why, c.want) {
				t.Errorf("%s: reported %q, want %q", what, why, c.want)
			}
			if err := all.Delete(ctx, c.there.Name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			if why := next(); why != "" {
				t.Errorf("%s: reported %q after the end of the conflict", what, why)
			}
		}
		if have, err := all.Get(ctx, own.Name, metav1.GetOptions{}); err != nil || !ours(have) || have.Spec.ClusterIP != "10.96.0.10" || len(told) > 0 {
			t.Errorf("%s: at the end, our Service is %+v, %v", what, have, err)
		}
	}
}

// TestProblems checks that problems are announced together, and that they do not make the component
// unready.
func TestProblems(t *testing.T) {
	var got []string
	said := &problems{why: map[string]string{}, announce: func(_ string, ready bool, detail string) { got = append(got, fmt.Sprint(ready, " ", detail)) }}
	said.of("start")("waiting")
	said.of("dns")("no DNS")
	said.started()
	said.of("node")("no label")
	said.of("dns")("")
	if want := []string{"false waiting", "false no DNS; waiting", "true problem: no DNS", "true problem: no DNS; no label", "true problem: no label"}; !slices.Equal(got, want) {
		t.Errorf("announced %q, want %q", got, want)
	}
}

// TestBackoff checks that rejections during a start are retried soon, and that a persistent
// rejection is retried rarely.
func TestBackoff(t *testing.T) {
	var all time.Duration
	for refusals := range reportAfter {
		all += delay(refusals)
	}
	if all > 6*time.Second || delay(reportAfter+2) != 4*retryInterval || delay(reportAfter+100) != maxBackoff {
		t.Errorf("the delays are %v in total during a start, then %v, and %v at most", all, delay(reportAfter+2), delay(reportAfter+100))
	}
}

// TestDeleteService checks that our own Service is deleted, and that a Service with a selector, and
// a Service of another owner for an external server, stay.
func TestDeleteService(t *testing.T) {
	own := dnsService(nodespec.Spec{Network: nodespec.Network{DNSIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")}}})
	theirs := own.DeepCopy()
	theirs.Spec.Selector = map[string]string{"k8s-app": "kube-dns"}
	outside := own.DeepCopy()
	outside.Labels = nil
	for what, c := range map[string]struct {
		have []runtime.Object
		left int
	}{"no Service": {nil, 0}, "our own": {[]runtime.Object{own.DeepCopy()}, 0}, "with a selector": {[]runtime.Object{theirs}, 1}, "of another owner, without a selector": {[]runtime.Object{outside}, 1}} {
		client := fake.NewClientset(c.have...)
		if err := deleteService(t.Context(), client, own); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if left, err := client.CoreV1().Services(own.Namespace).List(t.Context(), metav1.ListOptions{}); err != nil || len(left.Items) != c.left {
			t.Errorf("%s: %d Services are left, want %d; %v", what, len(left.Items), c.left, err)
		}
	}
}

// TestLabelPatch checks that the label is always set, that the taint is set only if it is wanted,
// and that other taints stay.
func TestLabelPatch(t *testing.T) {
	own := corev1.Taint{Key: ControlPlaneKey, Effect: corev1.TaintEffectNoSchedule}
	other := corev1.Taint{Key: "gpu", Value: "1", Effect: corev1.TaintEffectNoSchedule}
	// a taint of the user
	harder := corev1.Taint{Key: ControlPlaneKey, Effect: corev1.TaintEffectNoExecute}
	labels := map[string]string{ControlPlaneKey: ""}
	for name, c := range map[string]struct {
		labels  map[string]string
		taints  []corev1.Taint
		tainted bool
		want    string
	}{
		"a new Node":                       {nil, nil, false, `{"metadata":{"labels":{"node-role.kubernetes.io/control-plane":""}}}`},
		"already labeled":                  {labels, nil, false, ``},
		"already labeled and tainted":      {labels, []corev1.Taint{other, own}, true, ``},
		"the taint is wanted, but missing": {labels, []corev1.Taint{other}, true, `{"metadata":{"resourceVersion":"7"},"spec":{"taints":[{"key":"gpu","value":"1","effect":"NoSchedule"},{"key":"node-role.kubernetes.io/control-plane","effect":"NoSchedule"}]}}`},
		"the taint is no longer wanted":    {labels, []corev1.Taint{own}, false, `{"metadata":{"resourceVersion":"7"},"spec":{"taints":[]}}`},
		"a user's taint remains":           {labels, []corev1.Taint{own, harder}, false, `{"metadata":{"resourceVersion":"7"},"spec":{"taints":[{"key":"node-role.kubernetes.io/control-plane","effect":"NoExecute"}]}}`},
	} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", ResourceVersion: "7", Labels: c.labels}, Spec: corev1.NodeSpec{Taints: c.taints}}
		if have := string(labelPatch(node, c.tainted)); have != c.want {
			t.Errorf("%s: %s, want %s", name, have, c.want)
		}
	}
}

// TestLabelNode checks that changes of the label and the taint are reverted until the context ends.
func TestLabelNode(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	client := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}})
	refusals := 2 // by a webhook
	client.PrependReactor("patch", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		if refusals--; refusals >= 0 {
			return true, nil, errors.New("no changes on Fridays")
		}
		return false, nil, nil
	})
	var told []string
	ended := make(chan error, 1)
	running, stop := context.WithCancel(ctx)
	go func() {
		ended <- labelNode(running, client, "n", true, time.Millisecond, func(why string) { told = append(told, why) })
	}()
	marked := func() {
		t.Helper()
		err := wait.PollUntilContextCancel(ctx, 10*time.Millisecond, true, func(ctx context.Context) (bool, error) {
			node, err := client.CoreV1().Nodes().Get(ctx, "n", metav1.GetOptions{})
			return err == nil && labelPatch(node, true) == nil, err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	marked()
	node, err := client.CoreV1().Nodes().Get(ctx, "n", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node.Labels, node.Spec.Taints = nil, nil
	if _, err := client.CoreV1().Nodes().Update(ctx, node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	marked()
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if len(told) != 3 || !strings.Contains(told[1], "no changes on Fridays") || told[2] != "" {
		t.Errorf("reported %q, want two rejections, and then none", told)
	}
}
