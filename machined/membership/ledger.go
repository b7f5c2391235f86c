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
	"sync/atomic"

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

	mu      sync.Mutex // held by a change until its content is on STATE
	loaded  bool
	content trust.Ledger
	stored  []byte        // content as stored on STATE; nil if unknown
	session trust.Session // the ledgers that were synced since machined started
	damaged error         // why the stored ledger is unreadable

	// content and damaged for readers, which do not wait for a change; nil until they are loaded
	present  atomic.Pointer[presentLedger]
	reported atomic.Bool // an event reported the damage

	changes *cell.Cell[int] // number of changes of the content
}

// presentLedger is the content of a ledger, or why it is unreadable.
type presentLedger struct {
	content trust.Ledger
	damaged error
}

// revoked returns the active revocations. If the ledger is unreadable, the removed machines are
// unknown, so it revokes all members.
func (p presentLedger) revoked() []trust.Revocation {
	if p.damaged != nil {
		return []trust.Revocation{{Lineage: trust.AnyTicket}}
	}
	return p.content.Revoked.Active()
}

func newLedger(d *Deps) *Ledger { return &Ledger{deps: d, changes: cell.New(0)} }

// Changes returns the cell with the number of changes of the ledger.
func (l *Ledger) Changes() *cell.Cell[int] { return l.changes }

// Revocations returns the active revocations, and why the ledger is unreadable. The first call
// about an unreadable ledger adds an event.
func (l *Ledger) Revocations() (active []trust.Revocation, damaged error) {
	now := l.read()
	if now.damaged != nil && l.reported.CompareAndSwap(false, true) {
		l.deps.Event("trust", "failure", now.damaged.Error()+"; certificates that machines have issued are rejected, and none is issued, until a new list is started (`orlopctl trust revoke --new-list`)")
	}
	return now.revoked(), now.damaged
}

// read returns the present ledger. Once the ledger is loaded, read does not wait for STATE.
func (l *Ledger) read() presentLedger {
	now := l.present.Load()
	if now == nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		return presentLedger{l.currentLocked(), l.damaged}
	}
	return presentLedger{l.withFloor(now.content), now.damaged}
}

// withFloor returns the ledger with the present floor of the clock, a time that has certainly
// passed.
func (l *Ledger) withFloor(known trust.Ledger) trust.Ledger {
	if l.deps.Floor != nil {
		known.Floor = l.deps.Floor()
	}
	return known
}

// currentLocked returns the present ledger. It reads the ledger from STATE at first use. While
// STATE is not mounted, the ledger is empty and cannot be written.
func (l *Ledger) currentLocked() trust.Ledger {
	return l.withFloor(l.readLocked())
}

func (l *Ledger) readLocked() trust.Ledger {
	if l.loaded {
		return l.content
	}
	text, err := os.ReadFile(l.deps.Files.Ledger)
	if errors.Is(err, fs.ErrNotExist) {
		return l.content // STATE may be mounted later
	}
	l.damaged = nil
	if err == nil {
		l.loaded = true // a damaged ledger is not read again
		err = json.Unmarshal(text, &l.content)
	}
	if err != nil {
		l.content, l.damaged = trust.Ledger{}, fmt.Errorf("%s: cannot read: %w", l.deps.Files.Ledger, err)
	}
	if l.loaded {
		l.publishLocked()
	}
	return l.content
}

// publishLocked shows the content to readers.
func (l *Ledger) publishLocked() { l.present.Store(&presentLedger{l.content, l.damaged}) }

// storeLocked writes another content to STATE.
func (l *Ledger) storeLocked(next trust.Ledger) error {
	text, err := json.Marshal(next)
	if err == nil && l.damaged == nil && l.stored != nil && bytes.Equal(text, l.stored) {
		l.content = next
		l.publishLocked()
		return nil
	}
	if err == nil {
		err = os.MkdirAll(filepath.Dir(l.deps.Files.Ledger), 0o700)
	}
	if err == nil {
		err = safefile.WriteFile(l.deps.Files.Ledger, append(slices.Clip(text), '\n'), 0o600)
	}
	if err != nil {
		l.stored = nil
		return fmt.Errorf("trust: cannot store the ledger: %w", err)
	}
	l.loaded, l.content, l.damaged, l.stored = true, next, nil, text
	l.publishLocked()
	l.changes.Update(func(n int) int { return n + 1 })
	return nil
}

// Current returns the present ledger.
func (l *Ledger) Current() trust.Ledger { return l.read().content }

// readable returns the present ledger, and why the stored ledger is unreadable.
func (l *Ledger) readable() (known trust.Ledger, damaged error) {
	now := l.read()
	return now.content, now.damaged
}

// addIssued records an issued certificate, or returns a status error.
func (l *Ledger) addIssued(entry trust.Issued) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	known := l.currentLocked()
	if l.damaged != nil {
		return status.Error(codes.FailedPrecondition, "no certificate is issued: "+l.damaged.Error()+"; `orlopctl trust revoke --new-list` starts a new one")
	}
	if err := l.storeLocked(known.AddIssued(entry)); err != nil {
		return status.Error(codes.Unavailable, err.Error())
	}
	return nil
}

// update changes the ledger and stores it, or returns a status error. An error leaves the ledger
// unchanged.
func (l *Ledger) update(change func(trust.Ledger) (trust.Ledger, error)) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	next, err := l.changedLocked(change)
	if err != nil {
		return err
	}
	if err := l.storeLocked(next); err != nil {
		return status.Error(codes.Unavailable, err.Error())
	}
	return nil
}

// check returns the error that update would return, and changes nothing.
func (l *Ledger) check(change func(trust.Ledger) (trust.Ledger, error)) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, err := l.changedLocked(change)
	return err
}

