package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/orlop-os/orlop/test/machinestate"
	"github.com/orlop-os/orlop/test/targets"
)

const mib = 1 << 20

// figures are the measured values of a boot, or the medians of several boots. A value is nil if it
// was not measured, or if it does not exist on a side of the comparison. A nil value is omitted
// from the JSON file.
type figures struct {
	startFigures
	memoryFigures
	ArtifactMiB *float64 `json:"artifact_mib,omitempty"`
	upgradeFigures
	idleFigures
	floodFigures
	// AnonMiB is the anonymous memory of each service. Processes of no service are listed by
	// program name.
	AnonMiB map[string]float64 `json:"anon_mib,omitempty"`
}

// startFigures are the durations of the phases of a boot. Authenticated answer means an answer of
// the management API to a client with a certificate.
type startFigures struct {
	// from the start of QEMU to the first authenticated answer
	PoweronToAPI *float64 `json:"poweron_to_api_s,omitempty"`
	// from the start of QEMU to the start of init
	PoweronToUserspace *float64 `json:"poweron_to_userspace_s,omitempty"`
	// from the start of init to the first authenticated answer
	APIAfterInit *float64 `json:"api_after_init_s,omitempty"`
	// from the start of init until the Kubernetes API is ready, the node is Ready, a pod is Running
	ToKubeAPI    *float64 `json:"userspace_to_kube_api_s,omitempty"`
	ToNodeReady  *float64 `json:"userspace_to_node_ready_s,omitempty"`
	ToPodRunning *float64 `json:"userspace_to_pod_running_s,omitempty"`
}

// memoryFigures are amounts of memory in use.
type memoryFigures struct {
	// MachineUsedMiB is MemTotal − MemAvailable. For the baseline, the size of its tmpfs is
	// subtracted, because the baseline has its files in memory.
	MachineUsedMiB *float64 `json:"machine_used_mib,omitempty"`
	AnonTotalMiB   *float64 `json:"anon_total_mib,omitempty"` // sum of AnonMiB
	PID1AnonMiB    *float64 `json:"pid1_anon_mib,omitempty"`
	ApidAnonMiB    *float64 `json:"apid_anon_mib,omitempty"`
}

// upgradeFigures are the measured values of an upgrade.
type upgradeFigures struct {
	// from the upgrade request to the commit of the new version
	Upgrade *float64 `json:"upgrade_s,omitempty"`
	// from the upgrade request to the reset of the machine
	UpgradeToReset *float64 `json:"upgrade_to_reset_s,omitempty"`
	// from the reset of the machine to node Ready in the next boot
	ResetToReady *float64 `json:"upgrade_reset_to_ready_s,omitempty"`
	// from the last successful answer of the Kubernetes API before the reset to the next successful
	// answer
	UpgradeOutage *float64 `json:"upgrade_api_outage_s,omitempty"`
	// amount that the machine writes to its disk during the upgrade
	UpgradeWrittenMiB *float64 `json:"upgrade_written_mib,omitempty"`
	BundleMiB         *float64 `json:"bundle_mib,omitempty"`
}

// idleFigures are the use of processors while no client sends a request, in seconds per minute.
type idleFigures struct {
	// IdleProcessor is the processor time that the emulator uses on this computer.
	IdleProcessor *float64 `json:"idle_processor_s_per_min,omitempty"`
	// IdleBusy is the time that the machine's kernel reports as busy, summed over its processors.
	IdleBusy *float64 `json:"idle_busy_s_per_min,omitempty"`
	// IdleByService is the processor time that the machine accounts to each service. Processes of
	// no service are listed by program name.
	IdleByService map[string]float64 `json:"idle_by_service_s_per_min,omitempty"`
}

// floodFigures are the latencies of the machine's management API, on a machine with one processor,
// in milliseconds.
type floodFigures struct {
	QuietP99 *float64 `json:"quiet_p99_ms,omitempty"`
	FloodP99 *float64 `json:"flood_p99_ms,omitempty"`
	// FloodRatio is FloodP99 / QuietP99.
	FloodRatio *float64 `json:"flood_ratio,omitempty"`
}

// figure describes a field of figures that has a median.
type figure struct {
	what, unit string    // label in tables
	ratio      string    // name in the maps of ratios; empty for a figure without a ratio
	at         **float64 // address of the field
}

