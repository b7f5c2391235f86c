package drain

import (
	"cmp"
	"fmt"
	"time"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// choose returns the policy of a drain: the caller's policy, else the configured policy. The
// configured policy is for this machine only. Another machine is drained only if the caller gives a
// policy: the removal of a stolen machine must not wait for its pods.
func choose(o Order, configured config.Drain) config.Drain {
	if o.Node != "" {
		configured.Policy = ""
	}
	return config.Drain{
		Policy:  cmp.Or(o.Policy.Policy, configured.Policy, config.DrainNone),
		Timeout: cmp.Or(o.Policy.Timeout, configured.Timeout),
	}
}

// outcome returns the phase after the command of a drain has ended, and the error of the operation;
// nil if the operation proceeds. The first row that applies decides:
//
//	command                          policy           phase       operation
//	was given up                     any              given up    refused
//	has refused, or failed           respect          refused     refused
//	failed                           timeout, force   incomplete  proceeds, with an event
//	pods are left                    timeout, force   incomplete  proceeds, with an event
//	no pod is left                   any              drained     proceeds
func outcome(want config.Drain, givenUpBy string, out nodespec.DrainResult, failed error) (nodespec.DrainPhase, error) {
	respects := want.Policy == config.DrainRespect
	switch {
	case givenUpBy != "":
		return nodespec.PhaseGivenUp, fmt.Errorf("the drain was given up by %s", givenUpBy)
	case respects && out.Refused:
		return nodespec.PhaseRefused, fmt.Errorf("drain not complete within %v: %s; remove the obstacle, or choose policy timeout or force", time.Duration(want.Timeout), out.Remaining())
	case respects && failed != nil:
		return nodespec.PhaseRefused, fmt.Errorf("cannot evict the pods: %w", failed)
	case failed != nil || out.Remaining() != "":
		return nodespec.PhaseIncomplete, nil
	}
	return nodespec.PhaseDrained, nil
}

// describe returns the line about a progress for the events. It names the pods that block the
// drain, not the pods that are about to end.
func describe(p nodespec.DrainProgress) string {
	text := fmt.Sprintf("%d pods evicted, %d left", p.Evicted, p.Left)
	blocking := p.Blocking()
	for i, pod := range blocking {
		if i == maxEventPods {
			text += fmt.Sprintf("; and %d more", len(blocking)-i)
			break
		}
		text += "; " + pod.String()
	}
	if p.Problem != "" && len(blocking) == 0 {
		text += "; " + p.Problem
	}
	return text
}

// maxEventPods is the largest number of pods in an event.
const maxEventPods = 3
