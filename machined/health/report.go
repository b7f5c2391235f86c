package health

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/limits"
)

// activationTime is the time after a configuration change in which the health lists services that
// do not run with the new configuration yet. A longer delay is reported elsewhere. pollInterval is
// the interval between these checks, and between the attempts to read the highest epoch.
const (
	activationTime = 30 * time.Second
	pollInterval   = time.Second
)

// Snapshot is the state of a machine, with the checks of other packages. A check is nil if its
// subject has nothing to report.
type Snapshot struct {
	Machine    Machine
	Operations string // failed operations of the active configuration; empty if none
	Volumes    string // problems of the volumes on other disks; empty if none
	Firewall   string // why the nftables rules are not active; empty if they are

	Panics, Extensions, Storage, Wear, Encryption *api.HealthCheck
	// Turn is the check of the turn, the right to be away (package disruption). The machine gives
	// its turn back as soon as all other checks pass.
	Turn *api.HealthCheck
}

// Deps is the environment of a Reporter.
type Deps struct {
	// Read returns the present state, without a read of STATE. Changes notify the Reporter of each
	// change after which Read can return another state.
	Read    func() Snapshot
	Changes []cell.View[struct{}]
	// ReadEpochFloor returns the highest epoch of a committed version. It fails if STATE does not
	// answer.
	ReadEpochFloor func(context.Context) (int, error)
	// ReleaseCheck adds warnings about the running version to the checks.
	ReleaseCheck func(health *api.HealthResponse, floor int, now time.Time)
	// WaitingServices returns the services that do not run with the configuration yet. The error is
	// limits.ErrUnknown if STATE does not answer.
	WaitingServices func(context.Context, *config.Config) ([]string, error)
}

// Reporter reports the health of the machine. All methods are safe for concurrent use.
type Reporter struct{ deps Deps }

// NewReporter returns a Reporter. It reads nothing.
func NewReporter(d Deps) *Reporter { return &Reporter{deps: d} }

// Watch calls the function each with the health, now and after every change. It ends when the
// function returns more = false or an error, or when ctx ends.
func (r *Reporter) Watch(ctx context.Context, each func(*api.HealthResponse) (more bool, err error)) error {
	began, floor, unknown := time.Now(), 0, error(limits.ErrUnknown)
	for changes := cell.NewGroup(r.deps.Changes...); ; {
		changes.Mark()
		now := r.deps.Read()
		if unknown != nil {
			floor, unknown = r.deps.ReadEpochFloor(ctx)
		}
		have := r.report(now, floor, unknown, began)
		var later <-chan time.Time
		if have.Healthy && time.Since(now.Machine.Applied) < activationTime {
			if r.checkActivation(ctx, have, now.Machine); !have.Healthy {
				later = time.After(pollInterval)
			}
		} else if unknown != nil {
			later = time.After(pollInterval)
		}
		Add(have, now.Turn) // added last, because the conditions above ignore the turn
		if more, err := each(have); err != nil || !more {
			return err
		}
		if err := changes.Wait(ctx, later); err != nil {
			return err
		}
	}
}

// report returns the health without two checks: the turn, and the services that have not restarted
// yet. floor is the highest epoch of a committed version. If floor could not be read, unknown is
// the error. began is the start of the watch.
func (r *Reporter) report(now Snapshot, floor int, unknown error, began time.Time) *api.HealthResponse {
	have, applied := Of(now.Machine), now.Machine.Applied
	Add(have, Volumes(now.Volumes, applied), Firewall(now.Firewall, applied), now.Panics)
	if now.Operations != "" {
		ConfigurationNotActive(have, now.Operations)
	}
	r.deps.ReleaseCheck(have, floor, began)
	Add(have, now.Extensions, now.Storage, now.Wear, now.Encryption, Unanswered("STATE", "which epoch is the highest of a committed version", unknown, began))
	return have
}

// checkActivation makes the check of the configuration fail while services do not run with this
// configuration.
func (r *Reporter) checkActivation(ctx context.Context, have *api.HealthResponse, m Machine) {
	waits, err := r.deps.WaitingServices(ctx, m.Config)
	switch {
	case errors.Is(err, limits.ErrUnknown):
		Add(have, Unanswered("STATE", "which services do not run with the configuration yet", err, m.Applied))
	case err == nil && len(waits) > 0:
		ConfigurationNotActive(have, "not active yet: "+strings.Join(waits, ", "))
	}
}
