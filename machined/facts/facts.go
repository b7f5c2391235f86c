// Package facts reads the facts of the machine on which plans (machined/nodeplan) and decisions
// about a configuration (machined/transition) depend.
//
// The package decides nothing. It reads STATE only for facts that are on STATE: the plan of a
// machine without a cluster must not wait for a disk that hangs.
package facts

import (
	"crypto/ecdsa"
	"encoding/json"
	"os"

	"github.com/orlop-os/orlop/machined/credentials"
	"github.com/orlop-os/orlop/machined/host"
	"github.com/orlop-os/orlop/machined/membership"
	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/machined/nodeplan"
	"github.com/orlop-os/orlop/machined/ownership"
	"github.com/orlop-os/orlop/machined/volumes"
	"github.com/orlop-os/orlop/pkg/buildinfo"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/extension"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/trust"
)

// Deps is the environment of a Reader.
type Deps struct {
	System   System
	Links    Links
	Network  func() network.State
	Volumes  Volumes
	Ledger   Ledger
	Identity func() *ecdsa.PrivateKey // the machine key; nil if it is not loaded yet
	Member   func() nodeplan.Member   // the membership of a worker in its cluster
	// Artifacts returns why artifacts of add-ons are missing, by digest.
	Artifacts func() map[string]string
	// LLDPLabels returns the Node labels that come from the machine's LLDP neighbors, by key.
	LLDPLabels func() map[string]string
	// Extensions returns the extensions that are active until the next boot.
	Extensions func() []extension.Statement
	// OpenForwarder opens the forwarder to servers outside the cluster, and returns its URL.
	OpenForwarder func() (url string, err error)
	// Undecided returns an error while an upgrade is neither committed nor rolled back.
	Undecided func() error
	// AcceptsInventories reports whether the machine accepts inventories of waiting machines.
	AcceptsInventories func(*config.Config) bool
}

// System is the running system and its hardware.
type System struct {
	Release  func() buildinfo.Release
	Hardware func() host.Facts
	InMemory bool // the system runs from memory
	// StorageProblem returns why no disk is mounted for storage; empty if a disk is mounted.
	StorageProblem func() string
	Kernel         Kernel
}

// Kernel is the kernel (host.Kernel).
type Kernel interface {
	Unusable(before, next host.Config) (lines []string, err error)
	PreviousSysctls() map[string]string
}

// Links compares the links of a configuration with the links of the machine (network.Controller).
type Links interface {
	MissingLinks(network.Config) (missing, present []string, err error)
	TakenLinks(before, next network.Config) (taken []string, err error)
}

// Volumes are the volumes of the machine (volumes.Controller).
type Volumes interface {
	Parts() map[config.VolumeUse]string
	Hold(volumes.Config) error
	Swap() uint64
}

// Ledger is the ledger of issued and revoked certificates (membership.Ledger). It is on STATE.
type Ledger interface {
	Revocations() (active []trust.Revocation, damaged error)
	RevocationsForAPIServer(*config.Config) []trust.Revocation
}

// Reader reads the facts. All methods are safe for concurrent use.
type Reader struct{ deps Deps }

// New returns a Reader. It reads nothing.
func New(d Deps) *Reader { return &Reader{deps: d} }

// API returns the facts on which the credentials of apid depend.
func (r *Reader) API(c *config.Config, state network.State) nodeplan.Facts {
	f := r.memoryFacts(state)
	f.Trust = r.Trust(c)
	return f
}

// Plan returns the facts on which the plan for the node and its services depends. A machine without
// a cluster runs no node, so its plan does not read STATE.
func (r *Reader) Plan(c *config.Config, state network.State) nodeplan.Facts {
	f := r.memoryFacts(state)
	f.Release, f.InMemory = r.deps.System.Release(), r.deps.System.InMemory
	f.Artifacts, f.LLDPLabels, f.Extensions = r.deps.Artifacts(), r.deps.LLDPLabels(), r.deps.Extensions()
	f.Egress = r.egress(c)
	if c != nil && c.Cluster != nil {
		f.Trust = r.Trust(c)
		f.Services.Refusal = r.CheckMachine(c)
		if !f.InMemory && r.deps.System.StorageProblem() == "" {
			f.Services.Volumes, f.Swap = r.deps.Volumes.Hold(nodeplan.Volumes(c)), r.deps.Volumes.Swap()
		}
	}
	return f
}

// memoryFacts returns the facts that need no read of STATE.
func (r *Reader) memoryFacts(state network.State) nodeplan.Facts {
	return nodeplan.Facts{Network: state, Member: r.deps.Member(), Identity: r.deps.Identity()}
}

// egress returns the facts for programs that reach servers outside the cluster by the forwarder. It
// opens the forwarder if the configuration has a proxy.
func (r *Reader) egress(c *config.Config) (f nodeplan.EgressFacts) {
	e := nodeplan.Egress(c)
	if e.Proxy != "" {
		f.Proxy, f.Problem = r.deps.OpenForwarder()
	}
	if e.CAs != "" && f.Problem == nil {
		var text []byte
		if text, f.Problem = os.ReadFile(paths.PublicCAs); f.Problem == nil {
			f.PublicCAs = string(text)
		}
	}
	return f
}

// Trust returns the clients that the machine accepts.
func (r *Reader) Trust(c *config.Config) (t nodeplan.Trust) {
	if t.Callers, t.Problem = r.callers(c); t.Problem != nil {
		return t
	}
	t.Revoked = r.deps.Ledger.RevocationsForAPIServer(c)
	return t
}

// callers returns the CAs of the callers that the machine accepts.
func (r *Reader) callers(c *config.Config) (out credentials.CallerCAs, err error) {
	operators, err := ownership.Operators(c)
	if err != nil {
		return out, err
	}
	revoked, damaged := r.deps.Ledger.Revocations()
	out = nodeplan.CallerCAs(c, operators, damaged)
	out.JoinRequests, out.Inventory = membership.AcceptsJoinRequests(c), r.deps.AcceptsInventories(c)
	out.Revoked, err = json.Marshal(revoked)
	return out, err
}

// HostConfig returns the host settings of a configuration.
func (r *Reader) HostConfig(c *config.Config) host.Config {
	return nodeplan.Host(c, r.deps.Identity(), r.deps.System.Kernel.PreviousSysctls())
}
