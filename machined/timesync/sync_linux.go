package timesync

import (
	"context"
	"errors"
	"fmt"
	"net"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/beevik/ntp"

	"github.com/orlop-os/orlop/pkg/backoff"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/panics"
)

// Status is the published status of the clock.
type Status struct {
	Servers []string `json:"servers"` // configured servers
	// the last round succeeded, or fewer than three rounds have failed since
	Synced  bool   `json:"synced"`
	Server  string `json:"server,omitempty"`  // the last selected server
	Stratum uint8  `json:"stratum,omitempty"` // its distance from a reference clock
	// more than half of the answers, from at least two servers, agreed with it
	Quorum bool `json:"quorum"`
	// clock offset in the last successful round, ns
	Offset   time.Duration `json:"offset"`
	LastSync time.Time     `json:"lastSync,omitzero"` // time of that round
	Problem  string        `json:"problem,omitempty"` // why the last round failed
}

// Deps are the dependencies of Run.
type Deps struct {
	// input: addresses or names, with a port if it is not 123, or names of PTP clocks after
	// ClockPrefix; empty: no requests
	Servers *cell.Cell[[]string]
	PTP     PTPClocks          // SystemPTP on a machine
	Status  *cell.Cell[Status] // output
	Clock   Clock              // SystemClock on a machine
	Floor   *Floor             // the clock is never set before it
	Log     func(line string)  // called for steps, and once for each problem; must not block
}

// queryTimeout is the timeout of a request.
const queryTimeout = 3 * time.Second

// maxServers is the maximum number of servers in a round.
const maxServers = 8

// Run synchronizes the clock until ctx is done, and returns its error. No component waits for it.
func Run(ctx context.Context, d Deps) error {
	watch := d.Servers.Watch()
	var known synced
	servers, _, err := watch.Next(ctx)
	for err == nil {
		// A round ends with its list, so a silent server does not delay the next list.
		round, cancel := context.WithCancel(ctx)
		asked := slices.Clone(servers[:min(len(servers), maxServers)])
		var wg sync.WaitGroup
		wg.Go(func() {
			defer cancel()
			servers, err = otherThan(ctx, watch, servers)
		})
		d.rounds(round, asked, &known)
		wg.Wait()
	}
	return err
}

// otherThan waits for a different list of servers.
func otherThan(ctx context.Context, watch *cell.Watcher[[]string], servers []string) ([]string, error) {
	for {
		next, _, err := watch.Next(ctx)
		if err != nil || !slices.Equal(next, servers) {
			return next, err
		}
	}
}

// synced is the time of the last successful round, with its monotonic reading; zero: none since
// boot. A new list of servers does not reset it, so a DHCP server cannot make a new server set the
// clock.
type synced struct{ last time.Time }

// rounds uses one list of servers until ctx is done.
func (d Deps) rounds(ctx context.Context, servers []string, known *synced) {
	st := Status{Servers: servers}
	d.publish(st)
	var poll time.Duration
	failures := 0
	for len(servers) > 0 {
		dec, err := d.round(ctx, servers, known)
		if ctx.Err() != nil {
			return
		}
		next := time.Duration(0)
		if err != nil {
			failures++
			d.Floor.Failed()
			next = retries.Delay(failures)
			if err.Error() != st.Problem {
				d.Log("time: " + err.Error())
			}
			st.Problem, st.Synced = err.Error(), st.Synced && failures < 3
		} else {
			failures = 0
			poll = nextPoll(poll, dec.Move)
			next = poll
			st = d.status(servers, dec, st)
		}
		d.publish(st)
		if backoff.Sleep(ctx, next) != nil {
			return
		}
	}
	<-ctx.Done()
}

func (d Deps) publish(st Status) {
	if old, _ := d.Status.Get(); !reflect.DeepEqual(old, st) {
		d.Status.Set(st)
	}
}

// status returns the status after a successful round.
func (d Deps) status(servers []string, dec Decision, before Status) Status {
	st := Status{Servers: servers, Synced: true, Server: dec.Sample.Server, Stratum: dec.Sample.Stratum,
		Quorum: dec.Quorum, Offset: dec.Sample.Offset, LastSync: d.Clock.Now().Round(0)}
	if dec.Limited() && dec.Sample.Offset.Abs() > StepOver {
		st.Synced, st.LastSync = false, before.LastSync
		st.Problem = fmt.Sprintf("time server %s: reports an offset of %v; the clock follows slowly, because %v",
			dec.Sample.Server, dec.Sample.Offset.Round(time.Second), ErrOneServer)
		if before.Synced || before.Problem == "" {
			d.Log("time: " + st.Problem)
		}
	}
	return st
}

