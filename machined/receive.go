package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/machined/upgrade"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/bundle"
	"github.com/orlop-os/orlop/pkg/panics"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/registry"
	"github.com/orlop-os/orlop/pkg/slot"
	"github.com/orlop-os/orlop/pkg/transfer"
)

// How a bundle is received:
//
//  1. A client begins an upload with size and digest, and DATA has space for it (upgrade.Inbox).
//  2. The bytes are written into a file on DATA. Once the statement is complete the machine accepts
//     or rejects the version, and the record says that the upgrade has started. An interrupted
//     upload continues after the last byte.
//  3. The bundle is complete and verified. From here on no client is needed: it is written
//     (install).
//
// The caller of each step holds m.writeMu.

// inbox is the store of a received bundle.
var inbox = upgrade.Inbox{Dir: paths.Bundle, Free: upgrade.FreeSpace, StallTimeout: transfer.StallTimeout}

var errBusy = status.Error(codes.Aborted, "upgrade refused: another bundle is being received or written; `orlopctl upgrade status` shows its progress")

// installer returns the installer of a bundle, or why no upgrade is possible.
func (m *machine) installer(withoutSavepoint bool) (upgrade.Installer, error) {
	if why, _ := m.storageProblem.Get(); why != "" {
		return upgrade.Installer{}, fmt.Errorf("upgrade refused: no storage for its record: %s", why)
	}
	p, err := m.slots()
	if err != nil {
		return upgrade.Installer{}, fmt.Errorf("upgrade refused: %w", err)
	}
	trust, err := m.releaseKeys()
	if err != nil {
		return upgrade.Installer{}, fmt.Errorf("upgrade refused: %w", err)
	}
	i := upgrade.Installer{
		Running: m.release.Version, Profile: m.release.Profile, Trust: trust, Slot: p, ESP: m.esp,
		TakeSavepoint: m.takeSavepoint, SaveConfiguration: m.saveConfiguration, Begin: m.beginOperation, Done: m.setDone,
	}
	switch {
	case !m.runsEtcd():
		i.TakeSavepoint = nil
	case withoutSavepoint:
		i.TakeSavepoint, i.DropSavepoint = nil, m.dropSavepoint
	}
	if _, drains := m.drainConfig(); drains {
		i.Drain = func(ctx context.Context) error {
			want, drains := m.drainConfig() // the configuration may have changed meanwhile
			if !drains {
				return nil
			}
			return m.drainWith(ctx, want)
		}
	}
	return i, nil
}

// releaseKeys returns the keys that this image trusts to sign versions, with the required number of
// signatures.
func (m *machine) releaseKeys() (bundle.Trust, error) {
	keys, err := os.ReadFile(paths.ReleaseKeys)
	if err != nil {
		return bundle.Trust{}, fmt.Errorf("this image trusts no release keys: %w", err)
	}
	trust, err := bundle.ParseTrust(keys)
	if err == nil {
		trust, err = trust.WithThreshold(max(1, m.release.Signatures))
	}
	if err != nil {
		return bundle.Trust{}, fmt.Errorf("%s: %w", paths.ReleaseKeys, err)
	}
	return trust, nil
}

// beginOperation sets the running operation of an upgrade and its size in bytes; empty: none.
func (m *machine) beginOperation(operation string, total int64) {
	m.upgrade.Update(func(s upgradeState) upgradeState { s.Operation, s.Done, s.Total = operation, 0, total; return s })
	if operation != "" {
		m.events.add("upgrade", "operation", operation)
	}
}

// setDone sets the number of bytes done.
func (m *machine) setDone(bytes int64) {
	m.upgrade.Update(func(s upgradeState) upgradeState { s.Done = bytes; return s })
}

