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
	"github.com/orlop-os/orlop/pkg/durable"
	"github.com/orlop-os/orlop/pkg/pairing"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/pki"
)

// Who a machine belongs to: the operators whose CAs the configuration lists; else the one that the
// image was built for; else the one that it was paired with. A machine that belongs to nobody shows
// a code on its console (package pairing, docs/decisions/0005-first-contact.md). It is another one
// after each start, and there is none once it belongs to somebody.

// operators are the CAs of those who may call, in PEM; empty when the machine belongs to nobody.
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

// owner is the CA of the operator whom the machine belongs to without a configuration, in PEM;
// empty when that is nobody.
func owner() ([]byte, error) {
	for _, name := range []string{paths.OperatorCA, paths.PairedCA, paths.PairedCAInMemory} {
		text, err := os.ReadFile(name)
		if err == nil {
			return text, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("door: cannot read the operator's CA: %w", err)
		}
	}
	return nil, nil
}

// keepOwner stores whom the machine was paired with: on STATE, or, as long as there is none, in
// memory.
func (m *machine) keepOwner(ca []byte) error {
	name := paths.PairedCA
	if why, _ := m.noStorage.Get(); why != "" {
		name = paths.PairedCAInMemory
	}
	err := os.MkdirAll(filepath.Dir(name), 0o700)
	if err == nil {
		err = durable.WriteFile(name, ca, 0o600)
	}
	if err != nil {
		return fmt.Errorf("cannot store the operator's CA: %w", err)
	}
	return nil
}

// moveOwner stores what was kept in memory as long as there was no STATE.
func moveOwner() error {
	if _, err := os.Stat(paths.PairedCA); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	ca, err := os.ReadFile(paths.PairedCAInMemory)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = durable.WriteFile(paths.PairedCA, ca, 0o600)
	}
	return err
}

// unowned tells whether the machine belongs to nobody, so that it may be paired. One with a
// configuration that cannot be read does not: that may name its operators.
func (m *machine) unowned(c *config.Config, operators []byte) bool {
	return len(operators) == 0 && !(c == nil && m.medium == "" && stored())
}

// doorAPI is what apid asks machined on its own behalf.
type doorAPI struct {
	api.UnimplementedDoorServer
	m *machine
}

// desk is where a machine that belongs to nobody is paired.
type desk struct {
	sync.Mutex
	code  *cell.Cell[pairing.Code] // empty while the machine belongs to somebody
	tries tries
}

// newDesk is one where somebody may try a code five times at once, and five times a minute. It
// cannot be guessed (2^100); this keeps the log and the processor free.
func newDesk() desk {
	return desk{code: cell.New(pairing.Code("")), tries: tries{each: 12 * time.Second, atOnce: 5}}
}

const tooManyTries = "there were too many tries from your address; wait a minute"

// open shows a code while the machine belongs to nobody, and none otherwise. The caller holds
// m.settling, or is alone.
func (d *desk) open(unowned bool) {
	d.Lock()
	defer d.Unlock()
	switch now, _ := d.code.Get(); {
	case unowned && now == "":
		d.code.Set(pairing.NewCode())
	case !unowned && now != "":
		d.code.Set("")
	}
}

// judge tells whether a claim is good, and has keep store the CA that it brings.
func (d *desk) judge(r *api.PairRequest, keep func(ca []byte) error) *api.PairResponse {
	d.Lock()
	defer d.Unlock()
	code, _ := d.code.Get()
	claim := pairing.Claim{CA: r.Ca, Proof: r.Proof}
	switch {
	case code == "":
		return &api.PairResponse{Refusal: "the machine belongs to an operator already"}
	case !d.tries.allowed(networkOf(r.Peer)):
		return &api.PairResponse{Refusal: tooManyTries}
	case !code.Accepts(r.Binding, claim):
		return &api.PairResponse{Refusal: "this is not the code that the machine's console shows now"}
	}
	if err := soleCA(claim.CA); err != nil {
		return &api.PairResponse{Refusal: "the operator's CA: " + err.Error()}
	}
	if err := keep(claim.CA); err != nil {
		return &api.PairResponse{Refusal: err.Error()}
	}
	d.code.Set("")
	return &api.PairResponse{Proof: code.NewAnswer(r.Binding, claim).Proof}
}

