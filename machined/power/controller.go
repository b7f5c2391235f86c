package power

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/cell"
)

// Request is a request to shut the machine down.
type Request struct {
	To          Mode
	GracePeriod time.Duration // time for services and pods to stop; 0 for defaultGracePeriod
	Wipe        []string      // labels of the volumes to wipe
	Why         string
}

const (
	// unmountTime is the time after the grace period for unmounts and the other last steps.
	unmountTime = 30 * time.Second
	// wipeTime is the additional time of a reset. A reset overwrites STATE (256 MiB) and reads it
	// back. On DATA, it overwrites only the part that the disk cannot discard.
	wipeTime = 2 * time.Minute
	// logReserve is the part of the grace period in which the last log lines are shipped, after the
	// services have stopped.
	logReserve = 10 * time.Second
)

// Deps is the environment of a Controller.
type Deps struct {
	// StopPods stops the pods, and the services that would restart pods. PodsGrace returns the time
	// that the kubelet has to stop pods. It is read at the start of a shutdown, because the
	// configuration can change.
	StopPods  func(context.Context) error
	PodsGrace func() time.Duration
	// StopServices stops all services. CloseLogs then ships and stores their last log lines.
	StopServices, CloseLogs func(context.Context) error
	// Wipe erases the volumes with these labels after all file systems are unmounted.
	Wipe func(ctx context.Context, labels []string) error
	// NotInstalled says why the machine has nothing to reset: the system runs from memory. It is
	// empty if the system is installed.
	NotInstalled string
	Away         AwayDeps
	// Enter publishes the step that clients and the console show, with the reason of the shutdown.
	Enter   func(step, reason string)
	Console func(line string)
}

// defaultGracePeriod returns the grace period with which the kubelet gets podsGrace plus 2 s to
// stop the pods. The total time of a shutdown is the grace period plus unmountTime. 45 % of the
// total time are for stopping pods (Plan), and the kubelet gets 2/3 of these 45 % (machined/pods).
func defaultGracePeriod(podsGrace time.Duration) time.Duration {
	return (podsGrace+2*time.Second)*100/45*3/2 - unmountTime
}

// Controller shuts the machine down. It performs one request only.
type Controller struct {
	deps    Deps
	request atomic.Pointer[Request] // nil while the machine runs
	running context.Context
	cancel  context.CancelCauseFunc
	// feeding is canceled as the last step, which stops the feeding of the watchdog.
	feeding     context.Context
	stopFeeding context.CancelFunc
	rescan      cell.Signal // wakes WatchButtons after an input device was added
	// perform performs a shutdown and does not return.
	perform func(Request)
}

// NewController returns a Controller. The machine runs until the first request.
func NewController(d Deps) *Controller {
	c := &Controller{deps: d, rescan: cell.NewSignal()}
	c.perform = c.shutDown
	c.feeding, c.stopFeeding = context.WithCancel(context.Background())
	c.running, c.cancel = context.WithCancelCause(context.Background())
	return c
}

// Running returns a context that is canceled at the start of a shutdown.
func (c *Controller) Running() context.Context { return c.running }

// Feeding returns a context that is canceled as the last step of a shutdown. The watchdog is fed
// until then.
func (c *Controller) Feeding() context.Context { return c.feeding }

// StopPods stops the pods without a shutdown.
func (c *Controller) StopPods(ctx context.Context) error { return c.deps.StopPods(ctx) }

// WatchButtons shuts the machine down when a power button is pressed.
func (c *Controller) WatchButtons(ctx context.Context) {
	Buttons(ctx, "/dev/input", c.rescan, func(device string) {
		_ = c.Shutdown(Request{To: PowerOff, Why: "power button (" + device + ")"})
	})
}

// InputAdded makes WatchButtons scan for power buttons, after an input device was added.
func (c *Controller) InputAdded() {
	c.rescan.Wake()
}

// Stopping reports whether a shutdown was requested. If so, machined starts no service any more.
func (c *Controller) Stopping() bool { return c.request.Load() != nil }

// Check returns nil if no shutdown was requested. Else it returns a gRPC status with the reason of
// the shutdown.
func (c *Controller) Check() error {
	if r := c.request.Load(); r != nil {
		return status.Errorf(codes.FailedPrecondition, "the machine is already shutting down (%s: %s); call again after it has booted", r.To, r.Why)
	}
	return nil
}

// Shutdown starts the shutdown in a goroutine and returns at once, so the caller of the API still
// gets its response. Only the first request is performed. For a later request, Shutdown returns an
// error if the request has another mode or wipes volumes, and nil otherwise.
func (c *Controller) Shutdown(r Request) error {
	if !c.request.CompareAndSwap(nil, &r) {
		if first := c.request.Load(); len(r.Wipe) > 0 || r.To != first.To {
			return c.Check()
		}
		return nil
	}
	go c.perform(r)
	return nil
}

// Perform shuts the machine down and does not return. If another request was first, Perform blocks
// until that request has shut the machine down.
func (c *Controller) Perform(r Request) {
	if c.request.CompareAndSwap(nil, &r) {
		c.perform(r)
	}
	c.deps.Console(fmt.Sprintf("%s: %s: not performed: %s", r.To, r.Why, status.Convert(c.Check()).Message()))
	select {}
}

// shutDown performs the shutdown and does not return. Processes of Kubernetes stop before the pods,
// because they would restart pods.
func (c *Controller) shutDown(r Request) {
	if r.GracePeriod == 0 {
		r.GracePeriod = defaultGracePeriod(c.deps.PodsGrace())
	}
	c.cancel(errors.New("the machine is shutting down"))
	c.deps.Enter("going down", r.Why)
	c.deps.Console(fmt.Sprintf("%s: %s", r.To, r.Why))
	parts := Config{
		Last: c.stopFeeding,
		Pods: c.deps.StopPods,
		// The services get logReserve less, which leaves time to ship and store their last log
		// lines.
		Services: func(ctx context.Context) error {
			services, cancel := withReserve(ctx, logReserve)
			defer cancel()
			return errors.Join(c.deps.StopServices(services), c.deps.CloseLogs(ctx))
		},
		Report: func(message string, err error) {
			if err != nil {
				message += ": " + err.Error()
			}
			c.deps.Console("going down: " + message)
		},
	}
	total := r.GracePeriod + unmountTime
	if len(r.Wipe) > 0 {
		total += wipeTime
		parts.Wipe = func(ctx context.Context) error { return c.deps.Wipe(ctx, r.Wipe) }
	}
	if err := New(parts).Shutdown(r.To, total); err != nil {
		c.deps.Console(err.Error()) // The watchdog is no longer fed, and resets the machine.
	}
	select {}
}

// withReserve returns a context with a deadline that is earlier than that of ctx, by reserve. The
// caller needs this reserve for its next steps. If at most twice the reserve remains, or ctx has no
// deadline, the deadline does not change.
func withReserve(ctx context.Context, reserve time.Duration) (context.Context, context.CancelFunc) {
	end, ok := ctx.Deadline()
	if !ok || time.Until(end) <= 2*reserve {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, end.Add(-reserve))
}
