// Package vm starts machines (QEMU, software emulation, UEFI firmware) and the closed network
// that they live on, in one Go process and without root. The tests, `make run` and `orlopctl
// cluster` use it.
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
// The network has no way out because there is nothing in it that could forward: the gateway's IP
// stack has forwarding off, is not promiscuous, has one interface, and no handler that dials. The
// only code that touches the host's network is Network.Forward, which listens on 127.0.0.1 and
// dials into the network, never the other way. The name server answers from a table and has no
// upstream. A frame for an address outside is switched to nobody or dropped by the gateway, and is
// in the capture: AnalyseCapture finds it.
//
// ServeBoot adds TFTP and HTTP, for machines whose firmware boots from the network by itself.
//
// gvisor-tap-vsock, which is the usual choice here, always installs forwarders that dial with the
// host's network, its switch does not flood multicast, and one stopped machine stops all of it. So
// this package uses the same IP stack (gvisor) with a switch of its own.
//
// # Machines
//
// Start makes a machine: its folder holds the disks, the firmware's variables, console.log and
// stderr.log. A machine can lose its power (PowerCut: SIGKILL to QEMU), be switched on again
// (PowerOn) with the same disk, be asked to shut down (PowerButton), be reset, paused and
// unplugged. Each power-on ends with an Exit that keeps QEMU's status, what it wrote on stderr and
// the reason it gave over QMP, so that a machine that shut itself down, one that was killed and a
// QEMU that fell over are three different things.
//
// Machines die with the process that started them (PR_SET_PDEATHSIG). For a cluster that has to
// outlive its command, Launch starts a runner in the background and Connect finds it again.
// Client.Add makes one more machine.
//
// # Time
//
// Several machines share the computer's processors. With NetworkSpec.Dilation all clocks on a
// network (Clock) pass more slowly than outside, the machines' and those of the gateway and other
// hosts: what is waited for then leaves the processors to what is computed.
//
// # What it does not do
//
// It builds no images, knows nothing of the API of the machines, and runs no emulation faster than
// TCG. What reached QEMU before a power cut stays written; a disk that loses what was not flushed
// is made from a record (Disk.Record), by package writelog.
package vm
