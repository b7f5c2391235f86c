// Package redfish serves the management interface of a baseboard management controller (BMC) for
// virtual machines: Redfish (DMTF DSP0266) over HTTPS, in front of the power switches of
// package vm.
//
// A client reads a system (power state, serial number, UUID, memory, processors), switches it on
// and off, selects the device of its next boots, and inserts a medium into its CD drive. Each
// system has a manager of the same name, which has the drive.
//
// Each request needs the password, by HTTP Basic authentication or in a session, except for the
// service root. A request has at most 64 KiB. There are at most 16 sessions; a session ends half an
// hour after its last request.
//
// # Limits
//
// The resources have only the properties that clients of this kind need, and no schemas. There are
// no tasks: an action ends before its answer. A medium is a file of this computer (file:///…),
// because the machine reads it there. BootSourceOverrideMode is UEFI.
package redfish
