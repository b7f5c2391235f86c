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
	genericapiserver "k8s.io/apiserver/pkg/server"
	rbacinformers "k8s.io/client-go/informers/rbac/v1"
	"k8s.io/client-go/kubernetes"
	rbacclient "k8s.io/client-go/kubernetes/typed/rbac/v1"
	"k8s.io/klog/v2"
	rbacrest "k8s.io/kubernetes/pkg/registry/rbac/rest"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"

	"github.com/orlop-os/orlop/orchestrator/bootstrap"
	"github.com/orlop-os/orlop/pkg/cell"
)

// rightsHook is the name of the hook that replaces upstream's hook rbac/bootstrap-roles. /readyz
// shows it.
const rightsHook = "orlop/rights"

// lastBinding is created after all other objects. It permits every client to read the server's
// health. So when the server answers a caller without credentials, all rights exist (package
// apiready waits for such an answer).
const lastBinding = "system:public-info-viewer"

// anyRole is a role that every cluster has.
const anyRole = "cluster-admin"

// retryInterval is the delay after a rejected write, for example by a policy.
const retryInterval = 10 * time.Second

// maxParallel is the number of objects that are created at the same time. etcd writes concurrent
// requests to the disk together, with a single sync.
const maxParallel = 16

// rightsTimeout is how long the server of an existing cluster waits for missing rights.
const rightsTimeout = 30 * time.Second

// ensureRights creates upstream's roles and bindings, about 140 objects, and the system's own. In a
// new cluster it creates them in parallel and at once; upstream's own hook waits for a second and
// then creates them in sequence, which on a slow disk takes longer than the rest of the server's
// start. In an existing cluster, upstream's hook updates outdated objects in the background. The
// server does not wait for that before it is ready, because every user still has the rights from
// before the machine's shutdown.
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
	go restoreProbeRights(hook, client, s.rbac, retryInterval, missed)
	if missing, fresh := rightsMissing(hook, client); fresh {
		if err := s.makeRights(hook, client); err != nil {
			return err
		}
		go reconcileUpstream(hook, s.rbac, retryInterval, reconcile)
		return nil
	} else if missing {
		// The last object can be missing for two reasons. If the first start was interrupted, other
		// objects can be missing, too, and components wait for the last object. Or a user deleted
		// the last object, and a policy rejects its creation. The policy must not end the server,
		// because the user needs the server to change the policy.
		bounded, cancel := context.WithTimeout(hook, rightsTimeout)
		err := s.makeRights(bounded, client)
		cancel()
		if err != nil && hook.Err() == nil {
			klog.ErrorS(err, "Cannot create all rights; the server continues and retries")
		}
	}
	// A policy may reject the new rights of a newer version. Existing workloads do not need these
	// rights, and the user needs a ready server to change the policy.
	made := make(chan error, 1)
	go func() { made <- s.rights(hook, client) }()
	select {
	case err := <-made:
		if err != nil {
			return fmt.Errorf("rights: %w", err)
		}
	case <-time.After(rightsTimeout):
		klog.InfoS("Cannot create all of the system's own rights; the server continues and retries", "after", rightsTimeout)
	case <-hook.Done():
		return nil
	}
	go func() {
		if err := updateUpstream(hook, s.rbac, reconcile); err != nil && hook.Err() == nil {
			klog.ErrorS(err, "Cannot update upstream's roles; the next start retries")
		}
		missed <- struct{}{}
		reconcileUpstream(hook, s.rbac, retryInterval, reconcile)
	}()
	return nil
}

// rightsMissing reports whether the cluster's last object is missing, and whether the cluster is
// new and lacks the others too.
func rightsMissing(ctx context.Context, client kubernetes.Interface) (missing, fresh bool) {
	_, err := client.RbacV1().ClusterRoleBindings().Get(ctx, lastBinding, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		return false, false
	}
	_, err = client.RbacV1().ClusterRoles().Get(ctx, anyRole, metav1.GetOptions{})
	return true, apierrors.IsNotFound(err)
}

// restoreProbeRights restores the last binding and its role whenever they were deleted or lack a
// rule, until ctx is done. Without them, every machine considers every server unready, no machine
// holds the virtual address, and starting components wait. Upstream would restore the two objects
// only at the next start of a server. Objects with the annotation
// rbac.authorization.kubernetes.io/autoupdate: "false" stay as they are. A value on the channel
// missed means that the objects may have been missing since before the watch began.
func restoreProbeRights(ctx context.Context, client kubernetes.Interface, have rbacinformers.Interface, retryDelay time.Duration, missed <-chan struct{}) {
	role, binding := probeRights()
	changed := cell.NewSignal()
	own := func(o metav1.Object) bool { return o.GetName() == lastBinding }
	// In a new cluster, makeRights creates these objects last; additions cause no signal here.
	if err := watchChanges(own, changed.Wake, have.ClusterRoles().Informer(), have.ClusterRoleBindings().Informer()); err != nil {
		klog.ErrorS(err, "Cannot watch the right to read the server's health", "name", lastBinding)
		return
	}
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
			klog.ErrorS(err, "Cannot restore the right to read the server's health; it is retried", "name", lastBinding, "after", retryDelay)
			late = time.After(retryDelay)
		}
	}
}

// probeRights returns upstream's role and binding that permit every client to read the server's
// health.
func probeRights() (role rbacv1.ClusterRole, binding rbacv1.ClusterRoleBinding) {
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

// makeRights creates every object, and the last binding last. Existing objects stay as they are.
func (s *Server) makeRights(ctx context.Context, client kubernetes.Interface) error {
	// All components need the namespaces for their first requests, and the server's own controller
	// creates them late.
	var namespaces []func() error
	for _, name := range []string{metav1.NamespaceSystem, metav1.NamespacePublic, metav1.NamespaceDefault, corev1.NamespaceNodeLease} {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		namespaces = append(namespaces, func() error {
			_, err := client.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{})
			return err
		})
	}
	if err := inParallel(ctx, namespaces); err != nil {
		return err
	}
	work, last := upstreamRights(ctx, client.RbacV1())
	if last == nil {
		return fmt.Errorf("rights: upstream no longer has the binding %s, for which the start waits", lastBinding)
	}
	if err := inParallel(ctx, append(work, func() error { return s.rights(ctx, client) })); err != nil {
		return err
	}
	return inParallel(ctx, []func() error{last})
}

// upstreamRights returns functions that create upstream's objects, and separately the function for
// the object that has to be last.
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

// inParallel runs the functions, at most maxParallel at a time, and returns the first error.
func inParallel(ctx context.Context, work []func() error) error {
	todo := make(chan func() error)
	done := make(chan error)
	for range maxParallel {
		go func() {
			for w := range todo {
				done <- createWithRetry(ctx, w)
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

// createWithRetry creates an object. The server may be unready for a moment, so createWithRetry
// retries for 30 seconds, as upstream's hook does. An existing object is not an error.
func createWithRetry(ctx context.Context, make func() error) error {
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
