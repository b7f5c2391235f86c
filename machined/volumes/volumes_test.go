package volumes

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"gotest.tools/v3/golden"

	"github.com/orlop-os/orlop/machined/volumes/swap"
	"github.com/orlop-os/orlop/pkg/cell"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/kernel/mount"
	"github.com/orlop-os/orlop/pkg/nodespec/diskmatch"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/reconcile"
)

const (
	mib = 1 << 20
	gib = 1 << 30
)

// id returns the n-th GUID of a test.
func id(n int) (u uuid.UUID) {
	binary.BigEndian.PutUint64(u[8:], uint64(n))
	return u
}

// newID returns a random GUID, which differs from the GUIDs of the scenarios.
func newID() uuid.UUID { return uuid.New() }

// disk returns a disk with partitions; without partitions it is blank. size is in GiB.
func disk(path string, size uint64, parts ...Partition) Disk {
	d := Disk{Disk: diskmatch.Disk{Path: path, Size: int64(size * gib), SectorSize: 512, Serial: "serial-" + path[len(path)-1:], Transport: "virtio"},
		First: mib, End: size*gib - 33*512, Alignment: mib}
	at := uint64(mib)
	for i, p := range parts {
		d.Table = "gpt"
		if p.Path = fmt.Sprintf("%s%d", path, i+1); p.Start == 0 {
			p.Start = at
		}
		at = p.Start + p.Size
		d.Partitions = append(d.Partitions, p)
	}
	return d
}

// boot returns d as the system disk.
func boot(d Disk) Disk {
	d.Boot, d.Table = true, "gpt"
	return d
}

// holding returns d with a partition table or another content.
func holding(d Disk, what string) Disk {
	d.Table = what
	return d
}

// own returns a partition that the machine has created, with the GUID id(n). size is in GiB. Its
// file system or swap area has the UUID id(n+1).
func own(n int, size uint64, content string) Partition {
	p := Partition{Label: "v", UUID: id(n), Size: size * gib, Content: Content{Kind: content}}
	if content == ext4 || content == swapArea {
		p.Content.UUID, p.Content.Size = id(n+1), p.Size
	}
	return p
}

// record returns the record of a volume with the partition own(n).
func record(name string, use config.VolumeUse, n int, complete bool) Record {
	return Record{Name: name, Use: use, Partition: id(n), Filesystem: id(n + 1), Complete: complete, Placed: complete && len(places(Volume{Name: name, Use: use})) > 0, Disk: "/dev/vdb (8 GiB)"}
}

func volume(name string, use config.VolumeUse, size uint64, serial string) Volume {
	return Volume{Name: name, Use: use, Size: size, Disk: config.DiskSelector{Serial: serial}, Flags: mount.NoSuid | mount.NoDev | mount.NoAtime}
}

// scenario is a configuration with the actual state of a machine.
type scenario struct {
	name    string
	volumes []Volume
	have    Have
}

// unused is the Tools.Examine of operations that a test does not perform.
func unused(context.Context, string) (Disk, error) { return Disk{}, errors.New("not examined") }

// complete adds the system disk to a state, and an empty directory for each path on DATA that the
// state does not have.
func complete(have Have) Have {
	have.Disks = append([]Disk{boot(disk("/dev/vda", 8))}, have.Disks...)
	if have.Places == nil {
		have.Places = map[string]Place{}
	}
	for _, path := range []string{paths.EtcdData, paths.EtcdSnapshots, paths.ContainerdData, paths.LocalVolumes, paths.PodLogs, paths.AuditLog, paths.HostMnt + "/a", paths.HostMnt + "/b"} {
		if _, there := have.Places[path]; !there {
			have.Places[path] = Place{Empty: true}
		}
	}
	return have
}

var mounts = volume("a", config.UseMount, 0, "serial-b")

