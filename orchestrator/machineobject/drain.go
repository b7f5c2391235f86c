package machineobject

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/machineapi"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// These limits of status.drain are those of the CustomResourceDefinition: the number of blocking
// pods, and the lengths of a name and of namespace/name in bytes.
const (
	maxBlocking = 8
	maxName     = 253
	maxPod      = 320
)

// drain returns the drain of the machine for the status of the object, or nil if there is no drain.
// It omits a blocking pod with a name that is too long.
func (in input) drain() *machineapi.DrainStatus {
	d := in.state.Drain
	if d == nil {
		return nil
	}
	started, deadline := metav1.NewTime(d.Started.AsTime()), metav1.NewTime(d.Deadline.AsTime())
	out := &machineapi.DrainStatus{
		Operation: d.Operation, Policy: d.Policy, Phase: d.Phase, Started: &started, Deadline: &deadline,
		Evicted: int32(d.Evicted), Left: int32(d.Left), Problem: head(d.Problem),
	}
	for _, p := range d.Blocking[:min(len(d.Blocking), maxBlocking)] {
		if len(p.Pod) <= maxPod && len(p.Budget) <= maxName {
			out.Blocking = append(out.Blocking, machineapi.BlockingPod{Pod: p.Pod, Budget: p.Budget, Message: head(p.Message)})
		}
	}
	return out
}

// drainText returns the progress of a running drain, as the end of a sentence about a change of the
// release. It returns "" if no drain runs.
func drainText(d *api.Drain) string {
	if d.GetPhase() != string(nodespec.PhaseRunning) {
		return ""
	}
	text := fmt.Sprintf(": %d pods are evicted, %d are left", d.Evicted, d.Left)
	if len(d.Blocking) > 0 {
		p := d.Blocking[0]
		text += fmt.Sprintf("; pod %s must stay: %s", p.Pod, p.Message)
	}
	return text
}
