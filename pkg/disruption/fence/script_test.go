package fence

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/orlop-os/orlop/test/scripttest"
)

// TestScripts runs testdata/*.txt (package scripttest).
func TestScripts(t *testing.T) {
	scripttest.Run(t, func(t *testing.T) *script {
		return &script{t: t, world: World{Now: time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)}}
	}, scripttest.Commands[*script]{
		// cluster a,b,c w1,w2: creates the control-plane machines a, b, c and the workers w1, w2,
		// healthy, each with a power switch and 2 pods
		"cluster": (*script).cluster,
		// machine w1 lost pods=1: changes a machine
		"machine": (*script).machine,
		// power w1 off: the power switch of w1 reports off; power w1 problem TEXT: it reports an
		// error
		"power": (*script).power,
		// wait 10s: time passes
		"wait": (*script).wait,
		// decide: stores the verdicts, and prints those that are not Idle
		"decide": (*script).decide,
		// stored w1: prints the stored state of w1
		"stored": (*script).stored,
	})
}

// script is the state of a script.
type script struct {
	t     *testing.T
	world World
}

func (s *script) cluster(args []string) string {
	s.world.Machines = nil
	for i, names := range args {
		for name := range strings.SplitSeq(names, ",") {
			s.world.Machines = append(s.world.Machines, Machine{
				Name: name, ControlPlane: i == 0, Care: Care{Checked: true, Available: true}, Node: Node{Exists: true, Ready: true, Reports: true, BootID: "boot1"}, Pods: Pods{Read: true, Left: 2},
			})
		}
	}
	return ""
}

// find returns a machine.
func (s *script) find(name string) *Machine {
	i := slices.IndexFunc(s.world.Machines, func(m Machine) bool { return m.Name == name })
	if i < 0 {
		s.t.Fatalf("no machine %s", name)
	}
	return &s.world.Machines[i]
}

func (s *script) machine(args []string) string {
	m := s.find(args[0])
	for _, a := range args[1:] {
		key, value, _ := strings.Cut(a, "=")
		switch key {
		case "lost": // the kubelet does not report, and the check has found the machine unhealthy
			m.Ready, m.Reports, m.Silent, m.Unhealthy, m.Available = false, false, true, "not ready", false
		case "unready": // the kubelet reports that the node is not ready
			m.Ready, m.Reports, m.Silent, m.Unhealthy, m.Available = false, true, false, "not ready", false
		case "ready":
			m.Ready, m.Reports, m.Silent, m.Unhealthy, m.Available = true, true, false, "", true
		case "renewed": // the kubelet has renewed its Lease, but not the node's condition yet
			m.Silent = false
		case "unread": // the controllers have not read the pods
			m.Pods = Pods{}
		case "ailing": // a check of the machine itself fails
			m.Available = false
		case "boot":
			m.BootID = value
		case "own":
			m.Own = true
		case "unchecked":
			m.Checked = false
		case "checked":
			m.Checked = true
		case "stopped":
			m.Stopped = value
		case "nolimit":
			m.NoLimit = value != "no"
		case "busy":
			m.Busy = value
		case "access":
			m.Access = strings.ReplaceAll(value, "_", " ")
		case "pods":
			n, err := strconv.Atoi(value)
			if err != nil {
				s.t.Fatal(err)
			}
			m.Pods = Pods{Read: true, Left: n, Offline: m.Offline}
		case "offline":
			m.Offline = value
		case "keepoff":
			m.KeepOff = true
		case "deleted":
			m.Node = Node{}
		case "tainted":
			m.Taint = value
		case "future": // a leader with a wrong clock has stored this time
			m.Operation.Since = s.world.Now.Add(scripttest.Duration(s.t, value))
		case "forgotten": // an operator removes the stored fence
			m.Operation = Operation{}
		case "order": // the machine object gets an order PowerCycle
			m.Cycle = Cycle{Given: s.world.Now, Valid: true}
		case "late": // the order has expired and must not begin any more
			m.Cycle.Valid = false
		default:
			s.t.Fatalf("machine: unknown argument %s", a)
		}
	}
	return ""
}

func (s *script) power(args []string) string {
	m := s.find(args[0])
	if args[1] == "problem" {
		m.Reading.Problem = strings.Join(args[2:], " ")
		return ""
	}
	m.Reading = Reading{Power: Power(args[1]), At: s.world.Now}
	return ""
}

func (s *script) wait(args []string) string {
	s.world.Now = s.world.Now.Add(scripttest.Duration(s.t, args[0]))
	return ""
}

func (s *script) decide([]string) string {
	var out strings.Builder
	for i, v := range Decide(s.world) {
		m := &s.world.Machines[i]
		var more []string
		if v.Operation.Phase != m.Operation.Phase {
			more = append(more, fmt.Sprintf("phase %q", v.Operation.Phase))
		}
		if v.Cycle != m.Cycle.Phase {
			more = append(more, fmt.Sprintf("cycle %q", v.Cycle))
		}
		if v.Taint != m.Taint {
			more = append(more, fmt.Sprintf("taint %q", v.Taint))
		}
		if v.Action != Nothing {
			more = append(more, "switch: "+string(v.Action))
		}
		m.Operation, m.Cycle.Phase, m.Taint = v.Operation, v.Cycle, v.Taint
		if v.State == Idle && len(more) == 0 {
			continue
		}
		fmt.Fprintf(&out, "%s %s", m.Name, v.State)
		if v.Message != "" {
			fmt.Fprintf(&out, ": %s", v.Message)
		}
		if len(more) > 0 {
			fmt.Fprintf(&out, " [%s]", strings.Join(more, ", "))
		}
		if v.Busy() != "" {
			out.WriteString(" no repair")
		}
		out.WriteByte('\n')
	}
	if out.Len() == 0 {
		return "nothing\n"
	}
	return out.String()
}

func (s *script) stored(args []string) string {
	m := s.find(args[0])
	return fmt.Sprintf("phase %q boot %q stay off %q cycle %q taint %q\n", m.Operation.Phase, m.Operation.BootID, m.Operation.StayOff, m.Cycle.Phase, m.Taint)
}
