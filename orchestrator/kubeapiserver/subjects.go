package kubeapiserver

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/admission"
	"k8s.io/kubernetes/pkg/apis/certificates"

	"github.com/orlop-os/orlop/pkg/nodespec"
)

// SystemSubjects is the admission plugin that rejects requests for certificates of the system's
// identities, because policies do not apply to these identities. machined issues their
// certificates, without a request. The sealed policy of the system enables the plugin, because an
// expression of a policy cannot read the subject of a request.
const SystemSubjects = "OrlopSystemSubjects"

type systemSubjects struct{ *admission.Handler }

// Validate implements admission.ValidationInterface. It checks no request for two groups of
// signers: the signers of kubelets check the subject themselves, and the signers of other projects
// have CAs of their own.
func (systemSubjects) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	request, is := a.GetObject().(*certificates.CertificateSigningRequest)
	if !is || a.GetSubresource() != "" || !strings.HasPrefix(request.Spec.SignerName, "kubernetes.io/") ||
		slices.Contains([]string{certificates.KubeAPIServerClientKubeletSignerName, certificates.KubeletServingSignerName}, request.Spec.SignerName) {
		return nil
	}
	parsed, err := certificates.ParseCSR(request.Spec.Request)
	if err != nil {
		return admission.NewForbidden(a, err)
	}
	if name := parsed.Subject.CommonName; strings.HasPrefix(name, "system:") || strings.HasPrefix(name, "orlop:") {
		return admission.NewForbidden(a, fmt.Errorf("the user %s belongs to the system; use another common name", name))
	}
	for _, group := range parsed.Subject.Organization {
		if strings.HasPrefix(group, "system:") || group == nodespec.NodeAgentGroup {
			return admission.NewForbidden(a, fmt.Errorf("the group %s belongs to the system; use another organization", group))
		}
	}
	return nil
}
