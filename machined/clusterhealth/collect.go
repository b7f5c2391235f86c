package clusterhealth

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/backoff"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/limits"
	"github.com/orlop-os/orlop/pkg/panics"
)

const (
	// defaultTimeout and maxTimeout bound the answer of a machine, including the connection.
	defaultTimeout = 4 * time.Second
	maxTimeout     = 20 * time.Second
	// collectTimeout bounds all calls: orlopctl waits 30 s. A machine that was not called by then
	// is shown as a machine without an answer.
	collectTimeout = 25 * time.Second
	// etcdTimeout bounds the read of etcd's status, which includes the start of a process and some
	// seconds for members that are down.
	etcdTimeout = 15 * time.Second
	// shareTime is the time for which calls get the same answer, and the least time between two
	// collections. Without it, each call of a reader would make this machine call all others.
	shareTime = 2 * time.Second
	// parallel is the number of machines that are called at the same time.
	parallel = 32
	// maxReport is the maximum size of the report of a machine, in bytes.
	maxReport = 256 << 10
	// digestKeySize is the size of the key of the digests in bytes.
	digestKeySize = 32
)

// Deps is the environment of a Collector.
type Deps struct {
	// Config returns the active configuration; nil if there is none.
	Config func() *config.Config
	// Address returns the address by which operators call this machine.
	Address func(*config.Config) string
	// Others returns the other machines of the cluster.
	Others func(*config.Config) []Machine
	// Call calls a machine that Others has returned.
	Call func(context.Context, Machine, func(*client.Client) error) error
	// State returns the state of this machine.
	State func(context.Context) (State, error)
	// Etcd returns the status of etcd on this machine.
	Etcd func(context.Context) (*api.EtcdStatusResponse, error)
	// Now is the clock.
	Now func() time.Time
}

// Collector collects the health of the cluster. Its methods are safe for concurrent use.
type Collector struct {
	deps Deps
	// busy holds an element while a call of ClusterHealth runs. Only this call may use the fields
	// below.
	busy    chan struct{}
	last    *api.ClusterHealthResponse
	timeout time.Duration // timeout of the calls for last
	ended   time.Time     // end of the collection whose result is last
	began   time.Time     // start of the last collection, even if it gave no answer
}

// New returns a Collector.
func New(d Deps) *Collector { return &Collector{deps: d, busy: make(chan struct{}, 1)} }

// ReportMachine returns the report of this machine to a control-plane machine.
func (c *Collector) ReportMachine(ctx context.Context, by api.Caller, r *api.ReportMachineRequest) (*api.ReportMachineResponse, error) {
	if err := by.RequireControlPlane(); err != nil {
		return nil, err
	}
	if n := len(r.DigestKey); n != 0 && n != digestKeySize {
		return nil, status.Errorf(codes.InvalidArgument, "digest_key: has %d bytes, expected %d", n, digestKeySize)
	}
	state, err := c.deps.State(ctx)
	if err != nil {
		return nil, status.FromContextError(err).Err()
	}
	return report(state, r.DigestKey), nil
}