func scenarios() []scenario {
	link := map[string]Place{paths.HostMnt + "/a": {Link: "/run/orlop/volumes/a/data"}}
	b := func(parts ...Partition) []Disk { return []Disk{disk("/dev/vdb", 8, parts...)} }
	records := func(all ...Record) []Record { return all }
	mounted := func(names ...string) (out []mount.Mount) {
		for i, name := range names {
			out = append(out, mount.Mount{Source: fmt.Sprintf("/dev/vdb%d", i+1), Target: root(name), Type: ext4})
		}
		return out
	}
	return append(swapScenarios(), []scenario{
		{"a blank disk", []Volume{mounts}, Have{Disks: b()}},
		{"a StorageClass", []Volume{volume("a", config.UseStorageClass, 2*gib, "serial-b")}, Have{Disks: b()}},
		{"each part of DATA on one disk", []Volume{volume("e", config.UseEtcd, gib, "serial-b"), volume("i", config.UseImages, 0, "serial-b"),
			volume("l", config.UseLogs, gib, "serial-b"), volume("v", config.UseVolumes, 2*gib, "serial-b")}, Have{Disks: b()}},
		{"already mounted", []Volume{mounts}, Have{Disks: b(own(1, 7, ext4)), Records: records(record("a", config.UseMount, 1, true)), Mounts: mounted("a"), Places: link}},
		{"later boot", []Volume{mounts}, Have{Disks: b(own(1, 7, ext4)), Records: records(record("a", config.UseMount, 1, true)), Places: link}},
		{"power cut after the record", []Volume{mounts}, Have{Disks: b(), Records: records(record("a", config.UseMount, 1, false))}},
		{"power cut after the partition", []Volume{mounts}, Have{Disks: b(own(1, 7, "")), Records: records(record("a", config.UseMount, 1, false))}},
		{"power cut in the format", []Volume{mounts}, Have{Disks: b(own(1, 7, unknownData)), Records: records(record("a", config.UseMount, 1, false))}},
		{"power cut after the format", []Volume{mounts}, Have{Disks: b(own(1, 7, ext4)), Records: records(record("a", config.UseMount, 1, false))}},
		{"the disk is away", []Volume{mounts}, Have{Records: records(record("a", config.UseMount, 1, true)), Places: link}},
		{"the disk is away, and a blank one matches", []Volume{mounts}, Have{Disks: b(), Records: records(record("a", config.UseMount, 1, true)), Places: link}},
		{"the disk is not examined", []Volume{mounts}, Have{Disks: []Disk{holding(disk("/dev/vdb", 8), "content that has not been examined")}, Records: records(record("a", config.UseMount, 1, true)), Places: link}},
		{"the disk was disconnected while mounted", []Volume{mounts}, Have{Records: records(record("a", config.UseMount, 1, true)), Places: link, Mounts: mounted("a")}},
		{"the disk returns under another name", []Volume{{Name: "a", Use: config.UseMount}}, Have{Disks: []Disk{disk("/dev/vdc", 8, own(1, 7, ext4))},
			Records: records(record("a", config.UseMount, 1, true)), Places: link, Mounts: mounted("a")}},
		{"a copy of the disk", []Volume{{Name: "a", Use: config.UseMount}}, Have{Disks: []Disk{disk("/dev/vdb", 8, own(1, 7, ext4)), disk("/dev/vdc", 8, own(1, 7, ext4))},
			Records: records(record("a", config.UseMount, 1, true)), Places: link}},
		{"a copy in the place of the disk", []Volume{mounts}, Have{Disks: []Disk{disk("/dev/vdc", 8, own(1, 7, ext4))}, Records: records(record("a", config.UseMount, 1, true)), Places: link}},
		{"a foreign disk with the label", []Volume{mounts}, Have{Disks: b(Partition{Label: "a", UUID: id(9), Size: gib, Content: Content{Kind: ext4, UUID: id(10)}}), Records: records(record("a", config.UseMount, 1, true)), Places: link}},
		{"a foreign file system in the partition", []Volume{mounts}, Have{Disks: b(Partition{Label: "v", UUID: id(1), Size: 7 * gib, Content: Content{Kind: ext4, UUID: id(10)}}), Records: records(record("a", config.UseMount, 1, true)), Places: link}},
		{"a foreign file system before the format", []Volume{mounts}, Have{Disks: b(Partition{Label: "v", UUID: id(1), Size: 7 * gib, Content: Content{Kind: "xfs"}}), Records: records(record("a", config.UseMount, 1, false))}},
		{"the file system is gone", []Volume{mounts}, Have{Disks: b(own(1, 7, "")), Records: records(record("a", config.UseMount, 1, true)), Places: link}},
		{"a disk with data", []Volume{mounts}, Have{Disks: b(Partition{Label: "photos", UUID: id(9), Size: gib, Content: Content{Kind: "xfs"}})}},
		{"a disk with an MBR", []Volume{mounts}, Have{Disks: []Disk{holding(disk("/dev/vdb", 8), "an MBR partition table")}}},
		{"an empty table", []Volume{mounts}, Have{Disks: []Disk{holding(disk("/dev/vdb", 8), "gpt")}}},
		{"no disk matches", []Volume{volume("a", config.UseMount, 0, "other")}, Have{Disks: b()}},
		{"the system disk matches", []Volume{volume("a", config.UseMount, 0, "serial-a")}, Have{}},
		{"two disks match", []Volume{volume("a", config.UseMount, 0, "serial-*")}, Have{Disks: []Disk{disk("/dev/vdb", 8), disk("/dev/vdc", 8)}}},
		{"the expression matches", []Volume{{Name: "a", Use: config.UseMount, Disk: config.DiskSelector{Match: "x"}}}, Have{Disks: []Disk{disk("/dev/vdb", 8), disk("/dev/vdc", 8)},
			Matches: map[string]map[string]bool{"a": {"/dev/vdc": true}}}},
		{"the expression is not evaluated", []Volume{{Name: "a", Use: config.UseMount, Disk: config.DiskSelector{Match: "x"}}}, Have{Disks: b()}},
		{"the disk is too small", []Volume{volume("a", config.UseMount, 20*gib, "serial-b")}, Have{Disks: b()}},
		{"a second volume on the disk", []Volume{volume("a", config.UseMount, 2*gib, "serial-b"), volume("b", config.UseMount, 0, "serial-b")},
			Have{Disks: b(own(1, 2, ext4)), Records: records(record("a", config.UseMount, 1, true)), Places: link, Mounts: mounted("a")}},
		{"a new volume behind one that grows", []Volume{volume("a", config.UseMount, 0, "serial-b"), volume("b", config.UseMount, 2*gib, "serial-b")},
			Have{Disks: b(own(1, 2, ext4)), Records: records(record("a", config.UseMount, 1, true)), Places: link, Mounts: mounted("a")}},
		{"no room for the second", []Volume{volume("a", config.UseMount, 7*gib, "serial-b"), volume("b", config.UseMount, 2*gib, "serial-b")}, Have{Disks: b()}},
		{"the volume grows", []Volume{volume("a", config.UseMount, 4*gib, "serial-b")}, Have{Disks: b(own(1, 2, ext4)), Records: records(record("a", config.UseMount, 1, true)), Places: link, Mounts: mounted("a")}},
		{"the disk has grown", []Volume{mounts}, Have{Disks: b(own(1, 6, ext4)), Records: records(record("a", config.UseMount, 1, true)), Places: link}},
		{"no room to grow", []Volume{volume("a", config.UseMount, 20*gib, "serial-b")}, Have{Disks: b(own(1, 2, ext4)), Records: records(record("a", config.UseMount, 1, true)), Places: link, Mounts: mounted("a")}},
		{"the volume shrinks", []Volume{volume("a", config.UseMount, gib, "serial-b")}, Have{Disks: b(own(1, 2, ext4)), Records: records(record("a", config.UseMount, 1, true)), Places: link, Mounts: mounted("a")}},
		{"the document was removed", nil, Have{Disks: b(own(1, 7, ext4)), Records: records(record("a", config.UseMount, 1, true)), Places: link, Mounts: mounted("a")}},
		{"the document was removed, and the volume is unmounted", nil, Have{Disks: b(own(1, 7, ext4)), Records: records(record("a", config.UseMount, 1, true))}},
		{"the document of a part was removed", nil, Have{Disks: b(own(1, 7, ext4)), Records: records(record("e", config.UseEtcd, 1, true)), Mounts: mounted("e"),
			Places: map[string]Place{paths.EtcdData: {Link: "/run/orlop/volumes/e/etcd"}, paths.EtcdSnapshots: {Link: "/run/orlop/volumes/e/etcd-kept"}}}},
		{"the document has another use than the record", []Volume{volume("a", config.UseStorageClass, 0, "serial-b")}, Have{Disks: b(own(1, 7, ext4)), Records: records(record("a", config.UseMount, 1, true)), Places: link}},
		{"etcd has data on DATA", []Volume{volume("e", config.UseEtcd, 0, "serial-b")}, Have{Disks: b(), Busy: true, Places: map[string]Place{paths.EtcdData: {}}}},
		{"etcd moves at boot", []Volume{volume("e", config.UseEtcd, 0, "serial-b")}, Have{Disks: b(), Places: map[string]Place{paths.EtcdData: {}, paths.EtcdSnapshots: {}}}},
		{"power cut between the moves of etcd", []Volume{volume("e", config.UseEtcd, 7*gib, "serial-b")}, Have{Disks: b(own(1, 7, ext4)), Records: records(Record{Name: "e", Use: config.UseEtcd, Partition: id(1), Filesystem: id(2), Complete: true}),
			Places: map[string]Place{paths.EtcdData: {Link: "/run/orlop/volumes/e/etcd", Moved: true}, paths.EtcdSnapshots: {}}}},
		{"power cut between move and link", []Volume{volume("i", config.UseImages, 7*gib, "serial-b")}, Have{Disks: b(own(1, 7, ext4)), Records: records(Record{Name: "i", Use: config.UseImages, Partition: id(1), Filesystem: id(2), Complete: true}),
			Places: map[string]Place{paths.ContainerdData: {Empty: true, Moved: true}}}},
		{"logs move at boot", []Volume{volume("l", config.UseLogs, 0, "serial-b")}, Have{Disks: b(), Places: map[string]Place{paths.PodLogs: {}, paths.AuditLog: {}}}},
		{"volumes have data on DATA", []Volume{volume("v", config.UseVolumes, 0, "serial-b")}, Have{Disks: b(), Places: map[string]Place{paths.LocalVolumes: {}}}},
		{"after a reset of DATA", []Volume{volume("e", config.UseEtcd, 7*gib, "serial-b")}, Have{Disks: b(own(1, 7, "")), Records: records(Record{Name: "e", Use: config.UseEtcd, Partition: id(1), Filesystem: id(50), Discard: id(2)})}},
		{"a disk that missed a reset of DATA", []Volume{volume("e", config.UseEtcd, 7*gib, "serial-b")}, Have{Disks: b(own(1, 7, ext4)), Records: records(Record{Name: "e", Use: config.UseEtcd, Partition: id(1), Filesystem: id(50), Discard: id(2)})}},
		{"pods have made the directory", []Volume{mounts}, Have{Disks: b(), Places: map[string]Place{paths.HostMnt + "/a": {}}}},
		{"another volume has the part", []Volume{volume("i", config.UseImages, 0, "serial-b")}, Have{Disks: b(), Places: map[string]Place{paths.ContainerdData: {Link: "/run/orlop/volumes/old/containerd"}}}},
		{"logs return while pods run", []Volume{volume("l", config.UseLogs, 0, "serial-b")}, Have{Disks: b(own(1, 7, ext4)), Records: records(record("l", config.UseLogs, 1, true)), Busy: true,
			Places: map[string]Place{paths.PodLogs: {}}}},
		{"logs at boot", []Volume{volume("l", config.UseLogs, 0, "serial-b")}, Have{Disks: b(own(1, 7, ext4)), Records: records(record("l", config.UseLogs, 1, true)), Places: map[string]Place{paths.PodLogs: {}}}},
		{"a pod still has the volume", []Volume{mounts}, Have{Disks: b(own(1, 7, ext4)), Records: records(record("a", config.UseMount, 1, true)), Places: link,
			Mounts: []mount.Mount{{Source: "/dev/vdb1", Target: "/var/lib/kubelet/pods/x"}}}},
	}...)
}

