package hosts

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/orlop-os/orlop/pkg/admission/claim"
	"github.com/orlop-os/orlop/pkg/panics"
)

const (
	// claimsInterval is the interval at which machined reads the list of claims.
	claimsInterval = 5 * time.Second
	// removalInterval is the time from a failed removal to the next attempt. It is long, because
	// each attempt cordons the node and evicts its pods.
	removalInterval = time.Minute
)

// TicketTTL is the validity of the ticket of a claimed machine, which joins within seconds
// (ClaimsDeps.Approve).
const TicketTTL = 10 * time.Minute

// ClaimsDeps is the environment of Claims.
type ClaimsDeps struct {
	// Enabled reports whether the configuration allows claims.
	Enabled func() bool
	// Read reads the list of claims that the controllers on this machine have written. The error is
	// fs.ErrNotExist if no controllers lead on this machine.
	Read func() ([]byte, error)
	// Operators returns the CAs of the operators, and CheckRevoked returns an error for a revoked
	// certificate.
	Operators    func() ([]*x509.Certificate, error)
	CheckRevoked func(*x509.Certificate) error
	// Pending returns the machines that request to join.
	Pending func() []claim.Member
	// Approve admits a machine; by is the subject of the certificate that signed its template.
	Approve func(ctx context.Context, m claim.Member, by string) error
	// Known reports whether a machine with this name and key is a member, or an unused ticket for
	// this name exists.
	Known func(claim.Member) bool
	// Remove drains the node of a machine and removes the machine from the cluster.
	Remove func(ctx context.Context, m claim.Member) error
	// Event adds an event to the machine's events.
	Event func(kind, message string)
	// Now is the clock.
	Now func() time.Time
	// Rules is the environment of approvals by rules.
	Rules RuleDeps
}

// Claims acts on the list of claims of the controllers that lead on this control-plane machine. The
// list comes from a process with fewer rights than machined. So each claim needs a template that an
// operator of this machine has signed, and a name that is derived from the key of the claimed
// machine. Thus the controllers admit no machine without an operator, and remove no machine that an
// operator has added. A claim by a rule also needs a valid rule that lists the machine; a rule
// approves each listed machine once. A template can demand a rule.
type Claims struct {
	deps ClaimsDeps

	eventLimit *rate.Limiter // events of problems
	approvals  approvals     // used by the goroutine of Run only

	mu       sync.Mutex
	offers   map[string]offer // by the key of the machine
	problems map[string]bool  // reported problems
	removing map[claim.Member]bool
	failed   map[claim.Member]time.Time // times of failed removals
	running  sync.WaitGroup             // removals that run
}

// offer is a valid claim.
type offer struct {
	claim.Member
	template claim.Signed
	by       string // subject of the certificate that signed the template
}

// NewClaims returns Claims without a list. Run reads the list.
func NewClaims(d ClaimsDeps) *Claims {
	return &Claims{
		deps: d, eventLimit: rate.NewLimiter(rate.Every(10*time.Second), 10),
		approvals: approvals{deps: d.Rules, stored: map[string]bool{}, refused: map[attempt]refusal{}},
		problems:  map[string]bool{}, removing: map[claim.Member]bool{}, failed: map[claim.Member]time.Time{},
	}
}

// Offer returns the signed template for the machine with a key; nil if the machine has no valid
// claim.
func (c *Claims) Offer(key string) *claim.Signed {
	c.mu.Lock()
	defer c.mu.Unlock()
	if o, found := c.offers[key]; found {
		return &o.template
	}
	return nil
}

