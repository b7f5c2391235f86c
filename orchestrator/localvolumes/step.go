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

// minSize is the size of the smallest volume, in bytes: even an empty directory has a block.
const minSize = 1 << 20

// Input contains the API server's objects about claims and their volumes.
type Input struct {
	// bytes of each node's DATA that are reserved for the system and the pods' own files; 0:
	// defaultReserve
	Reserve    int64
	Turn       int64 // changes periodically, so that each of many waiting entries gets its turn
	Nodes      []Node
	Classes    []StorageClass // of this driver
	Claims     []Claim        // of these classes, or bound to one of the volumes
	Volumes    []Volume       // of this driver
	Capacities []Capacity

	SnapshotClasses []SnapshotClass // of this driver
	Snapshots       []Snapshot      // of its claims and contents
	Contents        []Content       // of this driver
}

// Node is the relevant part of a Node object.
type Node struct {
	Name string
	Pool string // empty: on DATA
	// its label, by which volumes and capacities refer to it; in a pool: its place (placeOf)
	Hostname string
	Report   Report
	Obsolete []string // the names that it has to destroy
	Copies   []Copy   // the copies that it has to make
}

// StorageClass is the relevant part of a StorageClass object.
type StorageClass struct {
	Name      string
	Immediate bool // volumes are required before the node is known
	Pool      string
}

// Claim is the relevant part of a PersistentVolumeClaim.
type Claim struct {
	Key      string // namespace/name
	UID      string
	Created  time.Time
	Class    string
	Node     string // selected by the scheduler; empty: none yet
	Volume   string // its volume, bound or requested
	Size     int64  // requested bytes
	Has      int64  // present bytes, from its status
	Resizing bool   // its status shows a resize in progress
	Deleting bool
	Source   Source // source of its volume
	Problem  string // why no local volume can serve it
}

// Volume is the relevant part of a PersistentVolume.
type Volume struct {
	Name       string
	Node       string // hostname
	Filesystem string
	ClaimUID   string
	Size       int64
	Source     string // its source on the disk, until it is filled
	Retain     bool
	Released   bool // it has no claim any more
	Deleting   bool
}

// Capacity is a CSIStorageCapacity: the largest volume of a class on a node.
type Capacity struct {
	Name, Class, Hostname string
	Bytes                 int64
}

// Op is a change of the API server's objects.
type Op interface{ String() string }

