package claims

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"github.com/orlop-os/orlop/orchestrator/machines/hosts"
	"github.com/orlop-os/orlop/pkg/admission/claim"
	"github.com/orlop-os/orlop/pkg/admission/inventory"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/disruption/ondemand"
	"github.com/orlop-os/orlop/pkg/disruption/standby"
	"github.com/orlop-os/orlop/pkg/machineapi"
	"github.com/orlop-os/orlop/pkg/pki"
)

var start = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

// world simulates a cluster in memory. Its methods perform the changes of Plan, as the API server
// does, and process the list of claims and removals, as machined does.
type world struct {
	t    *testing.T
	now  time.Time
	uids int

	cluster     *clusterv1.Cluster
	deployments map[string]*clusterv1.MachineDeployment
	sets        map[string]*clusterv1.MachineSet
	templates   map[string]*machineapi.OrlopMachineTemplate
	hosts       map[string]*machineapi.OrlopHost
	machines    map[string]*clusterv1.Machine
	own         map[string]*machineapi.OrlopMachine
	members     map[string]string // names of the members, by key
	rules       []*machineapi.OrlopApprovalRule
}

func newWorld(t *testing.T) *world {
	w := &world{
		t: t, now: start, cluster: &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "c"}},
		deployments: map[string]*clusterv1.MachineDeployment{}, sets: map[string]*clusterv1.MachineSet{}, templates: map[string]*machineapi.OrlopMachineTemplate{},
		hosts: map[string]*machineapi.OrlopHost{}, machines: map[string]*clusterv1.Machine{}, own: map[string]*machineapi.OrlopMachine{}, members: map[string]string{},
	}
	return w
}

// signed, ruleOnly and keeps are templates that an operator has signed. ruleOnly accepts only
// machines that a rule approves. With the third template, keeps, a machine retains its data after
// its removal from the cluster. With the other two, the machine is wiped.
var signed, ruleOnly, keeps = sign(false, config.RemovalWipe), sign(true, config.RemovalWipe), sign(false, config.RemovalKeep)

// documents returns the configuration documents of a worker. The policy says whether the machine
// wipes its data when it is removed from the cluster.
func documents(policy config.OnRemoval) []byte {
	cert := func(name string) config.CertKey {
		ca, err := pki.NewCA(name, time.Hour)
		if err != nil {
			panic(err)
		}
		pair, err := config.NewCertKey(string(ca.CertPEM()), string(ca.KeyPEM()))
		if err != nil {
			panic(err)
		}
		return config.CertKey{Cert: pair.Cert}
	}
	endpoint, err := config.ParseEndpoint("https://10.0.0.11:6443")
	if err != nil {
		panic(err)
	}
	next := config.New("rack7", config.RoleWorker).WithCluster("orlop", endpoint, config.PKI{Kubernetes: cert("kubernetes"), Machine: cert("machine")}, config.EncryptionKey{})
	next.Cluster.Spec.JoinRequests = true
	return config.Marshal(next.WithJoin(config.Join{From: []string{"10.0.0.11"}, OnRemoval: policy}))
}

func sign(ruleOnly bool, policy config.OnRemoval) claim.Signed {
	ca, err := pki.NewCA("operator", 24*time.Hour)
	if err != nil {
		panic(err)
	}
	admin, err := ca.Issue(pki.Spec{CN: "alice", O: []string{pki.RoleAdmin}, Usage: pki.Client, TTL: 12 * time.Hour})
	if err != nil {
		panic(err)
	}
	now := time.Now().Truncate(time.Second)
	s, err := claim.Sign(claim.Template{Documents: documents(policy), Prefix: "rack7", Expires: now.Add(time.Hour), RuleOnly: ruleOnly}, admin, now)
	if err != nil {
		panic(err)
	}
	return s
}

func (w *world) uid() types.UID {
	w.uids++
	return types.UID(fmt.Sprint("uid-", w.uids))
}

func (w *world) template(name, match string) {
	o := &machineapi.OrlopMachineTemplate{ObjectMeta: metav1.ObjectMeta{Name: name}}
	o.Spec.Template.Spec = machineapi.ClaimSpec{Match: match, Documents: string(signed.Documents), Signature: string(signed.Signature)}
	w.templates[name] = o
}

