// Package providertest checks whether an implementation of machineprovider.Machine conforms to the
// interface. An implementation calls Run in a test of its own:
//
//	func TestConformance(t *testing.T) {
//		providertest.Run(t, providertest.Subject{Machine: machine, Medium: url})
//	}
//
// The checks cut the power of the machine several times, and change its boot device and its medium.
// So run them on a machine without data. After the checks, the machine is off, has no medium, and
// its next boot follows the order of its firmware.
package providertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/orlop-os/orlop/pkg/machineprovider"
)

// Subject is an implementation of machineprovider.Machine, with the facts that the checks need.
type Subject struct {
	Machine machineprovider.Machine
	// Serial is the expected serial number of the machine. If it is empty, the checks accept any
	// serial number.
	Serial string
	// Secrets are passwords. A check fails if an error contains any of them.
	Secrets []string
	// Medium is the URL of an image that the provider can read. It is required if the machine has a
	// CD drive.
	Medium string
	// Shutdown reports whether the machine runs a system that shuts down after a press of the power
	// button.
	Shutdown bool
	// Denied is a client of the same machine with a wrong password. Foreign is a client that trusts
	// the certificate of another controller. Dead is a client of an address at which no server
	// listens. A field is nil if the implementation has no such configuration.
	Denied, Foreign, Dead machineprovider.Machine
	// Settle is the maximum time from a change until Describe returns it; 0 means two minutes.
	Settle time.Duration
}

// pollInterval is the time between two calls of Describe.
const pollInterval = 50 * time.Millisecond

// Check is a check of an implementation.
type Check struct {
	Name string
	// Run returns an error that describes the difference between the implementation and the
	// interface.
	Run func(context.Context, Subject) error
}

// Run runs all checks in order, each as a subtest.
func Run(t *testing.T, s Subject) {
	for _, c := range Checks() {
		t.Run(c.Name, func(t *testing.T) {
			if err := c.Run(t.Context(), s); err != nil {
				t.Error(err)
			}
		})
	}
}

// Checks returns all checks.
func Checks() []Check {
	return []Check{
		{"describe", checkDescribe},
		{"describe-concurrently", checkConcurrent},
		{"power", checkPower},
		{"restart", checkRestart},
		{"shutdown", checkShutdown},
		{"boot", checkBoot},
		{"boot-once", checkBootOnce},
		{"boot-unsupported", checkBootUnsupported},
		{"medium", checkMedium},
		{"invalid", checkInvalid},
		{"canceled", checkCanceled},
		{"denied", checkKind(func(s Subject) machineprovider.Machine { return s.Denied }, machineprovider.Unauthorized)},
		{"foreign", checkKind(func(s Subject) machineprovider.Machine { return s.Foreign }, machineprovider.Untrusted)},
		{"dead", checkKind(func(s Subject) machineprovider.Machine { return s.Dead }, machineprovider.Unreachable)},
		{"end", checkEnd},
	}
}

// wait polls Describe until condition(description) is true, and returns this description. After the
// time s.Settle it returns an error that begins with the name of the operation.
func (s Subject) wait(ctx context.Context, operation string, condition func(machineprovider.Description) bool) (machineprovider.Description, error) {
	limit := s.Settle
	if limit == 0 {
		limit = 2 * time.Minute
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		d, err := s.Machine.Describe(ctx)
		if err == nil && condition(d) {
			return d, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return d, fmt.Errorf("%s: not within %s: the state is %+v, error %v", operation, limit, d, err)
		}
	}
}

// power operates the power switch and waits until Describe returns the power state want.
func (s Subject) power(ctx context.Context, p machineprovider.Power, want machineprovider.State) error {
	if err := s.Machine.SetPower(ctx, p); err != nil {
		return fmt.Errorf("SetPower(%s): %w", p, err)
	}
	_, err := s.wait(ctx, fmt.Sprintf("SetPower(%s)", p), func(d machineprovider.Description) bool { return d.Power == want })
	return err
}

// checkError returns nil if err is a complete machineprovider.Error of the kind want and contains
// no password. Otherwise it returns an error that begins with operation, the description of the
// call.
func (s Subject) checkError(operation string, err error, want machineprovider.Kind) error {
	if err == nil {
		return fmt.Errorf("%s: succeeded, want an error of kind %s", operation, want)
	}
	var e *machineprovider.Error
	if !errors.As(err, &e) {
		return fmt.Errorf("%s: the error %q is no *machineprovider.Error", operation, err)
	}
	if e.Kind != want {
		return fmt.Errorf("%s: the error %q has kind %s, want %s", operation, err, e.Kind, want)
	}
	if e.Machine == "" || e.Operation == "" || e.Reason == "" || e.Remedy == "" {
		return fmt.Errorf("%s: the error %q lacks the machine, the operation, the reason or the remedy", operation, err)
	}
	for _, secret := range s.Secrets {
		if secret != "" && strings.Contains(err.Error(), secret) {
			return fmt.Errorf("%s: the error contains a password", operation)
		}
	}
	return nil
}

