// Package etcdjoin decides how a control-plane machine without data becomes an etcd member of its
// cluster: it bootstraps etcd, joins the existing etcd cluster, or waits.
//
// The danger is that etcd is bootstrapped a second time although another machine has the data of
// the cluster. Therefore only one machine may bootstrap: the first in Cluster.spec.controlPlanes,
// and only after every other control-plane machine has answered that it has no data either. An
// unreachable machine may have the data, so the first machine waits for it. All other machines
// join. The first machine also joins if it has lost its disk and another machine has the data. To
// join, a machine removes the etcd member that it replaces, and adds itself as a learner; etcd
// promotes the learner when it has all the data.
//
// The package contains only decisions: it makes no calls, stores no files and reads no clock.
package etcdjoin

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// PeerPort and ClientPort are the ports on which a member listens for other members and for
// clients.
const (
	PeerPort   = 2380
	ClientPort = 2379
)

// PeerURL returns the URL of a member for other members.
func PeerURL(a netip.Addr) string { return "https://" + netip.AddrPortFrom(a, PeerPort).String() }

// Self is the machine that calls Next.
type Self struct {
	Name string // of the member and of the machine
	URL  string // for other members (PeerURL)
	// First means that the machine is the first control-plane machine in the configuration.
	First bool
}

// PeerState is the state of another control-plane machine.
type PeerState int

// States of a peer, in this order: it does not answer; it has no data and waits, too; it is an etcd
// member, but etcd has no quorum; it answers with the list of members.
const (
	Unreachable PeerState = iota
	NoData
	NoQuorum
	Serving
)

// PeerAnswer is the answer of a peer, or the reason for no answer.
type PeerAnswer struct {
	From    netip.Addr
	State   PeerState
	Cluster uint64   // if Serving: ID of the cluster of Members
	Members []Member // if Serving
	Problem string   // if Unreachable or NoQuorum
}

// Member is an etcd member.
type Member struct {
	ID      uint64
	Name    string // empty for a member that was added and has not started yet
	URLs    []string
	Learner bool
}

// Action is the action of a Decision.
type Action int

// Actions, in this order: wait and query the peers again; bootstrap a cluster with a single member;
// remove a member; add this machine as a learner.
const (
	Wait Action = iota
	Bootstrap
	Remove
	Add
)

// Decision is the next action of the machine.
type Decision struct {
	Action Action
	Via    netip.Addr // machine to which Remove or Add is sent
	Member Member     // member to remove
	Reason string     // for the operator: the action, or the condition that the machine waits for
}

// Next returns the next action of machine s. now are the current answers of all other configured
// control-plane machines, last are their previous answers. The actions Remove and Add change the
// membership of the whole cluster; etcd rejects a change by which the members would lose their
// quorum.
func Next(s Self, last, now []PeerAnswer) Decision {
	if two := conflictingClusters(now); two != "" {
		return Decision{Reason: two}
	}
	if i := slices.IndexFunc(now, func(a PeerAnswer) bool { return a.State == Serving }); i >= 0 {
		return join(s, now[i])
	}
	if i := slices.IndexFunc(now, func(a PeerAnswer) bool { return a.State == NoQuorum }); i >= 0 {
		return Decision{Reason: fmt.Sprintf("%v is an etcd member without quorum: %s; start the other members, or if they are lost, run `orlopctl etcd recover` there",
			now[i].From, now[i].Problem)}
	}
	if silent := unreachable(now); len(silent) > 0 {
		return Decision{Reason: "no reachable machine has the cluster's data, and these unreachable machines may have it: " + strings.Join(silent, ", ") +
			"; start them, or remove machines that no longer exist from Cluster.spec.controlPlanes"}
	}
	if !s.First {
		return Decision{Reason: "waits for the first machine of Cluster.spec.controlPlanes to bootstrap etcd: no machine has data"}
	}
	// The answers in now are from different moments, and the state of a peer can have changed in
	// between. Two equal rounds of answers exclude this.
	if len(now) > 0 && !sameEmpty(last, now) {
		return Decision{Reason: "no machine has data; queries all machines once more"}
	}
	return Decision{Action: Bootstrap, Reason: "no machine has data: bootstraps etcd"}
}

