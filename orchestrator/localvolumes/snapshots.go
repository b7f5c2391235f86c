package localvolumes

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// SnapshotClass is the part of a VolumeSnapshotClass that Step uses.
type SnapshotClass struct {
	Name    string
	Default bool
	Retain  bool
}

// Snapshot is the part of a VolumeSnapshot that Step uses.
type Snapshot struct {
	Key     string // namespace/name
	UID     string
	Created time.Time
	Class   string // its class; empty: the default class
	Claim   string // namespace/name of its source claim; empty: the snapshot names a Content
	// Content is the name of an existing Content that the snapshot uses instead of a source claim.
	Content  string
	Bound    string // name of its Content in its status
	State    State
	Guarded  bool // it has the finalizer of this driver
	Deleting bool
}

// Content is the part of a VolumeSnapshotContent that Step uses. It represents a snapshot on a
// disk.
type Content struct {
	Name       string
	Handle     string // name of the snapshot on the disk
	Of         string // name of the source volume; empty: the snapshot existed before the object
	Snapshot   string // UID of its VolumeSnapshot; empty: the object has only Key
	Key        string // namespace/name of its VolumeSnapshot
	Node       string // place of its pool; empty: no space is promised
	Filesystem string
	Size       int64 // bytes that a volume from this snapshot needs
	Retain     bool
	Deleting   bool
	State      State
}

// State is the status of a Snapshot or of a Content in the API.
type State struct {
	Taken   int64 // when it was taken, in seconds since 1970; 0: not yet
	Ready   bool
	Size    int64  // bytes that a volume from this snapshot needs
	Problem string // why it is not ready, or empty
}

// Source is the source of a claim's volume. The zero value means an empty volume.
type Source struct {
	Snapshot, Claim string // namespace/name; at most one is set
}

// Copy is a requested copy of a volume or a snapshot, on the same node. Name is the name of the
// copy, and Of the name of its source.
type Copy struct {
	Name string `json:"name"`
	Of   string `json:"of"`
	Size int64  `json:"size"` // quota of the copy in bytes
}

// These are the changes of snapshots and copies. The field Snapshot is the key of the
// VolumeSnapshot.
type (
	// GuardSnapshot adds the finalizer to a snapshot and writes its class.
	GuardSnapshot struct{ Snapshot, Class string }
	// FreeSnapshot removes the finalizer of a snapshot.
	FreeSnapshot struct{ Snapshot string }
	// CreateContent creates the content of a snapshot, which promises space for the snapshot.
	CreateContent struct {
		Snapshot, Class, Name, Of, Hostname, Filesystem string
		Size                                            int64
		Retain                                          bool
	}
	// BindContent binds the content of an existing snapshot to the VolumeSnapshot that names the
	// content.
	BindContent struct {
		Name, Snapshot, Hostname, Filesystem string
		Size                                 int64
	}
	// DeleteContent starts the deletion of a content. The object exists until the node has
	// destroyed the data and FinishContent has removed its finalizer.
	DeleteContent struct{ Name string }
	// FinishContent removes the finalizer of a content, so that the API server deletes the object.
	FinishContent struct{ Name string }
	// SetContent and SetSnapshot write the status of a content and of a snapshot.
	SetContent struct {
		Name  string
		State State
	}
	SetSnapshot struct {
		Snapshot, Bound string
		State           State
	}
	// RequestCopies writes the list of copies that a node has to make. The list has at most as many
	// copies as limitsOf permits.
	RequestCopies struct {
		Node, Pool string
		Copies     []Copy
	}
	// Filled removes the annotation sourceAnnotation of a volume, because the volume has the data
	// of its source.
	Filled struct{ Name string }
	// Delay reports by an Event of a claim why its volume cannot be used yet.
	Delay struct{ Claim, Why string }
)

