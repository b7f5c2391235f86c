package emulation

// etcdOf maps a level to the minor version of etcd in the releases with this version of Kubernetes
// (go.mod of the releases). This is the storage version of the data at the level.
var etcdOf = map[Minor]string{{1, 36}: "3.6", {1, 37}: "3.7"}

// EtcdOf returns the minor version of etcd at a level, for example "3.6"; empty if the level is not
// in the table.
func EtcdOf(level Minor) string { return etcdOf[level] }

// Hold is a step that keeps etcd at the storage version of the level by means of etcd's downgrade.
// While a downgrade to version 3.6 is enabled, etcd does not raise the version of the cluster above
// 3.6, and lowers a higher version to 3.6.
type Hold int

// The steps.
const (
	Keep   Hold = iota // no change
	Enable             // enable the downgrade
	Cancel             // cancel the downgrade
)

// Etcd is the state of etcd as a member observes it.
type Etcd struct {
	Own     string // the minor version of this member, for example "3.7"
	Members int
	// Joining means that a member was added and has not started. No downgrade may be enabled then,
	// because etcd admits no new member during a downgrade. None is necessary either: etcd does not
	// raise its version while the version of a member is unknown.
	Joining bool
	Enabled bool   // a downgrade is enabled
	Target  string // target of the enabled downgrade, a minor version
}

// HoldEtcd returns the step that keeps etcd at the minor version wanted; empty means unknown. The
// first column compares wanted with the version of this member.
//
//	version                    members            downgrade         step
//	of another tool            any                another target    nothing
//	unknown or of this member  any                enabled           cancel
//	unknown or of this member  any                off               nothing
//	older                      1                  enabled           cancel
//	older                      1                  off               nothing
//	older                      a member joins     enabled           cancel
//	older                      a member joins     off               nothing
//	older                      several            off               enable
//	older                      several            enabled           nothing
func HoldEtcd(wanted string, e Etcd) Hold {
	// A cluster with a single member needs no downgrade, because a rollback restores the savepoint.
	hold := wanted != "" && wanted != e.Own && e.Members > 1 && !e.Joining
	switch {
	case hold && !e.Enabled:
		return Enable
	case !hold && e.Enabled && e.Target != e.Own:
		return Cancel
	}
	return Keep
}

// Settled reports whether HoldEtcd will return no more steps while this member runs. This is so if
// wanted is the version of this member, and no downgrade is enabled. The level cannot rise above
// the version of a member, and falls only by a restore, after which each member starts again. An
// unknown level is not settled, because it can become known later: a full database cannot store the
// level at first.
func (e Etcd) Settled(wanted string) bool { return wanted == e.Own && !e.Enabled }