// swapScenarios returns the scenarios of a machine with a volume for swap.
func swapScenarios() []scenario {
	b := func(parts ...Partition) []Disk { return []Disk{disk("/dev/vdb", 8, parts...)} }
	records := []Record{record("s", config.UseSwap, 1, true)}
	area := func(paths ...string) (out []swap.Area) {
		for _, path := range paths {
			out = append(out, swap.Area{Path: path, Size: 7 * gib})
		}
		return out
	}
	plain := []Volume{volume("s", config.UseSwap, 7*gib, "serial-b")}
	zswap := []Volume{{Name: "s", Use: config.UseSwap, Size: 7 * gib, Disk: config.DiskSelector{Serial: "serial-b"}, Swap: Swap{ZswapPercent: 20, Discard: true}}}
	on := swap.Zswap{Percent: 20, Shrinker: true}
	foreign := func(kind string) Partition {
		return Partition{Label: "s", UUID: id(1), Size: 7 * gib, Content: Content{Kind: kind, UUID: id(10)}}
	}
	return []scenario{
		{"swap on a blank disk", plain, Have{Disks: b()}},
		{"swap in use", plain, Have{Disks: b(own(1, 7, swapArea)), Records: records, Areas: area("/dev/vdb1")}},
		{"swap at a later boot", zswap, Have{Disks: b(own(1, 7, swapArea)), Records: records}},
		{"swap grows", plain, Have{Disks: b(own(1, 2, swapArea)), Records: records, Areas: area("/dev/vdb1")}},
		{"power cut in the growth of swap", plain, Have{Disks: b(Partition{Label: "s", UUID: id(1), Size: 7 * gib, Content: Content{Kind: swapArea, UUID: id(2), Size: gib}}), Records: records}},
		{"power cut before the header of swap", plain, Have{Disks: b(own(1, 7, unknownData)), Records: []Record{record("s", config.UseSwap, 1, false)}}},
		{"power cut after the header of swap", plain, Have{Disks: b(own(1, 7, swapArea)), Records: []Record{record("s", config.UseSwap, 1, false)}}},
		{"the disk of swap is away", plain, Have{Records: records, Areas: area("/dev/vdb1 (deleted)")}},
		{"the disk of swap returns", []Volume{{Name: "s", Use: config.UseSwap, Size: 7 * gib}}, Have{Disks: []Disk{disk("/dev/vdc", 8, own(1, 7, swapArea))}, Records: records, Areas: area("/dev/vdb1 (deleted)")}},
		{"swap of another system", plain, Have{Disks: b(Partition{UUID: id(9), Size: gib, Content: Content{Kind: swapArea, UUID: id(10)}})}},
		{"another swap in the partition", plain, Have{Disks: b(foreign(swapArea)), Records: records}},
		{"a file system in the partition of swap", plain, Have{Disks: b(foreign(ext4)), Records: []Record{record("s", config.UseSwap, 1, false)}}},
		{"the header of swap is gone", plain, Have{Disks: b(own(1, 7, "")), Records: records}},
		{"zswap begins", zswap, Have{Disks: b(own(1, 7, swapArea)), Records: records, Areas: area("/dev/vdb1"), Zswap: swap.Zswap{Shrinker: true}}},
		{"zswap without its shrinker", zswap, Have{Disks: b(own(1, 7, swapArea)), Records: records, Areas: area("/dev/vdb1"), Zswap: swap.Zswap{Percent: 20}}},
		{"zswap ends", plain, Have{Disks: b(own(1, 7, swapArea)), Records: records, Areas: area("/dev/vdb1"), Zswap: on}},
		{"the kernel has no zswap", zswap, Have{Disks: b(own(1, 7, swapArea)), Records: records, Zswap: swap.Zswap{Missing: true}}},
		{"the document of swap was removed", nil, Have{Disks: b(own(1, 7, swapArea)), Records: records, Areas: area("/dev/vdb1"), Zswap: on}},
		{"the document of swap was removed, and the disk is not examined", nil, Have{Disks: []Disk{holding(disk("/dev/vdb", 8), "content that has not been examined")}, Records: records, Areas: area("/dev/vdb1")}},
		{"swap moves to another volume", []Volume{volume("t", config.UseSwap, 0, "serial-c")}, Have{Disks: append(b(own(1, 7, swapArea)), disk("/dev/vdc", 8)), Records: records, Areas: area("/dev/vdb1")}},
		{"swap becomes a StorageClass", []Volume{volume("s", config.UseStorageClass, 0, "serial-b")}, Have{Disks: b(own(1, 7, swapArea)), Records: records}},
		{"swap and a part of DATA", []Volume{plain[0], volume("e", config.UseEtcd, 2*gib, "serial-b")}, Have{Disks: b()}},
	}
}

