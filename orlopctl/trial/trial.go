// Package trial confirms changes of the configuration that are on trial.
//
// A change that can cut off its caller starts a trial on the machine automatically
// (docs/decisions/0056-lockout.md). The tool then checks that the machine is still reachable: it
// opens a new connection and confirms the trial over this connection.
package trial

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/orlop-os/orlop/orlopctl/connect"
	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/iostreams"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/backoff"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/reconcile"
)

const (
	// lostTrial bounds the attempts to confirm a trial if the answer of the machine was lost. It is
	// the default length of a trial that the machine starts.
	lostTrial = time.Minute
	// lostBootTrial is the default length of a trial that begins with a boot. bootWait bounds the
	// time until the trial begins: pods and services stop, and the firmware starts the machine.
	lostBootTrial = 5 * time.Minute
	bootWait      = 10 * time.Minute
	// confirmDial and confirmCall bound an attempt to confirm. The machine waits up to 20 s for its
	// network.
	confirmDial = 10 * time.Second
	confirmCall = 25 * time.Second
)

// NewName returns a random name for a trial. A command confirms its trial by this name, so it
// cannot confirm the trial of another command.
func NewName() string { return rand.Text() }

// IsAutomatic reports whether m is a mode in which the machine itself decides whether a change
// starts a trial.
func IsAutomatic(m api.ApplyRequest_Mode) bool {
	return m == api.ApplyRequest_MODE_UNSPECIFIED || m == api.ApplyRequest_MODE_AUTO || m == api.ApplyRequest_MODE_NO_REBOOT || m == api.ApplyRequest_MODE_REBOOT
}

// Needed reports whether an answer in an automatic mode requires a confirmation. The trial runs
// already, or begins after a reboot of the machine.
func Needed(answer *api.ApplyResponse) bool {
	return answer.TrialDeadline != nil || afterBoot(answer)
}

// afterBoot reports whether the trial begins after a reboot of the machine.
func afterBoot(answer *api.ApplyResponse) bool {
	return answer.Reboot && answer.TrialDuration != nil
}

// Confirmation is the confirmation of a trial.
type Confirmation struct {
	Name       string            // name of the trial; empty for any trial
	Endpoints  []client.Endpoint // endpoints of the machine, the usual endpoint first
	BeforeDial func()            // called before each attempt, to close the relay; may be nil
	// Failures are the failed operations of the configuration. They are set after the confirmation.
	Failures []string
	At       client.Endpoint // endpoint of the successful call
}

// EndpointsOf returns the endpoints at which a machine may be reachable: e, and e with each of the
// addresses in the configuration on trial.
func EndpointsOf(e client.Endpoint, addresses []string) []client.Endpoint {
	endpoints := []client.Endpoint{e}
	for _, address := range addresses {
		other := e
		other.Address, other.ServerName, other.Fallback, other.Pool = address, "", nil, nil
		endpoints = append(endpoints, other)
	}
	return endpoints
}

// Run confirms the trial over a new connection. It tries again until a call succeeds, the machine
// reports that there is no trial, or ctx ends. After the end of ctx it returns the last error of
// the first endpoint. An error from before the end of ctx has precedence, because it says more
// about the cause.
func (c *Confirmation) Run(ctx context.Context) error {
	var last error
	for {
		var first error
		for i, endpoint := range c.Endpoints {
			err := c.attempt(ctx, endpoint)
			if err == nil || !isTemporaryOrUnauthorized(err) {
				return err
			}
			if i == 0 {
				first = err
			}
		}
		if last == nil || ctx.Err() == nil {
			last = first
		}
		if backoff.Sleep(ctx, connect.DialInterval) != nil {
			return last
		}
	}
}

// attempt tries once to confirm the trial at an endpoint.
func (c *Confirmation) attempt(ctx context.Context, endpoint client.Endpoint) error {
	if c.BeforeDial != nil {
		c.BeforeDial()
	}
	dialing, cancel := context.WithTimeout(ctx, confirmDial)
	defer cancel()
	return connect.Do(dialing, endpoint, func(to *client.Client) error {
		calling, cancel := context.WithTimeout(ctx, confirmCall)
		defer cancel()
		answer, err := to.Config.Confirm(calling, &api.ConfirmConfigRequest{TrialName: c.Name})
		if err == nil {
			c.Failures, c.At = answer.Failures, endpoint
		}
		return err
	})
}

// isTemporaryOrUnauthorized reports whether another attempt to confirm may succeed. A machine that
// does not admit the caller now may admit it soon.
func isTemporaryOrUnauthorized(err error) bool {
	s, ok := exit.StatusOf(err)
	return !ok || s.Code() == codes.Unavailable || s.Code() == codes.DeadlineExceeded || s.Code() == codes.Canceled || s.Code() == codes.Unauthenticated
}