// numbers returns a description of each field that has a median.
func (f *figures) numbers() []figure {
	return []figure{
		{"power on → first API answer", "s", "", &f.PoweronToAPI},
		{"power on → userspace", "s", "", &f.PoweronToUserspace},
		{"userspace → first API answer", "s", "api", &f.APIAfterInit},
		{"userspace → Kubernetes API ready", "s", "kube_api", &f.ToKubeAPI},
		{"userspace → node Ready", "s", "node_ready", &f.ToNodeReady},
		{"userspace → pod Running", "s", "pod_running", &f.ToPodRunning},
		{"memory used by the machine", "MiB", "memory", &f.MachineUsedMiB},
		{"anonymous memory of its processes", "MiB", "", &f.AnonTotalMiB},
		{"anonymous memory of PID 1", "MiB", "", &f.PID1AnonMiB},
		{"anonymous memory of apid", "MiB", "", &f.ApidAnonMiB},
		{"idle: processor time of the emulator", "s/min", "idle_processor", &f.IdleProcessor},
		{"idle: busy by the machine's kernel", "s/min", "idle_busy", &f.IdleBusy},
		{"boot files", "MiB", "artifact_mib", &f.ArtifactMiB},
		{"upgrade: request → committed", "s", "upgrade", &f.Upgrade},
		{"upgrade: request → reset", "s", "upgrade_to_reset", &f.UpgradeToReset},
		{"upgrade: reset → node Ready", "s", "upgrade_reset_to_ready", &f.ResetToReady},
		{"upgrade: Kubernetes API away", "s", "upgrade_api_outage", &f.UpgradeOutage},
		{"upgrade: written to the disk", "MiB", "upgrade_written", &f.UpgradeWrittenMiB},
		{"upgrade: its bundle", "MiB", "", &f.BundleMiB},
		{"p99 of Version without a flood", "ms", "quiet_p99", &f.QuietP99},
		{"p99 of Version in a flood of handshakes", "ms", "flood_p99", &f.FloodP99},
		{"p99 of Version in a flood / without", "", "flood_ratio", &f.FloodRatio},
	}
}

// machineRun is one boot of our machine.
type machineRun struct {
	figures
	Timeline []stage `json:"timeline"`
	Events   []event `json:"events"`
}

// baselineRun is one boot of the baseline.
type baselineRun struct{ figures }

// imageFacts are values from the image's manifest, and the size of the compressed image.
type imageFacts struct {
	Version     string
	ArtifactMiB float64 // size of disk.raw.zst
	Executables []string
}

// comparison holds our figures divided by the figures of the other side: the ratios of each pair of
// runs, and their medians over all pairs. The keys are the names in figure.ratio.
type comparison struct {
	Ratio      map[string]float64   `json:"ratio,omitempty"`
	PairRatios []map[string]float64 `json:"pair_ratios,omitempty"`
}

// side is the section about the baseline in the report.
type side struct {
	figures               // medians
	Runs    []baselineRun `json:"runs"`
	// EarlyEnds counts the boots that were repeated because the emulator ended early.
	EarlyEnds int `json:"early_ends"`
}

// formerReport is the section about a former release in the report.
type formerReport struct {
	Version   string       `json:"version"`
	figures                // medians
	Runs      []machineRun `json:"runs"`
	EarlyEnds int          `json:"early_ends"`
	comparison
}

// report is the content of the JSON file. Its top-level figures are the medians of our runs.
type report struct {
	Version     string   `json:"version"`
	Command     string   `json:"command"`
	Executables []string `json:"executables"`
	figures
	MemoryMiB   int              `json:"memory_mib"`
	Processors  int              `json:"processors"`
	IdleSeconds float64          `json:"idle_s"`
	Runs        []machineRun     `json:"runs"`
	EarlyEnds   int              `json:"early_ends"`
	Against     *formerReport    `json:"against,omitempty"`
	Baseline    *side            `json:"baseline,omitempty"`
	comparison                   // our figures divided by the figures of the baseline
	Targets     []targets.Result `json:"targets,omitempty"`
}

// addOurs adds the result of a boot of our machine. early is the number of attempts for this boot
// that ended early; the function again repeats such an attempt. addFormer and addBaseline do the
// same for the other sides.
func (r *report) addOurs(run machineRun, early int, err error) {
	r.EarlyEnds += early
	if err == nil {
		r.Runs = append(r.Runs, run)
	}
}

func (r *report) addFormer(run machineRun, early int, err error) {
	r.Against.EarlyEnds += early
	if err == nil {
		r.Against.Runs = append(r.Against.Runs, run)
	}
}

func (r *report) addBaseline(run baselineRun, early int, err error) {
	if r.Baseline == nil {
		r.Baseline = &side{}
	}
	r.Baseline.EarlyEnds += early
	if err == nil {
		r.Baseline.Runs = append(r.Baseline.Runs, run)
	}
}

// summarize computes the medians, ratios and target results from the recorded runs.
func (r *report) summarize() {
	ours := figuresOf(r.Runs)
	r.figures = medians(ours)
	if r.Against != nil {
		theirs := figuresOf(r.Against.Runs)
		r.Against.figures, r.Against.comparison = medians(theirs), compare(ours, theirs)
	}
	if r.Baseline != nil {
		theirs := baselineFigures(r.Baseline.Runs)
		r.Baseline.figures, r.comparison = medians(theirs), compare(ours, theirs)
	}
	r.Targets = r.results()
}

