package podcertificates

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"strings"
	"testing"
	"time"

	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	testclient "k8s.io/client-go/testing"

	"github.com/orlop-os/orlop/orchestrator/bootstrap"
)

// request returns the request of a pod for a certificate. The pod wants a validity of at most this
// number of seconds.
func request(t *testing.T, name string, key crypto.Signer, seconds int32) *certificates.PodCertificateRequest {
	t.Helper()
	stub, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	return &certificates.PodCertificateRequest{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
		Spec: certificates.PodCertificateRequestSpec{
			SignerName: bootstrap.PodSigner, PodName: "web", ServiceAccountName: "till", MaxExpirationSeconds: &seconds, StubPKCS10Request: stub,
		},
	}
}

func p256(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// TestSigner checks that a request gets a certificate that the published bundle verifies and that
// the validation of the API accepts. A request with annotations is denied. A request for another
// signer, or one that was denied before, does not change.
func TestSigner(t *testing.T) {
	_, edwards, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	day, short, other, done, annotated := request(t, "day", p256(t), 91*24*3600), request(t, "short", edwards, 3600), request(t, "other", p256(t), 3600),
		request(t, "done", p256(t), 3600), request(t, "annotated", p256(t), 3600)
	other.Spec.SignerName = "example.com/else"
	done.Status.Conditions = []metav1.Condition{{Type: certificates.PodCertificateRequestConditionTypeDenied, Status: metav1.ConditionTrue}}
	annotated.Spec.UnverifiedUserAnnotations = map[string]string{"example.com/name": "admin"}
	s, client := newTestSigner(day, short, other, done, annotated)
	detail, err := s.pass(t.Context())
	if want := "signs as orlop.dev/pods for spiffe://c, until 2026-05-30"; err != nil || detail != want {
		t.Fatalf("%q, %v; want %q", detail, err, want)
	}
	bundle, err := client.CertificatesV1().ClusterTrustBundles().Get(t.Context(), bootstrap.PodTrust, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM([]byte(bundle.Spec.TrustBundle))
	status := func(name string) certificates.PodCertificateRequestStatus {
		r, err := client.CertificatesV1().PodCertificateRequests("shop").Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return r.Status
	}
	for name, life := range map[string]time.Duration{"day": 24 * time.Hour, "short": time.Hour} {
		got := status(name)
		block, rest := pem.Decode([]byte(got.CertificateChain))
		if block == nil || len(rest) > 0 || got.Conditions[0].Type != certificates.PodCertificateRequestConditionTypeIssued {
			t.Fatalf("%s: %+v", name, got)
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		if len(cert.URIs) != 1 || cert.URIs[0].String() != "spiffe://c/ns/shop/sa/till" || cert.IsCA || len(cert.DNSNames) > 0 || cert.Subject.String() != "" {
			t.Errorf("%s: the certificate identifies %v, %s", name, cert.URIs, cert.Subject)
		}
		for _, use := range []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth} {
			if _, err := cert.Verify(x509.VerifyOptions{Roots: trusted, CurrentTime: begin, KeyUsages: []x509.ExtKeyUsage{use}}); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		// These are rules of upstream's validation (pkg/apis/certificates/validation).
		if !got.NotBefore.Time.Equal(cert.NotBefore) || !got.NotAfter.Time.Equal(cert.NotAfter) || cert.NotAfter.Sub(cert.NotBefore) != life ||
			!got.BeginRefreshAt.Time.Equal(cert.NotBefore.Add(life/2)) {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if got := status("annotated"); got.Conditions[0].Type != certificates.PodCertificateRequestConditionTypeDenied || got.CertificateChain != "" ||
		!strings.Contains(got.Conditions[0].Message, "userAnnotations example.com/name: orlop.dev/pods supports none") {
		t.Errorf("a request with annotations: %+v, want denied", got)
	}
	if got := status("other"); len(got.Conditions) > 0 {
		t.Errorf("a request for another signer: %+v", got)
	}
	if got := status("done"); got.CertificateChain != "" {
		t.Errorf("a denied request: %+v", got)
	}

	// A process that starts later uses the same CA.
	after := newSigner("c", client, client)
	after.now = s.now
	if _, err := after.pass(t.Context()); err != nil || len(after.known) != 1 || !after.known[0].Key.Equal(s.known[0].Key) {
		t.Errorf("the next process uses another CA: %v, %v", after.known, err)
	}
}

// newTestSigner returns a signer and the fake API server that it uses. Both contain the requests.
func newTestSigner(requests ...*certificates.PodCertificateRequest) (*signer, *fake.Clientset) {
	client := fake.NewClientset()
	s := newSigner("c", client, client)
	s.now = func() time.Time { return begin }
	for _, r := range requests {
		if err := client.Tracker().Add(r); err != nil {
			panic(err)
		}
		if err := s.requests.GetStore().Add(r); err != nil {
			panic(err)
		}
	}
	return s, client
}

// TestFailures checks that a failed request does not block other requests, and that the signer does
// not overwrite a Secret that it cannot parse.
func TestFailures(t *testing.T) {
	bad, good := request(t, "bad", p256(t), 3600), request(t, "good", p256(t), 3600)
	bad.Spec.StubPKCS10Request = []byte("x")
	s, client := newTestSigner(bad, good)
	if _, err := s.pass(t.Context()); err == nil || !strings.Contains(err.Error(), "pod shop/web") {
		t.Errorf("%v", err)
	}
	if r, err := client.CertificatesV1().PodCertificateRequests("shop").Get(t.Context(), "good", metav1.GetOptions{}); err != nil || r.Status.CertificateChain == "" {
		t.Errorf("%+v, %v", r, err)
	}

	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: bootstrap.PodAuthorities, Namespace: metav1.NamespaceSystem}, Data: map[string][]byte{secretKey: []byte("x")}}
	damaged, client := newTestSigner()
	if err := client.Tracker().Add(secret); err != nil {
		t.Fatal(err)
	}
	if _, err := damaged.pass(t.Context()); err == nil || !strings.Contains(err.Error(), "delete it to create a new CA") {
		t.Errorf("%v", err)
	}
	for _, action := range client.Actions() {
		if action.GetVerb() != "get" {
			t.Errorf("the signer writes although its Secret is unreadable: %v", action)
		}
	}

	// The signer issues no certificates while it cannot publish the bundle, because no pod would
	// trust them.
	unpublished, client := newTestSigner(good)
	client.PrependReactor("create", "clustertrustbundles", func(testclient.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("no rights")
	})
	if _, err := unpublished.pass(context.Background()); err == nil || !strings.Contains(err.Error(), "ClusterTrustBundle orlop.dev:pods:trust: cannot write: no rights") {
		t.Errorf("%v", err)
	}
	if r, err := client.CertificatesV1().PodCertificateRequests("shop").Get(t.Context(), "good", metav1.GetOptions{}); err != nil || len(r.Status.Conditions) > 0 {
		t.Errorf("%+v, %v", r, err)
	}
}
