package power

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"

	"github.com/orlop-os/orlop/pkg/disruption/fence"
	"github.com/orlop-os/orlop/pkg/machineapi"
	"github.com/orlop-os/orlop/pkg/machineprovider"
	"github.com/orlop-os/orlop/pkg/machineprovider/redfish"
)

const (
	// minInterval is the time between two requests to a power switch. After failures it grows to
	// maxInterval.
	minInterval = 3 * time.Second
	maxInterval = time.Minute
	// callTimeout bounds an operation with its reading.
	callTimeout = 3 * time.Minute
	// decisionTime is the time after the decision within which a machine may be switched off. It is
	// short, because with a slow switch the machine may have recovered meanwhile.
	decisionTime = 30 * time.Second
)

// Facts are what a fence needs to know about a machine, besides its objects and its Lease.
type Facts struct {
	Pods   fence.Pods
	Switch fence.Switch
}

// Switches has the power switches of the machines.
type Switches struct {
	ctx  context.Context
	read kubernetes.Interface
	wake func() // after each answer of a power switch
	now  func() time.Time
	open func(redfish.Config) (machineprovider.Machine, error)

	mu  sync.Mutex
	all map[string]*entry // by the name of the machine
	// calls are the requests that run, by the name of the machine. A request of a machine that was
	// forgotten is canceled, and prevents another request until it has ended.
	calls map[string]*call
}

// call is a request that runs.
type call struct {
	action  fence.Action
	decided time.Time
	cancel  context.CancelFunc
	ended   bool // cancel was called
}

// end cancels the request.
func (c *call) end() {
	if c != nil {
		c.ended = true
		c.cancel()
	}
}

// entry is the power switch of a machine.
type entry struct {
	version  string // of the Secret from which it was made
	provider machineprovider.Machine
	reading  fence.Reading
	next     time.Time // the time before which no request is sent
	failures int       // since the last success
}

// New returns the power switches. Requests to them end with ctx. read reads Secrets, Leases and
// pods. wake is called after each answer of a power switch.
func New(ctx context.Context, read kubernetes.Interface, wake func()) *Switches {
	open := func(c redfish.Config) (machineprovider.Machine, error) { return redfish.New(c) }
	return &Switches{ctx: ctx, read: read, wake: wake, now: time.Now, open: open, all: map[string]*entry{}, calls: map[string]*call{}}
}

// Leases reads the Leases of all kubelets, by the names of their Nodes.
func (s *Switches) Leases(ctx context.Context) (map[string]*coordinationv1.Lease, error) {
	all, err := s.read.CoordinationV1().Leases(corev1.NamespaceNodeLease).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("cannot read the Leases of the Nodes: %w", err)
	}
	leases := map[string]*coordinationv1.Lease{}
	for i := range all.Items {
		leases[all.Items[i].Name] = &all.Items[i]
	}
	return leases, nil
}

// Facts reads the facts about a machine. It reads the pods only if pods is true. A missing or wrong
// Secret, and an object that cannot be read, are facts and not errors, so the pass continues with
// the other machines.
func (s *Switches) Facts(ctx context.Context, m *machineapi.OrlopMachine, pods bool) Facts {
	var f Facts
	if pods {
		onNode := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", m.Name).String()}
		if all, err := s.read.CoreV1().Pods("").List(ctx, onNode); err == nil {
			f.Pods = PodsOf(all.Items)
		}
	}
	f.Switch = s.find(ctx, m)
	return f
}

// find returns the facts about the power switch of a machine, and prepares its use.
func (s *Switches) find(ctx context.Context, m *machineapi.OrlopMachine) fence.Switch {
	without := func(format string, args ...any) fence.Switch {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.forget(m.Name)
		return fence.Switch{Access: fmt.Sprintf(format, args...)}
	}
	if m.Spec.Power == nil {
		return without("the machine has no power switch: set spec.power of its OrlopMachine (task 133)")
	}
	secret, err := s.read.CoreV1().Secrets(metav1.NamespaceSystem).Get(ctx, m.Spec.Power.Secret, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return without("Secret %s/%s does not exist: create it (task 133)", metav1.NamespaceSystem, m.Spec.Power.Secret)
	}
	if err != nil { // the next pass reads it again
		return fence.Switch{Access: fmt.Sprintf("cannot read Secret %s/%s: %v", metav1.NamespaceSystem, m.Spec.Power.Secret, err)}
	}
	s.mu.Lock()
	e := s.all[m.Name]
	s.mu.Unlock()
	if version := string(secret.UID) + "/" + secret.ResourceVersion; e == nil || e.version != version {
		config, err := configOf(m.Name, secret)
		if err != nil {
			return without("%v", err)
		}
		provider, err := s.open(config)
		if err != nil {
			return without("Secret %s/%s: %v", secret.Namespace, secret.Name, err)
		}
		e = &entry{version: version, provider: provider}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all[m.Name] != e {
		s.forget(m.Name)
	}
	s.all[m.Name] = e
	return fence.Switch{Reading: e.reading, KeepOff: m.Spec.Power.AfterFencing == machineapi.PowerOff}
}

// forget removes a power switch, and cancels its request. The caller holds mu.
func (s *Switches) forget(machine string) {
	delete(s.all, machine)
	s.calls[machine].end()
}

// Retain removes the power switches, with their passwords, of all machines that are not in
// machines.
func (s *Switches) Retain(machines map[string]Facts) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range s.all {
		if _, keep := machines[name]; !keep {
			s.forget(name)
		}
	}
}

