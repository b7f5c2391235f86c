// Package bootstrap creates the few objects of Orlop's cluster beyond upstream's: the roles and
// role bindings of the identities that machined issues, the cluster DNS Service, the registration
// of the resource metrics API, the StorageClass of local volumes with its CSI driver, and the kinds
// and the class of volume snapshots. If machine objects are enabled, it creates their namespace,
// kinds and rights, too. It also gives the machine's Node the label and taint of the control plane,
// because a kubelet may not set this label itself.
//
// It runs in the process "api" over the API server's loopback connection, because before these
// objects exist no other client has the right to create them. It creates missing objects and
// corrects the contents of existing objects. It preserves what other clients add: labels,
// annotations, rules of roles and subjects of bindings.
package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	rbac "k8s.io/component-helpers/auth/rbac/reconciliation"
	registration "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/pkg/backoff"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// Name is the name of the component.
const Name = "bootstrap"

// A rejected object is retried after retryInterval: for a moment after its start the server rejects
// Services, because its address allocator is not ready. Up to reportAfter rejections are normal
// during a start. After more rejections, the reason is reported, and the delay grows up to
// maxBackoff.
const (
	retryInterval = 50 * time.Millisecond
	reportAfter   = 100
	maxBackoff    = 10 * time.Second
)

// delay returns the delay after a number of rejections.
func delay(refusals int) time.Duration {
	return backoff.Backoff{Min: retryInterval, Max: maxBackoff}.Delay(refusals - reportAfter + 1)
}

// labelRetry is the delay after a rejected change of a Node.
const labelRetry = 10 * time.Second

// Rights creates the roles and bindings. The API server calls Rights while it creates upstream's
// roles and bindings, so that all RBAC rights exist at the same moment.
func Rights(ctx context.Context, client kubernetes.Interface) error {
	wanted := rights()
	failed := make(chan error, len(wanted))
	for _, object := range wanted {
		go func() { failed <- ensureUntilDone(ctx, client, object, func(string) {}) }()
	}
	var first error
	for range wanted {
		if err := <-failed; err != nil && first == nil {
			first = err
		}
	}
	return first
}

// Run creates the objects that Rights does not create, as soon as the server answers, and announces
// itself ready. It then maintains all objects and the Node's label until ctx is done. The function
// serving waits until the server answers. The function loopback returns the server's privileged
// connection to itself.
func Run(ctx context.Context, env component.Env, serving func(context.Context) error, loopback func(context.Context) (*rest.Config, error)) error {
	env.Announce(Name, false, "waiting for the API server")
	config, err := loopback(ctx)
	if err != nil {
		return nil // stopped before the start
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("cannot create client: %w", err)
	}
	registrations, err := registration.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("cannot create client: %w", err)
	}
	if err := serving(ctx); err != nil {
		return nil
	}
	found := &problems{announce: env.Announce, why: map[string]string{}}
	report := found.of("start")
	services := managedServices(env.Spec, client)
	for _, k := range services {
		if err := ensurePlaced(ctx, k.text(), func() error { return k.ensure(ctx) }, report, found.of(k.name)); err != nil {
			return err
		}
	}
	api := metricsAPI()
	others := append(managedRights(client), managed{apiServicesResource, "", api.Name, func(ctx context.Context) error {
		return ensureAPIService(ctx, registrations, api.DeepCopy())
	}})
	if !env.Spec.LocalVolumes.Disabled {
		others = append(others, managedVolumes(client)...)
	}
	for _, k := range others {
		if k.resource.Group == rbacv1.GroupName {
			continue // the API server creates them at its start
		}
		if err := retryUntilDone(ctx, k.text(), func() error { return k.ensure(ctx) }, report); err != nil {
			return err
		}
	}
	if err := env.Rights(ctx); err != nil {
		return nil
	}
	found.started()
	ended := make(chan error, 2)
	go func() {
		ended <- labelNode(ctx, client, env.Spec.Node.Name, env.Spec.Node.Taint, labelRetry, found.of("node"))
	}()
	var late []managed
	if !env.Spec.LocalVolumes.Disabled { // created last, because no node and no pod waits for them
		if late, err = managedSnapshots(config); err != nil {
			return err
		}
	}
	for _, k := range late {
		if err := retryUntilDone(ctx, k.text(), func() error { return k.ensure(ctx) }, found.of("snapshots")); err != nil {
			return err
		}
	}
	found.of("snapshots")("")
	go maintain(ctx, config, slices.Concat(services, others, late), found)
	go func() { ended <- maintainMachines(ctx, env, config, client, found) }()
	if err := <-ended; err != nil {
		return err
	}
	return <-ended
}

// maintain restores the objects until ctx is done.
func maintain(ctx context.Context, config *rest.Config, all []managed, found *problems) {
	client, err := metadata.NewForConfig(config)
	if err != nil {
		found.of("watch")(fmt.Sprintf("deleted objects are restored late: cannot create client: %v", err))
	}
	changed := cell.NewSignal()
	if client != nil {
		watchManaged(ctx, client, all, changed.Wake)
	}
	resyncLoop(ctx, all, changed, resyncPeriod, minBackoff, func(what, why string) { found.of(what)(why) })
}

// managedServices are the Services of this package.
func managedServices(spec nodespec.Spec, client kubernetes.Interface) []managed {
	metrics, dns := metricsService(), dnsService(spec)
	return []managed{
		{servicesResource, metrics.Namespace, metrics.Name, func(ctx context.Context) error { return ensureService(ctx, client, metrics.DeepCopy()) }},
		{servicesResource, dns.Namespace, dns.Name, func(ctx context.Context) error {
			if spec.External.DNS {
				return deleteService(ctx, client, dns)
			}
			return ensureService(ctx, client, dns.DeepCopy())
		}},
	}
}