// conflictingClusters returns an error text if two machines serve different clusters, because this
// machine cannot choose between them; otherwise "".
func conflictingClusters(now []PeerAnswer) string {
	var first *PeerAnswer
	for i, a := range now {
		switch {
		case a.State != Serving:
		case first == nil:
			first = &now[i]
		case a.Cluster != first.Cluster:
			return fmt.Sprintf("%v and %v belong to different clusters (%x, %x); reset the machines of the unwanted cluster (`orlopctl reset --wipe data`)", first.From, a.From, first.Cluster, a.Cluster)
		}
	}
	return ""
}

// join first removes the etcd member that the machine replaces, and then adds the machine. A member
// with the machine's URL is removed even if it seems never to have started, because this is not
// certain. A member with the machine's name and another URL is not removed, even if it is
// unreachable: it may be starting, and this machine may have the wrong name.
func join(s Self, a PeerAnswer) Decision {
	for _, m := range a.Members {
		own := slices.Contains(m.URLs, s.URL)
		if m.Name != s.Name && !own {
			continue
		}
		if !own {
			return Decision{Reason: fmt.Sprintf("%v reports a member with this machine's name at %s; give this machine a unique name, or if that member is lost, remove it (`orlopctl etcd remove`)",
				a.From, strings.Join(m.URLs, ", "))}
		}
		if voters := voters(a.Members); !m.Learner && voters == 1 {
			return Decision{Reason: fmt.Sprintf("%v reports that this machine is the only etcd member, but it has no data; the data is lost, or on another machine with the same name or address", a.From)}
		}
		return Decision{Action: Remove, Via: a.From, Member: m, Reason: fmt.Sprintf("replaces the member %x, whose data is lost", m.ID)}
	}
	return Decision{Action: Add, Via: a.From, Reason: fmt.Sprintf("joins through %v", a.From)}
}

func voters(all []Member) (n int) {
	for _, m := range all {
		if !m.Learner {
			n++
		}
	}
	return n
}

func unreachable(answers []PeerAnswer) []string {
	var out []string
	for _, a := range answers {
		if a.State == Unreachable {
			out = append(out, fmt.Sprintf("%v (%s)", a.From, a.Problem))
		}
	}
	return out
}

func sameEmpty(a, b []PeerAnswer) bool {
	return slices.EqualFunc(a, b, func(a, b PeerAnswer) bool { return a.From == b.From && a.State == NoData && b.State == NoData })
}

// QuorumSize returns the majority of a number of voting members.
func QuorumSize(voters int) int { return voters/2 + 1 }

// FailureTolerance returns the number of voting members that can fail without a loss of quorum.
func FailureTolerance(voters int) int { return max(voters-QuorumSize(voters), 0) }

// MayRemove returns an error if etcd has no quorum, or would lose its quorum by the removal of a
// voter. answering is the number of voters that answer; answers means that the voter to remove is
// among them. The check is not necessary for a learner.
func MayRemove(voters, answering int, answers bool) error {
	if needed := QuorumSize(voters); answering < needed {
		return fmt.Errorf("%d of %d members answer, %d are required; start more of them, or if they are lost, run `orlopctl etcd recover`", answering, voters, needed)
	}
	left, alive := voters-1, answering
	if answers {
		alive--
	}
	if left == 0 {
		return fmt.Errorf("it is the only member and has the cluster's data")
	}
	if needed := QuorumSize(left); alive < needed {
		return fmt.Errorf("%d of %d members answer; without it there would be %d members, of which %d are required, and only %d would answer", answering, voters, left, needed, alive)
	}
	return nil
}

// MayRestart returns an error if etcd has a quorum and would lose it while this machine, an
// answering voter, is down for a long time. answering is the number of voters that answer. A single
// voter can always restart, because no other member depends on it.
func MayRestart(voters, answering int) error {
	needed := QuorumSize(voters)
	if voters < 2 || answering < needed || answering-1 >= needed {
		return nil
	}
	way := "remove it from the cluster (`orlopctl reset --wipe all`)"
	if MayRemove(voters, answering, true) != nil {
		way = "if they are lost, remove them first (`orlopctl etcd remove`)"
	}
	return fmt.Errorf("%d of %d members answer, %d are required; without this machine, %d would answer until it has a configuration again: start more of them, or %s",
		answering, voters, needed, answering-1, way)
}
