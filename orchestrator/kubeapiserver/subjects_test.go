package kubeapiserver

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/kubernetes/pkg/apis/certificates"
)

// TestSystemSubjects checks that an administrator cannot request a certificate for an identity of
// the system. The plugin accepts all other requests.
func TestSystemSubjects(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	request := func(name string, groups ...string) []byte {
		der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: name, Organization: groups}}, key)
		if err != nil {
			t.Fatal(err)
		}
		return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
	}
	const client = certificates.KubeAPIServerClientSignerName
	for _, c := range []struct {
		name, signer, subresource string
		request                   []byte
		ok                        bool
	}{
		{"a user", client, "", request("dora", "developers"), true},
		{"another admin", client, "", request("erin", "orlop:cluster-admins"), true},
		{"the controller of add-ons", client, "", request("orlop:addons"), false},
		{"the controllers", client, "", request("system:kube-controller-manager"), false},
		{"a controller", client, "", request("system:serviceaccount:kube-system:node-controller"), false},
		{"a kubelet", client, "", request("w1", "developers", "system:nodes"), false},
		{"a node agent", client, "", request("w1", "orlop:node-agents"), false},
		{"the controller of add-ons, by the legacy signer", certificates.LegacyUnknownSignerName, "", request("orlop:addons"), false},
		{"a kubelet, by the signer of kubelets", certificates.KubeAPIServerClientKubeletSignerName, "", request("system:node:w1", "system:nodes"), true},
		{"a kubelet's server, by the signer of its certificates", certificates.KubeletServingSignerName, "", request("system:node:w1", "system:nodes"), true},
		{"a signer of a site", "example.com/mesh", "", request("system:mesh"), true},
		{"not a certificate request", client, "", []byte("x"), false},
		{"an approval", client, "approval", request("orlop:addons"), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			object := &certificates.CertificateSigningRequest{Spec: certificates.CertificateSigningRequestSpec{SignerName: c.signer, Request: c.request}}
			a := admission.NewAttributesRecord(object, nil, schema.GroupVersionKind{}, "", "x", certificates.Resource("certificatesigningrequests").WithVersion("v1"), c.subresource,
				admission.Create, nil, false, &user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup}})
			if err := (systemSubjects{}).Validate(t.Context(), a, nil); (err == nil) != c.ok {
				t.Errorf("%v, want acceptance: %t", err, c.ok)
			}
		})
	}
}
