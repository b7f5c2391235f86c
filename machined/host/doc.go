// Package host prepares the machine to run pods: kernel modules, mounts, kernel parameters, control
// groups, resource limits, and the machine ID.
//
// It works as every domain does: Plan turns a configuration and facts into a Want; Kernel.Read
// reads the actual state; Diff returns the operations between the two. Each operation is a single
// change and can be repeated. Diff puts each operation after the operations on which it depends:
// for example, a module provides parameters and file systems. After a failed operation, the others
// are still performed (reconcile.Config.KeepGoing).
//
// The package also reads facts for the machine's state: memory, processors, uptime, mounts and
// their usage, modules, processes, control groups, kernel parameters, sensors, PCI devices.
//
// # Control groups
//
//	/                     kernel threads; delegates all controllers
//	├── orlop             the system: memory.min is the configured reservation,
//	│   │                 cpu.weight is four times the CPU of all pods together
//	│   ├── machined      PID 1 and its short-lived child processes (mke2fs, …)
//	│   └── NAME          a group per service, created by pkg/supervise at its start
//	└── kubepods          created by the kubelet (cgroupfs driver), which limits it to the
//	                      allocatable resources
//
// The hierarchy is mounted with memory_recursiveprot, so the reservation of /orlop also protects
// the groups below, which have no reservation of their own.
//
// # Out of scope
//
// The package does not mount disks (machined/disk), set parameters of single links
// (machined/network) or load drivers (machined/uevent loads the modules for devices). A parameter
// that is no longer configured returns to its value from before this package first set it. A module
// stays loaded until the next boot (Kernel.LeftoverModules).
package host
