package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Kubelet configures the kubelets, and restricts access to their port, 10250, by clients other than
// the API server. Each client also needs a certificate or a token.
type Kubelet struct {
	ClosedToPods         bool            `yaml:"closedToPods"`
	OpenToNamespaces     []string        `yaml:"openToNamespaces,omitempty"`
	PodPidsLimit         int             `yaml:"podPidsLimit" limits:"256 to 1048576"`
	AllowedUnsafeSysctls []string        `yaml:"allowedUnsafeSysctls,omitempty"`
	CPUManager           CPUManager      `yaml:"cpuManager"`
	MemoryManager        MemoryManager   `yaml:"memoryManager"`
	TopologyManager      TopologyManager `yaml:"topologyManager"`
	ContainerLogs        ContainerLogs   `yaml:"containerLogs"`
	ImageGC              ImageGC         `yaml:"imageGC"`
	Eviction             Eviction        `yaml:"eviction"`
	Shutdown             Shutdown        `yaml:"shutdown"`
}

// CPUManager assigns processors to containers.
type CPUManager struct {
	Policy  CPUManagerPolicy   `yaml:"policy"`
	Options []CPUManagerOption `yaml:"options,omitempty"`
}

// CPUManagerPolicy is a policy of the CPU manager.
type CPUManagerPolicy string

// The policies.
const (
	CPUManagerNone   CPUManagerPolicy = "none"
	CPUManagerStatic CPUManagerPolicy = "static"
)

// Names returns the policies.
func (CPUManagerPolicy) Names() []string {
	return []string{string(CPUManagerNone), string(CPUManagerStatic)}
}

// CPUManagerOption is an option of the static policy of the CPU manager.
type CPUManagerOption string

// The options, with the names of Kubernetes.
const (
	CPUAlignBySocket        CPUManagerOption = "align-by-socket"
	CPUDistributeAcrossCore CPUManagerOption = "distribute-cpus-across-cores"
	CPUDistributeAcrossNUMA CPUManagerOption = "distribute-cpus-across-numa"
	CPUFullCores            CPUManagerOption = "full-pcpus-only"
	CPUPreferUncoreCache    CPUManagerOption = "prefer-align-cpus-by-uncorecache"
	CPUStrictReservation    CPUManagerOption = "strict-cpu-reservation"
)

// Names returns the options.
func (CPUManagerOption) Names() []string {
	return []string{
		string(CPUAlignBySocket), string(CPUDistributeAcrossCore), string(CPUDistributeAcrossNUMA),
		string(CPUFullCores), string(CPUPreferUncoreCache), string(CPUStrictReservation),
	}
}

// MemoryManager assigns memory of NUMA nodes to pods.
type MemoryManager struct {
	Policy MemoryManagerPolicy `yaml:"policy"`
}

// MemoryManagerPolicy is a policy of the memory manager.
type MemoryManagerPolicy string

// The policies.
const (
	MemoryManagerNone   MemoryManagerPolicy = "none"
	MemoryManagerStatic MemoryManagerPolicy = "static"
)

// Names returns the policies.
func (MemoryManagerPolicy) Names() []string {
	return []string{string(MemoryManagerNone), string(MemoryManagerStatic)}
}

// TopologyManager aligns the processors, memory and devices of pods to NUMA nodes.
type TopologyManager struct {
	Policy           TopologyManagerPolicy `yaml:"policy"`
	Scope            TopologyManagerScope  `yaml:"scope"`
	PreferClosest    bool                  `yaml:"preferClosest"`
	MaximumNUMANodes int                   `yaml:"maximumNUMANodes" limits:"8 to 64"`
}

// TopologyManagerPolicy is a policy of the topology manager.
type TopologyManagerPolicy string

// The policies, with the names of Kubernetes.
const (
	TopologyNone       TopologyManagerPolicy = "none"
	TopologyBestEffort TopologyManagerPolicy = "best-effort"
	TopologyRestricted TopologyManagerPolicy = "restricted"
	TopologySingleNUMA TopologyManagerPolicy = "single-numa-node"
)

// Names returns the policies.
func (TopologyManagerPolicy) Names() []string {
	return []string{string(TopologyBestEffort), string(TopologyNone), string(TopologyRestricted), string(TopologySingleNUMA)}
}

// TopologyManagerScope is the unit that is aligned: each container, or the whole pod.
type TopologyManagerScope string

