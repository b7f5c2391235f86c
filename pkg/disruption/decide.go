package disruption

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/orlop-os/orlop/pkg/etcdjoin"
)

// Refusal is the reason why an operation is refused, with the remedy.
type Refusal struct {
	Operation      Operation
	Reason, Remedy string
	// Final means that the operation cannot be forced.
	Final bool
}

// Error returns the refusal for the caller.
func (r *Refusal) Error() string {
	text := fmt.Sprintf("%s refused: %s; %s", r.Operation.Name(), r.Reason, r.Remedy)
	if r.Final || strings.Contains(r.Remedy, "--force") {
		return text
	}
	return text + ", or use --force"
}

// NeedsVersions reports whether the decision depends on the versions in the cluster. It does if the
// operation changes the minor version of Kubernetes.
func NeedsVersions(m Machine, r Request) bool {
	return r.Kubernetes != "" && minorOf(r.Kubernetes) != minorOf(m.Kubernetes)
}

// NeedsControlPlane reports whether the decision depends on the state of the control plane. It does
// for a control-plane machine if its configuration names other control-plane machines. An operation
// on the only control-plane machine is permitted in any state, so that an operator can repair the
// machine. A reset is an exception, because it cannot be undone: it depends on the members of etcd
// even if the configuration names no other machine.
func NeedsControlPlane(m Machine, r Request) bool {
	return m.ControlPlane && (m.Others || r.Operation.resets())
}

// Decide returns the reason why an operation is refused; nil if it is permitted. It ignores
// Request.Force. The first row that applies decides. The rows of the first group apply only if the
// operation changes the minor version of Kubernetes:
//
//	machine                      state of the cluster                      decision
//	control plane                a worker's kubelet is newer than the new  refused
//	                             version, or more than 3 minors older
//	control plane                another API server differs by 2 minors    refused
//	control plane with others    the versions are unknown                  refused
//	control plane alone          the versions are unknown                  permitted
//	worker                       the new version is newer than an API      refused
//	                             server, or more than 3 minors older
//	worker                       the version of an API server is unknown   refused
//
//	machine                      state of the cluster                      decision
//	worker                       any                                       permitted
//	control plane alone,         any                                       permitted
//	except for a reset
//	control plane                the members of etcd are unknown, because  permitted
//	                             etcd does not run on the machine
//	control plane with others    the members are unknown                   refused
//	control plane alone          the members are unknown                   permitted
//	control plane, but no voter  any                                       permitted
//	of etcd
//	voter                        its own etcd does not answer              permitted
//	the only voter               any                                       permitted
//	voter                        etcd has neither a quorum nor a leader    permitted
//	voter                        another machine has the turn              refused
//	voter, except for finalize   the others would have no quorum           refused
//	voter                        another voter is down                     refused
//	voter with a ready           the API server of another voter is not    refused
//	API server                   ready
//	voter                        any other                                 permitted
func Decide(m Machine, r Request, control ControlPlane, versions Versions) *Refusal {
	if NeedsVersions(m, r) {
		if no := checkSkew(m, r, versions); no != nil {
			return no
		}
	}
	if NeedsControlPlane(m, r) {
		return checkControlPlane(m, r, control)
	}
	return nil
}

// checkControlPlane returns the reason why the control plane cannot do without the machine at
// present; nil if it can.
func checkControlPlane(m Machine, r Request, c ControlPlane) *Refusal {
	refuse := func(reason, remedy string) *Refusal {
		return &Refusal{Operation: r.Operation, Reason: reason, Remedy: remedy}
	}
	switch {
	case c.Problem != "" && c.Stopped:
		return nil
	case c.Problem != "" && m.Others:
		return refuse("it is unknown whether the other control-plane machines need this machine: "+c.Problem, "try again when etcd answers (`orlopctl etcd members`)")
	case !c.Counts():
		return nil
	case c.Turn.OfAnother(m.Name):
		return refuse(c.Turn.String(), fmt.Sprintf("wait until it is healthy (`orlopctl health -n %s`), or if it does not come back, until its turn ends at %s",
			cmp.Or(c.Turn.Address, c.Turn.Machine), c.Turn.Ends.UTC().Format(time.TimeOnly+"Z")))
	}
	if why, remedy := checkQuorum(r.Operation, c); why != "" {
		return refuse(why, remedy)
	}
	for _, other := range c.Members {
		switch {
		case other.Own || other.Learner:
		case other.Problem != "":
			return refuse(fmt.Sprintf("control-plane machine %s is down: %s", other.Name, other.Problem), "start it, or if it is lost, remove it (`orlopctl etcd remove "+other.Name+"`)")
		case other.APIServer != "" && c.own().APIServer == "":
			return refuse(fmt.Sprintf("the API server of control-plane machine %s is not ready: %s", other.Name, other.APIServer), fmt.Sprintf("wait until it is (`orlopctl health -n %s`)", cmp.Or(other.Address, other.Name)))
		}
	}
	return nil
}

// checkQuorum returns the reason why etcd would lose its quorum, with the remedy; both are empty if
// it would not. After most operations, the machine is away for minutes. After Reset, it is away
// until it has a configuration again. ResetData removes its etcd member, so the quorum of the
// remaining members counts.
func checkQuorum(o Operation, c ControlPlane) (why, remedy string) {
	voters, answering := c.count()
	var err error
	switch o {
	case Finalize: // etcd restarts within seconds, and only while all other members answer
		return "", ""
	case ResetData:
		err = etcdjoin.MayRemove(voters, answering, true)
	case Reset:
		err = etcdjoin.MayRestart(voters, answering)
	default:
		if needed := etcdjoin.QuorumSize(voters); answering-1 < needed {
			err = fmt.Errorf("etcd would lose its quorum, and the Kubernetes API would not answer: %d of %d members answer, %d are required, and without this machine %d would", answering, voters, needed, answering-1)
		}
	}
	if err == nil {
		return "", ""
	}
	var down []string
	for _, m := range c.Members {
		if !m.Learner && m.Problem != "" {
			down = append(down, m.Name)
		}
	}
	if len(down) == 0 {
		return err.Error(), "add a third control-plane machine"
	}
	return err.Error(), fmt.Sprintf("start %s, or if lost, replace it", strings.Join(down, ", "))
}