func (w *world) deployment(name string, replicas int32) *clusterv1.MachineDeployment {
	d := &clusterv1.MachineDeployment{ObjectMeta: metav1.ObjectMeta{Name: name, UID: w.uid()}}
	d.Spec.ClusterName, d.Spec.Replicas = "c", &replicas
	d.Spec.Selector.MatchLabels = map[string]string{"set": name}
	d.Spec.Template.Labels = map[string]string{"set": name, clusterv1.MachineControlPlaneLabel: ""}
	d.Spec.Template.Spec.InfrastructureRef = clusterv1.ContractVersionedObjectReference{APIGroup: machineapi.GroupVersion.Group, Kind: "OrlopMachineTemplate", Name: name}
	w.deployments[name] = d
	return d
}

// host adds a waiting machine. Its key consists of the number in hexadecimal, repeated.
func (w *world) host(number int, approve bool) *machineapi.OrlopHost {
	key := "sha256:" + strings.Repeat(fmt.Sprintf("%08x", number), 8)
	h := &machineapi.OrlopHost{ObjectMeta: metav1.ObjectMeta{Name: machineapi.HostName(key)}, Spec: machineapi.OrlopHostSpec{Fingerprint: key}}
	h.Status.Inventory.CPUs = int32(number)
	if approve {
		h.Spec.Approval = &machineapi.HostApproval{Fingerprint: key}
	}
	meta.SetStatusCondition(&h.Status.Conditions, metav1.Condition{Type: machineapi.ConditionWaiting, Status: metav1.ConditionTrue, Reason: "NoConfiguration"})
	w.hosts[h.Name] = h
	return h
}

// controlPlane adds a control-plane machine with the finalizer and a claim. If set is not nil, its
// Machine also names the set as its controller. Plan must not delete this Machine.
func (w *world) controlPlane(name string, set *clusterv1.MachineSet) {
	o := &clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Name: name, UID: w.uid(), Finalizers: []string{Finalizer}}}
	if set != nil {
		o.OwnerReferences = []metav1.OwnerReference{{Kind: "MachineSet", Name: set.Name, UID: set.UID, Controller: new(true)}}
	}
	w.machines[name] = o
	w.own[name] = &machineapi.OrlopMachine{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: machineapi.OrlopMachineSpec{
		Role: machineapi.RoleControlPlane, Claim: &machineapi.MachineClaim{Fingerprint: "sha256:00", Template: "workers"},
	}}
}

func values[T any](m map[string]T) (all []T) {
	for _, k := range slices.Sorted(maps.Keys(m)) {
		all = append(all, m[k])
	}
	return all
}

func (w *world) snapshot() Snapshot {
	s := Snapshot{
		Now: w.now, Cluster: w.cluster, Deployments: values(w.deployments), Sets: values(w.sets), Templates: values(w.templates), Hosts: values(w.hosts),
		Machines: values(w.machines), Own: values(w.own), Rules: w.rules, Listing: inventory.Listing{Members: []string{}, Names: []string{}},
	}
	for key, name := range w.members {
		s.Listing.Members, s.Listing.Names, s.Nodes = append(s.Listing.Members, key), append(s.Listing.Names, name), append(s.Nodes, name)
	}
	return s
}

// pass calls Plan and performs its changes, as the API server does.
func (w *world) pass() Result {
	w.t.Helper()
	r := Plan(w.snapshot())
	for _, c := range r.Changes {
		w.do(c)
	}
	w.check(r)
	return r
}

func (w *world) do(c Change) {
	w.t.Helper()
	name := c.Object.GetName()
	switch o := c.Object.(type) {
	case *clusterv1.MachineSet:
		if c.Verb == Create {
			o.UID = w.uid()
		}
		w.sets[name] = o
	case *clusterv1.MachineDeployment:
		w.deployments[name] = o
	case *machineapi.OrlopHost:
		if old := w.hosts[name].Spec.Claim; old != nil && o.Spec.Claim != nil {
			w.t.Errorf("%s: the host is claimed twice", c)
		}
		if o.Spec.Claim != nil && !o.Approved() {
			w.t.Errorf("%s: the host is claimed without an approval", c)
		}
		w.hosts[name] = o
	case *machineapi.OrlopMachine:
		w.own[name] = o
	case *clusterv1.Machine:
		switch {
		case c.Verb == Create:
			if w.machines[name] != nil {
				w.t.Errorf("%s: an object of this name exists", c)
			}
			o.UID, o.CreationTimestamp = w.uid(), metav1.NewTime(w.now)
			w.machines[name] = o
		case c.Verb == Delete:
			w.delete(name)
		case c.Verb == Finalize && o.DeletionTimestamp != nil && len(o.Finalizers) == 0:
			delete(w.machines, name)
			delete(w.own, name) // as the garbage collector does
		}
	}
}

