package localvolumes

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

const (
	mib = 1 << 20
	gib = 1 << 30
)

// uid returns the UID of the n-th claim or snapshot.
func uid(n int) string { return fmt.Sprintf("%08d-0000-4000-8000-000000000000", n) }

func named(n int) string { return "pvc-" + uid(n) }

// claim returns the n-th claim, of class local. node is the node that the scheduler has selected.
func claim(n int, node string, size int64) Claim {
	return Claim{Key: fmt.Sprintf("default/c%d", n), UID: uid(n), Created: time.Unix(int64(n), 0), Class: "local", Node: node, Size: size}
}

// volumeOf returns the volume of the n-th claim.
func volumeOf(n int, node string, size int64) Volume {
	return Volume{Name: named(n), Node: node, Filesystem: "f1", ClaimUID: uid(n), Size: size}
}

func snapped(n int) string { return "snapshot-" + uid(n) }

// snapshotOf returns the n-th snapshot, of the n-th claim.
func snapshotOf(n int) Snapshot {
	return Snapshot{Key: fmt.Sprintf("default/s%d", n), UID: uid(n), Created: time.Unix(int64(n), 0), Claim: fmt.Sprintf("default/c%d", n)}
}

// contentOf returns the content of the n-th snapshot, which is of the n-th volume. taken is the
// time at which the snapshot was taken; 0 means that it was not taken yet.
func contentOf(n int, node string, size, taken int64) Content {
	return Content{Name: "snapcontent-" + uid(n), Handle: snapped(n), Of: named(n), Snapshot: uid(n), Key: fmt.Sprintf("default/s%d", n),
		Node: node, Filesystem: "f1", Size: size, State: State{Taken: taken, Ready: taken != 0, Size: min(taken, 1) * size}}
}

// able returns a node with a DATA partition of 10 GiB. The reserve is 2.5 GiB, and 1.5 GiB must
// stay free for the kubelet, so Step can promise 6 GiB.
func able(name string, there map[string]int64) Node {
	return Node{Name: name, Hostname: name, Report: Report{Filesystem: "f1", Size: 10 * gib, Volumes: there}}
}

var (
	local   = []StorageClass{{Name: "local"}}
	keepers = []SnapshotClass{{Name: "snap", Default: true}}
)

func TestLeft(t *testing.T) {
	for _, c := range []struct {
		title    string
		reserve  int64
		size     int64
		there    map[string]int64
		volumes  []Volume
		contents []Content
		want     int64
	}{
		{"a small disk", 0, 1600 * mib, nil, nil, nil, 960 * mib},
		{"20 GiB of a larger disk are reserved", 0, 160 * gib, nil, nil, nil, 116 * gib},
		{"a tenth of a very large disk is reserved", 0, 1000 * gib, nil, nil, nil, 750 * gib},
		{"a configured reserve", 5 * gib, 100 * gib, nil, nil, nil, 80 * gib},
		{"a promised volume, and one on another node", gib, 100 * gib, nil, []Volume{volumeOf(1, "a", 4*gib), volumeOf(2, "b", 4*gib)}, nil, 80 * gib},
		{"a volume that is promised and exists counts once", gib, 100 * gib, map[string]int64{named(1): 4 * gib}, []Volume{volumeOf(1, "a", 4*gib)}, nil, 80 * gib},
		{"the limit is larger than the promise", gib, 100 * gib, map[string]int64{named(1): 9 * gib}, []Volume{volumeOf(1, "a", 4*gib)}, nil, 75 * gib},
		{"a volume that exists without a promise", gib, 100 * gib, map[string]int64{named(1): 4 * gib}, nil, nil, 80 * gib},
		{"a volume that was promised before a reset", gib, 100 * gib, nil, []Volume{{Name: named(1), Node: "a", Filesystem: "f0", Size: 4 * gib}}, nil, 84 * gib},
		{"a snapshot that is not taken counts as its volume", gib, 100 * gib, map[string]int64{snapped(1): gib}, nil, []Content{contentOf(1, "a", 4*gib, 0)}, 80 * gib},
		{"a snapshot that is taken counts with the size of its data", gib, 100 * gib, map[string]int64{snapped(1): gib}, nil, []Content{contentOf(1, "a", 4*gib, 7)}, 83 * gib},
		{"a snapshot that is lost does not count", gib, 100 * gib, nil, nil, []Content{contentOf(1, "a", 4*gib, 7)}, 84 * gib},
		{"the reserve became larger", 90 * gib, 100 * gib, nil, nil, nil, -5 * gib},
	} {
		n := Node{Name: "a", Hostname: "a", Report: Report{Filesystem: "f1", Size: c.size, Volumes: c.there}}
		if got := left(c.reserve, n, c.volumes, c.contents).bytes; got/mib != c.want/mib {
			t.Errorf("%s: %d MiB, want %d", c.title, got/mib, c.want/mib)
		}
	}
}

