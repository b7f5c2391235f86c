// Package host makes the machine itself fit to run pods: kernel modules, mounts, kernel parameters,
// control groups, resource limits, and the machine's id.
//
// It works as every domain does: Plan turns a configuration and facts into a Want; Kernel.Read
// looks; Diff returns the operations between the two; each is one change and can be repeated. None
// builds on another of the same run except by the order in which Diff returns them (a module brings
// parameters and file systems with it), so one that fails does not hold up the others
// (reconcile.Config.KeepGoing).
//
// The package also reads facts for the machine's state: memory, processors, uptime, mounts and how
// full they are, modules, processes, control groups, kernel parameters, sensors, PCI devices.
//
// # Control groups
//
//	/                     kernel threads; hands all controllers down
//	├── orlop             the system: memory.min is what the configuration reserves, and four times the CPU of all pods together
//	│   ├── machined      PID 1 and what it runs once (mke2fs, …)
//	│   └── NAME          one for each service, made by pkg/supervise when it starts it
//	└── kubepods          made by the kubelet (cgroupfs driver), bounded by it to what is allocatable
//
// The hierarchy is mounted with memory_recursiveprot, so that what /orlop has reserved also
// protects those of its children that reserve nothing themselves.
//
// # What it deliberately does not do
//
// It does not mount disks (machined/disk), set parameters of single links (machined/network) or
// load drivers (modules that devices ask for: pkg/uevent). A parameter that is not wanted any more
// goes back to the value that it had before this package first set it. A module stays until the
// next start (Kernel.Leftover).
package host
