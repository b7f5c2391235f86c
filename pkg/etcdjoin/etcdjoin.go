// Package etcdjoin decides how a control-plane machine that has no data comes to be a member of its
// cluster's etcd: it founds it, joins what is there, or waits.
//
// The danger is a second cluster beside the data of the first. So one machine only may found, the
// first that Cluster.spec.controlPlanes names, and only once each of the others has said that it
// has no data either. Who is silent may have them. Everybody else, and the first one too when it
// comes back with an empty disk, joins: as a learner, which etcd promotes when it has all the data,
// after the member that it takes the place of is removed.
//
// The package decides; it calls nobody, keeps no files and looks at no clock.
package etcdjoin

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// PeerPort and ClientPort are where a member listens for other members, and for those who ask it.
const (
	PeerPort   = 2380
	ClientPort = 2379
)

// PeerURL is where other members reach the one at an address.
func PeerURL(a netip.Addr) string { return "https://" + netip.AddrPortFrom(a, PeerPort).String() }

// Self is the machine that asks.
type Self struct {
	Name string // the member's and the machine's
	URL  string // where other members reach it (PeerURL)
	// First says that no other control-plane machine comes before it in the configuration.
	First bool
}

// State is what another control-plane machine has answered.
type PeerState int

// The answers: none; that it has no data and waits, too; that it is a member, but that no quorum
// answers it; the members.
const (
	Unreachable PeerState = iota
	NoData
	NoQuorum
	Serving
)

// PeerAnswer is that of one machine.
type PeerAnswer struct {
	From    netip.Addr
	State   PeerState
	Cluster uint64   // if it is Serving: whose members these are
	Members []Member // if it is Serving
	Problem string   // if it is Silent or Stuck
}

// Member is one of an etcd cluster.
type Member struct {
	ID      uint64
	Name    string // empty: it has been added, and has not started yet
	URLs    []string
	Learner bool
}

// Action is what is to be done.
type Action int

// What is to be done: look again; make a cluster of one member; have a member removed; be added as
// a learner.
const (
	Wait Action = iota
	Bootstrap
	Remove
	Add
)

// Decision is a decision.
type Decision struct {
	Action Action
	Via    netip.Addr // whom to ask to remove or to add
	Member Member     // whom to remove
	Reason string     // for the operator: what is waited for, or what is done
}

// Next decides on the answers of all the other control-plane machines that the configuration names,
// this time and the last time. What is asked of one member is done by all: etcd refuses it if the
// others would lose their quorum by it.
func Next(s Self, last, now []PeerAnswer) Decision {
	if two := different(now); two != "" {
		return Decision{Reason: two}
	}
	if i := slices.IndexFunc(now, func(a PeerAnswer) bool { return a.State == Serving }); i >= 0 {
		return join(s, now[i])
	}
	if i := slices.IndexFunc(now, func(a PeerAnswer) bool { return a.State == NoQuorum }); i >= 0 {
		return Decision{Reason: fmt.Sprintf("%v is a member of etcd, which has no quorum at present: %s; switch on the other members, or if they are lost, `orlopctl etcd recover` there",
			now[i].From, now[i].Problem)}
	}
	if silent := silent(now); len(silent) > 0 {
		return Decision{Reason: "nobody who has the cluster's data answers, and these may have them: " + strings.Join(silent, ", ") +
			"; switch them on, or take those that are not to be out of Cluster.spec.controlPlanes"}
	}
	if !s.First {
		return Decision{Reason: "waits for the first machine of Cluster.spec.controlPlanes to begin: nobody has data"}
	}
	// What was asked one after the other may have moved meanwhile.
	if len(now) > 0 && !sameEmpty(last, now) {
		return Decision{Reason: "nobody has data; asks once more"}
	}
	return Decision{Action: Bootstrap, Reason: "nobody has data: begins the cluster"}
}

// different says that two machines serve different clusters, which a machine cannot choose between;
// empty if it is not so.
func different(now []PeerAnswer) string {
	var first *PeerAnswer
	for i, a := range now {
		switch {
		case a.State != Serving:
		case first == nil:
			first = &now[i]
		case a.Cluster != first.Cluster:
			return fmt.Sprintf("%v and %v are of different clusters (%x, %x); reset those whose data are not wanted (`orlopctl reset --wipe data`)", first.From, a.From, first.Cluster, a.Cluster)
		}
	}
	return ""
}

// join has the member removed that the machine takes the place of, and then the machine added. A
// member that was added and has never started is removed too: nobody knows whether it has. One that
// has the machine's name elsewhere stays, however silent it is: it may be starting, and this
// machine may have been given the wrong name.
func join(s Self, a PeerAnswer) Decision {
	for _, m := range a.Members {
		own := slices.Contains(m.URLs, s.URL)
		if m.Name != s.Name && !own {
			continue
		}
		if !own {
			return Decision{Reason: fmt.Sprintf("%v says that a member of this machine's name is at %s; give this machine a name of its own, or if that one is gone for good, have it forgotten (`orlopctl etcd remove`)",
				a.From, strings.Join(m.URLs, ", "))}
		}
		if voters := voters(a.Members); !m.Learner && voters == 1 {
			return Decision{Reason: fmt.Sprintf("%v says that this machine is the only member of etcd, but it has no data; they are lost, or on another machine that has its name or address", a.From)}
		}
		return Decision{Action: Remove, Via: a.From, Member: m, Reason: fmt.Sprintf("takes the place of the member %x, whose data are gone", m.ID)}
	}
	return Decision{Action: Add, Via: a.From, Reason: fmt.Sprintf("joins by %v", a.From)}
}

func voters(all []Member) (n int) {
	for _, m := range all {
		if !m.Learner {
			n++
		}
	}
	return n
}

func silent(answers []PeerAnswer) []string {
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

// QuorumSize says how many of so many voting members have to answer: a majority.
func QuorumSize(voters int) int { return voters/2 + 1 }

// FailureTolerance says how many of so many voting members may be away.
func FailureTolerance(voters int) int { return max(voters-QuorumSize(voters), 0) }

// MayRemove is an error if etcd has no quorum, or would lose it without a member: of the voters, so
// many answer, and the one to be removed is among them or is not. A learner may always go.
func MayRemove(voters, answering int, answers bool) error {
	if needed := QuorumSize(voters); answering < needed {
		return fmt.Errorf("%d of %d members answer, and %d have to; switch on more of them, or if they are lost, `orlopctl etcd recover`", answering, voters, needed)
	}
	left, alive := voters-1, answering
	if answers {
		alive--
	}
	if left == 0 {
		return fmt.Errorf("it is the only member, and holds the cluster's data")
	}
	if needed := QuorumSize(left); alive < needed {
		return fmt.Errorf("%d of %d members answer; without it there would be %d, of which %d have to answer, and only %d would", answering, voters, left, needed, alive)
	}
	return nil
}

// MayRestart is an error if etcd has a quorum and would lose it while one of the voters that answer is
// silent for long: of the voters, so many answer. Where there is one voter nobody else is
// concerned.
func MayRestart(voters, answering int) error {
	needed := QuorumSize(voters)
	if voters < 2 || answering < needed || answering-1 >= needed {
		return nil
	}
	way := "have it leave (`orlopctl reset --wipe all`)"
	if MayRemove(voters, answering, true) != nil {
		way = "if they are lost, have them forgotten first (`orlopctl etcd remove`)"
	}
	return fmt.Errorf("%d of %d members answer, and %d have to; without this machine %d would, until it has a configuration again: switch on more of them, or %s",
		answering, voters, needed, answering-1, way)
}
