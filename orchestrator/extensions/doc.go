// Package extensions says which objects of the cluster hold up its API: webhooks, converters and
// API services whose backends do not answer, policies that refuse what the system itself does, and
// namespaces that stay Terminating because of one of those. A fail-closed webhook without a backend
// refuses every request that it is asked about, and the refusals stand in other programs' logs.
//
// The component runs in the process "api" over the server's connection to itself, so that it works
// when nothing else does. It only looks: what is done about it is an administrator's decision
// (Cluster.Suspend of the management API). What it finds makes the machine unhealthy, and neither
// ends a process nor fails an upgrade: the objects are the users'.
//
// judge.go decides, and is pure; backend.go reaches backends; run.go is the edge.
package extensions
