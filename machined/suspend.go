package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/callerid"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/limits"
	"github.com/orlop-os/orlop/pkg/nodecerts"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/safefile"
)

// How an administrator suspends a Kubernetes object that blocks the API, and resumes it
// (docs/decisions/0055-suspend.md). The orchestrator does it (orchestrator/breakglass) with a
// certificate that is issued for the one call. The object is stored on STATE before it is removed,
// so that an interrupted call never loses it.

const (
	// suspendTimeout bounds one step: the start of a process takes seconds on a slow processor, and
	// the API server may be busy.
	suspendTimeout = time.Minute
	// suspendCertTTL is the TTL of the certificate of a call.
	suspendCertTTL = 10 * time.Minute
	// maxSuspended bounds the objects on STATE, maxSuspendedSize the size of each, in bytes: etcd
	// accepts 1.5 MiB.
	maxSuspended     = 64
	maxSuspendedSize = 2 << 20
)

// suspended is an object on STATE.
type suspended struct {
	Kind   string          `json:"kind"` // nodespec.SuspendKind.Name
	Name   string          `json:"name"`
	At     time.Time       `json:"at"`
	By     string          `json:"by"`
	Object json.RawMessage `json:"object"`
}

func (s suspended) message() *api.SuspendedObject {
	return &api.SuspendedObject{Kind: s.Kind, Name: s.Name, At: timestamppb.New(s.At), By: s.By}
}

// suspendedStore stores the objects: one file per object in a directory.
type suspendedStore struct{ dir string }

// file returns the path of an object's file. The name of an object may be too long for a file name.
func (s suspendedStore) file(kind, name string) string {
	sum := sha256.Sum256([]byte(kind + "/" + name))
	return filepath.Join(s.dir, hex.EncodeToString(sum[:])+".json")
}

// put stores an object and replaces an earlier object of that name.
func (s suspendedStore) put(o suspended) error {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return fmt.Errorf("suspended objects: cannot create their directory: %w", err)
	}
	stored, err := s.list()
	if err != nil {
		return err
	}
	same := func(k suspended) bool { return k.Kind == o.Kind && k.Name == o.Name }
	if len(stored) >= maxSuspended && !slices.ContainsFunc(stored, same) {
		return fmt.Errorf("suspended objects: %d are stored, and no more can be: resume or discard some (`orlopctl kubernetes suspended`)", len(stored))
	}
	text, err := json.Marshal(o)
	if err != nil {
		return fmt.Errorf("%s %s: cannot encode: %w", o.Kind, o.Name, err)
	}
	if len(text) > maxSuspendedSize {
		return fmt.Errorf("%s %s: cannot store: %d bytes exceed the limit of %d", o.Kind, o.Name, len(text), maxSuspendedSize)
	}
	if err := safefile.WriteFile(s.file(o.Kind, o.Name), text, 0o600); err != nil {
		return fmt.Errorf("%s %s: cannot store: %w", o.Kind, o.Name, err)
	}
	return safefile.SyncDir(filepath.Dir(s.dir))
}

// get returns the stored object of a name, or fs.ErrNotExist.
func (s suspendedStore) get(kind, name string) (suspended, error) {
	return readSuspended(s.file(kind, name))
}

func readSuspended(path string) (o suspended, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return o, err
	}
	if err := json.Unmarshal(text, &o); err != nil {
		return o, fmt.Errorf("%s: cannot decode: %w", path, err)
	}
	return o, nil
}

func (s suspendedStore) drop(kind, name string) error {
	if err := os.Remove(s.file(kind, name)); err != nil {
		return fmt.Errorf("%s %s: cannot delete the stored copy: %w", kind, name, err)
	}
	return safefile.SyncDir(s.dir)
}

// list returns all objects, by kind and name. An unreadable file is skipped.
func (s suspendedStore) list() ([]suspended, error) {
	files, err := os.ReadDir(s.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("suspended objects: cannot list: %w", err)
	}
	var out []suspended
	for _, f := range files {
		if o, err := readSuspended(filepath.Join(s.dir, f.Name())); err == nil {
			out = append(out, o)
		}
	}
	slices.SortFunc(out, func(a, b suspended) int {
		return cmp.Or(strings.Compare(a.Kind, b.Kind), strings.Compare(a.Name, b.Name))
	})
	return out, nil
}

// suspender suspends and resumes objects, one call at a time. A suspendStep performs a part with
// the orchestrator.
type suspender struct {
	sync.Mutex
	store suspendedStore
}

type suspendStep func(ctx context.Context, o nodespec.SuspendRequest) (nodespec.SuspendResult, error)

// suspend removes an object after it has stored it.
func (s *suspender) suspend(ctx context.Context, kind, name, by string, now time.Time, step suspendStep) (suspended, error) {
	if !s.TryLock() {
		return suspended{}, errSuspending
	}
	defer s.Unlock()
	read, err := step(ctx, nodespec.SuspendRequest{Action: nodespec.SuspendRead, Kind: kind, Name: name})
	if err != nil {
		return suspended{}, err
	}
	before, had := s.store.get(kind, name)
	o := suspended{Kind: kind, Name: name, At: now.UTC(), By: by, Object: read.Object}
	if err := s.store.put(o); err != nil {
		return suspended{}, err
	}
	if _, err := step(ctx, nodespec.SuspendRequest{Action: nodespec.SuspendRemove, Kind: kind, Name: name, UID: read.UID}); err != nil {
		// The object may have been removed all the same. Its stored copy is dropped only if the
		// object is known to exist.
		if again, unread := step(ctx, nodespec.SuspendRequest{Action: nodespec.SuspendRead, Kind: kind, Name: name}); unread == nil && again.UID == read.UID {
			err = errors.Join(err, s.store.undo(o, before, had))
		}
		return suspended{}, err
	}
	return o, nil
}

