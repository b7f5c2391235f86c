package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/audit"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/limits"
	"github.com/orlop-os/orlop/pkg/pairing"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/safefile"
)

// The operators of a machine: the CAs in the configuration; else the CA in the image; else the CA
// of the pairing. An unclaimed machine shows a pairing code on its console (package pairing,
// docs/decisions/0005-first-contact.md). The code changes at each boot and disappears once the
// machine is claimed.

// operators returns the CAs of the operators in PEM; empty if the machine is unclaimed.
func operators(c *config.Config) ([]byte, error) {
	if c != nil && len(c.Machine.Spec.Trust.OperatorCAs) > 0 {
		var all []byte
		for _, ca := range c.Machine.Spec.Trust.OperatorCAs {
			all = append(all, ca.PEM()...)
		}
		return all, nil
	}
	return owner()
}

// owner returns the CA of the operator of a machine without a configuration, in PEM; empty if the
// machine is unclaimed.
func owner() ([]byte, error) {
	for _, name := range []string{paths.OperatorCA, paths.PairedCA, paths.PairedCAInMemory} {
		text, err := os.ReadFile(name)
		if err == nil {
			return text, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("api: cannot read the operator's CA: %w", err)
		}
	}
	return nil, nil
}

// storeOwner stores the CA of the pairing operator: on STATE, or in memory without STATE.
func (m *machine) storeOwner(ca []byte) error {
	name := paths.PairedCA
	if why, _ := m.storageProblem.Get(); why != "" {
		name = paths.PairedCAInMemory
	}
	err := os.MkdirAll(filepath.Dir(name), 0o700)
	if err == nil {
		err = safefile.WriteFile(name, ca, 0o600)
	}
	if err != nil {
		return fmt.Errorf("cannot store the operator's CA: %w", err)
	}
	return nil
}

// moveOwner moves the CA from memory to STATE after STATE is mounted.
func moveOwner() error {
	if _, err := os.Stat(paths.PairedCA); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	ca, err := os.ReadFile(paths.PairedCAInMemory)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = safefile.WriteFile(paths.PairedCA, ca, 0o600)
	}
	return err
}

// unclaimed reports whether the machine is unclaimed, so that pairing is possible. A machine with
// an unreadable configuration is not: the configuration may name its operators.
func (m *machine) unclaimed(c *config.Config, operators []byte) bool {
	return len(operators) == 0 && !(c == nil && m.bootMedium == "" && hasStoredConfig())
}

// apidAPI serves the calls of apid on its own behalf.
type apidAPI struct {
	api.UnimplementedApidInternalServer
	m *machine
}

// pairingDesk is the pairing of an unclaimed machine.
type pairingDesk struct {
	sync.Mutex
	code   *cell.Cell[pairing.Code] // empty if the machine is claimed
	limits limits.Rates
}

// newPairingDesk limits each network to five attempts at once and five per minute. A code cannot be
// guessed (2^100); the limit protects the log and the processor.
func newPairingDesk() pairingDesk {
	return pairingDesk{code: cell.New(pairing.Code("")), limits: limits.Rates{Interval: 12 * time.Second, Burst: 5}}
}

const tooManyAttempts = "too many attempts from your address; wait a minute"

// setUnclaimed shows a code if the machine is unclaimed, else removes it. The caller holds
// m.reconcileMu, or is the only goroutine.
func (d *pairingDesk) setUnclaimed(unowned bool) {
	d.Lock()
	defer d.Unlock()
	switch now, _ := d.code.Get(); {
	case unowned && now == "":
		d.code.Set(pairing.NewCode())
	case !unowned && now != "":
		d.code.Set("")
	}
}

// check verifies a claim and stores its CA with keep.
func (d *pairingDesk) check(r *api.PairRequest, keep func(ca []byte) error) *api.PairResponse {
	d.Lock()
	defer d.Unlock()
	code, _ := d.code.Get()
	claim := pairing.Claim{CA: r.Ca, Proof: r.Proof}
	switch {
	case code == "":
		return &api.PairResponse{Refusal: "the machine is claimed already"}
	case !d.limits.Allow(limits.NetworkOf(r.Peer)):
		return &api.PairResponse{Refusal: tooManyAttempts}
	case !code.Accepts(r.ChannelBinding, claim):
		return &api.PairResponse{Refusal: "this is not the code that the machine's console shows now"}
	}
	if err := soleCA(claim.CA); err != nil {
		return &api.PairResponse{Refusal: "the operator's CA: " + err.Error()}
	}
	if err := keep(claim.CA); err != nil {
		return &api.PairResponse{Refusal: err.Error()}
	}
	d.code.Set("")
	return &api.PairResponse{Proof: code.NewAnswer(r.ChannelBinding, claim).Proof}
}

