package lldp

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/orlop-os/orlop/pkg/backoff"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/panics"
)

const (
	// minInterval is the shortest time between two frames that are read from a link. A flood of
	// frames thus wakes PID 1 at most ten times a second.
	minInterval = 100 * time.Millisecond
	// announceInterval and announceTTL are the recommended values (IEEE 802.1AB-2016, 9.2.5).
	announceInterval = 30 * time.Second
	announceTTL      = 120 * time.Second
	// decideInterval is the shortest time between two decisions after frames. A foreign host can
	// thus change the labels, and their file on STATE, at most once a second.
	decideInterval = time.Second
)

// retry is the delay before a socket opens again.
var retry = backoff.Backoff{Min: time.Second, Max: time.Minute}

// restarter restarts the work on a link after a panic, because the frame of a foreign host can
// cause a panic.
var restarter = panics.Restarter{MinBackoff: time.Second, MaxBackoff: time.Minute}

// Link is a physical Ethernet link that is up.
type Link struct {
	Name  string
	Index int
	MAC   net.HardwareAddr // 6 bytes
}

func (l Link) equal(o Link) bool { return reflect.DeepEqual(l, o) }

// Config has the settings from the configuration of the machine.
type Config struct {
	Labels   []config.LLDPLabel // Machine.spec.node.lldpLabels
	Announce string             // the name to announce; empty: no announcements
}

// Deps are the dependencies of a Controller.
type Deps struct {
	Links  cell.View[[]Link]
	Config cell.View[Config]
	// File returns the path of the stored labels; empty while STATE is not usable.
	File func() string
	// Listen opens the socket of a link. On a machine, it is the function Listen of this package.
	Listen func(Link) (net.PacketConn, error)
	Event  func(kind, message string) // must not block
}

// Controller receives and announces on all links.
type Controller struct {
	deps      Deps
	neighbors *cell.Cell[[]Neighbor]
	labels    *cell.Cell[map[string]string]

	mu sync.Mutex // serializes changes of neighbors

	// used by Load, and after that only by Run
	last     map[string]string // the last labels, also those of rules that match no neighbor now
	loaded   bool              // last contains the stored labels
	reported []string          // problems that an event has reported
}

// New returns a controller, which does nothing before Run.
func New(d Deps) *Controller {
	return &Controller{deps: d, neighbors: cell.New([]Neighbor{}), labels: cell.New(map[string]string{}), last: map[string]string{}}
}

// Neighbors is the list of the neighbors, sorted by link.
func (c *Controller) Neighbors() *cell.Cell[[]Neighbor] { return c.neighbors }

// Labels holds the labels of Machine.spec.node.lldpLabels with their values. The cell changes only
// if a label or its value changes.
func (c *Controller) Labels() *cell.Cell[map[string]string] { return c.labels }

// Load reads the stored labels, so that Labels has them before the first frame. Call it before Run.
func (c *Controller) Load() {
	cfg, _ := c.deps.Config.Get()
	c.decide(cfg, nil)
}

// Run receives until ctx is done. It starts and stops a goroutine per link, removes expired
// neighbors, and decides about the labels.
func (c *Controller) Run(ctx context.Context) {
	links, configs, neighbors := c.deps.Links.Watch(), c.deps.Config.Watch(), c.neighbors.Watch()
	type running struct {
		link Link
		stop func()
	}
	all := map[string]running{}
	defer func() {
		for _, r := range all {
			r.stop()
		}
	}()
	for {
		now := links.Current()
		for name, r := range all {
			if !slices.ContainsFunc(now, r.link.equal) {
				r.stop()
				delete(all, name)
			}
		}
		expiry := c.removeNeighbors(func(link string) bool { _, there := all[link]; return !there })
		for _, l := range now {
			if _, there := all[l.Name]; !there {
				all[l.Name] = running{l, c.start(ctx, l)}
			}
		}
		c.decide(configs.Current(), neighbors.Current())
		select {
		case <-links.Changed():
		case <-configs.Changed():
		case <-neighbors.Changed():
			if backoff.Sleep(ctx, decideInterval) != nil {
				return
			}
		case <-expiry:
		case <-ctx.Done():
			return
		}
	}
}

// start starts the work on a link. The returned function stops the work and waits for its end.
func (c *Controller) start(ctx context.Context, l Link) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	panics.Go("LLDP on a link", func() {
		defer close(done)
		restarter.Run(ctx, "LLDP on "+l.Name, func(ctx context.Context) { c.serve(ctx, l) })
	})
	return func() { cancel(); <-done }
}

// serve opens the socket of a link, and receives and announces on it; after a failure it opens the
// socket again.
func (c *Controller) serve(ctx context.Context, l Link) {
	var reported string
	for failures := 1; ctx.Err() == nil; failures++ {
		began := time.Now()
		conn, err := c.deps.Listen(l)
		if err == nil {
			err = c.exchange(ctx, l, conn)
		}
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > retry.Max {
			failures = 1
		}
		if text := err.Error(); text != reported {
			reported = text
			c.deps.Event("failure", text)
		}
		if backoff.Sleep(ctx, retry.Delay(failures)) != nil {
			return
		}
	}
}

