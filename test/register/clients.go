// Package register lets clients read and write registers of a cluster, and checks that their
// history is linearizable. A register is a ConfigMap with one value.
//
// A history is linearizable if there is an order of all operations that explains every answer. Each
// operation takes effect between its call and its answer. The cluster has then lost no acknowledged
// write, and has applied no write twice.
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
	// answerLimit is the deadline of one operation, in the time of the machines.
	answerLimit = 10 * time.Second
	// pace is the mean pause of a client between two operations, in the time of the machines.
	pace = 400 * time.Millisecond
)

// perRound is the number of registers that are written in a round. The number is small, so several
// clients often write to the same register. The next round uses new registers, because the check
// takes exponentially longer with more unanswered writes of the same register.
const perRound = 3

func registerName(round, n int) string { return fmt.Sprintf("round-%d-%d", round, n) }

// Record is the history of clients that read and write registers. Each round has its own registers.
type Record struct {
	clock vm.Clock     // clock of the machines, used for all recorded times
	began time.Time    // by the clock of this computer
	round atomic.Int64 // number of the present round; -1 before the first round
	mu    sync.Mutex
	all   []Operation
}

// NewRecord returns an empty history that begins now.
func NewRecord(clock vm.Clock) *Record {
	r := &Record{clock: clock, began: time.Now()}
	r.round.Store(-1)
	return r
}

// Now returns the time since the start of the history, in the time of the machines.
func (r *Record) Now() time.Duration { return r.clock.Since(r.began) }

func (r *Record) add(o Operation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, o)
}

// Operations returns the operations that have ended, in the order of their ends.
func (r *Record) Operations() []Operation {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Operation(nil), r.all...)
}

// Clients returns a client for each API server. The addresses are forwarded ports on this computer.
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

// prepareLimit is the deadline for the registers of a round, in the time of the machines. It is
// long, because a client needs some time to notice and close a broken connection.
const prepareLimit = 2 * time.Minute

// NextRound creates empty registers at any API server that answers, and switches the clients to
// these registers. It fails if this takes more than two minutes, in the time of the machines.
func (r *Record) NextRound(ctx context.Context, servers []kubernetes.Interface) error {
	round := int(r.round.Load()) + 1
	ctx, cancel := context.WithTimeout(ctx, r.clock.Outside(prepareLimit))
	defer cancel()
	for n := range perRound {
		name := registerName(round, n)
		for i := 0; ; i++ {
			_, err := servers[i%len(servers)].CoreV1().ConfigMaps(namespace).Create(ctx, register(name, "", ""), meta.CreateOptions{})
			// If the register exists already, an earlier attempt created it and the answer was
			// lost, because no other client creates registers.
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

// readLimit is the deadline for the last reads at all API servers, in the time of the machines.
const readLimit = 5 * time.Minute

// ReadAll reads every register from every API server, and repeats a read without an answer. If the
// cluster has lost the last write of a register, only these reads show the loss. The history has a
// number for each client. The parameter clients is the number of the reader of the first server;
// the readers of the next servers have the following numbers.
//
// ReadAll fails if a server does not answer for all registers within five minutes, in the time of
// the machines. Even then, the history has the successful reads.
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

// readAll reads every register from an API server, and repeats each read until the server answers.
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

// client performs random operations until ctx ends. After an operation without an answer, it
// switches to the next API server.
type client struct {
	number  int
	servers []kubernetes.Interface
	dice    *rand.Rand
	record  *Record
	seen    map[string]*core.ConfigMap // last read or written version of each register
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

// ask performs an operation at an API server and records it with its answer.
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

// do performs an operation and sets its answer. It does not end early with the context of the
// client, because the history needs the answer of every operation.
func (c *client) do(api kubernetes.Interface, o *Operation) {
	ctx, cancel := context.WithTimeout(context.Background(), c.record.clock.Outside(answerLimit))
	defer cancel()
	// client-go must not retry a request. If the first attempt of a swap succeeds and its answer is
	// lost, the second attempt would report a conflict.
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

// answered returns the answer for the error of a request. A conflict means that the write was
// refused. After any other error the result is unknown, because a failing API server may have
// written before.
func answered(err error) Answer {
	switch {
	case err == nil:
		return Done
	case apierrors.IsConflict(err):
		return Refused
	}
	return Unknown
}

// Run runs this number of clients until ctx ends. It returns when all operations have ended. The
// seed determines the operations.
func (r *Record) Run(ctx context.Context, servers []kubernetes.Interface, number int, seed uint64) {
	var wait sync.WaitGroup
	for n := range number {
		c := &client{number: n, servers: servers, dice: rand.New(rand.NewPCG(seed, uint64(n))), record: r, seen: map[string]*core.ConfigMap{}}
		wait.Go(func() { c.run(ctx) })
	}
	wait.Wait()
}
