package power

import (
	"context"
	"encoding/pem"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"github.com/orlop-os/orlop/pkg/disruption/fence"
	"github.com/orlop-os/orlop/pkg/machineapi"
	"github.com/orlop-os/orlop/pkg/machineprovider"
	"github.com/orlop-os/orlop/pkg/machineprovider/redfish"
	"github.com/orlop-os/orlop/vm/redfish/redfishtest"
)

const (
	password = "hunter2-hunter2"
	uuid     = "6f1f6c2e-0102-4000-8000-000000000001"
)

// secretOf returns the Secret of machine w1 with changes. An empty value in changes removes the
// key.
func secretOf(changes map[string]string) *corev1.Secret {
	s := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "w1-power", UID: "u1", ResourceVersion: "1"},
		Type:       machineapi.PowerSecretType,
		Data: map[string][]byte{
			"machine": []byte("w1"), "endpoint": []byte("https://192.0.2.1\n"), "username": []byte("orlop"), "password": []byte(password),
			"fingerprint": []byte("sha256:" + strings.Repeat("0", 64)),
		},
	}
	for key, value := range changes {
		if key == "type" {
			s.Type = corev1.SecretType(value)
			continue
		}
		if s.Data[key] = []byte(value); value == "" {
			delete(s.Data, key)
		}
	}
	return s
}

// TestSecret checks the explanation of a wrong Secret. The explanation contains no values of the
// Secret, and the Secret must name its machine.
func TestSecret(t *testing.T) {
	for _, c := range []struct {
		changes map[string]string
		want    string // a part of the explanation; empty if the Secret is correct
	}{
		{nil, ""},
		{map[string]string{"system": "1"}, ""},
		{map[string]string{"type": "Opaque"}, "its type is not orlop.dev/power-switch"},
		{map[string]string{"machine": "w2"}, "key machine is not w1"},
		{map[string]string{"machine": ""}, "key machine is not w1"},
		{map[string]string{"endpoint": ""}, "key endpoint is missing"},
		{map[string]string{"username": ""}, "key username is missing"},
		{map[string]string{"password": ""}, "key password is missing"},
		{map[string]string{"passwort": password}, `unknown key "passwort"`},
		{map[string]string{"endpoint": "http://192.0.2.1"}, "the endpoint is not https://HOST"},
		{map[string]string{"fingerprint": ""}, "set the fingerprint"},
		{map[string]string{"ca.crt": "x"}, "expected either a fingerprint or a CA"},
		{map[string]string{"uuid": uuid}, "both of the keys machine and uuid"},
		{map[string]string{"uuid": uuid, "machine": ""}, ""},
		{map[string]string{"uuid": "w1", "machine": ""}, "key uuid is no UUID"},
	} {
		s := New(t.Context(), fake.NewClientset(secretOf(c.changes)), func() {})
		own := &machineapi.OrlopMachine{ObjectMeta: metav1.ObjectMeta{Name: "w1"}, Spec: machineapi.OrlopMachineSpec{Power: &machineapi.MachinePower{Secret: "w1-power"}}}
		facts := s.Facts(t.Context(), own, true)
		if got := facts.Switch.Access; (got != "") != (c.want != "") || !strings.Contains(got, c.want) || strings.Contains(got, password) {
			t.Errorf("%v: %q, want %q", c.changes, got, c.want)
		}
	}
}

