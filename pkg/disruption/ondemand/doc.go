// Package ondemand decides how many machines a MachineDeployment has, between a minimum and a
// maximum (docs/decisions/0126-power-on-demand.md). It is pure.
//
// A machine is added for pods that no Node can take and that a machine of the MachineDeployment
// could take. A machine is removed after it had no pods for IdleTime.
//
// The decisions follow these rules:
//
//   - The number of machines stays between the minimum and the maximum.
//   - While machines are on the way, or are empty, they are expected to take the pods, and only the
//     rest of the pods adds machines. Therefore, a pod that fits by its requests, but that the
//     scheduler refuses for another reason, adds machines once only.
//   - While pods wait that a machine could take, no machine is removed. A pod that still waits
//     although a machine had space for it for HelpTime is an exception: it neither adds machines
//     nor prevents a removal. Therefore, the number of machines does not go up and down because of
//     this pod.
//   - One machine is removed at a time. It is marked first. The mark is withdrawn if the machine
//     gets pods before it is removed.
package ondemand