// The changes. A change that concerns a claim contains its key.
type (
	// CreateVolume creates a claim's volume, optionally filled from another volume or a snapshot.
	CreateVolume struct {
		Claim, Name, Hostname, Filesystem string
		Size                              int64
		Source                            string
	}
	// Reschedule requests another node from the scheduler.
	Reschedule struct{ Claim, Why string }
	// Refuse reports to a claim why it gets no volume, or no larger volume.
	Refuse struct{ Claim, Why string }
	// GrowVolume promises more bytes.
	GrowVolume struct {
		Name string
		Size int64
	}
	// GrowClaim requests from the kubelet, by the claim's status, that the volume's quota is
	// raised.
	GrowClaim struct {
		Claim string
		Size  int64
	}
	// DeleteVolume starts the deletion of a volume; its finalizer keeps it until the node has
	// destroyed the data.
	DeleteVolume struct{ Name string }
	// Finish removes the finalizer of a volume.
	Finish struct{ Name string }
	// Destroy writes a node's obsolete volumes, all of them or maxObsolete.
	Destroy struct {
		Node, Pool string
		Names      []string
	}
	// SetCapacity publishes the free space; New reports that the object does not exist yet.
	SetCapacity struct {
		Capacity
		New bool
	}
	// DropCapacity deletes the capacity of a deleted node or class.
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

// Step returns the changes to make, in order. No space is promised twice: the sum of all volumes
// and snapshots of a node, including volumes in deletion, and of other entries in its directory of
// volumes, never exceeds its DATA minus the reserve.
func Step(w Input) []Op {
	w.Nodes = append(slices.Clone(w.Nodes), unreported(w)...)
	ops := newClasses(w)
	free := rooms{} // of nodes that can have volumes
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

// defaultReserve is a node's default reserve for images, logs, the control plane's data and the
// pods' own files: a quarter of DATA, or 20 GiB if that is less, but at least a tenth. Together
// with evictionPercent it limits full volumes to three quarters: from four fifths on the kubelet
// deletes the images that no pod uses (imageGCHighThresholdPercent of package kubelet).
func defaultReserve(size int64) int64 { return max(min(size/4, 20<<30), size/10) }

// evictionPercent is the share of DATA, in percent, below which the kubelet evicts pods
// (evictionHard of package kubelet): it must be free when all volumes are full.
const evictionPercent = 15

// room is the free space that can still be promised on a node.
type room struct {
	bytes int64 // negative after DATA shrank or the reserve grew
	names int   // of volumes and snapshots
}

// rooms are the free spaces of nodes, by hostname.
type rooms map[string]room

// take promises bytes, and names for new volumes or snapshots.
func (r rooms) take(hostname string, bytes int64, names int) {
	r[hostname] = room{r[hostname].bytes - bytes, r[hostname].names - names}
}

// crowded returns why a node can have no more volumes and snapshots of any size in a pool.
func crowded(n Node) string {
	return fmt.Sprintf("node %s has %d volumes and snapshots, and can have no more: delete some", placeOf(n.Name, n.Pool), limitsOf(n.Pool).names)
}

// left returns the free space of a node. A snapshot counts with the size of its volume until it is
// taken, and with its contents afterwards, because it has no writer.
func left(reserve int64, n Node, volumes []Volume, contents []Content) room {
	switch {
	case n.Pool != "": // the volume has no other use
		reserve = 0
	case reserve == 0:
		reserve = defaultReserve(n.Report.Size)
	}
	free, names := n.Report.Size-n.Report.Size*evictionPercent/100-reserve, limitsOf(n.Pool).names
	there := maps.Clone(n.Report.Volumes) // the remaining entries are snapshots, or have no object
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

// ends completes the deletion of volumes without a claim, and writes the nodes' obsolete volumes.
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
		case v.Retain, // the object goes, and the data stay
			// they went with the machine, or its reset
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
		if most := limitsOf(n.Pool).obsolete; len(tell) > most { // the others stay until their turn
			itself := func(name string) string { return name }
			tell = sorted(shuffled(tell, w.Turn, itself)[:most], itself)
		}
		if !slices.Equal(n.Obsolete, tell) {
			ops = append(ops, Destroy{n.Name, n.Pool, tell})
		}
	}
	return ops
}

// shuffled returns an order that is stable within a turn, even if entries are added or removed, and
// that differs in the next turn. So the first entries of a truncated list change with each turn,
// and entries that fail do not block the others.
func shuffled[T any](all []T, turn int64, name func(T) string) []T {
	lots := map[string]string{}
	for _, x := range all {
		lot := sha256.Sum256(fmt.Appendf(nil, "%d/%s", turn, name(x)))
		lots[name(x)] = string(lot[:])
	}
	return sorted(all, func(x T) string { return lots[name(x)] })
}

// growth grows volumes with claims that request more.
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

// births creates volumes for claims with a selected node.
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
		case c.Node == "": // the scheduler has to select a node first
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

// copied creates a claim's volume that is filled from another volume or a snapshot. It can only be
// on the node of its source, so it is created before the scheduler selects a node, which then can
// choose only this node.
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

// capacities publishes the free space after all promises of this step. A crowded node gets no
// space, so that the scheduler selects another.
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

// capacityName returns a short unique name for a class and a node, also for long names.
func capacityName(class, hostname string) string {
	return fmt.Sprintf("orlop-local-%x", sha256.Sum256([]byte(class+"/"+hostname)))[:12+32]
}

// inOrder sorts claims by age, so that the oldest is served first.
func inOrder(claims []Claim) []Claim {
	return slices.SortedFunc(slices.Values(claims), func(a, b Claim) int { return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Key, b.Key)) })
}

// humanSize formats bytes for messages; a negative number counts as 0.
func humanSize(bytes int64) string { return layout.FormatSize(uint64(max(bytes, 0))) }

func sorted[T any](all []T, key func(T) string) []T {
	return slices.SortedFunc(slices.Values(all), func(a, b T) int { return cmp.Compare(key(a), key(b)) })
}
