package hosts

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/orlop-os/orlop/pkg/admission/inventory"
	"github.com/orlop-os/orlop/pkg/disruption/fence"
	"github.com/orlop-os/orlop/pkg/disruption/standby"
	"github.com/orlop-os/orlop/pkg/machineapi"
	"github.com/orlop-os/orlop/pkg/pki"
)

var start = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// world is a cluster in memory with waiting machines. The commands of a script change its state.
type world struct {
	t     *testing.T
	input string // the input of the present command
	Snapshot
	switches map[string]fence.Switch // by the name of the Secret
}

// fingerprint returns a fingerprint that begins with the digits n.
func fingerprint(n string) string { return "sha256:" + n + strings.Repeat("0", 64-len(n)) }

func (w *world) apply(c Change) {
	w.t.Helper()
	if c.Rule != nil {
		i := slices.IndexFunc(w.Rules, func(o *machineapi.OrlopApprovalRule) bool { return o.Name == c.Rule.Name })
		w.Rules[i] = c.Rule
		return
	}
	o := c.Object.DeepCopy()
	if i := slices.IndexFunc(w.Objects, func(o *machineapi.OrlopHost) bool { return o.Name == c.Object.Name }); i >= 0 {
		switch c.Verb {
		// a write of the specification does not change the status, and a write of the status does
		// not change the specification
		case Approve, Power, Equip:
			o.Status, o.Generation = w.Objects[i].Status, o.Generation+1
		case Status:
			o.Spec, o.Generation = w.Objects[i].Spec, w.Objects[i].Generation
		}
	}
	w.Objects = slices.DeleteFunc(slices.Clone(w.Objects), func(o *machineapi.OrlopHost) bool { return o.Name == c.Object.Name })
	if c.Verb == Delete {
		return
	}
	if c.Verb == Create {
		o.CreationTimestamp, o.Generation = metav1.NewTime(w.Now), 1
	}
	w.Objects = append(w.Objects, o)
}

// settle calls Plan and performs its changes until there are none. It returns one line for each
// change, and one for each call of a power switch by the last Plan.
func (w *world) settle() string {
	w.t.Helper()
	var lines []string
	for range 5 {
		w.Power = map[string]fence.Switch{}
		for _, h := range NeedPower(w.Snapshot) {
			w.Power[h.Name] = w.switches[h.Spec.Power.Secret]
		}
		r := Plan(w.Snapshot)
		for _, c := range r.Changes {
			w.apply(c)
			lines = append(lines, line(c))
		}
		for _, c := range r.Calls {
			if i := slices.IndexFunc(w.Objects, func(o *machineapi.OrlopHost) bool { return o.Name == c.Host.Name }); !reflect.DeepEqual(w.Objects[i].Spec, c.Host.Spec) {
				w.t.Errorf("Plan calls the power switch of %s and changes its specification at the same time", c.Host.Name)
			}
		}
		if len(r.Changes) == 0 {
			for _, c := range r.Calls {
				lines = append(lines, fmt.Sprintf("switch %s: %s", strings.TrimRight(c.Host.Name, "0"), c.Action))
			}
			return strings.Join(lines, "\n")
		}
	}
	w.t.Fatalf("changes remain after five passes: %s", strings.Join(lines, "\n"))
	return ""
}

func line(c Change) string {
	if c.Rule != nil {
		s := c.Rule.Status
		condition := meta.FindStatusCondition(s.Conditions, machineapi.ConditionValid)
		return fmt.Sprintf("%s: %d of %d approved, %d with an effect; Valid=%s %s: %s", c, s.Approved, s.Maximum, len(s.Approvals), condition.Status, condition.Reason, condition.Message)
	}
	text := fmt.Sprintf("%s %s", c.Verb, strings.TrimRight(c.Object.Name, "0"))
	if c.Verb == Approve {
		if c.Object.Spec.Approval == nil {
			return text + ": none"
		}
		return text + ": " + c.Object.Spec.Approval.Rule
	}
	if c.Verb == Power || c.Verb == Equip {
		o := Operation(c.Object)
		text += fmt.Sprintf(": phase %q for %q", o.Phase, o.For)
		if c.Verb == Equip {
			text += fmt.Sprintf(", power %s, labels %v", c.Object.Spec.Power.Secret, c.Object.Labels)
		}
		return text
	}
	if c.Verb != Status {
		return text
	}
	s := c.Object.Status
	seen := "never"
	if s.LastSeen != nil {
		seen = s.LastSeen.UTC().Format("15:04:05")
	}
	text += fmt.Sprintf(": %s %s, seen %s", s.Address, s.Inventory.Serial, seen)
	for _, kind := range []string{machineapi.ConditionWaiting, machineapi.ConditionApproved} {
		condition := meta.FindStatusCondition(s.Conditions, kind)
		text += fmt.Sprintf("; %s=%s %s", kind, condition.Status, condition.Reason)
		if strings.HasPrefix(condition.Reason, "Rule") || condition.Reason == "InUse" {
			text += ": " + condition.Message
		}
	}
	return text
}

