// Package vm starts machines (QEMU, software emulation, UEFI firmware) and their closed network, in
// one Go process and without root. The tests, `make run` and `orlopctl cluster` use it.
//
//	    one Go process (a test, or the runner of a cluster that outlives its command)
//	┌──────────────────────────────────────────────────────────────────────────────────┐
//	│  Network.DialContext   forwards on 127.0.0.1        Host "scanner" (a test's own) │
//	│          │                    │                             │                     │
//	│  ┌───────┴────────────────────┴───────┐                     │                     │
//	│  │ gateway 10.77.0.1 (gvisor netstack)│                     │                     │
//	│  │ DHCP · DNS · NTP · no forwarding   │                     │                     │
//	│  └───────────────────┬────────────────┘                     │                     │
//	│              ┌───────┴──────────────────────────────────────┴───┐                 │
//	│              │ switch: learns, floods, faults, partitions       ├──► capture.pcap │
//	│              └───────┬──────────────────────────────────┬───────┘                 │
//	└──────────────────────┼──────────────────────────────────┼─────────────────────────┘
//	             inherited socket pair               inherited socket pair
//	                  ┌────┴─────┐                      ┌─────┴────┐
//	                  │ QEMU  cp1│ 10.77.0.11           │ QEMU  w1 │ 10.77.0.12
//	                  └──────────┘                      └──────────┘
//
// # Closed
//
// The network is closed because no part of it can forward: the gateway's IP stack has forwarding
// off, is not promiscuous, has one interface, and no handler that dials. The only code that uses
// the host's network is Network.Forward, which listens on 127.0.0.1 and dials into the network,
// never the other way. The name server answers from a table and has no upstream. A frame for an
// address outside reaches no port or is dropped by the gateway. It is in the capture, and
// AnalyseCapture finds it.
//
// ServeBoot adds TFTP and HTTP, for machines whose firmware boots from the network.
//
// gvisor-tap-vsock, the usual choice here, always installs forwarders that dial with the host's
// network, its switch does not flood multicast, and one stopped machine stops the whole network. So
// this package uses the same IP stack (gvisor) with its own switch.
//
// # Machines
//
// Start makes a machine: its directory holds the disks, the firmware's variables, console.log and
// stderr.log. A machine can lose its power (PowerCut: SIGKILL to QEMU), be switched on again
// (PowerOn) with the same disk, be asked to shut down (PowerButton), be reset, paused and
// unplugged. Each power-on ends with an Exit that holds QEMU's status, its output on stderr and the
// reason from QMP. The Exit distinguishes a machine that shut itself down, a killed machine and a
// failed QEMU.
//
// Machines end with the process that started them (PR_SET_PDEATHSIG). For a cluster that has to
// outlive its command, Launch starts a runner in the background and Connect finds it again.
// Client.Add makes another machine.
//
// A cluster with ClusterSpec.Redfish serves the power switches of its machines by Redfish (package
// redfish) on 127.0.0.1, like a management controller (BMC) of a real machine: power, the device of
// the next boots, a medium in the CD drive. Its Status has the address and the certificate.
//
// # Time
//
// Several machines share the computer's processors. With NetworkSpec.Dilation all clocks on a
// network (Clock) run more slowly than outside: the clocks of the machines, the gateway and other
// hosts. Waiting then leaves more processor time for computing.
//
// # Limits
//
// It builds no images, does not use the API of the machines, and supports no emulation faster than
// TCG. Data that reached QEMU before a power cut stays written. Package writelog makes a disk that
// loses unflushed data, from a record (Disk.Record).
package vm