func (l *Ledger) changedLocked(change func(trust.Ledger) (trust.Ledger, error)) (trust.Ledger, error) {
	known, err := l.withIDLocked()
	if l.damaged != nil {
		return known, status.Error(codes.FailedPrecondition, "no certificate is issued: "+l.damaged.Error()+"; `orlopctl trust revoke --new-list` starts a new list")
	}
	if err != nil {
		return known, status.Error(codes.Unavailable, err.Error())
	}
	known, _ = known.Prune(&l.session, l.deps.Now())
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

// withID returns the ledger with its ID.
func (l *Ledger) withID() (trust.Ledger, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.withIDLocked()
}

// withIDLocked returns the current trust.Ledger of this machine. At first use it creates and stores
// the ledger ID.
func (l *Ledger) withIDLocked() (trust.Ledger, error) {
	known := l.currentLocked()
	if l.damaged != nil {
		return known, l.damaged
	}
	if known.ID == "" {
		if err := l.storeLocked(known.WithID(newLedgerID())); err != nil {
			return known, err
		}
	}
	return l.currentLocked(), nil
}

// syncMembership polls the public membership of another control-plane machine by the function call,
// merges it and stores the changes. The other machine omits its membership from the answer if the
// digest in the request shows that this machine has the same membership. syncMembership records in
// the session that the ledger was synced, and returns the ledger ID of the other machine.
func (l *Ledger) syncMembership(call func(*api.GetMembershipRequest) (*api.GetMembershipResponse, error)) (from string, err error) {
	known, err := l.withID()
	if err != nil {
		return "", err
	}
	answer, err := call(&api.GetMembershipRequest{Digest: known.Public().Digest()})
	if err != nil {
		return "", err
	}
	if err := trust.CheckID(answer.Ledger); err != nil {
		return "", err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if known, err = l.withIDLocked(); err != nil { // another call may have written meanwhile
		return "", err
	}
	next, changed, err := known.MergeMembership(fromMembership(answer.Membership), &l.session, l.deps.Now())
	if err != nil {
		return "", err
	}
	next, pruned := next.Prune(&l.session, l.deps.Now())
	if changed || pruned {
		if err := l.storeLocked(next); err != nil {
			return "", err
		}
	}
	l.session.MarkSynced(answer.Ledger)
	return answer.Ledger, nil
}

// recordControlPlane stores the name of the control-plane machine at an address. name is empty, and
// nothing is stored, if that machine runs a version that does not report its name. planes are the
// addresses of the control plane.
func (l *Ledger) recordControlPlane(addr netip.Addr, name string, planes []netip.Addr) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	known, err := l.withIDLocked()
	if err != nil || name == "" || known.ControlPlanes[addr.String()] == name {
		return err
	}
	if known, err = known.RecordControlPlaneName(addr.String(), name, addressStrings(planes)); err != nil {
		return err
	}
	return l.storeLocked(known)
}

// syncRevocations polls a peer, and merges and stores its new revocations.
func (l *Ledger) syncRevocations(call func(*api.GetRevocationsRequest) (*api.GetRevocationsResponse, error)) ([]trust.Revocation, error) {
	known, damaged := l.readable()
	if damaged != nil {
		return nil, damaged
	}
	answer, err := call(&api.GetRevocationsRequest{Digest: known.Revoked.Digest()})
	if err != nil {
		return nil, err
	}
	var received []trust.Revocation
	for _, r := range answer.Revocations {
		received = append(received, fromAPIRevocation(r))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if known = l.currentLocked(); l.damaged != nil { // another call may have written meanwhile
		return nil, l.damaged
	}
	next, added, err := known.MergeRevocations(received, l.deps.Now())
	if len(added) == 0 {
		return nil, err
	}
	if storeErr := l.storeLocked(next); storeErr != nil {
		return nil, storeErr
	}
	return added, err
}

// changeRevocation revokes or restores a certificate or a name. It rejects the revocation of the
// caller's own certificate or name, which could lock out the last admin. known reports whether this
// machine issued the certificate.
func (l *Ledger) changeRevocation(wanted trust.Revocation, r *api.RevokeRequest, ownLineage, ownName string) (done trust.Revocation, known bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	next := l.currentLocked()
	if l.damaged != nil && !r.NewList {
		return done, false, status.Error(codes.FailedPrecondition, l.damaged.Error()+"; --new-list starts a new one without the earlier revocations")
	}
	// the machine has more certificates, with other names, which this revocation would miss
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
	if l.damaged != nil {
		err = l.linkDamaged()
	}
	if err == nil {
		err = l.storeLocked(next)
	}
	if err != nil {
		return done, known, status.Error(codes.Unavailable, err.Error())
	}
	return done, known, nil
}

// linkDamaged gives the damaged file a second name. The file retains its own name until new content
// replaces it: without a file nothing would be revoked, and a power cut between the two steps must
// not cause that.
func (l *Ledger) linkDamaged() error {
	second := l.deps.Files.Ledger + ".damaged"
	if err := os.Remove(second); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Link(l.deps.Files.Ledger, second)
}

// RevocationsForAPIServer returns the active revocations for an API server. The API server rejects
// the tokens of all pods of a machine that a revocation names. So a revocation does not name its
// machine if a new machine has the name: the API server would reject the pods of the new machine. A
// machine without a cluster (c may be nil: no configuration, or an unreadable one) has no API
// server.
func (l *Ledger) RevocationsForAPIServer(c *config.Config) []trust.Revocation {
	if c == nil || c.Cluster == nil {
		return nil
	}
	now := l.read()
	revoked := now.revoked()
	for i, r := range revoked {
		if r.Machine != "" && reassigned(c, now.content, r.Machine, l.deps.Now()) {
			revoked[i].Machine = ""
		}
	}
	return revoked
}