func (w *world) delete(name string) {
	if own := w.own[name]; own != nil && own.Spec.Role == machineapi.RoleControlPlane {
		w.t.Errorf("%s: a control-plane machine is deleted", name)
	}
	at := metav1.NewTime(w.now)
	o := w.machines[name].DeepCopy()
	o.DeletionTimestamp = &at
	w.machines[name] = o
}

// check checks the invariants after a pass.
func (w *world) check(r Result) {
	w.t.Helper()
	of := map[string]string{}
	for _, h := range w.hosts {
		if c := h.Spec.Claim; c != nil {
			if other := of[c.Machine]; other != "" {
				w.t.Errorf("the name %s is claimed for two hosts, %s and %s", c.Machine, other, h.Name)
			}
			of[c.Machine] = h.Name
		}
	}
	keys := map[string]string{}
	for name, o := range w.own {
		if c := o.Spec.Claim; c != nil {
			if other := keys[c.Fingerprint]; other != "" && o.Spec.Role == machineapi.RoleWorker {
				w.t.Errorf("the key %s belongs to two machines, %s and %s", c.Fingerprint, other, name)
			}
			keys[c.Fingerprint] = name
		}
	}
	for _, l := range r.List.Claims {
		if h := w.hosts[machineapi.HostName(l.Key)]; h != nil && !h.Approved() {
			w.t.Errorf("the list contains a claim of %s, whose host is not approved", l.Name)
		}
		if l.Name != claim.Name("rack7", l.Key) {
			w.t.Errorf("the list contains a claim of %s, but this is not the name for the key %s", l.Name, l.Key)
		}
	}
	for _, l := range r.List.Removals {
		if own := w.own[l.Name]; own.Spec.Role != machineapi.RoleWorker || w.machines[l.Name].DeletionTimestamp == nil {
			w.t.Errorf("%s is in the list of removals, but is a control-plane machine or has a Machine that is not deleted", l.Name)
		}
	}
}

// machined processes the entries of a list for which the function selects returns true. It admits
// each machine in list.Claims and removes each machine in list.Removals. A removed machine without
// a power switch waits again, with another key and without an approval.
func (w *world) machined(list claim.List, selects func(name string) bool) {
	for _, c := range list.Claims {
		if selects(c.Name) {
			w.members[c.Key] = c.Name
			w.joined(c.Key)
			o := w.machines[c.Name].DeepCopy()
			for _, kind := range []string{clusterv1.MachineReadyCondition, clusterv1.MachineAvailableCondition, clusterv1.MachineUpToDateCondition} {
				meta.SetStatusCondition(&o.Status.Conditions, metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: "Ready"})
			}
			w.machines[c.Name] = o
		}
	}
	for _, m := range list.Removals {
		if selects(m.Name) && w.members[m.Key] == m.Name {
			delete(w.members, m.Key)
			if h := w.hosts[machineapi.HostName(m.Key)]; h == nil || h.Spec.Power == nil {
				w.host(1000+w.uids, false)
				w.uids++
			}
		}
	}
}

// joined updates the OrlopHost of a machine that has joined, as package hosts does. A host with a
// power switch does not wait any more; any other host is deleted.
func (w *world) joined(key string) {
	name := machineapi.HostName(key)
	if h := w.hosts[name]; h == nil || h.Spec.Power == nil {
		delete(w.hosts, name)
		return
	}
	w.waits(name, false)
}

