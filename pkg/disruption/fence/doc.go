// Package fence decides when the controllers operate the power switch of a machine
// (docs/decisions/0124-power-and-fencing.md).
//
// To fence a machine is to switch it off by its management controller (BMC) and to read back that
// it is off, before its pods and volumes are released. A fence has these phases:
//
//	phase       the controllers                                          ends when
//	SwitchOff   switch the machine off, and read its power               it reads Off
//	Release     set the taint out-of-service at the Node                 the pods are gone
//	SwitchOn    switch the machine on, and read its power                it reads On
//	Return      wait, and remove the taint at the end                    Ready with a new boot ID
//
// The decisions follow these rules:
//
//   - A fence begins only for a machine that a health check finds unhealthy, and whose Node does
//     not report. The rules that stop the repairs of the check stop the fence, too.
//   - The taint is set only within seconds after the power has been read as Off. If the power is
//     later read as On while pods are left, the taint is removed and the machine is switched off
//     again.
//   - The taint has the boot ID that the Node had before the fence. It is removed only after the
//     Node is Ready with another boot ID.
//   - A single machine is in phase SwitchOff or Release at a time.
//   - A control-plane machine is fenced only if the other control-plane machines that are ready are
//     a quorum of etcd.
//   - A machine without a power switch is never fenced. The verdict then says what the operator can
//     do.
//   - A machine stays off if a released pod could start there without an API server, or if the
//     operator wants it.
//
// The package also decides about the step PowerCycle of a repair, which has the phases SwitchOff
// and SwitchOn, and releases nothing.
//
// The package is pure. The controllers store the phase in the object of the machine first, and act
// in a later pass, so another leader of the controllers continues. Every action can be repeated.
package fence