// soleCA checks that a text is one certificate of an authority.
func soleCA(text []byte) error {
	ca, err := pki.ParseCert(text)
	if err == nil && !ca.IsCA {
		err = fmt.Errorf("%q is not a certificate authority", ca.Subject.CommonName)
	}
	return err
}

// refusedEvents bounds the events about refused tries, from whatever address: the log holds more
// than those who keep trying.
var refusedEvents = rate.NewLimiter(rate.Every(10*time.Second), 10)

func (a doorAPI) Pair(ctx context.Context, r *api.PairRequest) (*api.PairResponse, error) {
	start := time.Now()
	answer := a.m.pair(context.WithoutCancel(ctx), r)
	c := audit.Call{Role: "nobody", Peer: r.Peer, Method: api.Door_Pair_FullMethodName, Status: codes.OK.String(), Duration: time.Since(start)}
	if answer.Refusal == "" {
		ca, _ := pki.ParseCert(r.Ca) // it was accepted
		c.Subject, c.Serial = ca.Subject.String(), fmt.Sprintf("%x", ca.SerialNumber)
	} else {
		c.Status, c.Reason = codes.PermissionDenied.String(), answer.Refusal
	}
	if answer.Refusal != tooManyTries { // the record holds more than one who keeps trying
		if answer.Refusal == "" {
			a.m.record(c)
		} else {
			a.m.recordRefused(c)
		}
	}
	if answer.Refusal != "" && refusedEvents.Allow() {
		a.m.events.add("pairing", "failure", "refused to "+r.Peer+": "+answer.Refusal)
	}
	return answer, nil
}

// pair lets nothing else decide meanwhile whom the machine belongs to: no configuration that is
// being taken, no installation that carries the owner to a disk, no look at whether there is one.
func (m *machine) pair(ctx context.Context, r *api.PairRequest) *api.PairResponse {
	if !m.applying.TryLock() {
		return &api.PairResponse{Refusal: "a configuration is being taken; try again"}
	}
	defer m.applying.Unlock()
	if !m.writing.TryLock() {
		return &api.PairResponse{Refusal: "the machine is being installed, and restarts then; pair with it after that"}
	}
	defer m.writing.Unlock()
	m.settling.Lock()
	defer m.settling.Unlock()
	now, _ := m.config.Get()
	answer := m.desk.judge(r, func(ca []byte) error {
		if operators, err := operators(now.config); err != nil || !m.unowned(now.config, operators) {
			return errors.Join(err, errors.New("the machine belongs to an operator already"))
		}
		if err := m.keepOwner(ca); err != nil {
			return err
		}
		cert, err := pki.ParseCert(ca)
		if err != nil {
			return err
		}
		m.say(fmt.Sprintf("paired by %s with the operator %q, %s", r.Peer, cert.Subject.CommonName, pki.Fingerprint(cert)))
		// who configured the machine before may call it beside its new operator
		if now.config != nil {
			for _, a := range callingAuthorities(now.config) {
				m.say(fmt.Sprintf("the configuration that the machine has from %s also lets the holders of certificates by %q call it (%s)", now.source, a.ca.Subject.CommonName, a.field))
			}
		}
		return nil
	})
	if answer.Refusal == "" {
		state, _ := m.networkState.Get()
		// the next change of anything opens it
		if err := m.openDoor(ctx, now.config, state); err != nil {
			m.events.add("pairing", "failure", err.Error())
		}
	}
	return answer
}

// beforeOwner lets nothing but pairing come from apid while the machine belongs to nobody. apid
// does so too; what strangers can reach is not to be alone with that.
func (m *machine) beforeOwner(method string) error {
	if code, _ := m.desk.code.Get(); code != "" && method != api.Door_Pair_FullMethodName {
		return status.Error(codes.FailedPrecondition, "the machine belongs to nobody yet; pair with it")
	}
	return nil
}

// knows tells whether a list of CAs (PEM) has one with this fingerprint.
func knows(list []byte, fingerprint string) (bool, error) {
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