func (w *world) object(n string) *machineapi.OrlopHost {
	w.t.Helper()
	for _, o := range w.Objects {
		if o.Name == machineapi.HostName(fingerprint(n)) {
			return o
		}
	}
	w.t.Fatalf("no object %s", n)
	return nil
}

// TestScripts runs the scripts in testdata. N is a hexadecimal number with which the fingerprint of
// a machine begins. These are the commands:
//
//	tell N ADDRESS SERIAL [UUID]   a machine without a configuration sends its inventory
//	equip N SECRET          an operator names the power switch of the machine, and labels its host
//	power SECRET on|off     the power switch with this Secret now reports on or off
//	return N                a MachineSet has returned the machine
//	order N SET             a MachineSet orders that the machine is switched on
//	node NAME [UUID]        a Node states a UUID; without the UUID, the Node is deleted
//	member NAME SECRET      the OrlopMachine NAME names the Secret of a power switch
//	board SECRET ADDRESS    the Secret of a power switch names the BMC with this address
//	unread                  the Secrets of the power switches cannot be read
//	leave N                 the machine is no member of the cluster any more
//	end N                   machined does not list the machine as waiting any more
//	join N                  the machine becomes a member of the cluster
//	approve N               an operator approves the machine
//	rule NAME MAXIMUM TTL [by=stranger] SERIAL...   an operator signs a rule; the input is its
//	                        expression
//	withdraw NAME           an operator deletes a rule
//	claim N                 a MachineSet claims the machine
//	effect N                machined records the approval of the machine by its rule
//	restart                 machined has restarted, and has no list yet
//	listing                 machined has a list again, without machines and members
//	foreign N               another program creates an OrlopHost with the name of the machine and
//	                        another fingerprint
//	wait DURATION           the time passes
//	settle                  Plan runs until it has no changes; the output is all changes and calls
//	show N                  the output is the OrlopHost of the machine
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		w := &world{t: t, Snapshot: Snapshot{Now: start, Operate: true, Boards: map[string]string{}}, switches: map[string]fence.Switch{}}
		w.Listing = inventory.Listing{Members: []string{}, Operators: pki.EncodeCert(operatorCA.Cert)}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			w.t, w.input = t, d.Input
			var args []string
			for _, a := range d.CmdArgs {
				args = append(args, a.String())
			}
			return w.command(d.Cmd, args)
		})
	})
}

