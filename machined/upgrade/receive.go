package upgrade

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/bundle"
	"github.com/orlop-os/orlop/pkg/panics"
	"github.com/orlop-os/orlop/pkg/slot"
	"github.com/orlop-os/orlop/pkg/slot/esp"
	"github.com/orlop-os/orlop/pkg/transfer"
)

// How a bundle is received:
//
//  1. A client begins an upload with the size and digest of the bundle. The Inbox checks that DATA
//     has space for it.
//  2. The machine writes the bytes into a file on DATA. Once the statement is complete, the machine
//     accepts or rejects the version, and stores in the record that the upgrade has started. An
//     interrupted upload continues after the last stored byte.
//  3. The bundle is complete and verified. The client is no longer needed, and the machine writes
//     the version into the other slot (install).
//
// The caller of each step holds writeMu.

// Receiver receives and installs bundles. All methods are safe for concurrent use.
type Receiver struct {
	deps       *Deps
	progress   progress
	controller *Controller // receives the events
	esp        *esp.Partition
	savepoints savepoints
	probes     probes
	writeMu    *sync.Mutex // see Controller
	sources    sources
}

// installer returns the Installer of an upgrade, or the reason for which the machine cannot be
// upgraded.
func (r *Receiver) installer(withoutSavepoint bool) (Installer, error) {
	if why := r.deps.storageProblem(); why != "" {
		return Installer{}, fmt.Errorf("upgrade refused: no storage for its record: %s", why)
	}
	p, err := r.deps.Disk.Slots()
	if err != nil {
		return Installer{}, fmt.Errorf("upgrade refused: %w", err)
	}
	trust, err := r.deps.releaseKeys()
	if err != nil {
		return Installer{}, fmt.Errorf("upgrade refused: %w", err)
	}
	i := Installer{
		Running: r.deps.version(), Profile: r.deps.Release().Profile, Trust: trust, Slot: p, ESP: r.esp,
		CheckExtensions: r.deps.Configuration.CheckUpgrade,
		TakeSavepoint:   r.savepoints.take, SaveConfiguration: r.controller.saveConfiguration, Begin: r.progress.begin, Done: r.progress.setDone,
	}
	switch {
	case !r.savepoints.runsEtcd():
		i.TakeSavepoint = nil
	case withoutSavepoint:
		i.TakeSavepoint, i.DropSavepoint = nil, r.savepoints.drop
	}
	return i, nil
}

// ReleaseKeys returns the keys that this image trusts to sign versions and extensions. The error is
// fs.ErrNotExist if the image trusts no keys.
func (r *Receiver) ReleaseKeys() (bundle.Trust, error) { return r.deps.releaseKeys() }

// releaseKeys returns the keys that this image trusts to sign versions, with the required number of
// signatures.
func (d *Deps) releaseKeys() (bundle.Trust, error) {
	keys, err := os.ReadFile(d.Files.ReleaseKeys)
	if err != nil {
		return bundle.Trust{}, fmt.Errorf("this image trusts no release keys: %w", err)
	}
	trust, err := bundle.ParseTrust(keys)
	if err == nil {
		trust, err = trust.WithThreshold(max(1, d.Release().Signatures))
	}
	if err != nil {
		return bundle.Trust{}, fmt.Errorf("%s: %w", d.Files.ReleaseKeys, err)
	}
	return trust, nil
}

// receive receives the rest of a bundle and returns nil when the bundle is complete and verified.
// It calls started() once the upgrade has begun. From then on, the record shows the result of the
// upgrade.
func (r *Receiver) receive(i Installer, b Bundle, from io.Reader, q *disruptionRequest, started func()) error {
	hasStarted := false
	err := r.deps.Files.Inbox.Receive(r.deps.Running, from, func(head io.Reader) error {
		s, err := i.Check(head)
		if err != nil {
			return err
		}
		begins := slot.Started{To: s.Version, At: time.Now(), Reached: r.probes.gatewayReached(), Epoch: s.Epoch, Floor: r.controller.EpochFloor()}
		if _, _, err := slot.Step(r.deps.version(), r.progress.record(), begins); err != nil {
			return Refusal{Err: err}
		}
		if err := q.permit(r.deps.Running); err != nil {
			return err
		}
		if err := r.controller.handle(r.deps.Running, begins); err != nil {
			return err
		}
		hasStarted = true
		r.progress.event("operation", "to version "+s.Version+", asked by "+q.By)
		r.progress.begin("receive version "+s.Version, b.Size)
		started()
		return nil
	}, r.progress.setDone)
	if err == nil {
		err = r.confirmVersion(r.deps.Running, i, q)
	}
	if err != nil {
		r.abort(hasStarted, err, q)
		return err
	}
	r.progress.event("operation", fmt.Sprintf("the bundle is complete: %d bytes were received, %d were present", b.Size-b.Have, b.Have))
	return nil
}

// install writes the bundle into the other slot and reboots. It unlocks writeMu only after the
// record contains the new version. Otherwise another upgrade could start, and its first operation
// removes the entries of all versions except the running version.
func (r *Receiver) install(i Installer, q *disruptionRequest) {
	defer r.writeMu.Unlock()
	panics.Guarded("end of an upgrade", func() {
		i.Confirm = q.confirm
		if drain := r.deps.Node.Drain; drain.Wanted() {
			i.Drain = func(ctx context.Context) error { return drain.Drain(ctx, q.Operation, q.By) }
			i.Uncordon = func() { drain.Undo(q.Operation, q.By) }
		}
		if err := panics.Do("upgrade", func() error { return r.enterVersion(i) }); err != nil {
			r.abort(true, err, q)
			return
		}
		r.progress.begin("", 0)
	})()
}

