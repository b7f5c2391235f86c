package membership

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/safefile"
	"github.com/orlop-os/orlop/pkg/trust"
)

// Ledger is the machine's trust.Ledger, stored on STATE.
type Ledger struct {
	deps *Deps
	sync.Mutex
	loaded   bool
	content  trust.Ledger
	stored   []byte        // content as stored on STATE; nil if unknown
	session  trust.Session // state since the start of machined
	damaged  error         // why the stored ledger is unreadable
	reported bool          // an event reported the damage

	changes *cell.Cell[int] // number of changes of the content
}

func newLedger(d *Deps) *Ledger { return &Ledger{deps: d, changes: cell.New(0)} }

// Changes is the number of changes of the ledger.
func (b *Ledger) Changes() *cell.Cell[int] { return b.changes }

// Revocations returns the active revocations, and why the ledger is unreadable. The first call about
// an unreadable ledger adds an event.
func (b *Ledger) Revocations() (active []trust.Revocation, damaged error) {
	b.Lock()
	defer b.Unlock()
	b.currentLocked()
	if b.damaged != nil && !b.reported {
		b.reported = true
		b.deps.Event("trust", "failure", b.damaged.Error()+"; certificates that machines have issued are rejected, and none is issued, until a new list is started (`orlopctl trust revoke --new-list`)")
	}
	return b.revokedLocked(), b.damaged
}

// currentLocked reads the ledger from STATE at first use. Without storage the ledger is empty and
// cannot be written.
func (b *Ledger) currentLocked() trust.Ledger {
	known := b.readLocked()
	if b.deps.Floor != nil {
		known.Floor = b.deps.Floor()
	}
	return known
}

func (b *Ledger) readLocked() trust.Ledger {
	if b.loaded {
		return b.content
	}
	text, err := os.ReadFile(b.deps.Files.Ledger)
	if errors.Is(err, fs.ErrNotExist) {
		return b.content // STATE may be mounted later
	}
	b.damaged = nil
	if err == nil {
		b.loaded = true // a damaged ledger is not read again
		err = json.Unmarshal(text, &b.content)
	}
	if err != nil {
		b.content, b.damaged = trust.Ledger{}, fmt.Errorf("%s: cannot read: %w", b.deps.Files.Ledger, err)
	}
	return b.content
}

// revokedLocked returns the active revocations. If the ledger is unreadable, the removed machines
// are unknown, so it revokes all members.
func (b *Ledger) revokedLocked() []trust.Revocation {
	known := b.currentLocked()
	if b.damaged != nil {
		return []trust.Revocation{{Lineage: trust.AnyTicket}}
	}
	return known.ActiveRevocations()
}

// storeLocked writes another content to STATE.
func (b *Ledger) storeLocked(next trust.Ledger) error {
	text, err := json.Marshal(next)
	if err == nil && b.damaged == nil && b.stored != nil && bytes.Equal(text, b.stored) {
		b.content = next
		return nil
	}
	if err == nil {
		err = os.MkdirAll(filepath.Dir(b.deps.Files.Ledger), 0o700)
	}
	if err == nil {
		err = safefile.WriteFile(b.deps.Files.Ledger, append(slices.Clip(text), '\n'), 0o600)
	}
	if err != nil {
		b.stored = nil
		return fmt.Errorf("trust: cannot store the ledger: %w", err)
	}
	b.loaded, b.content, b.damaged, b.stored = true, next, nil, text
	b.changes.Update(func(n int) int { return n + 1 })
	return nil
}

// Current returns the present ledger.
func (b *Ledger) Current() trust.Ledger {
	b.Lock()
	defer b.Unlock()
	return b.currentLocked()
}

// update changes the ledger and stores it, or returns a status error. An error leaves the ledger
// unchanged.
func (b *Ledger) update(change func(trust.Ledger) (trust.Ledger, error)) error {
	b.Lock()
	defer b.Unlock()
	next, err := b.changedLocked(change)
	if err != nil {
		return err
	}
	if err := b.storeLocked(next); err != nil {
		return status.Error(codes.Unavailable, err.Error())
	}
	return nil
}

// check is update without the change.
func (b *Ledger) check(change func(trust.Ledger) (trust.Ledger, error)) error {
	b.Lock()
	defer b.Unlock()
	_, err := b.changedLocked(change)
	return err
}

func (b *Ledger) changedLocked(change func(trust.Ledger) (trust.Ledger, error)) (trust.Ledger, error) {
	known, err := b.withIDLocked()
	if b.damaged != nil {
		return known, status.Error(codes.FailedPrecondition, "no certificate is issued: "+b.damaged.Error()+"; `orlopctl trust revoke --new-list` starts a new list")
	}
	if err != nil {
		return known, status.Error(codes.Unavailable, err.Error())
	}
	known, _ = known.Prune(&b.session, b.deps.Now())
	next, err := change(known)
	switch {
	case errors.Is(err, trust.ErrNoQuorum):
		return next, status.Error(codes.Unavailable, err.Error())
	case err != nil:
		return next, status.Error(codes.FailedPrecondition, err.Error())
	}
	return next, nil
}

// newLedgerID returns a random ledger ID.
func newLedgerID() string {
	id := make([]byte, 16)
	_, _ = rand.Read(id) // it does not fail
	return hex.EncodeToString(id)
}

// withIDLocked returns the ledger and creates its ID at first use.
func (b *Ledger) withIDLocked() (trust.Ledger, error) {
	known := b.currentLocked()
	if b.damaged != nil {
		return known, b.damaged
	}
	if known.ID == "" {
		if err := b.storeLocked(known.WithID(newLedgerID())); err != nil {
			return known, err
		}
	}
	return b.currentLocked(), nil
}