func TestStep(t *testing.T) {
	full := Capacity{Name: capacityName("local", "a"), Class: "local", Hostname: "a", Bytes: left(0, able("a", nil), nil, nil).bytes}
	left := func(bytes int64) []Capacity {
		c := full
		c.Bytes = bytes
		return []Capacity{c}
	}
	bound := func(n int, size, has int64) Claim {
		c := claim(n, "a", size)
		c.Volume, c.Has = named(n), has
		return c
	}
	with := func(v Volume, change func(v *Volume)) Volume {
		change(&v)
		return v
	}
	for _, c := range []struct {
		title string
		input Input
		want  []string
	}{
		{"the first node", Input{Nodes: []Node{able("a", nil)}, Classes: local}, []string{
			"capacity " + full.Name + ": class local has 6442450944 bytes on a",
		}},
		{"an unchanged capacity", Input{Nodes: []Node{able("a", nil)}, Classes: local, Capacities: []Capacity{full}}, nil},
		{"the scheduler has not selected a node", Input{Nodes: []Node{able("a", nil)}, Classes: local, Capacities: []Capacity{full}, Claims: []Claim{claim(1, "", gib)}}, nil},
		{"a claim", Input{Nodes: []Node{able("a", nil)}, Classes: local, Capacities: []Capacity{full}, Claims: []Claim{claim(1, "a", gib)}}, []string{
			"give claim default/c1 volume " + named(1) + " on a (1073741824 bytes)",
			"capacity " + full.Name + ": class local has 5368709120 bytes on a",
		}},
		{"two claims, and space for the older one", Input{Nodes: []Node{able("a", nil)}, Classes: local, Capacities: left(2 * gib),
			Claims: []Claim{claim(2, "a", 3*gib), claim(1, "a", 4*gib)}}, []string{
			"give claim default/c1 volume " + named(1) + " on a (4294967296 bytes)",
			"request another node for claim default/c2: node a has room for 2 GiB, but 3 GiB are requested",
		}},
		{"the volume exists already", Input{Nodes: []Node{able("a", nil)}, Classes: local, Capacities: left(5 * gib),
			Claims: []Claim{claim(1, "a", gib)}, Volumes: []Volume{volumeOf(1, "a", gib)}}, nil},
		{"a node without quotas", Input{Nodes: []Node{{Name: "a", Hostname: "a", Report: Report{Problem: "too old"}}}, Classes: local, Capacities: []Capacity{full},
			Claims: []Claim{claim(1, "a", gib)}}, []string{
			"request another node for claim default/c1: node a has no volumes: too old",
			"drop capacity " + full.Name,
		}},
		{"a deleted node", Input{Classes: local, Claims: []Claim{claim(1, "a", gib)}}, []string{
			"request another node for claim default/c1: node a does not exist",
		}},
		{"a claim that cannot be served", Input{Classes: local, Claims: []Claim{{Key: "default/c1", UID: uid(1), Class: "local", Problem: "a block device"}}}, []string{
			"reject claim default/c1: a block device",
		}},
		{"a claim of a class that does not wait for its pod", Input{Classes: []StorageClass{{Name: "hasty", Immediate: true}}, Claims: []Claim{{Key: "default/c1", UID: uid(1), Class: "hasty"}}}, []string{
			"reject claim default/c1: a local volume is created where its pod runs: volumeBindingMode of StorageClass hasty must be WaitForFirstConsumer",
		}},
		{"a claim of another class", Input{Classes: local, Claims: []Claim{{Key: "default/c1", UID: uid(1), Class: "other", Node: "a"}}}, nil},
		{"a claim requests more space", Input{Nodes: []Node{able("a", nil)}, Classes: local, Capacities: left(4 * gib),
			Claims: []Claim{bound(1, 2*gib, gib)}, Volumes: []Volume{volumeOf(1, "a", gib)}}, []string{
			"grow volume " + named(1) + " to 2147483648 bytes",
		}},
		{"the growth is promised, and the kubelet must perform it", Input{Nodes: []Node{able("a", nil)}, Classes: local, Capacities: left(4 * gib),
			Claims: []Claim{bound(1, 2*gib, gib)}, Volumes: []Volume{volumeOf(1, "a", 2*gib)}}, []string{
			"grow claim default/c1 to 2147483648 bytes",
		}},
		{"a claim requests more space than the node has", Input{Nodes: []Node{able("a", nil)}, Classes: local, Capacities: left(5 * gib),
			Claims: []Claim{bound(1, 9*gib, gib)}, Volumes: []Volume{volumeOf(1, "a", gib)}}, []string{
			"reject claim default/c1: node a has room for 5 GiB more, but 8 GiB are requested",
		}},
		{"a lost volume does not grow", Input{Nodes: []Node{able("a", nil)}, Classes: local, Capacities: []Capacity{full},
			Claims: []Claim{bound(1, 2*gib, gib)}, Volumes: []Volume{with(volumeOf(1, "a", gib), func(v *Volume) { v.Filesystem = "f0" })}}, []string{
			"reject claim default/c1: volume " + named(1) + " cannot grow: it was lost with node a or with the former contents of its disk",
		}},
		{"the volume of another claim does not grow", Input{Nodes: []Node{able("a", nil)}, Classes: local, Capacities: left(5 * gib),
			Claims: []Claim{bound(1, 2*gib, gib)}, Volumes: []Volume{with(volumeOf(1, "a", gib), func(v *Volume) { v.ClaimUID = uid(2) })}}, nil},
		{"a released volume", Input{Nodes: []Node{able("a", map[string]int64{named(1): gib})}, Classes: local, Capacities: left(5 * gib),
			Volumes: []Volume{with(volumeOf(1, "a", gib), func(v *Volume) { v.Released = true })}}, []string{
			"delete volume " + named(1),
		}},
		{"a released volume that is retained", Input{Nodes: []Node{able("a", map[string]int64{named(1): gib})}, Classes: local, Capacities: left(5 * gib),
			Volumes: []Volume{with(volumeOf(1, "a", gib), func(v *Volume) { v.Released, v.Retain = true, true })}}, nil},
		{"a volume is deleted while it is used", Input{Nodes: []Node{able("a", map[string]int64{named(1): gib})}, Classes: local, Capacities: left(5 * gib),
			Volumes: []Volume{with(volumeOf(1, "a", gib), func(v *Volume) { v.Deleting = true })}}, nil},
		{"the data of a volume are to be destroyed", Input{Nodes: []Node{able("a", map[string]int64{named(1): gib})}, Classes: local, Capacities: left(5 * gib),
			Volumes: []Volume{with(volumeOf(1, "a", gib), func(v *Volume) { v.Released, v.Deleting = true, true })}}, []string{
			"request node a to destroy: " + named(1),
		}},
		{"the data of a volume were destroyed", Input{Classes: local, Capacities: left(5 * gib),
			Nodes:   []Node{{Name: "a", Hostname: "a", Obsolete: []string{named(1)}, Report: Report{Filesystem: "f1", Size: 10 * gib, Removed: []string{named(1)}}}},
			Volumes: []Volume{with(volumeOf(1, "a", gib), func(v *Volume) { v.Released, v.Deleting = true, true })}}, []string{
			"finish volume " + named(1),
			"request node a to destroy: nothing",
		}},
		{"a volume that is in no list of the report is not considered destroyed", Input{Nodes: []Node{{Name: "a", Hostname: "a", Obsolete: []string{named(1)}, Report: Report{Filesystem: "f1", Size: 10 * gib}}},
			Classes: local, Capacities: left(5 * gib),
			Volumes: []Volume{with(volumeOf(1, "a", gib), func(v *Volume) { v.Released, v.Deleting = true, true })}}, nil},
		{"a deleted volume was lost with its machine", Input{Classes: local, Volumes: []Volume{with(volumeOf(1, "a", gib), func(v *Volume) { v.Released, v.Deleting = true, true })}}, []string{
			"finish volume " + named(1),
		}},
		{"a deleted volume was lost with a reset", Input{Nodes: []Node{able("a", nil)}, Classes: local, Capacities: []Capacity{full},
			Volumes: []Volume{with(volumeOf(1, "a", gib), func(v *Volume) { v.Released, v.Deleting, v.Filesystem = true, true, "f0" })}}, []string{
			"finish volume " + named(1),
		}},
		{"a volume without a claim stays, and counts", Input{Nodes: []Node{able("a", map[string]int64{named(1): gib})}, Classes: local, Capacities: left(5 * gib)}, nil},
	} {
		var got []string
		for _, op := range Step(c.input) {
			got = append(got, op.String())
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s:\n%s\nwant:\n%s", c.title, strings.Join(got, "\n"), strings.Join(c.want, "\n"))
		}
	}
}