// enterVersion installs the version and then handles the event EntryWritten, which starts the
// reboot. If enterVersion fails, the ESP contains no entry of the version, and the phase of the
// record is not Written.
func (r *Receiver) enterVersion(i Installer) error {
	f, err := r.deps.Files.Inbox.Open()
	if err != nil {
		return err
	}
	defer f.Close()
	if err := i.Install(r.deps.Running, f); err != nil {
		return err
	}
	// Install has saved the configuration already, but a client may have applied another
	// configuration during the drain.
	err = r.controller.saveConfiguration()
	if err == nil {
		err = r.controller.handle(r.deps.Running, slot.EntryWritten{})
	}
	if err != nil {
		if i.Uncordon != nil {
			i.Uncordon()
		}
		return errors.Join(err, r.esp.RemoveOthers(r.deps.version()))
	}
	return nil
}

// abort ends an upgrade that has no boot entry. The record and the events get the error why as the
// reason.
func (r *Receiver) abort(hasStarted bool, why error, q *disruptionRequest) {
	defer q.end()
	r.sources.failed(q.source)
	r.progress.failure(why.Error())
	r.progress.begin("", 0)
	// A bundle that is damaged or that the machine refuses is useless for another attempt.
	if errors.As(why, new(Refusal)) || errors.Is(why, bundle.ErrDamaged) {
		if err := r.deps.Files.Inbox.Drop(); err != nil {
			r.progress.failure(err.Error())
		}
	}
	if hasStarted {
		if err := r.controller.handle(r.deps.Running, slot.WriteFailed{Reason: why.Error(), At: time.Now()}); err != nil {
			r.deps.Console(err.Error())
		}
	}
}

// BeginUpload prepares an upload for a client, and returns the number of bytes that the machine
// already has.
func (r *Receiver) BeginUpload(sha256 string, size int64) (have int64, err error) {
	if _, err := r.installer(false); err != nil {
		return 0, status.Error(codes.FailedPrecondition, err.Error())
	}
	if !r.writeMu.TryLock() {
		return 0, errBusy
	}
	defer r.writeMu.Unlock()
	b, err := r.beginUpload(sha256, size)
	if err != nil {
		return 0, status.Error(codes.FailedPrecondition, err.Error())
	}
	return b.Have, nil
}

// beginUpload checks that DATA has space for a bundle. It returns the description of the bundle
// with the number of bytes that the machine already has.
func (r *Receiver) beginUpload(sha256 string, size int64) (Bundle, error) {
	// The caller holds writeMu, so no upgrade runs. A record in phase Writing is therefore the
	// remainder of an interrupted upgrade, and does not prevent another upgrade.
	if now := r.progress.record(); now.Phase != slot.Writing {
		if err := now.Undecided(); err != nil {
			return Bundle{}, fmt.Errorf("upgrade refused: %w", err)
		}
	}
	return r.deps.Files.Inbox.Offer(sha256, size)
}

// Upload receives a bundle from a client. It returns when the bundle is complete and verified, and
// a goroutine then installs the bundle.
func (r *Receiver) Upload(first *api.UploadBundleRequest, next func() (*api.UploadBundleRequest, error), by string) (*api.UpgradeStarted, error) {
	i, err := r.installer(first.WithoutSavepoint)
	if err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	if !r.writeMu.TryLock() {
		return nil, errBusy
	}
	q := r.ask(first.Force, by)
	if err := panics.Do("receiving a bundle", func() error { return r.receiveUpload(i, first, next, q) }); err != nil {
		q.end() // after a panic, receive has not given back the turn of the machine
		r.writeMu.Unlock()
		return nil, err
	}
	started := r.started()
	go r.install(i, q)
	return started, nil
}

// started returns the versions of the upgrade that has started, as the answer to the client.
func (r *Receiver) started() *api.UpgradeStarted {
	now := r.progress.record()
	return &api.UpgradeStarted{From: now.From, To: now.To}
}

// receiveUpload receives the data of a client and returns nil when the bundle is complete and
// verified.
func (r *Receiver) receiveUpload(i Installer, first *api.UploadBundleRequest, next func() (*api.UploadBundleRequest, error), q *disruptionRequest) error {
	b, err := r.deps.Files.Inbox.Bundle()
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	if first.Sha256 != b.SHA256 || first.Offset != b.Have {
		return status.Errorf(codes.Aborted, "upgrade: byte %d of bundle %s does not follow the received bytes; begin the upload again", first.Offset, first.Sha256)
	}
	rest := &transfer.Chunks[*api.UploadBundleRequest]{Rest: first.Chunk, Receive: func() (*api.UploadBundleRequest, error) {
		request, err := next()
		if err != nil && !errors.Is(err, io.EOF) {
			err = errors.New("the client has disconnected")
		}
		return request, err
	}}
	err = r.receive(i, b, rest, q, func() {})
	switch {
	case errors.As(err, new(Unfinished)):
		return status.Error(codes.Aborted, err.Error())
	case err != nil:
		return status.Error(codes.FailedPrecondition, err.Error())
	}
	return nil
}
