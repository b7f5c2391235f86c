// Package repair decides which unhealthy machines of a cluster get a step of a repair now
// (docs/decisions/0108-health-and-repair.md).
//
// A machine gets an order, which names a step and expires. The steps escalate:
//
//	step              attempts   time to become healthy, doubled with each attempt
//	RestartServices   2          5 minutes
//	Reboot            2          10 minutes
//	OtherSlot         1          20 minutes
//
// The decision holds these rules:
//
//   - After the last step nothing more happens to the machine until it was healthy for an hour.
//     Until then, the next failure continues with the next attempt, so a machine that is healthy
//     for some minutes after each reboot does not reboot for ever.
//   - At most World.MaxInFlight workers, and one control-plane machine, have an order that runs. A
//     control-plane machine is away for a step only while all others are healthy.
//   - No machine gets an order while too many machines of its check are unhealthy: then the cause
//     is probably not in the machines.
//   - A machine that is busy, for example with an update, gets no order.
//
// The package is pure. The controllers write the orders into the objects of the machines; a node
// reads its own order. An order is the whole state of a repair, so a repair survives the loss of
// the leading controllers. A decision must see all orders that were written before.
package repair
