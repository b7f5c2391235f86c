package localvolumes

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/orlop-os/orlop/pkg/disk/layout"
)

// minSize is the size of the smallest volume, in bytes. It is not 0, because an empty directory
// already uses a block.
const minSize = 1 << 20

// Input is the input of Step: the objects of the API server that concern volumes.
type Input struct {
	// Reserve is the number of bytes of each node's DATA that volumes cannot use. They are for the
	// system and for files of pods outside volumes. 0 means defaultReserve.
	Reserve int64
	// Period is a number that changes at a fixed interval (selectionPeriod). A list of requests
	// that is too long for a node is sent in parts, another part in each period.
	Period     int64
	Nodes      []Node
	Classes    []StorageClass // of this driver
	Claims     []Claim        // claims of a class in Classes, or with a volume in Volumes
	Volumes    []Volume       // of this driver
	Capacities []Capacity

	SnapshotClasses []SnapshotClass // of this driver
	Snapshots       []Snapshot      // snapshots of a claim in Claims, or that name one of Contents
	Contents        []Content       // of this driver
}

// Node is one pool of a node, with the data of the Node object that concern this pool. A node with
// several pools has several entries in Input.Nodes.
type Node struct {
	Name string
	Pool string // name of the pool; empty: the pool on DATA
	// Hostname identifies the pool in volumes: the hostname label of the Node for the pool on DATA,
	// or "hostname/pool" for any other pool (placeOf).
	Hostname string
	Report   Report
	Obsolete []string // names of the volumes and snapshots in the present request to destroy
	Copies   []Copy   // the copies in the present request to copy
}

// StorageClass is the part of a StorageClass object that Step uses.
type StorageClass struct {
	Name      string
	Immediate bool   // its volumeBindingMode is Immediate, not WaitForFirstConsumer
	Pool      string // name of the pool; empty: the pool on DATA
}

// Claim is the part of a PersistentVolumeClaim that Step uses.
type Claim struct {
	Key      string // namespace/name
	UID      string
	Created  time.Time
	Class    string
	Node     string // the node that the scheduler selected; empty: none yet
	Volume   string // name of its volume, bound or requested
	Size     int64  // requested bytes
	Has      int64  // bytes of its volume, from its status; 0: not bound
	Resizing bool   // its status shows a resize in progress
	Deleting bool
	Source   Source // source of its volume
	Problem  string // why no local volume can serve it, or empty
}

// Volume is the part of a PersistentVolume that Step uses.
type Volume struct {
	Name       string
	Node       string // the place of its pool (Node.Hostname)
	Filesystem string
	ClaimUID   string
	Size       int64
	Source     string // name of its source; empty: the volume has no source, or is filled
	Retain     bool   // its reclaim policy is Retain
	Released   bool   // its claim was deleted
	Deleting   bool
}

// Capacity is the part of a CSIStorageCapacity that Step uses: the size of the largest new volume
// of a class on a node.
type Capacity struct {
	Name, Class, Hostname string
	Bytes                 int64
}

// Op is a change of an object in the API server, or a message to a claim.
type Op interface{ String() string }

