package disruption

import (
	"cmp"
	"fmt"
	"time"

	"github.com/orlop-os/orlop/pkg/etcdjoin"
)

// Operation is an operation that interrupts a machine.
type Operation string

// The operations. Reset deletes the configuration; the machine stays an etcd member. ResetData also
// deletes the data of etcd; before that, the machine leaves etcd. Finalize restarts etcd and the
// API server after the level of the cluster was raised; the system itself requests this operation,
// not an operator.
const (
	Finalize  Operation = "finalize"
	Upgrade   Operation = "upgrade"
	Rollback  Operation = "rollback"
	Reboot    Operation = "reboot"
	Shutdown  Operation = "shutdown"
	Reset     Operation = "reset"
	ResetData Operation = "reset-data"
)

// Name returns the name of the operation on the command line, where Reset and ResetData have the
// same name.
func (o Operation) Name() string {
	if o == ResetData {
		return string(Reset)
	}
	return string(o)
}

// resets reports whether the operation is a reset.
func (o Operation) resets() bool { return o == Reset || o == ResetData }

// Request is the operation that an operator requests.
type Request struct {
	Operation Operation
	// Kubernetes is the version of Kubernetes after the operation, with a leading v; empty if the
	// version does not change or is unknown.
	Kubernetes string
	// Force overrides a refusal.
	Force bool
	By    string // caller
	// GracePeriod is how long the caller lets pods and services take to stop.
	GracePeriod time.Duration
	// Forgets means that the version after the operation cannot return the turn, so that the turn
	// must end by itself.
	Forgets bool
}

// TurnLife returns the time after which the turn for the operation ends by itself.
func (r Request) TurnLife() time.Duration {
	if r.Forgets {
		return shutdownLife + r.GracePeriod
	}
	return TurnLife + r.GracePeriod
}

// Machine is the machine that would be interrupted.
type Machine struct {
	Name         string
	ControlPlane bool
	Kubernetes   string // the running version, with a leading v
	// Others means that the configuration names other control-plane machines.
	Others bool
}

// TurnLife is the time after which a turn ends by itself. It is longer than a shutdown and a boot.
// shutdownLife is longer than a shutdown only. It suffices for a version that does not return the
// turn: after the shutdown, the other machines see that the etcd of the machine is down.
const (
	TurnLife     = 10 * time.Minute
	shutdownLife = 2 * time.Minute
)

// Turn is the right of a control-plane machine to be away. A cluster has a single turn.
type Turn struct {
	Machine   string    `json:"machine"`
	Address   string    `json:"address,omitempty"`
	Operation Operation `json:"operation"`
	By        string    `json:"by"` // caller
	At        time.Time `json:"at"`
	// Ends is the time at which the turn ends by itself unless its machine renews it. It is only
	// shown to operators: the lease of etcd ends the turn, because the clocks of machines differ.
	Ends time.Time `json:"ends"`
}

// NewTurn returns the turn of a machine for the operation. The address can be empty.
func (r Request) NewTurn(machine, address string, now time.Time) Turn {
	now = now.UTC().Truncate(time.Second)
	return Turn{Machine: machine, Address: address, Operation: r.Operation, By: r.By, At: now, Ends: now.Add(r.TurnLife())}
}

// String describes a turn.
func (t Turn) String() string {
	doing := map[Operation]string{
		Finalize: "starts at the new level", Upgrade: "is being upgraded", Rollback: "is being rolled back", Reboot: "reboots", Shutdown: "shuts down", Reset: "is being reset", ResetData: "is being reset",
	}[t.Operation]
	return fmt.Sprintf("control-plane machine %s %s since %s, asked by %s", t.Machine, cmp.Or(doing, "is away"), t.At.UTC().Format(time.TimeOnly+"Z"), t.By)
}

// OfAnother reports whether the turn belongs to a machine with another name.
func (t Turn) OfAnother(machine string) bool { return t.Machine != "" && t.Machine != machine }

// TurnRequest is the input of `orchestrator take-turn` and `orchestrator return-turn`.
type TurnRequest struct {
	Turn Turn `json:"turn"`
	// Life is the time from now until the turn ends by itself.
	Life time.Duration `json:"life"`
	// Force replaces the turn of another machine.
	Force bool `json:"force,omitempty"`
}

// ControlPlane is the state of the control plane as a control-plane machine observes it: the output
// of `orchestrator take-turn`.
type ControlPlane struct {
	// Problem is the reason why the members are unknown; empty if they are known.
	Problem string `json:"problem,omitempty"`
	// Stopped means that etcd does not run on this machine.
	Stopped bool `json:"stopped,omitempty"`
	// Leader means that etcd on this machine knows a leader, so that the voters have a quorum.
	Leader  bool     `json:"leader,omitempty"`
	Members []Member `json:"members,omitempty"` // including this machine if it is a member
	// Turn is the present turn; zero if there is none.
	Turn Turn `json:"turn,omitzero"`
}

// Member is a member of etcd.
type Member struct {
	Name    string `json:"name"`
	Address string `json:"address,omitempty"`
	Own     bool   `json:"own,omitempty"` // this machine
	Learner bool   `json:"learner,omitempty"`
	// Problem is the reason why etcd of the member does not answer; empty if it answers. A member
	// that waits for a quorum answers, too.
	Problem string `json:"problem,omitempty"`
	// APIServer is the reason why the API server of the machine is not ready; empty if it is ready.
	APIServer string `json:"apiServer,omitempty"`
}

// own returns the member of this machine; nil if the machine is no member.
func (c ControlPlane) own() *Member {
	for i, m := range c.Members {
		if m.Own {
			return &c.Members[i]
		}
	}
	return nil
}

// count returns the number of voters, and how many of them answer.
func (c ControlPlane) count() (voters, answering int) {
	for _, m := range c.Members {
		if m.Learner {
			continue
		}
		voters++
		if m.Problem == "" {
			answering++
		}
	}
	return voters, answering
}

// Counts reports whether the absence of this machine would matter to the others: there are other
// voters, the voters have a quorum, and this machine is an answering voter. If etcd has a leader,
// the voters have a quorum, even if this machine itself reaches too few of them.
func (c ControlPlane) Counts() bool {
	own := c.own()
	voters, answering := c.count()
	return own != nil && !own.Learner && own.Problem == "" && voters > 1 && (c.Leader || answering >= etcdjoin.QuorumSize(voters))
}

// Versions are the versions of Kubernetes in the cluster: the output of
// `orchestrator list-versions`.
type Versions struct {
	// Problem is the reason why the versions are unknown; empty if they are known.
	Problem string   `json:"problem,omitempty"`
	Servers []Server `json:"servers,omitempty"` // API servers of the other machines
	Nodes   []Node   `json:"nodes,omitempty"`   // all Nodes; empty on a worker
}

// Server is an API server.
type Server struct {
	Address string `json:"address"`
	Version string `json:"version,omitempty"` // with a leading v
	// Emulated is the minor version that the server emulates ("v1.36"); empty if it emulates no
	// other version.
	Emulated string `json:"emulated,omitempty"`
	// Problem is the reason why the version is unknown; empty if it is known.
	Problem string `json:"problem,omitempty"`
}

// Node is a Node with its kubelet.
type Node struct {
	Name         string `json:"name"`
	Address      string `json:"address,omitempty"`
	Version      string `json:"version"` // of the kubelet, with a leading v
	ControlPlane bool   `json:"controlPlane,omitempty"`
}