// waits sets the condition Waiting of a host to the value waits.
func (w *world) waits(name string, waits bool) *machineapi.OrlopHost {
	h := w.hosts[name].DeepCopy()
	c := metav1.Condition{Type: machineapi.ConditionWaiting, Status: metav1.ConditionFalse, Reason: "Silent"}
	if waits {
		c.Status, c.Reason = metav1.ConditionTrue, "NoConfiguration"
	}
	meta.SetStatusCondition(&h.Status.Conditions, c)
	w.hosts[name] = h
	return h
}

// switches performs the operations of the power switches, as package hosts does. It switches off
// each returned machine and each machine that is not needed. A machine that it switches on reports
// with another key, so it gets a new host, which inherits the power switch of the previous one.
func (w *world) switches() {
	for _, h := range values(w.hosts) {
		switch o := hosts.Operation(h); o.Phase {
		case standby.SwitchOff:
			if w.members[h.Spec.Fingerprint] != "" || h.Spec.Claim != nil || h.Spec.Approval != nil {
				w.t.Errorf("%s is switched off: %+v", h.Name, h.Spec)
			}
			h.Spec.Standby.Phase = string(standby.Off)
		case standby.Surplus:
			h.Spec.Standby.Phase = string(standby.Off)
			w.waits(h.Name, false)
		case standby.SwitchOn:
			w.uids++
			next := w.host(2000+w.uids, false)
			next.Spec.Power, next.Labels, next.Status.Inventory = h.Spec.Power, h.Labels, h.Status.Inventory
			next.Spec.Standby = hosts.Standby(standby.Operation{Phase: standby.Reported, Since: w.now, For: o.For})
			delete(w.hosts, h.Name)
		}
	}
}

// ordered returns the names of the hosts that are switched on for a set and not claimed.
func (w *world) ordered(set string) (names []string) {
	for _, h := range values(w.hosts) {
		if o := hosts.Operation(h); o.For == set && h.Spec.Claim == nil {
			names = append(names, h.Name)
		}
	}
	return names
}

func all(string) bool { return true }

// settleDown repeats passes until nothing changes. After each pass, all machines in the list join
// or leave.
func (w *world) settleDown() {
	w.t.Helper()
	for range 40 {
		r := w.pass()
		w.machined(r.List, all)
		w.switches()
		w.now = w.now.Add(settle)
		if len(r.Changes) == 0 && len(r.List.Claims) == 0 && len(r.List.Removals) == 0 {
			return
		}
	}
	w.t.Errorf("the changes do not end: %v", Plan(w.snapshot()).Changes)
}

// machinesOf returns the names of the workers that have a Machine which is not deleted.
func (w *world) machinesOf() (names []string) {
	for _, m := range values(w.machines) {
		if m.DeletionTimestamp == nil && w.own[m.Name] != nil && w.own[m.Name].Spec.Role == machineapi.RoleWorker {
			names = append(names, m.Name)
		}
	}
	return names
}

// TestScale scales a MachineDeployment from one machine to three and back to one. Only hosts that
// are approved and match the template are claimed.
func TestScale(t *testing.T) {
	w := newWorld(t)
	w.template("workers", "host.cpus < 5 && host.labels.rack == '7'")
	for n := 1; n <= 5; n++ {
		h := w.host(n, n != 2)
		if n != 4 {
			h.Labels = map[string]string{"rack": "7"}
		}
	}
	d := w.deployment("workers", 1)
	w.settleDown()
	if got := w.machinesOf(); !slices.Equal(got, []string{"rack7-00000001"}) {
		t.Fatalf("%v", got)
	}
	m := w.machines["rack7-00000001"]
	if _, controlPlane := m.Labels[clusterv1.MachineControlPlaneLabel]; controlPlane || m.Spec.ProviderID != "orlop:///c/rack7-00000001" || m.Labels["set"] != "workers" || m.Labels[clusterv1.MachineDeploymentNameLabel] != "workers" {
		t.Errorf("%+v", m)
	}
	w.deployments["workers"].Spec.Replicas = new(int32(3))
	w.settleDown()
	if got := w.machinesOf(); !slices.Equal(got, []string{"rack7-00000001", "rack7-00000003"}) {
		t.Errorf("machines 2 (no approval), 4 (no label) and 5 (too large) must not be claimed: %v", got)
	}
	d = w.deployments["workers"]
	c := meta.FindStatusCondition(d.Status.Conditions, clusterv1.MachineDeploymentScalingUpCondition)
	if c == nil || c.Reason != reasonNoHost || !strings.Contains(c.Message, "1 more approved OrlopHosts") || !strings.Contains(c.Message, "1 that match are not approved") || ptr.Deref(d.Status.ReadyReplicas, 0) != 2 || d.Status.Phase != "ScalingUp" {
		t.Errorf("%+v, %+v", c, d.Status)
	}
	w.hosts[w.host(2, true).Name].Labels = map[string]string{"rack": "7"}
	w.settleDown()
	if d = w.deployments["workers"]; len(w.machinesOf()) != 3 || !meta.IsStatusConditionTrue(d.Status.Conditions, clusterv1.MachineDeploymentAvailableCondition) || d.Status.Phase != "Running" {
		t.Errorf("%v, %+v", w.machinesOf(), d.Status)
	}
	w.machines["rack7-00000002"].Annotations = map[string]string{clusterv1.DeleteMachineAnnotation: ""}
	w.deployments["workers"].Spec.Replicas = new(int32(1))
	w.settleDown()
	if got := w.machinesOf(); !slices.Equal(got, []string{"rack7-00000001"}) || len(w.members) != 1 || len(w.machines) != 1 {
		t.Errorf("%v, %v", got, w.members)
	}
}