// cluster simulates the environment of Step: the API server, the scheduler, the kubelets and the
// disks.
type cluster struct {
	Input
	disks map[string]map[string]int64 // quotas of the volumes on each node
	data  map[string]int              // contents of each volume and snapshot, as a number
	gone  map[string]bool             // destroyed volumes and snapshots
	t     *testing.T
}

// apply performs an operation on the objects, as the API server does. It fails the test if the
// operation would lose data that are still needed.
func (c *cluster) apply(op Op) {
	claim := func(key string) *Claim {
		return &c.Claims[slices.IndexFunc(c.Claims, func(x Claim) bool { return x.Key == key })]
	}
	volume := func(name string) int {
		return slices.IndexFunc(c.Volumes, func(v Volume) bool { return v.Name == name })
	}
	switch o := op.(type) {
	case CreateVolume:
		target := claim(o.Claim)
		c.Volumes = append(c.Volumes, Volume{Name: o.Name, Node: o.Hostname, Filesystem: o.Filesystem, ClaimUID: target.UID, Size: o.Size, Source: o.Source})
		target.Volume, target.Has = o.Name, o.Size // the binding by kube-controller-manager
	case Reschedule:
		claim(o.Claim).Node = ""
	case GrowVolume:
		c.Volumes[volume(o.Name)].Size = o.Size
	case GrowClaim:
		target := claim(o.Claim)
		v := c.Volumes[volume(target.Volume)]
		if has, there := c.disks[v.Node][v.Name]; there { // the kubelet raises the quota at once
			c.disks[v.Node][v.Name] = max(has, v.Size)
			target.Has = v.Size
		}
	case DeleteVolume:
		c.Volumes[volume(o.Name)].Deleting = true
	case Finish:
		i := volume(o.Name)
		c.ends(op, c.Volumes[i].Node, c.Volumes[i].Filesystem, o.Name)
		c.Volumes = slices.Delete(c.Volumes, i, i+1)
	case Destroy:
		c.Nodes[slices.IndexFunc(c.Nodes, func(n Node) bool { return n.Name == o.Node })].Obsolete = o.Names
	case SetCapacity:
		c.Capacities = append(slices.DeleteFunc(c.Capacities, func(x Capacity) bool { return x.Name == o.Name }), o.Capacity)
	case DropCapacity:
		c.Capacities = slices.DeleteFunc(c.Capacities, func(x Capacity) bool { return x.Name == o.Name })
	default:
		c.applySnapshot(op)
	}
}

