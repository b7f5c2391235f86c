// Package register lets clients read and write registers of a cluster, and checks their history for
// linearizability: is there an order of all operations, each between its call and its answer, in
// which every answer is right? In that case no acknowledged write was lost, and none was applied
// twice. A register is a ConfigMap.
package register

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/orlop-os/orlop/vm"
)

const (
	namespace = "default"
	field     = "value"
	// answerLimit bounds a client's wait for an answer, in the machines' time.
	answerLimit = 10 * time.Second
	// pace is the mean pause of a client between two operations, in the machines' time.
	pace = 400 * time.Millisecond
)

// perRound is the number of registers that a round writes: few, so clients conflict. The next round
// has other registers, because the search for an order takes longer the more writes of a register
// had no answer.
const perRound = 3

func registerName(round, n int) string { return fmt.Sprintf("round-%d-%d", round, n) }

// Record is the history of clients that read and write the registers of a round. The next round
// has other registers.
type Record struct {
	clock vm.Clock     // clock of the machines; all recorded times use it
	began time.Time    // outside
	round atomic.Int64 // the present round; -1: none yet
	mu    sync.Mutex
	all   []Operation
}

// NewRecord returns an empty history that begins now.
func NewRecord(clock vm.Clock) *Record {
	r := &Record{clock: clock, began: time.Now()}
	r.round.Store(-1)
	return r
}

// Now returns the time since the history began, in the machines' time.
func (r *Record) Now() time.Duration { return r.clock.Since(r.began) }

func (r *Record) add(o Operation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, o)
}

// Operations returns the operations that ended, in the order of their ends.
func (r *Record) Operations() []Operation {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Operation(nil), r.all...)
}

// Clients returns a client per API server; addresses are on this computer.
func Clients(kubeconfig string, addresses []string, clock vm.Clock) ([]kubernetes.Interface, error) {
	var all []kubernetes.Interface
	for _, address := range addresses {
		config, err := clientcmd.BuildConfigFromFlags("https://"+address, kubeconfig)
		if err != nil {
			return nil, fmt.Errorf("kubeconfig: %w", err)
		}
		config.Timeout, config.QPS, config.Burst = clock.Outside(answerLimit), 100, 100
		api, err := kubernetes.NewForConfig(config)
		if err != nil {
			return nil, fmt.Errorf("%s: cannot make client: %w", address, err)
		}
		all = append(all, api)
	}
	return all, nil
}

// prepareLimit bounds the creation of a register, in the machines' time: a connection that a fault
// broke is given up only after a while.
const prepareLimit = 2 * time.Minute

// NextRound creates the empty registers of a round at any API server that answers, and switches the
// clients to them. It fails if that takes more than two minutes of the machines' time.
func (r *Record) NextRound(ctx context.Context, servers []kubernetes.Interface) error {
	round := int(r.round.Load()) + 1
	ctx, cancel := context.WithTimeout(ctx, r.clock.Outside(prepareLimit))
	defer cancel()
	for n := range perRound {
		name := registerName(round, n)
		for i := 0; ; i++ {
			_, err := servers[i%len(servers)].CoreV1().ConfigMaps(namespace).Create(ctx, register(name, "", ""), meta.CreateOptions{})
			// created by an attempt whose answer was lost: no other client creates registers
			if err == nil || i > 0 && apierrors.IsAlreadyExists(err) {
				break
			}
			select {
			case <-time.After(r.clock.Outside(pace)):
			case <-ctx.Done():
				return fmt.Errorf("register %s: cannot make: %w", name, err)
			}
		}
	}
	r.round.Store(int64(round))
	return nil
}

// readLimit bounds the last reads at an API server, in the machines' time.
const readLimit = 5 * time.Minute

// ReadAll reads every register again, from every API server, and repeats a read without an answer:
// without the last value of a register, the loss of its last write has no witness. The numbers of
// its clients follow the given number. It fails if a server does not answer for all registers
// within five minutes of the machines' time; the other reads are in the history.
func (r *Record) ReadAll(ctx context.Context, servers []kubernetes.Interface, clients int) error {
	ctx, cancel := context.WithTimeout(ctx, r.clock.Outside(readLimit))
	defer cancel()
	failed := make([]error, len(servers))
	var reading sync.WaitGroup
	for n, server := range servers {
		c := &client{number: clients + n, record: r, seen: map[string]*core.ConfigMap{}}
		reading.Go(func() { failed[n] = c.readAll(ctx, server) })
	}
	reading.Wait()
	return errors.Join(failed...)
}