// TestDeletion deletes the Machine of a member. It checks that the object exists until the machine
// is no longer a member and cannot join any more, and that the set claims another machine.
func TestDeletion(t *testing.T) {
	w := newWorld(t)
	w.template("workers", "")
	w.host(1, true)
	w.deployment("workers", 1)
	w.settleDown()
	w.host(2, true)
	w.delete("rack7-00000001")
	r := w.pass()
	if len(r.List.Removals) != 1 || r.List.Removals[0].Name != "rack7-00000001" {
		t.Errorf("%+v", r.List)
	}
	w.now = w.now.Add(time.Hour)
	w.pass()
	if w.machines["rack7-00000001"] == nil {
		t.Error("the Machine of a member was deleted")
	}
	unknown := w.snapshot()
	unknown.Listing = inventory.Listing{}
	if r := Plan(unknown); slices.ContainsFunc(r.Changes, func(c Change) bool { return c.Verb == Finalize }) {
		t.Error("the Machine was deleted although the members are unknown")
	}
	w.settleDown()
	if got := w.machinesOf(); !slices.Equal(got, []string{"rack7-00000002"}) || w.machines["rack7-00000001"] != nil {
		t.Errorf("%v", got)
	}
}

// TestNoJoin scales a MachineDeployment to zero while its claimed machine has not joined yet. It
// checks that the object Machine exists until the machine cannot get a ticket any more.
func TestNoJoin(t *testing.T) {
	w := newWorld(t)
	w.template("workers", "")
	h := w.host(1, true)
	w.deployment("workers", 1)
	for range 6 {
		w.pass()
	}
	r := w.pass()
	if len(r.List.Claims) != 1 || len(r.Changes) != 0 {
		t.Fatalf("%v, %v", r.List.Claims, r.Changes)
	}
	// The machine has got its configuration and sends no inventory any more.
	h = w.hosts[h.Name].DeepCopy()
	meta.SetStatusCondition(&h.Status.Conditions, metav1.Condition{Type: machineapi.ConditionWaiting, Status: metav1.ConditionFalse, Reason: "Silent"})
	w.hosts[h.Name] = h
	w.deployments["workers"].Spec.Replicas = new(int32(0))
	w.pass()
	w.pass()
	r = w.pass()
	if len(r.List.Claims) != 0 || len(r.List.Removals) != 1 || w.machines["rack7-00000001"] == nil {
		t.Errorf("%v, %v", r.List.Claims, r.List.Removals)
	}
	w.settleDown()
	if len(w.machines) != 0 || w.hosts[h.Name].Spec.Claim != nil {
		t.Errorf("%v, %+v", w.machines, w.hosts[h.Name])
	}
}

