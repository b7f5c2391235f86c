package kubeapiserver

import (
	"context"
	"fmt"
	"slices"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	rbacinformers "k8s.io/client-go/informers/rbac/v1"
	"k8s.io/client-go/tools/cache"
	rbac "k8s.io/component-helpers/auth/rbac/reconciliation"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"

	"github.com/orlop-os/orlop/pkg/backoff"
	"github.com/orlop-os/orlop/pkg/cell"
)

// The label on upstream's own roles and bindings.
const (
	bootstrapping = "kubernetes.io/bootstrapping"
	rbacDefaults  = "rbac-defaults"
)

// reconcileUpstream restores upstream's roles and bindings whenever one of them was changed or
// deleted, until ctx is done. Upstream itself restores them only at each start, and a controller
// without its role fails with errors that name no role. The function reconcile reads every object,
// so it runs only if a part is missing in the caches of the authorizer.
func reconcileUpstream(ctx context.Context, have rbacinformers.Interface, retryDelay time.Duration, reconcile func() error) {
	changed, err := watchUpstream(have)
	if err != nil {
		klog.ErrorS(err, "Cannot watch upstream's roles; the next start restores them")
		return
	}
	restoreUpstream(ctx, have, changed, retryDelay, reconcile)
}

// watchUpstream returns a signal that is set by each update or deletion of one of upstream's
// objects.
func watchUpstream(have rbacinformers.Interface) (cell.Signal, error) {
	changed := cell.NewSignal()
	own := func(o metav1.Object) bool { return o.GetLabels()[bootstrapping] == rbacDefaults }
	return changed, watchChanges(own, changed.Wake, rightsCaches(have)...)
}

// restoreUpstream calls updateUpstream after changes, until ctx is done.
func restoreUpstream(ctx context.Context, have rbacinformers.Interface, changed cell.Signal, retryDelay time.Duration, reconcile func() error) {
	for {
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
		if err := updateUpstream(ctx, have, reconcile); err != nil && ctx.Err() == nil {
			klog.ErrorS(err, "Cannot restore upstream's roles; it is retried", "after", retryDelay)
			changed.Wake()
		}
		// Changes come in groups, so the next pass waits for the rest of a group.
		if backoff.Sleep(ctx, retryDelay) != nil {
			return
		}
	}
}

// updateUpstream calls reconcile if one of upstream's roles or bindings is missing or incomplete.
func updateUpstream(ctx context.Context, have rbacinformers.Interface, reconcile func() error) error {
	var synced []cache.InformerSynced
	for _, i := range rightsCaches(have) {
		synced = append(synced, i.HasSynced)
	}
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return context.Cause(ctx)
	}
	complete, err := hasUpstreamRights(have)
	if err != nil || complete {
		return err
	}
	return reconcile()
}

// rightsCaches returns the caches of all four kinds.
func rightsCaches(have rbacinformers.Interface) []cache.SharedIndexInformer {
	return []cache.SharedIndexInformer{have.ClusterRoles().Informer(), have.ClusterRoleBindings().Informer(), have.Roles().Informer(), have.RoleBindings().Informer()}
}

// watchChanges calls change after each update and deletion of an object for which selected is true,
// before or after the update.
func watchChanges(selected func(metav1.Object) bool, change func(), all ...cache.SharedIndexInformer) error {
	matches := func(object any) bool {
		if gone, ok := object.(cache.DeletedFinalStateUnknown); ok {
			object = gone.Obj
		}
		o, err := meta.Accessor(object)
		return err == nil && selected(o)
	}
	handler := cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(before, now any) {
			if matches(before) || matches(now) {
				change()
			}
		},
		DeleteFunc: func(object any) {
			if matches(object) {
				change()
			}
		},
	}
	for _, i := range all {
		if _, err := i.AddEventHandler(handler); err != nil {
			return fmt.Errorf("cannot watch: %w", err)
		}
	}
	return nil
}

