package main

import (
	"context"
	"crypto"
	"crypto/x509"
	"strings"
	"testing"
	"time"

	certificates "k8s.io/api/certificates/v1"
	v1beta1 "k8s.io/api/certificates/v1beta1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/orlop-os/orlop/orchestrator/bootstrap"
	"github.com/orlop-os/orlop/pkg/pki"
)

// podCertificates checks that the real API server accepts the request of a kubelet for its pod, in
// the present and in the former version of the API, and that the signer issues a certificate that
// the published CAs verify. The API server rejects a request for another signer, and a request for
// a pod of another node.
func podCertificates(ctx context.Context, t *testing.T, m machine, admin kubernetes.Interface, node *corev1.Node) {
	pod, account := certifiedPod(ctx, t, admin, node.Name)
	key, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	stub, err := pki.NewRequest(key)
	if err != nil {
		t.Fatal(err)
	}
	spec := certificates.PodCertificateRequestSpec{
		SignerName: bootstrap.PodSigner, PodName: pod.Name, PodUID: pod.UID, ServiceAccountName: account.Name, ServiceAccountUID: account.UID,
		NodeName: types.NodeName(node.Name), NodeUID: node.UID, MaxExpirationSeconds: new(int32(3600)), StubPKCS10Request: stub,
	}
	kubelet := func(node string) kubernetes.Interface { return m.client(t, "system:node:"+node, "system:nodes") }
	own := kubelet(node.Name)

	// The request has no field PKIXPublicKey. All kubelets of Kubernetes 1.36 create such requests.
	former := v1beta1.PodCertificateRequestSpec{
		SignerName: spec.SignerName, PodName: spec.PodName, PodUID: spec.PodUID, ServiceAccountName: spec.ServiceAccountName, ServiceAccountUID: spec.ServiceAccountUID,
		NodeName: spec.NodeName, NodeUID: spec.NodeUID, MaxExpirationSeconds: spec.MaxExpirationSeconds, StubPKCS10Request: spec.StubPKCS10Request,
	}
	for name, create := range map[string]func(context.Context, metav1.ObjectMeta) error{
		"present": func(ctx context.Context, o metav1.ObjectMeta) error {
			_, err := own.CertificatesV1().PodCertificateRequests(pod.Namespace).Create(ctx, &certificates.PodCertificateRequest{ObjectMeta: o, Spec: spec}, metav1.CreateOptions{})
			return err
		},
		"former": func(ctx context.Context, o metav1.ObjectMeta) error {
			_, err := own.CertificatesV1beta1().PodCertificateRequests(pod.Namespace).Create(ctx, &v1beta1.PodCertificateRequest{ObjectMeta: o, Spec: former}, metav1.CreateOptions{})
			return err
		},
	} {
		// The admission plugin NodeRestriction knows the new pod after a short time. Until then, it
		// rejects the request with an error other than Forbidden.
		var last error
		err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, 20*time.Second, true, func(ctx context.Context) (bool, error) {
			last = create(ctx, metav1.ObjectMeta{Name: name})
			if apierrors.IsForbidden(last) {
				return false, last
			}
			return last == nil, nil
		})
		if err != nil {
			t.Fatalf("%s version: %v: %v", name, err, last)
		}
		certificate(ctx, t, admin, name, key.Public())
	}

	other, err := admin.CoreV1().Nodes().Get(ctx, measuredNode, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	foreign, elsewhere := spec, spec
	foreign.SignerName = "example.com/else"
	elsewhere.NodeName, elsewhere.NodeUID = measuredNode, other.UID
	for want, c := range map[string]struct {
		by   kubernetes.Interface
		spec certificates.PodCertificateRequestSpec
	}{
		"does not mount a podCertificate projected volume": {own, foreign},
		"is not the requesting node":                       {kubelet(measuredNode), spec},
		"is not running on node":                           {kubelet(measuredNode), elsewhere},
	} {
		_, err := c.by.CertificatesV1().PodCertificateRequests(pod.Namespace).Create(ctx, &certificates.PodCertificateRequest{ObjectMeta: metav1.ObjectMeta{Name: "refused"}, Spec: c.spec}, metav1.CreateOptions{})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the request has the error %v, want an error with %q", err, want)
		}
	}
}

// certifiedPod creates a pod on a node. The pod has its own service account and mounts a
// certificate of the signer of the system. The pod is deleted at the end of the test.
func certifiedPod(ctx context.Context, t *testing.T, admin kubernetes.Interface, node string) (*corev1.Pod, *corev1.ServiceAccount) {
	t.Helper()
	account, err := admin.CoreV1().ServiceAccounts("default").Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "till"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod := plainPod("web")
	pod.Spec.NodeName, pod.Spec.NodeSelector, pod.Spec.ServiceAccountName = node, nil, account.Name
	pod.Spec.Volumes = []corev1.Volume{{Name: "identity", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{
		PodCertificate: &corev1.PodCertificateProjection{SignerName: bootstrap.PodSigner, KeyType: "ED25519", CredentialBundlePath: "identity.pem"},
	}}}}}}
	pod, err = admin.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := admin.CoreV1().Pods("default").Delete(ctx, pod.Name, *metav1.NewDeleteOptions(0)); err != nil {
			t.Error(err)
		}
	})
	return pod, account
}

// certificate waits until the request name has a certificate. It checks that the certificate names
// the service account of the pod, that it is for the key, and that the published CAs verify it.
func certificate(ctx context.Context, t *testing.T, admin kubernetes.Interface, name string, key crypto.PublicKey) {
	t.Helper()
	var status certificates.PodCertificateRequestStatus
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, 20*time.Second, true, func(ctx context.Context) (bool, error) {
		r, err := admin.CertificatesV1().PodCertificateRequests("default").Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		status = r.Status
		return len(status.Conditions) > 0, nil
	})
	if err != nil {
		t.Fatalf("request %s has no certificate: %v", name, err)
	}
	cert, err := pki.ParseCert([]byte(status.CertificateChain))
	if err != nil {
		t.Fatalf("request %s has an invalid certificate: %+v: %v", name, status, err)
	}
	bundle, err := admin.CertificatesV1().ClusterTrustBundles().Get(ctx, bootstrap.PodTrust, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM([]byte(bundle.Spec.TrustBundle))
	if _, err := cert.Verify(x509.VerifyOptions{Roots: trusted}); err != nil {
		t.Error(err)
	}
	has, ok := cert.PublicKey.(interface{ Equal(crypto.PublicKey) bool })
	if len(cert.URIs) != 1 || cert.URIs[0].String() != "spiffe://test/ns/default/sa/till" || !ok || !has.Equal(key) {
		t.Errorf("the certificate of request %s has another key, or names %v", name, cert.URIs)
	}
}
