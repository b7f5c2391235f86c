// Package firewall generates and installs two tables of nft(8): the table of Network.spec.firewall,
// which filters connections that other hosts open to the machine, and the port guard (Guard), which
// keeps the machine's own ports from Services and pods.
//
// machined/nodeplan derives the input from the configuration. Filter knows which tables are
// installed and returns the operations that install other tables; all other functions are pure.
//
// The firewall filters traffic to the machine itself, and not to pods: traffic to pods is
// forwarded, and network policies filter it. If the pod of a Service or host port uses the host
// network, its traffic arrives rewritten at the machine itself. The firewall accepts this traffic,
// because the owner of the Service or host port has admitted it.
//
// The guard exists also without a firewall. The service proxy and the host-port plugin rewrite
// traffic to a port of the machine if an object of the cluster requests this. The chains of the
// guard run before theirs, and decide about the machine's own ports. It also rejects traffic from
// pods to ports that pods have no reason to reach. orchestrator/portguard, which knows the pods,
// rejects their traffic to other machines on the machine of the pod.
package firewall
