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
// # Closed network
//
// The machines cannot reach the host's network, because no part of the closed network forwards
// packets. The gateway's IP stack has forwarding off, is not promiscuous, has a single interface,
// and has no handler that opens connections of the host. Only Network.Forward uses the host's
// network: it listens on 127.0.0.1 and opens connections into the closed network, never in the
// other direction. The DNS server answers from a table and has no upstream. The gateway drops a
// packet for an address outside the network. AnalyseCapture finds the packet in the capture.
//
// After ServeBoot, the gateway also serves a boot image by TFTP and HTTP, for machines that boot
// from the network.
//
// After StartBGP, the gateway accepts BGP sessions of machines and uses their routes for its own
// connections. It still forwards no packets.
//
// The usual library for this purpose is gvisor-tap-vsock. Its gateway always forwards connections
// to the host's network, its switch does not flood multicast frames, and a stopped machine stops
// its whole network. So this package uses the same IP stack (gvisor) with its own switch.
//
// # Machines
//
// Start creates a machine. The directory of the machine holds its disks, the variables of its
// firmware, console.log and stderr.log. PowerCut removes the power (SIGKILL to QEMU), PowerOn
// switches the machine on again with the same disks, and PowerButton requests a shutdown. Other
// methods reset the machine, pause it, and unplug its network cable. Each power-on ends with an
// Exit: QEMU's exit status, its output on stderr, and the reason that QEMU reports by QMP. By the
// Exit, a caller distinguishes a machine that shut itself down, a killed machine and a failed QEMU.
//
// When the process that started a machine ends, the kernel kills QEMU (PR_SET_PDEATHSIG). A cluster
// can outlive the command that creates it: Launch starts a background process, the runner, which
// holds the network and the machines. Connect returns a client of the runner, and Client.Add adds a
// machine to the cluster.
//
// If ClusterSpec.Redfish is set, the runner serves Redfish (package redfish) on 127.0.0.1, like the
// management controller (BMC) of a real machine. Redfish clients switch the machines on and off,
// select the device of the next boots, and insert a medium into the CD drive. Client.Status returns
// the address and the certificate of the service.
//
// # Time
//
// Several machines share the processors of this computer. With NetworkSpec.Dilation, the clocks of
// the machines, of the gateway and of the other hosts on a network run more slowly than the clock
// of this computer (Clock). So a machine has more processor time in each second of its clock.
//
// # Limits
//
// The package builds no images, does not use the API of the machines, and supports only TCG, QEMU's
// software emulation. A power cut loses no data that QEMU has received, because only QEMU ends and
// the host continues to run. Package writelog makes a disk image without unflushed data, from the
// record of a disk (Disk.Record).
package vm