// applySnapshot does the same as apply, for the operations on snapshots.
func (c *cluster) applySnapshot(op Op) {
	snapshot := func(key string) int {
		return slices.IndexFunc(c.Snapshots, func(s Snapshot) bool { return s.Key == key })
	}
	content := func(name string) int {
		return slices.IndexFunc(c.Contents, func(x Content) bool { return x.Name == name })
	}
	switch o := op.(type) {
	case GuardSnapshot:
		c.Snapshots[snapshot(o.Snapshot)].Guarded = true
	case FreeSnapshot:
		i := snapshot(o.Snapshot)
		c.Snapshots = slices.Delete(c.Snapshots, i, i+1)
	case SetSnapshot:
		s := &c.Snapshots[snapshot(o.Snapshot)]
		s.Bound, s.State = o.Bound, o.State
	case CreateContent:
		s := c.Snapshots[snapshot(o.Snapshot)]
		if !s.Guarded || content(o.Name) >= 0 {
			c.t.Fatalf("%s, although the snapshot is not guarded, or has a content: %+v", op, s)
		}
		c.Contents = append(c.Contents, Content{Name: o.Name, Handle: snapshotName(s.UID), Of: o.Of, Snapshot: s.UID, Key: s.Key,
			Node: o.Hostname, Filesystem: o.Filesystem, Size: o.Size, Retain: o.Retain})
	case DeleteContent:
		c.Contents[content(o.Name)].Deleting = true
	case FinishContent:
		i := content(o.Name)
		c.ends(op, c.Contents[i].Node, c.Contents[i].Filesystem, c.Contents[i].Handle)
		c.Contents = slices.Delete(c.Contents, i, i+1)
	case SetContent:
		c.Contents[content(o.Name)].State = o.State
	case RequestCopies:
		c.Nodes[slices.IndexFunc(c.Nodes, func(n Node) bool { return n.Name == o.Node })].Copies = o.Copies
	case Filled:
		c.Volumes[slices.IndexFunc(c.Volumes, func(v Volume) bool { return v.Name == o.Name })].Source = ""
		if c.data[o.Name] == 0 {
			c.t.Fatalf("%s: its source has no data", op)
		}
	}
}

