package membership

import (
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"net/netip"
	"time"

	"github.com/orlop-os/orlop/pkg/admission/joinrequest"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// ResyncInterval is the interval at which the machine reconciles without a change. A revocation
// that could not be enforced is tried again after that time.
const ResyncInterval = time.Minute

// Deps are the values and functions that the package reads.
type Deps struct {
	// Config is the configuration of the machine; nil if there is none.
	Config cell.View[*config.Config]
	// Addresses are the present addresses of the machine.
	Addresses cell.View[Addresses]
	// Files are the files of the package on STATE.
	Files Files
	// Installed reports whether the system runs from a disk. A worker in memory does not join.
	Installed bool
	// Identity returns the machine key.
	Identity func() *ecdsa.PrivateKey
	// Certificate returns the machine certificate with which apid serves.
	Certificate func() (tls.Certificate, error)
	// Transport connects to other machines.
	Transport Transport
	// DeleteNodes deletes Node objects with their pods, and returns the names that existed.
	DeleteNodes func(context.Context, nodespec.NodeGCRequest) (found []string, err error)
	// APIServerReady reports whether the API server of this machine is ready.
	APIServerReady func() bool
	// Removal has the operations after the removal of this worker from its cluster.
	Removal Removal
	// Enforce makes the revocations in the ledger effective in apid and in the API server.
	Enforce func(context.Context) error
	// Event adds an event to the machine's events.
	Event func(source, kind, message string)
	// Now is the clock.
	Now func() time.Time
	// Floor returns a time that has certainly passed. If the function is nil, the ledger uses the
	// clock instead.
	Floor func() time.Time
	// Running is canceled when the machine shuts down.
	Running context.Context
}

// Removal has the operations after the removal of a worker from its cluster.
type Removal struct {
	// StopPods stops all pods of the machine in order.
	StopPods func(context.Context) error
	// Wipe erases the machine. It is called after StopPods, if the configuration requires this.
	Wipe func(context.Context) error
}

// Addresses are the addresses of the machine.
type Addresses struct {
	All []netip.Addr // all addresses of all links
	// Reachable returns the addresses that other machines can reach, one per family, IPv4 first; an
	// address in preferred comes before other addresses.
	Reachable func(preferred []netip.Addr) []netip.Addr
}

// reachable returns the addresses that other machines can reach under a configuration.
func (a Addresses) reachable(c *config.Config) []netip.Addr {
	if a.Reachable == nil {
		return nil
	}
	// an address in controlPlanes is preferred, because the other machines use it
	return a.Reachable(c.Cluster.Spec.ControlPlanes)
}

// Files are the names of the stored files.
type Files struct {
	Ledger       string // the ledger
	Certificates string // the certificates of a worker
	OfflineAPI   string // directory of the objects with which pods start without an API server
}

// Transport connects to other machines. On a machine, both functions are from package client.
type Transport struct {
	Dial        func(context.Context, client.Endpoint) (*client.Client, error)
	RequestJoin func(context.Context, client.Endpoint, joinrequest.Request) (joinrequest.Answer, error)
}

// Members are the parts of the package on one machine.
type Members struct {
	Ledger   *Ledger
	Peers    *Peers
	Server   *Server
	Requests *Requests
	NodeGC   *NodeGC
	Sync     *Sync
	Worker   *Worker
}

// New returns the parts of a machine. It reads no file and starts no goroutine.
func New(d Deps) *Members {
	m := &Members{Ledger: newLedger(&d)}
	state := cell.New(State{})
	m.Peers = &Peers{deps: &d, ledger: m.Ledger, state: state}
	m.Worker = &Worker{State: state, deps: &d, peers: m.Peers}
	q := quorum{deps: &d, ledger: m.Ledger, peers: m.Peers}
	m.NodeGC = &NodeGC{deps: &d, ledger: m.Ledger, quorum: q}
	m.Requests = newRequests(&d, m.Ledger)
	m.Server = newServer(&d, q, m.Requests, m.NodeGC)
	m.Requests.server = m.Server
	m.Sync = &Sync{deps: &d, ledger: m.Ledger, peers: m.Peers, worker: m.Worker, problems: map[netip.Addr]string{}}
	return m
}

// config returns the present configuration; nil if there is none.
func (d *Deps) config() *config.Config {
	c, _ := d.Config.Get()
	return c
}

// ownAddresses returns all addresses of the machine.
func (d *Deps) ownAddresses() []netip.Addr {
	now, _ := d.Addresses.Get()
	return now.All
}

// addressStrings returns addresses as strings.
func addressStrings(addresses []netip.Addr) []string {
	var out []string
	for _, a := range addresses {
		out = append(out, a.String())
	}
	return out
}
