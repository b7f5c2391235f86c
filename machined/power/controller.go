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

// Request is a request to shut down.
type Request struct {
	To          Mode
	GracePeriod time.Duration // for services and pods; 0 for that of defaultGracePeriod
	Wipe        []string      // labels of the volumes to wipe
	Why         string
}

const (
	// unmountTime is the additional time for unmounts and the like.
	unmountTime = 30 * time.Second
	// wipeTime is the additional time of a reset: STATE, 256 MiB, is overwritten and read back, and
	// of DATA the part that the disk does not discard.
	wipeTime = 2 * time.Minute
	// logReserve is the time for the last log lines after the services have stopped.
	logReserve = 10 * time.Second
)

// Deps is the environment of a Controller.
type Deps struct {
	// StopPods stops the pods, and the services that would restart them. The kubelet has PodsGrace
	// for it, as configured at the time of the call.
	StopPods  func(context.Context) error
	PodsGrace func() time.Duration
	// StopServices stops all services. CloseLogs ships and stores their last log lines.
	StopServices, CloseLogs func(context.Context) error
	// Wipe erases the volumes with these labels after all file systems are unmounted.
	Wipe func(ctx context.Context, labels []string) error
	// NotInstalled is why a machine that runs from memory has nothing to reset; empty if the system
	// is installed.
	NotInstalled string
	Away         AwayDeps
	// Enter sets the step that clients and the console show, with its reason.
	Enter   func(step, why string)
	Console func(line string)
}

// defaultGracePeriod returns the time for services and pods to stop, in which the kubelet has pods
// and 2 s more: of the whole time, 45 % are for pods (Plan), and 2/3 of them for the kubelet
// (machined/pods).
func defaultGracePeriod(pods time.Duration) time.Duration {
	return (pods+2*time.Second)*100/45*3/2 - unmountTime
}

// Controller shuts the machine down once.
type Controller struct {
	deps    Deps
	request atomic.Pointer[Request] // nil while the machine runs
	running context.Context
	cancel  context.CancelCauseFunc
	// feeding is canceled as the last step: the watchdog is not fed any more.
	feeding     context.Context
	stopFeeding context.CancelFunc
	rescan      cell.Signal // wakes the reader of power buttons: an input device was added
	// perform performs a shutdown and does not return.
	perform func(Request)
}

// NewController returns the controller of a machine that runs.
func NewController(d Deps) *Controller {
	c := &Controller{deps: d, rescan: cell.NewSignal()}
	c.perform = c.shutDown
	c.feeding, c.stopFeeding = context.WithCancel(context.Background())
	c.running, c.cancel = context.WithCancelCause(context.Background())
	return c
}

// Running is canceled at the start of a shutdown.
func (c *Controller) Running() context.Context { return c.running }

// Feeding is canceled as the last step of a shutdown: the watchdog is not fed any more.
func (c *Controller) Feeding() context.Context { return c.feeding }

// StopPods stops the pods without a shutdown.
func (c *Controller) StopPods(ctx context.Context) error { return c.deps.StopPods(ctx) }

// WatchButtons shuts the machine down when a power button is pressed.
func (c *Controller) WatchButtons(ctx context.Context) {
	Buttons(ctx, "/dev/input", c.rescan, func(device string) {
		_ = c.Shutdown(Request{To: PowerOff, Why: "power button (" + device + ")"})
	})
}

// InputAdded reports that an input device was added.
func (c *Controller) InputAdded() {
	c.rescan.Wake()
}

// Stopping reports whether a shutdown was requested: no service is started any more.
func (c *Controller) Stopping() bool { return c.request.Load() != nil }

// Check returns a status with the reason of the shutdown, or nil.
func (c *Controller) Check() error {
	if r := c.request.Load(); r != nil {
		return status.Errorf(codes.FailedPrecondition, "the machine is already shutting down (%s: %s); call again after it has booted", r.To, r.Why)
	}
	return nil
}

// Shutdown starts the shutdown and returns at once, so that the caller gets an answer. Only the
// first request is performed; a different request is an error.
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

// Perform shuts the machine down and does not return. If another request was first, Perform waits
// for the end of that shutdown.
func (c *Controller) Perform(r Request) {
	if c.request.CompareAndSwap(nil, &r) {
		c.perform(r)
	}
	c.deps.Console(fmt.Sprintf("%s: %s: not performed: %s", r.To, r.Why, status.Convert(c.Check()).Message()))
	select {}
}

// shutDown performs the shutdown and does not return. Kubernetes' own processes stop before the
// pods, so that they do not restart stopped pods.
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
		// their last log lines are still shipped and stored
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
		c.deps.Console(err.Error()) // the watchdog is not fed any more and resets the machine
	}
	select {}
}

// withReserve returns a context that ends earlier than ctx by reserve, to leave time for the next
// steps, unless that exceeds half of the remaining time.
func withReserve(ctx context.Context, reserve time.Duration) (context.Context, context.CancelFunc) {
	end, ok := ctx.Deadline()
	if !ok || time.Until(end) <= 2*reserve {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, end.Add(-reserve))
}