// These are the changes. The field Claim is the key of the claim.
type (
	// CreateVolume creates the volume of a claim. If Source is not empty, the node fills the volume
	// from this volume or snapshot.
	CreateVolume struct {
		Claim, Name, Hostname, Filesystem string
		Size                              int64
		Source                            string
	}
	// Reschedule makes the scheduler select another node for the pod of a claim.
	Reschedule struct{ Claim, Why string }
	// Refuse reports by an Event of the claim why it gets no volume or no larger volume.
	Refuse struct{ Claim, Why string }
	// GrowVolume raises the capacity of a volume. It thus promises the additional space to the
	// volume.
	GrowVolume struct {
		Name string
		Size int64
	}
	// GrowClaim changes the status of a claim. The kubelet then makes the node part raise the quota
	// of the volume.
	GrowClaim struct {
		Claim string
		Size  int64
	}
	// DeleteVolume starts the deletion of a volume. The object exists until the node has destroyed
	// the data and Finish has removed its finalizer.
	DeleteVolume struct{ Name string }
	// Finish removes the finalizer of a volume, so that the API server deletes the object.
	Finish struct{ Name string }
	// Destroy writes the list of volumes and snapshots that a node has to destroy. The list has at
	// most as many names as limitsOf permits.
	Destroy struct {
		Node, Pool string
		Names      []string
	}
	// SetCapacity writes the free space for a class on a node. New means that the object does not
	// exist yet.
	SetCapacity struct {
		Capacity
		New bool
	}
	// DropCapacity deletes the capacity object of a deleted node or class.
	DropCapacity struct{ Name string }
)

func (o CreateVolume) String() string {
	from := ""
	if o.Source != "" {
		from = ", filled from " + o.Source
	}
	return fmt.Sprintf("give claim %s volume %s on %s (%d bytes%s)", o.Claim, o.Name, o.Hostname, o.Size, from)
}
func (o Reschedule) String() string {
	return fmt.Sprintf("request another node for claim %s: %s", o.Claim, o.Why)
}
func (o Refuse) String() string       { return fmt.Sprintf("reject claim %s: %s", o.Claim, o.Why) }
func (o GrowVolume) String() string   { return fmt.Sprintf("grow volume %s to %d bytes", o.Name, o.Size) }
func (o GrowClaim) String() string    { return fmt.Sprintf("grow claim %s to %d bytes", o.Claim, o.Size) }
func (o DeleteVolume) String() string { return "delete volume " + o.Name }
func (o Finish) String() string       { return "finish volume " + o.Name }
func (o Destroy) String() string {
	return fmt.Sprintf("request node %s to destroy: %s", placeOf(o.Node, o.Pool), cmp.Or(strings.Join(o.Names, ", "), "nothing"))
}
func (o SetCapacity) String() string {
	return fmt.Sprintf("capacity %s: class %s has %d bytes on %s", o.Name, o.Class, o.Bytes, o.Hostname)
}
func (o DropCapacity) String() string { return "drop capacity " + o.Name }

// Step returns the changes to make, in order. It never promises space twice: the total size of all
// volumes, snapshots and other entries in the directory of volumes never exceeds the size of DATA
// minus the reserve and minus evictionPercent of DATA. Volumes in deletion count, too.
func Step(w Input) []Op {
	w.Nodes = append(slices.Clone(w.Nodes), unreported(w)...)
	ops := newClasses(w)
	free := rooms{} // only nodes that can have volumes
	nodes := map[string]Node{}
	for _, n := range w.Nodes {
		nodes[n.Hostname] = n
		if n.Report.Problem == "" {
			free[n.Hostname] = left(w.Reserve, n, w.Volumes, w.Contents)
		}
	}
	ops = append(ops, ends(w, nodes)...)
	ops = append(ops, growth(w, nodes, free)...)
	ops = append(ops, births(w, free)...)
	ops = append(ops, snapshots(w, nodes, free)...)
	ops = append(ops, fills(w, nodes)...)
	return append(ops, capacities(w, free)...)
}

// defaultReserve returns the default reserve of a node in bytes, for images, logs, etcd and files
// of pods outside volumes. It is a quarter of DATA but at most 20 GiB, and in any case at least a
// tenth of DATA. The reserve (at least 10 %) and evictionPercent (15 %) leave at most 75 % of DATA
// to volumes. At 80 %, the kubelet would delete the images that no pod uses
// (imageGCHighThresholdPercent of package kubelet).
func defaultReserve(size int64) int64 { return max(min(size/4, 20<<30), size/10) }

// evictionPercent is the free share of DATA, in percent, below which the kubelet evicts pods
// (evictionHard of package kubelet). This share must be free even when all volumes are full.
const evictionPercent = 15

