package localvolumes

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/orlop-os/orlop/pkg/disklayout"
)

// leastSize is the size of the smallest volume, in bytes: an empty folder has a block already.
const leastSize = 1 << 20

// Input is what the API server holds about claims and their volumes.
type Input struct {
	// bytes of each node's DATA that are the system's and the pods' own; 0: defaultReserve
	Reserve    int64
	Turn       int64 // another one now and then, so that of many things that wait each has its turn
	Nodes      []Node
	Classes    []StorageClass // of this driver
	Claims     []Claim        // of these classes, or bound to one of the volumes
	Volumes    []Volume       // of this driver
	Capacities []Capacity

	SnapshotClasses []SnapshotClass // of this driver
	Snapshots       []Snapshot      // of its claims and contents
	Contents        []Content       // of this driver
}

// Node is a Node object.
type Node struct {
	Name     string
	Hostname string // its label, by which volumes and capacities name it
	Report   Report
	Obsolete []string // what it was told to destroy
	Copies   []Copy   // what it was told to copy
}

// StorageClass is how claims ask for volumes.
type StorageClass struct {
	Name      string
	Immediate bool // volumes are wanted before anybody knows where
}

// Claim is a PersistentVolumeClaim.
type Claim struct {
	Key      string // namespace/name
	UID      string
	Created  time.Time
	Class    string
	Node     string // that the scheduler has selected; empty: none yet
	Volume   string // that it is bound to, or wants to be
	Size     int64  // bytes that it asks for
	Has      int64  // bytes that it has, as its status says
	Resizing bool   // its status says already that it grows
	Deleting bool
	Source   Source // what its volume is made of
	Problem  string // why no volume of this kind can serve it
}

// Volume is a PersistentVolume.
type Volume struct {
	Name       string
	Node       string // hostname
	Filesystem string
	ClaimUID   string
	Size       int64
	Source     string // what it is still to be filled from, by its name on the disk
	Retain     bool
	Released   bool // no claim has it any more
	Deleting   bool
}

// Capacity is a CSIStorageCapacity: what a claim of a class can have at most on a node.
type Capacity struct {
	Name, Class, Hostname string
	Bytes                 int64
}

// Op is one change of what the API server holds.
type Op interface{ String() string }

// The changes. A change that is about a claim says the claim's key.
type (
	// CreateVolume gives a claim a volume, which is filled from another one or from a snapshot if
	// there is one.
	CreateVolume struct {
		Claim, Name, Hostname, Filesystem string
		Size                              int64
		Source                            string
	}
	// Reschedule asks the scheduler for another node.
	Reschedule struct{ Claim, Why string }
	// Refuse tells a claim why it gets nothing, or no more than it has.
	Refuse struct{ Claim, Why string }
	// GrowVolume promises more.
	GrowVolume struct {
		Name string
		Size int64
	}
	// GrowClaim tells the kubelet, by the claim's status, that the volume's limit is to be raised.
	GrowClaim struct {
		Claim string
		Size  int64
	}
	// DeleteVolume begins the end of a volume; its finalizer keeps it until the node has destroyed
	// it.
	DeleteVolume struct{ Name string }
	// Finish lets a volume go.
	Finish struct{ Name string }
	// Destroy tells a node which volumes are obsolete, all of them or mostObsolete.
	Destroy struct {
		Node  string
		Names []string
	}
	// SetCapacity says what is left; a capacity that is new has not been there before.
	SetCapacity struct {
		Capacity
		New bool
	}
	// DropCapacity removes what is said about a node or a class that is no more.
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
	return fmt.Sprintf("ask for another node for claim %s: %s", o.Claim, o.Why)
}
func (o Refuse) String() string       { return fmt.Sprintf("refuse claim %s: %s", o.Claim, o.Why) }
func (o GrowVolume) String() string   { return fmt.Sprintf("grow volume %s to %d bytes", o.Name, o.Size) }
func (o GrowClaim) String() string    { return fmt.Sprintf("grow claim %s to %d bytes", o.Claim, o.Size) }
func (o DeleteVolume) String() string { return "delete volume " + o.Name }
func (o Finish) String() string       { return "let volume " + o.Name + " go" }
func (o Destroy) String() string {
	return fmt.Sprintf("tell node %s to destroy: %s", o.Node, cmp.Or(strings.Join(o.Names, ", "), "nothing"))
}
func (o SetCapacity) String() string {
	return fmt.Sprintf("capacity %s: class %s has %d bytes on %s", o.Name, o.Class, o.Bytes, o.Hostname)
}
func (o DropCapacity) String() string { return "drop capacity " + o.Name }

