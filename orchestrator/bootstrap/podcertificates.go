package bootstrap

const (
	// PodCertificatesAccount is the service account in kube-system by which pods' certificates are
	// signed (package podcertificates).
	PodCertificatesAccount = "orlop-pod-certificates"
	// PodAuthorities is the Secret in kube-system that has the authorities that sign them.
	PodAuthorities = "orlop-pod-authorities"
	// PodSigner is their signer's name, and PodTrust the ClusterTrustBundle that says whom pods
	// believe.
	PodSigner = "orlop.dev/pods"
	PodTrust  = "orlop.dev:pods:trust"
)
