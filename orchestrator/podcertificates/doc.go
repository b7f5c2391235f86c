// Package podcertificates issues certificates that identify pods, for mutual TLS among pods
// (Cluster.spec.podCertificates). A pod requests a certificate with upstream's projected volume
// (podCertificate, signerName orlop.dev/pods). The kubelet generates a key, which never leaves its
// node, and creates a PodCertificateRequest. The API server verifies that the request belongs to a
// pod of the kubelet's node (KEP-4317). A certificate contains only the pod's service account, as a
// SPIFFE ID (X.509-SVID): spiffe://CLUSTER/ns/NAMESPACE/sa/NAME. The pod cannot choose any value in
// it. The certificate is valid for a day at most, and the kubelet renews it after half its
// validity.
//
// authorities.go contains the CAs. Each CA has a successor long before it expires, and all pods
// trust the successor before it signs. The CAs are stored in a Secret of kube-system, which is
// encrypted at rest. No machine has them in its configuration, and only pods trust them. issue.go
// issues a certificate, or denies a request with a reason. Both files are pure. run.go runs on the
// control-plane machine that leads, answers the requests, and publishes the trusted CAs as a
// ClusterTrustBundle. Pods mount the bundle in the same volume.
//
// docs/decisions/0040-pod-certificates.md gives the reasons.
package podcertificates
