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

	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/panics"
)

// Status is what the machine shows of its time.
type Status struct {
	Servers []string `json:"servers"` // that are asked
	// the last round succeeded, or it is not older than three
	Synced  bool   `json:"synced"`
	Server  string `json:"server,omitempty"`  // that was believed last
	Stratum uint8  `json:"stratum,omitempty"` // its distance from a reference clock
	// more than half of the answers, of two servers at least, agreed with it
	Quorum bool `json:"quorum"`
	// how far off the clock was in the last round that succeeded, ns
	Offset   time.Duration `json:"offset"`
	LastSync time.Time     `json:"lastSync,omitzero"` // when that was
	Problem  string        `json:"problem,omitempty"` // why the last round failed
}

// Deps is what Run works with.
type Deps struct {
	// read: addresses or names, with a port if it is not 123; empty: nobody is asked
	Servers *cell.Cell[[]string]
	Status  *cell.Cell[Status] // written
	Clock   Clock              // SystemClock on a machine
	Past    *Floor             // what has passed for certain; the clock is never set before it
	Log     func(line string)  // told about steps, and about problems once each; must not block
}

// askTimeout is how long a server may take to answer.
const askTimeout = 3 * time.Second

// maxServers is how many servers are asked in a round.
const maxServers = 8

// Run asks the servers until ctx is done, whose error it returns. It never holds anything up:
// nothing waits for it.
func Run(ctx context.Context, d Deps) error {
	watch := d.Servers.Watch()
	var known synced
	servers, _, err := watch.Next(ctx)
	for err == nil {
		// A round ends with its list: a server that does not answer does not hold up the next list.
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

// otherThan waits for a list of servers that is another one.
func otherThan(ctx context.Context, watch *cell.Watcher[[]string], servers []string) ([]string, error) {
	for {
		next, _, err := watch.Next(ctx)
		if err != nil || !slices.Equal(next, servers) {
			return next, err
		}
	}
}

// synced is when a round succeeded last, with its monotonic reading; zero: none has since boot.
// Another list of servers does not change it: a DHCP server that names others cannot have the
// clock set.
type synced struct{ last time.Time }

// rounds asks one list of servers until ctx is done.
func (d Deps) rounds(ctx context.Context, servers []string, known *synced) {
	st := Status{Servers: servers}
	d.publish(st)
	var poll, wait time.Duration
	failures := 0
	for len(servers) > 0 {
		dec, err := d.round(ctx, servers, known)
		if ctx.Err() != nil {
			return
		}
		next := time.Duration(0)
		if err != nil {
			failures++
			d.Past.Failed()
			wait = nextWait(wait)
			next = wait
			if err.Error() != st.Problem {
				d.Log("time: " + err.Error())
			}
			st.Problem, st.Synced = err.Error(), st.Synced && failures < 3
		} else {
			failures, wait = 0, 0
			poll = nextPoll(poll, dec.Move)
			next = poll
			st = d.status(servers, dec, st)
		}
		d.publish(st)
		timer := time.NewTimer(next)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
	<-ctx.Done()
}

func (d Deps) publish(st Status) {
	if old, _ := d.Status.Get(); !reflect.DeepEqual(old, st) {
		d.Status.Set(st)
	}
}

// status is what is shown after a round that succeeded.
func (d Deps) status(servers []string, dec Decision, before Status) Status {
	st := Status{Servers: servers, Synced: true, Server: dec.Sample.Server, Stratum: dec.Sample.Stratum,
		Quorum: dec.Quorum, Offset: dec.Sample.Offset, LastSync: d.Clock.Now().Round(0)}
	if dec.Rejected() && dec.Sample.Offset.Abs() > StepOver {
		st.Synced, st.LastSync = false, before.LastSync
		st.Problem = fmt.Sprintf("time server %s: says that the clock is %v off; it is followed slowly, because %v",
			dec.Sample.Server, dec.Sample.Offset.Round(time.Second), ErrOneServer)
		if before.Synced || before.Problem == "" {
			d.Log("time: " + st.Problem)
		}
	}
	return st
}

// round asks every server once and moves the clock.
func (d Deps) round(ctx context.Context, servers []string, known *synced) (Decision, error) {
	samples, asked := d.ask(ctx, servers)
	if err := ctx.Err(); err != nil {
		return Decision{}, err
	}
	began := time.Now() // not the clock that is moved: what counts is its monotonic reading
	view := View{Now: d.Clock.Now(), Floor: d.Past.Now(began), Synced: !known.last.IsZero()}
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
		d.Log(fmt.Sprintf("time: clock stepped by %v, as %s says", dec.Offset.Round(time.Millisecond), dec.Sample.Server))
	}
	known.last = began
	d.Past.Round(dec.Quorum, d.Clock.Now())
	return dec, nil
}

// query asks one server. What comes back may come from anybody (RFC 5905 without authentication),
// and must not end the process that asks: in beevik/ntp 1.6.0 an answer whose precision or poll
// interval is 2^-128 s is a panic (toInterval shifts by -128).
func query(server string, dial func(_, to string) (net.Conn, error)) (s Sample, err error) {
	defer func() {
		if r := recover(); r != nil {
			s, err = Sample{}, fmt.Errorf("its answer cannot be read: %v", r)
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
	r, err := ntp.QueryWithOptions(server, ntp.QueryOptions{Timeout: askTimeout, Dialer: noting})
	if err == nil {
		err = valid(r)
	}
	if err != nil {
		return Sample{}, err
	}
	return Sample{Server: server, Address: address, Offset: r.ClockOffset, Distance: r.RootDistance, Stratum: r.Stratum}, nil
}

// valid returns why an answer is of no use, or nil. The library calls every answer with stratum 0
// a kiss of death, although servers that are not synchronised send it too (chrony does); the kiss
// code tells them apart (RFC 5905 section 7.4).
func valid(r *ntp.Response) error {
	switch {
	case r.Stratum == 0 && (r.KissCode == "DENY" || r.KissCode == "RSTR"):
		return fmt.Errorf("refuses to serve this machine (kiss of death %s); allow it there, or name another server", r.KissCode)
	case r.Stratum == 0 && r.KissCode == "RATE":
		return errors.New("was asked too often (kiss of death RATE); allow this machine more there, or name another server")
	case r.Stratum == 0 || r.Stratum >= 16 || r.Leap == ntp.LeapNotInSync:
		return errUnsynced(r.Stratum, r.Leap == ntp.LeapNotInSync)
	}
	return r.Validate()
}

// ask asks all servers at the same time.
func (d Deps) ask(ctx context.Context, servers []string) ([]Sample, error) {
	answers := make([]*Sample, len(servers))
	failed := make([]error, len(servers))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	dial := func(_, to string) (net.Conn, error) {
		c, err := (&net.Dialer{Timeout: askTimeout}).DialContext(ctx, "udp", to)
		if err == nil {
			context.AfterFunc(ctx, func() { c.Close() }) // closing twice does no harm
		}
		return c, err
	}
	var wg sync.WaitGroup
	for i, server := range servers {
		wg.Go(func() {
			var s Sample
			err := panics.Do("time server "+server, func() (err error) { s, err = query(server, dial); return err })
			if err != nil {
				failed[i] = fmt.Errorf("time server %s: %w", server, err)
				return
			}
			answers[i] = &s
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
