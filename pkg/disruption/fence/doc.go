// Package fence decides when the controllers operate the power switch of a machine
// (docs/decisions/0124-power-and-fencing.md).
//
// To fence a machine is to switch it off by its management controller (BMC) and to read back that
// it is off, before its pods and volumes are released. A fence has these phases:
//
//	phase       the controllers                                          ends when
//	SwitchOff   switch the machine off, and read its power               the power is Off
//	Release     set the taint out-of-service at the Node                 the pods are deleted
//	SwitchOn    switch the machine on, and read its power                the power is On
//	Return      wait, and remove the taint at the end                    the Node is Ready, with a
//	                                                                     new boot ID
//
// The decisions follow these rules:
//
//   - A fence begins only for a machine that a health check finds unhealthy, and whose Node does
//     not report. While the health check permits no repairs, for example because too many machines
//     are unhealthy, no machine is switched off. The check must state a maximum of unhealthy
//     machines.
//   - The taint is set only within the time Fresh after the power has been read as Off, and only
//     while the Node does not report and has the boot ID from before the fence. If the power is
//     later read as On in phase Release, the taint is removed and the machine is switched off
//     again. If the Node reports in phase Release, the taint is removed. Otherwise, the taint is
//     removed only when the Node is Ready with a new boot ID.
//   - The value of the taint is the boot ID that the Node had before the fence.
//   - A machine that a fence or a power cycle may have switched off is switched on again, also if
//     it is healthy, has no check or has no Node at that time.
//   - A single machine is in phase SwitchOff or Release at a time.
//   - A control-plane machine is fenced only if the other control-plane machines that are ready are
//     a quorum of etcd.
//   - A machine without a power switch is never fenced. The verdict then says what the operator can
//     do.
//   - A machine stays off after its pods are released if one of the pods could start there without
//     an API server, or if the operator has configured it. The phase SwitchOn is then omitted.
//
// The package also decides about the step PowerCycle of a repair, which has the phases SwitchOff
// and SwitchOn, and releases nothing.
//
// The package is pure. The controllers first store a new phase in the object of the machine, and
// act in a later pass. Therefore a new leader of the controllers can continue the fence. Every
// action can be repeated.
package fence
