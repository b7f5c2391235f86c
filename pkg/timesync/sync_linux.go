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
)

// Status is what the machine shows of its time.
type Status struct {
	Servers  []string      `json:"servers"`           // that are asked
	Synced   bool          `json:"synced"`            // the last round succeeded, or it is not older than three
	Server   string        `json:"server,omitempty"`  // that was believed last
	Stratum  uint8         `json:"stratum,omitempty"` // its distance from a reference clock
	Offset   time.Duration `json:"offset"`            // how far off the clock was in the last round that succeeded, ns
	LastSync time.Time     `json:"lastSync,omitzero"` // when that was
	Problem  string        `json:"problem,omitempty"` // why the last round failed
}

// Deps is what Run works with.
type Deps struct {
	Servers *cell.Cell[[]string] // read: addresses or names, with a port if it is not 123; empty: nobody is asked
	Status  *cell.Cell[Status]   // written
	Clock   Clock                // SystemClock on a machine
	Floor   time.Time            // the build of the system; the clock is never set before it
	Log     func(line string)    // told about steps, and about problems once each; must not block
}

// askTimeout is how long a server may take to answer.
const askTimeout = 3 * time.Second

// maxServers is how many servers are asked in a round.
const maxServers = 8

// Run asks the servers until ctx is done, whose error it returns. It never holds anything up: nothing waits for it.
func Run(ctx context.Context, d Deps) error {
	watch := d.Servers.Watch()
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
		d.rounds(round, asked)
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

// rounds asks one list of servers until ctx is done.
func (d Deps) rounds(ctx context.Context, servers []string) {
	st := Status{Servers: servers}
	d.publish(st)
	var poll, wait time.Duration
	failures := 0
	for len(servers) > 0 {
		dec, err := d.round(ctx, servers)
		if ctx.Err() != nil {
			return
		}
		next := time.Duration(0)
		if err != nil {
			failures++
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
			st = Status{Servers: servers, Synced: true, Server: dec.Sample.Server, Stratum: dec.Sample.Stratum,
				Offset: dec.Offset, LastSync: d.Clock.Now().Round(0)}
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

// round asks every server once and moves the clock.
func (d Deps) round(ctx context.Context, servers []string) (Decision, error) {
	samples, asked := d.ask(ctx, servers)
	if err := ctx.Err(); err != nil {
		return Decision{}, err
	}
	dec, err := Decide(samples, d.Clock.Now(), d.Floor)
	if err != nil {
		if errors.Is(err, ErrNoAnswer) {
			err = fmt.Errorf("%w: %w", err, asked)
		}
		return Decision{}, err
	}
	if dec.Move == Step {
		if err := d.Clock.Step(dec.Offset); err != nil {
			return Decision{}, err
		}
		d.Log(fmt.Sprintf("time: clock stepped by %v, as %s says", dec.Offset.Round(time.Millisecond), dec.Sample.Server))
		return dec, nil
	}
	return dec, d.Clock.Slew(dec.Offset)
}

// query asks one server. What comes back may come from anybody (RFC 5905 without authentication), and must not end the process that
// asks: in beevik/ntp 1.6.0 an answer whose precision or poll interval is 2^-128 s is a panic (toInterval shifts by -128).
func query(server string, dial func(_, to string) (net.Conn, error)) (s Sample, err error) {
	defer func() {
		if r := recover(); r != nil {
			s, err = Sample{}, fmt.Errorf("its answer cannot be read: %v", r)
		}
	}()
	r, err := ntp.QueryWithOptions(server, ntp.QueryOptions{Timeout: askTimeout, Dialer: dial})
	if err == nil {
		err = r.Validate()
	}
	if err != nil {
		return Sample{}, err
	}
	return Sample{Server: server, Offset: r.ClockOffset, Distance: r.RootDistance, Stratum: r.Stratum}, nil
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
			s, err := query(server, dial)
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
