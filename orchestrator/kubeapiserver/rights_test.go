package kubeapiserver

import (
	"context"
	"errors"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// TestRestoreProbeRights checks that the right to read the server's health is restored after its
// role or its binding was deleted or emptied, also after a rejection, and not if the annotation
// forbids it.
func TestRestoreProbeRights(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	wantRole, wantBinding := probeRights()
	// the binding was deleted while no server was running
	client := fake.NewClientset(wantRole.DeepCopy())
	roles, bindings := client.RbacV1().ClusterRoles(), client.RbacV1().ClusterRoleBindings()
	watched := make(chan struct{}, 2)
	client.PrependWatchReactor("*", func(a clienttesting.Action) (bool, watch.Interface, error) {
		w, err := client.Tracker().Watch(a.GetResource(), "")
		watched <- struct{}{}
		return true, w, err
	})
	refusals := 2
	client.PrependReactor("create", "clusterrolebindings", func(clienttesting.Action) (bool, runtime.Object, error) {
		refusals--
		return refusals >= 0, nil, errors.New("no bindings on Fridays")
	})
	ended, missed := make(chan struct{}), make(chan struct{}, 1)
	go func() {
		restoreProbeRights(ctx, client, time.Millisecond, missed)
		close(ended)
	}()
	<-watched
	<-watched
	back := func(what string) {
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
			t.Fatalf("%s: %v", what, err)
		}
	}
	missed <- struct{}{}
	back("binding missing since before")
	if err := bindings.Delete(ctx, lastBinding, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	back("binding deleted")
	if err := roles.Delete(ctx, lastBinding, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	back("role deleted")
	emptied := wantBinding.DeepCopy()
	emptied.Subjects = nil
	if _, err := bindings.Update(ctx, emptied, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	back("binding emptied")
	emptied.Annotations = map[string]string{"rbac.authorization.kubernetes.io/autoupdate": "false"}
	if _, err := bindings.Update(ctx, emptied, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	// the restored binding follows after a check of both objects
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
		t.Errorf("%+v, %v: want it as it was left", have, err)
	}
}

func ignoreMissing(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// TestRightsMissing checks that a cluster without any role is new, and that a cluster that only
// lacks the binding for probes is not.
func TestRightsMissing(t *testing.T) {
	_, binding := probeRights()
	admin := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: anyRole}}
	for what, c := range map[string]struct {
		have           []runtime.Object
		missing, fresh bool
	}{
		"nothing":              {nil, true, true},
		"all":                  {[]runtime.Object{admin, &binding}, false, false},
		"all but the last one": {[]runtime.Object{admin}, true, false},
	} {
		if missing, fresh := rightsMissing(t.Context(), fake.NewClientset(c.have...)); missing != c.missing || fresh != c.fresh {
			t.Errorf("%s: %v, %v", what, missing, fresh)
		}
	}
}

// TestReconcileUpstream checks that a deleted role of upstream's is reconciled, also after a
// rejection, and that no reconciliation runs at the start.
func TestReconcileUpstream(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "system:node", Labels: map[string]string{"kubernetes.io/bootstrapping": "rbac-defaults"}}}
	client := fake.NewClientset(role)
	watched := make(chan struct{}, 4)
	client.PrependWatchReactor("*", func(a clienttesting.Action) (bool, watch.Interface, error) {
		w, err := client.Tracker().Watch(a.GetResource(), "")
		watched <- struct{}{}
		return true, w, err
	})
	passes := make(chan struct{})
	refused := false
	go reconcileUpstream(ctx, client, time.Millisecond, func() error {
		passes <- struct{}{}
		refused = !refused
		if refused {
			return errors.New("no roles on Fridays")
		}
		return nil
	})
	for range cap(watched) {
		<-watched
	}
	select {
	case <-passes:
		t.Fatal("a pass without a change")
	default:
	}
	if err := client.RbacV1().ClusterRoles().Delete(ctx, role.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		select {
		case <-passes:
		case <-ctx.Done():
			t.Fatal("the role is not put back")
		}
	}
}
