package ownership

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/admission/pairing"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/audit"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/limits"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/safefile"
)

// Deps is the environment of a Pairing.
type Deps struct {
	// Lock excludes all other operations that read or change the operators: an apply, an
	// installation that copies the CA to a disk, and a reconciliation. If the lock is not available
	// now, busy is the reason, and unlock must not be called.
	Lock func() (unlock func(), busy string)
	// Config returns the active configuration and where it came from; c is nil if the machine has
	// none.
	Config func() (c *config.Config, source string)
	// Unreadable reports whether STATE holds a configuration that machined cannot read. c is the
	// active configuration.
	Unreadable func(c *config.Config) bool
	// Stored reports whether STATE is mounted.
	Stored func() bool
	// Activate passes the operators of a configuration to apid. The caller holds the lock.
	Activate func(context.Context, *config.Config) error
	// Record writes an accepted attempt into the audit log. RecordRefused writes a rejected one.
	Record, RecordRefused func(audit.Call)
	// Event adds an event about the pairing to the machine's events.
	Event func(kind, message string)
	// Console shows a line on the consoles and adds it to the events.
	Console func(line string)
}

// Pairing is the pairing of an unclaimed machine. All methods are safe for concurrent use.
type Pairing struct {
	deps   Deps
	code   *cell.Cell[pairing.Code] // empty if the machine is claimed
	limits limits.Rates
	// eventLimit limits the events about rejected attempts from all addresses together. Without the
	// limit, many attempts could displace the other events.
	eventLimit *rate.Limiter
	// operators returns the CAs of the operators of a configuration.
	operators func(*config.Config) ([]byte, error)

	mu sync.Mutex // guards changes of the code
}

// New returns a Pairing that shows no code yet. It accepts from each network five attempts at once,
// and then five per minute. The limit protects the log and the processor. It is not needed against
// guesses: there are 2^100 codes.
func New(d Deps) *Pairing {
	return &Pairing{
		deps: d, code: cell.New(pairing.Code("")), limits: limits.Rates{Interval: 12 * time.Second, Burst: 5},
		eventLimit: rate.NewLimiter(rate.Every(10*time.Second), 10), operators: Operators,
	}
}

// These are reasons for which the machine rejects an attempt.
const (
	alreadyClaimed  = "the machine is claimed already"
	tooManyAttempts = "too many attempts from your address; wait a minute"
	wrongCode       = "this is not the code that the machine's console shows now"
)

// Code returns a view of the pairing code, for readers. The code is empty if the machine is
// claimed.
func (p *Pairing) Code() cell.View[pairing.Code] { return p.code.View() }

// Update shows a code if the machine is unclaimed, else removes the code. c is the active
// configuration, and operators are the CAs of its operators. The caller holds the lock (Deps.Lock),
// or is the only goroutine.
func (p *Pairing) Update(c *config.Config, operators []byte) {
	p.setUnclaimed(p.unclaimed(c, operators))
}

// unclaimed reports whether the machine is unclaimed, which makes pairing possible. A machine with
// an unreadable configuration is not unclaimed, because the configuration may name operators.
func (p *Pairing) unclaimed(c *config.Config, operators []byte) bool {
	return len(operators) == 0 && !p.deps.Unreadable(c)
}

// setUnclaimed shows a new code if the machine is unclaimed and shows none yet. It removes the code
// if the machine is claimed.
func (p *Pairing) setUnclaimed(unclaimed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch now, _ := p.code.Get(); {
	case unclaimed && now == "":
		p.code.Set(pairing.NewCode())
	case !unclaimed && now != "":
		p.code.Set("")
	}
}

// check verifies an attempt. It returns the reason for the rejection, or an empty string if the
// attempt is valid.
func (p *Pairing) check(code pairing.Code, r *api.PairRequest) (refusal string) {
	switch {
	case code == "":
		return alreadyClaimed
	case !p.limits.Allow(limits.NetworkOf(r.Peer)):
		return tooManyAttempts
	case !code.Accepts(r.ChannelBinding, claimOf(r)):
		return wrongCode
	}
	if err := soleCA(r.Ca); err != nil {
		return "the operator's CA: " + err.Error()
	}
	return ""
}

// claimOf returns the claim in the request of an attempt.
func claimOf(r *api.PairRequest) pairing.Claim { return pairing.Claim{CA: r.Ca, Proof: r.Proof} }

