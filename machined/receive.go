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
)

// How a bundle comes to the machine:
//
//  1. It is offered, with its size and digest, and DATA has room for it (upgrade.Inbox).
//  2. It comes, into a file on DATA; as soon as its statement is there the machine decides whether it wants it, and the record says
//     that the upgrade has begun. What breaks off is gone on with from the last byte.
//  3. It is whole and is what was offered. From here on nobody else is needed: it is written (install).
//
// Whoever does one of these holds m.writing.

// patience is how long a sender may bring nothing. A client notices a lost connection later than
// that (pkg/client), so it never comes back while its former self still holds the place.
const patience = 20 * time.Second

// inbox is where a bundle is kept.
var inbox = upgrade.Inbox{Dir: paths.Bundle, Free: upgrade.FreeSpace, StallTimeout: patience}

var errBusy = status.Error(codes.Aborted, "upgrade refused: another bundle is being received or written; `orlopctl upgrade status` tells how far it is")

// installer is what installs a bundle on this machine, or why it cannot be upgraded at all.
func (m *machine) installer(withoutData bool) (upgrade.Installer, error) {
	if why, _ := m.noStorage.Get(); why != "" {
		return upgrade.Installer{}, fmt.Errorf("upgrade refused: there is nothing to keep its record on: %s", why)
	}
	p, err := m.place()
	if err != nil {
		return upgrade.Installer{}, fmt.Errorf("upgrade refused: %w", err)
	}
	trust, err := m.releaseKeys()
	if err != nil {
		return upgrade.Installer{}, fmt.Errorf("upgrade refused: %w", err)
	}
	i := upgrade.Installer{
		Running: m.release.Version, Profile: m.release.Profile, Trust: trust, Slot: p, ESP: m.esp,
		Save: m.saveData, Keep: m.keepConfiguration, Begin: m.begin, Done: m.done,
	}
	switch {
	case !m.holdsData():
		i.Save = nil
	case withoutData:
		i.Save, i.Drop = nil, m.dropSaved
	}
	if _, drains := m.drains(); drains {
		i.Drain = func(ctx context.Context) error {
			want, drains := m.drains() // the configuration may be another one by then
			if !drains {
				return nil
			}
			return m.drain(ctx, want)
		}
	}
	return i, nil
}

