// Package clusterhealth answers Cluster.ClusterHealth: a control-plane machine calls every machine
// of the cluster that it knows, and computes the health of the cluster from the answers
// (docs/decisions/0101-cluster-health.md). It needs neither the Kubernetes API nor etcd: the
// configuration and the ledger name the machines, and each machine reports about itself
// (Cluster.ReportMachine).
//
// summary.go, findings.go and documents.go are pure. collect.go makes the calls, each with a
// deadline.
package clusterhealth
