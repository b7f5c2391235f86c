// Package host reads the metrics of a machine from the files of the kernel, with the names and the
// labels of prometheus/node_exporter 1.12, so that dashboards and alerts for it work. It omits
// network devices of pods and file systems of containers, which the kubelet reports.
package host

import (
	"sync"
	"time"

	"github.com/prometheus/procfs"
	"github.com/prometheus/procfs/blockdevice"
	"github.com/prometheus/procfs/sysfs"

	"github.com/orlop-os/orlop/pkg/service/exposition"
)

// The mount points of the kernel's files.
const (
	Proc = "/proc"
	Sys  = "/sys"
)

// Source is a machine.
type Source struct {
	proc, sys string
	usage     func(mountPoint string) (usage, error)
	now       func() time.Time
}

// System returns the machine on which the process runs.
func System() Source { return Source{proc: Proc, sys: Sys, usage: statfs, now: time.Now} }

// collector reads a group of metrics. A group that this machine does not have is no error.
type collector struct {
	name string
	read func(*reader) error
}

// collectors are named as those of node_exporter.
var collectors = []collector{
	{"conntrack", (*reader).conntrack},
	{"cpu", (*reader).cpu},
	{"diskstats", (*reader).diskstats},
	{"filefd", (*reader).filefd},
	{"filesystem", (*reader).filesystem},
	{"loadavg", (*reader).loadavg},
	{"meminfo", (*reader).meminfo},
	{"netclass", (*reader).netclass},
	{"netdev", (*reader).netdev},
	{"netstat", (*reader).netstat},
	{"pressure", (*reader).pressure},
	{"sockstat", (*reader).sockstat},
	{"stat", (*reader).stat},
	{"thermal_zone", (*reader).thermal},
	{"time", (*reader).time},
	{"uname", (*reader).uname},
	{"vmstat", (*reader).vmstat},
}

// reader is the state of one reading.
type reader struct {
	Source
	*exposition.Families
	fs     procfs.FS
	kernel func() (procfs.Stat, error) // /proc/stat, which two collectors use; read once
}

// Read returns the present metrics. A group that cannot be read is missing, and its
// node_scrape_collector_success is 0.
func (s Source) Read() *exposition.Families {
	r := &reader{Source: s, Families: new(exposition.Families)}
	fs, err := procfs.NewFS(s.proc)
	r.fs, r.kernel = fs, sync.OnceValues(fs.Stat)
	for _, c := range collectors {
		began := s.now()
		success := err == nil && c.read(r) == nil
		r.Gauge("node_scrape_collector_duration_seconds", "The duration of a collector's scrape in seconds.", s.now().Sub(began).Seconds(), "collector", c.name)
		r.Gauge("node_scrape_collector_success", "Whether a collector succeeded.", exposition.Number(success), "collector", c.name)
	}
	return r.Families
}

// block returns the block devices.
func (r *reader) block() (blockdevice.FS, error) { return blockdevice.NewFS(r.proc, r.sys) }

// devices returns the devices.
func (r *reader) devices() (sysfs.FS, error) { return sysfs.NewFS(r.sys) }
