package activeconfig

import (
	"context"
	"reflect"
	"slices"
	"time"

	"github.com/orlop-os/orlop/machined/nodeplan"
	"github.com/orlop-os/orlop/machined/transition"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/config"
)

// activationDelay is the delay before a configuration on trial becomes active. During the delay,
// the answer is sent over the connection that the configuration may cut.
const activationDelay = time.Second

// Activation is a checked configuration that a client has sent.
type Activation struct {
	Config    *config.Config
	Documents []byte
	By        string        // the author
	Trial     time.Duration // 0: no trial
	TrialName string        // the caller's name for the trial; it can be empty
	CutsOff   bool          // the change can cut off its caller: it takes effect after the answer
	Remark    string        // end of the text of the event; it can be empty
}

// NewActivation returns the activation of a configuration that a client has sent as documents.
func NewActivation(ctx context.Context, r *api.ApplyRequest, next *config.Config, documents []byte, trial transition.Trial) Activation {
	return Activation{
		Config: next, Documents: documents, By: api.CallerFromContext(ctx).String(), Trial: trial.Duration, TrialName: r.TrialName,
		CutsOff: len(trial.CutOffs) > 0, Remark: trial.Remark(r),
	}
}

// Activate stores the documents and makes the configuration active; then the domains converge to
// the configuration. before is the active configuration. The caller holds the lock (Lock).
func (m *Manager) Activate(before Active, a Activation) (Active, error) {
	fresh := Active{Config: a.Config, Source: "API (" + a.By + ")"}
	var err error
	if a.Trial > 0 {
		fresh.TrialEnd = time.Now().Add(a.Trial)
		err = m.deps.Store.StartTrial(a.Documents)
	} else if err = m.deps.Store.Put(a.Documents); err == nil {
		err = m.deps.Store.DropStaged()
	}
	if err != nil {
		return Active{}, err
	}
	m.deps.Event("config", "applied by "+a.By+a.Remark)
	for _, change := range config.Changes(before.Config, a.Config) {
		m.deps.Event("config", change)
	}
	fresh.At = time.Now()
	if fresh.OnTrial() {
		fresh.TrialName = a.TrialName
		// Confirm does not wait for the network if it is unchanged.
		fresh.SameNetwork = !before.OnTrial() && reflect.DeepEqual(nodeplan.Network(before.Config), nodeplan.Network(a.Config))
	}
	if a.CutsOff {
		fresh.Due = time.Now().Add(activationDelay)
	}
	// If this trial replaces a trial, Tried also contains the configuration of the replaced trial:
	// the revert needs a reboot if any tried configuration needs it.
	if fresh.OnTrial() && before.OnTrial() {
		fresh.Tried = append(slices.Clone(before.Tried), before.Config)
	}
	m.cell.Set(fresh)
	m.AddToHistory(a.Documents, a.By)
	return fresh, nil
}

// Stage stores the documents for the next boot. If a.Trial is set, the trial begins at that boot.
func (m *Manager) Stage(a Activation) error {
	var err error
	if a.Trial > 0 {
		err = m.deps.Store.StageTrial(a.Documents, a.TrialName, a.Trial)
	} else {
		err = m.deps.Store.Stage(a.Documents)
	}
	if err == nil {
		m.deps.Event("config", "staged for the next boot by "+a.By+a.Remark)
	}
	return err
}

// Repeats reports whether a request changes nothing: its configuration equals the active
// configuration, which is not on trial, nothing is staged, and the request wants no trial. Comments
// can differ.
func (m *Manager) Repeats(before Active, next *config.Config, mode api.ApplyRequest_Mode) bool {
	return before.Config != nil && len(config.Changes(before.Config, next)) == 0 && !before.OnTrial() &&
		mode != api.ApplyRequest_MODE_TRY && m.deps.Store.Staged().IsZero()
}