// TestHost checks the Secret of a host, which must contain the UUID of the machine. The host is
// switched only if its controller (BMC) and its inventory state this UUID, too.
func TestHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(t.Context(), fake.NewClientset(secretOf(nil)), func() {})
		h := &machineapi.OrlopHost{ObjectMeta: metav1.ObjectMeta{Name: "w1"}, Spec: machineapi.OrlopHostSpec{Power: &machineapi.MachinePower{Secret: "w1-power"}}}
		host := func() fence.Switch {
			t.Helper()
			secrets, err := s.Secrets(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return s.Host(secrets, h)
		}
		if f := host(); !strings.Contains(f.Access, "key uuid is missing") {
			t.Fatalf("%+v", f)
		}
		if f := s.Host(nil, h); !strings.Contains(f.Access, "does not exist, or its type is not orlop.dev/power-switch") {
			t.Fatalf("%+v", f)
		}
		b := &board{uuid: uuid, state: machineprovider.StateOn}
		s = New(t.Context(), fake.NewClientset(secretOf(map[string]string{"uuid": uuid, "machine": ""})), func() {})
		s.open = func(redfish.Config) (machineprovider.Machine, error) { return b, nil }
		call := func(stated string, a fence.Action) fence.Reading {
			t.Helper()
			if f := host(); f.Access != "" {
				t.Fatalf("%+v", f)
			}
			s.CallHost("w1", stated, a)
			synctest.Wait()
			time.Sleep(maxInterval)
			return host().Reading
		}
		other := strings.Replace(uuid, "6f", "7f", 1)
		for stated, want := range map[string]string{"": "the machine states", other: "the machine states"} {
			if r := call(stated, fence.TurnOff); !strings.Contains(r.Problem, want) || b.state != machineprovider.StateOn {
				t.Errorf("a host whose inventory states the UUID %q: %+v", stated, r)
			}
		}
		for _, b.uuid = range []string{"", other} {
			if r := call(uuid, fence.TurnOff); !strings.Contains(r.Problem, "the controller is that of another machine") || b.state != machineprovider.StateOn {
				t.Errorf("a controller that states the UUID %q: %+v", b.uuid, r)
			}
		}
		b.uuid = strings.ToUpper(uuid)
		if r := call(uuid, fence.TurnOff); r.Power != fence.Off || r.Problem != "" || b.state != machineprovider.StateOff {
			t.Errorf("%+v", r)
		}
		s.Retain(nil)
		if len(s.all) != 1 {
			t.Error("Retain, which is for the power switches of machines, removed the power switch of a host")
		}
		if s.RetainHosts(nil); len(s.all) != 0 {
			t.Error("RetainHosts did not remove the power switch of the host")
		}
	})
}

// TestOneRequest checks that a controller (BMC) gets one request at a time, even if the Secrets of
// a machine and of a host name the same controller. The request of a fence, which is for a machine,
// has precedence over a request for a host.
func TestOneRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ofHost := secretOf(map[string]string{"uuid": uuid, "machine": "", "endpoint": "HTTPS://192.0.2.1/"})
		ofHost.Name = "old-power"
		s := New(t.Context(), fake.NewClientset(secretOf(nil), ofHost), func() {})
		b := &board{uuid: uuid, state: machineprovider.StateOn, lag: 10 * time.Second}
		s.open = func(redfish.Config) (machineprovider.Machine, error) { return b, nil }
		h := &machineapi.OrlopHost{ObjectMeta: metav1.ObjectMeta{Name: "h"}, Spec: machineapi.OrlopHostSpec{Power: &machineapi.MachinePower{Secret: "old-power"}}}
		own := &machineapi.OrlopMachine{ObjectMeta: metav1.ObjectMeta{Name: "w1"}, Spec: machineapi.OrlopMachineSpec{Power: &machineapi.MachinePower{Secret: "w1-power"}}}
		secrets, err := s.Secrets(t.Context())
		if boards := secrets.Boards(); err != nil || boards["old-power"] != boards["w1-power"] || len(boards) != 2 {
			t.Fatalf("%q, %v", boards, err)
		}
		running := func(want ...string) {
			t.Helper()
			synctest.Wait()
			s.mu.Lock()
			defer s.mu.Unlock()
			if got := slices.Sorted(maps.Keys(s.calls)); !slices.Equal(got, want) {
				t.Fatalf("requests of %q, want %q", got, want)
			}
		}
		if f := s.Host(secrets, h); f.Access != "" {
			t.Fatal(f.Access)
		}
		s.CallHost("h", uuid, fence.TurnOff)
		running("host/h")
		s.Want(nil) // cancels only requests for machines
		running("host/h")
		s.Facts(t.Context(), own, false)
		// The request for the machine cancels that for the host, but begins only after its end.
		s.Call("w1", "", fence.Read)
		running("host/h")
		time.Sleep(maxInterval)
		running()
		s.Call("w1", "", fence.Read)
		s.CallHost("h", uuid, fence.Read)
		running("w1")
		time.Sleep(maxInterval)
		// The request for the host does not begin, because the fence will have another request.
		s.CallHost("h", uuid, fence.Read)
		running()
		s.Retain(nil)
		s.CallHost("h", uuid, fence.TurnOff)
		running("host/h")
		s.WantHosts(map[string]fence.Action{"h": fence.TurnOff})
		s.WantHosts(nil)
		time.Sleep(maxInterval)
		running()
		if b.state != machineprovider.StateOn {
			t.Error("a withdrawn request has switched the machine off")
		}
	})
}

