package disruption

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/orlop-os/orlop/pkg/emulation"
	"github.com/orlop-os/orlop/test/scripttest"
)

// TestScripts runs testdata/*.txt (package scripttest). The decisions of a script are about one
// machine, the local machine: the first machine of the command planes, or the worker of the command
// "as".
func TestScripts(t *testing.T) {
	scripttest.Run(t, func(t *testing.T) *cluster { return &cluster{t: t} }, scripttest.Commands[*cluster]{
		// planes v1.36.3 a b c: control-plane machines; a is the local machine
		"planes": (*cluster).planes,
		// worker w v1.36.3: adds a worker
		"worker": (*cluster).worker,
		// as w: the worker w is the local machine
		"as": (*cluster).as,
		// alone: the configuration names no other machine
		"alone": (*cluster).alone,
		// down b: etcd and the API server on b do not answer
		"down": (*cluster).down,
		// unready b: the API server on b is not ready
		"unready": (*cluster).unready,
		// learner b: b has no vote in etcd
		"learner": (*cluster).learner,
		// left a: a is no longer a member of etcd
		"left": (*cluster).left,
		// stopped: etcd does not run on the local machine
		"stopped": (*cluster).stopped,
		// mute: etcd runs on the local machine, but does not answer
		"mute": (*cluster).mute,
		// version 10.0.0.12 v1.35.1 [emulates v1.34]: the version of an API server
		"version": (*cluster).version,
		// unknown [10.0.0.12]: the versions of all API servers, or of one, are unknown
		"unknown": (*cluster).unknown,
		// cut: etcd has a leader, and the local machine reaches no other member
		"cut": (*cluster).cut,
		// turn b upgrade [-30m]: b has the turn for an upgrade, since now or 30 minutes ago
		"turn": (*cluster).turn,
		// level 1.36|unknown: the level of the cluster; later decisions check it, too
		"level": (*cluster).setLevel,
		// finalize: prints whether the API server may restart at a new level
		"finalize": (*cluster).finalize,
		// upgrade [v1.37.2]: prints whether an upgrade is permitted
		"upgrade": (*cluster).upgrade,
		// rollback [v1.35.1|unnamed]: prints whether a rollback is permitted
		"rollback": (*cluster).rollback,
		// reboot: prints whether a reboot is permitted
		"reboot": (*cluster).reboot,
		// shutdown: prints whether a shutdown is permitted
		"shutdown": (*cluster).shutdown,
		// reset [data]: prints whether a reset is permitted
		"reset": (*cluster).reset,
		// behind: prints the warning about old versions
		"behind": (*cluster).behind,
	})
}

// cluster is the cluster of a script.
type cluster struct {
	t       *testing.T
	machine Machine
	control ControlPlane
	seen    Versions
	level   *Level // nil if decisions do not check the level
}

func (c *cluster) planes(args []string) string {
	*c = cluster{t: c.t, machine: Machine{Name: args[1], ControlPlane: true, Kubernetes: args[0], Others: len(args) > 2}}
	for i, name := range args[1:] {
		address := fmt.Sprintf("10.0.0.%d", 11+i)
		c.control.Members = append(c.control.Members, Member{Name: name, Address: address, Own: i == 0})
		c.seen.Nodes = append(c.seen.Nodes, Node{Name: name, Address: address, Version: args[0], ControlPlane: true})
		if i > 0 {
			c.seen.Servers = append(c.seen.Servers, Server{Address: address, Version: args[0]})
		}
	}
	return ""
}

func (c *cluster) worker(args []string) string {
	c.seen.Nodes = append(c.seen.Nodes, Node{Name: args[0], Address: fmt.Sprintf("10.0.0.%d", 21+len(c.seen.Nodes)), Version: args[1]})
	return ""
}

func (c *cluster) as(args []string) string {
	i := slices.IndexFunc(c.seen.Nodes, func(n Node) bool { return n.Name == args[0] })
	c.seen.Servers = append([]Server{{Address: "10.0.0.11", Version: c.machine.Kubernetes}}, c.seen.Servers...)
	c.machine = Machine{Name: args[0], Kubernetes: c.seen.Nodes[i].Version}
	c.control, c.seen.Nodes = ControlPlane{}, nil
	return ""
}

func (c *cluster) alone([]string) string {
	c.machine.Others = false
	return ""
}

// member returns the member of a machine.
func (c *cluster) member(name string) *Member {
	c.t.Helper()
	i := slices.IndexFunc(c.control.Members, func(m Member) bool { return m.Name == name })
	if i < 0 {
		c.t.Fatalf("no member %q", name)
	}
	return &c.control.Members[i]
}