// ends checks the deletion of an object. The data of the object must not be on a disk any more, and
// must not be the source of a volume that is not filled yet.
func (c *cluster) ends(op Op, node, filesystem, name string) {
	if _, there := c.disks[node][name]; there {
		c.t.Fatalf("%s: its data are still on the disk", op)
	}
	for _, n := range c.Nodes {
		for _, v := range c.Volumes {
			if n.Hostname == node && n.Report.Filesystem == filesystem && v.Source == name && !v.Deleting && v.Filesystem == filesystem {
				c.t.Fatalf("%s: its data are the source of volume %s, which is not filled yet", op, v.Name)
			}
		}
	}
}

// check fails the test if the space that is promised on a node, or the data on its disk, exceed the
// space of the node.
func (c *cluster) check() {
	for _, n := range c.Nodes {
		if free := left(0, n, c.Volumes, c.Contents).bytes; free < 0 {
			c.t.Fatalf("%d bytes too many are promised on %s: %+v", -free, n.Name, c.Volumes)
		}
		onDisk := int64(0)
		for _, size := range c.disks[n.Name] {
			onDisk += size
		}
		if onDisk > left(0, Node{Report: Report{Size: n.Report.Size}}, nil, nil).bytes {
			c.t.Fatalf("%d bytes are on the disk of %s, which is more than its space", onDisk, n.Name)
		}
	}
}

// kubelet simulates node i: it creates the volumes of the node, writes to them, destroys the
// obsolete volumes and snapshots, makes the requested copies, and updates the report. At random,
// copies wait for pods.
func (c *cluster) kubelet(r *rand.Rand, i int) {
	n := &c.Nodes[i]
	disk := c.disks[n.Name]
	for _, v := range c.Volumes {
		if v.Node == n.Hostname && v.Filesystem == n.Report.Filesystem && !v.Released && v.Source == "" {
			if disk[v.Name] == 0 && c.data[v.Name] == 0 {
				disk[v.Name] = v.Size
			}
			c.data[v.Name]++
		}
	}
	n.Report.Removed = nil
	for _, name := range n.Obsolete {
		delete(disk, name)
		c.gone[name] = true
		n.Report.Removed = append(n.Report.Removed, name)
	}
	n.Report.Created, n.Report.Waits = map[string]int64{}, map[string]string{}
	for _, copy := range n.Copies {
		_, whole := disk[copy.Name]
		_, there := disk[copy.Of]
		switch {
		case whole:
		case c.gone[copy.Name], !there, r.IntN(3) == 0, slices.Contains(n.Obsolete, copy.Name):
			n.Report.Waits[copy.Name] = "it waits"
			continue
		default:
			disk[copy.Name], c.data[copy.Name] = copy.Size, c.data[copy.Of]
			if isSnapshot(copy.Name) {
				disk[copy.Name] = copy.Size / 3
			}
		}
		n.Report.Created[copy.Name] = 1
	}
	n.Report.Volumes = maps.Clone(disk)
}

