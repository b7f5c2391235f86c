package machineobject

import (
	"context"
	"time"

	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/disruption/repair"
	"github.com/orlop-os/orlop/pkg/machineapi"
)

// repairAttempt is the last request to machined for a step of a repair, with its result.
type repairAttempt struct {
	given   time.Time // time of the order; zero: no request
	ended   time.Time // time of the response; zero: no response yet
	problem string    // why machined rejected the request, or empty
}

// orderOf returns the order of a repair in an object, or the zero value if the object has no order.
func orderOf(m *machineapi.OrlopMachine) repair.Order {
	o := m.Spec.Repair
	if o == nil {
		return repair.Order{}
	}
	return repair.Order{Step: repair.Step(o.Step), Attempt: int(o.Attempt), Given: o.Given.Time}
}

// repairStep sets next.Repair, the answer of the machine to its order. It returns the step that the
// caller has to request from machined after it has written the status, or "" for no request. A step
// can end this process or reboot the machine. Because the answer is written first, the step is not
// repeated after that. changing is true if the machine starts a change of its release now. The
// first row of the table that applies decides:
//
//	order                                        answer     step
//	none, or a step of the controllers           none       none
//	was started, and machined has refused it     Refused    none
//	was started                                  Started    none
//	is not valid (any more)                      the same   none
//	any, and the machine changes its release     the same   none
//	was refused less than attemptInterval ago    Refused    none
//	any other                                    Started    the step
func (in input) repairStep(next *machineapi.OrlopMachineStatus, changing bool) repair.Step {
	order, before := orderOf(in.object), next.Repair
	if order.Step == "" || !order.Step.ByMachine() {
		next.Repair = nil
		return ""
	}
	same := before != nil && before.Given.Time.Equal(order.Given) && before.Step == string(order.Step)
	answer := &machineapi.RepairStatus{Step: string(order.Step), Given: in.object.Spec.Repair.Given, Phase: machineapi.RepairStarted}
	refused := in.repaired.given.Equal(order.Given) && in.repaired.problem != ""
	switch {
	case same && before.Phase == machineapi.RepairStarted && refused:
		answer.Phase, answer.Message = machineapi.RepairRefused, head(in.repaired.problem)
		next.Repair = answer
		return ""
	case same && before.Phase == machineapi.RepairStarted:
		return ""
	case !order.Valid(in.now), changing, meta.IsStatusConditionTrue(next.Conditions, machineapi.ConditionUpdating), refused && in.now.Before(in.repaired.ended.Add(attemptInterval)):
		if !same {
			next.Repair = nil
		}
		return ""
	}
	next.Repair = answer
	return order.Step
}

// askRepair sends the request for a step to machined, in the background. The response can take
// minutes, because machined may drain the node before a reboot.
func (a *agent) askRepair(ctx context.Context, order repair.Order) {
	a.setRepaired(repairAttempt{given: order.Given})
	go func() {
		ctx, cancel := context.WithTimeout(ctx, answerTimeout)
		defer cancel()
		_, err := a.machined.client.Repair(ctx, &api.RepairRequest{Step: string(order.Step)})
		done := repairAttempt{given: order.Given, ended: a.now()}
		if err != nil {
			done.problem = status.Convert(err).Message()
		}
		a.setRepaired(done)
		a.changed.Wake()
	}()
}

func (a *agent) setRepaired(last repairAttempt) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.repaired = last
}

func (a *agent) lastRepair() repairAttempt {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.repaired
}