// soleCA checks that text is exactly one CA certificate.
func soleCA(text []byte) error {
	ca, err := pki.ParseCert(text)
	if err == nil && !ca.IsCA {
		err = fmt.Errorf("%q is not a certificate authority", ca.Subject.CommonName)
	}
	return err
}

// rejectedEvents limits the events about rejected attempts, from all addresses: a flood of attempts
// must not displace the other events.
var rejectedEvents = rate.NewLimiter(rate.Every(10*time.Second), 10)

func (a apidAPI) Pair(ctx context.Context, r *api.PairRequest) (*api.PairResponse, error) {
	start := time.Now()
	answer := a.m.pair(context.WithoutCancel(ctx), r)
	c := audit.Call{Role: "nobody", Peer: r.Peer, Method: api.ApidInternal_Pair_FullMethodName, Status: codes.OK.String(), Duration: time.Since(start)}
	if answer.Refusal == "" {
		ca, _ := pki.ParseCert(r.Ca) // it was accepted
		c.Subject, c.Serial = ca.Subject.String(), fmt.Sprintf("%x", ca.SerialNumber)
	} else {
		c.Status, c.Reason = codes.PermissionDenied.String(), answer.Refusal
	}
	// a flood of attempts must not displace the other records
	if answer.Refusal != tooManyAttempts {
		if answer.Refusal == "" {
			a.m.record(c)
		} else {
			a.m.recordRefused(c)
		}
	}
	if answer.Refusal != "" && rejectedEvents.Allow() {
		a.m.events.add("pairing", "failure", "refused to "+r.Peer+": "+answer.Refusal)
	}
	return answer, nil
}

// pair excludes all other changes of the operator: an apply, an installation that copies the CA to
// a disk, and a reconciliation.
func (m *machine) pair(ctx context.Context, r *api.PairRequest) *api.PairResponse {
	if !m.applyMu.TryLock() {
		return &api.PairResponse{Refusal: "a configuration is being applied; try again"}
	}
	defer m.applyMu.Unlock()
	if !m.writeMu.TryLock() {
		return &api.PairResponse{Refusal: "the machine is being installed, and reboots then; pair with it afterwards"}
	}
	defer m.writeMu.Unlock()
	m.reconcileMu.Lock()
	defer m.reconcileMu.Unlock()
	now, _ := m.config.Get()
	answer := m.pairing.check(r, func(ca []byte) error {
		if operators, err := operators(now.config); err != nil || !m.unclaimed(now.config, operators) {
			return errors.Join(err, errors.New("the machine is claimed already"))
		}
		if err := m.storeOwner(ca); err != nil {
			return err
		}
		cert, err := pki.ParseCert(ca)
		if err != nil {
			return err
		}
		m.logConsole(fmt.Sprintf("paired by %s with the operator %q, %s", r.Peer, cert.Subject.CommonName, pki.Fingerprint(cert)))
		// a caller of the former configuration can still call, beside the new operator
		if now.config != nil {
			for _, a := range callingAuthorities(now.config) {
				m.logConsole(fmt.Sprintf("the configuration of the machine, from %s, also admits callers with certificates of %q (%s)", now.source, a.ca.Subject.CommonName, a.field))
			}
		}
		return nil
	})
	if answer.Refusal == "" {
		state, _ := m.networkState.Get()
		// a failure is retried by the next reconciliation
		if err := m.configureAPI(ctx, now.config, state); err != nil {
			m.events.add("pairing", "failure", err.Error())
		}
	}
	return answer
}

// rejectUnclaimed rejects all calls from apid but Pair while the machine is unclaimed. apid rejects
// them too; the reachable process is not the only check.
func (m *machine) rejectUnclaimed(method string) error {
	if code, _ := m.pairing.code.Get(); code != "" && method != api.ApidInternal_Pair_FullMethodName {
		return status.Error(codes.FailedPrecondition, "the machine is unclaimed; pair with it")
	}
	return nil
}

// containsCA reports whether a list of CAs (PEM) contains a CA with this fingerprint.
func containsCA(list []byte, fingerprint string) (bool, error) {
	if len(list) == 0 {
		return false, nil
	}
	cas, err := pki.ParseCerts(list)
	if err != nil {
		return false, err
	}
	for _, ca := range cas {
		if pki.Fingerprint(ca) == fingerprint {
			return true, nil
		}
	}
	return false, nil
}
