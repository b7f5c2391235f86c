// Package metrics serves the resource metrics API (metrics.k8s.io/v1beta1: the processor time and
// memory of each node and pod), which `kubectl top` and the horizontal pod autoscaler use, inside
// the process "controllers".
//
// It scrapes every kubelet at short intervals (scrape.go, report.go), retains the last two samples
// of each node and container (usage.go), and computes its answers from them and from its cache of
// the Nodes and Pods (resources.go). It stores no data on disk.
//
// The API server's aggregator is the only client. Each API server uses the component of its own
// machine over loopback (route.go). In a cluster with several control-plane machines the component
// also listens on the machine's address, and a server uses another machine's component if its own
// does not answer. The aggregator authenticates by a certificate of the front proxy's CA and names
// the user of the request; the API server authorizes the user (serve.go).
// docs/decisions/0033-resource-metrics.md gives the reasons, also against upstream's
// metrics-server.
package metrics
