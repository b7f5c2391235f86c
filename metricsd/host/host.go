// Package host reads the metrics of a machine from files of the kernel. The metrics have the names
// and labels of prometheus/node_exporter 1.12, so its dashboards and alerts work. The package omits
// network devices of pods and file systems of containers, because the kubelet reports them.
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

// Source gives access to the kernel's files of a machine; tests replace its parts.
type Source struct {
	proc, sys string
	usage     func(mountPoint string) (usage, error)
	now       func() time.Time
}

// System returns the machine on which the process runs.
func System() Source { return Source{proc: Proc, sys: Sys, usage: statfs, now: time.Now} }

// collector reads a group of metrics. If the machine does not have a group, its read function adds
// no metrics and returns nil.
type collector struct {
	name string
	read func(*reader) error
}

// collectors lists all collectors, with the names of node_exporter.
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

// reader has the state of one Read.
type reader struct {
	Source
	*exposition.Families
	fs     procfs.FS
	kernel func() (procfs.Stat, error) // reads /proc/stat once for the two collectors that use it
}

// Read returns the present metrics. If a collector fails, its metrics are missing, and its
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

// block opens the statistics of block devices.
func (r *reader) block() (blockdevice.FS, error) { return blockdevice.NewFS(r.proc, r.sys) }

// devices opens the tree of devices in sysfs.
func (r *reader) devices() (sysfs.FS, error) { return sysfs.NewFS(r.sys) }
