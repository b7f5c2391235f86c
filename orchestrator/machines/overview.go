package machines

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/machines/overview"
	"github.com/orlop-os/orlop/pkg/machineapi"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// overviewInterval is the time between two comparisons of the objects ClusterHealth and Component
// with the state of the cluster. These objects need no informer, because only this package writes
// them.
const overviewInterval = 30 * time.Second

// Sources are the functions that return the state of this process for the objects ClusterHealth and
// Component.
type Sources struct {
	// Parts returns all components of the system.
	Parts func() ([]overview.Part, error)
	// Addons returns the add-ons with their states.
	Addons func() []overview.Addon
}

// overviews maintains the object ClusterHealth and the Component objects.
type overviews struct {
	Sources
	settings Settings
	file     string // file with the report of machined
	reads    kubernetes.Interface
	acts     *clients
	next     time.Time
}

func newOverviews(from Sources, settings Settings, env component.Env, watches, acts *clients) *overviews {
	return &overviews{Sources: from, settings: settings, file: filepath.Join(env.Dirs.Controllers, nodespec.ClusterReportFile), reads: watches.nodes, acts: acts}
}

// pass performs the changes of overview.Plan, at most once in overviewInterval. After the creation
// of an object, the next pass follows without this delay and writes the status of the object.
func (o *overviews) pass(ctx context.Context, now time.Time) error {
	if now.Before(o.next) {
		return nil
	}
	s, err := o.snapshot(ctx, now)
	if err != nil {
		return err
	}
	changes := overview.Plan(s)
	err = perform(changes, func(c overview.Change) error { return o.acts.doOverview(ctx, c) })
	if err == nil && !slices.ContainsFunc(changes, func(c overview.Change) bool { return c.Verb == overview.Create }) {
		o.next = now.Add(overviewInterval)
	}
	return err
}

// snapshot reads the state of the cluster, and the objects from the API server.
func (o *overviews) snapshot(ctx context.Context, now time.Time) (s overview.Snapshot, err error) {
	s = overview.Snapshot{Now: now, Cluster: o.settings.Name, Own: o.settings.Own, Addons: o.Addons()}
	if s.Report, err = overview.Read(o.file); err != nil {
		return s, err
	}
	if s.Parts, err = o.Parts(); err != nil {
		return s, err
	}
	if s.Registered, err = registered(ctx, o.reads); err != nil {
		return s, fmt.Errorf("cannot read the webhooks and policies: %w", err)
	}
	healths, err := list(ctx, o.acts.health)
	if err != nil {
		return s, fmt.Errorf("cannot read the ClusterHealth: %w", err)
	}
	s.Health = named(healths, s.Cluster)
	if s.Components, err = list(ctx, o.acts.components); err != nil {
		return s, fmt.Errorf("cannot read the Components: %w", err)
	}
	return s, nil
}

// registered returns the admission webhooks and admission policies in the cluster, sorted by kind
// and name.
func registered(ctx context.Context, client kubernetes.Interface) (all []machineapi.Extension, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	of, everything := client.AdmissionregistrationV1(), metav1.ListOptions{}
	add := func(kind, name string, policy *admissionv1.FailurePolicyType) {
		e := machineapi.Extension{Point: overview.PointAdmission, Name: name, Source: kind}
		if policy != nil {
			e.Detail = "failure policy " + string(*policy)
		}
		all = append(all, e)
	}
	mutating, err := of.MutatingWebhookConfigurations().List(ctx, everything)
	if err != nil {
		return nil, err
	}
	for _, c := range mutating.Items {
		for _, w := range c.Webhooks {
			add("MutatingWebhookConfiguration", c.Name+"/"+w.Name, w.FailurePolicy)
		}
	}
	validating, err := of.ValidatingWebhookConfigurations().List(ctx, everything)
	if err != nil {
		return nil, err
	}
	for _, c := range validating.Items {
		for _, w := range c.Webhooks {
			add("ValidatingWebhookConfiguration", c.Name+"/"+w.Name, w.FailurePolicy)
		}
	}
	policies, err := of.ValidatingAdmissionPolicies().List(ctx, everything)
	if err != nil {
		return nil, err
	}
	for _, p := range policies.Items {
		add("ValidatingAdmissionPolicy", p.Name, p.Spec.FailurePolicy)
	}
	mutations, err := of.MutatingAdmissionPolicies().List(ctx, everything)
	switch {
	case apierrors.IsNotFound(err): // the emulated minor version does not have this kind
	case err != nil:
		return nil, err
	default:
		for _, p := range mutations.Items {
			add("MutatingAdmissionPolicy", p.Name, p.Spec.FailurePolicy)
		}
	}
	slices.SortFunc(all, func(a, b machineapi.Extension) int {
		return cmp.Or(strings.Compare(a.Source, b.Source), strings.Compare(a.Name, b.Name))
	})
	return all, nil
}
