package disruption

import (
	"github.com/orlop-os/orlop/pkg/emulation"
)

// Level is the level of the cluster: the output of `orchestrator read-level`.
type Level struct {
	Level emulation.Minor `json:"level,omitempty"` // "" if it is unknown
	// Problem is the reason why the level is unknown; empty if it is known.
	Problem string `json:"problem,omitempty"`
}

// target returns the minor version of Kubernetes after the operation; unknown if it does not
// change. A version of the system that cannot return the turn does not name its Kubernetes either:
// it is from before levels.
func (r Request) target() emulation.Minor {
	if r.Kubernetes == "" && r.Forgets {
		return emulation.BeforeLevels
	}
	return emulation.Of(r.Kubernetes)
}

// NeedsLevel reports whether the decision depends on the level of the cluster: only if the
// operation changes the minor version of a control-plane machine.
func NeedsLevel(m Machine, r Request) bool {
	target := r.target()
	return m.ControlPlane && (r.Operation == Upgrade || r.Operation == Rollback) && target.Known() && target != emulation.Of(m.Kubernetes)
}

// CheckLevel returns the reason why the level of the cluster excludes the version after an
// operation; nil if it does not.
func CheckLevel(m Machine, r Request, l Level) *Refusal {
	if !NeedsLevel(m, r) {
		return nil
	}
	no, forced := emulation.CheckTarget(l.Level, emulation.Of(m.Kubernetes), r.target(), m.Others)
	if no == nil {
		return nil
	}
	reason := no.Reason
	if l.Problem != "" {
		reason += ": " + l.Problem
	}
	return &Refusal{Operation: r.Operation, Reason: reason, Remedy: no.Remedy, Final: !forced}
}
