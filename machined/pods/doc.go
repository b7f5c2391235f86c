// Package pods stops the pods of the machine, at a shutdown and after the removal of the machine
// from the cluster. First the kubelet stops the pods in order (docs/decisions/0011-logind.md). Then
// the package stops the remaining containers through containerd.
//
// It leaves the services containerd and apid running. The caller stops these services, or removes
// the certificates of the node.
package pods
