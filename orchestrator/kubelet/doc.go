// Package kubelet runs upstream's kubelet inside the process "node": its flags and configuration
// file as data (config.go), its start (run.go).
//
// Certificates are machined's to renew, so the kubelet's own rotation is off. For the graceful
// shutdown of the node logind.go plays the part of systemd-logind, which upstream's waits for
// (docs/decisions/0011). The kubelet is started at once, while the API server may still be
// starting: its requests are held until the server answers, because a refused one is repeated only
// seconds later.
package kubelet