// exchange receives and announces on a socket until ctx is done or the socket fails. When it
// returns or panics, its goroutine has ended and the socket is closed.
func (c *Controller) exchange(ctx context.Context, l Link, conn net.PacketConn) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer conn.Close()
	defer cancel()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	wg.Go(panics.Guarded("LLDP announcements", func() { c.announce(ctx, l, conn) }))
	return c.receive(ctx, l, conn)
}

// receive reads frames. The pause after a frame, together with the small buffer of the socket,
// bounds the work that a flood of frames causes.
func (c *Controller) receive(ctx context.Context, l Link, conn net.PacketConn) error {
	buf := make([]byte, maxFrame)
	for {
		n, _, err := conn.ReadFrom(buf)
		if err != nil && !isDown(err) {
			return fmt.Errorf("LLDP: link %s: cannot receive: %w", l.Name, err)
		}
		if err == nil {
			var neighbor Neighbor
			err := panics.Do("LLDP on a link", func() (err error) { neighbor, err = decode(buf[:n]); return err })
			if err == nil { // no event about a damaged frame: a flood is possible
				neighbor.Link = l.Name
				c.change(func(all []Neighbor) []Neighbor { return withNeighbor(all, neighbor, time.Now()) })
			}
		}
		if err := backoff.Sleep(ctx, minInterval); err != nil {
			return err
		}
	}
}

// change changes and publishes the neighbors.
func (c *Controller) change(f func([]Neighbor) []Neighbor) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before, _ := c.neighbors.Get()
	now := append([]Neighbor{}, f(before)...)
	if !reflect.DeepEqual(before, now) {
		c.neighbors.Set(now)
	}
}

// removeNeighbors removes the neighbors that have expired, and the neighbors on a link for which
// gone returns true. The channel receives when the next of the remaining neighbors expires; nil
// without a neighbor.
func (c *Controller) removeNeighbors(gone func(link string) bool) (expiry <-chan time.Time) {
	var next time.Duration
	c.change(func(all []Neighbor) []Neighbor {
		all = slices.DeleteFunc(slices.Clone(all), func(n Neighbor) bool { return gone(n.Link) })
		all, next = expire(all, time.Now())
		return all
	})
	if next == 0 {
		return nil
	}
	return time.After(next)
}

// decide computes, publishes and stores the labels.
func (c *Controller) decide(cfg Config, neighbors []Neighbor) {
	file := c.deps.File()
	if file != "" && !c.loaded {
		c.loaded = true
		stored, err := load(file)
		if err != nil {
			c.deps.Event("failure", err.Error())
		}
		for key, value := range stored {
			if c.last[key] == "" {
				c.last[key] = value
			}
		}
	}
	labels, problems := Labels(cfg.Labels, neighbors, c.last)
	if !slices.Equal(problems, c.reported) {
		for _, p := range problems {
			if !slices.Contains(c.reported, p) {
				c.deps.Event("failure", "LLDP: "+p)
			}
		}
		c.reported = problems
	}
	if old, _ := c.labels.Get(); maps.Equal(old, labels) {
		return
	}
	// At boot, before the configuration is known, there are no rules. The stored values must not be
	// overwritten then.
	if len(cfg.Labels) > 0 {
		c.last = maps.Clone(labels)
		if err := save(file, labels); err != nil {
			c.deps.Event("failure", err.Error())
		}
	}
	c.labels.Set(labels)
}

// announce sends announcements while the configuration has a name for them. A TTL of zero withdraws
// a name that the configuration no longer has.
func (c *Controller) announce(ctx context.Context, l Link, conn net.PacketConn) {
	watch := c.deps.Config.Watch()
	for announced := ""; ; {
		name := watch.Current().Announce
		if announced != "" && name != announced {
			c.send(l, conn, announced, 0)
		}
		var again <-chan time.Time
		if name != "" {
			c.send(l, conn, name, announceTTL)
			again = time.After(announceInterval)
		}
		announced = name
		select {
		case <-again:
		case <-watch.Changed():
		case <-ctx.Done():
			return
		}
	}
}

// send sends an announcement. On a link that is down, the announcement is lost without an error.
func (c *Controller) send(l Link, conn net.PacketConn, name string, ttl time.Duration) {
	_, err := conn.WriteTo(encode(Announcement{Name: name, Link: l.Name, MAC: l.MAC, TTL: ttl}), destination())
	if err != nil && !isDown(err) && !errors.Is(err, net.ErrClosed) {
		c.deps.Event("failure", fmt.Sprintf("LLDP: link %s: cannot announce: %v", l.Name, err))
	}
}