// syncMembership polls the membership of another control-plane machine, and merges and stores the
// changes. It returns the ledger ID of that machine.
func (b *Ledger) syncMembership(ask func(*api.GetMembershipRequest) (*api.GetMembershipResponse, error)) (from string, err error) {
	b.Lock()
	known, err := b.withIDLocked()
	b.Unlock()
	if err != nil {
		return "", err
	}
	answer, err := ask(&api.GetMembershipRequest{Digest: known.Public().Digest()})
	if err != nil {
		return "", err
	}
	if err := trust.CheckID(answer.Ledger); err != nil {
		return "", err
	}
	b.Lock()
	defer b.Unlock()
	if known, err = b.withIDLocked(); err != nil { // another call may have written meanwhile
		return "", err
	}
	next, news, err := known.MergeMembership(fromMembership(answer.Membership), &b.session, b.deps.Now())
	if err != nil {
		return "", err
	}
	next, pruned := next.Prune(&b.session, b.deps.Now())
	if news || pruned {
		if err := b.storeLocked(next); err != nil {
			return "", err
		}
	}
	b.session.MarkSynced(answer.Ledger)
	return answer.Ledger, nil
}

// recordControlPlane stores the name of the control-plane machine at an address. A version that
// does not send its name has an empty name.
func (b *Ledger) recordControlPlane(addr netip.Addr, name string, planes []netip.Addr) error {
	b.Lock()
	defer b.Unlock()
	known, err := b.withIDLocked()
	if err != nil || name == "" || known.ControlPlanes[addr.String()] == name {
		return err
	}
	if known, err = known.RecordControlPlaneName(addr.String(), name, addressStrings(planes)); err != nil {
		return err
	}
	return b.storeLocked(known)
}

// syncRevocations polls a peer, and merges and stores its new revocations.
func (b *Ledger) syncRevocations(ask func(*api.GetRevocationsRequest) (*api.GetRevocationsResponse, error)) ([]trust.Revocation, error) {
	b.Lock()
	known, damaged := b.currentLocked(), b.damaged
	b.Unlock()
	if damaged != nil {
		return nil, damaged
	}
	answer, err := ask(&api.GetRevocationsRequest{Digest: known.Digest()})
	if err != nil {
		return nil, err
	}
	var received []trust.Revocation
	for _, r := range answer.Revocations {
		received = append(received, fromAPIRevocation(r))
	}
	b.Lock()
	defer b.Unlock()
	if known = b.currentLocked(); b.damaged != nil { // another call may have written meanwhile
		return nil, b.damaged
	}
	next, added, err := known.MergeRevocations(received, b.deps.Now())
	if len(added) == 0 {
		return nil, err
	}
	if storeErr := b.storeLocked(next); storeErr != nil {
		return nil, storeErr
	}
	return added, err
}

// changeRevocation revokes or restores, but rejects self-revocation, which could lock out the last
// admin. known reports whether this machine issued the certificate.
func (b *Ledger) changeRevocation(wanted trust.Revocation, r *api.RevokeRequest, ownLineage, ownName string) (done trust.Revocation, known bool, err error) {
	b.Lock()
	defer b.Unlock()
	next := b.currentLocked()
	if b.damaged != nil && !r.NewList {
		return done, false, status.Error(codes.FailedPrecondition, b.damaged.Error()+"; --new-list starts a new one without the earlier revocations")
	}
	// other certificates of the machine have other names
	if member := next.MemberOfRevocation(wanted); member != "" && !r.Restore {
		return done, false, status.Errorf(codes.FailedPrecondition, "revocation refused: the certificate belongs to machine %s of the cluster, which has more of them; `orlopctl nodes remove %s` revokes all", member, member)
	}
	done, known = wanted, next.HasIssued(wanted.Lineage)
	if r.Restore {
		next, err = next.Restore(wanted)
	} else {
		next, done, err = next.Revoke(wanted)
		if err == nil && (trust.SameLineage(done.Lineage, ownLineage) || done.Name != "" && done.Name == ownName) {
			err = errors.New("revocation refused: it is your own certificate, or your own name; let another admin revoke it, or create a certificate with another name with the operator's CA (`orlopctl gen client --role admin --name`)")
		}
	}
	if err != nil {
		return done, known, status.Error(codes.FailedPrecondition, err.Error())
	}
	if b.damaged != nil {
		err = b.linkDamaged()
	}
	if err == nil {
		err = b.storeLocked(next)
	}
	if err != nil {
		return done, known, status.Error(codes.Unavailable, err.Error())
	}
	return done, known, nil
}

// linkDamaged gives the damaged file a second name. The file retains its own name until new content
// replaces it: without a file nothing would be revoked, and a power cut between the two steps must
// not cause that.
func (b *Ledger) linkDamaged() error {
	second := b.deps.Files.Ledger + ".damaged"
	if err := os.Remove(second); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Link(b.deps.Files.Ledger, second)
}

// RevocationsForAPIServer returns the active revocations for an API server. A revocation names its
// machine only while the name is not reassigned, because the API server rejects all pods of a
// machine of that name.
func (b *Ledger) RevocationsForAPIServer(c *config.Config) []trust.Revocation {
	b.Lock()
	defer b.Unlock()
	known, revoked := b.currentLocked(), b.revokedLocked()
	for i, r := range revoked {
		if r.Machine != "" && (reservedName(c, known, r.Machine) || known.NameInUse(r.Machine, b.deps.Now())) {
			revoked[i].Machine = ""
		}
	}
	return revoked
}
