// Package repair decides which unhealthy machines of a cluster must perform a step of a repair now
// (docs/decisions/0108-health-and-repair.md, 0124-power-and-fencing.md).
//
// A machine gets an order, which names a step and expires. The steps escalate:
//
//	step              attempts   time to become healthy, doubled for the second attempt
//	RestartServices   2          5 minutes
//	Reboot            2          10 minutes
//	OtherSlot         1          20 minutes
//	PowerCycle        2          10 minutes
//
// The machine performs the first three steps. The controllers perform PowerCycle, and only for a
// machine with a power switch that they can operate. If the Node of such a machine does not report,
// PowerCycle is the only step, because the machine could not read another order.
//
// The decisions follow these rules:
//
//   - After the last step, the machine gets no more orders until it has been healthy for an hour. A
//     failure within this hour continues with the next attempt instead of the first, so a machine
//     that is healthy for only some minutes after each reboot does not reboot for ever.
//   - At most World.MaxInFlight workers, and a single control-plane machine, have an order in
//     progress. A control-plane machine reboots only while all other control-plane machines are
//     healthy.
//   - No machine gets an order while too many machines of its check are unhealthy, because the
//     cause is then probably outside of the machines.
//   - A machine that is busy, for example with an update, gets no order.
//
// The package is pure. The controllers write the orders into the objects of the machines; a node
// reads its own order. The orders are the only state of a repair, so a repair continues after
// another machine has become leader of the controllers. A decision must see all orders that were
// written before it.
package repair
