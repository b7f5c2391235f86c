package debug

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/supervise"
)

// Deps is the environment of Tools.
type Deps struct {
	// Stopping is closed when the machine shuts down; running reads end then.
	Stopping <-chan struct{}
	// Services returns the services of the machine, for their profiles.
	Services func() []supervise.Service
	// Run runs a command and returns its standard output.
	Run func(ctx context.Context, c supervise.Command) ([]byte, error)
	// LoadModules loads kernel modules with their dependencies.
	LoadModules func(names ...string) error
	// Started returns the time at which the kernel started.
	Started func() (time.Time, error)
	// Event adds an event to the machine's events.
	Event func(source, kind, message string)
	// Console shows a line on the consoles and adds it to the events.
	Console func(line string)
}

// Tools are the diagnostic reads of a machine. All methods are safe for concurrent use.
type Tools struct {
	deps      Deps
	captures  chan struct{} // one element per running capture
	fileReads chan struct{} // one element per file being read
	nftReads  chan struct{} // one element while the nftables rules are read
	profileMu sync.Mutex    // at most one profile at a time
	// stores the kernel log; nil until StartKernelLog
	kernelLog atomic.Pointer[logWriter]
}

// New returns the tools of a machine.
func New(d Deps) *Tools {
	return &Tools{deps: d, captures: make(chan struct{}, maxCaptures), fileReads: make(chan struct{}, maxFileReads), nftReads: make(chan struct{}, 1)}
}

// errStopping is the status of a read that ends at shutdown.
func errStopping() error { return status.Error(codes.Unavailable, "the machine is shutting down") }
