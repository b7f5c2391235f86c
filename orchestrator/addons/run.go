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
	"k8s.io/client-go/tools/clientcmd"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/orchestrator/kubeconfig"
	"github.com/orlop-os/orlop/pkg/artifact"
	"github.com/orlop-os/orlop/pkg/durable"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// Name is the component's name.
const Name = "addons"

// look is how often the file and the times of the add-ons are looked at. An add-on that is as it
// should be is looked at every healing, one that is on its way sooner, one that was refused at most
// every backoff. Without add-ons it is looked every idle whether there were any.
const (
	look    = time.Second
	soon    = 2 * time.Second
	healing = 10 * time.Second
	backoff = 30 * time.Second
	idle    = time.Minute
)

// Component describes the component without its Run function.
func Component(spec nodespec.Spec, dirs dirs.Dirs) component.Component {
	config := kubeconfig.ControllersFile(spec, dirs, Name, nodespec.AddonsCert, nodespec.AddonsKey)
	return component.Component{Process: component.Controllers, Name: Name, Files: []component.File{config}}
}

// Run keeps the add-ons until ctx is done. rights waits until the component may do what it does. It
// is announced as ready whatever becomes of the add-ons: one that fails says nothing against the
// machine, nor against the version of the system that runs.
func Run(ctx context.Context, spec nodespec.Spec, dirs dirs.Dirs, rights func(context.Context) error, announce component.Announce) error {
	announce(Name, false, "waiting for the API server")
	if err := rights(ctx); err != nil {
		return nil // asked to stop before there was anything to stop
	}
	path := kubeconfig.Path(dirs.Controllers, Name)
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return fmt.Errorf("%s: cannot use: %w", path, err)
	}
	config.Timeout, config.QPS, config.Burst = patience, 50, 100
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("cannot make client: %w", err)
	}
	m := &manager{
		spec: spec, file: filepath.Join(dirs.Controllers, nodespec.Addons), artifacts: artifact.Store{Dir: dirs.Addons}, config: config, client: client, kinds: newKinds(client), memories: map[string]*remembered{},
	}
	tick := time.NewTicker(look)
	defer tick.Stop()
	for told := ""; ; {
		detail, err := m.round(ctx, time.Now())
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			detail = err.Error()
		}
		if detail != told {
			told = detail
			announce(Name, true, detail)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// manager keeps all add-ons.
type manager struct {
	spec      nodespec.Spec
	file      string
	artifacts artifact.Store
	config    *rest.Config
	client    kubernetes.Interface
	kinds     *kinds

	stamp    string // of the file as last read
	all      []nodespec.Addon
	changed  bool                   // since all of them were looked at
	wanted   map[string]Wanted      // what they say, by name
	memories map[string]*remembered // by name
	copies   map[string]*copied     // of what is wanted instead of what was withdrawn, by name
	next     time.Time              // when the next round is due, apart from a change of the file
	fails    int                    // rounds one after the other that failed
}

// remembered is what is remembered of an add-on from one look to the next.
type remembered struct {
	keeper
	next  time.Time // when it is looked at again
	tries int       // looks one after the other that did not find it as it should be
	// kept is the digest of the manifests for which remember did, at keptAt, what it could; unkept
	// is why they are not kept.
	kept, unkept string
	keptAt       time.Time
	state        State
}

// round reads the documents, and looks at the add-ons that are due. It says how all of them are.
func (m *manager) round(ctx context.Context, now time.Time) (string, error) {
	changed, err := m.read()
	if err != nil {
		return "", err
	}
	m.changed = m.changed || changed
	if !changed && now.Before(m.next) {
		return m.detail(), nil
	}
	if err := m.due(ctx, now, m.changed); err != nil {
		m.fails++
		m.next = now.Add(delay(m.fails, healing))
		return "", err
	}
	m.fails = 0
	m.next = now.Add(idle)
	for _, k := range m.memories {
		if k.next.Before(m.next) {
			m.next = k.next
		}
	}
	return m.detail(), nil
}

// delay is how long after some failures, one after the other, it is tried again.
func delay(failures int, most time.Duration) time.Duration {
	return min(soon<<min(max(failures-1, 0), 10), most)
}

// read reads the documents if they are others than before.
func (m *manager) read() (changed bool, err error) {
	info, err := os.Stat(m.file)
	if err != nil {
		return false, fmt.Errorf("add-ons of the configuration: %w", err)
	}
	stamp := durable.Stamp(info)
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
		return false, fmt.Errorf("add-ons of the configuration: %s cannot be decoded", m.file)
	}
	m.stamp, m.all, m.wanted = stamp, all, map[string]Wanted{}
	return true, nil
}

// detail is how the add-ons are, in one line: the first one that fails, or else that is on its way,
// with what it says.
func (m *manager) detail() string {
	if len(m.memories) == 0 {
		return "no add-ons"
	}
	ready, worst := 0, ""
	var at Phase
	for _, name := range slices.Sorted(maps.Keys(m.memories)) {
		s := m.memories[name].state
		if s.Phase == Ready {
			ready++
		} else if worst == "" || s.Phase == Failed && at != Failed {
			worst, at = name+": "+s.Line(), s.Phase
		}
	}
	line := fmt.Sprintf("%d of %d add-ons are ready", ready, len(m.memories))
	if worst != "" {
		line += "; " + worst
	}
	return line
}
