package supervise

import (
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/orlop-os/orlop/pkg/kernel/cgroup"
)

// Service describes a process that should run. Services are compared as a whole: the service is
// restarted if any field differs, so no field may change by itself (a time, a random number).
type Service struct {
	Name      string   // "containerd"; unique, also the name of its log
	DependsOn []string // services that must be ready before its start

	// Process is its main process. ORLOP_NOTIFY_FD is added to the environment with Ready.Notify,
	// ORLOP_PROFILE_FD with Profile, ORLOP_METRICS_FD with Metrics.
	Process Spec

	// path of its control group, "/orlop/containerd"; created at its start; empty for machined's
	// own
	Cgroup string
	Limits cgroup.Limits // of its control group
	// LeaveChildren preserves the remaining processes when the main process exits, is stopped or is
	// restarted. containerd uses it, because pods outlive containerd. Otherwise all processes in
	// the control group are killed.
	LeaveChildren bool

	Ready Probe // its readiness
	// timeout of a start, which grows with each failure (see Step); 0: none
	StartTimeout time.Duration
	GracePeriod  time.Duration // between SIGTERM and SIGKILL; 0 for 10 s
	Backoff      Backoff       // between failures

	// path of the Unix socket for its profiles, see pkg/service/profile; empty: none
	Profile string
	Metrics string // the same for its metrics, see pkg/service/exposition

	LogLines int // retained lines of output; 0 for 2000
	LogBytes int // retained bytes of output; 0 for 256 KiB
}

// Probe defines how a service becomes ready. With the zero Probe it is ready after its start. At
// most one field is set.
type Probe struct {
	Notify bool   // it reports its readiness, see pkg/service/notify
	Unix   string // a Unix stream socket at this path accepts connections
	TCP    string // "127.0.0.1:10248" accepts connections
}

// Backoff defines the delay before a failed service is started again: none after the first failure,
// then First, then doubled each time up to Max. A service that was ready for Reset starts again
// from zero failures.
type Backoff struct {
	First, Max, Reset time.Duration // 0 for 1 s, 30 s and 60 s
}

// withDefaults returns the service with defaults for zero durations and sizes.
func (s Service) withDefaults() Service {
	set := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	set(&s.GracePeriod, 10*time.Second)
	set(&s.Backoff.First, time.Second)
	set(&s.Backoff.Max, 30*time.Second)
	set(&s.Backoff.Reset, 60*time.Second)
	if s.LogLines == 0 {
		s.LogLines = 2000
	}
	if s.LogBytes == 0 {
		s.LogBytes = 256 << 10
	}
	if s.Process.Dir == "" {
		s.Process.Dir = "/"
	}
	if s.Process.OOMScoreAdj == nil {
		s.Process.OOMScoreAdj = new(0)
	}
	return s
}

// Validate reports all problems of a list of services: missing or duplicate names, missing or
// cyclic dependencies, programs without an absolute path.
func Validate(services []Service) error {
	var problems []error
	byName := map[string]Service{}
	for _, s := range services {
		bad := func(format string, args ...any) {
			problems = append(problems, fmt.Errorf("service %q: %s", s.Name, fmt.Sprintf(format, args...)))
		}
		if s.Name == "" || strings.ContainsAny(s.Name, "/ \n") {
			bad("needs a name without slashes and spaces")
		}
		if _, there := byName[s.Name]; there {
			bad("is there twice")
		}
		byName[s.Name] = s
		if args := s.Process.Args; len(args) == 0 || !filepath.IsAbs(args[0]) {
			bad("needs a program with an absolute path, has %q", args)
		}
		if s.Cgroup != "" && !filepath.IsAbs(s.Cgroup) {
			bad("needs a control group that begins with a slash, has %q", s.Cgroup)
		}
		if kinds := reflect.ValueOf(s.Ready); kinds.NumField()-zeroFields(kinds) > 1 {
			bad("has more than one way to show that it is ready: %+v", s.Ready)
		}
	}
	for _, s := range services {
		for _, need := range s.DependsOn {
			if _, there := byName[need]; !there {
				problems = append(problems, fmt.Errorf("service %q: needs %q, which does not exist", s.Name, need))
			}
		}
		if circle := findCycle(byName, s.Name, nil); circle != nil {
			problems = append(problems, fmt.Errorf("service %q: needs itself: %s", s.Name, strings.Join(circle, " → ")))
		}
	}
	return errors.Join(problems...)
}

func zeroFields(v reflect.Value) int {
	zero := 0
	for i := range v.NumField() {
		if v.Field(i).IsZero() {
			zero++
		}
	}
	return zero
}

// findCycle returns the cycle from the first name in path back to itself, or nil.
func findCycle(byName map[string]Service, name string, path []string) []string {
	path = append(path, name)
	if len(path) > 1 && name == path[0] {
		return path
	}
	if slices.Contains(path[:len(path)-1], name) {
		return nil // a cycle without path[0]; it is reported for its own members
	}
	for _, need := range byName[name].DependsOn {
		if circle := findCycle(byName, need, path); circle != nil {
			return circle
		}
	}
	return nil
}

// Change is a change of a service by Manager.Set.
type Change struct {
	Service string
	Kind    string // "start", "stop" or "restart"
}

// String describes the change for operators: "restart service containerd".
func (c Change) String() string { return c.Kind + " service " + c.Service }

// Diff returns the changes between two lists of services: first stops, then restarts, then starts,
// each in the order of the lists.
func Diff(have, want []Service) []Change {
	var stops, restarts, starts []Change
	find := func(set []Service, name string) (Service, bool) {
		i := slices.IndexFunc(set, func(s Service) bool { return s.Name == name })
		if i < 0 {
			return Service{}, false
		}
		return set[i].withDefaults(), true
	}
	for _, s := range have {
		if _, keep := find(want, s.Name); !keep {
			stops = append(stops, Change{s.Name, "stop"})
		}
	}
	for _, s := range want {
		old, there := find(have, s.Name)
		if !there {
			starts = append(starts, Change{s.Name, "start"})
		} else if !reflect.DeepEqual(old, s.withDefaults()) {
			restarts = append(restarts, Change{s.Name, "restart"})
		}
	}
	return slices.Concat(stops, restarts, starts)
}
