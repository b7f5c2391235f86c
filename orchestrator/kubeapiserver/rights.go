package kubeapiserver

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	rbacclient "k8s.io/client-go/kubernetes/typed/rbac/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	rbacrest "k8s.io/kubernetes/pkg/registry/rbac/rest"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"

	"github.com/orlop-os/orlop/orchestrator/bootstrap"
)

// rightsHook is the name of what takes the place of upstream's hook rbac/bootstrap-roles. /readyz
// shows it.
const rightsHook = "orlop/rights"

// lastBinding is made after all other objects. It is what lets anybody ask for the server's health,
// so that a caller without credentials who is answered knows that every right exists (package
// apigate waits for that).
const lastBinding = "system:public-info-viewer"

// anyRole is one that every cluster has.
const anyRole = "cluster-admin"

// keepAgain is how long keepProbed waits after a refusal, which may be a policy's.
const keepAgain = 10 * time.Second

// atOnce is how many objects are made at the same time. etcd writes what arrives together with one
// sync of the disk.
const atOnce = 16

// rightsTime is how long a server of a cluster that has rights waits for those that are missing.
const rightsTime = 30 * time.Second

// ensureRights makes upstream's roles and bindings, about 140 objects, and our own. In a new
// cluster they are made side by side and at once; upstream's own hook waits for a second and then
// makes one after the other, which on a slow disk takes longer than the rest of the server's start.
// In a cluster that has roles upstream's hook looks after them beside everything else: it brings
// old ones up to date, and the server counts as ready before, because nobody has fewer rights than
// in the moment in which the machine went down.
func (s *Server) ensureRights(hook genericapiserver.PostStartHookContext) error {
	client, err := kubernetes.NewForConfig(hook.LoopbackClientConfig)
	if err != nil {
		return fmt.Errorf("rights: cannot make client: %w", err)
	}
	_, upstream, err := rbacrest.RESTStorageProvider{}.PostStartHook()
	if err != nil {
		return fmt.Errorf("rights: %w", err)
	}
	reconcile := func() error { return upstream(hook) }
	missed := make(chan struct{}, 1)
	go keepProbed(hook, client, keepAgain, missed)
	if missing, fresh := lacks(hook, client); fresh {
		if err := s.makeRights(hook, client); err != nil {
			return err
		}
		go keepUpstream(hook, client, keepAgain, reconcile)
		return nil
	} else if missing {
		// The first start was cut short, and who waits for the last object waits for all. Or
		// somebody has deleted it, and the policy by which he keeps it away must not end the
		// server, without which he could not change it.
		bounded, cancel := context.WithTimeout(hook, rightsTime)
		err := s.makeRights(bounded, client)
		cancel()
		if err != nil && hook.Err() == nil {
			klog.ErrorS(err, "Not all rights could be made; the server goes on, and they are tried again")
		}
	}
	// New ones of a newer version may be refused by somebody's policy. What works in the cluster
	// works without them, and he needs a server that is ready to change it.
	made := make(chan error, 1)
	go func() { made <- s.rights(hook, client) }()
	select {
	case err := <-made:
		if err != nil {
			return fmt.Errorf("rights: %w", err)
		}
	case <-time.After(rightsTime):
		klog.InfoS("Not all of the system's own rights could be made; the server goes on, and they are tried again", "after", rightsTime)
	case <-hook.Done():
		return nil
	}
	go func() {
		if err := reconcile(); err != nil && hook.Err() == nil {
			klog.ErrorS(err, "Upstream's roles are not brought up to date; the next start tries again")
		}
		missed <- struct{}{}
		keepUpstream(hook, client, keepAgain, reconcile)
	}()
	return nil
}

// bootstrapped selects upstream's own roles and bindings.
const bootstrapped = "kubernetes.io/bootstrapping=rbac-defaults"

// keepUpstream has upstream's roles and bindings reconciled whenever one of them was changed or
// deleted, as upstream itself does at each start only, until ctx is done. A controller without its
// role fails in ways that name no role.
func keepUpstream(ctx context.Context, client kubernetes.Interface, again time.Duration, reconcile func() error) {
	changed := make(chan struct{}, 1)
	look := func() {
		select {
		case changed <- struct{}{}:
		default: // it is looked at anyway
		}
	}
	all := metav1.ListOptions{LabelSelector: bootstrapped}
	rbac := client.RbacV1()
	for _, open := range []func(context.Context) (watch.Interface, error){
		func(ctx context.Context) (watch.Interface, error) { return rbac.ClusterRoles().Watch(ctx, all) },
		func(ctx context.Context) (watch.Interface, error) { return rbac.ClusterRoleBindings().Watch(ctx, all) },
		func(ctx context.Context) (watch.Interface, error) { return rbac.Roles("").Watch(ctx, all) },
		func(ctx context.Context) (watch.Interface, error) { return rbac.RoleBindings("").Watch(ctx, all) },
	} {
		// What a watch may have missed is left to the next change: a pass reads every role.
		go bootstrap.Changes(ctx, open, func(metav1.Object) bool { look(); return false }, again, func() {})
	}
	for {
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
		err := reconcile()
		if err != nil && ctx.Err() == nil {
			klog.ErrorS(err, "Upstream's roles cannot be put back; they are tried again", "after", again)
			look()
		}
		select { // a pass makes changes of its own, and several come together
		case <-time.After(again):
		case <-ctx.Done():
			return
		}
	}
}

// lacks tells whether the cluster's last object of all is missing, and whether it is because the
// cluster is new and has none of the others either.
func lacks(ctx context.Context, client kubernetes.Interface) (missing, fresh bool) {
	_, err := client.RbacV1().ClusterRoleBindings().Get(ctx, lastBinding, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		return false, false
	}
	_, err = client.RbacV1().ClusterRoles().Get(ctx, anyRole, metav1.GetOptions{})
	return true, apierrors.IsNotFound(err)
}