// TestAccess checks the facts about a machine that names no Secret or a Secret that does not exist.
// A request to this machine has no effect.
func TestAccess(t *testing.T) {
	s := New(t.Context(), fake.NewClientset(), func() {})
	own := &machineapi.OrlopMachine{ObjectMeta: metav1.ObjectMeta{Name: "w1"}}
	if f := s.Facts(t.Context(), own, true); !strings.Contains(f.Switch.Access, "set spec.power of its OrlopMachine") {
		t.Errorf("%+v", f)
	}
	own.Spec.Power = &machineapi.MachinePower{Secret: "w1-power"}
	if f := s.Facts(t.Context(), own, true); !strings.Contains(f.Switch.Access, "Secret kube-system/w1-power does not exist: create it") {
		t.Errorf("%+v", f)
	}
	s.Call("w1", "", fence.TurnOff) // must not panic: there is no power switch
}

// board is a power switch in memory.
type board struct {
	mu    sync.Mutex
	uuid  string
	state machineprovider.State
	fails error
	slow  time.Duration // the time that a switch-off takes
	lag   time.Duration // the time that Describe takes
	calls []string
}

func (b *board) Describe(context.Context) (machineprovider.Description, error) {
	time.Sleep(b.lag) // like a controller that answers although the caller no longer waits
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls = append(b.calls, "describe")
	return machineprovider.Description{UUID: b.uuid, Power: b.state}, b.fails
}

func (b *board) SetPower(_ context.Context, p machineprovider.Power) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls = append(b.calls, string(p))
	switch {
	case p == machineprovider.Off && b.slow > 0:
		b.state = machineprovider.StateChanging
		time.AfterFunc(b.slow, func() {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.state = machineprovider.StateOff
		})
	case p == machineprovider.Off:
		b.state = machineprovider.StateOff
	case p == machineprovider.On:
		b.state = machineprovider.StateOn
	}
	return nil
}

func (b *board) SetBoot(context.Context, machineprovider.Boot) error   { return nil }
func (b *board) InsertMedium(ctx context.Context, medium string) error { return nil }

