package localvolumes

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// crowd returns an input with one node. volumes is the number of its volumes, and snapshots the
// number of pending snapshots of each volume.
func crowd(volumes, snapshots int) Input {
	w := Input{Nodes: []Node{able("a", map[string]int64{})}, SnapshotClasses: keepers}
	w.Nodes[0].Report.Size = 1 << 50
	for n := range volumes {
		w.Volumes = append(w.Volumes, volumeOf(n, "a", mib))
		w.Nodes[0].Report.Volumes[named(n)] = mib
		for i := range snapshots {
			c := contentOf(10000+100*n+i, "a", mib, 0)
			c.Of = named(n)
			w.Contents = append(w.Contents, c)
		}
	}
	return w
}

// requested returns the copies that Step requests from the node. It fails the test if there are
// more than maxCopies, or if they are not sorted.
func requested(t *testing.T, w Input) []Copy {
	t.Helper()
	copies := w.Nodes[0].Copies
	for _, op := range Step(w) {
		if o, ok := op.(RequestCopies); ok {
			copies = o.Copies
		}
	}
	if len(copies) > maxCopies || !slices.IsSortedFunc(copies, func(a, b Copy) int { return strings.Compare(a.Name, b.Name) }) {
		t.Fatalf("%d copies", len(copies))
	}
	return copies
}

// TestTurns checks the requests if more copies wait than a request can have. Each request has
// copies of all 10 volumes, so a volume in permanent use does not block the others, and has the
// copy in progress. It stays the same within a period (Input.Period), and each copy is requested in
// some period.
func TestTurns(t *testing.T) {
	w := crowd(10, 90)
	w.Nodes[0].Report.Copying = w.Contents[17].Handle
	seen := map[string]bool{}
	for w.Period = range 200 {
		all, sources := requested(t, w), map[string]bool{}
		for _, c := range all {
			seen[c.Name], sources[c.Of] = true, true
		}
		if len(sources) != 10 || !slices.ContainsFunc(all, func(c Copy) bool { return c.Name == w.Nodes[0].Report.Copying }) {
			t.Fatalf("copies of %d volumes are requested, %v", len(sources), all)
		}
		w.Nodes[0].Copies = all
		for _, op := range Step(w) {
			if _, again := op.(RequestCopies); again {
				t.Fatal("the request changes within a period")
			}
		}
		// One more or one less copy changes at most one copy of the request.
		w.Contents[20].Deleting = !w.Contents[20].Deleting
		after := requested(t, w)
		if same := len(slices.DeleteFunc(slices.Clone(after), func(c Copy) bool { return !slices.Contains(all, c) })); same < maxCopies-1 {
			t.Fatalf("after a change of one snapshot, only %d copies are still requested", same)
		}
	}
	if len(seen) < 899 {
		t.Errorf("%d of 900 copies were requested", len(seen))
	}
	if all := requested(t, crowd(1, maxCopies)); len(all) != maxCopies {
		t.Errorf("%d copies are requested", len(all))
	}
}

// TestWaitIsReported checks that the status of a snapshot says that its copy is not requested yet.
// A reason that the node reported stays in the status while the copy is not requested.
func TestWaitIsReported(t *testing.T) {
	w := crowd(1, 65)
	w.Nodes[0].Copies = requested(t, w)
	var got []string
	for _, op := range Step(w) {
		if o, ok := op.(SetContent); ok {
			got = append(got, o.State.Problem)
		}
	}
	if want := []string{"its copy waits for its turn: node a gets 64 copies at a time"}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	for i := range w.Contents {
		w.Contents[i].State.Problem = "pod x uses it"
	}
	for _, op := range Step(w) {
		t.Error(op)
	}
}