// undo reverts a put: it restores the earlier object, if any.
func (s suspendedStore) undo(o, before suspended, had error) error {
	if had == nil {
		return s.put(before)
	}
	return s.drop(o.Kind, o.Name)
}

// resume creates an object again, or drops the stored copy.
func (s *suspender) resume(ctx context.Context, kind, name string, forget bool, step suspendStep) (suspended, error) {
	if !s.TryLock() {
		return suspended{}, errSuspending
	}
	defer s.Unlock()
	o, err := s.store.get(kind, name)
	if errors.Is(err, fs.ErrNotExist) {
		return o, status.Errorf(codes.NotFound, "%s %s: was not suspended on this machine; `orlopctl kubernetes suspended` lists suspended objects, also of the other control-plane machines", kind, name)
	}
	if err != nil {
		return o, err
	}
	if !forget {
		if _, err := step(ctx, nodespec.SuspendRequest{Action: nodespec.SuspendRestore, Kind: kind, Name: name, Object: o.Object}); err != nil {
			return o, err
		}
	}
	return o, s.store.drop(kind, name)
}

var errSuspending = status.Error(codes.Aborted, "another object is being suspended or resumed on this machine; try again when that is done")

// objectName matches valid object names of the kinds that can be suspended (RFC 1123 subdomains).
var objectName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$`)

func suspendTarget(kind, name string) (string, error) {
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

// suspendedObjects are the calls of the API about suspended objects.
type suspendedObjects struct{ m *machine }

// Suspend implements api.Suspended.
func (a suspendedObjects) Suspend(ctx context.Context, by callerid.Caller, r *api.SuspendRequest) (*api.SuspendResponse, error) {
	kind, step, err := a.m.breakGlass(by, r.Kind, r.Name)
	if err != nil {
		return nil, err
	}
	o, err := a.m.suspender.suspend(ctx, kind, r.Name, by.String(), time.Now(), step)
	if err != nil {
		return nil, failedStep(err)
	}
	a.m.events.add("cluster", "operation", fmt.Sprintf("%s %s was suspended by %s; `orlopctl kubernetes resume` puts it back", kind, r.Name, o.By))
	return &api.SuspendResponse{Object: o.message()}, nil
}

// Resume implements api.Suspended.
func (a suspendedObjects) Resume(ctx context.Context, by callerid.Caller, r *api.ResumeRequest) (*api.ResumeResponse, error) {
	kind, step, err := a.m.breakGlass(by, r.Kind, r.Name)
	if err != nil {
		return nil, err
	}
	o, err := a.m.suspender.resume(ctx, kind, r.Name, r.Discard, step)
	if err != nil {
		return nil, failedStep(err)
	}
	did := map[bool]string{true: "the stored copy was deleted", false: "was put back"}[r.Discard]
	a.m.events.add("cluster", "operation", fmt.Sprintf("%s %s: %s by %s", kind, r.Name, did, by))
	return &api.ResumeResponse{Object: o.message()}, nil
}

// List implements api.Suspended.
func (a suspendedObjects) List() (*api.ListSuspendedResponse, error) {
	all, err := a.m.suspender.store.list()
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	out := &api.ListSuspendedResponse{}
	for _, o := range all {
		out.Objects = append(out.Objects, o.message())
	}
	return out, nil
}

// failedStep adds a code to an error without code: a failure of the API server is not a fault of
// the call.
func failedStep(err error) error {
	if _, has := status.FromError(err); has {
		return err
	}
	return status.Error(codes.FailedPrecondition, err.Error())
}

// breakGlass checks the object of a call, and returns the function that performs its steps, on a
// control-plane machine.
func (m *machine) breakGlass(by callerid.Caller, kind, name string) (string, suspendStep, error) {
	kind, err := suspendTarget(kind, name)
	if err != nil {
		return "", nil, err
	}
	now, _ := m.config.Get()
	switch {
	case m.bootMedium != "":
		return "", nil, status.Error(codes.FailedPrecondition, notInstalled)
	case !now.config.IsControlPlane():
		return "", nil, status.Error(codes.FailedPrecondition, "this machine runs no API server; ask a control-plane machine")
	}
	if why, _ := m.storageProblem.Get(); why != "" {
		return "", nil, status.Error(codes.FailedPrecondition, "no storage for the object: "+why)
	}
	as := pki.Spec{
		CN: nodespec.BreakGlassUser, O: []string{"system:masters"}, Usage: pki.Client, TTL: suspendCertTTL, Backdate: nodecerts.Backdate,
		Lineage: by.Lineage, Root: by.Issuer,
	}
	return kind, func(ctx context.Context, o nodespec.SuspendRequest) (nodespec.SuspendResult, error) {
		return m.breakGlassStep(ctx, now.config.Cluster, as, o)
	}, nil
}

func (m *machine) breakGlassStep(ctx context.Context, cluster *config.Cluster, as pki.Spec, o nodespec.SuspendRequest) (nodespec.SuspendResult, error) {
	ca, err := pki.ParseCA(cluster.Spec.PKI.Kubernetes.PEM())
	if err != nil {
		return nodespec.SuspendResult{}, err
	}
	leaf, err := ca.Issue(as)
	if err != nil {
		return nodespec.SuspendResult{}, err
	}
	o.Cert, o.Key = leaf.CertPEM(), leaf.KeyPEM()
	ctx, cancel := limits.Within(ctx, m.runCtx, suspendTimeout)
	defer cancel()
	return runCommand[nodespec.SuspendResult](ctx, m, paths.UserAPI, "suspend", o)
}