// Confirm confirms a trial that the machine has started, or starts after a reboot. It adds the
// result to the answer. It returns an error if the trial is not confirmed in time.
func Confirm(ios *iostreams.Streams, conn *connect.Connector, name string, answer *api.ApplyResponse) error {
	left, reboots := answer.TrialDuration.AsDuration(), afterBoot(answer)
	until := time.Now().Add(left)
	if reboots {
		until = time.Now().Add(conn.Timeout(bootWait + left))
	}
	ctx, stop := connect.Interruptible()
	defer stop()
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	endpoint, err := conn.Machine()
	if err != nil {
		return err
	}
	if reboots {
		ios.Errorln("the change can cut you off: the machine reboots now and is on trial for " + left.String() + " from then on; waiting, to confirm it over a new connection")
	} else {
		ios.Errorln("the change can cut you off: it is on trial until " + until.Format(time.TimeOnly) + ", and is now confirmed over a new connection")
	}
	c := New(conn, name, EndpointsOf(endpoint, answer.Addresses))
	switch err := c.Run(ctx); {
	case err != nil && reboots:
		return notConfirmedAfterBoot(err, left)
	case err != nil:
		return NotConfirmed(err, time.Until(until))
	}
	answer.TrialDeadline, answer.TrialDuration = nil, nil
	answer.Failures = c.Failures
	answer.Operations = reconcile.Done(answer.Operations, c.Failures)
	ios.Errorln("confirmed: the configuration stays")
	if c.At.Address != endpoint.Address {
		ios.Errorln(fmt.Sprintf("the machine was reached at %s and not at %s; `orlopctl config set NAME -e %s` stores that", c.At.Address, endpoint.Address, c.At.Address))
	}
	return nil
}

// New returns a Confirmation of the trial with this name. It closes the relay of the connector
// before each attempt.
func New(conn *connect.Connector, name string, endpoints []client.Endpoint) *Confirmation {
	return &Confirmation{Name: name, Endpoints: endpoints, BeforeDial: conn.CloseRelay}
}

// reverted returns the error for a trial that the machine has already reverted. It returns nil if
// err has another cause.
func reverted(err error) error {
	if s, ok := exit.StatusOf(err); ok && s.Code() == codes.FailedPrecondition {
		return &exit.Error{Code: exit.Failure, Err: err, Hint: "the change was reverted; `orlopctl config-history` shows the active configuration"}
	}
	return nil
}

// notConfirmedAfterBoot returns the error for an unconfirmed trial that begins with a boot. length
// is the length of the trial.
func notConfirmedAfterBoot(err error, length time.Duration) error {
	if ended := reverted(err); ended != nil {
		return ended
	}
	code, _ := exit.Code(err)
	return &exit.Error{
		Code: code,
		Err:  fmt.Errorf("the configuration is not confirmed: %s; the machine reverts to the previous configuration %v after its boot, or at its next boot, without your help", exit.Message(err), length),
		Hint: "`orlopctl confirm-config` can still confirm it; --try-for makes the trial longer, and --no-trial applies it without a trial",
	}
}

// NotConfirmed returns the error for an unconfirmed trial. It says that the machine reverts, and
// when. left is the remaining time of the trial.
func NotConfirmed(err error, left time.Duration) error {
	if ended := reverted(err); ended != nil {
		return ended
	}
	code, _ := exit.Code(err)
	when := "now"
	if left = left.Round(time.Second); left > 0 {
		when = "in " + left.String()
	}
	return &exit.Error{
		Code: code,
		Err: fmt.Errorf("the configuration is not confirmed: %s; the machine reverts to the previous configuration %s (at %s), without your help", exit.Message(err), when,
			time.Now().Add(max(left, 0)).Format(time.TimeOnly)),
		Hint: "correct the change and apply it again; --try-for makes the trial longer, and --no-trial applies it without a trial",
	}
}

// ConfirmLost tries to confirm a trial after the loss of a machine's answer. A change that cuts off
// its caller can cause the loss, and the machine may have started a trial then. err is the error of
// the lost call, and r its request. ConfirmLost returns an error if the confirmation fails, too.
func ConfirmLost(ios *iostreams.Streams, conn *connect.Connector, err error, r *api.ApplyRequest) (*api.ApplyResponse, error) {
	left := lostTrial
	if r.Mode == api.ApplyRequest_MODE_REBOOT {
		left = lostBootTrial
	}
	if r.TrialDuration != nil {
		left = r.TrialDuration.AsDuration()
	}
	if r.Mode == api.ApplyRequest_MODE_REBOOT {
		left += bootWait
	}
	ios.Errorln("the answer was lost: " + exit.Message(err))
	ios.Errorln("if the change can cut you off, the machine reverts it within " + left.String() + " unless it is confirmed; trying to confirm it")
	ctx, stop := connect.Interruptible()
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, left)
	defer cancel()
	endpoint, calling := conn.Machine()
	if calling != nil {
		return nil, calling
	}
	c := New(conn, r.TrialName, EndpointsOf(endpoint, nil))
	if confirming := c.Run(ctx); confirming != nil {
		code, _ := exit.Code(err)
		return nil, &exit.Error{Code: code, Err: fmt.Errorf("%w; it could not be confirmed either: %s", err, exit.Message(confirming)), Hint: "`orlopctl events` and `orlopctl config-history` show the active configuration"}
	}
	return &api.ApplyResponse{Failures: c.Failures}, nil
}