// Run acts on the list until ctx is done.
func (c *Claims) Run(ctx context.Context) {
	defer c.running.Wait()
	tick := time.NewTicker(claimsInterval)
	defer tick.Stop()
	for {
		c.pass(ctx)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// pass reads the list, and acts on its claims and removals. A problem causes an event, which is not
// repeated while the problem lasts.
func (c *Claims) pass(ctx context.Context) {
	list, err := c.read()
	offers, problems := c.check(ctx, list)
	if err != nil {
		problems = append(problems, err)
	}
	c.mu.Lock()
	c.offers = offers
	c.mu.Unlock()
	for _, m := range c.deps.Pending() {
		if o, found := offers[m.Key]; found && o.Member == m {
			if err := c.deps.Approve(ctx, m, o.by); err != nil {
				problems = append(problems, fmt.Errorf("machine %s: cannot admit: %w", m.Name, err))
			}
		}
	}
	for _, m := range list.Removals {
		if err := checkClaimed(m); err != nil {
			problems = append(problems, err)
		} else if c.deps.Known(m) {
			c.remove(ctx, m)
		}
	}
	c.report(problems)
}

// read returns the list; it is empty while claims are disabled.
func (c *Claims) read() (claim.List, error) {
	if !c.deps.Enabled() {
		return claim.List{}, nil
	}
	text, err := c.deps.Read()
	if errors.Is(err, fs.ErrNotExist) {
		return claim.List{}, nil
	}
	if err != nil {
		return claim.List{}, err
	}
	return claim.ParseList(text, c.deps.Now())
}

// check returns the valid claims of a list, by the keys of the machines, and the problems of the
// other claims.
func (c *Claims) check(ctx context.Context, list claim.List) (map[string]offer, []error) {
	offers := map[string]offer{}
	if len(list.Claims) == 0 {
		return offers, nil
	}
	operators, err := c.deps.Operators()
	if err != nil {
		return offers, []error{err}
	}
	now := c.deps.Now()
	templates, problems := verifyAll("OrlopMachineTemplate", list.Templates, func(s claim.Signed) (claim.Template, *x509.Certificate, error) {
		return s.Verify(operators, now)
	}, c.deps.CheckRevoked)
	rules, more := verifyAll("OrlopApprovalRule", list.Rules, func(s claim.SignedRule) (rule, *x509.Certificate, error) {
		r, by, err := s.Verify(operators, now)
		return rule{r, s.ID()}, by, err
	}, c.deps.CheckRevoked)
	problems = append(problems, more...)
	c.approvals.forget(now)
	tries := maxAttempts
	ctx, cancel := context.WithTimeout(ctx, attemptsTimeout)
	defer cancel()
	for _, claimed := range c.approvals.inTurn(list.Claims) {
		t, found := templates[claimed.Template]
		if !found {
			continue
		}
		if t.document.NameOf(claimed.Key) != claimed.Name {
			problems = append(problems, fmt.Errorf("machine %.63s: the name does not belong to its key and its template", claimed.Name))
			continue
		}
		r, found := rules[claimed.Rule]
		if claimed.Rule != "" && !found {
			continue // the rule is not listed, or it is invalid and problems says why
		}
		switch err := c.approved(ctx, claimed, t.document, r, &tries); {
		case errors.Is(err, errLater):
			c.approvals.next = cmp.Or(c.approvals.next, claimed.Key)
		case err != nil:
			problems = append(problems, fmt.Errorf("machine %.63s: %w", claimed.Name, err))
		default:
			offers[claimed.Key] = offer{claimed.Member, list.Templates[claimed.Template], t.by}
		}
	}
	return offers, problems
}

// approved returns an error unless the machine of a claim is approved in the way that its template
// demands. The first approval by a rule adds an event.
func (c *Claims) approved(ctx context.Context, claimed claim.Claim, t claim.Template, r signed[rule], tries *int) error {
	if claimed.Rule == "" {
		if t.RuleOnly {
			return errors.New("its template demands the approval by a signed rule (`orlopctl nodes rule`), and the controllers name none")
		}
		return nil
	}
	first, identity, err := c.approvals.approve(ctx, claimed.Key, r.document, c.deps.Now(), tries)
	if err != nil {
		return fmt.Errorf("OrlopApprovalRule %.253s does not approve it: %w", claimed.Rule, err)
	}
	if first {
		c.deps.Event("operation", fmt.Sprintf("machine %.63s is approved by OrlopApprovalRule %.253s of %s, as the machine with the %s: %s", claimed.Name, claimed.Rule, r.by, identity, claimed.Key))
	}
	return nil
}

// checkClaimed returns an error unless the name of a machine comes from a claim: operators choose
// other names.
func checkClaimed(m claim.Member) error {
	if !m.NamedByKey() {
		return fmt.Errorf("machine %.63s: cannot remove: it does not come from a claim; an operator removes it (`orlopctl nodes remove`)", m.Name)
	}
	return nil
}

// remove removes a machine in the background, because the drain of its node takes minutes.
func (c *Claims) remove(ctx context.Context, m claim.Member) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.failed, func(_ claim.Member, at time.Time) bool { return c.deps.Now().Sub(at) >= removalInterval })
	if _, failed := c.failed[m]; failed || c.removing[m] {
		return
	}
	c.removing[m] = true
	c.running.Add(1)
	panics.Go("the removal of a claimed machine", func() {
		defer c.running.Done()
		defer func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			delete(c.removing, m)
		}()
		err := c.deps.Remove(ctx, m)
		if err == nil || ctx.Err() != nil {
			return
		}
		c.deps.Event("failure", fmt.Sprintf("machine %s: cannot remove: %v; it is tried again in %v", m.Name, err, removalInterval))
		c.mu.Lock()
		defer c.mu.Unlock()
		c.failed[m] = c.deps.Now()
	})
}

// report adds an event for each new problem. An attacker in the controllers could cause many
// problems, which must not displace the other events. So the number of events is limited, and a
// later pass reports the remaining problems.
func (c *Claims) report(problems []error) {
	now := map[string]bool{}
	for _, err := range problems {
		line := err.Error()
		if !c.problems[line] && !now[line] {
			if !c.eventLimit.AllowN(c.deps.Now(), 1) {
				continue
			}
			c.deps.Event("failure", line)
		}
		now[line] = true
	}
	c.problems = now
}
