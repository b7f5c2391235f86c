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

// Sources are the time servers and PTP clocks of a machine. A Sources value is not changed after
// its publication.
type Sources struct {
	// Servers are addresses or names of servers, or names of PTP clocks after ClockPrefix. A server
	// has a port if it does not use the standard port. If Servers is empty, Run sends no requests.
	Servers []string
	// NTS is true if the servers have to authenticate their answers (RFC 8915). The ports in
	// Servers are then ports for key exchanges.
	NTS bool
	CAs pki.ServerCAs // the CAs that may issue the certificates of the servers
}

// Equal reports whether both values have the same servers and settings.
func (s Sources) Equal(o Sources) bool {
	return slices.Equal(s.Servers, o.Servers) && s.NTS == o.NTS && s.CAs == o.CAs
}

// Status is the published status of the clock.
type Status struct {
	Servers []string `json:"servers"` // configured servers
	// Synced is true if the last round set the clock to the time of the servers. It stays true
	// until three rounds in a row have failed. It is false while the clock follows a large offset
	// of a single server slowly.
	Synced  bool   `json:"synced"`
	Server  string `json:"server,omitempty"`  // the server that the last successful round selected
	Stratum uint8  `json:"stratum,omitempty"` // the stratum of Server
	// Quorum is true if more than half of the answers, from at least two servers, agreed with
	// Server.
	Quorum bool `json:"quorum"`
	// Offset is the offset of the clock in the last successful round, in ns.
	Offset   time.Duration `json:"offset"`
	LastSync time.Time     `json:"lastSync,omitzero"` // time of the last round that set Synced
	// Problem says why the last round failed, or why the clock follows slowly.
	Problem string   `json:"problem,omitempty"`
	NTS     bool     `json:"nts"`               // true if servers have to use NTS
	Answers []Answer `json:"answers,omitempty"` // answers of the servers in the last round
}

// Answer is the published result of a request.
type Answer struct {
	Server        string        `json:"server"`
	Authenticated bool          `json:"authenticated"` // true if NTS authenticated the answer
	Offset        time.Duration `json:"offset"`        // in ns; 0 if there was no answer
	Problem       string        `json:"problem,omitempty"`
}

// Deps are the dependencies of Run.
type Deps struct {
	Sources *cell.Cell[Sources] // input
	PTP     PTPClocks           // SystemPTP on a machine
	Status  *cell.Cell[Status]  // output
	Clock   Clock               // SystemClock on a machine
	Floor   *Floor              // earliest time to which the clock is set
	Log     func(line string)   // logs steps, and each problem once; must not block
}

// queryTimeout is the timeout of a request to a time server.
const queryTimeout = 3 * time.Second

// maxServers is the largest number of servers and PTP clocks in a round. Further ones are not used.
const maxServers = 8

// Run synchronizes the clock until ctx is done, and returns the error of ctx. No other component
// waits for a synchronized clock.
func Run(ctx context.Context, d Deps) error {
	watch := d.Sources.Watch()
	var known synced
	sources, _, err := watch.Next(ctx)
	for err == nil {
		// A change of the list cancels the current round, so a silent server does not delay the
		// next list.
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

// otherThan waits until the sources differ from old, and returns the new sources.
func otherThan(ctx context.Context, watch *cell.Watcher[Sources], old Sources) (Sources, error) {
	for {
		next, _, err := watch.Next(ctx)
		if err != nil || !next.Equal(old) {
			return next, err
		}
	}
}

// synced holds the time of the last successful round, with its monotonic reading. The time is zero
// until the first round since boot succeeds. A new list of servers does not reset the time.
// Otherwise a DHCP server could make a single new server set the clock.
type synced struct{ last time.Time }

// run synchronizes the clock with one list of servers.
type run struct {
	Deps
	sources      Sources // with at most maxServers servers
	known        *synced
	associations map[string]*association // by server; used with NTS only
}

// rounds performs rounds until ctx is done: it queries the servers, adjusts the clock and publishes
// the status.
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

// status returns the status after a successful round with the decision dec. before is the previous
// status.
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

// round decides on the answers of the servers and adjusts the clock.
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
	began := time.Now() // Only its monotonic reading is used, so it need not come from d.Clock.
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

// dialer connects to the address in its second argument. It ignores its first argument.
type dialer func(_, to string) (net.Conn, error)

// query queries a server for the time. Without NTS, any host on the path can forge the answer (RFC
// 5905). A forged answer must not end this process. In beevik/ntp 1.6.0, an answer with a precision
// or poll interval of 2^-128 s causes a panic (toInterval shifts by -128), so query recovers from
// panics.
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

// valid returns nil if an answer is usable, else the reason why not. The library takes each answer
// with stratum 0 for a kiss of death. Unsynchronized servers, for example chrony, also send stratum
// 0. valid recognizes a kiss of death by its kiss code (RFC 5905 section 7.4).
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

// result is the result of a request: a sample, or an error.
type result struct {
	server string
	sample Sample
	err    error
}

// queryAll queries all servers at the same time, once each. The results have the order of the
// servers.
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

// answers converts results to the form of Status.
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
