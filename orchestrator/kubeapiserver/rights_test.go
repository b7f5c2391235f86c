package kubeapiserver

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	rbacinformers "k8s.io/client-go/informers/rbac/v1"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"
)

// TestRestoreProbeRights deletes or empties the role, or its binding, that grants the right to read
// the server's health. It checks that both are restored, also after an attempt fails. An object
// whose annotation forbids this is not restored.
func TestRestoreProbeRights(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	wantRole, wantBinding := probeRights()
	// The binding was deleted while no API server was running.
	client := fake.NewClientset(wantRole.DeepCopy())
	roles, bindings := client.RbacV1().ClusterRoles(), client.RbacV1().ClusterRoleBindings()
	caches := informers.NewSharedInformerFactory(client, 0)
	refusals := 2
	client.PrependReactor("create", "clusterrolebindings", func(clienttesting.Action) (bool, runtime.Object, error) {
		refusals--
		return refusals >= 0, nil, errors.New("no bindings on Fridays")
	})
	ended, missed := make(chan struct{}), make(chan struct{}, 1)
	rbac := caches.Rbac().V1()
	rightsCaches(rbac)
	caches.Start(ctx.Done())
	caches.WaitForCacheSync(ctx.Done())
	go func() {
		restoreProbeRights(ctx, client, rbac, time.Millisecond, missed)
		close(ended)
	}()
	awaitRestored := func(change string) {
		t.Helper()
		err := wait.PollUntilContextCancel(ctx, 10*time.Millisecond, true, func(ctx context.Context) (bool, error) {
			role, err := roles.Get(ctx, lastBinding, metav1.GetOptions{})
			if err != nil {
				return false, ignoreMissing(err)
			}
			binding, err := bindings.Get(ctx, lastBinding, metav1.GetOptions{})
			if err != nil {
				return false, ignoreMissing(err)
			}
			return len(role.Rules) >= len(wantRole.Rules) && len(binding.Subjects) == len(wantBinding.Subjects), nil
		})
		if err != nil {
			t.Fatalf("%s: %v", change, err)
		}
	}
	missed <- struct{}{}
	awaitRestored("binding missing at the start")
	if err := bindings.Delete(ctx, lastBinding, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitRestored("binding deleted")
	if err := roles.Delete(ctx, lastBinding, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitRestored("role deleted")
	emptied := wantBinding.DeepCopy()
	emptied.Subjects = nil
	if _, err := bindings.Update(ctx, emptied, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitRestored("binding emptied")
	emptied.Annotations = map[string]string{"rbac.authorization.kubernetes.io/autoupdate": "false"}
	if _, err := bindings.Update(ctx, emptied, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	// restoreProbeRights checks both objects in one pass, so after the restore of the role, the
	// binding has been checked, too.
	if err := roles.Delete(ctx, lastBinding, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	err := wait.PollUntilContextCancel(ctx, 10*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		_, err := roles.Get(ctx, lastBinding, metav1.GetOptions{})
		return err == nil, ignoreMissing(err)
	})
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	<-ended
	if have, err := bindings.Get(t.Context(), lastBinding, metav1.GetOptions{}); err != nil || len(have.Subjects) != 0 {
		t.Errorf("the binding is %+v, %v; want it unchanged", have, err)
	}
}

func ignoreMissing(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// TestRightsMissing checks that rightsMissing reports a cluster without any role as new (fresh). A
// cluster that only lacks the binding for probes is not new.
func TestRightsMissing(t *testing.T) {
	_, binding := probeRights()
	admin := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: anyRole}}
	for title, c := range map[string]struct {
		have           []runtime.Object
		missing, fresh bool
	}{
		"nothing":              {nil, true, true},
		"all":                  {[]runtime.Object{admin, &binding}, false, false},
		"all but the last one": {[]runtime.Object{admin}, true, false},
	} {
		if missing, fresh := rightsMissing(t.Context(), fake.NewClientset(c.have...)); missing != c.missing || fresh != c.fresh {
			t.Errorf("%s: %v, %v", title, missing, fresh)
		}
	}
}

// upstreamObjects returns upstream's roles and bindings.
func upstreamObjects() (all []runtime.Object) {
	for _, o := range slices.Concat(bootstrappolicy.ClusterRoles(), bootstrappolicy.ControllerRoles()) {
		all = append(all, &o)
	}
	for _, o := range slices.Concat(bootstrappolicy.ClusterRoleBindings(), bootstrappolicy.ControllerRoleBindings()) {
		all = append(all, &o)
	}
	for _, roles := range bootstrappolicy.NamespaceRoles() {
		for _, o := range roles {
			all = append(all, &o)
		}
	}
	for _, bindings := range bootstrappolicy.NamespaceRoleBindings() {
		for _, o := range bindings {
			all = append(all, &o)
		}
	}
	return all
}

// stores are the caches of RBAC objects that the authorizer of an API server reads; no API server
// runs.
type stores struct{ rbacinformers.Interface }

// The method of returns the store for the kind of an object.
func (s stores) of(object any) cache.Store {
	switch object.(type) {
	case *rbacv1.ClusterRole:
		return s.ClusterRoles().Informer().GetStore()
	case *rbacv1.ClusterRoleBinding:
		return s.ClusterRoleBindings().Informer().GetStore()
	case *rbacv1.Role:
		return s.Roles().Informer().GetStore()
	default:
		return s.RoleBindings().Informer().GetStore()
	}
}

// TestHasUpstreamRights checks that hasUpstreamRights detects deleted and incomplete objects. It
// ignores additions, and changes of objects that upstream does not reconcile.
func TestHasUpstreamRights(t *testing.T) {
	const role, leader = "system:node", "system::leader-locking-kube-scheduler"
	more := rbacv1.PolicyRule{APIGroups: []string{"x"}, Resources: []string{"y"}, Verbs: []string{"get"}}
	for title, c := range map[string]struct {
		name     string
		change   func(object any) (keep bool)
		complete bool
	}{
		"deleted":              {role, func(any) bool { return false }, false},
		"deleted in namespace": {leader, func(any) bool { return false }, false},
		"binding without subjects": {leader, func(o any) bool {
			if b, ok := o.(*rbacv1.RoleBinding); ok {
				b.Subjects = nil
			}
			return true
		}, false},
		"rule removed": {role, editRole(func(r *rbacv1.ClusterRole) { r.Rules = r.Rules[1:] }), false},
		"rule added":   {role, editRole(func(r *rbacv1.ClusterRole) { r.Rules = append(r.Rules, more) }), true},
		"protected": {role, editRole(func(r *rbacv1.ClusterRole) {
			r.Rules, r.Annotations = nil, map[string]string{rbacv1.AutoUpdateAnnotationKey: "false"}
		}), true},
		"unchanged": {role, func(any) bool { return true }, true},
	} {
		caches, changed := stores{informers.NewSharedInformerFactory(nil, 0).Rbac().V1()}, 0
		for _, o := range upstreamObjects() {
			if m, err := meta.Accessor(o); err != nil {
				t.Fatal(err)
			} else if m.GetName() == c.name {
				if changed++; !c.change(o) {
					continue
				}
			}
			if err := caches.of(o).Add(o); err != nil {
				t.Fatal(err)
			}
		}
		if complete, err := hasUpstreamRights(caches); err != nil || complete != c.complete || changed == 0 {
			t.Errorf("%s: %t, %v; %d objects changed", title, complete, err, changed)
		}
	}
}

// editRole returns a function that changes a cluster role. The function returns true, so the role
// stays in the cache.
func editRole(edit func(*rbacv1.ClusterRole)) func(any) bool {
	return func(o any) bool {
		if r, ok := o.(*rbacv1.ClusterRole); ok {
			edit(r)
		}
		return true
	}
}

// TestReconcileUpstream checks that a deleted role of upstream causes a reconciliation, which is
// repeated after a failure. There is no reconciliation at the start, or after a change that leaves
// the role complete.
func TestReconcileUpstream(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	client := fake.NewClientset(upstreamObjects()...)
	factory := informers.NewSharedInformerFactory(client, 0)
	caches := factory.Rbac().V1()
	changed, err := watchUpstream(caches)
	if err != nil {
		t.Fatal(err)
	}
	factory.Start(ctx.Done())
	if err := updateUpstream(ctx, caches, func() error { return errors.New("updateUpstream updates roles that are complete") }); err != nil {
		t.Fatal(err)
	}
	passes := make(chan struct{})
	refused := false
	go restoreUpstream(ctx, caches, changed, time.Millisecond, func() error {
		passes <- struct{}{}
		refused = !refused
		if refused {
			return errors.New("no roles on Fridays")
		}
		return nil
	})
	const name = "system:node"
	roles := client.RbacV1().ClusterRoles()
	role, err := roles.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		metav1.SetMetaDataAnnotation(&role.ObjectMeta, "x", time.Now().String())
		if _, err := roles.Update(ctx, role, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		select {
		case <-passes:
			t.Fatal("a reconciliation although the role is complete")
		case <-time.After(5 * time.Millisecond):
		}
	}
	if err := roles.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		select {
		case <-passes:
		case <-ctx.Done():
			t.Fatal("the role is not restored")
		}
	}
}
