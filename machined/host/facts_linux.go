package host

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/orlop-os/orlop/pkg/kernel/kmod"
	"github.com/orlop-os/orlop/pkg/kernel/mount"
	"golang.org/x/sys/unix"
)

// ReadFacts reads the input of Plan.
func (k *Kernel) ReadFacts() (Facts, error) {
	memory, err := k.ReadMemory()
	if err != nil {
		return Facts{}, err
	}
	_, err = os.Stat(filepath.Join(k.sys, "firmware/efi"))
	return Facts{Memory: memory.Total, CPUs: runtime.NumCPU(), EFI: err == nil}, nil
}

// Memory is the content of /proc/meminfo, in bytes (proc_meminfo(5)).
type Memory struct {
	Total     int64 `json:"total"`     // all memory that the kernel manages
	Available int64 `json:"available"` // available without swapping
	Free      int64 `json:"free"`
	Cached    int64 `json:"cached"`
	Anonymous int64 `json:"anonymous"`
	Slab      int64 `json:"slab"`
}

// ReadMemory reads the memory usage of the machine.
func (k *Kernel) ReadMemory() (Memory, error) {
	text, err := os.ReadFile(filepath.Join(k.proc, "meminfo"))
	if err != nil {
		return Memory{}, fmt.Errorf("memory: cannot read: %w", err)
	}
	var m Memory
	fields := map[string]*int64{"MemTotal:": &m.Total, "MemAvailable:": &m.Available, "MemFree:": &m.Free, "Cached:": &m.Cached, "AnonPages:": &m.Anonymous, "Slab:": &m.Slab}
	readKiB(string(text), fields)
	if m.Total == 0 {
		return Memory{}, fmt.Errorf("memory: cannot parse %s/meminfo: no MemTotal", k.proc)
	}
	return m, nil
}

// readKiB stores the numbers of lines of the form "MemTotal: 2034288 kB" in bytes.
func readKiB(text string, into map[string]*int64) {
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) < 2 || into[words[0]] == nil {
			continue
		}
		if n, err := strconv.ParseInt(words[1], 10, 64); err == nil {
			*into[words[0]] = n * 1024
		}
	}
}

// System describes the machine and its kernel.
type System struct {
	Kernel        string    `json:"kernel"` // uname -r
	Arch          string    `json:"arch"`   // uname -m
	CPUs          int       `json:"cpus"`
	CPUModel      string    `json:"cpuModel"`
	EFI           bool      `json:"efi"`
	Product       string    `json:"product"` // product name from the firmware; may be empty
	Serial        string    `json:"serial"`  // serial number from the firmware; may be empty
	Started       time.Time `json:"started"` // boot time by the current clock
	UptimeSeconds float64   `json:"uptimeSeconds"`
	// IdleSeconds is the idle time, summed over all processors (proc_uptime(5)).
	IdleSeconds float64 `json:"idleSeconds"`
	Load1       float64 `json:"load1"` // running or waiting tasks, mean of the last minute
}

// ReadSystem reads the description of the machine and its kernel. Values that the firmware does not
// report stay empty.
func (k *Kernel) ReadSystem() (System, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return System{}, fmt.Errorf("kernel: cannot read its name: %w", err)
	}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return System{}, fmt.Errorf("kernel: cannot read sysinfo: %w", err)
	}
	facts, err := k.ReadFacts()
	if err != nil {
		return System{}, err
	}
	var up unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &up); err != nil {
		return System{}, fmt.Errorf("kernel: cannot read uptime: %w", err)
	}
	uptime := time.Duration(up.Nano())
	return System{
		Kernel:        unix.ByteSliceToString(u.Release[:]),
		Arch:          unix.ByteSliceToString(u.Machine[:]),
		CPUs:          facts.CPUs,
		CPUModel:      k.cpuModel(),
		EFI:           facts.EFI,
		Product:       k.firmwareWord("product_name"),
		Serial:        k.firmwareWord("product_serial"),
		Started:       time.Now().Add(-uptime).Truncate(time.Second),
		UptimeSeconds: uptime.Seconds(),
		IdleSeconds:   k.idleSeconds(),
		Load1:         float64(info.Loads[0]) / (1 << 16), // SI_LOAD_SHIFT
	}, nil
}

// idleSeconds is 0 if the kernel does not report it.
func (k *Kernel) idleSeconds() float64 {
	text, err := os.ReadFile(filepath.Join(k.proc, "uptime"))
	if err != nil {
		return 0
	}
	var up, idle float64
	if _, err := fmt.Sscan(string(text), &up, &idle); err != nil {
		return 0
	}
	return idle
}

func (k *Kernel) firmwareWord(file string) string {
	text, err := os.ReadFile(filepath.Join(k.sys, "class/dmi/id", file))
	if err != nil {
		return "" // no DMI table
	}
	return strings.TrimSpace(string(text))
}