// TestCrowded checks a node with one volume less than its largest number of volumes and snapshots.
// One more volume is created, all other requests get the reason, and existing volumes can still
// grow.
func TestCrowded(t *testing.T) {
	w := crowd(maxNames-1, 0)
	w.Classes = local
	bound := claim(1, "a", mib)
	bound.Volume, bound.Has = named(1), mib
	grows := claim(2, "a", 2*mib)
	grows.Volume, grows.Has = named(2), mib
	clone := claim(5003, "", mib)
	clone.Source.Claim = bound.Key
	snapshot := snapshotOf(1)
	snapshot.Guarded = true
	w.Claims = []Claim{bound, grows, claim(5001, "a", mib), claim(5002, "a", mib), clone}
	w.Snapshots = []Snapshot{snapshot}
	var got []string
	for _, op := range Step(w) {
		got = append(got, op.String())
	}
	full := "node a has 1024 volumes and snapshots, and can have no more: delete some"
	want := []string{
		"grow volume " + named(2) + " to 2097152 bytes",
		"give claim default/c5001 volume " + named(5001) + " on a (1048576 bytes)",
		"request another node for claim default/c5002: " + full,
		"reject claim default/c5003: " + full,
		"snapshot default/s1 is not ready: " + full,
		"capacity " + capacityName("local", "a") + ": class local has 0 bytes on a",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestAnnotationsFit checks that the annotations of a pool with the largest permitted numbers of
// entries have at most 141 KiB (report.go).
func TestAnnotationsFit(t *testing.T) {
	const largest = 1<<63 - 1
	r := Report{Filesystem: "0123456789abcdef", Size: largest, Copying: snapped(0), Volumes: map[string]int64{}, Created: map[string]int64{}, Waits: map[string]string{}}
	var obsolete []string
	var copies []Copy
	for n := range maxNames {
		r.Volumes[snapped(n)] = largest
	}
	for n := range maxObsolete {
		obsolete = append(obsolete, snapped(n))
	}
	for n := range maxCopies {
		copies = append(copies, Copy{snapped(n), snapped(n), largest})
		r.Created[snapped(n)], r.Waits[snapped(n)] = largest, short(strings.Repeat("\x01<\xff", 1<<(n%20)))
	}
	r.Removed = obsolete
	size := 0
	for _, part := range []any{r, obsolete, copies} {
		text, err := json.Marshal(part)
		if err != nil {
			t.Fatal(err)
		}
		size += len(text)
	}
	if size > 141<<10 {
		t.Errorf("%d bytes", size)
	}
}

// TestShort checks that short retains the beginning and the end of a long reason, and does not
// change a short reason.
func TestShort(t *testing.T) {
	if why := "volume é is used by pod <x>"; short(why) != why {
		t.Error(short(why))
	}
	why := short("its copy failed: " + strings.Repeat("é", 5000) + ": disk quota exceeded")
	if !strings.HasPrefix(why, "its copy failed: éé") || !strings.HasSuffix(why, "éé: disk quota exceeded") || len(why) > maxReason || !strings.Contains(why, "é...é") {
		t.Error(why)
	}
}

// TestManyDeleted deletes thousands of volumes and snapshots at once, and some of the snapshots
// before they are taken. A request to the node has at most maxObsolete names, and in the end all
// objects and data are deleted.
func TestManyDeleted(t *testing.T) {
	w := crowd(2500, 0)
	for i := range w.Volumes {
		w.Volumes[i].Released, w.Volumes[i].Deleting = true, true
	}
	for n := range 100 {
		w.Contents = append(w.Contents, contentOf(n, "a", mib, int64(n%2)))
		w.Contents[n].Deleting = true
	}
	disk := map[string]int64{}
	for name, size := range w.Nodes[0].Report.Volumes {
		disk[name] = size
	}
	c := &cluster{t: t, Input: w, disks: map[string]map[string]int64{"a": disk}, data: map[string]int{}, gone: map[string]bool{}}
	r := rand.New(rand.NewPCG(1, 1))
	passes := 0
	for ; len(c.Volumes)+len(c.Contents) > 0 && passes < 100; passes++ {
		c.Period = int64(passes / 3)
		for _, op := range Step(c.Input) {
			// apply fails the test if the data of a deleted object are still on the disk
			c.apply(op)
		}
		if count := len(c.Nodes[0].Obsolete); count > maxObsolete {
			t.Fatalf("%d names in a request", count)
		}
		c.kubelet(r, 0)
	}
	if len(c.Volumes)+len(c.Contents)+len(disk) > 0 {
		t.Errorf("%d volumes, %d snapshots and %d directories are left", len(c.Volumes), len(c.Contents), len(disk))
	}
	if want := 2600 / maxObsolete; passes < want {
		t.Errorf("only %d passes, so a request had too many names", passes)
	}
}
