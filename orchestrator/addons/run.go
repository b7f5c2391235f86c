package addons

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/orchestrator/kubeconfig"
	"github.com/orlop-os/orlop/pkg/artifact"
	"github.com/orlop-os/orlop/pkg/backoff"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/safefile"
)

// Name is the name of the component.
const Name = "addons"

// pollInterval is the period at which the file and the due times of the add-ons are checked. A
// ready add-on is reconciled every resyncPeriod, an add-on in progress earlier, and a rejected
// add-on at most every maxBackoff. Without documents of add-ons, idlePeriod is the time between two
// checks for records of removed add-ons.
const (
	pollInterval = time.Second
	minBackoff   = 2 * time.Second
	resyncPeriod = 10 * time.Second
	maxBackoff   = 30 * time.Second
	idlePeriod   = time.Minute
)

// Component describes the component without its Run function.
func Component(spec nodespec.Spec, dirs dirs.Dirs) component.Component {
	return kubeconfig.ControllersComponent(spec, dirs, Name, nodespec.AddonsCert, nodespec.AddonsKey)
}

// Run reconciles the add-ons until ctx is done. The component is always announced as ready: a
// failing add-on is not a fault of the machine, nor of the running version of the system. After
// each change, Run writes the states of all add-ons to states.
func Run(ctx context.Context, env component.Env, states *cell.Cell[[]Summary]) error {
	config, err := env.WaitConfig(ctx, Name)
	if config == nil {
		return err
	}
	config.Timeout, config.QPS, config.Burst = requestTimeout, 50, 100
	client, err := component.NewClient(config)
	if err != nil {
		return err
	}
	m := &manager{
		spec: env.Spec, file: filepath.Join(env.Dirs.Controllers, nodespec.Addons), artifacts: artifact.Store{Dir: env.Dirs.Addons}, config: config, client: client, kinds: newKinds(client), states: map[string]*addonState{},
	}
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for reported := ""; ; {
		detail, err := m.round(ctx, time.Now())
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			detail = err.Error()
		}
		if detail != reported {
			reported = detail
			env.Announce(Name, true, detail)
		}
		if now, _ := states.Get(); !slices.Equal(now, m.summaries()) {
			states.Set(m.summaries())
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// manager reconciles all add-ons.
type manager struct {
	spec      nodespec.Spec
	file      string
	artifacts artifact.Store
	config    *rest.Config
	client    kubernetes.Interface
	kinds     *kinds

	stamp          string // of the file as last read
	all            []nodespec.Addon
	changed        bool                          // documents, since all add-ons were reconciled
	wanted         map[string]Wanted             // wanted objects, by name of the add-on
	states         map[string]*addonState        // by name
	previousByName map[string]*previousManifests // of add-ons that were rolled back
	next           time.Time                     // next round without a change of the file
	fails          int                           // consecutive failed rounds
}

// addonState is the state of an add-on in memory between two passes.
type addonState struct {
	reconciler
	next  time.Time // when the next pass is due
	tries int       // consecutive passes that did not find it ready
	// stored is the digest of the manifests for which storeManifests was called at storedAt;
	// notStored is the reason if they are not stored.
	stored, notStored string
	storedAt          time.Time
	state             State
}

// round reads the documents, reconciles the add-ons that are due, and returns a summary of all.
func (m *manager) round(ctx context.Context, now time.Time) (string, error) {
	changed, err := m.readDocuments()
	if err != nil {
		return "", err
	}
	m.changed = m.changed || changed
	if !changed && now.Before(m.next) {
		return m.detail(), nil
	}
	if err := m.reconcileDue(ctx, now, m.changed); err != nil {
		m.fails++
		m.next = now.Add(delay(m.fails, resyncPeriod))
		return "", err
	}
	m.fails = 0
	m.next = now.Add(idlePeriod)
	for _, k := range m.states {
		if k.next.Before(m.next) {
			m.next = k.next
		}
	}
	return m.detail(), nil
}

// delay returns the delay after consecutive failures.
func delay(failures int, most time.Duration) time.Duration {
	return backoff.Backoff{Min: minBackoff, Max: most}.Delay(failures)
}

// readDocuments reads the documents if they have changed.
func (m *manager) readDocuments() (changed bool, err error) {
	info, err := os.Stat(m.file)
	if err != nil {
		return false, fmt.Errorf("add-ons of the configuration: %w", err)
	}
	stamp := safefile.Stamp(info)
	if stamp == m.stamp {
		return false, nil
	}
	text, err := os.ReadFile(m.file)
	if err != nil {
		return false, fmt.Errorf("add-ons of the configuration: %w", err)
	}
	var all []nodespec.Addon
	if err := json.Unmarshal(text, &all); err != nil {
		// the message may show a Secret
		return false, fmt.Errorf("add-ons of the configuration: cannot decode %s", m.file)
	}
	m.stamp, m.all, m.wanted = stamp, all, map[string]Wanted{}
	return true, nil
}

// Summary is the state of an add-on for other components.
type Summary struct {
	Name  string
	Ready bool
	Line  string // for operators
}

// summaries returns the states of all add-ons, by name.
func (m *manager) summaries() []Summary {
	var all []Summary
	for _, name := range slices.Sorted(maps.Keys(m.states)) {
		s := m.states[name].state
		all = append(all, Summary{Name: name, Ready: s.Phase == Ready, Line: s.Line()})
	}
	return all
}

// detail summarizes the add-ons in one line, with the state of the first add-on that fails, or, if
// none fails, of the first in progress.
func (m *manager) detail() string {
	if len(m.states) == 0 {
		return "no add-ons"
	}
	ready, worst := 0, ""
	var at Phase
	for _, name := range slices.Sorted(maps.Keys(m.states)) {
		s := m.states[name].state
		if s.Phase == Ready {
			ready++
		} else if worst == "" || s.Phase == Failed && at != Failed {
			worst, at = name+": "+s.Line(), s.Phase
		}
	}
	line := fmt.Sprintf("%d of %d add-ons are ready", ready, len(m.states))
	if worst != "" {
		line += "; " + worst
	}
	return line
}
