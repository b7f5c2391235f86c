package host

import (
	"errors"
	"io/fs"
	"maps"
	"slices"
	"strconv"

	"github.com/prometheus/procfs"
)

func (r *reader) cpu() error {
	stat, err := r.kernel()
	if err != nil {
		return err
	}
	for _, n := range slices.Sorted(maps.Keys(stat.CPU)) {
		c := stat.CPU[n]
		for _, m := range []struct {
			mode    string
			seconds float64
		}{
			{"user", c.User}, {"nice", c.Nice}, {"system", c.System}, {"idle", c.Idle}, {"iowait", c.Iowait}, {"irq", c.IRQ}, {"softirq", c.SoftIRQ}, {"steal", c.Steal},
		} {
			r.Counter("node_cpu_seconds_total", "Seconds the CPUs spent in each mode.", m.seconds, "cpu", strconv.FormatInt(n, 10), "mode", m.mode)
		}
	}
	return nil
}

func (r *reader) stat() error {
	stat, err := r.kernel()
	if err != nil {
		return err
	}
	r.Gauge("node_boot_time_seconds", "Node boot time, in unixtime.", float64(stat.BootTime))
	r.Counter("node_context_switches_total", "Total number of context switches.", float64(stat.ContextSwitches))
	r.Counter("node_forks_total", "Total number of forks.", float64(stat.ProcessCreated))
	r.Counter("node_intr_total", "Total number of interrupts serviced.", float64(stat.IRQTotal))
	r.Gauge("node_procs_blocked", "Number of processes blocked waiting for I/O to complete.", float64(stat.ProcessesBlocked))
	r.Gauge("node_procs_running", "Number of processes in runnable state.", float64(stat.ProcessesRunning))
	return nil
}

func (r *reader) loadavg() error {
	load, err := r.fs.LoadAvg()
	if err != nil {
		return err
	}
	r.Gauge("node_load1", "1m load average.", load.Load1)
	r.Gauge("node_load5", "5m load average.", load.Load5)
	r.Gauge("node_load15", "15m load average.", load.Load15)
	return nil
}

// pressure adds no metrics if the kernel has no pressure stall information.
func (r *reader) pressure() error {
	for _, p := range []struct {
		resource, waiting, stalled string
	}{
		{"cpu", "Total time in seconds that processes have waited for CPU time", ""},
		{"io", "Total time in seconds that processes have waited due to IO congestion", "Total time in seconds no process could make progress due to IO congestion"},
		{"memory", "Total time in seconds that processes have waited for memory", "Total time in seconds no process could make progress due to memory congestion"},
	} {
		psi, err := r.fs.PSIStatsForResource(p.resource)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		seconds := func(l *procfs.PSILine) float64 { return float64(l.Total) / 1e6 }
		if psi.Some != nil {
			r.Counter("node_pressure_"+p.resource+"_waiting_seconds_total", p.waiting, seconds(psi.Some))
		}
		if psi.Full != nil && p.stalled != "" {
			r.Counter("node_pressure_"+p.resource+"_stalled_seconds_total", p.stalled, seconds(psi.Full))
		}
	}
	return nil
}

// thermal adds no metrics if the machine has no sensors.
func (r *reader) thermal() error {
	devices, err := r.devices()
	if err != nil {
		return err
	}
	zones, err := devices.ClassThermalZoneStats()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, z := range zones {
		r.Gauge("node_thermal_zone_temp", "Zone temperature in Celsius", float64(z.Temp)/1000, "type", z.Type, "zone", z.Name)
	}
	return nil
}

func (r *reader) time() error {
	r.Gauge("node_time_seconds", "System time in seconds since epoch (1970).", float64(r.now().UnixNano())/1e9)
	return nil
}
