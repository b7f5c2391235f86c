package emulation

import (
	"fmt"
	"slices"
	"strings"
)

// maxEmulation is how many minor versions older than its own version a component of Kubernetes can
// emulate (k8s.io/component-base/compatibility: the minimum of --emulated-version).
const maxEmulation = 3

// BeforeLevels is the version of Kubernetes in the releases from before levels existed. Their boot
// images do not contain the version of Kubernetes, so a machine cannot read it.
var BeforeLevels = Minor{1, 36}

// Initial returns the level of a cluster that has not stored a level: the oldest of the given
// versions. recorded are the versions that the members of an existing cluster have recorded. local
// is the version that wrote the data of the machine before this start; unknown if there are no
// data. own is the version of this machine. For a new cluster, only own is known, so it is the
// result.
func Initial(recorded []Minor, local, own Minor) Minor {
	level := own
	if local.Known() && local.OlderThan(level) {
		level = local
	}
	for _, m := range recorded {
		if m.Known() && m.OlderThan(level) {
			level = m
		}
	}
	return level
}

// Emulated returns the version that the components of this machine must emulate at a level. own is
// their own version. The result is unknown if they need not emulate another version. It returns an
// error if components of version own cannot serve the level.
func Emulated(level, own Minor) (Minor, error) {
	switch {
	case !level.Known() || level == own:
		return Minor{}, nil
	case own.OlderThan(level):
		return Minor{}, fmt.Errorf("the level of the cluster is %s, and this version has Kubernetes %s: upgrade this machine", level, own)
	case level.Major != own.Major || own.Minor-level.Minor > maxEmulation:
		return Minor{}, fmt.Errorf("the level of the cluster is %s, and Kubernetes %s emulates at most %d older minor versions: return to a version between them, and raise the level there", level, own, maxEmulation)
	}
	return level, nil
}

// Member is a control-plane machine, a member of etcd.
type Member struct {
	Name string
	// Kubernetes is the version that the machine has recorded in etcd; unknown if it has recorded
	// none.
	Kubernetes Minor
	// Problem is the reason why the machine is away; empty if it answers.
	Problem string
}

// Cluster is the state of a cluster as a control-plane machine observes it.
type Cluster struct {
	Level   Minor // unknown if it cannot be read
	Members []Member
	// Turn describes the control-plane machine that has the turn: it is being upgraded, is on trial
	// or is away for another reason. It is empty if no machine has the turn.
	Turn string
}

// Refusal is the reason why an operation is refused, with the remedy.
type Refusal struct{ Reason, Remedy string }

// Next returns the level to which a cluster can be raised: the oldest version of its members. It
// returns a refusal if the level cannot be raised at present. If no member is newer than the level,
// Next returns the present level instead of a refusal, because the call may be a repetition: the
// first call has raised the level, and its answer was lost. The first row that applies decides:
//
//	state of the cluster                                 decision
//	the level is unknown                                 refused
//	the members are unknown                              refused
//	all versions are recorded, and none of them is       the level stays
//	newer than the level
//	a member is away                                     refused
//	a member has recorded no version                     refused
//	a machine has the turn                               refused
//	all members are newer than the level                 the oldest version of the members
//	some members are newer than the level                refused
func (c Cluster) Next() (Minor, *Refusal) {
	if !c.Level.Known() {
		return Minor{}, &Refusal{"the level of the cluster is unknown", "try again when etcd answers (`orlopctl etcd members`)"}
	}
	if len(c.Members) == 0 {
		return Minor{}, &Refusal{"the members of etcd are unknown", "try again when etcd answers (`orlopctl etcd members`)"}
	}
	if !slices.ContainsFunc(c.Members, func(m Member) bool { return !m.Kubernetes.Known() || c.Level.OlderThan(m.Kubernetes) }) {
		return c.Level, nil
	}
	oldest := c.Members[0].Kubernetes
	for _, m := range c.Members {
		if m.Problem != "" {
			return Minor{}, &Refusal{fmt.Sprintf("control-plane machine %s is away: %s", m.Name, m.Problem),
				"start it, or if it is lost, remove it (`orlopctl etcd remove " + m.Name + "`)"}
		}
	}
	for _, m := range c.Members {
		if !m.Kubernetes.Known() {
			return Minor{}, &Refusal{fmt.Sprintf("the version of control-plane machine %s is unknown", m.Name), "wait until it is healthy (`orlopctl health`)"}
		}
		if m.Kubernetes.OlderThan(oldest) {
			oldest = m.Kubernetes
		}
	}
	switch {
	case c.Turn != "":
		return Minor{}, &Refusal{c.Turn, "wait until it is healthy (`orlopctl health`)"}
	case c.Level.OlderThan(oldest):
		return oldest, nil
	}
	names, text := c.running(oldest), "control-plane machine %s runs Kubernetes %s"
	if len(names) > 1 {
		text = "control-plane machines %s run Kubernetes %s"
	}
	return Minor{}, &Refusal{fmt.Sprintf(text, strings.Join(names, ", "), oldest), "upgrade all of them, or go back on the others (`orlopctl rollback`)"}
}

// running returns the sorted names of the members that run a version.
func (c Cluster) running(version Minor) []string {
	var names []string
	for _, m := range c.Members {
		if m.Kubernetes == version {
			names = append(names, m.Name)
		}
	}
	slices.Sort(names)
	return names
}

// Describe returns a text about the level of a cluster, for operators. own is the version of this
// machine.
func (c Cluster) Describe(own Minor) string {
	next, no := c.Next()
	switch {
	case c.Level == own && (no != nil || next == own):
		return fmt.Sprintf("level %s", c.Level)
	case no != nil:
		return fmt.Sprintf("level %s, finalize blocked because %s", c.Level, no.Reason)
	}
	return fmt.Sprintf("level %s, finalize possible: `orlopctl upgrade finalize` raises it to %s, and ends the way back", c.Level, next)
}

// CheckTarget returns the reason why a machine cannot change from the version own to the version
// target; nil if it can. The level may be newer than target, or older than own, so that it must be
// raised first. target is unknown if the minor version does not change. shared means that other
// control-plane machines also have the data of etcd. The result forced means that an operator can
// force the operation.
func CheckTarget(level, own, target Minor, shared bool) (no *Refusal, forced bool) {
	switch {
	case !target.Known() || target == own:
		return nil, false
	case !level.Known() && !shared: // the operation may repair the machine
		return nil, false
	case !level.Known():
		return &Refusal{"the level of the cluster is unknown", "try again when etcd answers (`orlopctl etcd members`)"}, true
	case target.OlderThan(level) && shared:
		return &Refusal{fmt.Sprintf("the level of the cluster is %s, and version %s cannot read its data", level, target),
			"the way back is a restore from before the level was raised (`orlopctl docs runbook`, \"Raise the level of the cluster\")"}, false
	case target.OlderThan(level):
		return &Refusal{fmt.Sprintf("the level of the cluster is %s, and version %s cannot read its data", level, target),
			"restore the savepoint from before the upgrade with --force, which loses all writes since"}, true
	case own.OlderThan(target) && level.OlderThan(own):
		return &Refusal{fmt.Sprintf("the level of the cluster is still %s, and this machine runs Kubernetes %s", level, own),
			"raise it first (`orlopctl upgrade finalize`)"}, true
	}
	return nil, false
}