// room is what Step can still promise in a pool.
type room struct {
	bytes int64 // can be negative, for example after the reserve grew
	names int   // number of further volumes and snapshots
}

// rooms maps the place of each pool to its room.
type rooms map[string]room

// take subtracts promised bytes, and the number of new volumes and snapshots, from the room of a
// pool.
func (r rooms) take(hostname string, bytes int64, names int) {
	r[hostname] = room{r[hostname].bytes - bytes, r[hostname].names - names}
}

// crowded returns the message for a pool that has the largest permitted number of volumes and
// snapshots.
func crowded(n Node) string {
	return fmt.Sprintf("node %s has %d volumes and snapshots, and can have no more: delete some", placeOf(n.Name, n.Pool), limitsOf(n.Pool).names)
}

// The function left returns the room of a pool. A snapshot counts with the size of its volume until
// the node has taken it. Then it counts with the size of its contents. Nothing writes to a
// snapshot, so it does not grow.
func left(reserve int64, n Node, volumes []Volume, contents []Content) room {
	switch {
	case n.Pool != "": // a volume of the machine with a StorageClass has no other use
		reserve = 0
	case reserve == 0:
		reserve = defaultReserve(n.Report.Size)
	}
	free, names := n.Report.Size-n.Report.Size*evictionPercent/100-reserve, limitsOf(n.Pool).names
	// After the next two loops, only snapshots that the node has taken remain, and entries without
	// an object.
	there := maps.Clone(n.Report.Volumes)
	for _, v := range volumes {
		if v.Node == n.Hostname && v.Filesystem == n.Report.Filesystem {
			free -= max(v.Size, there[v.Name])
			names--
			delete(there, v.Name)
		}
	}
	for _, c := range contents {
		if c.Node == n.Hostname && c.Filesystem == n.Report.Filesystem && c.Of != "" && c.State.Taken == 0 {
			free -= max(c.Size, there[c.Handle])
			names--
			delete(there, c.Handle)
		}
	}
	for _, bytes := range there {
		free -= bytes
		names--
	}
	return room{free, names}
}

// The function ends deletes volumes without a claim, finishes their deletion, and requests from
// each node to destroy its obsolete volumes and snapshots.
func ends(w Input, nodes map[string]Node) []Op {
	var ops []Op
	obsolete := map[string][]string{}
	_, needed := copies(w, nodes)
	for _, v := range sorted(w.Volumes, func(v Volume) string { return v.Name }) {
		node, there := nodes[v.Node]
		switch {
		case !v.Released:
		case !v.Deleting:
			if !v.Retain {
				ops = append(ops, DeleteVolume{v.Name})
			}
		case v.Retain, // the object is deleted, and the data stay on the disk
			// the data were lost with the machine or by a reset
			!there, there && node.Report.Filesystem != "" && node.Report.Filesystem != v.Filesystem,
			slices.Contains(node.Report.Removed, v.Name):
			ops = append(ops, Finish{v.Name})
		case !needed[v.Name]:
			obsolete[v.Node] = append(obsolete[v.Node], v.Name)
		}
	}
	ops = append(ops, contentEnds(w, nodes, needed, obsolete)...)
	for _, n := range sorted(w.Nodes, func(n Node) string { return n.Name }) {
		tell := obsolete[n.Hostname]
		// The next period has another part of the list.
		if most := limitsOf(n.Pool).obsolete; len(tell) > most {
			itself := func(name string) string { return name }
			tell = sorted(shuffled(tell, w.Period, itself)[:most], itself)
		}
		if !slices.Equal(n.Obsolete, tell) {
			ops = append(ops, Destroy{n.Name, n.Pool, tell})
		}
	}
	return ops
}