// The scopes.
const (
	TopologyContainer TopologyManagerScope = "container"
	TopologyPod       TopologyManagerScope = "pod"
)

// Names returns the scopes.
func (TopologyManagerScope) Names() []string {
	return []string{string(TopologyContainer), string(TopologyPod)}
}

// ContainerLogs limits the logs of each container on disk.
type ContainerLogs struct {
	MaxSize  Bytes `yaml:"maxSize" limits:"64KiB to 1GiB"`
	MaxFiles int   `yaml:"maxFiles" limits:"2 to 100"`
}

// ImageGC removes images that no container uses.
type ImageGC struct {
	HighPercent int      `yaml:"highPercent" limits:"2 to 95"`
	LowPercent  int      `yaml:"lowPercent" limits:"1 to 94"`
	MinimumAge  Duration `yaml:"minimumAge" limits:"whole seconds, 0s to 168h"`
	MaximumAge  Duration `yaml:"maximumAge" limits:"whole seconds, 1h to 8760h, or 0s for none"`
}

// Eviction are the thresholds of free memory and disk space below which the kubelet evicts pods.
type Eviction struct {
	Hard            HardEviction `yaml:"hard"`
	Soft            SoftEviction `yaml:"soft"`
	SoftGracePeriod Duration     `yaml:"softGracePeriod" limits:"whole seconds, 1s to 24h"`
}

// HardEviction are thresholds below which the kubelet evicts pods at once.
type HardEviction struct {
	MemoryAvailable   Threshold `yaml:"memoryAvailable"`
	NodefsAvailable   Threshold `yaml:"nodefsAvailable"`
	NodefsInodesFree  Threshold `yaml:"nodefsInodesFree"`
	ImagefsAvailable  Threshold `yaml:"imagefsAvailable"`
	ImagefsInodesFree Threshold `yaml:"imagefsInodesFree"`
}

// SoftEviction are thresholds below which the kubelet evicts pods after Eviction.SoftGracePeriod. A
// zero value means no threshold.
type SoftEviction struct {
	MemoryAvailable   Threshold `yaml:"memoryAvailable,omitempty"`
	NodefsAvailable   Threshold `yaml:"nodefsAvailable,omitempty"`
	NodefsInodesFree  Threshold `yaml:"nodefsInodesFree,omitempty"`
	ImagefsAvailable  Threshold `yaml:"imagefsAvailable,omitempty"`
	ImagefsInodesFree Threshold `yaml:"imagefsInodesFree,omitempty"`
}

// Thresholds maps the kubelet's names of signals to the thresholds.
func (h HardEviction) Thresholds() map[string]Threshold {
	return map[string]Threshold{
		"memory.available":   h.MemoryAvailable,
		"nodefs.available":   h.NodefsAvailable,
		"nodefs.inodesFree":  h.NodefsInodesFree,
		"imagefs.available":  h.ImagefsAvailable,
		"imagefs.inodesFree": h.ImagefsInodesFree,
	}
}

// Thresholds maps the kubelet's names of signals to the thresholds that are set.
func (s SoftEviction) Thresholds() map[string]Threshold {
	all := HardEviction(s).Thresholds()
	for signal, t := range all {
		if t == (Threshold{}) {
			delete(all, signal)
		}
	}
	return all
}

// Shutdown is the time that pods have to end when the machine shuts down.
type Shutdown struct {
	GracePeriod  Duration `yaml:"gracePeriod" limits:"whole seconds, 2s to 5m"`
	CriticalPods Duration `yaml:"criticalPods" limits:"whole seconds, 1s to 4m"`
}

// Threshold is an amount of bytes, or a percentage of the capacity. Its text has the format of
// Bytes, or is a whole number followed by "%".
type Threshold struct {
	Amount  Bytes
	Percent int // 0 for an amount
}

const wantThreshold = "a percentage such as 10%, or a whole number followed by KiB, MiB, GiB or TiB"