func (o GuardSnapshot) String() string {
	return fmt.Sprintf("guard snapshot %s of class %s", o.Snapshot, o.Class)
}
func (o FreeSnapshot) String() string { return "free snapshot " + o.Snapshot }
func (o CreateContent) String() string {
	return fmt.Sprintf("promise snapshot %s of %s on %s (%d bytes)", o.Snapshot, o.Of, o.Hostname, o.Size)
}
func (o BindContent) String() string {
	return fmt.Sprintf("bind content %s on %s to snapshot %s", o.Name, o.Hostname, o.Snapshot)
}
func (o DeleteContent) String() string { return "delete content " + o.Name }
func (o FinishContent) String() string { return "finish content " + o.Name }
func (o SetContent) String() string    { return fmt.Sprintf("content %s is %s", o.Name, o.State) }
func (o SetSnapshot) String() string   { return fmt.Sprintf("snapshot %s is %s", o.Snapshot, o.State) }
func (o Filled) String() string        { return "volume " + o.Name + " is filled" }
func (o Delay) String() string         { return fmt.Sprintf("claim %s waits: %s", o.Claim, o.Why) }
func (o RequestCopies) String() string {
	var all []string
	for _, c := range o.Copies {
		all = append(all, fmt.Sprintf("%s to %s (%d bytes)", c.Of, c.Name, c.Size))
	}
	return fmt.Sprintf("request copies from node %s: %s", placeOf(o.Node, o.Pool), cmp.Or(strings.Join(all, ", "), "nothing"))
}

func (s State) String() string {
	switch {
	case s.Ready:
		return fmt.Sprintf("ready, of %d bytes", s.Size)
	case s.Problem != "":
		return "not ready: " + s.Problem
	}
	return "not ready"
}

// contentName returns the name of the VolumeSnapshotContent of a snapshot. snapshotName returns the
// name of the directory of a snapshot on the disk. uid is the UID of the VolumeSnapshot.
func contentName(uid string) string  { return "snapcontent-" + uid }
func snapshotName(uid string) string { return "snapshot-" + uid }

// pending reports whether the node has yet to take the snapshot of a content.
func (c Content) pending() bool {
	return c.Of != "" && c.Node != "" && c.State.Taken == 0 && !c.Deleting
}

// The function lost reports whether data are lost, because their node does not exist or its pool
// has another file system now. The parameter there is false if the node does not exist.
func lost(node Node, there bool, filesystem string) bool {
	return !there || node.Report.Filesystem != "" && node.Report.Filesystem != filesystem
}

// copies returns the copies that each node has to make, by the place of the pool. needed contains
// the names of their sources, which must not be destroyed.
func copies(w Input, nodes map[string]Node) (todo map[string][]Copy, needed map[string]bool) {
	todo, needed = map[string][]Copy{}, map[string]bool{}
	add := func(hostname, filesystem string, c Copy) {
		if node, there := nodes[hostname]; !lost(node, there, filesystem) {
			todo[hostname] = append(todo[hostname], c)
			needed[c.Of] = true
		}
	}
	for _, v := range w.Volumes {
		if v.Source != "" && !v.Deleting {
			add(v.Node, v.Filesystem, Copy{v.Name, v.Source, v.Size})
		}
	}
	for _, c := range w.Contents {
		if c.pending() {
			add(c.Node, c.Filesystem, Copy{c.Handle, c.Of, c.Size})
		}
	}
	for hostname := range todo {
		todo[hostname] = sorted(todo[hostname], func(c Copy) string { return c.Name })
	}
	return todo, needed
}

// The function some selects at most the number most of copies for the request to a node in a
// period. It selects first the copy in progress, whose name is the parameter making, then one copy
// of each source, and then further copies. A copy may wait for the pods of its source for ever, so
// the copies of one source must not fill the whole request. In a later period, the selection
// differs.
func some(all []Copy, most int, making string, period int64) []Copy {
	if len(all) <= most {
		return all
	}
	name := func(c Copy) string { return c.Name }
	before, of := map[string]int{}, map[string]int{}
	order := shuffled(all, period, name)
	for _, c := range order {
		of[c.Of]++
		before[c.Name] = of[c.Of]
	}
	before[making] = 0
	slices.SortStableFunc(order, func(a, b Copy) int { return cmp.Compare(before[a.Name], before[b.Name]) })
	return sorted(order[:most], name)
}

