package ondemand

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
		// deployment rack min=0 max=3 replicas=1 cpu=4: creates or changes a MachineDeployment
		"deployment": (*script).deployment,
		// machine rack w1 empty taint=gpu free=2: adds or changes a machine of rack
		"machine": (*script).machine,
		// pod a cpu=2 zone=b: a pod waits for a machine; pod a gone: it no longer waits
		"pod": (*script).pod,
		// wait 10s: time passes
		"wait": (*script).wait,
		// restart: another leader decides, with an empty memory
		"restart": (*script).restart,
		// decide: stores the verdicts, and prints them
		"decide": (*script).decide,
	})
}

// script is the state of a script.
type script struct {
	t      *testing.T
	world  World
	memory Memory
}

func (s *script) number(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

func (s *script) find(name string) *Deployment {
	i := slices.IndexFunc(s.world.Deployments, func(d Deployment) bool { return d.Name == name })
	if i < 0 {
		s.world.Deployments = append(s.world.Deployments, Deployment{Name: name, Shapes: Shapes{Stated: &Shape{Resources: Resources{4000, 8 << 30, 100}, Labels: map[string]string{}}}})
		i = len(s.world.Deployments) - 1
	}
	return &s.world.Deployments[i]
}

func (s *script) deployment(args []string) string {
	d := s.find(args[0])
	for _, a := range args[1:] {
		key, value, _ := strings.Cut(a, "=")
		switch key {
		case "min":
			d.Min = s.number(value)
		case "max":
			d.Max = s.number(value)
		case "replicas":
			d.Replicas = s.number(value)
		case "cpu":
			d.Stated.CPU = int64(s.number(value)) * 1000
		case "taint":
			d.Stated.Taints = append(d.Stated.Taints, Taint{Key: value, Effect: "NoSchedule"})
		case "label":
			key, value, _ = strings.Cut(value, "=")
			d.Stated.Labels[key] = value
		case "problem":
			d.Problem = strings.ReplaceAll(value, "_", " ")
		case "unknown":
			d.Stated = nil
		case "leaving":
			d.IsLeaving = value != "no"
		default:
			s.t.Fatalf("deployment: unknown argument %s", a)
		}
	}
	return ""
}

func (s *script) machine(args []string) string {
	d := s.find(args[0])
	i := slices.IndexFunc(d.Machines, func(m Machine) bool { return m.Name == args[1] })
	if i < 0 {
		d.Machines = append(d.Machines, Machine{Name: args[1], Joined: s.world.Now})
		i = len(d.Machines) - 1
		args = append([]string{args[0], args[1], "ready"}, args[2:]...)
	}
	m := &d.Machines[i]
	for _, a := range args[2:] {
		key, value, _ := strings.Cut(a, "=")
		switch key {
		case "empty":
			m.Empty, m.Room = true, new(*m.Whole)
		case "used":
			m.Empty, m.Room = false, &Shape{Labels: m.Whole.Labels, Taints: m.Whole.Taints}
		case "free":
			m.Room.Resources = Resources{int64(s.number(value)) * 1000, 8 << 30, 100}
		case "taint":
			m.Whole.Taints = []Taint{{Key: value, Effect: "NoSchedule"}}
			m.Room.Taints = m.Whole.Taints
		case "ready":
			m.Whole = &Shape{Resources: Resources{4000, 8 << 30, 100}, Labels: map[string]string{}}
			if d.Stated != nil {
				*m.Whole = *d.Stated
			}
			m.Room = &Shape{Labels: m.Whole.Labels, Taints: m.Whole.Taints}
		case "unready":
			m.Whole, m.Room = nil, nil
		case "kept":
			m.Kept = true
		case "chosen":
			m.Chosen = true
		case "marked":
			m.Marked = true
		case "gone":
			d.Machines = slices.Delete(d.Machines, i, i+1)
		default:
			s.t.Fatalf("machine: unknown argument %s", a)
		}
	}
	return ""
}

func (s *script) pod(args []string) string {
	s.world.Pods = slices.DeleteFunc(s.world.Pods, func(p Pod) bool { return p.Name == args[0] })
	p := Pod{Name: args[0], UID: args[0], Since: s.world.Now, Resources: Resources{1000, 1 << 30, 1}}
	for _, a := range args[1:] {
		key, value, _ := strings.Cut(a, "=")
		switch key {
		case "cpu":
			p.CPU = int64(s.number(value)) * 1000
		case "tolerates":
			p.Tolerations = append(p.Tolerations, Toleration{Key: value, Exists: true})
		case "gone":
			return ""
		default: // a label
			p.Selectors = append(p.Selectors, func(labels map[string]string) bool { return labels[key] == value })
		}
	}
	s.world.Pods = append(s.world.Pods, p)
	return ""
}

func (s *script) wait(args []string) string {
	s.world.Now = s.world.Now.Add(scripttest.Duration(s.t, args[0]))
	return ""
}

func (s *script) restart([]string) string {
	s.memory = Memory{}
	return ""
}

func (s *script) decide([]string) string {
	var out strings.Builder
	next, verdicts := s.memory.Decide(s.world)
	s.memory = next
	for i, v := range verdicts {
		d := &s.world.Deployments[i]
		fmt.Fprintf(&out, "%s %s: %d", d.Name, v.State, v.Replicas)
		if v.Message != "" {
			fmt.Fprintf(&out, " (%s)", v.Message)
		}
		for j, m := range d.Machines {
			if slices.Contains(v.Unmark, m.Name) {
				fmt.Fprintf(&out, " unmark %s", m.Name)
				d.Machines[j].Marked = false
			}
			if slices.Contains(v.Mark, m.Name) {
				fmt.Fprintf(&out, " mark %s", m.Name)
				d.Machines[j].Marked = true
			}
		}
		if !v.Last.Equal(d.Last) {
			fmt.Fprintf(&out, " remember %d processors and taints %v", v.Last.CPU/1000, v.Last.Taints)
		}
		if len(v.Unhelped) > 0 {
			fmt.Fprintf(&out, " not helped: %s", strings.Join(v.Unhelped, " "))
		}
		d.Replicas, d.Last, d.Unhelped = v.Replicas, v.Last, v.Unhelped
		out.WriteByte('\n')
	}
	return out.String()
}
