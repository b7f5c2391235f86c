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

	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/test/command"
	"github.com/orlop-os/orlop/test/machinestate"
	"github.com/orlop-os/orlop/vm"
)

const (
	// failoverWantedS is the longest silence that is wanted.
	failoverWantedS = 5
	// All are the machines' time. askEvery is between two questions to the virtual address,
	// answerLimit how long the client waits for an answer, atOnce how many answers at most it waits
	// for.
	askEvery    = 100 * time.Millisecond
	answerLimit = 2 * time.Second
	atOnce      = 30
	// steady is how long answers have to come without a gap longer than gap before the power is
	// cut, and after.
	steady = 5 * time.Second
	gap    = time.Second
)

// failoverFigures are those of the virtual address.
type failoverFigures struct {
	outcome
	Longest *float64 `json:"longest_silence_s,omitempty"`
	Cuts    []cut    `json:"cuts,omitempty"`
}

// cut is one machine that answered for the address and lost its power.
type cut struct {
	Machine  string  `json:"machine"`
	SilenceS float64 `json:"silence_s"`
	// HealthyS is from switching it on again to every machine healthy.
	HealthyS float64 `json:"healthy_s"`
}

func (f *failoverFigures) rows() []row {
	rows := []row{{"longest silence of the virtual address", seconds(f.Longest), fmt.Sprintf("≤ %d s", failoverWantedS)}}
	for _, c := range f.Cuts {
		rows = append(rows, row{"  " + c.Machine + " lost its power", fmt.Sprintf("silence %.1f s; all healthy %.1f s after it was on again", c.SilenceS, c.HealthyS), ""})
	}
	return rows
}

// failover cuts the power of the machine that answers for the virtual address, while a client
// outside asks there all the time.
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
		say("failover: cut %d of %d: %s, which answers for %s", n+1, b.cuts, holder, virtualAddress())
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

// holder is the machine that answers for the virtual address, by its own word.
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
	return "", fmt.Errorf("virtual address %s: no machine says that it answers for it: %s", virtualAddress(), strings.Join(details, "; "))
}

// detailOf is what a component says.
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

// answersFor tells whether the machine that says this answers for the virtual address itself
// (orchestrator/apivip).
func answersFor(detail string) bool {
	return strings.HasPrefix(detail, "holds "+virtualAddress().String()+" ")
}

// asker is a client outside that asks the virtual address all the time.
type asker struct {
	clock vm.Clock
	http  *http.Client
	url   string
	stop  context.CancelFunc
	done  sync.WaitGroup

	mu   sync.Mutex
	good []time.Time // when each good answer had come
	last error       // why the last bad one was bad
}

// askVirtualAddress begins to ask whether an API server is there. It does not ask for /readyz: that
// is not good while etcd elects another leader, which is not the address's business.
func (b *bench) askVirtualAddress(ctx context.Context) (*asker, error) {
	way, err := b.power.Forward(ctx, vm.ForwardSpec{Addr: virtualAddress(), Port: paths.PortKubernetes})
	if err != nil {
		return nil, err
	}
	config, err := rest.TLSConfigFor(rest.CopyConfig(b.config))
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	// HTTP/1.1, so that a connection to a machine that is gone holds up one question and not all.
	// Its protocols are named for those of TLS too.
	config.NextProtos = []string{"http/1.1"}
	a := &asker{clock: b.clock, url: "https://" + way.Addr + "/livez/ping", http: &http.Client{Timeout: b.clock.Outside(answerLimit), Transport: &http.Transport{TLSClientConfig: config, MaxIdleConnsPerHost: 4}}}
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
		select {
		case places <- struct{}{}:
		default:
			continue // so many wait for an answer that one more says nothing new
		}
		a.done.Go(func() {
			defer func() { <-places }()
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

// answers are the times of all good answers, in order.
func (a *asker) answers() []time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.SortedFunc(slices.Values(a.good), time.Time.Compare)
}

// steadily waits until good answers have come without a gap for a while, all of it after an
// instant.
func (a *asker) steadily(ctx context.Context, after time.Time) error {
	for {
		now := a.clock.Now()
		if from := now.Add(-steady); from.After(after) && answeredThroughout(a.answers(), from, now) {
			return nil
		}
		if end := command.Wait(ctx, askEvery); end != nil {
			a.mu.Lock()
			defer a.mu.Unlock()
			return fmt.Errorf("virtual address %s: no steady answers: %w", virtualAddress(), a.last)
		}
	}
}

// answeredThroughout tells whether answers came from one instant to another without a long gap.
func answeredThroughout(answers []time.Time, from, to time.Time) bool {
	last := from
	for _, at := range answers {
		if at.Before(from) || at.After(to) {
			continue
		}
		if at.Sub(last) > gap {
			return false
		}
		last = at
	}
	return to.Sub(last) <= gap
}

// longestSilence is the longest time between two good answers that lay around the cut or behind it,
// at most up to the end.
func longestSilence(answers []time.Time, cut, end time.Time) time.Duration {
	last := cut // before the first answer nothing is known
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