// TestTemplate checks the conditions for templates that cannot be used. It also checks that claims
// end when the MachineDeployment and its set are deleted.
func TestTemplate(t *testing.T) {
	w := newWorld(t)
	w.host(1, true)
	w.deployment("workers", 1)
	reason := func() string {
		t.Helper()
		w.settleDown()
		c := meta.FindStatusCondition(w.deployments["workers"].Status.Conditions, clusterv1.MachineDeploymentScalingUpCondition)
		return c.Reason + ": " + c.Message
	}
	if got := reason(); !strings.HasPrefix(got, "TemplateUnusable: spec.template.spec.infrastructureRef: there is no OrlopMachineTemplate workers") {
		t.Error(got)
	}
	w.template("workers", "host.cpu > 1")
	if got := reason(); !strings.Contains(got, "is not an expression about a host") {
		t.Error(got)
	}
	w.template("workers", "")
	w.templates["workers"].Spec.Template.Spec.Signature = "none"
	if got := reason(); !strings.Contains(got, "the signature does not begin") {
		t.Error(got)
	}
	if len(w.machines) != 0 {
		t.Errorf("%v", w.machines)
	}
	w.template("workers", "")
	w.pass()
	delete(w.deployments, "workers")
	delete(w.sets, "workers")
	w.pass()
	for _, h := range w.hosts {
		if h.Spec.Claim != nil {
			t.Errorf("%s still has its claim", h.Name)
		}
	}
}