// Step says what is to be done, in order. Nothing is promised twice: the sum of all volumes and
// snapshots of a node, of those that are on their way out too, and of what else lies in its folder
// of volumes, is never more than its DATA without the reserve.
func Step(w Input) []Op {
	var ops []Op
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

// defaultReserve is what a node keeps for images, logs, the control plane's data and the pods' own
// files when nothing else is configured: a quarter of DATA, or 20 GiB if that is less, but a tenth
// at least. With spared that keeps volumes that are full below three quarters: from four fifths on
// the kubelet deletes the images that no pod uses (imageGCHighThresholdPercent of package kubelet).
func defaultReserve(size int64) int64 { return max(min(size/4, 20<<30), size/10) }

// spared is the share of DATA, in percent, below which the kubelet puts pods out (evictionHard of
// package kubelet): it must be left when all volumes are full.
const spared = 15

// room is what can still be promised on a node.
type room struct {
	bytes int64 // less than nothing when DATA became smaller, or the reserve larger
	names int   // of volumes and snapshots
}

// rooms are those of nodes, by hostname.
type rooms map[string]room

// take promises so many bytes, and a name for them if they are no growth.
func (r rooms) take(hostname string, bytes int64, names int) {
	r[hostname] = room{r[hostname].bytes - bytes, r[hostname].names - names}
}

// crowded says why a node can have no more volumes and snapshots, however small.
func crowded(node string) string {
	return fmt.Sprintf("node %s has %d volumes and snapshots, and can have no more: delete some", node, mostNames)
}

// left is what can still be promised on a node; fewer bytes than none when its DATA became smaller,
// or the reserve larger. A snapshot counts as its volume until it is taken, and as what is in it
// from then on: nobody can write to it.
func left(reserve int64, n Node, volumes []Volume, contents []Content) room {
	if reserve == 0 {
		reserve = defaultReserve(n.Report.Size)
	}
	free, names := n.Report.Size-n.Report.Size*spared/100-reserve, mostNames
	there := maps.Clone(n.Report.Volumes) // what is left of it is a snapshot, or stands for nothing
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

// ends brings volumes that no claim has to their end, and tells the nodes what is obsolete.
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
		if len(tell) > mostObsolete { // the others stay as they are until they are told
			itself := func(name string) string { return name }
			tell = sorted(shuffled(tell, w.Turn, itself)[:mostObsolete], itself)
		}
		if !slices.Equal(n.Obsolete, tell) {
			ops = append(ops, Destroy{n.Name, tell})
		}
	}
	return ops
}

// shuffled has everything in an order that is the same for a turn, whatever is added or goes, and
// another one in the next. Whoever is first in a list that is cut gives way in the next turn, so
// that what cannot be done does not keep from being told what can.
func shuffled[T any](all []T, turn int64, name func(T) string) []T {
	lots := map[string]string{}
	for _, x := range all {
		lot := sha256.Sum256(fmt.Appendf(nil, "%d/%s", turn, name(x)))
		lots[name(x)] = string(lot[:])
	}
	return sorted(all, func(x T) string { return lots[name(x)] })
}

// growth lets volumes grow whose claims ask for more.
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
				why := fmt.Sprintf("volume %s cannot grow: it went with node %s, or with what was on its disk", v.Name, v.Node)
				ops = append(ops, Refuse{c.Key, why})
			}
		case more > 0 && more > room:
			why := fmt.Sprintf("node %s has room for %s more, and %s are asked for", v.Node, humanSize(room), humanSize(more))
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

