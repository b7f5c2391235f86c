// Package extensions reports the objects of the cluster that block its API. These are: webhooks,
// converters and API services with backends that do not answer or fail calls; policies that reject
// requests of the system itself; FlowSchemas and priority levels that leave the system no seat; and
// namespaces that stay Terminating because of these objects. docs/decisions/0055-suspend.md lists
// all kinds. Without this package, a rejection by a fail-closed webhook without a backend would
// appear only in the log of the program that sent the rejected request.
//
// The component runs in the process "api" over the server's connection to itself, so it also works
// when all other components fail. It only observes: an administrator decides on the remedy
// (Cluster.Suspend of the management API). Its findings make the machine unhealthy, but end no
// process and fail no upgrade, because the objects belong to users.
//
// judge.go decides, and is pure; backend.go connects to backends; probe.go sends requests to the
// server; run.go does the input and output.
package extensions