// printed returns the problems of a plan and the operations, one per line.
func printed(want Want, ops []reconcile.Op) string {
	text := ""
	for _, v := range want.Volumes {
		if v.Problem != "" {
			text += "volume " + v.Name + ": " + v.Problem + "\n"
		}
	}
	for _, line := range want.Missing(config.UseEtcd, config.UseImages) {
		text += "the node waits: " + line + "\n"
	}
	for _, op := range ops {
		text += op.String() + "\n"
	}
	if text == "" {
		return "nothing to do\n"
	}
	return text
}

// TestGoldens compares the plan of each scenario with its golden file.
func TestGoldens(t *testing.T) {
	for _, s := range scenarios() {
		t.Run(s.name, func(t *testing.T) {
			have := complete(s.have)
			want := Plan(Config{s.volumes}, have, newID)
			golden.Assert(t, printed(want, Diff(have, want, Tools{})), s.name+".txt")
		})
	}
}

// clone returns a copy that shares no memory with have.
func clone(have Have) Have {
	have.Records, have.Mounts, have.Disks = slices.Clone(have.Records), slices.Clone(have.Mounts), slices.Clone(have.Disks)
	have.Areas = slices.Clone(have.Areas)
	for i := range have.Disks {
		have.Disks[i].Partitions = slices.Clone(have.Disks[i].Partitions)
	}
	placed := map[string]Place{}
	for path, p := range have.Places {
		placed[path] = p
	}
	have.Places = placed
	return have
}

