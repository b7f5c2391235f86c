// Package kubelet runs upstream's kubelet inside the process "node": its flags and configuration file as data
// (config.go), its start (run.go).
//
// Certificates are machined's to renew, so the kubelet's own rotation is off. Graceful shutdown of the node is
// machined's too: upstream's needs logind. The kubelet is started at once, while the API server may still be starting:
// its requests are held until the server answers, because a refused one is repeated only seconds later.
package kubelet