// readAll reads every register from an API server until it answers.
func (c *client) readAll(ctx context.Context, server kubernetes.Interface) error {
	for round := range c.record.round.Load() + 1 {
		for i := range perRound {
			o := Operation{Client: c.number, Register: registerName(int(round), i), Kind: Read}
			for c.ask(server, o) == Unknown {
				select {
				case <-time.After(c.record.clock.Outside(pace)):
				case <-ctx.Done():
					return fmt.Errorf("register %s: an API server has not answered the last read: %w", o.Register, context.Cause(ctx))
				}
			}
		}
	}
	return nil
}

func register(name, value, version string) *core.ConfigMap {
	return &core.ConfigMap{ObjectMeta: meta.ObjectMeta{Name: name, ResourceVersion: version}, Data: map[string]string{field: value}}
}

// client reads and writes until ctx ends. After an operation without an answer it switches to
// another API server.
type client struct {
	number  int
	servers []kubernetes.Interface
	dice    *rand.Rand
	record  *Record
	seen    map[string]*core.ConfigMap // latest read version of each register
	writes  int
}

func (c *client) run(ctx context.Context) {
	server := c.number % len(c.servers)
	for ctx.Err() == nil {
		if c.ask(c.servers[server], c.next()) == Unknown {
			server = (server + 1) % len(c.servers)
		}
		select {
		case <-time.After(c.record.clock.Outside(time.Duration(c.dice.ExpFloat64() * float64(pace)))):
		case <-ctx.Done():
		}
	}
}

// ask performs and records an operation.
func (c *client) ask(server kubernetes.Interface, o Operation) Answer {
	o.Called = c.record.Now()
	c.do(server, &o)
	o.Answered = c.record.Now()
	c.record.add(o)
	return o.Answer
}

// next draws the next operation. One operation in eight reads a register of an earlier round.
func (c *client) next() Operation {
	round := int(c.record.round.Load())
	if round > 0 && c.dice.IntN(8) == 0 {
		return Operation{Client: c.number, Register: registerName(c.dice.IntN(round), c.dice.IntN(perRound)), Kind: Read}
	}
	o := Operation{Client: c.number, Register: registerName(round, c.dice.IntN(perRound)), Kind: Read}
	if roll := c.dice.IntN(4); roll == 0 {
		o.Kind = Write
	} else if roll == 1 && c.seen[o.Register] != nil {
		o.Kind, o.Expected = Swap, c.seen[o.Register].Data[field]
	}
	if o.Kind != Read {
		c.writes++
		o.Value = fmt.Sprintf("%d.%d", c.number, c.writes)
	}
	return o
}

// do calls an API server. An operation is never canceled, because its answer or its missing answer
// belongs to the history.
func (c *client) do(api kubernetes.Interface, o *Operation) {
	ctx, cancel := context.WithTimeout(context.Background(), c.record.clock.Outside(answerLimit))
	defer cancel()
	// The library would retry by itself, and report a conflict for a swap that its first attempt
	// has done.
	request := func(verb string) *rest.Request {
		return api.CoreV1().RESTClient().Verb(verb).Namespace(namespace).Resource("configmaps").Name(o.Register).MaxRetries(0)
	}
	object := &core.ConfigMap{}
	var err error
	switch o.Kind {
	case Read:
		if err = request("GET").Do(ctx).Into(object); err == nil {
			o.Value = object.Data[field]
		}
	case Write:
		err = request("PUT").Body(register(o.Register, o.Value, "")).Do(ctx).Into(object)
	case Swap:
		err = request("PUT").Body(register(o.Register, o.Value, c.seen[o.Register].ResourceVersion)).Do(ctx).Into(object)
	}
	o.Answer = answered(err)
	if err == nil {
		c.seen[o.Register] = object
	}
}

// answered returns the answer for an error. A conflict is an answer. After any other error it is
// unknown whether the write happened: an API server that fails may have written before.
func answered(err error) Answer {
	switch {
	case err == nil:
		return Done
	case apierrors.IsConflict(err):
		return Refused
	}
	return Unknown
}

// Run runs clients until ctx ends, and returns when all have their last answer. seed determines
// their operations.
func (r *Record) Run(ctx context.Context, servers []kubernetes.Interface, number int, seed uint64) {
	var wait sync.WaitGroup
	for n := range number {
		c := &client{number: n, servers: servers, dice: rand.New(rand.NewPCG(seed, uint64(n))), record: r, seen: map[string]*core.ConfigMap{}}
		wait.Go(func() { c.run(ctx) })
	}
	wait.Wait()
}