// shuffled returns the entries in a random order that depends only on the number of the period and
// the names. Within a period the order is stable, even if entries are added or removed. In the next
// period the order differs: another part of the list is at the beginning, so entries that fail do
// not block the others for ever.
func shuffled[T any](all []T, period int64, name func(T) string) []T {
	lots := map[string]string{}
	for _, x := range all {
		lot := sha256.Sum256(fmt.Appendf(nil, "%d/%s", period, name(x)))
		lots[name(x)] = string(lot[:])
	}
	return sorted(all, func(x T) string { return lots[name(x)] })
}

// growth raises the size of each volume if its claim requests more bytes. A claim that cannot get
// the bytes gets a message.
func growth(w Input, nodes map[string]Node, free rooms) []Op {
	volumes := map[string]Volume{}
	for _, v := range w.Volumes {
		volumes[v.Name] = v
	}
	var ops []Op
	for _, c := range inOrder(w.Claims) {
		v, bound := volumes[c.Volume]
		if !bound || v.ClaimUID != c.UID || v.Deleting || c.Deleting || c.Has == 0 {
			continue
		}
		more, room := c.Size-v.Size, free[v.Node].bytes
		node, there := nodes[v.Node]
		switch {
		case !there, node.Report.Problem == "" && node.Report.Filesystem != v.Filesystem:
			if more > 0 {
				why := fmt.Sprintf("volume %s cannot grow: it was lost with node %s or with the former contents of its disk", v.Name, v.Node)
				ops = append(ops, Refuse{c.Key, why})
			}
		case more > 0 && more > room:
			why := fmt.Sprintf("node %s has room for %s more, but %s are requested", v.Node, humanSize(room), humanSize(more))
			if p := node.Report.Problem; p != "" {
				why = fmt.Sprintf("node %s has no volumes: %s", v.Node, p)
			}
			ops = append(ops, Refuse{c.Key, why})
		case more > 0:
			free.take(v.Node, more, 0)
			ops = append(ops, GrowVolume{v.Name, c.Size})
		case v.Size > c.Has && !c.Resizing:
			ops = append(ops, GrowClaim{c.Key, v.Size})
		}
	}
	return ops
}

// births creates the volumes of claims that have a node or a source. A claim that cannot get a
// volume gets another node or a message.
func births(w Input, free rooms) []Op {
	classes, taken, nodes := map[string]StorageClass{}, map[string]bool{}, map[string]Node{}
	for _, c := range w.Classes {
		classes[c.Name] = c
	}
	for _, v := range w.Volumes {
		taken[v.Name] = true
	}
	for _, n := range w.Nodes {
		nodes[placeOf(n.Name, n.Pool)] = n
	}
	var ops []Op
	for _, c := range inOrder(w.Claims) {
		class, ours := classes[c.Class]
		name := "pvc-" + c.UID
		if !ours || c.Volume != "" || c.Deleting || taken[name] {
			continue
		}
		n, there := nodes[placeOf(c.Node, class.Pool)]
		_, exists := nodes[c.Node]
		want := max(c.Size, minSize)
		switch {
		case class.Immediate:
			ops = append(ops, Refuse{c.Key, "a local volume is created where its pod runs: volumeBindingMode of StorageClass " + c.Class +
				" must be WaitForFirstConsumer"})
		case c.Problem != "":
			ops = append(ops, Refuse{c.Key, c.Problem})
		case c.Source != Source{}:
			ops = append(ops, copied(w, c, class.Pool, name, free))
		case c.Node == "": // nothing to do before the scheduler has selected a node
		case !exists:
			ops = append(ops, Reschedule{c.Key, fmt.Sprintf("node %s does not exist", c.Node)})
		case !there:
			ops = append(ops, Reschedule{c.Key, fmt.Sprintf("node %s has no volume %s", c.Node, class.Pool)})
		case n.Report.Problem != "":
			ops = append(ops, Reschedule{c.Key, fmt.Sprintf("node %s has no volumes: %s", n.Name, n.Report.Problem)})
		case free[n.Hostname].names < 1:
			ops = append(ops, Reschedule{c.Key, crowded(n)})
		case want > free[n.Hostname].bytes:
			ops = append(ops, Reschedule{c.Key, fmt.Sprintf("node %s has room for %s, but %s are requested",
				n.Name, humanSize(free[n.Hostname].bytes), humanSize(want))})
		default:
			free.take(n.Hostname, want, 1)
			ops = append(ops, CreateVolume{Claim: c.Key, Name: name, Hostname: n.Hostname, Filesystem: n.Report.Filesystem, Size: want})
		}
	}
	return ops
}