// round queries every server once and adjusts the clock.
func (d Deps) round(ctx context.Context, servers []string, known *synced) (Decision, error) {
	samples, asked := d.queryAll(ctx, servers)
	if err := ctx.Err(); err != nil {
		return Decision{}, err
	}
	began := time.Now() // the local time, because only its monotonic reading is used
	view := View{Now: d.Clock.Now(), Floor: d.Floor.Now(began), Synced: !known.last.IsZero()}
	if view.Synced {
		view.Since = began.Sub(known.last)
	}
	dec, err := Decide(samples, view)
	if err != nil {
		if errors.Is(err, ErrNoAnswer) {
			err = fmt.Errorf("%w: %w", err, asked)
		}
		return Decision{}, err
	}
	if dec.Move == Step {
		err = d.Clock.Step(dec.Offset)
	} else {
		err = d.Clock.Slew(dec.Offset)
	}
	if err != nil {
		return Decision{}, err
	}
	if dec.Move == Step {
		d.Log(fmt.Sprintf("time: clock stepped by %v (server %s)", dec.Offset.Round(time.Millisecond), dec.Sample.Server))
	}
	known.last = began
	d.Floor.Round(dec.Quorum, d.Clock.Now())
	return dec, nil
}

// query queries a server. The answer may come from an attacker (RFC 5905 without authentication),
// and must not end this process: in beevik/ntp 1.6.0 an answer with a precision or poll interval of
// 2^-128 s causes a panic (toInterval shifts by -128).
func query(server string, dial func(_, to string) (net.Conn, error)) (s Sample, err error) {
	defer func() {
		if r := recover(); r != nil {
			s, err = Sample{}, fmt.Errorf("cannot parse its answer: %v", r)
		}
	}()
	var address string
	noting := func(local, to string) (net.Conn, error) {
		c, err := dial(local, to)
		if err == nil && c.RemoteAddr() != nil {
			address = c.RemoteAddr().String()
		}
		return c, err
	}
	r, err := ntp.QueryWithOptions(server, ntp.QueryOptions{Timeout: queryTimeout, Dialer: noting})
	if err == nil {
		err = valid(r)
	}
	if err != nil {
		return Sample{}, err
	}
	return Sample{Server: server, Address: address, Offset: r.ClockOffset, Distance: r.RootDistance, Stratum: r.Stratum}, nil
}

// valid returns why an answer is unusable, or nil. The library regards every answer with stratum 0
// as a kiss of death, but unsynchronized servers also send stratum 0 (for example chrony); the kiss
// code distinguishes them (RFC 5905 section 7.4).
func valid(r *ntp.Response) error {
	switch {
	case r.Stratum == 0 && (r.KissCode == "DENY" || r.KissCode == "RSTR"):
		return fmt.Errorf("refuses to serve this machine (kiss of death %s); allow it there, or configure another server", r.KissCode)
	case r.Stratum == 0 && r.KissCode == "RATE":
		return errors.New("rejects too many requests (kiss of death RATE); raise its limit for this machine, or configure another server")
	case r.Stratum == 0 || r.Stratum >= 16 || r.Leap == ntp.LeapNotInSync:
		return errUnsynced(r.Stratum, r.Leap == ntp.LeapNotInSync)
	}
	return r.Validate()
}

// queryAll queries all servers concurrently.
func (d Deps) queryAll(ctx context.Context, servers []string) ([]Sample, error) {
	answers := make([]*Sample, len(servers))
	failed := make([]error, len(servers))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	dial := func(_, to string) (net.Conn, error) {
		c, err := (&net.Dialer{Timeout: queryTimeout}).DialContext(ctx, "udp", to)
		if err == nil {
			context.AfterFunc(ctx, func() { c.Close() }) // a second close is harmless
		}
		return c, err
	}
	var wg sync.WaitGroup
	for i, server := range servers {
		wg.Go(func() {
			failed[i] = panics.Do("time server "+server, func() error {
				s, err := d.ask(server, func() (Sample, error) { return query(server, dial) })
				if err == nil {
					answers[i] = &s
				}
				return err
			})
		})
	}
	wg.Wait()
	var out []Sample
	for _, a := range answers {
		if a != nil {
			out = append(out, *a)
		}
	}
	return out, errors.Join(failed...)
}
