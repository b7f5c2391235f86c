package power

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/orlop-os/orlop/pkg/mount"
)

// Mode is how the machine goes down.
type Mode string

const (
	Reboot   Mode = "reboot"
	PowerOff Mode = "power off"
)

// Step is a part of going down.
type Step struct {
	Do StepName
	// since the beginning, when the next step begins whether this one is done or not
	By time.Duration
}

// StepName says what a step does.
type StepName string

const (
	EndPods       StepName = "end pods"
	StopServices  StepName = "stop services"
	TermProcesses StepName = "ask the remaining processes to end"
	KillProcesses StepName = "kill the remaining processes"
	UnmountAll    StepName = "unmount"
	WipeDisks     StepName = "forget what the disks hold"
	SyncDisks     StepName = "write caches to disk"
)

// String is "by 27s: end pods".
func (s Step) String() string { return fmt.Sprintf("by %v: %s", s.By, s.Do) }

// Plan divides the time. Pods and services get most of it; what a step does not use the next ones
// have. Pods end before the services that run them. Every step needs some time, so a total of less
// than 5 s counts as 5 s.
func Plan(total time.Duration) []Step {
	total = max(total, 5*time.Second)
	part := func(percent int) time.Duration {
		return (total * time.Duration(percent) / 100).Round(100 * time.Millisecond)
	}
	return []Step{
		{EndPods, part(45)}, {StopServices, part(70)}, {TermProcesses, part(77)},
		{KillProcesses, part(80)}, {UnmountAll, part(88)}, {WipeDisks, part(96)}, {SyncDisks, total},
	}
}

// keep are the trees that stay mounted to the end: they have nothing on disk, and the last steps
// need them.
var keep = []string{"/proc", "/sys", "/dev"}

// PlanUnmount lists the mount points to unmount, in order: later mounts lie on top of earlier ones
// or depend on them, so the order is the reverse of mounting. The root, /run and the kernel's own
// trees stay.
func PlanUnmount(mounts []mount.Mount) []string {
	var targets []string
	for _, m := range slices.Backward(mounts) {
		if m.Target == "/" || m.Target == "/run" || slices.ContainsFunc(keep, func(k string) bool {
			return m.Target == k || strings.HasPrefix(m.Target, k+"/")
		}) {
			continue
		}
		targets = append(targets, m.Target)
	}
	return targets
}