// TestRandomWorlds makes random changes to many clusters. It checks that only approved hosts are
// claimed, that no host is claimed twice, and that no control-plane machine is removed. In the end,
// the changes stop, and no set has more machines than its replicas. The number of hosts that stay
// switched on for a set is not larger than the number of its missing machines.
func TestRandomWorlds(t *testing.T) {
	for seed := range uint64(400) {
		r := rand.New(rand.NewPCG(seed, 1))
		w := newWorld(t)
		names := []string{"a", "b"}
		for _, name := range names {
			w.template(name, []string{"", "host.cpus % 2 == 0"}[r.IntN(2)])
			w.deployment(name, int32(r.IntN(4)))
		}
		next := 1
		for range 30 {
			switch r.IntN(8) {
			case 0:
				if h := w.host(next, r.IntN(3) > 0); r.IntN(2) == 0 {
					h.Spec.Power = &machineapi.MachinePower{Secret: fmt.Sprint("power", next)}
				}
				next++
			case 1:
				w.deployments[names[r.IntN(2)]].Spec.Replicas = new(int32(r.IntN(4)))
			case 2:
				if m := w.machinesOf(); len(m) > 0 {
					w.delete(m[r.IntN(len(m))])
				}
			case 3:
				if h := values(w.hosts); len(h) > 0 {
					one := h[r.IntN(len(h))].DeepCopy()
					meta.SetStatusCondition(&one.Status.Conditions, metav1.Condition{Type: machineapi.ConditionWaiting, Status: metav1.ConditionFalse, Reason: "Silent"})
					w.hosts[one.Name] = one
				}
			case 4:
				if w.sets["a"] != nil && w.machines["cp"] == nil {
					w.controlPlane("cp", w.sets["a"])
				}
			default:
				list := w.pass().List
				w.machined(list, func(string) bool { return r.IntN(2) == 0 })
				if r.IntN(2) == 0 {
					w.switches()
				}
				w.now = w.now.Add(time.Duration(r.IntN(60)) * time.Second)
			}
		}
		w.settleDown()
		for _, name := range names {
			live := 0
			for _, m := range w.machines {
				if metav1.IsControlledBy(m, w.sets[name]) && m.Name != "cp" && m.DeletionTimestamp == nil {
					live++
				}
			}
			want := int(*w.deployments[name].Spec.Replicas)
			if live > want {
				t.Errorf("seed %d: set %s has %d machines, want %d", seed, name, live, want)
			}
			if on := w.ordered(name); len(on) > max(0, want-live) {
				t.Errorf("seed %d: set %s has %d of %d machines, and hosts %v stay on for it", seed, name, live, want, on)
			}
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// TestRules checks that the list for machined contains the rule of a claim, and that a template
// with RuleOnly accepts only machines that a rule approves. A later approval of the fingerprint by
// an operator replaces the rule.
func TestRules(t *testing.T) {
	w := newWorld(t)
	w.template("workers", "")
	w.templates["workers"].Spec.Template.Spec.Documents, w.templates["workers"].Spec.Template.Spec.Signature = string(ruleOnly.Documents), string(ruleOnly.Signature)
	w.deployment("workers", 1)
	h := w.host(1, true)
	for range 3 {
		w.pass()
	}
	c := meta.FindStatusCondition(w.sets["workers"].Status.Conditions, clusterv1.MachineSetScalingUpCondition)
	if w.hosts[h.Name].Spec.Claim != nil || c == nil || !strings.Contains(c.Message, "1 that match are not approved by an OrlopApprovalRule, which the template demands") {
		t.Fatalf("claim %+v, condition %+v", w.hosts[h.Name].Spec.Claim, c)
	}
	h.Spec.Approval.Rule = "rack"
	var r Result
	pass := func() {
		for range 4 {
			r = w.pass()
		}
	}
	if pass(); w.hosts[h.Name].Spec.Claim == nil || len(r.List.Claims) > 0 {
		t.Fatalf("the list contains a claim, but not its rule, which does not exist: %+v", r.List)
	}
	w.rules = []*machineapi.OrlopApprovalRule{{ObjectMeta: metav1.ObjectMeta{Name: "rack"}, Spec: machineapi.OrlopApprovalRuleSpec{Rule: "text", Signature: "signature"}}, {ObjectMeta: metav1.ObjectMeta{Name: "other"}}}
	pass()
	if len(r.List.Claims) != 1 || r.List.Claims[0].Rule != "rack" || len(r.List.Rules) != 1 || string(r.List.Rules["rack"].Text) != "text" || string(r.List.Rules["rack"].Signature) != "signature" {
		t.Fatalf("%+v", r.List)
	}
	if own := w.own[r.List.Claims[0].Name]; own == nil || own.Spec.Claim.Rule != "rack" {
		t.Errorf("%+v", own)
	}
	w.hosts[h.Name].Spec.Approval.Rule = "" // an operator approves the fingerprint
	if pass(); len(r.List.Claims) != 1 || r.List.Claims[0].Rule != "" || len(r.List.Rules) != 0 {
		t.Errorf("%+v", r.List)
	}
	delete(w.hosts, h.Name)
	if pass(); len(r.List.Claims) != 1 || r.List.Claims[0].Rule != "rack" {
		t.Errorf("the claim does not have the rule of the OrlopMachine after the deletion of the OrlopHost: %+v", r.List)
	}
}

// TestDemandCondition checks the condition OnDemand of a MachineDeployment. Only a
// MachineDeployment with the annotations of power on demand has the condition.
func TestDemandCondition(t *testing.T) {
	w := newWorld(t)
	d := w.deployment("workers", 0)
	find := func(v *ondemand.Verdict) *metav1.Condition {
		t.Helper()
		s := w.snapshot()
		if v != nil {
			s.Demand = map[string]ondemand.Verdict{"workers": *v}
		}
		for _, c := range Plan(s).Changes {
			w.do(c)
		}
		return meta.FindStatusCondition(w.deployments["workers"].Status.Conditions, machineapi.ConditionOnDemand)
	}
	full := &ondemand.Verdict{State: ondemand.Full, Message: "the maximum is 1"}
	if c := find(full); c != nil {
		t.Errorf("a MachineDeployment without annotations has the condition %+v", c)
	}
	w.deployments["workers"].Annotations = map[string]string{machineapi.MaxSizeAnnotation: "1"}
	if c := find(full); c != nil {
		t.Errorf("a MachineDeployment for which no operator enabled power on demand has the condition %+v", c)
	}
	w.deployments["workers"].Annotations[machineapi.OnDemandAnnotation] = "true"
	if c := find(full); c == nil || c.Status != metav1.ConditionFalse || c.Reason != "MaximumReached" || c.Message != "the maximum is 1" {
		t.Errorf("%+v", c)
	}
	if c := find(nil); c == nil || c.Reason != "MaximumReached" {
		t.Errorf("a new leader has changed the condition before its first decision: %+v", c)
	}
	if c := find(&ondemand.Verdict{State: ondemand.Steady}); c == nil || c.Status != metav1.ConditionTrue {
		t.Errorf("%+v", c)
	}
	w.deployments["workers"].Annotations = nil
	if c := find(full); c != nil {
		t.Errorf("%s has the condition %+v after its annotations were removed", d.Name, c)
	}
}
