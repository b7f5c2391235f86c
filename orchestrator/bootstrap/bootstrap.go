// Package bootstrap makes the few objects that Orlop's cluster has beyond upstream's: who may be
// what (role bindings of the identities that machined issues), the cluster DNS Service, the
// registration of the resource metrics API, the StorageClass of local volumes with its CSI driver,
// and the kinds and the class of their snapshots. It also marks the machine's Node as part of the
// control plane, which a kubelet may not do for itself.
//
// It runs in the process "api" over the API server's connection to itself, because before these
// objects exist nobody else has the right to make them. Objects are made when missing and put right
// when their contents differ; what others added beside them (labels, annotations, and in roles and
// bindings further rules and subjects) stays.
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

	"github.com/orlop-os/orlop/orchestrator/apiready"
	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// Name is the component's name.
const Name = "bootstrap"

// A refused object waits for retry: the server refuses Services for a moment until its address book
// is there. After some refusals, patience, which are ordinary during a start, the reason is told,
// and it waits longer each time, up to slowly.
const (
	retry    = 50 * time.Millisecond
	patience = 100
	slowly   = 10 * time.Second
)

// pause is how long an object waits that has been refused so many times.
func pause(refusals int) time.Duration {
	const steps = 8 // by then it is longer than slowly
	return min(retry<<min(max(refusals-patience, 0), steps), slowly)
}

// markAgain is how long a Node waits whose marks were refused.
const markAgain = 10 * time.Second

// WaitRBAC makes the roles and bindings. The API server calls it while it makes upstream's, so that
// one moment tells everybody that all rights exist.
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

// Run makes the rest as soon as the server answers, announces that, and then keeps the Node's label
// until ctx is done. loopback gives the server's privileged connection to itself.
func Run(ctx context.Context, spec nodespec.Spec, gate *apiready.Waiter, loopback func(context.Context) (*rest.Config, error), announce component.Announce) error {
	announce(Name, false, "waiting for the API server")
	config, err := loopback(ctx)
	if err != nil {
		return nil // asked to stop before there was anything to stop
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("cannot make client: %w", err)
	}
	registrations, err := registration.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("cannot make client: %w", err)
	}
	if err := gate.WaitServing(ctx); err != nil {
		return nil
	}
	said := &troubles{announce: announce, why: map[string]string{}}
	tell := said.of("start")
	services := keptServices(spec, client)
	for _, k := range services {
		if err := placed(ctx, k.text(), func() error { return k.ensure(ctx) }, tell, said.of(k.name)); err != nil {
			return err
		}
	}
	api := metricsAPI()
	others := append(keptRights(client), kept{apiServicesResource, "", api.Name, func(ctx context.Context) error {
		return ensureAPIService(ctx, registrations, api.DeepCopy())
	}})
	if !spec.LocalVolumes.Disabled {
		others = append(others, keptVolumes(client)...)
	}
	for _, k := range others {
		if k.resource.Group == rbacv1.GroupName {
			continue // the API server makes them at its start
		}
		if err := untilDone(ctx, k.text(), func() error { return k.ensure(ctx) }, tell); err != nil {
			return err
		}
	}
	if err := gate.WaitRBAC(ctx); err != nil {
		return nil
	}
	said.started()
	marked := make(chan error, 1)
	go func() {
		marked <- markNode(ctx, client, spec.NodeName, spec.Taint, markAgain, said.of("node"))
	}()
	var late []kept
	if !spec.LocalVolumes.Disabled { // at last: no node and no pod waits for it
		if late, err = keptSnapshots(config); err != nil {
			return err
		}
	}
	for _, k := range late {
		if err := untilDone(ctx, k.text(), func() error { return k.ensure(ctx) }, said.of("snapshots")); err != nil {
			return err
		}
	}
	said.of("snapshots")("")
	go putBack(ctx, config, slices.Concat(services, others, late), said)
	return <-marked
}

// putBack keeps the objects until ctx is done.
func putBack(ctx context.Context, config *rest.Config, all []kept, said *troubles) {
	client, err := metadata.NewForConfig(config)
	if err != nil {
		said.of("watch")(fmt.Sprintf("what is deleted is put back late: cannot make client: %v", err))
	}
	changed := make(chan struct{}, 1)
	look := func() {
		select {
		case changed <- struct{}{}:
		default: // it is looked anyway
		}
	}
	if client != nil {
		watchKept(ctx, client, all, look)
	}
	keep(ctx, all, changed, keepEvery, keepSoon, func(what, why string) { said.of(what)(why) })
}

