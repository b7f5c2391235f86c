package bootstrap

const (
	// PodCertificatesAccount is the service account in kube-system that signs pod certificates
	// (package podcertificates).
	PodCertificatesAccount = "orlop-pod-certificates"
	// PodAuthorities is the Secret in kube-system with the CAs that sign them.
	PodAuthorities = "orlop-pod-authorities"
	// PodSigner is the name of their signer, and PodTrust the ClusterTrustBundle with the CAs that
	// pods trust.
	PodSigner = "orlop.dev/pods"
	PodTrust  = "orlop.dev:pods:trust"
)
