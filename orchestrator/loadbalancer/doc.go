// Package loadbalancer assigns addresses from the configured pools to Services of type
// LoadBalancer. It runs in process "controllers". On the nodes, package l2announcer answers ARP and
// NDP requests for these addresses.
//
// All state is in the API server: the status of the Services is the only record of assignments.
// step.go computes the wanted addresses from all Services and their status, and run.go writes the
// differences. A restarted controller continues with the status of the Services. An address becomes
// free when its Service is deleted, or when the Service gets another type, because the API server
// then empties its status.
//
// The controller handles Services without a loadBalancerClass and Services of the class
// orlop.dev/pool. A Service can request a pool by one annotation and addresses by another. It can
// request a single address also by its field loadBalancerIP. If a Service gets no address, an Event
// of the Service states the reason.
//
// If no pool is configured, the controller assigns and removes no addresses, because the cluster
// may have another load balancer. It then only creates an Event for each Service that has no
// address after gracePeriod.
//
// The reasons are in docs/decisions/0031-loadbalancer.md.
package loadbalancer
