package main

import (
	"context"
	"crypto/x509"
	"testing"
	"time"

	certificates "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/orlop-os/orlop/orchestrator/bootstrap"
	"github.com/orlop-os/orlop/pkg/pki"
)

// podCertificates checks that the real API server accepts the signer's answer to a request, and
// that the published CAs verify it.
func podCertificates(ctx context.Context, t *testing.T, admin kubernetes.Interface) {
	key, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	stub, err := pki.NewRequest(key)
	if err != nil {
		t.Fatal(err)
	}
	requests := admin.CertificatesV1().PodCertificateRequests("default")
	_, err = requests.Create(ctx, &certificates.PodCertificateRequest{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: certificates.PodCertificateRequestSpec{
			SignerName: bootstrap.PodSigner, PodName: "web", PodUID: "p", ServiceAccountName: "till", ServiceAccountUID: "s", NodeName: "node-1", NodeUID: "n",
			MaxExpirationSeconds: new(int32(3600)), StubPKCS10Request: stub,
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var status certificates.PodCertificateRequestStatus
	err = wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, 20*time.Second, true, func(ctx context.Context) (bool, error) {
		r, err := requests.Get(ctx, "web", metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		status = r.Status
		return len(status.Conditions) > 0, nil
	})
	if err != nil {
		t.Fatalf("no answer: %v", err)
	}
	cert, err := pki.ParseCert([]byte(status.CertificateChain))
	if err != nil {
		t.Fatalf("the answer: %+v: %v", status, err)
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
	if len(cert.URIs) != 1 || cert.URIs[0].String() != "spiffe://test/ns/default/sa/till" || !key.PublicKey.Equal(cert.PublicKey) {
		t.Errorf("is for %v", cert.URIs)
	}
}
