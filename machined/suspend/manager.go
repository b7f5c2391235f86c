package suspend

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/limits"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/pki"
)

const (
	// stepTimeout is the timeout of one step. The start of a process takes seconds on a slow
	// processor, and the API server may be busy.
	stepTimeout = time.Minute
	// certTTL is the TTL of the certificate for a step.
	certTTL = 10 * time.Minute
)

// Deps is the environment of a Manager.
type Deps struct {
	// Dir is the directory of the stored objects.
	Dir string
	// Config returns the active configuration; nil if there is none.
	Config func() *config.Config
	// NotInstalled is the reason why a system that runs from memory stores no objects; empty if the
	// system runs from a disk.
	NotInstalled string
	// StorageProblem returns why no disk is mounted for storage; empty if a disk is mounted.
	StorageProblem func() string
	// Command runs a command of the orchestrator.
	Command nodespec.Command
	// Stopping is canceled at shutdown.
	Stopping context.Context
	// Event adds an event about the cluster to the machine's events.
	Event func(kind, message string)
}

// Manager suspends and resumes objects, one call at a time.
type Manager struct {
	deps  Deps
	mu    sync.Mutex
	store store
	// damaged is the text of the last event about damaged copies, a string.
	damaged atomic.Value
}

// New returns a Manager.
func New(d Deps) *Manager { return &Manager{deps: d, store: store{d.Dir}} }

// step performs one step of a call by a command of the orchestrator: it reads, removes or restores
// an object.
type step func(ctx context.Context, o nodespec.SuspendRequest) (nodespec.SuspendResult, error)

// Suspend stores an object and then removes it from Kubernetes. The errors are gRPC statuses.
func (m *Manager) Suspend(ctx context.Context, by api.Caller, r *api.SuspendRequest) (*api.SuspendResponse, error) {
	kind, do, err := m.prepare(by, r.Kind, r.Name)
	if err != nil {
		return nil, err
	}
	o, err := m.suspend(ctx, kind, r.Name, by.String(), time.Now(), do)
	if err != nil {
		return nil, failedStep(err)
	}
	m.deps.Event("operation", fmt.Sprintf("%s %s was suspended by %s; `orlopctl kubernetes resume` puts it back", kind, r.Name, o.By))
	return &api.SuspendResponse{Object: o.message()}, nil
}

// Resume creates a suspended object again, or only deletes the stored copy if the request says so.
// The errors are gRPC statuses.
func (m *Manager) Resume(ctx context.Context, by api.Caller, r *api.ResumeRequest) (*api.ResumeResponse, error) {
	kind, do, err := m.prepare(by, r.Kind, r.Name)
	if err != nil {
		return nil, err
	}
	o, err := m.resume(ctx, kind, r.Name, r.Discard, do)
	if err != nil {
		return nil, failedStep(err)
	}
	did := map[bool]string{true: "the stored copy was deleted", false: "was put back"}[r.Discard]
	m.deps.Event("operation", fmt.Sprintf("%s %s: %s by %s", kind, r.Name, did, by))
	return &api.ResumeResponse{Object: o.message()}, nil
}

// List returns the suspended objects of this machine. It reports damaged copies once as an event.
func (m *Manager) List() (*api.ListSuspendedResponse, error) {
	all, damaged, err := m.store.list()
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	if err := errors.Join(damaged...); err != nil && m.damaged.Swap(err.Error()) != err.Error() {
		m.deps.Event("failure", "suspended objects: "+err.Error())
	}
	out := &api.ListSuspendedResponse{}
	for _, o := range all {
		out.Objects = append(out.Objects, o.message())
	}
	return out, nil
}

// suspend stores an object and then removes it from Kubernetes. If the removal fails and the object
// still exists, it deletes the stored copy, or restores the copy that an earlier call stored.
func (m *Manager) suspend(ctx context.Context, kind, name, by string, now time.Time, do step) (object, error) {
	if !m.mu.TryLock() {
		return object{}, errSuspending
	}
	defer m.mu.Unlock()
	read, err := do(ctx, nodespec.SuspendRequest{Action: nodespec.SuspendRead, Kind: kind, Name: name})
	if err != nil {
		return object{}, err
	}
	before, had := m.store.get(kind, name)
	o := object{Kind: kind, Name: name, At: now.UTC(), By: by, Object: read.Object}
	if err := m.store.put(o); err != nil {
		return object{}, err
	}
	if _, err := do(ctx, nodespec.SuspendRequest{Action: nodespec.SuspendRemove, Kind: kind, Name: name, UID: read.UID}); err != nil {
		// The API server may have removed the object although the call failed. The storage is
		// undone only if a read shows that the object still exists.
		if again, unread := do(ctx, nodespec.SuspendRequest{Action: nodespec.SuspendRead, Kind: kind, Name: name}); unread == nil && again.UID == read.UID {
			err = errors.Join(err, m.store.undo(o, before, had))
		}
		return object{}, err
	}
	return o, nil
}