// The function copied creates the volume of a claim with a source, or returns a message to the
// claim. The volume must be in the pool of its source. It is created before the scheduler has
// selected a node, so the scheduler can select only the node of the source.
func copied(w Input, c Claim, pool, name string, free rooms) Op {
	of, least, n, why := origin(w, c.Source)
	want, room := max(c.Size, minSize), free[n.Hostname]
	switch {
	case why != "":
		return Refuse{c.Key, why}
	case n.Pool != pool:
		return Refuse{c.Key, fmt.Sprintf("its source %s is on another disk (%s): use the StorageClass of the source", of, n.Hostname)}
	case want < least:
		return Refuse{c.Key, fmt.Sprintf("%s are requested, but its source needs a volume of %s", humanSize(want), humanSize(least))}
	case room.names < 1:
		return Refuse{c.Key, crowded(n)}
	case want > room.bytes:
		return Refuse{c.Key, fmt.Sprintf("node %s, which has %s, has room for %s, but %s are requested", n.Name, of, humanSize(room.bytes), humanSize(want))}
	}
	free.take(n.Hostname, want, 1)
	return CreateVolume{c.Key, name, n.Hostname, n.Report.Filesystem, want, of}
}

// capacities returns the changes of the capacity objects, from the room that is left after all
// promises of this step. A pool that can have no more volumes gets 0 bytes, so the scheduler
// selects another node.
func capacities(w Input, free rooms) []Op {
	have := map[string]Capacity{}
	for _, c := range w.Capacities {
		have[c.Name] = c
	}
	var ops []Op
	for _, hostname := range slices.Sorted(maps.Keys(free)) {
		bytes := max(free[hostname].bytes, 0) &^ (1<<20 - 1) // in whole MiB, for readability
		if free[hostname].names < 1 {
			bytes = 0
		}
		label, pool := splitPlace(hostname)
		for _, class := range sorted(w.Classes, func(c StorageClass) string { return c.Name }) {
			if class.Pool != pool {
				continue
			}
			want := Capacity{Name: capacityName(class.Name, label), Class: class.Name, Hostname: label, Bytes: bytes}
			before, there := have[want.Name]
			if before != want {
				ops = append(ops, SetCapacity{want, !there})
			}
			delete(have, want.Name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(have)) {
		ops = append(ops, DropCapacity{name})
	}
	return ops
}

// capacityName returns the name of the capacity object of a class on a node. It contains a hash, so
// it is short even if class and hostname are long.
func capacityName(class, hostname string) string {
	return fmt.Sprintf("orlop-local-%x", sha256.Sum256([]byte(class+"/"+hostname)))[:12+32]
}

// inOrder returns the claims sorted by age, the oldest first.
func inOrder(claims []Claim) []Claim {
	return slices.SortedFunc(slices.Values(claims), func(a, b Claim) int { return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Key, b.Key)) })
}

// humanSize formats a number of bytes for messages. It formats a negative number as 0.
func humanSize(bytes int64) string { return layout.FormatSize(uint64(max(bytes, 0))) }

func sorted[T any](all []T, key func(T) string) []T {
	return slices.SortedFunc(slices.Values(all), func(a, b T) int { return cmp.Compare(key(a), key(b)) })
}
