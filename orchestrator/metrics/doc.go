// Package metrics serves the resource metrics API (metrics.k8s.io/v1beta1: how much processor time
// and memory each node and each pod uses), which `kubectl top` and the autoscaler of pods ask for,
// inside the process "controllers".
//
// It asks every kubelet at short intervals (scrape.go, report.go), keeps the last two samples of
// each node and container (usage.go), and makes what is asked for out of them and of its copy of
// the Nodes and Pods (resources.go). Nothing is stored.
//
// The API server's aggregator is the only caller. Each API server asks the component of its own
// machine over loopback (route.go); where there are several control-plane machines the component
// listens on the machine's address, too, and a server whose own does not answer asks another one's.
// The caller proves by a certificate of the front proxy's CA that it is the aggregator, and tells
// for whom it asks; whether he may, the API server decides (serve.go).
// docs/decisions/0033-resource-metrics.md says why it is done so, and why not with upstream's
// metrics-server.
package metrics
