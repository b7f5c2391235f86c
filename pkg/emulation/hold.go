package emulation

// etcdOf holds, for a level, the minor version of etcd with which the releases of that level store
// data (go.mod of the releases).
var etcdOf = map[Minor]string{{1, 36}: "3.6", {1, 37}: "3.7"}

// EtcdOf returns the minor version of etcd at a level, for example "3.6"; empty if it is unknown.
func EtcdOf(level Minor) string { return etcdOf[level] }

// Hold is a step that holds etcd at the storage version of the level, by etcd's downgrade: with
// a downgrade to version 3.6 etcd does not raise the version of the cluster above 3.6, and lowers
// it to 3.6.
type Hold int

// The steps.
const (
	Keep   Hold = iota // nothing to do
	Enable             // enable the downgrade
	Cancel             // cancel the downgrade
)

// Etcd is etcd as a member observes it.
type Etcd struct {
	Own     string // the minor version of this member, for example "3.7"
	Members int
	// Joining reports that a member was added and has not started: etcd admits no new member while
	// a downgrade is enabled. etcd raises no version while a member is unknown.
	Joining bool
	Enabled bool   // a downgrade is enabled
	Target  string // of the enabled downgrade, a minor version
}

// HoldEtcd returns the step that holds etcd at a minor version; wanted is empty if it is unknown.
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
	// The data of a single member go back by the savepoint.
	hold := wanted != "" && wanted != e.Own && e.Members > 1 && !e.Joining
	switch {
	case hold && !e.Enabled:
		return Enable
	case !hold && e.Enabled && e.Target != e.Own:
		return Cancel
	}
	return Keep
}

// Settled reports whether no later step is possible while this member runs: the level has the
// version of this member, and no downgrade is enabled. The level does not rise above the version of
// a member, and falls only by a restore, after which each member starts again. An unknown level is
// not settled: a full database stores none at first.
func (e Etcd) Settled(wanted string) bool { return wanted == e.Own && !e.Enabled }