func (c *cluster) down(args []string) string {
	m := c.member(args[0])
	m.Problem, m.APIServer = "no route to host", "no route to host"
	return ""
}

func (c *cluster) unready(args []string) string {
	c.member(args[0]).APIServer = "503 Service Unavailable"
	return ""
}

func (c *cluster) learner(args []string) string {
	c.member(args[0]).Learner = true
	return ""
}

func (c *cluster) left(args []string) string {
	c.control.Members = slices.DeleteFunc(c.control.Members, func(m Member) bool { return m.Name == args[0] })
	return ""
}

func (c *cluster) stopped([]string) string {
	c.control = ControlPlane{Problem: "etcd does not run", Stopped: true}
	return ""
}

func (c *cluster) mute([]string) string {
	c.control = ControlPlane{Problem: "etcd does not answer"}
	return ""
}

func (c *cluster) cut([]string) string {
	c.control.Leader = true
	for i := range c.control.Members[1:] {
		c.control.Members[1+i].Problem = "no route to host"
	}
	return ""
}

func (c *cluster) version(args []string) string {
	s := c.server(args[0])
	s.Version, s.Emulated = args[1], scripttest.Word(args, "emulates")
	return ""
}

func (c *cluster) unknown(args []string) string {
	if len(args) == 0 {
		c.seen = Versions{Problem: "no API server answers"}
		return ""
	}
	s := c.server(args[0])
	s.Version, s.Problem = "", "no route to host"
	return ""
}

// server returns the API server at an address.
func (c *cluster) server(address string) *Server {
	c.t.Helper()
	i := slices.IndexFunc(c.seen.Servers, func(s Server) bool { return s.Address == address })
	if i < 0 {
		c.t.Fatalf("no API server %q", address)
	}
	return &c.seen.Servers[i]
}

func (c *cluster) turn(args []string) string {
	at := time.Now()
	if len(args) > 2 {
		at = at.Add(scripttest.Duration(c.t, args[2]))
	}
	c.control.Turn = Turn{Machine: args[0], Operation: Operation(args[1]), By: "dora", At: at, Ends: at.Add(TurnLife)}
	if args[0] != c.machine.Name {
		c.control.Turn.Address = c.member(args[0]).Address
	}
	return ""
}

func (c *cluster) upgrade(args []string) string  { return c.ask(Upgrade, args) }
func (c *cluster) rollback(args []string) string { return c.ask(Rollback, args) }
func (c *cluster) reboot(args []string) string   { return c.ask(Reboot, args) }
func (c *cluster) shutdown(args []string) string { return c.ask(Shutdown, args) }

func (c *cluster) reset(args []string) string {
	if len(args) > 0 {
		return c.ask(ResetData, nil)
	}
	return c.ask(Reset, nil)
}

func (c *cluster) ask(o Operation, args []string) string {
	r := Request{Operation: o, Kubernetes: strings.Join(args, "")}
	if r.Kubernetes == "unnamed" {
		r.Kubernetes, r.Forgets = "", true
	}
	if no := Decide(c.machine, r, c.control, c.seen); no != nil {
		return no.Error()
	}
	if c.level != nil {
		if no := CheckLevel(c.machine, r, *c.level); no != nil {
			return no.Error()
		}
	}
	return o.Name() + " permitted"
}

func (c *cluster) finalize([]string) string { return c.ask(Finalize, nil) }

func (c *cluster) setLevel(args []string) string {
	c.level = &Level{}
	if args[0] == "unknown" {
		c.level.Problem = "connection refused"
		return ""
	}
	var err error
	if c.level.Level, err = emulation.Parse(args[0]); err != nil {
		c.t.Fatal(err)
	}
	return ""
}

func (c *cluster) behind([]string) string { return Behind(c.seen.Nodes) }

// TestTurnLife checks that a turn lasts for the shutdown that its operation needs.
func TestTurnLife(t *testing.T) {
	for _, test := range []struct {
		request Request
		want    time.Duration
	}{
		{Request{Operation: Reboot}, TurnLife},
		{Request{Operation: Shutdown, GracePeriod: 5 * time.Minute}, TurnLife + 5*time.Minute},
		{Request{Operation: Rollback, Forgets: true}, shutdownLife},
	} {
		if got := test.request.TurnLife(); got != test.want {
			t.Errorf("%+v: %v", test.request, got)
		}
	}
}
