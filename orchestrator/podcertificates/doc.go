// Package podcertificates gives pods certificates that say who they are, for mutual TLS among
// themselves (Cluster.spec.podCertificates). A pod asks with a projected volume of upstream's
// (podCertificate, signerName orlop.dev/pods): the kubelet makes a key that never leaves its node,
// and a PodCertificateRequest, which the API server has checked to be about a pod of that kubelet's
// node (KEP-4317). What a certificate says is the pod's service account, as a SPIFFE ID
// (X.509-SVID): spiffe://CLUSTER/ns/NAMESPACE/sa/NAME, and nothing that the pod could choose. It
// lasts a day at most, and the kubelet has it renewed after half its time.
//
// authorities.go has the authorities: a row in which each has a successor long before its end,
// which everybody believes in before it issues. They are in a Secret of kube-system, encrypted at
// rest as all are, and in no machine's configuration; what they vouch for counts among pods alone.
// issue.go makes a certificate, or says why not. Both are pure. run.go does it, on the
// control-plane machine that leads, and publishes those to believe in as a ClusterTrustBundle,
// which pods mount in the same volume.
//
// docs/decisions/0040-pod-certificates.md says why it is so.
package podcertificates