func figuresOf(runs []machineRun) []*figures {
	var out []*figures
	for i := range runs {
		out = append(out, &runs[i].figures)
	}
	return out
}

func baselineFigures(runs []baselineRun) []*figures {
	var out []*figures
	for i := range runs {
		out = append(out, &runs[i].figures)
	}
	return out
}

// compare divides our figures by the figures of the other side, for each pair of runs. If one run
// of a pair lacks a figure, the pair has no ratio for this figure.
func compare(ours, theirs []*figures) comparison {
	var c comparison
	all := map[string][]float64{}
	for i := range min(len(ours), len(theirs)) {
		pair := map[string]float64{}
		a, b := ours[i].numbers(), theirs[i].numbers()
		for n := range a {
			if q := targets.Divide(*a[n].at, *b[n].at); q != nil && a[n].ratio != "" {
				pair[a[n].ratio] = *q
				all[a[n].ratio] = append(all[a[n].ratio], *q)
			}
		}
		c.PairRatios = append(c.PairRatios, pair)
	}
	if len(all) > 0 {
		c.Ratio = map[string]float64{}
	}
	for name, values := range all {
		c.Ratio[name] = *targets.Median(values)
	}
	return c
}

// typical returns our run with the median time to node Ready. If the number of runs is even, it
// returns the faster of the two middle runs.
func (r *report) typical() machineRun {
	sorted := slices.Clone(r.Runs)
	slices.SortFunc(sorted, func(a, b machineRun) int {
		if *a.ToNodeReady < *b.ToNodeReady {
			return -1
		}
		return 1
	})
	return sorted[(len(sorted)-1)/2]
}

// medians returns the medians of the figures over all runs.
func medians(runs []*figures) figures {
	var out figures
	for i, n := range out.numbers() {
		var values []float64
		for _, run := range runs {
			values = add(values, *run.numbers()[i].at)
		}
		*n.at = targets.Median(values)
	}
	out.AnonMiB = medianOfNames(runs, func(f *figures) map[string]float64 { return f.AnonMiB })
	out.IdleByService = medianOfNames(runs, func(f *figures) map[string]float64 { return f.IdleByService })
	return out
}

// medianOfNames returns the median of the values for each name, over the runs that have the name.
// It returns nil if no run has a name.
func medianOfNames(runs []*figures, mapOf func(*figures) map[string]float64) map[string]float64 {
	all := map[string][]float64{}
	for _, run := range runs {
		for name, v := range mapOf(run) {
			all[name] = append(all[name], v)
		}
	}
	if len(all) == 0 {
		return nil
	}
	out := map[string]float64{}
	for name, values := range all {
		out[name] = *targets.Median(values)
	}
	return out
}

// add returns values with *v appended, or values if v is nil.
func add(values []float64, v *float64) []float64 {
	if v == nil {
		return values
	}
	return append(values, *v)
}

// readImage reads the manifest of the image in dir, and the size of the compressed disk image.
func readImage(dir string) (imageFacts, error) {
	var manifest struct {
		Release     struct{ Version string }
		Executables []string
	}
	text, err := os.ReadFile(filepath.Join(dir, "manifest.json"))
	if err == nil {
		err = json.Unmarshal(text, &manifest)
	}
	if err != nil {
		return imageFacts{}, fmt.Errorf("image: cannot read its manifest: %w; build it with `make image`", err)
	}
	size, err := sizeOf(filepath.Join(dir, "disk.raw.zst"))
	if err != nil {
		return imageFacts{}, fmt.Errorf("image: %w; build it with `make image`", err)
	}
	return imageFacts{Version: manifest.Release.Version, ArtifactMiB: *size, Executables: manifest.Executables}, nil
}

// readMemory reads the present memory use of the machine and of its processes.
func (b *boot) readMemory(ctx context.Context) (machineRun, error) {
	var run machineRun
	memory, err := machinestate.Get[machinestate.Memory](ctx, b.client, "memory")
	if err != nil {
		return run, err
	}
	processes, err := machinestate.Get[[]process](ctx, b.client, "processes")
	if err != nil {
		return run, err
	}
	services, err := machinestate.Get[[]service](ctx, b.client, "services")
	if err != nil {
		return run, err
	}
	used := float64(memory.Used()) / mib
	run.MachineUsedMiB = &used
	run.addProcesses(processes, services)
	return run, nil
}

// addProcesses sums the anonymous memory of the processes of each service. It lists processes of no
// service by program name.
func (f *figures) addProcesses(processes []process, services []service) {
	f.AnonMiB = map[string]float64{}
	total := 0.0
	for i, name := range machinestate.Names(processes, services) {
		p := processes[i]
		size := float64(p.Anonymous) / mib
		f.AnonMiB[name] += size
		total += size
		switch {
		case p.PID == 1:
			f.PID1AnonMiB = &size
		case name == "apid":
			f.ApidAnonMiB = &size
		}
	}
	f.AnonTotalMiB = &total
}