// receive receives the rest of a bundle and returns when it is complete and verified. It calls
// started when the upgrade has started: from then on the record holds the result.
func (m *machine) receive(i upgrade.Installer, b upgrade.Bundle, from io.Reader, by string, started func()) error {
	hasStarted := false
	err := inbox.Receive(m.runCtx, from, func(head io.Reader) error {
		s, err := i.Check(head)
		if err != nil {
			return err
		}
		begins := slot.Started{To: s.Version, At: time.Now(), Reached: m.gatewayReached(), Epoch: s.Epoch, Floor: m.epochFloor()}
		now, _ := m.upgrade.Get()
		if _, _, err := slot.Step(m.release.Version, now.Record, begins); err != nil {
			return upgrade.Refusal{Err: err}
		}
		if err := m.handleEvent(m.runCtx, begins); err != nil {
			return err
		}
		hasStarted = true
		m.events.add("upgrade", "operation", "to version "+s.Version+", asked by "+by)
		m.beginOperation("receive version "+s.Version, b.Size)
		started()
		return nil
	}, m.setDone)
	if err != nil {
		m.abort(hasStarted, err)
		return err
	}
	m.events.add("upgrade", "operation", fmt.Sprintf("the bundle is complete: %d bytes were received, %d were present", b.Size-b.Have, b.Have))
	return nil
}

// install writes the bundle into the other slot and reboots. It releases m.writeMu only after the
// record contains the new version: the next upgrade starts by the removal of all versions without a
// record.
func (m *machine) install(i upgrade.Installer) {
	defer m.writeMu.Unlock()
	if err := panics.Do("upgrade", func() error { return m.enterVersion(i) }); err != nil {
		m.abort(true, err)
		return
	}
	m.beginOperation("", 0)
}

// enterVersion installs the version and records its boot entry; then the machine shuts down. If it
// fails, neither the loader nor the record has the version.
func (m *machine) enterVersion(i upgrade.Installer) error {
	f, err := inbox.Open()
	if err != nil {
		return err
	}
	defer f.Close()
	if err := i.Install(m.runCtx, f); err != nil {
		return err
	}
	// Again: a client may have applied a configuration during the drain.
	err = m.saveConfiguration()
	if err == nil {
		err = m.handleEvent(m.runCtx, slot.EntryWritten{})
	}
	if err != nil {
		m.uncordon()
		return errors.Join(err, m.esp.RemoveOthers(m.release.Version))
	}
	return nil
}

// abort ends an upgrade that is not on the disk.
func (m *machine) abort(hasStarted bool, why error) {
	m.events.add("upgrade", "failure", why.Error())
	m.beginOperation("", 0)
	// another attempt would not help
	if errors.As(why, new(upgrade.Refusal)) || errors.Is(why, bundle.ErrDamaged) {
		if err := inbox.Drop(); err != nil {
			m.events.add("upgrade", "failure", err.Error())
		}
	}
	if hasStarted {
		if err := m.handleEvent(m.runCtx, slot.WriteFailed{Reason: why.Error(), At: time.Now()}); err != nil {
			m.logConsole(err.Error())
		}
	}
}

func (a upgradeAPI) BeginUpload(_ context.Context, r *api.BeginUploadRequest) (*api.BeginUploadResponse, error) {
	if _, err := a.m.installer(false); err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	if !a.m.writeMu.TryLock() {
		return nil, errBusy
	}
	defer a.m.writeMu.Unlock()
	b, err := a.m.beginUpload(r.Sha256, r.Size)
	if err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	return &api.BeginUploadResponse{Received: b.Have}, nil
}

// beginUpload reserves space for a bundle, and returns the number of bytes that are present.
func (m *machine) beginUpload(sha256 string, size int64) (upgrade.Bundle, error) {
	// that upgrade was interrupted: no call holds writeMu
	if now, _ := m.upgrade.Get(); now.Phase != slot.Writing {
		if err := now.Undecided(); err != nil {
			return upgrade.Bundle{}, fmt.Errorf("upgrade refused: %w", err)
		}
	}
	return inbox.Offer(sha256, size)
}

func (a upgradeAPI) Upload(stream grpc.ClientStreamingServer[api.UploadBundleRequest, api.UpgradeStarted]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	i, err := a.m.installer(first.WithoutSavepoint)
	if err != nil {
		return status.Error(codes.FailedPrecondition, err.Error())
	}
	if !a.m.writeMu.TryLock() {
		return errBusy
	}
	if err := panics.Do("receiving a bundle", func() error { return a.m.receiveUpload(stream, i, first) }); err != nil {
		a.m.writeMu.Unlock()
		return err
	}
	now, _ := a.m.upgrade.Get()
	go a.m.install(i)
	return stream.SendAndClose(&api.UpgradeStarted{From: now.From, To: now.To})
}

