// Package metrics serves the resource metrics API, metrics.k8s.io/v1beta1, in process
// "controllers". This API contains the processor usage and the memory of each node and pod.
// `kubectl top` and the horizontal pod autoscaler use it.
//
// The component scrapes each kubelet every 15 seconds (scrape.go, report.go). It retains the last
// two samples of each node and container in memory (usage.go). It computes its responses from the
// samples and from its caches of Nodes and Pods (resources.go).
//
// The only client is the aggregator, the part of the API server that forwards requests to extension
// API servers. Each API server uses the component of its own machine (route.go). In a cluster with
// one control-plane machine, the component listens on loopback. In a cluster with several, it
// listens on the address of the machine, and an API server uses the component of another machine if
// its own does not accept connections.
//
// The aggregator authenticates itself by a certificate of the front proxy CA and sends the name of
// the user. The component asks the API server whether this user is authorized, except for the
// group system:masters, which the aggregator's own requests use (serve.go). The reasons, also
// those against metrics-server, are in docs/decisions/0033-resource-metrics.md.
package metrics
