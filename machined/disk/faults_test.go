package disk

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/orlop-os/orlop/pkg/disk/layout"
	"github.com/orlop-os/orlop/pkg/disk/superblock"
	"github.com/orlop-os/orlop/pkg/kernel/mount"
	"github.com/orlop-os/orlop/pkg/paths"
)

// TestMountedFaults reads a directory like the one of a mounted ext4 in /sys/fs/ext4.
func TestMountedFaults(t *testing.T) {
	sys := t.TempDir()
	if err := os.Mkdir(filepath.Join(sys, "vda5"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"errors_count": "2", "first_error_time": "1700000000", "first_error_func": "ext4_lookup", "first_error_line": "1855", "first_error_ino": "12", "first_error_block": "0",
		"last_error_time": "1700000060", "last_error_func": "ext4_find_extent", "last_error_line": "77", "last_error_ino": "0", "last_error_block": "5000",
	} {
		if err := os.WriteFile(filepath.Join(sys, "vda5", name), []byte(text+"\n"), 0o444); err != nil {
			t.Fatal(err)
		}
	}
	const want = "2 errors, the first at 2023-11-14 22:13:20 UTC in ext4_lookup:1855 (inode 12), the last at 2023-11-14 22:14:20 UTC in ext4_find_extent:77 (block 5000)"
	if got := mountedFaults(sys, "/dev/vda5"); !got.Any() || got.String() != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	if got := mountedFaults(sys, "/dev/vda4"); got.Any() {
		t.Errorf("an unmounted file system has the errors %+v", got)
	}
}

// TestNewErrors checks the description of file system errors, and which changes are reported as new
// errors.
func TestNewErrors(t *testing.T) {
	fault := superblock.Error{Time: time.Unix(1700000000, 0), Function: "ext4_lookup", Line: 1855}
	sound := FilesystemErrors{Label: layout.Data, Device: "/dev/vda5"}
	one := sound
	one.Faults = superblock.Errors{Marked: true, Count: 1, First: fault, Last: fault}
	two := one
	two.Faults.Count = 2
	stopped, checked, silent, marked := one, one, sound, sound
	stopped.ReadOnly, checked.Checked, silent.ReadOnly, marked.Faults.Marked = true, true, true, true
	run := mount.Mount{Source: "tmpfs", Target: "/run", Type: "tmpfs", Flags: mount.NoSuid}
	strict := run
	strict.Flags |= mount.ReadOnly
	const where = "DATA (/dev/vda5): the file system "
	for _, c := range []struct {
		s     FilesystemErrors
		sound bool
		want  string
	}{
		{sound, true, ""},
		{one, false, where + "has 1 error, at 2023-11-14 22:13:20 UTC in ext4_lookup:1855; save important data, and reboot: the check at boot makes the possible repairs"},
		{stopped, false, where + "has 1 error, at 2023-11-14 22:13:20 UTC in ext4_lookup:1855, and no longer accepts writes; save important data, and reboot: the check at boot makes the possible repairs"},
		{silent, false, where + "no longer accepts writes; see the kernel log, and reboot: the check at boot makes the possible repairs"},
		{marked, false, where + "has an error mark without a recorded error; save important data, and reboot: the check at boot makes the possible repairs"},
		{espErrors("/dev/vda1", ""), true, ""},
		{espErrors("/dev/vda1", "read /esp/EFI: input/output error"), false, "ESP (/dev/vda1): read /esp/EFI: input/output error; the machine may not boot, and an upgrade may fail: " +
			"save important data, see the kernel log and the disk's health data, and replace the disk or install the machine again"},
		{mountErrors(run, false), true, ""},
		{mountErrors(run, true), false, "/run (tmpfs): the file system no longer accepts writes; see the kernel log, and reboot"},
		{mountErrors(strict, true), true, ""},
		{checked, true, where + "had 1 error, at 2023-11-14 22:13:20 UTC in ext4_lookup:1855; the check at this boot has repaired them; see the kernel log and the disk's health data"},
	} {
		if c.s.String() != c.want || c.s.OK() != c.sound {
			t.Errorf("%t %s\nwant %t %s", c.s.OK(), c.s, c.sound, c.want)
		}
	}
	for _, c := range []struct {
		name        string
		before, now FilesystemErrors
		news        bool
	}{
		{"no error", sound, sound, false}, {"the first error", sound, one, true}, {"the same error", one, one, false}, {"another error", one, two, true},
		{"no more writes", one, stopped, true}, {"repaired", two, checked, false}, {"an error after the check", checked, one, true},
		{"the ESP fails", espErrors("/dev/vda1", ""), espErrors("/dev/vda1", "a"), true},
		{"the ESP fails as before", espErrors("/dev/vda1", "a"), espErrors("/dev/vda1", "a"), false},
		{"the ESP fails in another way", espErrors("/dev/vda1", "a"), espErrors("/dev/vda1", "b"), true},
		{"the ESP works again", espErrors("/dev/vda1", "a"), espErrors("/dev/vda1", ""), false},
		{"/run becomes read-only", mountErrors(run, false), mountErrors(run, true), true},
	} {
		if got := newErrors([]FilesystemErrors{c.before}, []FilesystemErrors{c.now}); (len(got) > 0) != c.news {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

// TestBeforeCheck checks that errors are read before the check at boot clears them.
func TestBeforeCheck(t *testing.T) {
	have := model(scenario{disk: diskSpec{table: "gpt", partitions: imageAnd(state, data)}})
	have.Disks[0].Partitions[4].Faults = superblock.Errors{Marked: true}
	if got := beforeCheck(have); len(got) != 1 || got[0].Label != layout.Data || got[0].Device != "/dev/vda5" || !got[0].Checked {
		t.Errorf("before the check: %+v", got)
	}
	have.Mounts = mountAll(have.Disks[0])
	if got := beforeCheck(have); len(got) != 0 {
		t.Errorf("of a mounted file system: %+v", got)
	}
	have.Mounts, have.Disks[0].Boot = nil, false
	if got := beforeCheck(have); len(got) != 0 {
		t.Errorf("on the disk of another machine: %+v", got)
	}
}

// TestReadMountErrors reads /proc, which every Linux mounts, and a directory on which no file
// system is mounted. The result contains only /proc.
func TestReadMountErrors(t *testing.T) {
	proc := mount.Mount{Source: "proc", Target: "/proc", Type: "proc"}
	missing := mount.Mount{Source: "tmpfs", Target: t.TempDir(), Type: "tmpfs"}
	all, err := readMountErrors([]mount.Mount{proc, missing})
	if err != nil || len(all) != 1 || all[0] != (FilesystemErrors{Label: "/proc", Device: "proc"}) {
		t.Errorf("readMountErrors returns %+v, %v", all, err)
	}
}

// TestLabeled checks which mounts are the file systems of the system: no mount in a pod, and no
// directory of a volume.
func TestLabeled(t *testing.T) {
	at := func(source, target, kind string) mount.Mount {
		return mount.Mount{Source: source, Target: target, Type: kind}
	}
	var got []string
	for _, l := range labeled([]mount.Mount{
		at("proc", "/proc", "proc"), at("/dev/vdb1", paths.VolumeMounts+"/media", "ext4"), at("/dev/vda5", paths.Data, "ext4"), at("/dev/vda4", paths.State, "ext4"),
		at("/dev/vdb1", "/var/lib/kubelet/pods/x", "ext4"), at("/dev/vdb1", paths.VolumeMounts+"/media/sub", "ext4"), at("x", paths.VolumeMounts+"/other", "tmpfs"),
	}) {
		got = append(got, l.label+" "+l.Source)
	}
	if want := []string{"STATE /dev/vda4", "DATA /dev/vda5", "volume media /dev/vdb1"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