// fills requests copies from the nodes, and marks volumes as filled when their copies are complete.
// It reports to the claims of other volumes why these are not filled yet.
func fills(w Input, nodes map[string]Node) []Op {
	var ops []Op
	todo, _ := copies(w, nodes)
	for _, n := range sorted(w.Nodes, func(n Node) string { return n.Name }) {
		if tell := some(todo[n.Hostname], limitsOf(n.Pool).copies, n.Report.Copying, w.Period); !slices.Equal(n.Copies, tell) {
			ops = append(ops, RequestCopies{n.Name, n.Pool, tell})
		}
	}
	waits := map[string]string{}
	for _, v := range sorted(w.Volumes, func(v Volume) string { return v.Name }) {
		node, there := nodes[v.Node]
		if v.Source == "" || v.Deleting || lost(node, there, v.Filesystem) {
			continue
		}
		if _, made := node.Report.Created[v.Name]; made {
			ops = append(ops, Filled{v.Name})
		} else if why := node.Report.Waits[v.Name]; why != "" {
			waits[v.ClaimUID] = fmt.Sprintf("volume %s is not filled yet: %s", v.Name, why)
		}
	}
	for _, c := range inOrder(w.Claims) {
		if why := waits[c.UID]; why != "" {
			ops = append(ops, Delay{c.Key, why})
		}
	}
	return ops
}

// origin returns the name of a source on the disk, the number of bytes that a copy of it needs, and
// the pool that has it. The result why is the reason if the source cannot be used, or empty.
func origin(w Input, s Source) (of string, least int64, node Node, why string) {
	fail := func(format string, args ...any) (string, int64, Node, string) {
		return "", 0, Node{}, fmt.Sprintf(format, args...)
	}
	var hostname, filesystem string
	if s.Snapshot != "" {
		i := slices.IndexFunc(w.Snapshots, func(x Snapshot) bool { return x.Key == s.Snapshot })
		if i < 0 {
			return fail("VolumeSnapshot %s of a local volume does not exist", s.Snapshot)
		}
		from := w.Snapshots[i]
		j := slices.IndexFunc(w.Contents, func(c Content) bool { return c.Name == from.Bound && c.Snapshot == from.UID })
		if from.Deleting || j >= 0 && w.Contents[j].Deleting {
			return fail("VolumeSnapshot %s is being deleted", s.Snapshot)
		}
		if j < 0 || !w.Contents[j].State.Ready {
			return fail("VolumeSnapshot %s is not ready: %s", s.Snapshot, cmp.Or(from.State.Problem, "it is being taken"))
		}
		content := w.Contents[j]
		of, least, hostname, filesystem = content.Handle, content.Size, content.Node, content.Filesystem
	} else {
		i := slices.IndexFunc(w.Claims, func(c Claim) bool { return c.Key == s.Claim })
		j := -1
		if i >= 0 {
			j = slices.IndexFunc(w.Volumes, func(v Volume) bool { return v.Name == w.Claims[i].Volume && v.ClaimUID == w.Claims[i].UID })
		}
		if i < 0 || w.Claims[i].Deleting {
			return fail("PersistentVolumeClaim %s with a local volume does not exist or is being deleted", s.Claim)
		}
		if j < 0 {
			return fail("PersistentVolumeClaim %s has no local volume yet", s.Claim)
		}
		v := w.Volumes[j]
		of, least, hostname, filesystem = v.Name, v.Size, v.Node, v.Filesystem
	}
	i := slices.IndexFunc(w.Nodes, func(n Node) bool { return n.Hostname == hostname })
	switch {
	case i < 0, w.Nodes[i].Report.Problem == "" && w.Nodes[i].Report.Filesystem != filesystem:
		return fail("the data of %s were lost with node %s or with the former contents of its disk", of, hostname)
	case w.Nodes[i].Report.Problem != "":
		return fail("node %s has no volumes: %s", hostname, w.Nodes[i].Report.Problem)
	}
	return of, least, w.Nodes[i], ""
}

