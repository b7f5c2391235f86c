// Package redfish serves Redfish (DMTF DSP0266) over HTTPS, the management interface of a baseboard
// management controller (BMC), for the virtual machines of package vm.
//
// A system is a machine. A client reads the properties of a system (power state, serial number,
// UUID, memory, processors), switches it on and off, selects the device of its next boots, and
// inserts a medium into its CD drive. Each system has a manager of the same name. The CD drive is a
// resource of the manager.
//
// Requests for the service root need no authentication. Each other request needs the password, by
// HTTP Basic authentication, or a session. A request has at most 64 KiB. There are at most 16
// sessions; a session ends half an hour after its last request.
//
// # Limits
//
// The resources have no schemas, and only the properties that clients of machines need. There are
// no tasks: the service answers after the end of an action. A medium is a file of this computer
// (file:///…), which QEMU reads directly. BootSourceOverrideMode is always UEFI.
package redfish