// TestCall checks the requests to a power switch, and the readings that result from them.
func TestCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(secretOf(nil))
		woken := 0
		s := New(t.Context(), client, func() { woken++ })
		b := &board{uuid: uuid, state: machineprovider.StateOn, slow: time.Minute}
		s.open = func(c redfish.Config) (machineprovider.Machine, error) {
			if c.Name != "w1" || c.Endpoint != "https://192.0.2.1" || c.User != "orlop" || c.Password != password {
				t.Errorf("%+v", c)
			}
			return b, nil
		}
		own := &machineapi.OrlopMachine{ObjectMeta: metav1.ObjectMeta{Name: "w1"}, Spec: machineapi.OrlopMachineSpec{Power: &machineapi.MachinePower{Secret: "w1-power", AfterFencing: "Off"}}}
		facts := func() fence.Switch {
			f := s.Facts(t.Context(), own, true)
			if f.Switch.Access != "" || !f.Switch.KeepOff {
				t.Fatalf("%+v", f)
			}
			return f.Switch
		}
		call := func(uuid string, a fence.Action) {
			s.Call("w1", uuid, a)
			synctest.Wait()
		}
		if r := facts().Reading; r != (fence.Reading{}) {
			t.Errorf("reading before the first request: %+v", r)
		}
		call(uuid, fence.TurnOff)
		if r := facts().Reading; r.Power != fence.Unclear || !r.At.Equal(time.Now()) {
			t.Errorf("reading while the machine switches off: %+v", r)
		}
		call(uuid, fence.Read) // too soon after the last request, so there is none
		time.Sleep(time.Minute + time.Second)
		call(uuid, fence.Read)
		if r := facts().Reading; r.Power != fence.Off || !r.At.Equal(time.Now()) {
			t.Errorf("reading after the switch-off: %+v", r)
		}
		b.fails = &machineprovider.Error{Kind: machineprovider.Unreachable, Machine: "w1", Operation: "read its state", Reason: "no answer", Remedy: "try again"}
		time.Sleep(minInterval)
		call(uuid, fence.Read)
		before := time.Now().Add(-minInterval)
		if r := facts().Reading; r.Power != fence.Off || !r.At.Equal(before) || r.Problem != "machine w1: cannot read its state: the controller does not answer: check the address in the Secret, and the network of the controllers" {
			t.Errorf("a failure must not renew the reading: %+v", r)
		}
		b.fails = nil
		time.Sleep(maxInterval)
		call("00000000-0000-0000-0000-000000000000", fence.TurnOn)
		if r := facts().Reading; !strings.Contains(r.Problem, "the controller is that of another machine") || !r.At.Equal(before) {
			t.Errorf("reading after a request with the UUID of another machine: %+v", r)
		}
		time.Sleep(maxInterval)
		call(uuid, fence.TurnOn)
		if r := facts().Reading; r.Power != fence.On || r.Problem != "" {
			t.Errorf("reading after the switch-on: %+v", r)
		}
		const want = "describe off describe describe describe describe describe on describe"
		if got := strings.Join(b.calls, " "); got != want || woken != 5 {
			t.Errorf("%d results, want 5; calls of the power switch %q, want %q", woken, got, want)
		}
		s.Retain(nil)
		if r := facts().Reading; r != (fence.Reading{}) {
			t.Errorf("reading after the removal of the power switch: %+v", r)
		}
	})
}

// TestRedfish switches a machine off and on through a Redfish service. The Secret has the content
// that an operator would write for this service.
func TestRedfish(t *testing.T) {
	system := redfishtest.NewSystem("w1")
	if err := system.PowerOn(t.Context()); err != nil {
		t.Fatal(err)
	}
	service := redfishtest.Serve(t, system)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: service.Certificate.Raw})
	secret := secretOf(map[string]string{"endpoint": service.URL, "username": redfishtest.User, "password": redfishtest.Password, "fingerprint": "", "ca.crt": string(ca)})
	answers := make(chan struct{})
	s := New(t.Context(), fake.NewClientset(secret), func() { answers <- struct{}{} })
	own := &machineapi.OrlopMachine{ObjectMeta: metav1.ObjectMeta{Name: "w1"}, Spec: machineapi.OrlopMachineSpec{Power: &machineapi.MachinePower{Secret: "w1-power"}}}
	for _, step := range []struct {
		action fence.Action
		want   fence.Power
	}{{fence.Read, fence.On}, {fence.TurnOff, fence.Off}, {fence.Read, fence.Off}, {fence.TurnOn, fence.On}} {
		if f := s.Facts(t.Context(), own, true); f.Switch.Access != "" {
			t.Fatalf("%+v", f)
		}
		s.all["w1"].next = time.Time{}
		s.Call("w1", "6F1F6C2E-0000-4000-8000-000000000001", step.action)
		<-answers
		f := s.Facts(t.Context(), own, true)
		if r := f.Switch.Reading; r.Power != step.want || r.Problem != "" || system.Running() != (step.want == fence.On) {
			t.Errorf("%s: %+v, want %s", step.action, r, step.want)
		}
	}
}

