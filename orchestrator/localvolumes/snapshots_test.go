package localvolumes

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// TestSnapshots checks the decisions of Step about snapshots, about volumes from snapshots, and
// about volumes from other volumes.
func TestSnapshots(t *testing.T) {
	bound := func(n int, size int64) Claim {
		c := claim(n, "a", size)
		c.Volume, c.Has = named(n), size
		return c
	}
	from := func(n int, size int64, source Source) Claim {
		c := claim(n, "", size)
		c.Source = source
		return c
	}
	guarded := func(s Snapshot) Snapshot { s.Guarded = true; return s }
	deleting := func(s Snapshot) Snapshot { s.Deleting = true; return s }
	ready := func(n int) Snapshot { // a snapshot that is ready by its status
		s := guarded(snapshotOf(n))
		s.Bound, s.State = contentName(uid(n)), State{Taken: 7, Ready: true, Size: gib}
		return s
	}
	bare := func(c Content, change func(c *Content)) Content { change(&c); return c }
	filling := func(n int, source string) Volume {
		v := volumeOf(n, "a", gib)
		v.Source = source
		return v
	}
	// input adds node a, the first claim and its volume of 1 GiB to an input. there has the
	// volumes and snapshots on the disk of the node, with their sizes. report changes the
	// report of the node.
	input := func(w Input, there map[string]int64, report func(r *Report)) Input {
		n := able("a", there)
		if report != nil {
			report(&n.Report)
		}
		for _, c := range w.Nodes { // the present requests to the node
			n.Obsolete, n.Copies = c.Obsolete, c.Copies
		}
		w.Nodes = []Node{n}
		w.SnapshotClasses = append(w.SnapshotClasses, keepers...)
		w.Claims = append(w.Claims, bound(1, gib))
		if !slices.ContainsFunc(w.Volumes, func(v Volume) bool { return v.Name == named(1) }) {
			w.Volumes = append(w.Volumes, volumeOf(1, "a", gib))
		}
		return w
	}
	disk := map[string]int64{named(1): gib}
	taken := map[string]int64{named(1): gib, snapped(1): 64 * mib}
	requests := func(copies ...Copy) []Node { return []Node{{Copies: copies}} }
	shot := Copy{Name: snapped(1), Of: named(1), Size: gib}
	made := func(r *Report) { r.Created = map[string]int64{snapped(1): 7, named(2): 7} }
	for _, c := range []struct {
		title string
		input Input
		want  []string
	}{
		{"a new snapshot is guarded first", input(Input{Snapshots: []Snapshot{snapshotOf(1)}}, disk, nil), []string{
			"guard snapshot default/s1 of class snap",
		}},
		{"a guarded snapshot gets the promised space", input(Input{Snapshots: []Snapshot{guarded(snapshotOf(1))}}, disk, nil), []string{
			"promise snapshot default/s1 of " + named(1) + " on a (1073741824 bytes)",
		}},
		{"a promised snapshot is copied", input(Input{Snapshots: []Snapshot{guarded(snapshotOf(1))}, Contents: []Content{contentOf(1, "a", gib, 0)}}, disk, nil), []string{
			"snapshot default/s1 is not ready",
			"request copies from node a: " + named(1) + " to " + snapped(1) + " (1073741824 bytes)",
		}},
		{"a snapshot waits for a pod", input(Input{Nodes: requests(shot), Snapshots: []Snapshot{guarded(snapshotOf(1))}, Contents: []Content{contentOf(1, "a", gib, 0)}}, disk,
			func(r *Report) { r.Waits = map[string]string{snapped(1): "pod x uses it"} }), []string{
			"content " + contentName(uid(1)) + " is not ready: pod x uses it",
			"snapshot default/s1 is not ready: pod x uses it",
		}},
		{"a snapshot is being taken, so its problem is removed", input(Input{Nodes: requests(shot), Snapshots: []Snapshot{guarded(snapshotOf(1))},
			Contents: []Content{bare(contentOf(1, "a", gib, 0), func(c *Content) { c.State.Problem = "pod x uses it" })}}, disk,
			func(r *Report) { r.Copying = snapped(1) }), []string{
			"content " + contentName(uid(1)) + " is not ready",
			"snapshot default/s1 is not ready",
		}},
		{"the problem stays until the node reports something else", input(Input{Nodes: requests(shot), Snapshots: []Snapshot{guarded(snapshotOf(1))},
			Contents: []Content{bare(contentOf(1, "a", gib, 0), func(c *Content) { c.State.Problem = "pod x uses it" })}}, disk, nil), []string{
			"snapshot default/s1 is not ready: pod x uses it",
		}},
		{"a snapshot was taken", input(Input{Nodes: requests(shot), Snapshots: []Snapshot{guarded(snapshotOf(1))}, Contents: []Content{contentOf(1, "a", gib, 0)}}, taken, made), []string{
			"content " + contentName(uid(1)) + " is ready, of 1073741824 bytes",
			"snapshot default/s1 is ready, of 1073741824 bytes",
		}},
		{"a snapshot that was taken is not requested again", input(Input{Nodes: requests(shot), Snapshots: []Snapshot{ready(1)}, Contents: []Content{contentOf(1, "a", gib, 7)}}, taken, made), []string{
			"request copies from node a: nothing",
		}},
		{"nothing to do", input(Input{Snapshots: []Snapshot{ready(1)}, Contents: []Content{contentOf(1, "a", gib, 7)}}, taken, nil), nil},
		{"a lost snapshot is not taken again", input(Input{Snapshots: []Snapshot{ready(1)}, Contents: []Content{contentOf(1, "a", gib, 7)}}, disk, nil), []string{
			"content " + contentName(uid(1)) + " is not ready: its data are lost: node a does not have them",
			"snapshot default/s1 is not ready: its data are lost: node a does not have them",
		}},
		{"a snapshot was lost with a reset", input(Input{Snapshots: []Snapshot{ready(1)}, Contents: []Content{bare(contentOf(1, "a", gib, 7), func(c *Content) { c.Filesystem = "f0" })}}, taken, nil), []string{
			"content " + contentName(uid(1)) + " is not ready: its data were lost with node a or with the former contents of its disk",
			"snapshot default/s1 is not ready: its data were lost with node a or with the former contents of its disk",
		}},
		{"the content of a snapshot was deleted", input(Input{Snapshots: []Snapshot{ready(1)}}, disk, nil), []string{
			"snapshot default/s1 is not ready: its data are lost: VolumeSnapshotContent " + contentName(uid(1)) + " was deleted",
		}},
		{"no space for a snapshot", input(Input{Snapshots: []Snapshot{snapshotOf(1)}}, map[string]int64{named(1): gib, named(9): 5*gib - mib}, nil), []string{
			"snapshot default/s1 is not ready: node a has room for 1 MiB, and the snapshot may need 1 GiB until it is taken",
		}},
		{"a snapshot of a claim that does not exist", input(Input{Snapshots: []Snapshot{snapshotOf(2)}}, disk, nil), []string{
			"snapshot default/s2 is not ready: PersistentVolumeClaim default/c2 with a local volume does not exist or is being deleted",
		}},
		{"a snapshot with a class of another driver", input(Input{Snapshots: []Snapshot{{Key: "default/s1", UID: uid(1), Claim: "default/c1", Class: "fast"}}}, disk, nil), []string{
			"snapshot default/s1 is not ready: VolumeSnapshotClass fast does not belong to driver volumes.orlop.dev",
		}},
		{"two default classes", input(Input{SnapshotClasses: []SnapshotClass{{Name: "too", Default: true}}, Snapshots: []Snapshot{snapshotOf(1)}}, disk, nil), []string{
			"snapshot default/s1 is not ready: 2 VolumeSnapshotClasses are the default of the driver volumes.orlop.dev: name a class",
		}},
		{"a snapshot is deleted before its space was promised", input(Input{Snapshots: []Snapshot{deleting(guarded(snapshotOf(1)))}}, disk, nil), []string{"free snapshot default/s1"}},
		{"a snapshot is deleted", input(Input{Snapshots: []Snapshot{deleting(ready(1))}, Contents: []Content{contentOf(1, "a", gib, 7)}}, taken, nil), []string{
			"delete content " + contentName(uid(1)),
		}},
		{"the data of a snapshot are to be destroyed", input(Input{Snapshots: []Snapshot{deleting(ready(1))},
			Contents: []Content{bare(contentOf(1, "a", gib, 7), func(c *Content) { c.Deleting = true })}}, taken, nil), []string{
			"request node a to destroy: " + snapped(1),
		}},
		{"the data of a snapshot were destroyed", input(Input{Nodes: []Node{{Obsolete: []string{snapped(1)}}}, Snapshots: []Snapshot{deleting(ready(1))},
			Contents: []Content{bare(contentOf(1, "a", gib, 7), func(c *Content) { c.Deleting = true })}}, disk, func(r *Report) { r.Removed = []string{snapped(1)} }), []string{
			"finish content " + contentName(uid(1)),
			"request node a to destroy: nothing",
		}},
		{"a snapshot is deleted while it is taken", input(Input{Nodes: requests(shot), Snapshots: []Snapshot{deleting(guarded(snapshotOf(1)))},
			Contents: []Content{bare(contentOf(1, "a", gib, 0), func(c *Content) { c.Deleting = true })}}, disk, nil), []string{
			"request node a to destroy: " + snapped(1),
			"request copies from node a: nothing",
		}},
		{"a snapshot is deleted, and its data are retained", input(Input{Snapshots: []Snapshot{deleting(ready(1))},
			Contents: []Content{bare(contentOf(1, "a", gib, 7), func(c *Content) { c.Retain = true })}}, taken, nil), []string{
			"free snapshot default/s1",
		}},
		{"a content is deleted, and its data are retained", input(Input{
			Contents: []Content{bare(contentOf(1, "a", gib, 7), func(c *Content) { c.Retain, c.Deleting = true, true })}}, taken, nil), []string{
			"finish content " + contentName(uid(1)),
		}},
		{"retained data get a new snapshot object", input(Input{
			Snapshots: []Snapshot{guarded(Snapshot{Key: "default/again", UID: uid(5), Content: "kept"})},
			Contents:  []Content{{Name: "kept", Handle: snapped(1), Key: "default/again"}}}, taken, nil), []string{
			"bind content kept on a to snapshot default/again",
		}},
		{"the new object of retained data is ready", input(Input{
			Snapshots: []Snapshot{guarded(Snapshot{Key: "default/again", UID: uid(5), Content: "kept"})},
			Contents:  []Content{{Name: "kept", Handle: snapped(1), Key: "default/again", Snapshot: uid(5), Node: "a", Filesystem: "f1", Size: 64 * mib}}}, taken, nil), []string{
			"content kept is ready, of 67108864 bytes",
			"snapshot default/again is ready, of 67108864 bytes",
		}},
		{"data that no node has", input(Input{
			Snapshots: []Snapshot{guarded(Snapshot{Key: "default/again", UID: uid(5), Content: "kept"})},
			Contents:  []Content{{Name: "kept", Handle: snapped(3), Key: "default/again"}}}, taken, nil), []string{
			"snapshot default/again is not ready: no node has a snapshot " + snapped(3),
		}},
		{"a content of another snapshot", input(Input{
			Snapshots: []Snapshot{guarded(Snapshot{Key: "other/thief", UID: uid(5), Content: contentName(uid(1))})},
			Contents:  []Content{contentOf(1, "a", gib, 7)}}, taken, nil), []string{
			"snapshot other/thief is not ready: VolumeSnapshotContent " + contentName(uid(1)) + " belongs to another VolumeSnapshot, default/s1",
		}},
		{"a content without promised space", input(Input{Snapshots: []Snapshot{guarded(snapshotOf(1))},
			Contents: []Content{bare(contentOf(1, "", gib, 0), func(c *Content) { c.Filesystem = "" })}}, disk, nil), []string{
			"content " + contentName(uid(1)) + " is not ready: another client created its VolumeSnapshotContent without promised space: delete it so that it is created again",
			"snapshot default/s1 is not ready: another client created its VolumeSnapshotContent without promised space: delete it so that it is created again",
		}},

		{"a volume from a snapshot, before a node was selected", input(Input{Classes: local, Claims: []Claim{from(2, gib, Source{Snapshot: "default/s1"})},
			Snapshots: []Snapshot{ready(1)}, Contents: []Content{contentOf(1, "a", gib, 7)}}, taken, nil), []string{
			"give claim default/c2 volume " + named(2) + " on a (1073741824 bytes, filled from " + snapped(1) + ")",
		}},
		{"a volume from a snapshot that is not ready", input(Input{Classes: local, Claims: []Claim{from(2, gib, Source{Snapshot: "default/s1"})},
			Snapshots: []Snapshot{{Key: "default/s1", UID: uid(1), Claim: "default/c1", Guarded: true, State: State{Problem: "pod x uses it"}, Bound: contentName(uid(1))}},
			Nodes:     requests(shot), Contents: []Content{bare(contentOf(1, "a", gib, 0), func(c *Content) { c.State.Problem = "pod x uses it" })}}, disk,
			func(r *Report) { r.Waits = map[string]string{snapped(1): "pod x uses it"} }), []string{
			"reject claim default/c2: VolumeSnapshot default/s1 is not ready: pod x uses it",
		}},
		{"a volume from a snapshot that does not exist", input(Input{Classes: local, Claims: []Claim{from(2, gib, Source{Snapshot: "default/s9"})}}, disk, nil), []string{
			"reject claim default/c2: VolumeSnapshot default/s9 of a local volume does not exist",
		}},
		{"a volume that is smaller than its snapshot", input(Input{Classes: local, Claims: []Claim{from(2, gib/2, Source{Snapshot: "default/s1"})},
			Snapshots: []Snapshot{ready(1)}, Contents: []Content{contentOf(1, "a", gib, 7)}}, taken, nil), []string{
			"reject claim default/c2: 512 MiB are requested, but its source needs a volume of 1 GiB",
		}},
		{"no space for a volume on the node of its snapshot", input(Input{Classes: local, Claims: []Claim{from(2, 6*gib, Source{Snapshot: "default/s1"})},
			Snapshots: []Snapshot{ready(1)}, Contents: []Content{contentOf(1, "a", gib, 7)}}, taken, nil), []string{
			"reject claim default/c2: node a, which has " + snapped(1) + ", has room for 4.9 GiB, but 6 GiB are requested",
		}},
		{"a volume from a snapshot that is being deleted", input(Input{Classes: local, Claims: []Claim{from(2, gib, Source{Snapshot: "default/s1"})},
			Snapshots: []Snapshot{deleting(ready(1))}, Contents: []Content{contentOf(1, "a", gib, 7)}}, taken, nil), []string{
			"reject claim default/c2: VolumeSnapshot default/s1 is being deleted",
			"delete content " + contentName(uid(1)),
		}},
		{"a clone", input(Input{Classes: local, Claims: []Claim{from(2, 2*gib, Source{Claim: "default/c1"})}}, disk, nil), []string{
			"give claim default/c2 volume " + named(2) + " on a (2147483648 bytes, filled from " + named(1) + ")",
		}},
		{"a clone of a claim that is being deleted", input(Input{Classes: local, Claims: []Claim{from(2, gib, Source{Claim: "default/c3"}), {Key: "default/c3", Deleting: true}}}, disk, nil), []string{
			"reject claim default/c2: PersistentVolumeClaim default/c3 with a local volume does not exist or is being deleted",
		}},
		{"a volume is to be filled", input(Input{Volumes: []Volume{filling(2, named(1))}}, disk, nil), []string{
			"request copies from node a: " + named(1) + " to " + named(2) + " (1073741824 bytes)",
		}},
		{"a volume waits to be filled", input(Input{Nodes: requests(Copy{named(2), named(1), gib}), Claims: []Claim{bound(2, gib)}, Volumes: []Volume{filling(2, named(1))}}, disk,
			func(r *Report) { r.Waits = map[string]string{named(2): "pod x uses it"} }), []string{
			"claim default/c2 waits: volume " + named(2) + " is not filled yet: pod x uses it",
		}},
		{"a volume was filled", input(Input{Nodes: requests(Copy{named(2), named(1), gib}), Volumes: []Volume{filling(2, named(1))}}, disk, made), []string{
			"volume " + named(2) + " is filled",
		}},
		{"the source of a volume that is not filled is not destroyed", input(Input{Nodes: requests(Copy{named(2), named(1), gib}), Volumes: []Volume{filling(2, named(1)),
			{Name: named(1), Node: "a", Filesystem: "f1", ClaimUID: uid(1), Size: gib, Released: true, Deleting: true}}}, disk, nil), nil},
		{"a snapshot that is the source of a volume is not destroyed", input(Input{Nodes: requests(Copy{named(2), snapped(1), gib}), Volumes: []Volume{filling(2, snapped(1))}, Snapshots: []Snapshot{deleting(ready(1))},
			Contents: []Content{bare(contentOf(1, "a", gib, 7), func(c *Content) { c.Deleting = true })}}, taken, nil), nil},
	} {
		var got []string
		for _, op := range Step(c.input) {
			if _, ok := op.(SetCapacity); !ok {
				got = append(got, op.String())
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s:\n%s\nwant:\n%s", c.title, strings.Join(got, "\n"), strings.Join(c.want, "\n"))
		}
	}
}

// TestSnapshotOrder checks that the oldest snapshot gets the space if there is space for only one
// snapshot.
func TestSnapshotOrder(t *testing.T) {
	w := Input{Nodes: []Node{able("a", map[string]int64{named(1): 3 * gib})}, SnapshotClasses: keepers, Volumes: []Volume{volumeOf(1, "a", 3*gib)}}
	c := claim(1, "a", 3*gib)
	c.Volume, c.Has = named(1), 3*gib
	w.Claims = []Claim{c}
	for _, n := range []int{2, 1} {
		s := snapshotOf(n)
		s.Claim, s.Guarded, s.Created = "default/c1", true, time.Unix(int64(n), 0)
		w.Snapshots = append(w.Snapshots, s)
	}
	var got []string
	for _, op := range Step(w) {
		got = append(got, op.String())
	}
	want := []string{
		"promise snapshot default/s1 of " + named(1) + " on a (3221225472 bytes)",
		"snapshot default/s2 is not ready: node a has room for 0 MiB, and the snapshot may need 3 GiB until it is taken",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s", strings.Join(got, "\n"))
	}
}
