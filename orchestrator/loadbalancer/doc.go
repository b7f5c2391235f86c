// Package loadbalancer gives Services of type LoadBalancer addresses from the pools of the
// configuration, beside the other controllers. Package announcer, on the nodes, answers for them.
//
// Everything follows from what the API server holds: step.go decides from all Services, their
// status included, and run.go writes the difference. There is no list of what was given besides the
// status of the Services: after a restart it is read, and an address is free again when the Service
// that had it is gone, or of another type, for which the API server empties the status.
//
// It takes Services without a loadBalancerClass, and those of the class orlop.dev/pool. A Service
// asks by two annotations: for a pool, and for addresses; for one address by its field
// loadBalancerIP as well. Why it gets none stands in an Event of the Service. Without pools it
// gives none and takes none away, for another load balancer may be there; it only tells a Service
// that has waited for long.
//
// docs/decisions/0031-loadbalancer.md says why it is as it is.
package loadbalancer
