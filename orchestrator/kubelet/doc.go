// Package kubelet runs upstream's kubelet inside the process "node": its flags and configuration
// file as data (config.go), its start (run.go).
//
// machined renews the certificates, so the kubelet's own rotation is disabled. For the graceful
// shutdown of the node, logind.go implements the part of systemd-logind that upstream waits for
// (docs/decisions/0011). The kubelet starts at once, while the API server may still be starting.
// Its requests wait until the server answers, because the kubelet repeats a failed request only
// seconds later.
package kubelet
