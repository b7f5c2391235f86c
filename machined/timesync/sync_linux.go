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
	"github.com/orlop-os/orlop/pkg/pki"
)

// Sources are the time servers and PTP clocks of a machine. They are not changed.
type Sources struct {
	// Servers are addresses or names, with a port if it is not the usual port, or names of PTP
	// clocks after ClockPrefix; empty: no requests.
	Servers []string
	// NTS makes the servers authenticate their answers (RFC 8915). The ports in Servers are then
	// ports of key exchanges.
	NTS bool
	CAs pki.ServerCAs // of their certificates
}

// Equal reports whether two values are equal.
func (s Sources) Equal(o Sources) bool {
	return slices.Equal(s.Servers, o.Servers) && s.NTS == o.NTS && s.CAs == o.CAs
}

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
	NTS      bool          `json:"nts"`               // answers without authentication are not used
	Answers  []Answer      `json:"answers,omitempty"` // of the servers, in the last round
}

// Answer is the published result of a request.
type Answer struct {
	Server        string        `json:"server"`
	Authenticated bool          `json:"authenticated"` // by NTS
	Offset        time.Duration `json:"offset"`        // ns; 0 without an answer
	Problem       string        `json:"problem,omitempty"`
}

// Deps are the dependencies of Run.
type Deps struct {
	Sources *cell.Cell[Sources] // input
	PTP     PTPClocks           // SystemPTP on a machine
	Status  *cell.Cell[Status]  // output
	Clock   Clock               // SystemClock on a machine
	Floor   *Floor              // the clock is never set before it
	Log     func(line string)   // called for steps, and once for each problem; must not block
}

// queryTimeout is the timeout of a request.
const queryTimeout = 3 * time.Second

// maxServers is the maximum number of servers in a round.
const maxServers = 8

// Run synchronizes the clock until ctx is done, and returns its error. No component waits for it.
func Run(ctx context.Context, d Deps) error {
	watch := d.Sources.Watch()
	var known synced
	sources, _, err := watch.Next(ctx)
	for err == nil {
		// A round ends with its list, so a silent server does not delay the next list.
		round, cancel := context.WithCancel(ctx)
		r := run{Deps: d, sources: sources, known: &known, associations: map[string]*association{}}
		r.sources.Servers = slices.Clone(sources.Servers[:min(len(sources.Servers), maxServers)])
		for _, server := range r.sources.Servers {
			r.associations[server] = new(association)
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			defer cancel()
			sources, err = otherThan(ctx, watch, sources)
		})
		r.rounds(round)
		wg.Wait()
	}
	return err
}

// otherThan waits for different sources.
func otherThan(ctx context.Context, watch *cell.Watcher[Sources], sources Sources) (Sources, error) {
	for {
		next, _, err := watch.Next(ctx)
		if err != nil || !next.Equal(sources) {
			return next, err
		}
	}
}

// synced is the time of the last successful round, with its monotonic reading; zero: none since
// boot. A new list of servers does not reset it, so a DHCP server cannot make a new server set the
// clock.
type synced struct{ last time.Time }

// run is the work with a list of servers.
type run struct {
	Deps
	sources      Sources // at most maxServers
	known        *synced
	associations map[string]*association // of each server; used with NTS
}

// rounds queries the servers until ctx is done.
func (d run) rounds(ctx context.Context) {
	before, _ := d.Status.Get()
	st := Status{Servers: d.sources.Servers, NTS: d.sources.NTS, LastSync: before.LastSync}
	d.publish(st)
	var poll time.Duration
	failures := 0
	for len(d.sources.Servers) > 0 {
		results := d.queryAll(ctx)
		dec, err := d.round(ctx, results)
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
			st = d.status(dec, st)
		}
		st.Answers = answers(results)
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
func (d run) status(dec Decision, before Status) Status {
	st := Status{Servers: before.Servers, NTS: before.NTS, Synced: true, Server: dec.Sample.Server, Stratum: dec.Sample.Stratum,
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

// round adjusts the clock by the answers of the servers.
func (d run) round(ctx context.Context, results []result) (Decision, error) {
	if err := ctx.Err(); err != nil {
		return Decision{}, err
	}
	var samples []Sample
	var failed []error
	for _, r := range results {
		if r.err != nil {
			failed = append(failed, r.err)
		} else {
			samples = append(samples, r.sample)
		}
	}
	began := time.Now() // the local time, because only its monotonic reading is used
	view := View{Now: d.Clock.Now(), Floor: d.Floor.Now(began), Synced: !d.known.last.IsZero()}
	if view.Synced {
		view.Since = began.Sub(d.known.last)
	}
	dec, err := Decide(samples, view)
	if err != nil {
		if errors.Is(err, ErrNoAnswer) {
			err = fmt.Errorf("%w: %w", err, errors.Join(failed...))
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
	d.known.last = began
	d.Floor.Round(dec.Quorum, d.Clock.Now())
	return dec, nil
}

// dialer connects to an address for requests. Its first argument is not used.
type dialer func(_, to string) (net.Conn, error)

// query queries a server. The answer may come from an attacker (RFC 5905 without authentication),
// and must not end this process: in beevik/ntp 1.6.0 an answer with a precision or poll interval of
// 2^-128 s causes a panic (toInterval shifts by -128).
func query(server string, dial dialer, extensions ...ntp.Extension) (s Sample, err error) {
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
	r, err := ntp.QueryWithOptions(server, ntp.QueryOptions{Timeout: queryTimeout, Dialer: noting, Extensions: extensions})
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

// result is the result of a request: a sample or an error.
type result struct {
	server string
	sample Sample
	err    error
}

// queryAll queries all servers concurrently, each once.
func (d run) queryAll(ctx context.Context) []result {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	dial := func(_, to string) (net.Conn, error) {
		c, err := (&net.Dialer{Timeout: queryTimeout}).DialContext(ctx, "udp", to)
		if err == nil {
			context.AfterFunc(ctx, func() { c.Close() }) // a second close is harmless
		}
		return c, err
	}
	results := make([]result, len(d.sources.Servers))
	var wg sync.WaitGroup
	for i, server := range d.sources.Servers {
		wg.Go(func() {
			r := result{server: server}
			r.err = panics.Do("time server "+server, func() (err error) {
				r.sample, err = d.ask(server, func() (Sample, error) {
					if d.sources.NTS {
						return d.queryNTS(ctx, server, dial)
					}
					return query(server, dial)
				})
				return err
			})
			results[i] = r
		})
	}
	wg.Wait()
	return results
}

// answers returns the published form of results.
func answers(results []result) []Answer {
	var out []Answer
	for _, r := range results {
		a := Answer{Server: r.server}
		if r.err != nil {
			a.Problem = r.err.Error()
		} else {
			a.Authenticated, a.Offset = r.sample.Authenticated, r.sample.Offset
		}
		out = append(out, a)
	}
	return out
}
