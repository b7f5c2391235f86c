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

// Switches has the power switches of the machines of the cluster, and of hosts of the inventory.
type Switches struct {
	ctx  context.Context
	read kubernetes.Interface
	wake func() // after each answer of a power switch
	now  func() time.Time
	open func(redfish.Config) (machineprovider.Machine, error)

	mu  sync.Mutex
	all map[string]*entry // by the name of the machine, or hostPrefix and the name of the host
	// calls are the requests that run, by the same keys. A request of a machine that was forgotten
	// is canceled, and prevents another request until it has ended. A controller (BMC) has at most
	// one request at a time: two keys can have the same controller, for example those of a member
	// and of its former host.
	calls map[string]*call
}

// call is a request that runs.
type call struct {
	action  fence.Action
	board   string // of the entry
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
	uuid     string // the UUID to which the Secret binds it; empty if the Secret names the machine
	board    string // identifies the controller (BMC)
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
	f.Switch = s.find(m.Name, m.Name, m.Spec.Power, func(name string) (*corev1.Secret, error) {
		return s.read.CoreV1().Secrets(metav1.NamespaceSystem).Get(ctx, name, metav1.GetOptions{})
	})
	return f
}

// hostPrefix begins the keys of the power switches of hosts. The name of a machine has no slash.
const hostPrefix = "host/"

// Secrets are the Secrets of all power switches, by name.
type Secrets map[string]*corev1.Secret

// Secrets reads the Secrets of all power switches.
func (s *Switches) Secrets(ctx context.Context) (Secrets, error) {
	all, err := s.read.CoreV1().Secrets(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("type", machineapi.PowerSecretType).String()})
	if err != nil {
		return nil, fmt.Errorf("cannot read the Secrets of the power switches: %w", err)
	}
	secrets := Secrets{}
	for i := range all.Items {
		secrets[all.Items[i].Name] = &all.Items[i]
	}
	return secrets, nil
}

// Boards returns texts that identify the controllers (BMC), by the names of the Secrets. Secrets
// with the same text are for the same controller.
func (all Secrets) Boards() map[string]string {
	boards := map[string]string{}
	for name, secret := range all {
		boards[name] = boardOf(secret)
	}
	return boards
}

// Host returns the facts about the power switch of a host. A missing or wrong Secret is no error,
// but a fact.
func (s *Switches) Host(secrets Secrets, h *machineapi.OrlopHost) fence.Switch {
	return s.find(hostPrefix+h.Name, "", h.Spec.Power, func(name string) (*corev1.Secret, error) {
		if secret := secrets[name]; secret != nil {
			return secret, nil
		}
		return nil, apierrors.NewNotFound(corev1.Resource("secrets"), name)
	})
}