// hasUpstreamRights reports whether the caches hold all of upstream's roles and bindings, with all
// parts that upstream would add. It uses the functions of upstream's reconciliation, but writes
// nothing.
func hasUpstreamRights(have rbacinformers.Interface) (bool, error) {
	for _, o := range slices.Concat(bootstrappolicy.ClusterRoles(), bootstrappolicy.ControllerRoles()) {
		ok, err := hasRole(rbac.ClusterRoleRuleOwner{ClusterRole: &o}, func() (rbac.RuleOwner, error) {
			role, err := have.ClusterRoles().Lister().Get(o.Name)
			return rbac.ClusterRoleRuleOwner{ClusterRole: role}, err
		})
		if err != nil || !ok {
			return false, err
		}
	}
	for _, o := range slices.Concat(bootstrappolicy.ClusterRoleBindings(), bootstrappolicy.ControllerRoleBindings()) {
		ok, err := hasBinding(rbac.ClusterRoleBindingAdapter{ClusterRoleBinding: &o}, func() (rbac.RoleBinding, error) {
			binding, err := have.ClusterRoleBindings().Lister().Get(o.Name)
			return rbac.ClusterRoleBindingAdapter{ClusterRoleBinding: binding}, err
		})
		if err != nil || !ok {
			return false, err
		}
	}
	return hasNamespacedRights(have, bootstrappolicy.NamespaceRoles(), bootstrappolicy.NamespaceRoleBindings())
}

// hasNamespacedRights does the same as hasUpstreamRights, for the objects in namespaces.
func hasNamespacedRights(have rbacinformers.Interface, roles map[string][]rbacv1.Role, bindings map[string][]rbacv1.RoleBinding) (bool, error) {
	for namespace, all := range roles {
		for _, o := range all {
			ok, err := hasRole(rbac.RoleRuleOwner{Role: &o}, func() (rbac.RuleOwner, error) {
				role, err := have.Roles().Lister().Roles(namespace).Get(o.Name)
				return rbac.RoleRuleOwner{Role: role}, err
			})
			if err != nil || !ok {
				return false, err
			}
		}
	}
	for namespace, all := range bindings {
		for _, o := range all {
			ok, err := hasBinding(rbac.RoleBindingAdapter{RoleBinding: &o}, func() (rbac.RoleBinding, error) {
				binding, err := have.RoleBindings().Lister().RoleBindings(namespace).Get(o.Name)
				return rbac.RoleBindingAdapter{RoleBinding: binding}, err
			})
			if err != nil || !ok {
				return false, err
			}
		}
	}
	return true, nil
}

// cachedRole and cachedBinding are the clients of a reconciliation that only reads the caches.
type cachedRole struct {
	rbac.RuleOwnerModifier
	get func() (rbac.RuleOwner, error)
}

func (c cachedRole) Get(string, string) (rbac.RuleOwner, error) { return c.get() }

type cachedBinding struct {
	rbac.RoleBindingModifier
	get func() (rbac.RoleBinding, error)
}

func (c cachedBinding) Get(string, string) (rbac.RoleBinding, error) { return c.get() }

// hasRole reports whether a reconciliation with want would leave the role unchanged. This is always
// true for an object with rbac.authorization.kubernetes.io/autoupdate: "false".
func hasRole(want rbac.RuleOwner, get func() (rbac.RuleOwner, error)) (bool, error) {
	result, err := (&rbac.ReconcileRoleOptions{Role: want, Client: cachedRole{get: get}}).Run()
	if err != nil {
		return false, err
	}
	return result.Protected || result.Operation == rbac.ReconcileNone, nil
}

// hasBinding does the same as hasRole, for a binding.
func hasBinding(want rbac.RoleBinding, get func() (rbac.RoleBinding, error)) (bool, error) {
	result, err := (&rbac.ReconcileRoleBindingOptions{RoleBinding: want, Client: cachedBinding{get: get}}).Run()
	if err != nil {
		return false, err
	}
	return result.Protected || result.Operation == rbac.ReconcileNone, nil
}
