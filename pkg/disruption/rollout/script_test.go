package rollout

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/orlop-os/orlop/test/scripttest"
)

// TestScripts runs testdata/*.txt (package scripttest). A script starts on Saturday, 2000-01-01, at
// 00:00 UTC.
func TestScripts(t *testing.T) {
	scripttest.Run(t, func(t *testing.T) *script {
		return &script{t: t, world: World{Now: time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)}}
	}, scripttest.Commands[*script]{
		// cluster a,b,c w1,w2: creates the control-plane machines a, b, c and the workers w1, w2,
		// with release 1, which want release 2
		"cluster": (*script).cluster,
		// machine a have=2 leader canary unready permit=2:3m: changes a machine
		"machine": (*script).machine,
		// policy paused max=2 minready=1m soak=5m: sets the policy
		"policy": (*script).policy,
		// window sat,sun 22h 2h [Europe/Berlin]: adds a window with its start and length
		"window": (*script).window,
		// gate smoke 2-0 Passed [message]: sets the state of a gate for a step
		"gate": (*script).gate,
		// at 10m: sets the clock to 10 minutes after the start
		"at": (*script).at,
		// decide: prints the verdicts of all machines
		"decide": (*script).decide,
		// go: prints only the names of the permitted machines
		"go": (*script).permit,
	})
}

// script is the state of a script.
type script struct {
	t     *testing.T
	world World
}

func (s *script) duration(text string) time.Duration {
	d, err := time.ParseDuration(text)
	if err != nil {
		s.t.Fatal(err)
	}
	return d
}

func (s *script) number(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

func (s *script) cluster(args []string) string {
	s.world.Machines = nil
	for i, names := range args {
		for name := range strings.SplitSeq(names, ",") {
			s.world.Machines = append(s.world.Machines, Machine{
				Name: name, ControlPlane: i == 0, Have: "1", Want: "2", Ready: true, Since: s.world.Now.Add(-time.Hour),
			})
		}
	}
	return ""
}

func (s *script) machine(args []string) string {
	for i := range s.world.Machines {
		if s.world.Machines[i].Name == args[0] {
			for _, a := range args[1:] {
				s.change(&s.world.Machines[i], a)
			}
			return ""
		}
	}
	s.t.Fatalf("no machine %s", args[0])
	return ""
}

// change applies an argument of command machine.
func (s *script) change(m *Machine, argument string) {
	key, value, _ := strings.Cut(argument, "=")
	switch key {
	case "have":
		m.Have, m.Updating, m.Permit = value, false, Permit{}
	case "want":
		m.Want = value
	case "leader":
		m.Leader = true
	case "canary":
		m.Canary = true
	case "ready":
		m.Ready, m.Since = true, s.world.Now
	case "unready":
		m.Ready, m.Since = false, s.world.Now
	case "updating":
		m.Updating = true
	case "rolledback":
		m.RolledBack, m.Updating, m.Permit = value, false, Permit{}
	case "permit":
		release, life, _ := strings.Cut(value, ":")
		m.Permit = Permit{Release: release, Expires: s.world.Now.Add(s.duration(life))}
	default:
		s.t.Fatalf("machine: unknown argument %s", argument)
	}
}

func (s *script) policy(args []string) string {
	p := Policy{Windows: s.world.Policy.Windows, Gates: s.world.Policy.Gates}
	for _, a := range args {
		key, value, _ := strings.Cut(a, "=")
		switch key {
		case "paused":
			p.Paused = true
		case "max":
			p.MaxUnavailable = s.number(value)
		case "minready":
			p.MinReady = s.duration(value)
		case "soak":
			p.CanarySoak = s.duration(value)
		default:
			s.t.Fatalf("policy: unknown argument %s", a)
		}
	}
	s.world.Policy = p
	return ""
}

func (s *script) window(args []string) string {
	w := Window{Start: s.duration(args[1]), Length: s.duration(args[2])}
	for name := range strings.SplitSeq(args[0], ",") {
		for day := time.Sunday; day <= time.Saturday; day++ {
			if strings.EqualFold(day.String()[:3], name) {
				w.Days = append(w.Days, day)
			}
		}
	}
	if len(args) > 3 {
		zone, err := time.LoadLocation(args[3])
		if err != nil {
			s.t.Fatal(err)
		}
		w.Zone = zone
	}
	if err := w.Check(); err != nil {
		return err.Error()
	}
	s.world.Policy.Windows = append(s.world.Policy.Windows, w)
	return ""
}

func (s *script) gate(args []string) string {
	g := Gate{Name: args[0], Step: args[1], State: GateState(args[2]), Message: strings.Join(args[3:], " ")}
	for i, have := range s.world.Policy.Gates {
		if have.Name == g.Name {
			s.world.Policy.Gates[i] = g
			return ""
		}
	}
	s.world.Policy.Gates = append(s.world.Policy.Gates, g)
	return ""
}

func (s *script) at(args []string) string {
	s.world.Now = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).Add(s.duration(args[0]))
	return ""
}

func (s *script) decide([]string) string {
	var out strings.Builder
	d := Decide(s.world)
	for _, v := range d.Verdicts {
		fmt.Fprintf(&out, "%s %s", v.Name, v.State)
		if v.Message != "" {
			fmt.Fprintf(&out, ": %s", v.Message)
		}
		if v.Permit != (Permit{}) {
			fmt.Fprintf(&out, " %s until %s", v.Permit.Release, clock(v.Permit.Expires))
		}
		out.WriteByte('\n')
	}
	if d.Step != "" {
		fmt.Fprintf(&out, "step %s\n", d.Step)
	}
	if !d.Next.IsZero() {
		fmt.Fprintf(&out, "again at %s\n", clock(d.Next))
	}
	return out.String()
}

func (s *script) permit([]string) string {
	return strings.Join(append([]string{"go:"}, permitted(Decide(s.world))...), " ") + "\n"
}

// permitted returns the names of the machines that may start their upgrade now.
func permitted(d Decision) []string {
	var names []string
	for _, v := range d.Verdicts {
		if v.State == Permitted {
			names = append(names, v.Name)
		}
	}
	return names
}