func checkDescribe(ctx context.Context, s Subject) error {
	d, err := s.Machine.Describe(ctx)
	if err != nil {
		return err
	}
	known := []machineprovider.Device{machineprovider.Disk, machineprovider.CD, machineprovider.PXE, machineprovider.HTTP}
	switch {
	case d.Serial == "" && d.UUID == "":
		return fmt.Errorf("%+v: neither serial number nor UUID: an operator cannot recognize the machine", d)
	case s.Serial != "" && d.Serial != s.Serial:
		return fmt.Errorf("the serial number is %q, want %q", d.Serial, s.Serial)
	case d.UUID != strings.ToLower(d.UUID):
		return fmt.Errorf("the UUID %q is not in lower case", d.UUID)
	case d.MemoryMiB < 0 || d.CPUs < 0:
		return fmt.Errorf("%+v: memory or processors are negative", d)
	case !slices.Contains([]machineprovider.State{machineprovider.StateOn, machineprovider.StateOff, machineprovider.StateChanging, machineprovider.StateUnknown}, d.Power):
		return fmt.Errorf("the power state is %q", d.Power)
	case d.Medium != "" && !d.Drive:
		return fmt.Errorf("%+v: a medium without a drive", d)
	}
	for i, device := range d.BootDevices {
		if !slices.Contains(known, device) || slices.Contains(d.BootDevices[:i], device) {
			return fmt.Errorf("boot devices %v: %q is unknown or repeated", d.BootDevices, device)
		}
	}
	return nil
}

func checkConcurrent(ctx context.Context, s Subject) error {
	const callers = 4
	var all sync.WaitGroup
	failed := make([]error, callers)
	for i := range callers {
		all.Go(func() { _, failed[i] = s.Machine.Describe(ctx) })
	}
	all.Wait()
	return errors.Join(failed...)
}

func checkPower(ctx context.Context, s Subject) error {
	for _, step := range []struct {
		power machineprovider.Power
		want  machineprovider.State
	}{
		{machineprovider.Off, machineprovider.StateOff},
		{machineprovider.Off, machineprovider.StateOff}, // already off: no effect
		{machineprovider.On, machineprovider.StateOn},
		{machineprovider.On, machineprovider.StateOn}, // already on: no effect
		{machineprovider.Off, machineprovider.StateOff},
	} {
		if err := s.power(ctx, step.power, step.want); err != nil {
			return err
		}
	}
	return nil
}

func checkRestart(ctx context.Context, s Subject) error {
	if err := s.power(ctx, machineprovider.Off, machineprovider.StateOff); err != nil {
		return err
	}
	if err := s.checkError("Restart of a machine that is off", s.Machine.SetPower(ctx, machineprovider.Restart), machineprovider.Conflict); err != nil {
		return err
	}
	if d, err := s.Machine.Describe(ctx); err != nil || d.Power != machineprovider.StateOff {
		return fmt.Errorf("after a Restart of a machine that is off: %s, %w", d.Power, err)
	}
	if err := s.power(ctx, machineprovider.On, machineprovider.StateOn); err != nil {
		return err
	}
	return s.power(ctx, machineprovider.Restart, machineprovider.StateOn)
}

func checkShutdown(ctx context.Context, s Subject) error {
	if s.Shutdown {
		if err := s.power(ctx, machineprovider.On, machineprovider.StateOn); err != nil {
			return err
		}
		return s.power(ctx, machineprovider.Shutdown, machineprovider.StateOff)
	}
	if err := s.power(ctx, machineprovider.Off, machineprovider.StateOff); err != nil {
		return err
	}
	return s.power(ctx, machineprovider.Shutdown, machineprovider.StateOff) // is off: no effect
}

// selected waits until Describe returns the boot selection b. It does not compare the URL, because
// a provider need not report the URL.
func (s Subject) selected(ctx context.Context, b machineprovider.Boot) error {
	_, err := s.wait(ctx, fmt.Sprintf("SetBoot(%+v)", b), func(d machineprovider.Description) bool {
		return d.Boot.Device == b.Device && (b.Device == "" || d.Boot.Once == b.Once)
	})
	return err
}

