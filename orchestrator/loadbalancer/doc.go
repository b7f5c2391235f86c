// Package loadbalancer assigns addresses from the configured pools to Services of type
// LoadBalancer, beside the other controllers. Package l2announcer answers for them on the nodes.
//
// All state is in the API server: step.go decides from all Services, including their status, and
// run.go writes the difference. The status of the Services is the only record of assignments. A
// restarted controller reads it, and an address is free again when its Service is deleted or gets
// another type, for which the API server empties the status.
//
// The controller handles Services without a loadBalancerClass and Services of the class
// orlop.dev/pool. A Service can request a pool and addresses by two annotations, and a single
// address also by its field loadBalancerIP. If it gets no address, an Event of the Service states
// the reason. Without pools the controller assigns and removes no addresses, because the cluster
// may have another load balancer; it only informs a Service that has waited for long.
//
// docs/decisions/0031-loadbalancer.md gives the reasons.
package loadbalancer
