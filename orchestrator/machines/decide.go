package machines

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/orlop-os/orlop/pkg/disruption/rollout"
	"github.com/orlop-os/orlop/pkg/machineapi"
)

// minReady is how long a machine has to be ready before the rollout counts it as available.
const minReady = 30 * time.Second

// world returns the input of rollout.Decide for all machines. It fails if the rules in the
// OrlopCluster are invalid.
func (s Snapshot) world(all []*machine) (rollout.World, error) {
	w := rollout.World{Now: s.Now}
	rules := s.OrlopCluster.Spec.Rollout
	policy, err := readPolicy(rules)
	if err != nil {
		return w, err
	}
	w.Policy = policy
	canary := labels.Nothing()
	if rules.Canary != nil {
		if canary, err = metav1.LabelSelectorAsSelector(&rules.Canary.Selector); err != nil {
			return w, fmt.Errorf("OrlopCluster %s: spec.rollout.canary.selector: %w", s.Settings.Name, err)
		}
	}
	for _, m := range all {
		in := rollout.Machine{
			Name: m.name, ControlPlane: m.controlPlane, Have: m.have(), Want: m.want.Version,
			Ready: m.ready.status == metav1.ConditionTrue, Since: m.readySince(s.Now),
		}
		if m.object != nil {
			in.Canary = canary.Matches(labels.Set(m.object.Labels))
		}
		if m.own != nil {
			in.Leader = m.own.Status.EtcdLeader
			in.Updating = meta.IsStatusConditionTrue(m.own.Status.Conditions, machineapi.ConditionUpdating) || m.own.Status.Release != nil && m.own.Status.Release.OnTrial
			if failed := m.own.Status.Failed; failed != nil {
				in.RolledBack = failed.Release.Version
			}
			if p := m.own.Spec.Permit; p != nil {
				in.Permit = rollout.Permit{Release: p.Release.Version, Expires: p.Expires.Time}
			}
		}
		w.Machines = append(w.Machines, in)
	}
	return w, nil
}

// readPolicy converts the rules of an OrlopCluster to the policy of a rollout. It fails if a window
// is invalid.
func readPolicy(rules machineapi.Rollout) (rollout.Policy, error) {
	p := rollout.Policy{Paused: rules.Paused, MaxUnavailable: 1, MinReady: minReady}
	if rules.MaxUnavailable != nil {
		p.MaxUnavailable = int(*rules.MaxUnavailable)
	}
	if rules.Canary != nil {
		p.CanarySoak = time.Duration(rules.Canary.SoakSeconds) * time.Second
	}
	for i, w := range rules.Windows {
		at, err := time.Parse("15:04", w.Start)
		if err != nil {
			return p, fmt.Errorf("spec.rollout.windows[%d].start: %w", i, err)
		}
		window := rollout.Window{Start: time.Duration(at.Hour())*time.Hour + time.Duration(at.Minute())*time.Minute, Length: time.Duration(w.Minutes) * time.Minute}
		for _, d := range w.Days {
			day, known := weekdays[d]
			if !known {
				return p, fmt.Errorf("spec.rollout.windows[%d].days: unknown day %s", i, d)
			}
			window.Days = append(window.Days, day)
		}
		if err := window.Check(); err != nil {
			return p, fmt.Errorf("spec.rollout.windows[%d]: %w", i, err)
		}
		p.Windows = append(p.Windows, window)
	}
	return p, nil
}

// weekdays maps the names of days in the API to days.
var weekdays = func() map[machineapi.Day]time.Weekday {
	all := map[machineapi.Day]time.Weekday{}
	for d := time.Sunday; d <= time.Saturday; d++ {
		all[machineapi.Day(d.String())] = d
	}
	return all
}()

// permit adds a change that writes the permit of a machine if the rollout permits its change now.
// It adds a change that removes the permit if the machine runs its wanted release.
func (s Snapshot) permit(r *Result, m *machine) {
	if m.own == nil {
		return
	}
	object := m.own.DeepCopy()
	switch {
	case m.verdict.State == rollout.Permitted:
		object.Spec.Permit = &machineapi.Permit{Release: m.want, Peers: m.peers, Expires: metav1.NewTime(m.verdict.Permit.Expires.Truncate(time.Second))}
		r.Permits = true
	case m.verdict.State == rollout.UpToDate && m.own.Spec.Permit != nil:
		object.Spec.Permit = nil
	default:
		return
	}
	r.Changes = append(r.Changes, Change{Permit, object})
}