// TestReads checks that Leases returns the Leases of all Nodes, and that Facts reads the pods of a
// Node only if its caller wants them.
func TestReads(t *testing.T) {
	s := New(t.Context(), fake.NewClientset(
		&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: "w1"}},
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db-0"}, Spec: corev1.PodSpec{NodeName: "w1"}},
	), func() {})
	leases, err := s.Leases(t.Context())
	if err != nil || len(leases) != 1 || leases["w1"] == nil {
		t.Errorf("%v, %v", leases, err)
	}
	own := &machineapi.OrlopMachine{ObjectMeta: metav1.ObjectMeta{Name: "w1"}}
	for pods, want := range map[bool]fence.Pods{true: {Read: true, Left: 1}, false: {}} {
		if f := s.Facts(t.Context(), own, pods); f.Pods != want {
			t.Errorf("%+v, want %+v", f.Pods, want)
		}
	}
}

// TestFacts checks the facts about a Node and about its pods. It also checks that Taints adds and
// removes only the taint of the controllers, and does not change the taint of an operator.
func TestFacts(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	lease := func(age time.Duration) *coordinationv1.Lease {
		at := metav1.NewMicroTime(now.Add(-age))
		return &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{RenewTime: &at}}
	}
	node := func(ready corev1.ConditionStatus, taints ...corev1.Taint) *corev1.Node {
		return &corev1.Node{Spec: corev1.NodeSpec{Taints: taints}, Status: corev1.NodeStatus{
			NodeInfo: corev1.NodeSystemInfo{BootID: "b1"}, Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}},
		}}
	}
	booted := func(bootID string) *corev1.Node {
		n := node(corev1.ConditionTrue)
		n.Status.NodeInfo.BootID = bootID
		return n
	}
	ours := corev1.Taint{Key: corev1.TaintNodeOutOfService, Value: "fenced-b1", Effect: corev1.TaintEffectNoExecute}
	theirs := corev1.Taint{Key: corev1.TaintNodeOutOfService, Value: "nodeshutdown", Effect: corev1.TaintEffectNoExecute}
	other := corev1.Taint{Key: "example.com/x", Effect: corev1.TaintEffectNoSchedule}
	for name, c := range map[string]struct {
		node  *corev1.Node
		lease *coordinationv1.Lease
		want  fence.Node
	}{
		"no Node":                  {nil, lease(time.Hour), fence.Node{}},
		"ready":                    {node(corev1.ConditionTrue), lease(time.Second), fence.Node{Exists: true, Ready: true, Reports: true, BootID: "b1"}},
		"unready":                  {node(corev1.ConditionFalse), lease(time.Hour), fence.Node{Exists: true, Reports: true, BootID: "b1"}},
		"silent":                   {node(corev1.ConditionUnknown), lease(time.Minute), fence.Node{Exists: true, Silent: true, BootID: "b1"}},
		"Lease just renewed":       {node(corev1.ConditionUnknown), lease(time.Second), fence.Node{Exists: true, BootID: "b1"}},
		"Lease not read":           {node(corev1.ConditionUnknown), nil, fence.Node{Exists: true, BootID: "b1"}},
		"Lease without a time":     {node(corev1.ConditionUnknown), &coordinationv1.Lease{}, fence.Node{Exists: true, Silent: true, BootID: "b1"}},
		"too long boot ID":         {booted(strings.Repeat("b", 60)), nil, fence.Node{Exists: true, Ready: true, Reports: true}},
		"boot ID with a space":     {booted("b 1"), nil, fence.Node{Exists: true, Ready: true, Reports: true}},
		"taint of the controllers": {node(corev1.ConditionTrue, other, ours), nil, fence.Node{Exists: true, Ready: true, Reports: true, BootID: "b1", Taint: "b1"}},
		"taint of an operator":     {node(corev1.ConditionTrue, theirs), nil, fence.Node{Exists: true, Ready: true, Reports: true, BootID: "b1"}},
	} {
		if got := NodeOf(c.node, c.lease, now); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
	if got := Taints(node("", other), "b1"); len(got) != 2 || got[1] != ours {
		t.Errorf("taints after adding that of the controllers: %v", got)
	}
	if got := Taints(node("", ours, other), ""); len(got) != 1 || got[0] != other {
		t.Errorf("taints after removing that of the controllers: %v", got)
	}
	for _, bootID := range []string{"", "b1"} {
		if n := node("", theirs); !ByHand(n) || len(Taints(n, bootID)) != 1 || Taints(n, bootID)[0] != theirs {
			t.Errorf("the taint of an operator is changed: %v", Taints(n, bootID))
		}
	}
	pod := func(change func(*corev1.Pod)) corev1.Pod {
		p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db-0", Annotations: map[string]string{}}}
		change(&p)
		return p
	}
	got := PodsOf([]corev1.Pod{
		pod(func(*corev1.Pod) {}),
		pod(func(p *corev1.Pod) { p.Annotations["orlop.dev/start-without-api-server"] = "true" }),
		pod(func(p *corev1.Pod) {
			p.Annotations["orlop.dev/start-without-api-server"], p.Name = "true", "of-a-daemon-set"
			p.OwnerReferences = []metav1.OwnerReference{{Kind: "DaemonSet", Controller: new(true)}}
		}),
		pod(func(p *corev1.Pod) { p.Annotations[corev1.MirrorPodAnnotationKey] = "x" }),
		pod(func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }),
		pod(func(p *corev1.Pod) { p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}} }),
	})
	if want := (fence.Pods{Read: true, Left: 3, Offline: "shop/db-0"}); got != want {
		t.Errorf("pods: %+v, want %+v", got, want)
	}
}