// problems collects the problems of several objects, and joins them into one text, the detail of
// the component's announcement, because several objects can have a problem at the same time.
type problems struct {
	announce component.Announce

	mu    sync.Mutex
	ready bool
	why   map[string]string // by subject
}

// The method of returns the function that reports the problem of a subject; "" clears it.
func (t *problems) of(what string) func(why string) {
	return func(why string) {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.why[what] = why
		t.announceLocked()
	}
}

// The method started records that all objects exist for which other components wait.
func (t *problems) started() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ready = true
	delete(t.why, "start")
	t.announceLocked()
}

func (t *problems) announceLocked() {
	var all []string
	for _, what := range slices.Sorted(maps.Keys(t.why)) {
		if t.why[what] != "" {
			all = append(all, t.why[what])
		}
	}
	detail := strings.Join(all, "; ")
	if t.ready && detail != "" {
		detail = nodespec.ProblemPrefix + detail
	}
	t.announce(Name, t.ready, detail)
}

// ensurePlaced creates a Service as retryUntilDone does. If another Service has its name or
// address, only the operator can remove the conflict. ensurePlaced then reports the problem by the
// function aside, returns, and continues in the background. The start must not wait: machined would
// end an API server that never becomes ready, and the operator needs that server.
func ensurePlaced(ctx context.Context, object string, do func() error, report, aside func(why string)) error {
	blocked := false
	err := retryUntilDone(ctx, object, func() error {
		err := do()
		if blocked = errors.As(err, new(conflictError)); blocked {
			aside(reason(object, err))
			return nil
		}
		return err
	}, report)
	if err != nil || !blocked {
		return err
	}
	go func() {
		why := ""
		if err := retryUntilDone(ctx, object, do, aside); err != nil {
			why = err.Error()
		}
		if ctx.Err() == nil {
			aside(why)
		}
	}()
	return nil
}

// ensureUntilDone repeats Ensure as retryUntilDone does.
func ensureUntilDone(ctx context.Context, client kubernetes.Interface, object runtime.Object, report func(why string)) error {
	return retryUntilDone(ctx, fmt.Sprintf("%T", object), func() error { return Ensure(client, object) }, report)
}

// retryUntilDone repeats the creation of an object until it is done. It reports the reason if the
// creation takes long or the server rejects the object. It does not give up, because the cause may
// be an administrator's policy, which may be removed. It does not end the process, because etcd
// would end with it.
func retryUntilDone(ctx context.Context, object string, do func() error, report func(why string)) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for tries, reported := 0, ""; ; tries++ {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return nil
		}
		err := do()
		if err == nil || ctx.Err() != nil {
			return nil
		}
		refused := apierrors.IsInvalid(err) && !isTemporary(err)
		if why := reason(object, err); (refused || tries >= reportAfter) && why != reported {
			report(why)
			reported = why
		}
		timer.Reset(delay(tries))
	}
}

// reason is the reported text of a rejection.
func reason(object string, err error) string { return fmt.Sprintf("%s: %v", object, err) }

// isTemporary reports whether a rejection is temporary: the ranges of Service addresses are not
// loaded yet.
func isTemporary(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil {
		return false
	}
	for _, cause := range status.Status().Details.Causes {
		if cause.Field == "spec.clusterIPs" || cause.Field == "spec.clusterIP" {
			return true
		}
	}
	return false
}

// Ensure creates a role or a binding, or adds its missing parts, as upstream does with its own
// roles and bindings at each start. Additional parts stay: during an upgrade of a cluster an older
// server would otherwise remove rights that components of the newer version need. A binding with
// this name to another role is deleted and created again, because the role of a binding cannot be
// changed. An object with rbac.authorization.kubernetes.io/autoupdate: "false" stays as it is.
func Ensure(client kubernetes.Interface, object runtime.Object) error {
	roles, bindings := rbac.ReconcileRoleOptions{Confirm: true}, rbac.ReconcileRoleBindingOptions{Confirm: true}
	namespaces := client.CoreV1().Namespaces()
	switch o := object.(type) {
	case *rbacv1.ClusterRole:
		roles.Role, roles.Client = rbac.ClusterRoleRuleOwner{ClusterRole: o}, rbac.ClusterRoleModifier{Client: client.RbacV1().ClusterRoles()}
	case *rbacv1.Role:
		roles.Role, roles.Client = rbac.RoleRuleOwner{Role: o}, rbac.RoleModifier{Client: client.RbacV1(), NamespaceClient: namespaces}
	case *rbacv1.ClusterRoleBinding:
		bindings.RoleBinding = rbac.ClusterRoleBindingAdapter{ClusterRoleBinding: o}
		bindings.Client = rbac.ClusterRoleBindingClientAdapter{Client: client.RbacV1().ClusterRoleBindings()}
	case *rbacv1.RoleBinding:
		bindings.RoleBinding = rbac.RoleBindingAdapter{RoleBinding: o}
		bindings.Client = rbac.RoleBindingClientAdapter{Client: client.RbacV1(), NamespaceClient: namespaces}
	default:
		return fmt.Errorf("%T: cannot create: not a role or binding", object)
	}
	if roles.Role != nil {
		_, err := roles.Run()
		return err
	}
	_, err := bindings.Run()
	return err
}

// ensureNamespace creates kube-system if the server's own controller has not created it yet.
func ensureNamespace(ctx context.Context, client kubernetes.Interface) error {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem}}
	return ensureObject(ctx, client.CoreV1().Namespaces(), namespace, func(*corev1.Namespace) bool { return false })
}
