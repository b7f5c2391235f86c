package power

import (
	"context"
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
)

// Facts are what a fence needs to know about a machine, besides its objects.
type Facts struct {
	Lease  *coordinationv1.Lease // of the kubelet; without a time if it does not exist
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
}

// entry is the power switch of a machine.
type entry struct {
	version  string // of the Secret from which it was made
	uuid     string // the UUID to which the Secret binds it; empty if the Secret names the machine
	provider machineprovider.Machine
	reading  fence.Reading
	runs     bool      // a request runs
	next     time.Time // no request is sent before
	failures int       // since the last success
}

// New returns the power switches. Requests to them end with ctx. read reads Secrets, Leases and
// pods. wake is called after each answer of a power switch.
func New(ctx context.Context, read kubernetes.Interface, wake func()) *Switches {
	open := func(c redfish.Config) (machineprovider.Machine, error) { return redfish.New(c) }
	return &Switches{ctx: ctx, read: read, wake: wake, now: time.Now, open: open, all: map[string]*entry{}}
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

// Facts reads the facts about a machine, except for its Lease. It reads the pods only if pods is
// true. A missing or wrong Secret is no error, but a fact.
func (s *Switches) Facts(ctx context.Context, m *machineapi.OrlopMachine, pods bool) (Facts, error) {
	var f Facts
	if pods {
		onNode := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", m.Name).String()}
		all, err := s.read.CoreV1().Pods("").List(ctx, onNode)
		if err != nil {
			return f, fmt.Errorf("cannot read the pods of Node %s: %w", m.Name, err)
		}
		f.Pods = PodsOf(all.Items)
	}
	var err error
	f.Switch, err = s.find(ctx, m.Name, m.Name, m.Spec.Power)
	return f, err
}

// hostPrefix begins the keys of the power switches of hosts. The name of a machine has no slash.
const hostPrefix = "host/"

// Host returns the facts about the power switch of a host. A missing or wrong Secret is no error,
// but a fact.
func (s *Switches) Host(ctx context.Context, h *machineapi.OrlopHost) (fence.Switch, error) {
	return s.find(ctx, hostPrefix+h.Name, "", h.Spec.Power)
}

// find returns the facts about a power switch, and prepares its use. machine is the name of the
// machine; empty for a host.
func (s *Switches) find(ctx context.Context, key, machine string, power *machineapi.MachinePower) (fence.Switch, error) {
	without := func(format string, args ...any) (fence.Switch, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.all, key)
		return fence.Switch{Access: fmt.Sprintf(format, args...)}, nil
	}
	if power == nil {
		return without("the machine has no power switch: set spec.power of its OrlopMachine (task 133)")
	}
	secret, err := s.read.CoreV1().Secrets(metav1.NamespaceSystem).Get(ctx, power.Secret, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return without("Secret %s/%s does not exist: create it (task 133)", metav1.NamespaceSystem, power.Secret)
	}
	if err != nil {
		return fence.Switch{}, fmt.Errorf("cannot read the Secret of the power switch of machine %s: %w", key, err)
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
		e = &entry{version: version, uuid: uuid, provider: provider}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all[key] = e
	return fence.Switch{Reading: e.reading, KeepOff: power.AfterFencing == machineapi.PowerOff}, nil
}

// Retain forgets the power switches of all other machines of the cluster, with their passwords.
func (s *Switches) Retain(machines map[string]Facts) {
	s.forget(func(key string) bool {
		_, keep := machines[key]
		return !keep && !strings.HasPrefix(key, hostPrefix)
	})
}

// RetainHosts forgets the power switches of all other hosts, with their passwords.
func (s *Switches) RetainHosts(hosts map[string]fence.Switch) {
	s.forget(func(key string) bool {
		name, isHost := strings.CutPrefix(key, hostPrefix)
		_, keep := hosts[name]
		return isHost && !keep
	})
}

func (s *Switches) forget(drop func(key string) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key := range s.all {
		if drop(key) {
			delete(s.all, key)
		}
	}
}

// CallHost operates the power switch of a host, as Call does. uuid is the UUID in the inventory of
// the host.
func (s *Switches) CallHost(host, uuid string, action fence.Action) {
	s.Call(hostPrefix+host, uuid, action)
}

// Call operates the power switch of a machine in the background, and reads its power afterwards. It
// does nothing while a request to this switch runs, and for a time after the last request. uuid is
// the UUID of the machine in its Node; empty if the Node has none.
func (s *Switches) Call(machine, uuid string, action fence.Action) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.all[machine]
	if e == nil || e.runs || action == fence.Nothing || s.now().Before(e.next) {
		return
	}
	e.runs = true
	go func() {
		ctx, cancel := context.WithTimeout(s.ctx, callTimeout)
		defer cancel()
		power, at, err := s.operate(ctx, e, uuid, action)
		s.mu.Lock()
		e.runs = false
		if err != nil {
			e.reading.Problem = machineapi.ConditionMessage(err.Error())
			e.next = s.now().Add(min(minInterval<<min(e.failures, 8), maxInterval))
			e.failures++
		} else {
			e.reading, e.next, e.failures = fence.Reading{Power: power, At: at}, s.now().Add(minInterval), 0
		}
		s.mu.Unlock()
		s.wake()
	}()
}

// operate performs an action and returns the power after it, with the time at which it asked for
// the power.
func (s *Switches) operate(ctx context.Context, e *entry, uuid string, action fence.Action) (fence.Power, time.Time, error) {
	at, m := s.now(), e.provider
	d, err := m.Describe(ctx)
	if err != nil {
		return "", at, err
	}
	if err := e.bound(d.UUID, uuid); err != nil {
		return "", at, err
	}
	if !sameUUID(d.UUID, uuid) {
		return "", at, fmt.Errorf("the controller is that of another machine: its UUID is %s, and that of the Node is %s: correct the Secret", d.UUID, uuid)
	}
	switch {
	case action == fence.TurnOff && d.Power != machineprovider.StateOff:
		err = m.SetPower(ctx, machineprovider.Off)
	case action == fence.TurnOn && d.Power != machineprovider.StateOn:
		err = m.SetPower(ctx, machineprovider.On)
	default:
		return powerOf(d.Power), at, nil
	}
	if err != nil {
		return "", at, err
	}
	at = s.now()
	if d, err = m.Describe(ctx); err != nil {
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
	case controller == "" || !sameUUID(controller, e.uuid):
		return fmt.Errorf("the controller is that of another machine: its UUID is %q, and the Secret has %s: correct the Secret", controller, e.uuid)
	case machine == "" || !sameUUID(machine, e.uuid):
		return fmt.Errorf("the Secret is that of another machine: it has the UUID %s, and the machine states %q: correct spec.power", e.uuid, machine)
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

// swapped returns a UUID with the other byte order of its first three fields; the same text if it
// is no UUID.
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