// happen performs a random action of a user, the scheduler or an operator. n is the number of the
// action.
func (c *cluster) happen(r *rand.Rand, n int) {
	switch r.IntN(10) {
	case 0, 1:
		c.Claims = append(c.Claims, claim(n, "", int64(1+r.IntN(3*1024))*mib))
	case 2: // the scheduler
		for i, claim := range c.Claims {
			for _, capacity := range c.Capacities {
				if claim.Node == "" && claim.Size <= capacity.Bytes {
					c.Claims[i].Node = capacity.Hostname
				}
			}
		}
	case 3: // a claim is deleted
		if len(c.Claims) > 0 {
			i := r.IntN(len(c.Claims))
			for j, v := range c.Volumes {
				if v.ClaimUID == c.Claims[i].UID {
					c.Volumes[j].Released = true
				}
			}
			c.Claims = slices.Delete(c.Claims, i, i+1)
		}
	case 4: // a claim requests more
		if len(c.Claims) > 0 {
			c.Claims[r.IntN(len(c.Claims))].Size += int64(r.IntN(1024)) * mib
		}
	case 5: // a machine is reset, rarely
		if r.IntN(10) == 0 {
			n := &c.Nodes[r.IntN(len(c.Nodes))]
			clear(c.disks[n.Name])
			n.Report.Filesystem += "'"
			n.Report.Volumes, n.Report.Created, n.Report.Waits = nil, nil, nil
		}
	case 6, 7: // a snapshot is created
		if len(c.Claims) > 0 {
			s := snapshotOf(n)
			s.Claim = c.Claims[r.IntN(len(c.Claims))].Key
			c.Snapshots = append(c.Snapshots, s)
		}
	case 8: // a snapshot is deleted
		if len(c.Snapshots) > 0 {
			i := r.IntN(len(c.Snapshots))
			c.Snapshots[i].Deleting = true
			if !c.Snapshots[i].Guarded {
				c.Snapshots = slices.Delete(c.Snapshots, i, i+1)
			}
		}
	case 9: // a claim with another claim or a snapshot as its source
		next := claim(n, "", int64(1+r.IntN(3*1024))*mib)
		if r.IntN(2) == 0 && len(c.Snapshots) > 0 {
			next.Source.Snapshot = c.Snapshots[r.IntN(len(c.Snapshots))].Key
			c.Claims = append(c.Claims, next)
		} else if len(c.Claims) > 0 {
			next.Source.Claim = c.Claims[r.IntN(len(c.Claims))].Key
			c.Claims = append(c.Claims, next)
		}
	}
}

// TestSimulation creates, grows and deletes claims on three nodes, takes snapshots, and makes
// volumes from snapshots and from other volumes. It also resets machines, lets nodes be silent for
// a time, and interrupts passes.
//
// It checks that no space is promised twice, and that no object is deleted while its data are on a
// disk or are the source of a copy. After all claims and snapshots were deleted, no object and no
// data may be left.
func TestSimulation(t *testing.T) {
	filled, ready := 0, 0
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 0))
		c := &cluster{t: t, disks: map[string]map[string]int64{}, data: map[string]int{}, gone: map[string]bool{}, Input: Input{Classes: local, SnapshotClasses: keepers}}
		for _, name := range []string{"a", "b", "c"} {
			c.Nodes = append(c.Nodes, able(name, nil))
			c.disks[name] = map[string]int64{}
		}
		pass := func(cut int) (ops int) {
			all := Step(c.Input)
			for _, op := range all[:min(cut, len(all))] {
				c.apply(op)
				c.check()
				switch o := op.(type) {
				case Filled:
					filled++
				case SetContent:
					if o.State.Ready {
						ready++
					}
				}
			}
			return len(all)
		}
		for n := range 100 {
			c.happen(r, n)
			if r.IntN(3) > 0 {
				c.kubelet(r, r.IntN(len(c.Nodes)))
			}
			pass(r.IntN(16))
		}
		for i := range c.Volumes {
			c.Volumes[i].Released = true
		}
		c.Claims = nil
		for i := range c.Snapshots {
			c.Snapshots[i].Deleting = true
		}
		c.Snapshots = slices.DeleteFunc(c.Snapshots, func(s Snapshot) bool { return !s.Guarded })
		settled := false
		for range 20 {
			for i := range c.Nodes {
				c.kubelet(r, i)
			}
			settled = pass(1000) == 0
		}
		if !settled || len(c.Volumes) > 0 || len(c.Snapshots) > 0 || len(c.Contents) > 0 {
			t.Fatalf("seed %d: objects are left, or the operations do not end: %+v\n%+v\n%+v\n%v", seed, c.Volumes, c.Snapshots, c.Contents, Step(c.Input))
		}
		for name, disk := range c.disks {
			if len(disk) > 0 {
				t.Fatalf("seed %d: node %s still has %v", seed, name, disk)
			}
		}
	}
	if filled < 50 || ready < 50 {
		t.Errorf("%d volumes were filled and %d snapshots taken: too few for this test", filled, ready)
	}
}