// UnmarshalText parses a threshold. The empty text is the zero value, as in String.
func (t *Threshold) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*t = Threshold{}
		return nil
	}
	number, percent := strings.CutSuffix(string(text), "%")
	if !percent {
		var amount Bytes
		if err := amount.UnmarshalText(text); err != nil {
			return &wrong{reason: fmt.Sprintf("%s is not a threshold", quote(string(text))), expected: wantThreshold}
		}
		if amount == 0 {
			return &wrong{reason: fmt.Sprintf("%s is not a threshold", quote(string(text))), expected: "more than 0KiB"}
		}
		*t = Threshold{Amount: amount}
		return nil
	}
	n, err := strconv.ParseUint(number, 10, 8)
	if err != nil || n < 1 || n > 99 {
		return &wrong{reason: fmt.Sprintf("%s is not a percentage", quote(string(text))), expected: "1% to 99%"}
	}
	*t = Threshold{Percent: int(n)}
	return nil
}

// String returns the text; empty for the zero value.
func (t Threshold) String() string {
	switch {
	case t == Threshold{}:
		return ""
	case t.Percent > 0:
		return strconv.Itoa(t.Percent) + "%"
	}
	return t.Amount.String()
}

// MarshalText returns String.
func (t Threshold) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// Quantity returns the threshold in the format of the kubelet: a percentage, or a number of bytes.
func (t Threshold) Quantity() string {
	if t.Percent > 0 {
		return t.String()
	}
	return strconv.FormatInt(int64(t.Amount), 10)
}

func defaultKubelet() Kubelet {
	return Kubelet{
		PodPidsLimit:    4096, // a fork bomb must not use up the machine's process IDs
		CPUManager:      CPUManager{Policy: CPUManagerNone},
		MemoryManager:   MemoryManager{Policy: MemoryManagerNone},
		TopologyManager: TopologyManager{Policy: TopologyNone, Scope: TopologyContainer, MaximumNUMANodes: 8},
		ContainerLogs:   ContainerLogs{MaxSize: 10 << 20, MaxFiles: 3},
		ImageGC:         ImageGC{HighPercent: 80, LowPercent: 70, MinimumAge: Duration(2 * time.Minute)},
		Eviction: Eviction{
			Hard: HardEviction{
				MemoryAvailable: Threshold{Amount: 100 << 20}, NodefsAvailable: Threshold{Percent: 10}, NodefsInodesFree: Threshold{Percent: 5},
				ImagefsAvailable: Threshold{Percent: 15}, ImagefsInodesFree: Threshold{Percent: 5},
			},
			SoftGracePeriod: Duration(90 * time.Second),
		},
		// the part of the time for a shutdown that machined/power gives to pods
		Shutdown: Shutdown{GracePeriod: Duration(25 * time.Second), CriticalPods: Duration(5 * time.Second)},
	}
}

// CPUSet is a list of processors by number. Its text consists of numbers and ranges in ascending
// order, separated by commas: 0-1,8.
type CPUSet string

const wantCPUSet = `numbers of processors and ranges, ascending, such as "0-1,8"`

// UnmarshalText parses a list.
func (c *CPUSet) UnmarshalText(text []byte) error {
	last := -1
	for part := range strings.SplitSeq(string(text), ",") {
		from, to, isRange := strings.Cut(part, "-")
		if !isRange {
			to = from
		}
		a, err := strconv.ParseUint(from, 10, 13) // the kernel has at most 8192 (CONFIG_NR_CPUS)
		b, err2 := strconv.ParseUint(to, 10, 13)
		if err != nil || err2 != nil || int(a) <= last || a > b || isRange && a == b {
			return &wrong{reason: fmt.Sprintf("%s is not a list of processors", quote(string(text))), expected: wantCPUSet}
		}
		last = int(b)
	}
	*c = CPUSet(text)
	return nil
}

// String returns the text.
func (c CPUSet) String() string { return string(c) }

// MarshalText returns the text.
func (c CPUSet) MarshalText() ([]byte, error) { return []byte(c), nil }

// Bounds returns the number of processors in the set, and the highest processor number; 0 and -1
// for an empty set.
func (c CPUSet) Bounds() (size, highest int) {
	highest = -1
	if c == "" {
		return size, highest
	}
	for part := range strings.SplitSeq(string(c), ",") {
		from, to, isRange := strings.Cut(part, "-")
		a, _ := strconv.Atoi(from)
		b := a
		if isRange {
			b, _ = strconv.Atoi(to)
		}
		size, highest = size+b-a+1, b
	}
	return size, highest
}

// Has reports whether the option is set.
func (m CPUManager) Has(o CPUManagerOption) bool { return slices.Contains(m.Options, o) }
