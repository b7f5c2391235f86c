package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/orlop-os/orlop/test/machinestate"
)

const mib = 1 << 20

// figures are the measured values. A value that does not exist on one side, or was not measured, is
// nil and not in the file.
type figures struct {
	startFigures
	memoryFigures
	ArtifactMiB *float64 `json:"artifact_mib,omitempty"`
	upgradeFigures
	// AnonMiB is anonymous memory by service, or by program name for other processes.
	AnonMiB map[string]float64 `json:"anon_mib,omitempty"`
}

// startFigures are times of a boot.
type startFigures struct {
	// QEMU started → first authenticated answer
	PoweronToAPI *float64 `json:"poweron_to_api_s,omitempty"`
	// QEMU started → init started
	PoweronToUserspace *float64 `json:"poweron_to_userspace_s,omitempty"`
	// init started → first authenticated answer
	APIAfterInit *float64 `json:"api_after_init_s,omitempty"`
	ToKubeAPI    *float64 `json:"userspace_to_kube_api_s,omitempty"`
	ToNodeReady  *float64 `json:"userspace_to_node_ready_s,omitempty"`
	ToPodRunning *float64 `json:"userspace_to_pod_running_s,omitempty"`
}

// memoryFigures are sizes of memory in use.
type memoryFigures struct {
	// MemTotal − MemAvailable; for the baseline without its RAM disk
	MachineUsedMiB *float64 `json:"machine_used_mib,omitempty"`
	AnonTotalMiB   *float64 `json:"anon_total_mib,omitempty"` // sum of AnonMiB
	PID1AnonMiB    *float64 `json:"pid1_anon_mib,omitempty"`
	ApidAnonMiB    *float64 `json:"apid_anon_mib,omitempty"`
}

// upgradeFigures are the figures of an upgrade.
type upgradeFigures struct {
	// upgrade request → the new version is committed
	Upgrade *float64 `json:"upgrade_s,omitempty"`
	// upgrade request → the machine resets
	UpgradeToReset *float64 `json:"upgrade_to_reset_s,omitempty"`
	// the machine resets → node Ready in the new boot
	ResetToReady *float64 `json:"upgrade_reset_to_ready_s,omitempty"`
	// last good answer of the Kubernetes API → next good answer
	UpgradeOutage *float64 `json:"upgrade_api_outage_s,omitempty"`
	// all writes of the machine to the disk meanwhile
	UpgradeWrittenMiB *float64 `json:"upgrade_written_mib,omitempty"`
	BundleMiB         *float64 `json:"bundle_mib,omitempty"`
}