// TestAway checks for how long an orderly shutdown prevents the operation of the power switch. The
// time is limited for an upgrade or a reboot, because the machine should return from these.
func TestAway(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		reason string
		age    time.Duration
		away   bool
	}{
		{"OrlopShutdown", 24 * time.Hour, true}, {"OrlopUpgrade", away, true}, {"OrlopUpgrade", away + time.Second, false}, {"OrlopReboot", time.Hour, false}, {"Site", time.Hour, true},
	} {
		n := &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeMaintenanceInProgress, Status: corev1.ConditionTrue, Reason: c.reason, LastTransitionTime: metav1.NewTime(now.Add(-c.age))},
		}}}
		if got := Away(n, now); (got != "") != c.away {
			t.Errorf("%s since %v: %q, want a reason: %t", c.reason, c.age, got, c.away)
		}
	}
	if Away(nil, now) != "" || Away(&corev1.Node{}, now) != "" {
		t.Error("Away returns a reason for a Node without the condition")
	}
}

// TestWithdrawn checks that a request does not switch a machine off after its decision was
// withdrawn. A decision is withdrawn if the machine has no power switch any more, if another action
// or no action is wanted, if the Secret is replaced or deleted, or if the power switch answers too
// late. The case with an empty name withdraws nothing. No second request begins before the first
// has ended.
func TestWithdrawn(t *testing.T) {
	for name, withdraw := range map[string]func(*testing.T, *Switches, *fake.Clientset, *machineapi.OrlopMachine){
		"power switch removed": func(_ *testing.T, s *Switches, _ *fake.Clientset, _ *machineapi.OrlopMachine) { s.Retain(nil) },
		"another action": func(_ *testing.T, s *Switches, _ *fake.Clientset, _ *machineapi.OrlopMachine) {
			s.Want(map[string]fence.Action{"w1": fence.TurnOn})
		},
		"no action": func(_ *testing.T, s *Switches, _ *fake.Clientset, _ *machineapi.OrlopMachine) { s.Want(nil) },
		"Secret replaced": func(t *testing.T, s *Switches, c *fake.Clientset, own *machineapi.OrlopMachine) {
			next := secretOf(nil)
			next.ResourceVersion = "2"
			if _, err := c.CoreV1().Secrets(next.Namespace).Update(t.Context(), next, metav1.UpdateOptions{}); err != nil {
				t.Error(err)
			}
			s.Facts(t.Context(), own, false)
		},
		"Secret deleted": func(t *testing.T, s *Switches, c *fake.Clientset, own *machineapi.OrlopMachine) {
			if err := c.CoreV1().Secrets(metav1.NamespaceSystem).Delete(t.Context(), "w1-power", metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
			s.Facts(t.Context(), own, false)
		},
		"too late": func(*testing.T, *Switches, *fake.Clientset, *machineapi.OrlopMachine) { time.Sleep(decisionTime) },
		"":         func(*testing.T, *Switches, *fake.Clientset, *machineapi.OrlopMachine) {},
	} {
		synctest.Test(t, func(t *testing.T) {
			client := fake.NewClientset(secretOf(nil))
			s := New(t.Context(), client, func() {})
			b := &board{uuid: uuid, state: machineprovider.StateOn, lag: 10 * time.Second}
			if name == "too late" {
				b.lag = decisionTime + time.Second
			}
			s.open = func(redfish.Config) (machineprovider.Machine, error) { return b, nil }
			own := &machineapi.OrlopMachine{ObjectMeta: metav1.ObjectMeta{Name: "w1"}, Spec: machineapi.OrlopMachineSpec{Power: &machineapi.MachinePower{Secret: "w1-power"}}}
			s.Facts(t.Context(), own, false)
			s.Call("w1", uuid, fence.TurnOff)
			time.Sleep(time.Second)
			withdraw(t, s, client, own)
			s.Facts(t.Context(), own, false)
			s.Want(map[string]fence.Action{"w1": fence.TurnOff})
			s.Call("w1", uuid, fence.TurnOff) // the first request still runs
			time.Sleep(time.Minute)
			if cut := b.state == machineprovider.StateOff; cut != (name == "") {
				t.Errorf("withdrawn by %q: the machine is off: %t, calls %q", name, cut, b.calls)
			}
			if want := map[bool]int{true: 3, false: 1}[name == ""]; len(b.calls) != want {
				t.Errorf("withdrawn by %q: calls %q, want %d", name, b.calls, want)
			}
		})
	}
}

// TestUnreadable checks that the facts of a machine state that its Secret and its pods cannot be
// read. This is no error of Facts, so the other machines of the pass are not affected.
func TestUnreadable(t *testing.T) {
	client := fake.NewClientset(secretOf(nil))
	client.PrependReactor("*", "*", func(k8stesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("no answer") })
	own := &machineapi.OrlopMachine{ObjectMeta: metav1.ObjectMeta{Name: "w1"}, Spec: machineapi.OrlopMachineSpec{Power: &machineapi.MachinePower{Secret: "w1-power"}}}
	f := New(t.Context(), client, func() {}).Facts(t.Context(), own, true)
	if f.Pods.Read || f.Switch.Access != "cannot read Secret kube-system/w1-power: no answer" {
		t.Errorf("%+v", f)
	}
}

// TestProblem checks that the texts for readers of Machines contain neither the address nor the
// user of a power switch.
func TestProblem(t *testing.T) {
	for _, kind := range []machineprovider.Kind{
		machineprovider.Unreachable, machineprovider.Untrusted, machineprovider.Unauthorized, machineprovider.Rejected,
	} {
		err := &machineprovider.Error{Kind: kind, Machine: "w1", Operation: "switch off", Reason: "Get https://192.0.2.1: no", Remedy: "check user orlop"}
		got := problemOf("w1", err)
		if !strings.HasPrefix(got, "machine w1: cannot switch off: the ") || strings.Contains(got, "192.0.2.1") || strings.Contains(got, "orlop") {
			t.Errorf("%s: %q", kind, got)
		}
	}
	if got := problemOf("w1", &machineprovider.Error{Kind: machineprovider.Conflict, Operation: "switch off", Reason: "it is busy"}); got != "machine w1: cannot switch off: it is busy" {
		t.Errorf("%q", got)
	}
}

// TestRenewed checks that Renewed reports true for a Lease that was renewed in the last 20 seconds.
// A renewal time in the future does not count. The controllers use Renewed for the quorum of etcd.
func TestRenewed(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	for age, want := range map[time.Duration]bool{0: true, 20 * time.Second: true, 21 * time.Second: false, -time.Hour: false} {
		at := metav1.NewMicroTime(now.Add(-age))
		if got := Renewed(&coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{RenewTime: &at}}, now); got != want {
			t.Errorf("a Lease renewed %v ago: %t", age, got)
		}
	}
	if Renewed(nil, now) || Renewed(&coordinationv1.Lease{}, now) {
		t.Error("Renewed reports true without a Lease or without a time")
	}
}
