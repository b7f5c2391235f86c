package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/rest"

	"github.com/orlop-os/orlop/pkg/backoff"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/limits"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/test/machinestate"
	"github.com/orlop-os/orlop/vm"
)

const (
	// failoverWantedS is the target for the longest silence, in seconds.
	failoverWantedS = 5
	// All durations are in the time of the machines. askEvery is the interval between two requests
	// to the virtual address. answerLimit is the deadline of a request. atOnce is the maximum
	// number of concurrent requests.
	askEvery    = 100 * time.Millisecond
	answerLimit = 2 * time.Second
	atOnce      = 30
	// The answers are steady if all intervals between them were at most gap for the duration
	// steady. failover waits for steady answers before and after each power cut.
	steady = 5 * time.Second
	gap    = time.Second
)

// failoverFigures are the figures of the virtual address.
type failoverFigures struct {
	outcome
	Longest *float64 `json:"longest_silence_s,omitempty"`
	Cuts    []cut    `json:"cuts,omitempty"`
}

// cut is a power cut of the machine that holds the virtual address.
type cut struct {
	Machine  string  `json:"machine"`
	SilenceS float64 `json:"silence_s"`
	// HealthyS is the time from the next power-on of the machine until every machine is healthy.
	HealthyS float64 `json:"healthy_s"`
}

func (f *failoverFigures) rows() []row {
	rows := []row{{"longest silence of the virtual address", seconds(f.Longest), fmt.Sprintf("≤ %d s", failoverWantedS)}}
	for _, c := range f.Cuts {
		rows = append(rows, row{"  " + c.Machine + " lost its power", fmt.Sprintf("silence %.1f s; all healthy %.1f s after it was on again", c.SilenceS, c.HealthyS), ""})
	}
	return rows
}

// failover cuts the power of the machine that holds the virtual address. Meanwhile, a client
// outside the closed network calls the address continuously.
func (b *bench) failover(ctx context.Context) (figures, error) {
	f := &failoverFigures{}
	a, err := b.askVirtualAddress(ctx)
	if err != nil {
		return f, err
	}
	defer a.end()
	for n := range b.cuts {
		if err := a.steadily(ctx, b.clock.Now()); err != nil {
			return f, err
		}
		holder, err := b.holder(ctx)
		if err != nil {
			return f, err
		}
		say("failover: cut %d of %d: %s, which holds %s", n+1, b.cuts, holder, virtualAddress())
		c := cut{Machine: holder}
		at := b.clock.Now()
		if err := b.power.Act(ctx, holder, vm.ActionPowerCut); err != nil {
			return f, err
		}
		err = a.steadily(ctx, b.clock.Now())
		c.SilenceS = longestSilence(a.answers(), at, b.clock.Now()).Seconds()
		if f.Longest == nil || *f.Longest < c.SilenceS {
			f.Longest = &c.SilenceS
		}
		f.Cuts = append(f.Cuts, c)
		on := b.clock.Now()
		if err := errors.Join(err, b.power.Act(context.WithoutCancel(ctx), holder, vm.ActionPowerOn)); err != nil {
			return f, err
		}
		if err := b.cluster.Healthy(ctx); err != nil {
			return f, err
		}
		f.Cuts[n].HealthyS = b.clock.Now().Sub(on).Seconds()
	}
	return f, nil
}

// holder returns the name of the control-plane machine that reports that it holds the virtual
// address. It fails if no control-plane machine reports this.
func (b *bench) holder(ctx context.Context) (string, error) {
	contexts := b.cluster.Machines()
	var details []string
	for n := range controlPlanes {
		name := fmt.Sprintf("cp%d", n+1)
		var services []machinestate.Service
		err := b.with(ctx, contexts[name], func(c *client.Client) (err error) {
			services, err = machinestate.Get[[]machinestate.Service](ctx, c, "services")
			return err
		})
		if err != nil {
			return "", fmt.Errorf("machine %s: %w", name, err)
		}
		detail := detailOf(services, "virtual-address")
		if answersFor(detail) {
			return name, nil
		}
		details = append(details, name+": "+detail)
	}
	return "", fmt.Errorf("virtual address %s: no machine reports that it holds the address: %s", virtualAddress(), strings.Join(details, "; "))
}

// detailOf returns the detail that a component reports, or an empty string if no service has the
// component.
func detailOf(services []machinestate.Service, component string) string {
	for _, s := range services {
		for _, c := range s.Components {
			if c.Name == component {
				return c.Detail
			}
		}
	}
	return ""
}

