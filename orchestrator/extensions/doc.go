// Package extensions reports the objects of the cluster that block its API: webhooks, converters
// and API services with backends that do not answer or fail calls, policies that reject requests of
// the system itself, FlowSchemas and priority levels that leave the system no seat, and namespaces
// that stay Terminating because of these objects. docs/decisions/0055-suspend.md lists all kinds. A
// fail-closed webhook without a backend rejects every request in its scope, and the rejections
// appear only in the logs of other programs.
//
// The component runs in the process "api" over the server's connection to itself, so that it works
// when nothing else does. It only observes: an administrator decides on the remedy (Cluster.Suspend
// of the management API). Its findings make the machine unhealthy, but neither end a process nor
// fail an upgrade: the objects belong to users.
//
// judge.go decides, and is pure; backend.go connects to backends; probe.go sends requests to the
// server; run.go does the input and output.
package extensions
