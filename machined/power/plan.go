package power

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/orlop-os/orlop/pkg/kernel/mount"
)

// Mode is the kind of shutdown.
type Mode string

const (
	Reboot   Mode = "reboot"
	PowerOff Mode = "power off"
)

// Step is a part of a shutdown.
type Step struct {
	Do StepName
	// By is the deadline of the step: the time since the start of the shutdown at which the next
	// step begins, even if this step has not finished.
	By time.Duration
}

// StepName is the name of a step.
type StepName string

const (
	EndPods       StepName = "end pods"
	StopServices  StepName = "stop services"
	TermProcesses StepName = "terminate the remaining processes"
	KillProcesses StepName = "kill the remaining processes"
	UnmountAll    StepName = "unmount"
	WipeDisks     StepName = "wipe the disks"
	SyncDisks     StepName = "write caches to disk"
)

// String returns, for example, "by 27s: end pods".
func (s Step) String() string { return fmt.Sprintf("by %v: %s", s.By, s.Do) }

// Plan divides the total time of a shutdown into steps. Pods and services get most of it. Time that
// a step does not use goes to the later steps. Pods stop before the services that run them. Each
// step needs some time, so Plan uses at least 5 s.
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

// keptTrees are the mounts that stay until the end, with all mounts below them. They have no data
// on disk, and the last steps need them.
var keptTrees = []string{"/proc", "/sys", "/dev"}

// PlanUnmount returns the mount points to unmount. Their order is the reverse of mounting, because
// later mounts are on top of earlier mounts or depend on them. The root, /run and keptTrees stay
// mounted.
func PlanUnmount(mounts []mount.Mount) []string {
	var targets []string
	for _, m := range slices.Backward(mounts) {
		if m.Target == "/" || m.Target == "/run" || slices.ContainsFunc(keptTrees, func(k string) bool {
			return m.Target == k || strings.HasPrefix(m.Target, k+"/")
		}) {
			continue
		}
		targets = append(targets, m.Target)
	}
	return targets
}
