// Package pods stops the pods of the machine, at a shutdown and after its removal from the cluster:
// in order by the kubelet (docs/decisions/0011-logind.md), and then the remaining
// containers by containerd.
//
// The package leaves containerd and apid running; the caller stops them, or removes the
// certificates of the node.
package pods
