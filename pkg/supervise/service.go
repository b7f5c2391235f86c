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

// Service describes a process that should run. The manager restarts the service if any field of its
// description changes. Therefore a field must not contain a value that differs in each call of Set,
// for example the current time or a random number.
type Service struct {
	Name      string   // for example "containerd"; unique
	DependsOn []string // names of the services that must be ready before this service starts

	// Process is the main process. The manager adds these variables to its environment:
	// ORLOP_NOTIFY_FD if Ready.Notify is set, ORLOP_PROFILE_FD if Profile is set, and
	// ORLOP_METRICS_FD if Metrics is set.
	Process Spec

	// Cgroup is the path of the control group, for example "/orlop/containerd". The manager creates
	// the group at the start of the service. If the path is empty, the service is in the control
	// group of machined.
	Cgroup string
	Limits cgroup.Limits // limits of the control group
	// LeaveChildren means that the other processes of the control group continue to run when the
	// main process exits, is stopped or is restarted. It is set for containerd, because pods must
	// survive a restart of containerd. If it is false, the manager kills all processes in the
	// control group.
	LeaveChildren bool

	Ready Probe // how the manager finds out that the service is ready
	// StartTimeout is the time from the start in which the service must become ready. The time is
	// longer after failures (startTime). 0 means no limit.
	StartTimeout time.Duration
	GracePeriod  time.Duration // time between SIGTERM and SIGKILL; 0 means 10 s
	Backoff      Backoff       // delays after failures

	// Profile is the path of the Unix socket on which the service serves profiles
	// (pkg/service/profile); empty for none. Metrics is the path of the socket for its metrics
	// (pkg/service/exposition); empty for none.
	Profile string
	Metrics string

	LogLines int // maximum lines of retained output; 0 means 2000
	LogBytes int // maximum bytes of retained output; 0 means 256 KiB
}

// Probe defines how the manager finds out whether a service is ready. At most one field is set.
// With the zero Probe, a service is ready as soon as its process was started.
type Probe struct {
	Notify bool   // ready when the service says so (pkg/service/notify)
	Unix   string // ready when the Unix stream socket at this path accepts a connection
	TCP    string // ready when this address, such as "127.0.0.1:10248", accepts a connection
}

// Backoff defines the delay before the manager starts a failed service again. There is no delay
// after the first failure. The delay is First after the second failure, and doubles with each
// further failure, up to Max. The count of failures returns to zero when the service has been ready
// for the time Reset without interruption.
type Backoff struct {
	First, Max, Reset time.Duration // the defaults, for the value 0, are 1 s, 30 s and 60 s
}

// withDefaults returns the service with the default value of each field that has a default and is
// not set.
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

// Validate returns an error with all problems of a list of services, or nil if there are none.
// Problems are invalid or duplicate names, missing or cyclic dependencies, programs and control
// groups without an absolute path, and services with several probes.
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

// zeroFields returns the number of fields of a struct that are zero.
func zeroFields(v reflect.Value) int {
	zero := 0
	for i := range v.NumField() {
		if v.Field(i).IsZero() {
			zero++
		}
	}
	return zero
}

// findCycle searches the dependencies of the service called name for a cycle. path contains the
// services through which the search has reached this service, in order; it is empty at first.
// findCycle returns a cycle that begins and ends with the first service of path, or nil if there is
// none.
func findCycle(byName map[string]Service, name string, path []string) []string {
	path = append(path, name)
	if len(path) > 1 && name == path[0] {
		return path
	}
	if slices.Contains(path[:len(path)-1], name) {
		return nil // the cycle does not contain path[0]; another call of findCycle reports it
	}
	for _, need := range byName[name].DependsOn {
		if circle := findCycle(byName, need, path); circle != nil {
			return circle
		}
	}
	return nil
}

// Change is a change of a service that Manager.Set would make.
type Change struct {
	Service string
	Kind    string // "start", "stop" or "restart"
}

// String returns a text for operators, for example "restart service containerd".
func (c Change) String() string { return c.Kind + " service " + c.Service }

// Diff returns the changes from the list `have` to the list `want`: first the stops, then the
// restarts, then the starts. Stops are in the order of `have`, restarts and starts in the order of
// `want`.
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