// accept stores the CA of an attempt, by the function store, and removes the code. It rejects the
// attempt if the machine no longer shows the code with which the attempt was verified.
func (p *Pairing) accept(code pairing.Code, r *api.PairRequest, store func(ca []byte) error) *api.PairResponse {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch now, _ := p.code.Get(); {
	case now == "":
		return &api.PairResponse{Refusal: alreadyClaimed}
	case now != code:
		return &api.PairResponse{Refusal: wrongCode}
	}
	if err := store(r.Ca); err != nil {
		return &api.PairResponse{Refusal: err.Error()}
	}
	p.code.Set("")
	return &api.PairResponse{Proof: code.NewAnswer(r.ChannelBinding, claimOf(r)).Proof}
}

// soleCA returns an error unless text is exactly one CA certificate in PEM.
func soleCA(text []byte) error {
	ca, err := pki.ParseCert(text)
	if err == nil && !ca.IsCA {
		err = fmt.Errorf("%q is not a certificate authority", ca.Subject.CommonName)
	}
	return err
}

// Pair verifies an attempt, stores the CA of a valid attempt, and records the result in the audit
// log.
func (p *Pairing) Pair(ctx context.Context, r *api.PairRequest) *api.PairResponse {
	start := time.Now()
	answer := p.pair(ctx, r)
	c := audit.Call{Role: "nobody", Peer: r.Peer, Method: api.ApidInternal_Pair_FullMethodName, Status: codes.OK.String(), Duration: time.Since(start)}
	if answer.Refusal == "" {
		ca, _ := pki.ParseCert(r.Ca) // p.pair has already parsed this CA.
		c.Subject, c.Serial = ca.Subject.String(), fmt.Sprintf("%x", ca.SerialNumber)
		p.deps.Record(c)
		return answer
	}
	c.Status, c.Reason = codes.PermissionDenied.String(), answer.Refusal
	// Many attempts must not displace the other records.
	if answer.Refusal != tooManyAttempts {
		p.deps.RecordRefused(c)
	}
	if p.eventLimit.Allow() {
		p.deps.Event("failure", "refused to "+r.Peer+": "+answer.Refusal)
	}
	return answer
}

// pair verifies an attempt, and stores the CA of a valid attempt. It takes the lock (Deps.Lock)
// only after the verification, because every computer in the network can make attempts.
func (p *Pairing) pair(ctx context.Context, r *api.PairRequest) *api.PairResponse {
	code, _ := p.code.Get()
	if refusal := p.check(code, r); refusal != "" {
		return &api.PairResponse{Refusal: refusal}
	}
	unlock, busy := p.deps.Lock()
	if busy != "" {
		return &api.PairResponse{Refusal: busy}
	}
	defer unlock()
	c, source := p.deps.Config()
	answer := p.accept(code, r, func(ca []byte) error { return p.claim(c, source, r.Peer, ca) })
	if answer.Refusal == "" {
		// The next reconciliation repeats a failed activation.
		if err := p.deps.Activate(ctx, c); err != nil {
			p.deps.Event("failure", err.Error())
		}
	}
	return answer
}

// claim stores the CA of an operator after the check of the code. It returns an error if the
// machine is claimed already. It shows the operator on the console.
func (p *Pairing) claim(c *config.Config, source, peer string, ca []byte) error {
	operators, err := p.operators(c)
	if err != nil {
		return fmt.Errorf("pairing: cannot tell whether the machine is claimed: %w; try again, or reboot the machine", err)
	}
	if !p.unclaimed(c, operators) {
		return errors.New(alreadyClaimed)
	}
	if err := p.storeOwner(ca); err != nil {
		return err
	}
	cert, err := pki.ParseCert(ca)
	if err != nil {
		return err
	}
	p.deps.Console(fmt.Sprintf("paired by %s with the operator %q, %s", peer, cert.Subject.CommonName, pki.Fingerprint(cert)))
	// The pairing does not end the access of other callers that the configuration admits.
	if c != nil {
		for _, a := range Authorities(c) {
			p.deps.Console(fmt.Sprintf("the configuration of the machine, from %s, also admits callers with certificates of %q (%s)", source, a.CA.Subject.CommonName, a.Field))
		}
	}
	return nil
}

// storeOwner stores the CA of the pairing: on STATE if it is mounted, else in memory.
func (p *Pairing) storeOwner(ca []byte) error {
	name := paths.PairedCA
	if !p.deps.Stored() {
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

// RejectUnclaimed returns an error for every call from apid except Pair while the machine is
// unclaimed. apid rejects these calls too. machined repeats the check because apid is reachable
// from the network and could be compromised.
func (p *Pairing) RejectUnclaimed(method string) error {
	if code, _ := p.code.Get(); code != "" && method != api.ApidInternal_Pair_FullMethodName {
		return status.Error(codes.FailedPrecondition, "the machine is unclaimed; pair with it")
	}
	return nil
}