// releaseKeys are the keys that this image trusts to sign versions, and how many of them have to.
func (m *machine) releaseKeys() (bundle.Trust, error) {
	keys, err := os.ReadFile(paths.ReleaseKeys)
	if err != nil {
		return bundle.Trust{}, fmt.Errorf("this image trusts nobody's bundles: %w", err)
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

// begin says what is done of an upgrade now, and how many bytes that is; empty: nothing.
func (m *machine) begin(operation string, total int64) {
	m.upgrade.Update(func(s upgradeState) upgradeState { s.Operation, s.Done, s.Total = operation, 0, total; return s })
	if operation != "" {
		m.events.add("upgrade", "op", operation)
	}
}

// done says how many bytes of it are done.
func (m *machine) done(bytes int64) {
	m.upgrade.Update(func(s upgradeState) upgradeState { s.Done = bytes; return s })
}

// receive takes the rest of the bundle that was offered, and returns when it is whole and the right
// one. begun is called when the upgrade has begun: from then on its record tells what becomes of
// it.
func (m *machine) receive(i upgrade.Installer, b upgrade.Bundle, from io.Reader, who string, begun func()) error {
	began := false
	err := inbox.Receive(m.working, from, func(head io.Reader) error {
		s, err := i.Check(head)
		if err != nil {
			return err
		}
		begins := slot.Started{To: s.Version, At: time.Now(), Reached: m.reached(), Epoch: s.Epoch, Floor: m.floor()}
		now, _ := m.upgrade.Get()
		if _, _, err := slot.Step(m.release.Version, now.Record, begins); err != nil {
			return upgrade.Refusal{Err: err}
		}
		if err := m.happened(m.working, begins); err != nil {
			return err
		}
		began = true
		m.events.add("upgrade", "op", "to version "+s.Version+", asked by "+who)
		m.begin("receive version "+s.Version, b.Size)
		begun()
		return nil
	}, m.done)
	if err != nil {
		m.broken(began, err)
		return err
	}
	m.events.add("upgrade", "op", fmt.Sprintf("the bundle is whole: %d bytes have come, %d were there", b.Size-b.Have, b.Have))
	return nil
}

// install writes the bundle into the other slot, and reboots into it. It gives m.writing back when
// the record says that the version is entered, and not before: the next upgrade begins by
// forgetting what is not recorded.
func (m *machine) install(i upgrade.Installer) {
	defer m.writing.Unlock()
	if err := panics.Do("upgrade", func() error { return m.enterVersion(i) }); err != nil {
		m.broken(true, err)
		return
	}
	m.begin("", 0)
}

// enterVersion makes the boot loader and the record know the new version; then the machine goes
// down. Otherwise neither does.
func (m *machine) enterVersion(i upgrade.Installer) error {
	f, err := inbox.Open()
	if err != nil {
		return err
	}
	defer f.Close()
	if err := i.Install(m.working, f); err != nil {
		return err
	}
	// Again: one may have been applied while the pods left.
	err = m.keepConfiguration()
	if err == nil {
		err = m.happened(m.working, slot.EntryWritten{})
	}
	if err != nil {
		m.stay()
		return errors.Join(err, m.esp.RemoveOthers(m.release.Version))
	}
	return nil
}

// broken ends an upgrade that is not on the disk.
func (m *machine) broken(began bool, why error) {
	m.events.add("upgrade", "failure", why.Error())
	m.begin("", 0)
	// another try would not mend it
	if errors.As(why, new(upgrade.Refusal)) || errors.Is(why, bundle.ErrDamaged) {
		if err := inbox.Drop(); err != nil {
			m.events.add("upgrade", "failure", err.Error())
		}
	}
	if began {
		if err := m.happened(m.working, slot.WriteFailed{Reason: why.Error(), At: time.Now()}); err != nil {
			m.say(err.Error())
		}
	}
}

func (a upgradeAPI) Offer(_ context.Context, r *api.OfferBundleRequest) (*api.OfferBundleResponse, error) {
	if _, err := a.m.installer(false); err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	if !a.m.writing.TryLock() {
		return nil, errBusy
	}
	defer a.m.writing.Unlock()
	b, err := a.m.offer(r.Sha256, r.Size)
	if err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	return &api.OfferBundleResponse{Have: b.Have}, nil
}

// offer makes room for a bundle, and tells how much of it is there.
func (m *machine) offer(sha256 string, size int64) (upgrade.Bundle, error) {
	// that one is over: nobody holds writing
	if now, _ := m.upgrade.Get(); now.Phase != slot.Writing {
		if err := now.Undecided(); err != nil {
			return upgrade.Bundle{}, fmt.Errorf("upgrade refused: %w", err)
		}
	}
	return inbox.Offer(sha256, size)
}

func (a upgradeAPI) Send(stream grpc.ClientStreamingServer[api.SendBundleRequest, api.UpgradeBegun]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	i, err := a.m.installer(first.WithoutData)
	if err != nil {
		return status.Error(codes.FailedPrecondition, err.Error())
	}
	if !a.m.writing.TryLock() {
		return errBusy
	}
	if err := panics.Do("receiving a bundle", func() error { return a.m.send(stream, i, first) }); err != nil {
		a.m.writing.Unlock()
		return err
	}
	now, _ := a.m.upgrade.Get()
	go a.m.install(i)
	return stream.SendAndClose(&api.UpgradeBegun{From: now.From, To: now.To})
}

// send takes what a client sends, until the bundle is whole.
func (m *machine) send(stream grpc.ClientStreamingServer[api.SendBundleRequest, api.UpgradeBegun], i upgrade.Installer, first *api.SendBundleRequest) error {
	b, err := inbox.Bundle()
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	if first.Sha256 != b.SHA256 || first.Offset != b.Have {
		return status.Errorf(codes.Aborted, "upgrade: byte %d of bundle %s does not follow what the machine has; offer it again", first.Offset, first.Sha256)
	}
	rest := &chunks[*api.SendBundleRequest]{rest: first.Chunk, receive: func() (*api.SendBundleRequest, error) {
		r, err := stream.Recv()
		if err != nil && !errors.Is(err, io.EOF) {
			err = errors.New("the sender is gone")
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

// findTime bounds finding a bundle in a registry, or at another machine, which reads all of it
// first.
const findTime = 5 * time.Minute

// origin is a bundle that is somewhere else.
type origin interface {
	SHA256() string // lower-case hexadecimal
	Size() int64    // bytes
	// Reader reads it from a byte on, and ends with ctx.
	Reader(ctx context.Context, at int64) io.Reader
}

// find looks where a request says that the bundle is.
func (m *machine) find(ctx context.Context, r *api.FetchBundleRequest) (origin, error) {
	ctx, cancel := context.WithTimeout(ctx, findTime)
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

func (a upgradeAPI) Fetch(ctx context.Context, r *api.FetchBundleRequest) (*api.UpgradeBegun, error) {
	i, err := a.m.installer(r.WithoutData)
	if err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	f, err := a.m.find(ctx, r)
	if err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	if !a.m.writing.TryLock() {
		return nil, errBusy
	}
	b, err := a.m.offer(f.SHA256(), f.Size())
	if err != nil {
		a.m.writing.Unlock()
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	begun := make(chan error, 2) // nil once it has begun, then why it failed
	go a.m.fetch(i, f, b, caller(ctx), begun)
	select {
	case err := <-begun:
		if err != nil {
			return nil, status.Error(codes.FailedPrecondition, err.Error())
		}
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	now, _ := a.m.upgrade.Get()
	return &api.UpgradeBegun{From: now.From, To: now.To}, nil
}

// fetch takes what is not there of a bundle, and installs it.
func (m *machine) fetch(i upgrade.Installer, f origin, b upgrade.Bundle, who string, begun chan<- error) {
	ctx, cancel := context.WithCancel(m.working)
	defer cancel() // the connection
	err := panics.Do("fetching a bundle", func() error {
		return m.receive(i, b, f.Reader(ctx, b.Have), who, func() { begun <- nil })
	})
	if err != nil {
		m.writing.Unlock()
		begun <- err
		return
	}
	m.install(i)
}