// resume creates an object again and deletes the stored copy. If discard is true, it only deletes
// the stored copy, also if the copy is damaged.
func (m *Manager) resume(ctx context.Context, kind, name string, discard bool, do step) (object, error) {
	if !m.mu.TryLock() {
		return object{}, errSuspending
	}
	defer m.mu.Unlock()
	o, err := m.store.get(kind, name)
	if errors.Is(err, fs.ErrNotExist) {
		return o, status.Errorf(codes.NotFound, "%s %s: was not suspended on this machine; `orlopctl kubernetes suspended` lists suspended objects, also of the other control-plane machines", kind, name)
	}
	if err != nil && !discard {
		return o, fmt.Errorf("%w; `orlopctl kubernetes resume --discard` deletes the copy", err)
	}
	if !discard {
		if _, err := do(ctx, nodespec.SuspendRequest{Action: nodespec.SuspendRestore, Kind: kind, Name: name, Object: o.Object}); err != nil {
			return o, err
		}
	}
	o.Kind, o.Name = kind, name
	return o, m.store.drop(kind, name)
}

var errSuspending = status.Error(codes.Aborted, "another object is being suspended or resumed on this machine; try again when that is done")

// objectName matches valid object names of the kinds that can be suspended (RFC 1123 subdomains).
var objectName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$`)

// checkTarget checks the kind and the name of an object to suspend. It returns the canonical name
// of the kind.
func checkTarget(kind, name string) (string, error) {
	k, known := nodespec.FindSuspendKind(kind)
	if !known {
		var kinds []string
		for _, k := range nodespec.SuspendKinds() {
			kinds = append(kinds, k.Name)
		}
		return "", status.Errorf(codes.InvalidArgument, "kind %q: cannot suspend: expected %s", kind, strings.Join(kinds, ", "))
	}
	if !objectName.MatchString(name) {
		return "", status.Errorf(codes.InvalidArgument, "%s %q: invalid name of an object", k.Name, name)
	}
	return k.Name, nil
}

// failedStep returns err as a gRPC status. An error that has no code yet gets FailedPrecondition,
// because a failure of the API server is not a fault of the call.
func failedStep(err error) error {
	if _, has := status.FromError(err); has {
		return err
	}
	return status.Error(codes.FailedPrecondition, err.Error())
}

// prepare checks the object of a call, and that this machine is a control-plane machine with
// storage for the object. It returns the canonical kind, and the function that performs the steps
// of the call.
func (m *Manager) prepare(by api.Caller, kind, name string) (string, step, error) {
	kind, err := checkTarget(kind, name)
	if err != nil {
		return "", nil, err
	}
	c := m.deps.Config()
	switch {
	case m.deps.NotInstalled != "":
		return "", nil, status.Error(codes.FailedPrecondition, m.deps.NotInstalled)
	case !c.IsControlPlane():
		return "", nil, status.Error(codes.FailedPrecondition, "this machine runs no API server; ask a control-plane machine")
	}
	if why := m.deps.StorageProblem(); why != "" {
		return "", nil, status.Error(codes.FailedPrecondition, "no storage for the object: "+why)
	}
	as := pki.Spec{
		CN: nodespec.BreakGlassUser, O: []string{"system:masters"}, Usage: pki.Client, TTL: certTTL, Backdate: nodespec.LeafBackdate,
		Lineage: by.Lineage, Root: by.Issuer,
	}
	return kind, func(ctx context.Context, o nodespec.SuspendRequest) (nodespec.SuspendResult, error) {
		return m.perform(ctx, c.Cluster, as, o)
	}, nil
}

// perform issues a certificate and performs a step with it.
func (m *Manager) perform(ctx context.Context, cluster *config.Cluster, as pki.Spec, o nodespec.SuspendRequest) (nodespec.SuspendResult, error) {
	ca, err := pki.ParseCA(cluster.Spec.PKI.Kubernetes.PEM())
	if err != nil {
		return nodespec.SuspendResult{}, err
	}
	leaf, err := ca.Issue(as)
	if err != nil {
		return nodespec.SuspendResult{}, err
	}
	o.Cert, o.Key = leaf.CertPEM(), leaf.KeyPEM()
	ctx, cancel := limits.Within(ctx, m.deps.Stopping, stepTimeout)
	defer cancel()
	return nodespec.Run[nodespec.SuspendResult](ctx, m.deps.Command, paths.UserAPI, "suspend", o)
}
