package integration

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/orlop-os/orlop/vm"
)

// cableVerb unplugs the cable of a NIC, or plugs it in again.
func (s *story) cableVerb(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 3, 3, "cable pull|plug NAME N")
	if args[0] != "pull" && args[0] != "plug" {
		ts.Fatalf("cable: unknown argument %q", args[0])
	}
	n, err := strconv.Atoi(args[2])
	ts.Check(err)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	ts.Check(s.machine(ts, args[1]).SetCable(ctx, n, args[0] == "plug"))
	s.note("the cable %d of %s: %s", n, args[1], args[0])
}

// lldpVerb sets the name that the switch announces by LLDP, or ends the announcements.
func (s *story) lldpVerb(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 1, 1, "lldp NAME|off")
	name := args[0]
	if name == "off" {
		name = ""
	}
	s.network.SetLLDP(name)
	s.note("the switch announces: %q", name)
}

// trunkVerb sets the VLANs of a port of the switch.
func (s *story) trunkVerb(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 2, -1, "trunk NAME UNTAGGED [ID…]")
	var ids []int
	for _, text := range args[1:] {
		id, err := strconv.Atoi(text)
		ts.Check(err)
		ids = append(ids, id)
	}
	ts.Check(s.network.SetVLANs(s.portName(ts, args[0]), vm.PortVLANs{Untagged: ids[0], Tagged: ids[1:]}))
	s.note("the port %s: VLANs %v", args[0], ids)
}

// bundleVerb makes the switch aggregate ports by LACP.
func (s *story) bundleVerb(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 1, -1, "bundle NAME…")
	var names []string
	for _, a := range args {
		names = append(names, s.portName(ts, a))
	}
	ts.Check(s.network.Bundle(names...))
	s.note("the switch aggregates %v", names)
}

// portName returns the name of a port of the switch. The text is the gateway's name, the name of a
// machine for its first NIC, or NAME/N for the N-th NIC of a machine.
func (s *story) portName(ts *testscript.TestScript, text string) string {
	name, number, more := strings.Cut(text, "/")
	if name == vm.GatewayName {
		return name
	}
	n := 0
	if more {
		var err error
		n, err = strconv.Atoi(number)
		ts.Check(err)
	}
	return vm.NICName(s.machine(ts, name).Name(), n)
}

// dilateVerb creates the closed network and its clock again, with a time dilation.
func (s *story) dilateVerb(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 1, 1, "dilate N")
	if len(s.machines) > 0 {
		ts.Fatalf("dilate: the story already has a machine; use dilate before the first machine")
	}
	factor, err := strconv.Atoi(args[0])
	ts.Check(err)
	ts.Check(s.network.Close())
	ts.Check(s.connect(factor, vm.IPv6Spec{}))
	s.note("time passes %d times more slowly for the machines, and in these notes", factor)
}

// routerVerb creates the closed network again, with a router and without IPv4.
func (s *story) routerVerb(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 1, 1, "router MODE")
	if len(s.machines) > 0 {
		ts.Fatalf("router: the story already has a machine; use router before the first machine")
	}
	ts.Check(s.network.Close())
	ts.Check(s.connect(1, vm.IPv6Spec{Mode: vm.IPv6Mode(args[0]), Only: true}))
	s.note("the network has IPv6 alone, %s", args[0])
}
