package main

import (
	"context"
	"crypto/ecdsa"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/orlop-os/orlop/machined/activeconfig"
	"github.com/orlop-os/orlop/machined/converge"
	"github.com/orlop-os/orlop/machined/credentials"
	"github.com/orlop-os/orlop/machined/disk"
	"github.com/orlop-os/orlop/machined/extensions"
	"github.com/orlop-os/orlop/machined/forwarder"
	"github.com/orlop-os/orlop/machined/host"
	"github.com/orlop-os/orlop/machined/identity"
	"github.com/orlop-os/orlop/machined/images"
	"github.com/orlop-os/orlop/machined/lldp"
	"github.com/orlop-os/orlop/machined/membership"
	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/machined/nodeplan"
	"github.com/orlop-os/orlop/machined/ownership"
	"github.com/orlop-os/orlop/machined/transition"
	"github.com/orlop-os/orlop/machined/upgrade"
	"github.com/orlop-os/orlop/machined/volumes"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/pki"
)

// facts reads the facts on which plans and decisions about a configuration depend.
type facts struct {
	system   *system
	network  converge.Network
	lldp     *lldp.Controller
	disks    *disk.Controller
	volumes  *volumes.Controller
	identity *identity.Identity
	members  *membership.Members
	images   *images.Manager
	upgrade  *upgrade.Upgrade
	active   *activeconfig.Manager

	extensions *extensions.Manager
	forwarder  *forwarder.Server
}

// transition returns the facts on which the change to the next configuration depends.
func (r *facts) transition(ctx context.Context, now activeconfig.Active, next *config.Config, request *api.ApplyRequest) (f transition.Facts, err error) {
	f = transition.Facts{
		Request: request, Trial: transition.PlanTrial(r.active.Fallback(now), next, request), OnTrial: now.OnTrial(), Now: time.Now(),
		Upgrade: r.upgrade.Controller.Record().Undecided(), Machine: r.capacity(next),
	}
	if f.Caller, err = callerFacts(ctx, next); err != nil {
		return f, err
	}
	f.Hardware, err = r.hardware(now.Config, next)
	return f, err
}

// capacity returns the facts on which the machine's ability to run a configuration depends.
func (r *facts) capacity(next *config.Config) transition.Machine {
	state, _ := r.network.State.Get()
	f := transition.Machine{Memory: r.system.hardware.Memory, CPUs: r.system.hardware.CPUs, InMemory: r.system.inMemory(), NoStorage: r.disks.StorageProblem(), Parts: r.volumes.Parts(), Addresses: nodeplan.Addresses(next, state)}
	if next.Cluster != nil && !next.IsWorker() { // a worker holds no CA keys
		_, f.CAs = nodeplan.CAs(next.Cluster)
	}
	return f
}

// checkMachine rejects a configuration that this machine cannot run at present.
func (r *facts) checkMachine(next *config.Config) error {
	return transition.CheckMachine(next, r.capacity(next)).Err()
}

// callerFacts returns the facts about the caller.
func callerFacts(ctx context.Context, next *config.Config) (transition.Caller, error) {
	f := transition.Caller{CA: api.CallerFromContext(ctx).Issuer}
	if f.CA == "" { // the caller is not an operator
		return f, nil
	}
	list, err := ownership.Operators(next)
	if err == nil && len(list) > 0 {
		f.Operators, err = pki.ParseCerts(list)
	}
	return f, err
}

// hardware returns the names of the next configuration that do not exist on this machine.
func (r *facts) hardware(before, next *config.Config) (f transition.Hardware, err error) {
	if f.MissingLinks, f.PresentLinks, err = r.network.Controller.MissingLinks(nodeplan.Network(next)); err != nil {
		return f, fmt.Errorf("network: cannot list links: %w", err)
	}
	f.KnownLinks = transition.LinkSelectors(before)
	if f.TakenLinks, err = r.network.Controller.TakenLinks(nodeplan.Network(before), nodeplan.Network(next)); err != nil {
		return f, fmt.Errorf("network: cannot list links: %w", err)
	}
	f.Unusable, err = r.system.kernel.Unusable(r.hostConfig(before), r.hostConfig(next))
	return f, err
}