// done returns the state after an operation.
func done(have Have, op reconcile.Op) Have {
	have = clone(have)
	partition := func(device string) *Partition {
		for i := range have.Disks {
			for j := range have.Disks[i].Partitions {
				if have.Disks[i].Partitions[j].Path == device {
					return &have.Disks[i].Partitions[j]
				}
			}
		}
		return nil
	}
	switch o := op.(type) {
	case SetRecord:
		have.Records = with(have.Records, o.Record)
	case CreatePartition:
		for i, d := range have.Disks {
			if d.Path != o.Disk {
				continue
			}
			p := planner{have: have}
			size := o.Size
			if size == 0 {
				size = p.largestGap(d)
			}
			p.taken = map[string][]Partition{}
			p.take(d, size)
			made := p.taken[d.Path][0]
			made.Path, made.UUID, made.Label = fmt.Sprintf("%s%d", d.Path, len(d.Partitions)+1), o.GUID, o.Name
			have.Disks[i].Table, have.Disks[i].Partitions = "gpt", append(d.Partitions, made)
		}
	case GrowPartition:
		for i := range have.Disks {
			for j, p := range have.Disks[i].Partitions {
				if p.UUID == o.GUID {
					have.Disks[i].Partitions[j].Size = o.Size
				}
			}
		}
	case Format:
		p := partition(o.Device)
		p.Content = Content{Kind: o.Kind, UUID: o.Filesystem, Size: p.Size}
	case SwapOn:
		have.Areas = append(have.Areas, swap.Area{Path: o.Device})
	case SwapOff:
		have.Areas = slices.DeleteFunc(have.Areas, func(a swap.Area) bool { return a.Path == o.Device })
	case SetZswap:
		have.Zswap = swap.Zswap{Percent: o.Percent, Shrinker: true}
	case Mount:
		have.Mounts = append(have.Mounts, mount.Mount{Source: o.Device, Target: root(o.Name), Type: ext4})
	case GrowFilesystem:
		m, _ := mount.Topmost(have.Mounts, o.Target)
		partition(m.Source).Content.Size = o.Size
	case Link:
		have.Places[o.Path] = Place{Link: o.Target, Moved: have.Places[o.Path].Moved}
	case Move:
		have.Places[o.From] = Place{Empty: true, Moved: true}
	case RemoveMoved:
		p := have.Places[o.Path]
		p.Moved = false
		have.Places[o.Path] = p
	case Unlink:
		have.Places[o.Path] = Place{Empty: true}
	case Bind:
		have.Mounts = append(have.Mounts, mount.Mount{Source: o.From, Target: o.To, Type: "bind"})
	case Unmount:
		have.Mounts = slices.DeleteFunc(have.Mounts, func(m mount.Mount) bool { return m.Target == o.Target })
	case Detach:
		have.Mounts = slices.DeleteFunc(have.Mounts, func(m mount.Mount) bool { return m.Target == root(o.Name) })
	}
	return have
}

// reboot returns the state after a power cut: there are no mounts and no swap in use.
func reboot(have Have) Have {
	have = clone(have)
	have.Mounts, have.Areas, have.Zswap, have.Busy = nil, nil, swap.Zswap{Missing: have.Zswap.Missing}, false
	return have
}

// settle applies operations to a state until none remain, like the Controller, and returns the
// state. It calls the function each after every operation.
func settle(t *testing.T, s scenario, have Have, each func(Have, reconcile.Op)) Have {
	t.Helper()
	for range 8 {
		want := Plan(Config{s.volumes}, have, newID)
		ops := Diff(have, want, Tools{Examine: unused})
		if len(ops) == 0 {
			return have
		}
		for _, op := range ops {
			have = done(have, op)
			if each != nil {
				each(have, op)
			}
		}
	}
	t.Fatalf("%s: does not converge", s.name)
	return have
}

// TestLaws checks three laws for each scenario. After its operations, no operation remains. A power
// cut after any operation leads to the same final state. No operation changes a foreign partition
// or a partition with a complete file system.
func TestLaws(t *testing.T) {
	for _, s := range scenarios() {
		t.Run(s.name, func(t *testing.T) {
			start := complete(s.have)
			states := []Have{start}
			end := settle(t, s, start, func(have Have, _ reconcile.Op) { states = append(states, have) })
			for i, cut := range states {
				after := settle(t, s, reboot(cut), nil)
				if got, want := summary(after), summary(settle(t, s, reboot(end), nil)); got != want {
					t.Errorf("cut after operation %d:\n%s\nwant:\n%s", i, got, want)
				}
			}
			checkUnchanged(t, start, end)
		})
	}
}

// checkUnchanged checks that partitions with foreign or complete content are unchanged.
func checkUnchanged(t *testing.T, before, after Have) {
	t.Helper()
	for _, d := range before.Disks {
		for _, p := range d.Partitions {
			i := slices.IndexFunc(after.Disks, func(o Disk) bool { return o.Path == d.Path })
			j := slices.IndexFunc(after.Disks[i].Partitions, func(o Partition) bool { return o.UUID == p.UUID && o.Start == p.Start })
			recorded := slices.ContainsFunc(before.Records, func(r Record) bool { return r.Partition == p.UUID })
			discarded := slices.ContainsFunc(before.Records, func(r Record) bool { return r.Partition == p.UUID && r.Discard == p.Content.UUID })
			if j < 0 || p.Content.Kind != "" && !(recorded && p.Content.Kind == unknownData) && !discarded && after.Disks[i].Partitions[j].Content.UUID != p.Content.UUID {
				t.Errorf("%s (%s) was changed", p.Path, p.Content.Kind)
			}
		}
	}
}