func checkBoot(ctx context.Context, s Subject) error {
	d, err := s.Machine.Describe(ctx)
	if err != nil {
		return err
	}
	for _, device := range d.BootDevices {
		for _, b := range []machineprovider.Boot{{Device: device, Once: true}, {Device: device}, {Device: device}, {}} {
			if err := s.Machine.SetBoot(ctx, b); err != nil {
				return fmt.Errorf("SetBoot(%+v): %w", b, err)
			}
			if err := s.selected(ctx, b); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkBootOnce selects a device for the next boot only, boots the machine, and checks that
// Describe then returns no selection.
func checkBootOnce(ctx context.Context, s Subject) error {
	d, err := s.Machine.Describe(ctx)
	if err != nil || len(d.BootDevices) == 0 {
		return err
	}
	if err := s.power(ctx, machineprovider.Off, machineprovider.StateOff); err != nil {
		return err
	}
	if err := s.Machine.SetBoot(ctx, machineprovider.Boot{Device: d.BootDevices[0], Once: true}); err != nil {
		return err
	}
	if err := s.power(ctx, machineprovider.On, machineprovider.StateOn); err != nil {
		return err
	}
	return s.selected(ctx, machineprovider.Boot{})
}

func checkBootUnsupported(ctx context.Context, s Subject) error {
	d, err := s.Machine.Describe(ctx)
	if err != nil {
		return err
	}
	devices := []machineprovider.Device{"floppy", machineprovider.Disk, machineprovider.CD, machineprovider.PXE, machineprovider.HTTP}
	for _, device := range devices {
		if slices.Contains(d.BootDevices, device) {
			continue
		}
		err := s.Machine.SetBoot(ctx, machineprovider.Boot{Device: device, Once: true})
		if err := s.checkError(fmt.Sprintf("SetBoot(%s), a device that the machine does not have", device), err, machineprovider.Unsupported); err != nil {
			return err
		}
	}
	return s.selected(ctx, d.Boot)
}

func checkMedium(ctx context.Context, s Subject) error {
	d, err := s.Machine.Describe(ctx)
	if err != nil {
		return err
	}
	if !d.Drive {
		for _, url := range []string{"https://example.com/a.iso", ""} {
			if err := s.checkError("InsertMedium without a drive", s.Machine.InsertMedium(ctx, url), machineprovider.Unsupported); err != nil {
				return err
			}
		}
		return nil
	}
	if s.Medium == "" {
		return errors.New("the machine has a CD drive: set Subject.Medium")
	}
	// Each call is made twice. The second call has no effect.
	for _, url := range []string{s.Medium, s.Medium, "", ""} {
		if err := s.Machine.InsertMedium(ctx, url); err != nil {
			return fmt.Errorf("InsertMedium(%q): %w", url, err)
		}
		if _, err := s.wait(ctx, fmt.Sprintf("InsertMedium(%q)", url), func(d machineprovider.Description) bool { return d.Medium == url }); err != nil {
			return err
		}
	}
	return nil
}

func checkInvalid(ctx context.Context, s Subject) error {
	return s.checkError(`SetPower("explode")`, s.Machine.SetPower(ctx, "explode"), machineprovider.Invalid)
}

// checkCanceled checks that a call with an ended context fails and has no effect.
func checkCanceled(ctx context.Context, s Subject) error {
	if err := s.power(ctx, machineprovider.Off, machineprovider.StateOff); err != nil {
		return err
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	err := s.Machine.SetPower(ended, machineprovider.On)
	if err := s.checkError("SetPower with an ended context", err, machineprovider.Unreachable); err != nil {
		return err
	}
	if !errors.Is(err, context.Canceled) {
		return fmt.Errorf("SetPower with an ended context: the error %q does not wrap context.Canceled", err)
	}
	d, err := s.Machine.Describe(ctx)
	if err != nil || d.Power != machineprovider.StateOff {
		return fmt.Errorf("after SetPower with an ended context: the machine is %s, %w", d.Power, err)
	}
	return nil
}

// checkKind returns the check that all calls of one of the clients Denied, Foreign and Dead fail
// with an error of the kind want. clientOf returns the client. The check passes if the client is
// nil.
func checkKind(clientOf func(Subject) machineprovider.Machine, want machineprovider.Kind) func(context.Context, Subject) error {
	return func(ctx context.Context, s Subject) error {
		client := clientOf(s)
		if client == nil {
			return nil
		}
		_, err := client.Describe(ctx)
		if err := s.checkError("Describe", err, want); err != nil {
			return err
		}
		return s.checkError("SetPower", client.SetPower(ctx, machineprovider.On), want)
	}
}

// checkEnd brings the machine into the state that the package comment describes: off, without a
// boot selection, and without a medium.
func checkEnd(ctx context.Context, s Subject) error {
	err := errors.Join(s.power(ctx, machineprovider.Off, machineprovider.StateOff), s.Machine.SetBoot(ctx, machineprovider.Boot{}))
	if d, failed := s.Machine.Describe(ctx); failed == nil && d.Drive {
		err = errors.Join(err, s.Machine.InsertMedium(ctx, ""))
	}
	return err
}