// keptServices are the Services of our own.
func keptServices(spec nodespec.Spec, client kubernetes.Interface) []kept {
	metrics, dns := metricsService(), dnsService(spec)
	return []kept{
		{servicesResource, metrics.Namespace, metrics.Name, func(ctx context.Context) error { return ensureService(ctx, client, metrics.DeepCopy()) }},
		{servicesResource, dns.Namespace, dns.Name, func(ctx context.Context) error {
			if spec.External.DNS {
				return withdraw(ctx, client, dns)
			}
			return ensureService(ctx, client, dns.DeepCopy())
		}},
	}
}

// troubles are what is not as it should be, told together: there are several at once when the start
// is over.
type troubles struct {
	announce component.Announce

	mu    sync.Mutex
	ready bool
	why   map[string]string // by what it is about
}

// of returns what tells the trouble with one thing; "" is that there is none any more.
func (t *troubles) of(what string) func(why string) {
	return func(why string) {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.why[what] = why
		t.tellLocked()
	}
}

// started says that everything is there that others wait for.
func (t *troubles) started() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ready = true
	delete(t.why, "start")
	t.tellLocked()
}

func (t *troubles) tellLocked() {
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

// placed makes a Service as untilDone does. Where another one is in its place, which only people
// can change, it says so aside and goes on trying, and the start does not wait: an API server that
// never gets ready would be ended, and with it what those people need.
func placed(ctx context.Context, object string, do func() error, tell, aside func(why string)) error {
	blocked := false
	err := untilDone(ctx, object, func() error {
		err := do()
		if blocked = errors.As(err, new(inTheWay)); blocked {
			aside(reason(object, err))
			return nil
		}
		return err
	}, tell)
	if err != nil || !blocked {
		return err
	}
	go func() {
		why := ""
		if err := untilDone(ctx, object, do, aside); err != nil {
			why = err.Error()
		}
		if ctx.Err() == nil {
			aside(why)
		}
	}()
	return nil
}

// ensureUntilDone repeats Ensure as untilDone does.
func ensureUntilDone(ctx context.Context, client kubernetes.Interface, object runtime.Object, tell func(why string)) error {
	return untilDone(ctx, fmt.Sprintf("%T", object), func() error { return Ensure(client, object) }, tell)
}

// untilDone repeats the making of an object until it is done, and tells why when that takes long,
// or when the server refuses it: an administrator's policy may be why, and may go. It is no reason
// to end, which would take etcd along.
func untilDone(ctx context.Context, object string, do func() error, tell func(why string)) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for tries, told := 0, ""; ; tries++ {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return nil
		}
		err := do()
		if err == nil || ctx.Err() != nil {
			return nil
		}
		refused := apierrors.IsInvalid(err) && !notYet(err)
		if why := reason(object, err); (refused || tries >= patience) && why != told {
			tell(why)
			told = why
		}
		timer.Reset(pause(tries))
	}
}

// reason is what is told of a refusal.
func reason(object string, err error) string { return fmt.Sprintf("%s: %v", object, err) }

// notYet tells a refusal that passes: the ranges of service addresses are not loaded.
func notYet(err error) bool {
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

// Ensure makes a role or a binding, or adds to it what is missing, as upstream does with its own at
// each start. What is there beyond that stays: while a cluster is being upgraded an older server
// would else take away what the newer version's parts need. A binding to another role is made anew,
// because that cannot be changed; and what somebody has marked with
// rbac.authorization.kubernetes.io/autoupdate: "false" stays as it is.
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
		return fmt.Errorf("%T: cannot make: no such kind among the cluster's own objects", object)
	}
	if roles.Role != nil {
		_, err := roles.Run()
		return err
	}
	_, err := bindings.Run()
	return err
}

// ensureNamespace makes kube-system when the server's own controller has not made it yet.
func ensureNamespace(ctx context.Context, client kubernetes.Interface) error {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem}}
	return ensureObject(ctx, client.CoreV1().Namespaces(), namespace, func(*corev1.Namespace) bool { return false })
}