// answersFor reports whether a machine with this detail holds the virtual address itself
// (orchestrator/apivip).
func answersFor(detail string) bool {
	return strings.HasPrefix(detail, "holds "+virtualAddress().String()+" ")
}

// asker is a client outside the closed network that calls the virtual address continuously.
type asker struct {
	clock vm.Clock
	http  *http.Client
	url   string
	stop  context.CancelFunc
	done  sync.WaitGroup

	mu   sync.Mutex
	good []time.Time // arrival times of the successful answers
	last error       // error of the last failed request
}

// askVirtualAddress starts an asker. The asker calls /livez/ping and not /readyz: /readyz also
// fails while etcd elects another leader.
func (b *bench) askVirtualAddress(ctx context.Context) (*asker, error) {
	forward, err := b.power.Forward(ctx, vm.ForwardSpec{Addr: virtualAddress(), Port: paths.PortKubernetes})
	if err != nil {
		return nil, err
	}
	config, err := rest.TLSConfigFor(rest.CopyConfig(b.config))
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	// The client uses HTTP/1.1. An open connection to an unreachable machine then delays one
	// request only. NextProtos selects the protocol in the TLS handshake, too.
	config.NextProtos = []string{"http/1.1"}
	a := &asker{clock: b.clock, url: "https://" + forward.Addr + "/livez/ping", http: &http.Client{Timeout: b.clock.Outside(answerLimit), Transport: &http.Transport{TLSClientConfig: config, MaxIdleConnsPerHost: 4}}}
	ctx, a.stop = context.WithCancel(ctx)
	a.done.Go(func() { a.run(ctx) })
	return a, nil
}

func (a *asker) end() {
	a.stop()
	a.done.Wait()
	a.http.CloseIdleConnections()
}

func (a *asker) run(ctx context.Context) {
	ticker := time.NewTicker(a.clock.Outside(askEvery))
	defer ticker.Stop()
	places := make(chan struct{}, atOnce)
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		release, ok := limits.TryAcquire(places)
		if !ok {
			continue // the maximum number of requests is open
		}
		a.done.Go(func() {
			defer release()
			err := a.once(ctx)
			a.mu.Lock()
			defer a.mu.Unlock()
			if err == nil {
				a.good = append(a.good, a.clock.Now())
			} else {
				a.last = err
			}
		})
	}
}

func (a *asker) once(ctx context.Context) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, a.url, nil)
	if err != nil {
		return err
	}
	response, err := a.http.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("ping: %s", response.Status)
	}
	return nil
}

// answers returns the arrival times of all successful answers, in ascending order.
func (a *asker) answers() []time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.SortedFunc(slices.Values(a.good), time.Time.Compare)
}

// steadily waits until the answers have been steady for a period that begins after start.
func (a *asker) steadily(ctx context.Context, start time.Time) error {
	for {
		now := a.clock.Now()
		if from := now.Add(-steady); from.After(start) && answeredThroughout(a.answers(), from, now) {
			return nil
		}
		if end := backoff.Sleep(ctx, askEvery); end != nil {
			a.mu.Lock()
			defer a.mu.Unlock()
			return fmt.Errorf("virtual address %s: no steady answers: %w", virtualAddress(), a.last)
		}
	}
}

// answeredThroughout reports whether all intervals between answers were at most gap, in the period
// from begin to end.
func answeredThroughout(answers []time.Time, begin, end time.Time) bool {
	last := begin
	for _, at := range answers {
		if at.Before(begin) || at.After(end) {
			continue
		}
		if at.Sub(last) > gap {
			return false
		}
		last = at
	}
	return end.Sub(last) <= gap
}

// longestSilence returns the longest interval between two successful answers that ends after the
// cut. The interval in which the cut happened begins with the last answer before the cut. The last
// interval ends at end, the end of the observation.
func longestSilence(answers []time.Time, cut, end time.Time) time.Duration {
	last := cut // used if there is no answer before the cut
	for _, at := range answers {
		if at.After(cut) {
			break
		}
		last = at
	}
	longest := time.Duration(0)
	for _, at := range answers {
		if at.After(last) && !at.After(end) {
			longest, last = max(longest, at.Sub(last)), at
		}
	}
	return max(longest, end.Sub(last))
}
