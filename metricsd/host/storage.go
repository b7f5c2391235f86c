package host

import (
	"regexp"
	"slices"
	"strings"

	"github.com/prometheus/procfs"

	"github.com/orlop-os/orlop/pkg/service/exposition"
)

// ignoredDisks matches the block devices that node_exporter ignores by default.
var ignoredDisks = regexp.MustCompile(`^(z?ram|loop|fd|(h|s|v|xv)d[a-z]|nvme\d+n\d+p)\d+$`)

// sectorSize is the unit of the kernel's disk counters, in bytes.
const sectorSize = 512

func (r *reader) diskstats() error {
	block, err := r.block()
	if err != nil {
		return err
	}
	all, err := block.ProcDiskstats()
	if err != nil {
		return err
	}
	for _, d := range all {
		if ignoredDisks.MatchString(d.DeviceName) {
			continue
		}
		count := func(name, help string, value float64) {
			r.Counter("node_disk_"+name, help, value, "device", d.DeviceName)
		}
		count("reads_completed_total", "The total number of reads completed successfully.", float64(d.ReadIOs))
		count("reads_merged_total", "The total number of reads merged.", float64(d.ReadMerges))
		count("read_bytes_total", "The total number of bytes read successfully.", float64(d.ReadSectors)*sectorSize)
		count("read_time_seconds_total", "The total number of seconds spent by all reads.", float64(d.ReadTicks)/1000)
		count("writes_completed_total", "The total number of writes completed successfully.", float64(d.WriteIOs))
		count("writes_merged_total", "The number of writes merged.", float64(d.WriteMerges))
		count("written_bytes_total", "The total number of bytes written successfully.", float64(d.WriteSectors)*sectorSize)
		count("write_time_seconds_total", "This is the total number of seconds spent by all writes.", float64(d.WriteTicks)/1000)
		count("io_time_seconds_total", "Total seconds spent doing I/Os.", float64(d.IOsTotalTicks)/1000)
		count("io_time_weighted_seconds_total", "The weighted # of seconds spent doing I/Os.", float64(d.WeightedIOTicks)/1000)
		count("discards_completed_total", "The total number of discards completed successfully.", float64(d.DiscardIOs))
		count("discarded_sectors_total", "The total number of sectors discarded successfully.", float64(d.DiscardSectors))
		count("flush_requests_total", "The total number of flush requests completed successfully", float64(d.FlushRequestsCompleted))
		r.Gauge("node_disk_io_now", "The number of I/Os currently in progress.", float64(d.IOsInProgress), "device", d.DeviceName)
	}
	return nil
}

// usage is the usage of a file system: sizes in bytes, and numbers of inodes.
type usage struct {
	size, free, available uint64
	files, filesFree      uint64
	readOnly              bool
}

// fileSystems lists the types of file systems on disks and in memory.
var fileSystems = []string{"btrfs", "erofs", "exfat", "ext2", "ext3", "ext4", "f2fs", "tmpfs", "vfat", "xfs"}

// otherMounts lists the directories with mounts of pods, containers and the kernel.
var otherMounts = []string{"/var/lib/kubelet/", "/var/lib/containerd/", "/run/containerd/", "/run/netns/", "/proc/", "/sys/", "/dev/"}

func (r *reader) filesystem() error {
	self, err := r.fs.Self()
	if err != nil {
		return err
	}
	mounts, err := self.MountInfo()
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	for _, m := range mounts {
		if !slices.Contains(fileSystems, m.FSType) || seen[m.MountPoint] || isOther(m) {
			continue
		}
		seen[m.MountPoint] = true
		labels := []string{"device", m.Source, "mountpoint", m.MountPoint, "fstype", m.FSType}
		gauge := func(name, help string, value float64) {
			r.Gauge("node_filesystem_"+name, help, value, labels...)
		}
		u, err := r.usage(m.MountPoint)
		gauge("device_error", "Whether an error occurred while getting statistics for the given device.", exposition.Number(err != nil))
		if err != nil {
			continue
		}
		gauge("size_bytes", "Filesystem size in bytes.", float64(u.size))
		gauge("free_bytes", "Filesystem free space in bytes.", float64(u.free))
		gauge("avail_bytes", "Filesystem space available to non-root users in bytes.", float64(u.available))
		gauge("files", "Filesystem total file nodes.", float64(u.files))
		gauge("files_free", "Filesystem total free file nodes.", float64(u.filesFree))
		gauge("readonly", "Filesystem read-only status.", exposition.Number(u.readOnly))
	}
	return nil
}

// isOther reports whether filesystem omits a mount: a mount of a pod, a container or the kernel, or
// a directory that is mounted at another place, because its usage is that of its file system.
func isOther(m *procfs.MountInfo) bool {
	return m.Root != "/" || slices.ContainsFunc(otherMounts, func(dir string) bool { return strings.HasPrefix(m.MountPoint+"/", dir) })
}