// births gives volumes to claims that a node was selected for.
func births(w Input, free rooms) []Op {
	classes, taken, nodes := map[string]StorageClass{}, map[string]bool{}, map[string]Node{}
	for _, c := range w.Classes {
		classes[c.Name] = c
	}
	for _, v := range w.Volumes {
		taken[v.Name] = true
	}
	for _, n := range w.Nodes {
		nodes[n.Name] = n
	}
	var ops []Op
	for _, c := range inOrder(w.Claims) {
		class, ours := classes[c.Class]
		name := "pvc-" + c.UID
		if !ours || c.Volume != "" || c.Deleting || taken[name] {
			continue
		}
		n, there := nodes[c.Node]
		want := max(c.Size, leastSize)
		switch {
		case class.Immediate:
			ops = append(ops, Refuse{c.Key, "a local volume is made where its pod runs: volumeBindingMode of StorageClass " + c.Class +
				" must be WaitForFirstConsumer"})
		case c.Problem != "":
			ops = append(ops, Refuse{c.Key, c.Problem})
		case c.Source != Source{}:
			ops = append(ops, copied(w, c, name, free))
		case c.Node == "": // the scheduler's turn
		case !there:
			ops = append(ops, Reschedule{c.Key, fmt.Sprintf("there is no node %s", c.Node)})
		case n.Report.Problem != "":
			ops = append(ops, Reschedule{c.Key, fmt.Sprintf("node %s has no volumes: %s", n.Name, n.Report.Problem)})
		case free[n.Hostname].names < 1:
			ops = append(ops, Reschedule{c.Key, crowded(n.Name)})
		case want > free[n.Hostname].bytes:
			ops = append(ops, Reschedule{c.Key, fmt.Sprintf("node %s has room for %s, and %s are asked for",
				n.Name, humanSize(free[n.Hostname].bytes), humanSize(want))})
		default:
			free.take(n.Hostname, want, 1)
			ops = append(ops, CreateVolume{Claim: c.Key, Name: name, Hostname: n.Hostname, Filesystem: n.Report.Filesystem, Size: want})
		}
	}
	return ops
}

// copied gives a claim a volume that is filled from another one or from a snapshot. It can only be
// where that is, so it is made before the scheduler chooses, which then finds one node to choose
// from.
func copied(w Input, c Claim, name string, free rooms) Op {
	of, least, n, why := origin(w, c.Source)
	want, room := max(c.Size, leastSize), free[n.Hostname]
	switch {
	case why != "":
		return Refuse{c.Key, why}
	case want < least:
		return Refuse{c.Key, fmt.Sprintf("%s are asked for, and what it is filled from needs a volume of %s", humanSize(want), humanSize(least))}
	case room.names < 1:
		return Refuse{c.Key, crowded(n.Name)}
	case want > room.bytes:
		return Refuse{c.Key, fmt.Sprintf("node %s, on which %s is, has room for %s, and %s are asked for", n.Name, of, humanSize(room.bytes), humanSize(want))}
	}
	free.take(n.Hostname, want, 1)
	return CreateVolume{c.Key, name, n.Hostname, n.Report.Filesystem, want, of}
}

// capacities says what is left, after all that is promised in this step. A node that is crowded has
// no room, so that the scheduler takes another.
func capacities(w Input, free rooms) []Op {
	have := map[string]Capacity{}
	for _, c := range w.Capacities {
		have[c.Name] = c
	}
	var ops []Op
	for _, hostname := range slices.Sorted(maps.Keys(free)) {
		bytes := max(free[hostname].bytes, 0) &^ (1<<20 - 1) // in whole MiB, for people
		if free[hostname].names < 1 {
			bytes = 0
		}
		for _, class := range sorted(w.Classes, func(c StorageClass) string { return c.Name }) {
			want := Capacity{Name: capacityName(class.Name, hostname), Class: class.Name, Hostname: hostname, Bytes: bytes}
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

// capacityName is short and of one class and node, however long their names are.
func capacityName(class, hostname string) string {
	return fmt.Sprintf("orlop-local-%x", sha256.Sum256([]byte(class+"/"+hostname)))[:12+32]
}

// inOrder sorts claims so that who came first is served first.
func inOrder(claims []Claim) []Claim {
	return slices.SortedFunc(slices.Values(claims), func(a, b Claim) int { return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Key, b.Key)) })
}

// humanSize prints bytes for people; less than nothing is nothing.
func humanSize(bytes int64) string { return disklayout.FormatSize(uint64(max(bytes, 0))) }

func sorted[T any](all []T, key func(T) string) []T {
	return slices.SortedFunc(slices.Values(all), func(a, b T) int { return cmp.Compare(key(a), key(b)) })
}