// keepProbed puts the last binding and its role back whenever they were deleted or lack something,
// until ctx is done. Without them every machine takes every server for one that is not ready, the
// shared address has no owner, and what starts anew waits; upstream would put them back at the next
// start of a server. What is marked with rbac.authorization.kubernetes.io/autoupdate: "false" stays
// as it is. missed says that they may be missing since before.
func keepProbed(ctx context.Context, client kubernetes.Interface, again time.Duration, missed <-chan struct{}) {
	role, binding := probed()
	named := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, lastBinding).String()
	}))
	changed := make(chan struct{}, 1)
	look := func() {
		select {
		case changed <- struct{}{}:
		default: // it is looked at anyway
		}
	}
	// Not when they are added: in a new cluster they come last, by makeRights.
	handler := cache.ResourceEventHandlerFuncs{UpdateFunc: func(any, any) { look() }, DeleteFunc: func(any) { look() }}
	for _, i := range []cache.SharedIndexInformer{named.Rbac().V1().ClusterRoles().Informer(), named.Rbac().V1().ClusterRoleBindings().Informer()} {
		if _, err := i.AddEventHandler(handler); err != nil {
			klog.ErrorS(err, "The right to ask for the server's health is not kept", "name", lastBinding)
			return
		}
	}
	named.Start(ctx.Done())
	var late <-chan time.Time
	for {
		select {
		case <-changed:
		case <-missed:
		case <-late:
		case <-ctx.Done():
			return
		}
		late = nil
		err := bootstrap.Ensure(client, role.DeepCopy())
		if err == nil {
			err = bootstrap.Ensure(client, binding.DeepCopy())
		}
		if err != nil && ctx.Err() == nil {
			klog.ErrorS(err, "The right to ask for the server's health cannot be put back; it is tried again", "name", lastBinding, "after", again)
			late = time.After(again)
		}
	}
}

// probed returns upstream's role and binding by which everybody may ask for the server's health.
func probed() (role rbacv1.ClusterRole, binding rbacv1.ClusterRoleBinding) {
	for _, o := range bootstrappolicy.ClusterRoles() {
		if o.Name == lastBinding {
			role = o
		}
	}
	for _, o := range bootstrappolicy.ClusterRoleBindings() {
		if o.Name == lastBinding {
			binding = o
		}
	}
	return role, binding
}

// makeRights makes every object, the last binding last. An object that is there already stays as it
// is.
func (s *Server) makeRights(ctx context.Context, client kubernetes.Interface) error {
	// Everybody's first requests need the namespaces, and the server's own controller takes its
	// time.
	var namespaces []func() error
	for _, name := range []string{metav1.NamespaceSystem, metav1.NamespacePublic, metav1.NamespaceDefault, corev1.NamespaceNodeLease} {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		namespaces = append(namespaces, func() error {
			_, err := client.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{})
			return err
		})
	}
	if err := sideBySide(ctx, namespaces); err != nil {
		return err
	}
	work, last := upstreamRights(ctx, client.RbacV1())
	if last == nil {
		return fmt.Errorf("rights: upstream has no binding %s any more, which the start waits for", lastBinding)
	}
	if err := sideBySide(ctx, append(work, func() error { return s.rights(ctx, client) })); err != nil {
		return err
	}
	return sideBySide(ctx, []func() error{last})
}

// upstreamRights returns the making of each of upstream's objects, and of the one that has to be
// last.
func upstreamRights(ctx context.Context, rbac rbacclient.RbacV1Interface) (work []func() error, last func() error) {
	for _, o := range slices.Concat(bootstrappolicy.ClusterRoles(), bootstrappolicy.ControllerRoles()) {
		work = append(work, func() error { _, err := rbac.ClusterRoles().Create(ctx, &o, metav1.CreateOptions{}); return err })
	}
	for _, o := range slices.Concat(bootstrappolicy.ClusterRoleBindings(), bootstrappolicy.ControllerRoleBindings()) {
		bind := func() error { _, err := rbac.ClusterRoleBindings().Create(ctx, &o, metav1.CreateOptions{}); return err }
		if o.Name == lastBinding {
			last = bind
		} else {
			work = append(work, bind)
		}
	}
	for namespace, roles := range bootstrappolicy.NamespaceRoles() {
		for _, o := range roles {
			work = append(work, func() error { _, err := rbac.Roles(namespace).Create(ctx, &o, metav1.CreateOptions{}); return err })
		}
	}
	for namespace, bindings := range bootstrappolicy.NamespaceRoleBindings() {
		for _, o := range bindings {
			work = append(work, func() error {
				_, err := rbac.RoleBindings(namespace).Create(ctx, &o, metav1.CreateOptions{})
				return err
			})
		}
	}
	return work, last
}

// sideBySide does the work, some of it at a time, and returns the first error.
func sideBySide(ctx context.Context, work []func() error) error {
	todo := make(chan func() error)
	done := make(chan error)
	for range atOnce {
		go func() {
			for w := range todo {
				done <- patiently(ctx, w)
			}
		}()
	}
	go func() {
		defer close(todo)
		for _, w := range work {
			todo <- w
		}
	}()
	var first error
	for range work {
		if err := <-done; err != nil && first == nil {
			first = fmt.Errorf("rights: %w", err)
		}
	}
	return first
}

// patiently makes one object. The server may say for a moment that it is not ready; that is tried
// again for as long as upstream's hook would. That the object is there is no error.
func patiently(ctx context.Context, make func() error) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := make()
		if err == nil || apierrors.IsAlreadyExists(err) {
			return nil
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return err
		}
	}
}