// find returns the facts about a power switch, and prepares its use. machine is the name of the
// machine; empty for a host. get returns a Secret.
func (s *Switches) find(key, machine string, power *machineapi.MachinePower, get func(name string) (*corev1.Secret, error)) fence.Switch {
	without := func(format string, args ...any) fence.Switch {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.forget(key)
		return fence.Switch{Access: fmt.Sprintf(format, args...)}
	}
	if power == nil {
		return without("the machine has no power switch: set spec.power of its OrlopMachine (task 133)")
	}
	secret, err := get(power.Secret)
	if apierrors.IsNotFound(err) {
		or := ""
		if machine == "" { // only Secrets of the type were read
			or = ", or its type is not " + machineapi.PowerSecretType
		}
		return without("Secret %s/%s does not exist%s: create it (task 133)", metav1.NamespaceSystem, power.Secret, or)
	}
	if err != nil { // the next pass reads it again
		return fence.Switch{Access: fmt.Sprintf("cannot read Secret %s/%s: %v", metav1.NamespaceSystem, power.Secret, err)}
	}
	s.mu.Lock()
	e := s.all[key]
	s.mu.Unlock()
	if version := string(secret.UID) + "/" + secret.ResourceVersion; e == nil || e.version != version {
		config, uuid, err := configOf(machine, secret)
		if err != nil {
			return without("%v", err)
		}
		provider, err := s.open(config)
		if err != nil {
			return without("Secret %s/%s: %v", secret.Namespace, secret.Name, err)
		}
		e = &entry{version: version, uuid: uuid, board: boardOf(secret), provider: provider}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all[key] != e {
		s.forget(key)
	}
	s.all[key] = e
	return fence.Switch{Reading: e.reading, KeepOff: power.AfterFencing == machineapi.PowerOff}
}

// forget removes a power switch, and cancels its request. The caller holds mu.
func (s *Switches) forget(key string) {
	delete(s.all, key)
	s.calls[key].end()
}

// Retain removes the power switches, with their passwords, of all machines of the cluster that are
// not in machines.
func (s *Switches) Retain(machines map[string]Facts) {
	s.retain(func(key string) bool {
		_, keep := machines[key]
		return keep || strings.HasPrefix(key, hostPrefix)
	})
}

// RetainHosts removes the power switches, with their passwords, of all hosts that are not in hosts.
func (s *Switches) RetainHosts(hosts map[string]fence.Switch) {
	s.retain(func(key string) bool {
		name, isHost := strings.CutPrefix(key, hostPrefix)
		_, keep := hosts[name]
		return keep || !isHost
	})
}

// retain removes the power switches with a key for which keep returns false.
func (s *Switches) retain(keep func(key string) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key := range s.all {
		if !keep(key) {
			s.forget(key)
		}
	}
}

// Want cancels each request that changes the power of a machine of the cluster, unless actions has
// the same action for the machine.
func (s *Switches) Want(actions map[string]fence.Action) {
	s.cancel(func(key string) (fence.Action, bool) { return actions[key], !strings.HasPrefix(key, hostPrefix) })
}

// WantHosts does the same for hosts. actions has the names of the hosts.
func (s *Switches) WantHosts(actions map[string]fence.Action) {
	s.cancel(func(key string) (fence.Action, bool) {
		name, isHost := strings.CutPrefix(key, hostPrefix)
		return actions[name], isHost
	})
}

// cancel cancels the requests that change the power and differ from the action that wanted returns
// for their key. It leaves requests for which wanted returns false.
func (s *Switches) cancel(wanted func(key string) (fence.Action, bool)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, c := range s.calls {
		if action, decides := wanted(key); decides && c.action != fence.Read && c.action != action {
			c.end()
		}
	}
}

// CallHost operates the power switch of a host, as Call does. uuid is the UUID in the inventory of
// the host.
func (s *Switches) CallHost(host, uuid string, action fence.Action) {
	s.Call(hostPrefix+host, uuid, action)
}

// Call operates the power switch of a machine in the background, and reads its power afterwards. It
// does nothing while a request to this controller runs, and for a time after the last request. The
// requests of a fence or a power cycle have precedence over those of hosts. uuid is the UUID of the
// machine in its Node; empty if the Node has none.
func (s *Switches) Call(machine, uuid string, action fence.Action) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.all[machine]
	if e == nil || action == fence.Nothing || s.isBusy(machine, e) || s.now().Before(e.next) {
		return
	}
	ctx, cancel := context.WithTimeout(s.ctx, callTimeout)
	c := &call{action: action, board: e.board, decided: s.now(), cancel: cancel}
	s.calls[machine] = c
	go func() {
		defer cancel()
		power, at, err := s.operate(ctx, e, uuid, c)
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

// isBusy reports whether a request of this key must not begin: another request to the controller
// runs, or the key is that of a host, and a fence or a power cycle needs the controller (only then,
// all has a machine of the cluster). A request for a machine of the cluster cancels that of a host,
// so that the former can begin soon. The caller holds mu.
func (s *Switches) isBusy(key string, e *entry) bool {
	isHost := strings.HasPrefix(key, hostPrefix)
	if isHost {
		for other, o := range s.all {
			if o.board == e.board && !strings.HasPrefix(other, hostPrefix) {
				return true
			}
		}
	}
	busy := s.calls[key] != nil
	for other, c := range s.calls {
		if other == key || c.board != e.board {
			continue
		}
		if busy = true; !isHost && strings.HasPrefix(other, hostPrefix) {
			c.end()
		}
	}
	return busy
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
func (s *Switches) operate(ctx context.Context, e *entry, uuid string, c *call) (fence.Power, time.Time, error) {
	at, m := s.now(), e.provider
	d, err := describe(ctx, m)
	if err != nil {
		return "", at, err
	}
	if err := e.bound(d.UUID, uuid); err != nil {
		return "", at, err
	}
	if !machineprovider.SameUUID(d.UUID, uuid) {
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

// bound returns an error if the Secret binds the power switch to a UUID, and the controller or the
// machine has another UUID, or none.
func (e *entry) bound(controller, machine string) error {
	switch {
	case e.uuid == "":
		return nil
	case controller == "" || !machineprovider.SameUUID(controller, e.uuid):
		return fmt.Errorf("the controller is that of another machine: its UUID is %q, and the Secret has %s: correct the Secret", controller, e.uuid)
	case machine == "" || !machineprovider.SameUUID(machine, e.uuid):
		return fmt.Errorf("the Secret is that of another machine: it has the UUID %s, and the machine states %q: correct spec.power", e.uuid, machine)
	}
	return nil
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
