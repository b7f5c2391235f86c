// Package podcertificates issues certificates to pods that identify them, for mutual TLS among pods
// (Cluster.spec.podCertificates). A pod requests a certificate with upstream's projected volume
// (podCertificate, signerName orlop.dev/pods). The kubelet generates a key that never leaves its
// node, and a PodCertificateRequest; the API server has verified that it belongs to a pod of the
// kubelet's node (KEP-4317). A certificate contains only the pod's service account, as a SPIFFE ID
// (X.509-SVID): spiffe://CLUSTER/ns/NAMESPACE/sa/NAME, and no value that the pod could choose. It
// is valid for a day at most, and the kubelet renews it after half its validity.
//
// authorities.go contains the CAs: a sequence in which each CA has a successor long before it
// expires, and all pods trust the successor before it signs. They are stored in a Secret of
// kube-system, encrypted at rest as all Secrets are, and not in any machine's configuration; only
// pods trust them. issue.go issues a certificate or denies a request with a reason. Both are pure.
// run.go performs this on the leading control-plane machine, and publishes the trusted CAs as a
// ClusterTrustBundle, which pods mount in the same volume.
//
// docs/decisions/0040-pod-certificates.md gives the reasons.
package podcertificates