func (k *Kernel) cpuModel() string {
	text, err := os.ReadFile(filepath.Join(k.proc, "cpuinfo"))
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if name, value, _ := strings.Cut(line, ":"); strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// MountState is a mount in the form of the API.
type MountState struct {
	Target string `json:"target"`
	Source string `json:"source"`
	Type   string `json:"type"`
	Flags  string `json:"flags"` // "ro,nosuid"; "rw" if there are no flags
}

// ReadMounts lists the mounts in mount order.
func (k *Kernel) ReadMounts() ([]MountState, error) {
	mounts, err := mount.List()
	if err != nil {
		return nil, err
	}
	list := make([]MountState, len(mounts))
	for i, m := range mounts {
		list[i] = MountState{Target: m.Target, Source: m.Source, Type: m.Type, Flags: m.Flags.String()}
	}
	return list, nil
}

// LoadedModule is a module in the kernel.
type LoadedModule struct {
	Name   string   `json:"name"`
	Size   int64    `json:"size"` // bytes
	UsedBy []string `json:"usedBy,omitempty"`
}

// ReadModules lists the modules in the kernel, the newest first.
func (k *Kernel) ReadModules() ([]LoadedModule, error) {
	text, err := os.ReadFile(filepath.Join(k.proc, "modules"))
	if err != nil {
		return nil, fmt.Errorf("kernel modules: cannot list: %w", err)
	}
	var list []LoadedModule
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line) // name size users names,of,users, state address
		if len(words) < 4 {
			continue
		}
		m := LoadedModule{Name: kmod.Normalize(words[0])}
		m.Size, _ = strconv.ParseInt(words[1], 10, 64) // the kernel prints a number
		m.UsedBy = strings.FieldsFunc(words[3], func(r rune) bool { return r == ',' || r == '-' })
		list = append(list, m)
	}
	return list, nil
}

// ProcessState describes a user-space process.
type ProcessState struct {
	PID       int    `json:"pid"`
	Parent    int    `json:"parent"`
	Name      string `json:"name"`
	UID       int    `json:"uid"`
	Anonymous int64  `json:"anonymous"` // bytes of anonymous memory (RssAnon)
	// bytes of mapped files, shared with other processes (RssFile)
	File    int64 `json:"file"`
	Threads int   `json:"threads"`
	// ProcessorSeconds is the user and system time of the process.
	ProcessorSeconds float64 `json:"processorSeconds"`
}

// ReadProcesses lists the user-space processes by process ID, without kernel threads.
func (k *Kernel) ReadProcesses() ([]ProcessState, error) {
	entries, err := os.ReadDir(k.proc)
	if err != nil {
		return nil, fmt.Errorf("processes: cannot list: %w", err)
	}
	var list []ProcessState
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		text, err := os.ReadFile(filepath.Join(k.proc, entry.Name(), "status"))
		if err != nil {
			continue // the process has ended in the meantime
		}
		p, program := parseStatus(pid, string(text))
		if !program {
			continue
		}
		if text, err := os.ReadFile(filepath.Join(k.proc, entry.Name(), "stat")); err == nil {
			p.ProcessorSeconds = processorSeconds(string(text))
		}
		list = append(list, p)
	}
	return list, nil
}

// userHZ is the number of clock ticks per second in /proc/PID/stat; every kernel for x86-64 and
// arm64 uses this value (USER_HZ).
const userHZ = 100

// processorSeconds parses /proc/PID/stat (proc_pid_stat(5)): utime and stime are the 14th and 15th
// field. The second field is the name in parentheses, which may itself contain blanks and
// parentheses.
func processorSeconds(stat string) float64 {
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(fields) < 13 {
		return 0
	}
	user, _ := strconv.ParseInt(fields[11], 10, 64)
	system, _ := strconv.ParseInt(fields[12], 10, 64)
	return float64(user+system) / userHZ
}

// parseStatus parses /proc/PID/status (proc_pid_status(5)). The result program is false for kernel
// threads and zombies: they have no memory, so they have no line that starts with Rss.
func parseStatus(pid int, text string) (p ProcessState, program bool) {
	p.PID = pid
	readKiB(text, map[string]*int64{"RssAnon:": &p.Anonymous, "RssFile:": &p.File})
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(line, ":")
		words := strings.Fields(value)
		if len(words) == 0 {
			continue
		}
		switch name {
		case "Name":
			p.Name = strings.TrimSpace(value)
		case "PPid":
			p.Parent, _ = strconv.Atoi(words[0]) // the kernel prints numbers here and below
		case "Uid":
			p.UID, _ = strconv.Atoi(words[0])
		case "Threads":
			p.Threads, _ = strconv.Atoi(words[0])
		case "RssAnon":
			program = true
		}
	}
	return p, program
}
