package bootstrap

const (
	// PodCertificatesAccount is the service account in kube-system that signs pod certificates
	// (package podcertificates).
	PodCertificatesAccount = "orlop-pod-certificates"
	// PodAuthorities is the Secret in kube-system with the CAs that sign pod certificates.
	PodAuthorities = "orlop-pod-authorities"
	// PodSigner is the name of the signer of pod certificates. PodTrust is the ClusterTrustBundle
	// with the CAs of these certificates, for the pods that verify them.
	PodSigner = "orlop.dev/pods"
	PodTrust  = "orlop.dev:pods:trust"
)