// snapshots begins to take new snapshots, updates the status of all snapshots and contents, and
// deletes the contents of deleted snapshots.
func snapshots(w Input, nodes map[string]Node, free rooms) []Op {
	var ops []Op
	contents := map[string]Content{}
	for _, c := range sorted(w.Contents, func(c Content) string { return c.Name }) {
		contents[c.Name] = c
		if state := c.look(nodes); state != c.State && !c.Deleting {
			ops = append(ops, SetContent{c.Name, state})
		}
	}
	for _, s := range slices.SortedFunc(slices.Values(w.Snapshots), func(a, b Snapshot) int { return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Key, b.Key)) }) {
		name := cmp.Or(s.Content, contentName(s.UID))
		content, there := contents[name]
		mine := there && (content.Snapshot == s.UID || content.Snapshot == "" && content.Key == s.Key)
		bound, state := "", State{}
		switch {
		case s.Deleting:
			switch {
			case !s.Guarded:
			case !mine, content.Retain && !content.Deleting:
				ops = append(ops, FreeSnapshot{s.Key})
			case !content.Deleting:
				ops = append(ops, DeleteContent{name})
			}
			continue
		case mine && !s.Guarded:
			ops = append(ops, GuardSnapshot{s.Key, s.Class})
			continue
		case mine && content.Snapshot == "":
			if i := slices.IndexFunc(w.Nodes, func(n Node) bool { return n.Report.Volumes[content.Handle] > 0 }); i >= 0 {
				n := w.Nodes[i]
				ops = append(ops, BindContent{name, s.Key, n.Hostname, n.Report.Filesystem, n.Report.Volumes[content.Handle]})
				continue
			}
			state.Problem = fmt.Sprintf("no node has a snapshot %s", content.Handle)
		case mine:
			bound, state = name, content.look(nodes)
			if content.Deleting {
				state = State{Problem: "VolumeSnapshotContent " + name + " is being deleted"}
			}
		case there:
			state.Problem = fmt.Sprintf("VolumeSnapshotContent %s belongs to another VolumeSnapshot, %s", name, content.Key)
		case s.Content != "":
			state.Problem = fmt.Sprintf("VolumeSnapshotContent %s does not exist", name)
		case s.State.Taken != 0:
			bound, state = s.Bound, State{Taken: s.State.Taken, Size: s.State.Size, Problem: "its data are lost: VolumeSnapshotContent " + name + " was deleted"}
		default:
			var op Op
			if op, state.Problem = taken(w, s, free); op != nil {
				ops = append(ops, op)
				continue
			}
		}
		if state != s.State || bound != s.Bound {
			ops = append(ops, SetSnapshot{s.Key, bound, state})
		}
	}
	return ops
}

// The function taken returns the next of the two changes that let a node take a new snapshot, or
// the reason why the snapshot cannot be taken. The first change adds the finalizer, and the second
// creates the content.
func taken(w Input, s Snapshot, free rooms) (Op, string) {
	class, why := w.snapshotClass(s.Class)
	if why != "" {
		return nil, why
	}
	of, size, node, why := origin(w, Source{Claim: s.Claim})
	room := free[node.Hostname]
	switch {
	case why != "":
		return nil, why
	case room.names < 1:
		return nil, crowded(node)
	case size > room.bytes:
		return nil, fmt.Sprintf("node %s has room for %s, and the snapshot may need %s until it is taken", node.Name, humanSize(room.bytes), humanSize(size))
	case !s.Guarded:
		return GuardSnapshot{s.Key, class.Name}, ""
	}
	free.take(node.Hostname, size, 1)
	return CreateContent{Snapshot: s.Key, Class: class.Name, Name: contentName(s.UID), Of: of, Hostname: node.Hostname,
		Filesystem: node.Report.Filesystem, Size: size, Retain: class.Retain}, ""
}

