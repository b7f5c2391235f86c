// Package podlogd is the process that reads the logs of pods for the receivers of the configuration
// (source pods): the files that containerd writes below /var/log/pods and the kubelet rotates.
//
// Pods write these bytes. So the process has a user of its own, no capability, only read access
// below /var/log, and only the connection to the socket of machined. It makes the requests of OTLP;
// machined passes them on, because it has the certificates and the proxy, and stores the positions.
//
// A receiver has a reader of its own. A reader holds one batch, and the parts of incomplete lines:
// it reads no further before the receiver has taken the batch. The files of the kubelet are the
// buffer. docs/decisions/0122-pod-logs.md gives the reasons.
package podlogd