// summary returns a state as text without the GUIDs.
func summary(have Have) string {
	var lines []string
	for _, d := range have.Disks {
		for _, p := range d.Partitions {
			lines = append(lines, fmt.Sprintf("%s %d %s %d", p.Path, p.Size, p.Content.Kind, p.Content.Size))
		}
	}
	for _, r := range have.Records {
		lines = append(lines, fmt.Sprintf("%s %s %v %v", r.Name, r.Use, r.Complete, r.Placed))
	}
	for _, m := range have.Mounts {
		lines = append(lines, m.Source+" at "+m.Target)
	}
	for _, a := range have.Areas {
		lines = append(lines, "swap "+a.Path)
	}
	lines = append(lines, fmt.Sprintf("zswap %d", have.Zswap.Percent))
	for path, p := range have.Places {
		lines = append(lines, fmt.Sprintf("%s %+v", path, p))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// TestWrites checks that CreatePartition rejects a disk if its content has changed since the plan.
func TestWrites(t *testing.T) {
	foreign := Partition{Label: "photos", UUID: id(9), Size: gib, Content: Content{Kind: "xfs"}}
	for name, c := range map[string]struct {
		op   CreatePartition
		disk Disk
		want string
	}{
		"blank":           {CreatePartition{NewTable: true}, disk("/dev/vdb", 8), ""},
		"not blank":       {CreatePartition{NewTable: true}, disk("/dev/vdb", 8, foreign), "not blank any more: gpt"},
		"not examined":    {CreatePartition{NewTable: true}, holding(disk("/dev/vdb", 8), "content that cannot be examined: x"), "not blank any more"},
		"the system disk": {CreatePartition{NewTable: true}, boot(disk("/dev/vdb", 8)), "system disk"},
		"own partitions":  {CreatePartition{known: []uuid.UUID{id(1)}}, disk("/dev/vdb", 8, own(1, 1, ext4)), ""},
		"foreign":         {CreatePartition{known: []uuid.UUID{id(1)}}, disk("/dev/vdb", 8, own(1, 1, ext4), foreign), `foreign partition /dev/vdb2 "photos"`},
		"without a table": {CreatePartition{known: []uuid.UUID{id(1)}}, disk("/dev/vdb", 8), "partition table is gone"},
	} {
		err := c.op.check(c.disk)
		if (c.want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// TestWipes checks which volumes and disks an operator can wipe.
func TestWipes(t *testing.T) {
	at := func(source, target string) []mount.Mount {
		return []mount.Mount{{Source: source, Target: target, Type: ext4}}
	}
	b := []Disk{boot(disk("/dev/vda", 8)), disk("/dev/vdb", 8, own(1, 7, ext4)), disk("/dev/vdc", 8, Partition{UUID: id(9), Size: gib, Content: Content{Kind: "xfs"}})}
	records := []Record{record("a", config.UseMount, 1, true), record("gone", config.UseMount, 5, true), record("swap", config.UseSwap, 7, true)}
	for name, c := range map[string]struct {
		volume, disk string
		mounts       []mount.Mount
		area         string // path of swap in use
		// path of the partition or disk, or part of the error; "" if the volume's disk is missing
		want string
	}{
		"a volume":                        {volume: "a", want: "/dev/vdb1"},
		"a volume without its disk":       {volume: "gone"},
		"a mounted volume":                {volume: "a", mounts: at("/dev/vdb1", root("a")), want: "is mounted"},
		"a volume in a pod":               {volume: "a", mounts: at("/dev/vdb1", "/var/lib/kubelet/x"), want: "in use by a pod"},
		"swap in use":                     {volume: "a", area: "/dev/vdb1", want: "is in use as swap"},
		"swap without a disk":             {volume: "swap", area: "/dev/vdx1", want: "swap is in use"},
		"a disk with swap":                {disk: "/dev/vdc", area: "/dev/vdc1", want: "/dev/vdc1 is in use as swap"},
		"an unknown volume":               {volume: "x", want: "no volume of this name"},
		"a disk":                          {disk: "serial-c", want: "/dev/vdc"},
		"a disk by path":                  {disk: "/dev/vdc", want: "/dev/vdc"},
		"a disk with a volume":            {disk: "/dev/vdb", want: "has volume a"},
		"the system disk":                 {disk: "/dev/vda", want: "is the system disk"},
		"a mounted disk":                  {disk: "/dev/vdc", mounts: at("/dev/vdc1", "/x"), want: "/dev/vdc1 is mounted"},
		"a mounted whole disk":            {disk: "/dev/vdc", mounts: at("/dev/vdc", "/x"), want: "is mounted at /x"},
		"a selector that matches no disk": {disk: "serial-x", want: "0 disks have"},
	} {
		have := Have{Disks: b, Records: records, Mounts: c.mounts, Areas: []swap.Area{{Path: c.area}}}
		var got string
		var err error
		if c.volume != "" {
			var l *location
			if _, l, err = planWipe(have, c.volume); l != nil {
				got = l.partition.Path
			}
		} else {
			var d Disk
			d, err = planDiskWipe(have, c.disk)
			got = d.Path
		}
		if err != nil {
			got = err.Error()
		}
		if c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestRecords checks that the records survive a restart, and that an unreadable file is an error
// and is not replaced.
func TestRecords(t *testing.T) {
	file := filepath.Join(t.TempDir(), "volumes.json")
	if all, err := readRecords(file); err != nil || len(all) > 0 {
		t.Errorf("without a file: %v, %v", all, err)
	}
	want := []Record{record("a", config.UseMount, 1, true), record("b", config.UseEtcd, 3, false)}
	for _, r := range []Record{want[1], want[0]} {
		if err := (SetRecord{Record: r, file: file}).Do(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if all, err := readRecords(file); err != nil || !slices.Equal(all, want) {
		t.Errorf("the records are %+v, %v", all, err)
	}
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if all, err := readRecords(file); err == nil {
		t.Errorf("an unreadable file is read as %v", all)
	}
	if err := (SetRecord{Record: want[0], file: file}).Do(t.Context()); err == nil {
		t.Error("an unreadable file was replaced")
	}
}

// controller returns a Controller with the given disks. Its programs always fail, so it writes to
// no disk.
func controller(t *testing.T, disks *[]Disk) *Controller {
	t.Helper()
	return New(Deps{
		Disks:   func(context.Context, bool) ([]Disk, error) { return *disks, nil },
		Changes: cell.New(struct{}{}).View(),
		Run:     func(context.Context, ...string) ([]byte, error) { return nil, errors.New("no program") },
		Busy:    func() bool { return false },
		Records: filepath.Join(t.TempDir(), "volumes.json"),
		Event:   func(_, message string) { t.Log(message) },

		StorageProblem: func() string { return "" },
	})
}

// TestHoldSwap checks that the services of the node wait only for the first attempt to use swap.
// They start even if its disk is missing.
func TestHoldSwap(t *testing.T) {
	want := Config{[]Volume{volume("s", config.UseSwap, 0, "serial-b")}}
	disks := []Disk{boot(disk("/dev/vda", 8))}
	c := controller(t, &disks)
	c.began = c.began.Add(-time.Hour)
	if err := c.Hold(want); !errors.Is(err, errPreparing) {
		t.Errorf("before the first attempt: %v", err)
	}
	c.converge(t.Context(), want)
	if err := c.Hold(want); err != nil || c.Swap() != 0 {
		t.Errorf("without its disk: %v, %d bytes", err, c.Swap())
	}
	// The size of the swap counts although its disk is not examined; otherwise the kubelet would
	// restart.
	c.publish(want, Have{Areas: []swap.Area{{Path: "/dev/vdb1", Size: 2}}}, Want{}, nil)
	if c.Swap() != 2 {
		t.Errorf("swap in use on a disk that is not examined: %d bytes", c.Swap())
	}
}

// TestHold checks in which states the services of the node can start.
func TestHold(t *testing.T) {
	none, mine := Config{}, Config{[]Volume{volume("e", config.UseEtcd, 0, "serial-b")}}
	other := Config{[]Volume{mounts}}
	disks := []Disk{boot(disk("/dev/vda", 8))}
	c := controller(t, &disks)
	c.began = c.began.Add(-time.Hour)
	if err := c.Hold(none); err != nil {
		t.Errorf("without volumes: %v", err)
	}
	if err := c.Hold(mine); !errors.Is(err, errPreparing) {
		t.Errorf("before the first attempt: %v", err)
	}
	if err := c.Hold(other); err != nil {
		t.Errorf("before the first attempt, for pods: %v", err)
	}
	c.converge(t.Context(), other)
	if err := c.Hold(other); err != nil {
		t.Errorf("a missing volume for pods: %v", err)
	}
	if s, _ := c.state.Get(); !strings.Contains(s.HealthProblem(), "a (mount): no disk matches") || !s.retry() {
		t.Errorf("health: %q", s.HealthProblem())
	}
	c.converge(t.Context(), mine)
	if err := c.Hold(mine); err == nil || !strings.Contains(err.Error(), "e: no disk matches") {
		t.Errorf("a missing part: %v", err)
	}
	if err := c.Hold(Config{[]Volume{volume("i", config.UseImages, 0, "serial-b")}}); !errors.Is(err, errPreparing) {
		t.Errorf("after a change: %v", err)
	}
	if err := c.Hold(Config{append(slices.Clone(mine.Volumes), mounts)}); err == nil || errors.Is(err, errPreparing) {
		t.Errorf("with another volume for pods: %v", err)
	}
	if err := writeRecords(c.deps.Records, []Record{record("e", config.UseEtcd, 1, true)}); err != nil {
		t.Fatal(err)
	}
	c.converge(t.Context(), none)
	if err := c.Hold(none); err == nil || !strings.Contains(err.Error(), "its document was removed") {
		t.Errorf("without the document: %v", err)
	}
	if got := c.Parts()[config.UseEtcd]; got != "e" {
		t.Errorf("etcd is on %q", got)
	}
}

// TestMoveHolds checks that no service can start while a later attempt moves a part of DATA.
func TestMoveHolds(t *testing.T) {
	disks := []Disk{boot(disk("/dev/vda", 8))}
	c := controller(t, &disks)
	c.began = c.began.Add(-time.Hour)
	mine := Config{[]Volume{volume("l", config.UseLogs, 0, "serial-b")}}
	c.converge(t.Context(), mine)
	if err := c.Hold(mine); err != nil {
		t.Errorf("before the attempt: %v", err)
	}
	if !c.unsettle() || c.unsettle() {
		t.Error("unsettle must return true in the first call, and false in the second")
	}
	if err := c.Hold(mine); !errors.Is(err, errPreparing) {
		t.Errorf("in the attempt: %v", err)
	}
	c.converge(t.Context(), mine)
	if err := c.Hold(mine); err != nil {
		t.Errorf("after the attempt: %v", err)
	}
	if moves([]reconcile.Op{Link{}, SetRecord{}}) || !moves([]reconcile.Op{SetRecord{}, Move{}}) {
		t.Error("moves must return true only for a list with a Move")
	}
}

// TestSlowExamination checks that the services wait until all disks are examined.
func TestSlowExamination(t *testing.T) {
	disks := []Disk{boot(disk("/dev/vda", 8)), holding(disk("/dev/vdb", 8), "content that has not been examined")}
	c := controller(t, &disks)
	mine := Config{[]Volume{volume("l", config.UseLogs, 0, "serial-c")}}
	c.converge(t.Context(), mine)
	if err := c.Hold(mine); !errors.Is(err, errPreparing) {
		t.Errorf("before the examination: %v", err)
	}
	disks[1].Table = ""
	c.converge(t.Context(), mine)
	if err := c.Hold(mine); err != nil {
		t.Errorf("after the examination: %v", err)
	}
}

// TestFailure checks that a failed operation becomes the problem of its volume and is retried, and
// that the record is not marked as complete.
func TestFailure(t *testing.T) {
	disks := []Disk{boot(disk("/dev/vda", 8)), disk("/dev/vdb", 8, own(1, 7, ""))}
	c := controller(t, &disks)
	if err := writeRecords(c.deps.Records, []Record{record("s", config.UseStorageClass, 1, false)}); err != nil {
		t.Fatal(err)
	}
	c.converge(t.Context(), Config{[]Volume{volume("s", config.UseStorageClass, 7*gib, "serial-b")}})
	s, _ := c.state.Get()
	if len(s.Volumes) != 1 || !strings.Contains(s.Volumes[0].Problem, "cannot format volume s on /dev/vdb as ext4") || !s.retry() {
		t.Errorf("the volumes are %+v", s.Volumes)
	}
	if all, err := readRecords(c.deps.Records); err != nil || all[0].Complete {
		t.Errorf("the records after the failure are %+v, %v", all, err)
	}
}

// TestPartsFirst checks that a part of DATA is prepared before the check of another volume, because
// that check can take hours.
func TestPartsFirst(t *testing.T) {
	disks := []Disk{boot(disk("/dev/vda", 8)), disk("/dev/vdb", 8, own(1, 2, ext4), own(3, 2, ext4))}
	c := controller(t, &disks)
	var checked []string
	c.deps.Run = func(_ context.Context, args ...string) ([]byte, error) {
		if s, _ := c.state.Get(); args[len(args)-1] == "/dev/vdb1" && !s.settled {
			t.Errorf("%v before the state of the part is known", args)
		}
		checked = append(checked, args[len(args)-1])
		return nil, errors.New("damaged")
	}
	if err := writeRecords(c.deps.Records, []Record{record("a", config.UseStorageClass, 1, true), record("i", config.UseImages, 3, true)}); err != nil {
		t.Fatal(err)
	}
	c.converge(t.Context(), Config{[]Volume{volume("a", config.UseStorageClass, 2*gib, "serial-b"), volume("i", config.UseImages, 2*gib, "serial-b")}})
	if want := []string{"/dev/vdb2", "/dev/vdb2", "/dev/vdb1", "/dev/vdb1"}; !slices.Equal(checked, want) {
		t.Errorf("checked %q, want %q", checked, want)
	}
}

// TestReset checks that PrepareReset ends the check of a volume, gives the parts of DATA new file
// systems, and leaves the records of other volumes unchanged. No operation starts afterwards.
func TestReset(t *testing.T) {
	disks := []Disk{boot(disk("/dev/vda", 8)), disk("/dev/vdb", 8, own(1, 2, ext4), own(3, 2, ext4))}
	c := controller(t, &disks)
	checking := make(chan struct{})
	begins := sync.OnceFunc(func() { close(checking) })
	c.deps.Run = func(ctx context.Context, _ ...string) ([]byte, error) {
		begins()
		<-ctx.Done() // the check takes hours
		return nil, ctx.Err()
	}
	before := []Record{record("a", config.UseStorageClass, 1, true), record("i", config.UseImages, 3, true)}
	if err := writeRecords(c.deps.Records, before); err != nil {
		t.Fatal(err)
	}
	mine := Config{[]Volume{volume("a", config.UseStorageClass, 2*gib, "serial-b"), volume("i", config.UseImages, 2*gib, "serial-b")}}
	ended := make(chan struct{})
	go func() {
		c.converge(t.Context(), mine)
		close(ended)
	}()
	<-checking
	if _, _, err := c.DryRun(t.Context(), mine); err != nil {
		t.Errorf("a dry run during the check: %v", err)
	}
	if _, err := c.WipeVolume(t.Context(), "a"); !errors.Is(err, errBusy) {
		t.Errorf("a wipe during the check: %v", err)
	}
	if err := c.PrepareReset(); err != nil {
		t.Fatal(err)
	}
	<-ended
	after, err := readRecords(c.deps.Records)
	if err != nil || after[0] != before[0] || after[1].Complete || after[1].Placed || after[1].Discard != before[1].Filesystem || after[1].Filesystem == before[1].Filesystem {
		t.Errorf("the records after PrepareReset are %+v, %v", after, err)
	}
	c.deps.Run = func(context.Context, ...string) ([]byte, error) {
		t.Error("an operation starts after PrepareReset")
		return nil, nil
	}
	c.converge(t.Context(), mine)
	// A disk that is away during both resets still has the first file system, so a second reset
	// must not change Discard.
	if err := c.PrepareReset(); err != nil {
		t.Fatal(err)
	}
	if again, err := readRecords(c.deps.Records); err != nil || !slices.Equal(again, after) {
		t.Errorf("after a second reset: %+v, %v; want %+v", again, err, after)
	}
}

// TestPartsWipe checks which partitions a reset wipes, and that planPartsWipe reports the data that
// it cannot wipe. Each result has the disk without the partitions of the earlier results. The wipe
// of the last partition on a disk therefore makes the disk blank.
func TestPartsWipe(t *testing.T) {
	missed := record("l", config.UseLogs, 7, false)
	missed.Discard = id(20)
	all := []Record{
		record("a", config.UseStorageClass, 11, true), record("e", config.UseEtcd, 1, true), record("i", config.UseImages, 3, true),
		missed, record("new", config.UseLogs, 9, false), record("v", config.UseVolumes, 5, true),
	}
	disks := []Disk{boot(disk("/dev/vda", 8)), disk("/dev/vdb", 8, own(1, 2, ext4), own(3, 2, ext4)), disk("/dev/vdc", 8, own(11, 2, ext4))}
	found, problems := planPartsWipe(Have{Disks: disks, Records: all})
	var got []string
	for _, f := range found {
		got = append(got, fmt.Sprintf("%s %s of %d", f.record.Name, f.partition.Path, len(f.disk.Partitions)))
	}
	if want := []string{"e /dev/vdb1 of 2", "i /dev/vdb2 of 1"}; !slices.Equal(got, want) {
		t.Errorf("the partitions to wipe are %q, want %q", got, want)
	}
	const want = "volume l: logs cannot be wiped: its disk has missed a reset: /dev/vdb (8 GiB); erase it elsewhere\n" +
		"volume v: volumes cannot be wiped: its disk is missing: /dev/vdb (8 GiB); connect it again; if its data are lost, `orlopctl disk wipe --volume v` gives them up; erase it elsewhere"
	if err := errors.Join(problems...); err == nil || err.Error() != want {
		t.Errorf("the reported problems are %v, want %s", err, want)
	}
	if len(disks[1].Partitions) != 2 {
		t.Error("planPartsWipe has changed its input")
	}
}