// receiveUpload receives the data of a client until the bundle is complete.
func (m *machine) receiveUpload(stream grpc.ClientStreamingServer[api.UploadBundleRequest, api.UpgradeStarted], i upgrade.Installer, first *api.UploadBundleRequest) error {
	b, err := inbox.Bundle()
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	if first.Sha256 != b.SHA256 || first.Offset != b.Have {
		return status.Errorf(codes.Aborted, "upgrade: byte %d of bundle %s does not follow the received bytes; begin the upload again", first.Offset, first.Sha256)
	}
	rest := &transfer.Chunks[*api.UploadBundleRequest]{Rest: first.Chunk, Receive: func() (*api.UploadBundleRequest, error) {
		r, err := stream.Recv()
		if err != nil && !errors.Is(err, io.EOF) {
			err = errors.New("the client has disconnected")
		}
		return r, err
	}}
	err = m.receive(i, b, rest, caller(stream.Context()), func() {})
	switch {
	case errors.As(err, new(upgrade.Unfinished)):
		return status.Error(codes.Aborted, err.Error())
	case err != nil:
		return status.Error(codes.FailedPrecondition, err.Error())
	}
	return nil
}

// findTimeout bounds the search for a bundle in a registry, or at a peer, which reads all of it
// first.
const findTimeout = 5 * time.Minute

// bundleSource is a bundle in a registry or at a peer.
type bundleSource interface {
	SHA256() string // lower-case hexadecimal
	Size() int64    // bytes
	// Reader reads from an offset, until ctx ends.
	Reader(ctx context.Context, at int64) io.Reader
}

// find finds the bundle of a request.
func (m *machine) find(ctx context.Context, r *api.FetchBundleRequest) (bundleSource, error) {
	ctx, cancel := context.WithTimeout(ctx, findTimeout)
	defer cancel()
	switch {
	case r.Peer == "":
		from := registry.Source{Reference: r.Reference, CA: r.Ca, PlainHTTP: r.PlainHttp, Username: r.Username, Password: r.Password}
		return from.Find(ctx, bundle.TypeArchive)
	case r.Reference != "" || len(r.Ca) > 0 || r.PlainHttp || r.Username != "" || r.Password != "":
		return nil, errors.New("upgrade refused: a bundle is fetched from a registry or from another machine, and not from both")
	}
	return m.findPeer(ctx, r.Peer)
}

func (a upgradeAPI) Fetch(ctx context.Context, r *api.FetchBundleRequest) (*api.UpgradeStarted, error) {
	i, err := a.m.installer(r.WithoutSavepoint)
	if err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	f, err := a.m.find(ctx, r)
	if err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	if !a.m.writeMu.TryLock() {
		return nil, errBusy
	}
	b, err := a.m.beginUpload(f.SHA256(), f.Size())
	if err != nil {
		a.m.writeMu.Unlock()
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	started := make(chan error, 2) // nil once the upgrade has started, then its error
	go a.m.fetch(i, f, b, caller(ctx), started)
	select {
	case err := <-started:
		if err != nil {
			return nil, status.Error(codes.FailedPrecondition, err.Error())
		}
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	now, _ := a.m.upgrade.Get()
	return &api.UpgradeStarted{From: now.From, To: now.To}, nil
}

// fetch receives the missing bytes of a bundle and installs it.
func (m *machine) fetch(i upgrade.Installer, f bundleSource, b upgrade.Bundle, by string, started chan<- error) {
	ctx, cancel := context.WithCancel(m.runCtx)
	defer cancel() // the connection
	err := panics.Do("fetching a bundle", func() error {
		return m.receive(i, b, f.Reader(ctx, b.Have), by, func() { started <- nil })
	})
	if err != nil {
		m.writeMu.Unlock()
		started <- err
		return
	}
	m.install(i)
}