// numbers returns the fields that have a median, with their labels in the table.
func (f *figures) numbers() []struct {
	what string
	at   **float64
} {
	return []struct {
		what string
		at   **float64
	}{
		{"power on → first API answer, s", &f.PoweronToAPI},
		{"power on → userspace, s", &f.PoweronToUserspace},
		{"userspace → first API answer, s", &f.APIAfterInit},
		{"userspace → Kubernetes API ready, s", &f.ToKubeAPI},
		{"userspace → node Ready, s", &f.ToNodeReady},
		{"userspace → pod Running, s", &f.ToPodRunning},
		{"memory used by the machine, MiB", &f.MachineUsedMiB},
		{"anonymous memory of its processes, MiB", &f.AnonTotalMiB},
		{"anonymous memory of PID 1, MiB", &f.PID1AnonMiB},
		{"anonymous memory of apid, MiB", &f.ApidAnonMiB},
		{"what it boots from, MiB", &f.ArtifactMiB},
		{"upgrade: asked → committed, s", &f.Upgrade},
		{"upgrade: asked → reset, s", &f.UpgradeToReset},
		{"upgrade: reset → node Ready, s", &f.ResetToReady},
		{"upgrade: Kubernetes API away, s", &f.UpgradeOutage},
		{"upgrade: written to the disk, MiB", &f.UpgradeWrittenMiB},
		{"upgrade: its bundle, MiB", &f.BundleMiB},
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

// imageFacts is the image's manifest and size.
type imageFacts struct {
	ArtifactMiB float64  `json:"artifact_mib"` // disk.raw.zst
	Executables []string `json:"executables"`
}

// side is the baseline's part of the report.
type side struct {
	figures               // medians
	Runs    []baselineRun `json:"runs"`
	// EarlyEnds counts the boots that the emulator ended by itself; they were repeated.
	EarlyEnds int `json:"early_ends"`
}

// ratios are our figures divided by the baseline's: the median of the ratios of all pairs.
type ratios struct {
	KubeAPI    *float64 `json:"kube_api,omitempty"`
	NodeReady  *float64 `json:"node_ready,omitempty"`
	PodRunning *float64 `json:"pod_running,omitempty"`
	Memory     *float64 `json:"memory,omitempty"`
}

// report is the file. Its top-level figures are the medians of our runs.
type report struct {
	Image       imageFacts `json:"-"`
	Executables []string   `json:"executables"`
	figures
	MemoryMiB   int          `json:"memory_mib"`
	Processors  int          `json:"processors"`
	IdleSeconds float64      `json:"idle_s"`
	Runs        []machineRun `json:"runs"`
	EarlyEnds   int          `json:"early_ends"`
	Baseline    *side        `json:"baseline,omitempty"`
	Ratio       *ratios      `json:"ratio,omitempty"`
	PairRatios  []ratios     `json:"pair_ratios,omitempty"`
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

// summarise computes medians and ratios from the existing runs.
func (r *report) summarise() {
	var ours []*figures
	for i := range r.Runs {
		ours = append(ours, &r.Runs[i].figures)
	}
	r.figures = medians(ours)
	r.ArtifactMiB, r.Executables = &r.Image.ArtifactMiB, r.Image.Executables
	if r.Baseline == nil {
		return
	}
	var theirs []*figures
	for i := range r.Baseline.Runs {
		theirs = append(theirs, &r.Baseline.Runs[i].figures)
	}
	r.Baseline.figures = medians(theirs)
	r.PairRatios = nil
	var api, node, pod, memory []float64
	for i := range min(len(ours), len(theirs)) {
		a, b := ours[i], theirs[i]
		one := ratios{divide(a.ToKubeAPI, b.ToKubeAPI), divide(a.ToNodeReady, b.ToNodeReady), divide(a.ToPodRunning, b.ToPodRunning), divide(a.MachineUsedMiB, b.MachineUsedMiB)}
		r.PairRatios = append(r.PairRatios, one)
		api, node, pod, memory = add(api, one.KubeAPI), add(node, one.NodeReady), add(pod, one.PodRunning), add(memory, one.Memory)
	}
	r.Ratio = &ratios{KubeAPI: median(api), NodeReady: median(node), PodRunning: median(pod), Memory: median(memory)}
}

// typical returns our run with the median time to node Ready; with two middle runs, the faster.
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

func medians(runs []*figures) figures {
	var out figures
	for i, n := range out.numbers() {
		var values []float64
		for _, run := range runs {
			values = add(values, *run.numbers()[i].at)
		}
		*n.at = median(values)
	}
	for _, run := range runs {
		for name := range run.AnonMiB {
			if _, done := out.AnonMiB[name]; done {
				continue
			}
			var values []float64
			for _, other := range runs {
				if v, ok := other.AnonMiB[name]; ok {
					values = append(values, v)
				}
			}
			if out.AnonMiB == nil {
				out.AnonMiB = map[string]float64{}
			}
			out.AnonMiB[name] = *median(values)
		}
	}
	return out
}

func add(to []float64, v *float64) []float64 {
	if v == nil {
		return to
	}
	return append(to, *v)
}

// median returns nil without values.
func median(values []float64) *float64 {
	if len(values) == 0 {
		return nil
	}
	sorted := slices.Sorted(slices.Values(values))
	m := (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
	return &m
}

func divide(a, b *float64) *float64 {
	if a == nil || b == nil || *b == 0 {
		return nil
	}
	q := *a / *b
	return &q
}

// readImage reads the image's manifest and the size of the compressed disk.
func readImage(dir string) (imageFacts, error) {
	var a imageFacts
	text, err := os.ReadFile(filepath.Join(dir, "manifest.json"))
	if err == nil {
		err = json.Unmarshal(text, &a)
	}
	if err != nil {
		return a, fmt.Errorf("image: cannot read its manifest: %w; build it with `make image`", err)
	}
	info, err := os.Stat(filepath.Join(dir, "disk.raw.zst"))
	if err != nil {
		return a, fmt.Errorf("image: cannot measure: %w; build it with `make image`", err)
	}
	a.ArtifactMiB = float64(info.Size()) / mib
	return a, nil
}

// readMemory reads the machine's present use of memory.
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

// addProcesses sums anonymous memory by service, and by program name for other processes.
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

// parseBaseline reads the lines that the baseline's guest prints, and reports whether it reached
// its end. Times are seconds of uptime.
//
//	BASELINE userspace|api|node-ready|pod-running|end SECONDS
//	BASELINE process NAME anon_kB N …
//	BASELINE memory used_kB N of which tmpfs_kB N
func parseBaseline(text string) (run baselineRun, complete bool, err error) {
	var userspace float64
	stages := map[string]**float64{"api": &run.ToKubeAPI, "node-ready": &run.ToNodeReady, "pod-running": &run.ToPodRunning}
	number := func(word string) float64 {
		v, failed := strconv.ParseFloat(word, 64)
		if failed != nil && err == nil {
			err = fmt.Errorf("baseline: cannot understand its output: %w", failed)
		}
		return v
	}
	total := 0.0
	for line := range strings.Lines(text) {
		_, line, found := strings.Cut(line, "BASELINE ")
		words := strings.Fields(line)
		if !found || len(words) < 2 {
			continue
		}
		switch {
		case words[0] == "userspace":
			userspace = number(words[1])
		case words[0] == "end":
			complete = true
		case words[0] == "process" && len(words) > 3 && words[2] == "anon_kB":
			if run.AnonMiB == nil {
				run.AnonMiB = map[string]float64{}
			}
			size := number(words[3]) / 1024
			run.AnonMiB[words[1]] = size
			total += size
		case words[0] == "memory" && len(words) == 7 && words[1] == "used_kB" && words[5] == "tmpfs_kB":
			used := (number(words[2]) - number(words[6])) / 1024
			run.MachineUsedMiB = &used
		case stages[words[0]] != nil:
			seconds := number(words[1]) - userspace
			*stages[words[0]] = &seconds
		}
	}
	if err == nil && complete && (run.ToKubeAPI == nil || run.ToNodeReady == nil || run.ToPodRunning == nil || run.MachineUsedMiB == nil || total == 0) {
		err = fmt.Errorf("baseline: its output lacks a stage or its memory; it says %q", text)
	}
	run.AnonTotalMiB = &total
	return run, complete, err
}