// snapshotClass returns the class with this name, or the default class if the name is empty. If
// there is no such class, the second result is the reason.
func (w Input) snapshotClass(name string) (SnapshotClass, string) {
	var defaults []SnapshotClass
	for _, c := range w.SnapshotClasses {
		if name != "" && c.Name == name {
			return c, ""
		}
		if c.Default {
			defaults = append(defaults, c)
		}
	}
	switch {
	case name != "":
		return SnapshotClass{}, fmt.Sprintf("VolumeSnapshotClass %s does not belong to driver %s", name, Driver)
	case len(defaults) != 1:
		return SnapshotClass{}, fmt.Sprintf("%d VolumeSnapshotClasses are the default of the driver %s: name a class", len(defaults), Driver)
	}
	return defaults[0], ""
}

// look returns the status of a content, from the report of its node.
func (c Content) look(nodes map[string]Node) State {
	state := State{Taken: c.State.Taken, Size: c.State.Size}
	node, there := nodes[c.Node]
	_, has := node.Report.Volumes[c.Handle]
	made, whole := node.Report.Created[c.Handle]
	switch {
	case c.Node == "" && c.Of != "":
		state.Problem = "another client created its VolumeSnapshotContent without promised space: delete it so that it is created again"
	case c.Node == "": // the existing snapshot is not bound yet
	case lost(node, there, c.Filesystem):
		state.Problem = fmt.Sprintf("its data were lost with node %s or with the former contents of its disk", c.Node)
	case node.Report.Problem != "":
		state.Problem = fmt.Sprintf("node %s has no volumes: %s", c.Node, node.Report.Problem)
	case c.pending() && whole:
		return State{Taken: made, Ready: true, Size: c.Size}
	case c.pending():
		state.Problem = c.waits(node)
	case !has:
		state.Problem = fmt.Sprintf("its data are lost: node %s does not have them", c.Node)
	default:
		state.Ready, state.Size = true, c.Size
	}
	return state
}

// The method waits returns the reason why the snapshot of a content is not taken yet, or "" if the
// node takes it now. The node reports no reason if its present request does not contain the copy.
// The result is then the reason from the present status, or else that the request is full.
func (c Content) waits(node Node) string {
	told := slices.ContainsFunc(node.Copies, func(x Copy) bool { return x.Name == c.Handle })
	switch why := node.Report.Waits[c.Handle]; {
	case why != "":
		return why
	case node.Report.Copying == c.Handle:
		return ""
	case !told && len(node.Copies) >= limitsOf(node.Pool).copies:
		return cmp.Or(c.State.Problem, fmt.Sprintf("its copy waits for its turn: node %s gets %d copies at a time", node.Name, limitsOf(node.Pool).copies))
	}
	return c.State.Problem
}

// contentEnds finishes the deletion of contents. It adds to the map obsolete the snapshots that
// nodes have to destroy.
func contentEnds(w Input, nodes map[string]Node, needed map[string]bool, obsolete map[string][]string) []Op {
	var ops []Op
	for _, c := range sorted(w.Contents, func(c Content) string { return c.Name }) {
		node, there := nodes[c.Node]
		switch {
		case !c.Deleting:
		case c.Retain, // the object is deleted, and the data stay on the disk
			lost(node, there, c.Filesystem), // the data were lost with the machine or by a reset
			slices.Contains(node.Report.Removed, c.Handle):
			ops = append(ops, FinishContent{c.Name})
		case !needed[c.Handle]:
			obsolete[c.Node] = append(obsolete[c.Node], c.Handle)
		}
	}
	return ops
}
