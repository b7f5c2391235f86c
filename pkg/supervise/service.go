package supervise

import (
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/orlop-os/orlop/pkg/cgroup"
)

// Service describes a process that should run. It is compared as a whole: when any field differs
// the service is restarted, so it must hold nothing that changes by itself (a time, a random
// number).
type Service struct {
	Name      string   // "containerd"; unique, also the name of its log
	DependsOn []string // services that must be ready before this one is started

	Args []string // the executable's absolute path and its arguments
	// the whole environment, KEY=value; ORLOP_NOTIFY_FD is added when Ready.Notify is set,
	// ORLOP_PROFILE_FD with Profile
	Env []string
	Dir string // working directory; "/" when empty

	UID, GID uint32   // user and group ids
	Groups   []uint32 // supplementary groups
	// Capabilities are what a process that is not root has and could ever get: its ambient and its
	// bounding set, as numbers (unix.CAP_…). Empty for none. They mean nothing for root, which
	// keeps machined's.
	Capabilities []uintptr
	NoNewPrivs   bool // nothing it executes can gain privileges (prctl(2), PR_SET_NO_NEW_PRIVS)

	// path of its control group, "/orlop/containerd"; made at start; empty for machined's own
	Cgroup string
	Limits cgroup.Limits // of its control group
	// LeaveChildren keeps the processes that the main process left behind when it ends, is stopped
	// or is restarted. containerd has it: pods outlive it. Without it, everything in the group is
	// killed.
	LeaveChildren bool

	OOMScoreAdj int      // -1000 (never killed for memory) to 1000
	Nice        int      // -20 to 19
	Rlimits     []Rlimit // in place of machined's own

	Ready Probe // when it counts as ready
	// after which a start that is not ready is given up and tried again, with more time (see Step);
	// 0 for never
	StartTimeout time.Duration
	GracePeriod  time.Duration // between SIGTERM and SIGKILL; 0 for 10 s
	Backoff      Backoff       // between failures

	// path of a Unix socket at which it gives profiles of itself, see pkg/profile; empty: it does
	// not
	Profile string

	LogLines int // lines of output that are kept; 0 for 2000
	LogBytes int // bytes of output that are kept; 0 for 256 KiB
}

// Rlimit is one resource limit (setrlimit(2)). A limit of open files must not be below machined's
// own.
type Rlimit struct {
	Resource   int // unix.RLIMIT_…
	Soft, Hard uint64
}

// Probe says how a service shows that it is ready. The zero Probe takes it for ready as soon as it
// was started. At most one field is set.
type Probe struct {
	Notify bool   // it says so, see pkg/notify
	Unix   string // a Unix stream socket at this path takes connections
	TCP    string // "127.0.0.1:10248" takes connections
}

// Backoff says how long to wait before a service that failed is started again: not at all the first
// time, then First, then twice as long each time up to Max. A service that was ready for Reset has
// no past.
type Backoff struct {
	First, Max, Reset time.Duration // 0 for 1 s, 30 s and 60 s
}

// withDefaults returns the service with its zero durations and sizes filled in.
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
	if s.Dir == "" {
		s.Dir = "/"
	}
	return s
}

// Validate reports everything that is wrong with a set of services: names that are missing or used
// twice, needs that do not exist or go round in a circle, programs without an absolute path.
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
		if len(s.Args) == 0 || !filepath.IsAbs(s.Args[0]) {
			bad("needs a program with an absolute path, has %q", s.Args)
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
		if circle := findCircle(byName, s.Name, nil); circle != nil {
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

// findCircle returns the way from the first name in path back to itself, or nil.
func findCircle(byName map[string]Service, name string, path []string) []string {
	path = append(path, name)
	if len(path) > 1 && name == path[0] {
		return path
	}
	if slices.Contains(path[:len(path)-1], name) {
		return nil // a circle, but one that does not lead through path[0]; it is reported there
	}
	for _, need := range byName[name].DependsOn {
		if circle := findCircle(byName, need, path); circle != nil {
			return circle
		}
	}
	return nil
}

// Change is what Manager.Set would do to one service.
type Change struct {
	Service string
	Kind    string // "start", "stop" or "restart"
}

// String says it as an operator would: "restart service containerd".
func (c Change) String() string { return c.Kind + " service " + c.Service }

// Diff returns what turns the one set of services into the other: stops first, then restarts, then
// starts, each in the order of the sets.
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
