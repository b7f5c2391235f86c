// Package podlogd is the process that reads the logs of pods for the receivers of the configuration
// (source pods). containerd writes the log files below /var/log/pods, and the kubelet rotates them.
//
// podlogd is a separate process, because pods choose the bytes that it parses. It has its own user,
// no capability, read access only below /var/log, and a connection only to the socket of machined.
// podlogd creates the OTLP requests. machined forwards them, because machined has the certificates
// and the proxy; it also stores the positions.
//
// Each receiver has its own reader. A reader holds one batch and the beginnings of incomplete lines
// in memory. It does not read further until the receiver has accepted the batch; the files of the
// kubelet are the buffer. docs/decisions/0122-pod-logs.md gives the reasons.
package podlogd
