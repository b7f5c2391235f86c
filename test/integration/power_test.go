package integration

import (
	"context"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

func (s *story) powercutVerb(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 1, 1, "powercut NAME")
	s.machine(ts, args[0]).PowerCut()
	s.note("power of %s is cut", args[0])
}

func (s *story) poweronVerb(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 1, 1, "poweron NAME")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	m := s.machine(ts, args[0])
	s.seen[args[0]] = m.Console().Offset()
	ts.Check(m.PowerOn(ctx))
	s.note("machine %s is switched on again", args[0])
}

func (s *story) downVerb(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 1, 3, "down NAME [DEADLINE [REASON]]")
	deadline := 2 * time.Minute
	if len(args) > 1 {
		deadline = deadlineOf(ts, args[1])
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.lasts(deadline))
	defer cancel()
	exit, err := s.machine(ts, args[0]).Wait(ctx)
	if err != nil {
		ts.Fatalf("machine %s did not power off within %v: %v", args[0], deadline, err)
	}
	ts.Check(exit.Err())
	s.note("machine %s is off: %s", args[0], exit)
	if len(args) > 2 && exit.Reason != args[2] {
		ts.Fatalf("machine %s is off for an unexpected reason: %s", args[0], exit)
	}
}
