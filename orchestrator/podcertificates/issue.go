package podcertificates

import (
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	certificates "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/orlop-os/orlop/orchestrator/bootstrap"
	"github.com/orlop-os/orlop/pkg/pki"
)

// maxTTL is the longest validity of a pod's certificate. A pod may request a shorter validity; the
// API requires at least an hour.
const maxTTL = 24 * time.Hour

// identity returns the SPIFFE ID of a service account.
func identity(cluster, namespace, account string) *url.URL {
	return &url.URL{Scheme: "spiffe", Host: cluster, Path: "/ns/" + namespace + "/sa/" + account}
}

// answer returns the new status of a request: issued with a certificate, or denied with a reason.
// It returns an error if it cannot parse the key of the request or cannot sign.
func answer(ca *pki.CA, cluster string, r *certificates.PodCertificateRequest, now time.Time) (certificates.PodCertificateRequestStatus, error) {
	condition := metav1.Condition{Status: metav1.ConditionTrue, LastTransitionTime: metav1.NewTime(now)}
	if unknown := r.Spec.UnverifiedUserAnnotations; len(unknown) > 0 {
		condition.Type, condition.Reason = certificates.PodCertificateRequestConditionTypeDenied, certificates.PodCertificateRequestConditionInvalidUserConfig
		condition.Message = fmt.Sprintf("userAnnotations %s: %s supports none: a certificate contains only the cluster's data about the pod; remove them",
			strings.Join(slices.Sorted(maps.Keys(unknown)), ", "), bootstrap.PodSigner)
		return certificates.PodCertificateRequestStatus{Conditions: []metav1.Condition{condition}}, nil
	}
	key, err := keyOf(r)
	if err != nil {
		return certificates.PodCertificateRequestStatus{}, err
	}
	cert, err := issue(ca, cluster, r, key, now)
	if err != nil {
		return certificates.PodCertificateRequestStatus{}, err
	}
	condition.Type, condition.Reason = certificates.PodCertificateRequestConditionTypeIssued, "Issued"
	condition.Message = "for " + cert.URIs[0].String()
	at := func(t time.Time) *metav1.Time { return new(metav1.NewTime(t)) }
	return certificates.PodCertificateRequestStatus{
		Conditions:       []metav1.Condition{condition},
		CertificateChain: string(pki.EncodeCert(cert)),
		NotBefore:        at(cert.NotBefore),
		NotAfter:         at(cert.NotAfter),
		BeginRefreshAt:   at(cert.NotBefore.Add(cert.NotAfter.Sub(cert.NotBefore) / 2)),
	}, nil
}

// answered reports whether a request is issued or denied already.
func answered(r *certificates.PodCertificateRequest) bool { return len(r.Status.Conditions) > 0 }

// keyOf returns the public key of the request. The API server has verified that the kubelet has the
// private key.
func keyOf(r *certificates.PodCertificateRequest) (crypto.PublicKey, error) {
	stub, err := x509.ParseCertificateRequest(r.Spec.StubPKCS10Request)
	if err != nil {
		return nil, err
	}
	return stub.PublicKey, nil
}

// issue signs a certificate for the service account of the request. The validity begins now,
// because the API server accepts a difference of at most five minutes.
func issue(ca *pki.CA, cluster string, r *certificates.PodCertificateRequest, key crypto.PublicKey, now time.Time) (*x509.Certificate, error) {
	now = now.UTC().Truncate(time.Second) // certificates have a precision of a second
	life := maxTTL
	if most := r.Spec.MaxExpirationSeconds; most != nil {
		life = min(life, time.Duration(*most)*time.Second)
	}
	end := now.Add(life)
	if end.After(ca.Cert.NotAfter) {
		end = ca.Cert.NotAfter
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		NotBefore:             now,
		NotAfter:              end,
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
		URIs:                  []*url.URL{identity(cluster, r.Namespace, r.Spec.ServiceAccountName)},
	}, ca.Cert, key, ca.Key)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}