// ClusterHealth returns the health of the cluster. Calls with the same timeout within shareTime
// share a collection.
func (c *Collector) ClusterHealth(ctx context.Context, r *api.ClusterHealthRequest) (*api.ClusterHealthResponse, error) {
	timeout, err := timeoutOf(r)
	if err != nil {
		return nil, err
	}
	now := c.deps.Config()
	if !now.IsControlPlane() {
		return nil, status.Error(codes.FailedPrecondition, "this machine is not a control-plane machine, so it does not know the others; call a control-plane machine")
	}
	release, err := limits.Acquire(ctx, c.busy, "health of the cluster")
	if err != nil {
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	defer release()
	if c.last != nil && c.timeout == timeout && time.Since(c.ended) < shareTime {
		return c.last, nil
	}
	// The starts of two collections are at least shareTime apart, even if last cannot be used,
	// because its timeout differs or because the caller of the last collection has left.
	if err := backoff.Sleep(ctx, shareTime-time.Since(c.began)); err != nil {
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	c.began = time.Now()
	out := summarize(c.collect(ctx, now, timeout))
	if err := ctx.Err(); err != nil {
		return nil, status.FromContextError(err).Err() // the caller has left, so out is incomplete
	}
	c.last, c.timeout, c.ended = out, timeout, time.Now()
	return out, nil
}

// timeoutOf returns the timeout for the answer of each machine.
func timeoutOf(r *api.ClusterHealthRequest) (time.Duration, error) {
	switch t := r.MachineTimeout.AsDuration(); {
	case t == 0:
		return defaultTimeout, nil
	case t < 0 || t > maxTimeout:
		return 0, status.Errorf(codes.InvalidArgument, "machine_timeout %v: out of range; expected more than 0 s and at most %v", t, maxTimeout)
	default:
		return t, nil
	}
}

// collect calls all machines.
func (c *Collector) collect(ctx context.Context, now *config.Config, timeout time.Duration) observation {
	ctx, cancel := context.WithTimeout(ctx, collectTimeout)
	defer cancel()
	key := make([]byte, digestKeySize)
	_, _ = rand.Read(key) // never fails
	others := c.deps.Others(now)
	o := observation{cluster: now.Cluster.Metadata.Name, at: c.deps.Now(), answers: make([]answer, 1+len(others)), etcd: &api.ClusterEtcd{Problem: "this machine has failed to read it"}}
	o.answers[0] = answer{Machine: Machine{Name: now.Machine.Metadata.Name, Address: c.deps.Address(now), ControlPlane: true}, problem: "it has failed to report about itself"}
	var calls sync.WaitGroup
	calls.Go(panics.Guarded("status of etcd", func() { o.etcd = c.readEtcd(ctx) }))
	calls.Go(panics.Guarded("health of this machine", func() {
		o.answers[0].set(within(ctx, timeout, func(ctx context.Context) (*api.ReportMachineResponse, error) {
			state, err := c.deps.State(ctx)
			return report(state, key), err
		}))
	}))
	running := make(chan struct{}, parallel)
	for i, m := range others {
		a := &o.answers[1+i]
		// this problem remains only if the call panics
		*a = answer{Machine: m, problem: "this machine has failed to call it"}
		calls.Go(panics.Guarded("health of "+m.Address, func() {
			running <- struct{}{}
			defer func() { <-running }()
			a.set(within(ctx, timeout, func(ctx context.Context) (*api.ReportMachineResponse, error) { return c.requestReport(ctx, m, key) }))
		}))
	}
	calls.Wait()
	return o
}

// requestReport requests the report of another machine.
func (c *Collector) requestReport(ctx context.Context, m Machine, key []byte) (out *api.ReportMachineResponse, err error) {
	err = c.deps.Call(ctx, m, func(peer *client.Client) error {
		out, err = peer.Cluster.ReportMachine(ctx, &api.ReportMachineRequest{DigestKey: key}, grpc.MaxCallRecvMsgSize(maxReport))
		return err
	})
	return out, err
}

// The function within makes a call with a deadline.
func within(ctx context.Context, timeout time.Duration, call func(context.Context) (*api.ReportMachineResponse, error)) (out *api.ReportMachineResponse, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if ctx.Err() != nil {
		return nil, errNotCalled
	}
	out, err = call(ctx)
	if err != nil && ctx.Err() != nil {
		return nil, fmt.Errorf("it has not answered within %v", timeout)
	}
	return out, err
}

// errNotCalled is the error of a machine that was not called, because the others took too long.
var errNotCalled = errors.New("it was not called in time: too many machines do not answer")

// set stores the result of a call.
func (a *answer) set(r *api.ReportMachineResponse, err error) {
	if err == nil {
		a.report, a.problem = r, ""
		return
	}
	a.problem = problemOf(err)
}

// problemOf returns the text for a machine without an answer.
func problemOf(err error) string {
	switch {
	case client.IsUnknownMethod(err):
		return "its version of Orlop OS has no such call; upgrade it"
	case errors.Is(err, client.ErrRefused):
		return "it does not accept this machine: their configurations or revocations differ: " + err.Error()
	case errors.Is(err, client.ErrUnreachable):
		return "it cannot be reached: " + err.Error()
	}
	if s, ok := status.FromError(err); ok {
		return s.Message()
	}
	return err.Error()
}

// readEtcd returns the state of etcd as this machine sees it.
func (c *Collector) readEtcd(ctx context.Context) *api.ClusterEtcd {
	ctx, cancel := context.WithTimeout(ctx, etcdTimeout)
	defer cancel()
	s, err := c.deps.Etcd(ctx)
	if err != nil {
		return &api.ClusterEtcd{Problem: line(status.Convert(err).Message())}
	}
	return &api.ClusterEtcd{Problem: line(s.Problem), Leader: leaderName(s), Members: s.Members, Alarms: s.Alarms}
}

// leaderName returns the name of etcd's leader, or its ID if the name is unknown.
func leaderName(s *api.EtcdStatusResponse) string {
	for _, m := range s.Members {
		if m.Id == s.Leader && m.Name != "" {
			return m.Name
		}
	}
	return s.Leader
}