// Want cancels each request that changes the power of a machine, unless actions has the same action
// for the machine.
func (s *Switches) Want(actions map[string]fence.Action) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for machine, c := range s.calls {
		if c.action != fence.Read && c.action != actions[machine] {
			c.end()
		}
	}
}

// Call operates the power switch of a machine in the background, and reads its power afterwards. It
// does nothing while a request to this switch runs, and for a time after the last request. uuid is
// the UUID of the machine in its Node; empty if the Node has none.
func (s *Switches) Call(machine, uuid string, action fence.Action) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.all[machine]
	if e == nil || s.calls[machine] != nil || action == fence.Nothing || s.now().Before(e.next) {
		return
	}
	ctx, cancel := context.WithTimeout(s.ctx, callTimeout)
	c := &call{action: action, decided: s.now(), cancel: cancel}
	s.calls[machine] = c
	go func() {
		defer cancel()
		power, at, err := s.operate(ctx, e.provider, uuid, c)
		s.mu.Lock()
		delete(s.calls, machine)
		switch {
		case c.ended: // the reading may belong to a switch that the operator has replaced
			e.next = s.now().Add(minInterval)
		case err != nil:
			e.reading.Problem = machineapi.ConditionMessage(problemOf(machine, err))
			e.next = s.now().Add(min(minInterval<<min(e.failures, 8), maxInterval))
			e.failures++
		default:
			e.reading, e.next, e.failures = fence.Reading{Power: power, At: at}, s.now().Add(minInterval), 0
		}
		s.mu.Unlock()
		s.wake()
	}()
}

// problemOf explains an error of a power switch. Readers of Machines see the text, so it contains
// neither the address nor the user of the power switch.
func problemOf(machine string, err error) string {
	var e *machineprovider.Error
	if !errors.As(err, &e) {
		return err.Error()
	}
	reason := e.Reason
	switch e.Kind {
	case machineprovider.Unreachable:
		reason = "the controller does not answer: check the address in the Secret, and the network of the controllers"
	case machineprovider.Untrusted:
		reason = "the controller has another key than the Secret states: compare the fingerprint with that on the page or console of the controller"
	case machineprovider.Unauthorized:
		reason = "the controller rejects the user or the password, or the user may not operate the power: correct the Secret, or the rights of the user"
	case machineprovider.Rejected:
		reason = "the answer of the controller is an error, or cannot be read: see the log of the controller"
	}
	return fmt.Sprintf("machine %s: cannot %s: %s", machine, e.Operation, reason)
}

// describe reads the power and the UUID of a machine, with as few requests as possible.
func describe(ctx context.Context, m machineprovider.Machine) (machineprovider.Description, error) {
	if reader, ok := m.(machineprovider.PowerReader); ok {
		return reader.ReadPower(ctx)
	}
	return m.Describe(ctx)
}

// operate performs an action, and returns the power after the action, with the time at which the
// request for the power was sent.
func (s *Switches) operate(ctx context.Context, m machineprovider.Machine, uuid string, c *call) (fence.Power, time.Time, error) {
	at := s.now()
	d, err := describe(ctx, m)
	if err != nil {
		return "", at, err
	}
	if !sameUUID(d.UUID, uuid) {
		return "", at, fmt.Errorf("the controller is that of another machine: its UUID is %s, and that of the Node is %s: correct the Secret", d.UUID, uuid)
	}
	switch {
	case c.action == fence.TurnOff && d.Power != machineprovider.StateOff:
		if err = s.wanted(c); err == nil {
			err = m.SetPower(ctx, machineprovider.Off)
		}
	case c.action == fence.TurnOn && d.Power != machineprovider.StateOn:
		err = m.SetPower(ctx, machineprovider.On)
	default:
		return powerOf(d.Power), at, nil
	}
	if err != nil {
		return "", at, err
	}
	at = s.now()
	if d, err = describe(ctx, m); err != nil {
		return "", at, err
	}
	return powerOf(d.Power), at, nil
}

// wanted returns an error if the machine must not be switched off any more.
func (s *Switches) wanted(c *call) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case c.ended:
		return errors.New("the decision to switch it off was withdrawn")
	case s.now().Sub(c.decided) > decisionTime:
		return fmt.Errorf("the controller has answered only after %v, and the machine may have recovered: check why the controller is slow", s.now().Sub(c.decided).Round(time.Second))
	}
	return nil
}

func powerOf(s machineprovider.State) fence.Power {
	switch s {
	case machineprovider.StateOn:
		return fence.On
	case machineprovider.StateOff:
		return fence.Off
	}
	return fence.Unclear
}

// sameUUID reports whether two UUIDs can be those of one machine. An empty UUID is unknown. Some
// firmware writes the first three fields of the UUID in another byte order.
func sameUUID(a, b string) bool {
	a, b = strings.ToLower(a), strings.ToLower(b)
	return a == "" || b == "" || a == b || swapped(a) == b
}

// swapped returns a UUID with the other byte order of its first three fields. It returns a text
// that is no UUID unchanged.
func swapped(uuid string) string {
	f := strings.Split(uuid, "-")
	if len(f) != 5 || len(f[0]) != 8 || len(f[1]) != 4 || len(f[2]) != 4 {
		return uuid
	}
	turn := func(s string) string {
		out := ""
		for i := 0; i < len(s); i += 2 {
			out = s[i:i+2] + out
		}
		return out
	}
	return strings.Join([]string{turn(f[0]), turn(f[1]), turn(f[2]), f[3], f[4]}, "-")
}