func (w *world) command(name string, args []string) string {
	same := func(e inventory.Entry) bool { return e.Key == fingerprint(args[0]) }
	switch name {
	case "tell":
		e := inventory.Entry{Key: fingerprint(args[0]), Address: netip.MustParseAddr(args[1]), Since: w.Now, Last: w.Now, Host: inventory.Host{Serial: args[2], CPUs: 2}}
		if len(args) > 3 {
			e.Host.UUID = args[3]
		}
		w.Listing.Waiting = append(slices.DeleteFunc(w.Listing.Waiting, same), e)
	case "end":
		w.Listing.Waiting = slices.DeleteFunc(w.Listing.Waiting, same)
	case "join":
		w.Listing.Waiting = slices.DeleteFunc(w.Listing.Waiting, same)
		w.Listing.Members = append(w.Listing.Members, fingerprint(args[0]))
	case "approve":
		o := w.object(args[0])
		o.Spec.Approval, o.Generation = &machineapi.HostApproval{Fingerprint: o.Spec.Fingerprint}, o.Generation+1
	case "rule":
		w.rule(args)
	case "withdraw":
		w.Rules = slices.DeleteFunc(w.Rules, func(o *machineapi.OrlopApprovalRule) bool { return o.Name == args[0] })
	case "equip":
		o := w.object(args[0])
		o.Labels, o.Spec.Power = map[string]string{"rack": "7"}, &machineapi.MachinePower{Secret: args[1]}
	case "power":
		w.switches[args[0]] = fence.Switch{Reading: fence.Reading{Power: fence.Power(args[1]), At: w.Now}}
	case "return":
		o := w.object(args[0])
		o.Spec.Claim, o.Spec.Approval, o.Spec.Standby = nil, nil, Standby(standby.Operation{Phase: standby.SwitchOff, Since: w.Now})
	case "order":
		w.object(args[0]).Spec.Standby = Standby(standby.Operation{Phase: standby.SwitchOn, Since: w.Now, For: args[1]})
	case "node":
		w.Nodes = slices.DeleteFunc(w.Nodes, func(n *corev1.Node) bool { return n.Name == args[0] })
		if len(args) > 1 {
			w.Nodes = append(w.Nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: args[0]}, Status: corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{SystemUUID: args[1]}}})
		}
	case "member":
		w.Own = []*machineapi.OrlopMachine{{ObjectMeta: metav1.ObjectMeta{Name: args[0]}, Spec: machineapi.OrlopMachineSpec{Power: &machineapi.MachinePower{Secret: args[1]}}}}
	case "board":
		if w.Boards == nil {
			w.Boards = map[string]string{}
		}
		w.Boards[args[0]] = args[1]
	case "unread":
		w.Boards = nil
	case "leave":
		w.Listing.Members = slices.DeleteFunc(w.Listing.Members, func(key string) bool { return key == fingerprint(args[0]) })
	case "claim":
		w.object(args[0]).Spec.Claim = &machineapi.HostClaim{MachineSet: "rack7"}
	case "effect":
		w.effect(w.object(args[0]))
	case "listing":
		w.Listing = inventory.Listing{Members: []string{}, Operators: pki.EncodeCert(operatorCA.Cert)}
	case "restart":
		w.Listing = inventory.Listing{}
	case "foreign":
		w.Objects = append(w.Objects, &machineapi.OrlopHost{
			ObjectMeta: metav1.ObjectMeta{Name: machineapi.HostName(fingerprint(args[0])), CreationTimestamp: metav1.NewTime(w.Now)},
			Spec:       machineapi.OrlopHostSpec{Fingerprint: "sha256:" + strings.Repeat("f", 64)},
		})
	case "wait":
		length, err := time.ParseDuration(args[0])
		if err != nil {
			w.t.Fatal(err)
		}
		w.Now = w.Now.Add(length)
	case "settle":
		return w.settle()
	case "show":
		text, err := yaml.Marshal(w.object(args[0]))
		if err != nil {
			w.t.Fatal(err)
		}
		return string(text)
	default:
		w.t.Fatalf("unknown command %s", name)
	}
	return ""
}

// TestBound checks that an attacker with many keys cannot cause more than maxObjects objects.
func TestBound(t *testing.T) {
	w := &world{t: t, Snapshot: Snapshot{Now: start}}
	for round := range 10 {
		w.Listing.Waiting = nil
		for i := range 64 {
			w.Listing.Waiting = append(w.Listing.Waiting, inventory.Entry{Key: fingerprint(fmt.Sprintf("%02x%02x", round, i)), Address: netip.MustParseAddr("10.0.0.1"), Last: w.Now})
		}
		w.settle()
		if len(w.Objects) > maxObjects {
			t.Fatalf("round %d: there are %d objects, want at most maxObjects", round, len(w.Objects))
		}
		w.Now = w.Now.Add(3 * time.Minute)
	}
	w.Listing.Waiting = nil
	w.Now = w.Now.Add(deleteAfter)
	if w.settle(); len(w.Objects) > 0 {
		t.Errorf("%d objects of silent machines are not deleted", len(w.Objects))
	}
}

// TestWholeInventory checks that describeHost converts each field of an inventory.
func TestWholeInventory(t *testing.T) {
	h := inventory.Host{
		Serial: "a", UUID: "b", Vendor: "c", Product: "d", Firmware: "e", SecureBoot: "r", Controller: "f", CPUModel: "g", CPUs: 1, MemoryMiB: 2, Release: "h", Medium: "i",
		Disks: []inventory.Disk{{Name: "j", SizeMiB: 3, Model: "k", Serial: "l", Rotational: true}},
		NICs: []inventory.NIC{{Name: "m", MAC: "n", Driver: "o", SpeedMbps: 4, Carrier: true, Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")},
			Neighbors: []inventory.Neighbor{{System: "p", Port: "q"}}}},
	}
	want, err := yaml.Marshal(h)
	if err != nil {
		t.Fatal(err)
	}
	got, err := yaml.Marshal(describeHost(h))
	if err != nil || string(got) != string(want) {
		t.Errorf("%v\n%s\nwant\n%s", err, got, want)
	}
}

func TestRead(t *testing.T) {
	file := filepath.Join(t.TempDir(), "hosts.json")
	if all, err := Read(file); err != nil || len(all.Waiting) > 0 {
		t.Errorf("Read without a file: %v, %v, want an empty list", all, err)
	}
	for content, want := range map[string]string{`{"waiting":[{"key":"sha256:1","address":"10.0.0.1"}]}`: "", "[": "cannot decode", "": "cannot decode"} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		all, err := Read(file)
		if want == "" && (err != nil || len(all.Waiting) != 1) || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, %v", content, all, err)
		}
	}
}