// api returns the facts on which the credentials of apid depend.
func (r *facts) api(c *config.Config, state network.State) nodeplan.Facts {
	f := r.memoryFacts(state)
	f.Trust = r.trust(c)
	return f
}

// memoryFacts returns the facts that need no read of STATE.
func (r *facts) memoryFacts(state network.State) nodeplan.Facts {
	member, _ := r.members.Worker.State.Get()
	f := nodeplan.Facts{Network: state, Member: nodeplan.Member{
		Joined: member.Joined, Removed: member.Removed, PodsStopped: member.PodsStopped, Machine: member.Certs.Machine, Node: member.Certs.Node,
	}}
	if own := r.identity.Load(); own != nil {
		f.Identity = own.Key
	}
	return f
}

// plan returns the facts on which the plan for the node and its services depends. A machine without
// a cluster runs no node: its plan does not read STATE.
func (r *facts) plan(c *config.Config, state network.State) nodeplan.Facts {
	f := r.memoryFacts(state)
	f.Release, f.InMemory = r.system.release, r.system.inMemory()
	f.Artifacts, _ = r.images.Artifacts().Get()
	f.LLDPLabels, _ = r.lldp.Labels().Get()
	f.Extensions = r.extensions.Active()
	f.Egress = r.egress(c)
	if c != nil && c.Cluster != nil {
		f.Trust = r.trust(c)
		f.Services.Refusal = r.checkMachine(c)
		if !f.InMemory && r.disks.StorageProblem() == "" {
			f.Services.Volumes, f.Swap = r.volumes.Hold(nodeplan.Volumes(c)), r.volumes.Swap()
		}
	}
	return f
}

// egress returns the facts for programs that reach servers outside the cluster by the forwarder,
// which it opens if the configuration needs it.
func (r *facts) egress(c *config.Config) (f nodeplan.EgressFacts) {
	e := nodeplan.Egress(c)
	if e.Proxy != "" {
		f.Proxy, f.Problem = r.forwarder.Open()
	}
	if e.CAs != "" && f.Problem == nil {
		var text []byte
		if text, f.Problem = os.ReadFile(paths.PublicCAs); f.Problem == nil {
			f.PublicCAs = string(text)
		}
	}
	return f
}

// trust returns the clients that the machine accepts.
func (r *facts) trust(c *config.Config) (t nodeplan.Trust) {
	if t.Callers, t.Problem = r.callers(c); t.Problem != nil {
		return t
	}
	t.Revoked = r.members.Ledger.RevocationsForAPIServer(c)
	return t
}

// hostConfig returns the host settings of a configuration.
func (r *facts) hostConfig(c *config.Config) host.Config {
	var key *ecdsa.PrivateKey
	if own := r.identity.Load(); own != nil {
		key = own.Key
	}
	return nodeplan.Host(c, key, r.system.kernel.PreviousSysctls())
}

// callers returns the CAs of the callers that the machine accepts.
func (r *facts) callers(c *config.Config) (credentials.CallerCAs, error) {
	var out credentials.CallerCAs
	var err error
	if out.Operators, err = ownership.Operators(c); err != nil {
		return out, err
	}
	revoked, damaged := r.members.Ledger.Revocations()
	if c != nil && c.Cluster != nil {
		own := c.Cluster.Spec.PKI
		out.Machines = trusted(own.Machine.Cert, own.Accepted.Machine)
		// It is unknown which of the issued certificates were revoked, so none is valid; the
		// operators' own certificates stay valid.
		if !own.Client.Cert.IsZero() && damaged == nil {
			out.Clients = trusted(own.Client.Cert, own.Accepted.Client)
		}
	}
	out.JoinRequests, out.Inventory = membership.AcceptsJoinRequests(c), acceptsInventories(c)
	out.Revoked, err = json.Marshal(revoked)
	return out, err
}

// trusted returns a CA and the CAs that are accepted beside it, in PEM; empty without the CA.
func trusted(own config.Certificate, accepted []config.Certificate) []byte {
	if own.IsZero() {
		return nil
	}
	return pki.EncodeCerts(append(config.X509s(accepted), own.X509())...)
}
