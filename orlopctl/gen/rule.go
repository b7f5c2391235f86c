package gen

import (
	"bytes"
	"fmt"
	"regexp"
	"time"

	"github.com/orlop-os/orlop/pkg/admission/claim"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/strictyaml"
)

// objectName matches the name of an object of Kubernetes (RFC 1123).
var objectName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$`)

// CheckObjectName returns an error for a text that is no name of an object of Kubernetes.
func CheckObjectName(name string) error {
	if !objectName.MatchString(name) {
		return fmt.Errorf("name %.80q: cannot use: expected 1 to 253 lowercase letters, digits, dashes and dots", name)
	}
	return nil
}

// ParseMachines parses the list of machines of an approval rule, in YAML. An empty list is an
// error.
func ParseMachines(text []byte) ([]claim.Identity, error) {
	var all []claim.Identity
	err := strictyaml.Decode(text, &all)
	if err == nil && len(all) == 0 {
		err = fmt.Errorf("is empty; expected a list, for example `- serial: ABC123` and `- uuid: 4c4c4544-…`")
	}
	return all, err
}

// SignRule returns the OrlopApprovalRule with a signed rule, in YAML. The operator's CA issues a
// certificate for this signature only. The certificate expires with the rule, and its key is
// dropped.
func SignRule(ca *pki.CA, name string, r claim.Rule, now time.Time) ([]byte, error) {
	signer, err := IssueClient(ca, "rule "+name, []string{pki.RoleAdmin}, r.Expires.Sub(now)+time.Minute)
	if err != nil {
		return nil, err
	}
	s, err := claim.SignRule(r, signer, now)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	fmt.Fprintf(&out, "apiVersion: infrastructure.cluster.x-k8s.io/v1alpha1\nkind: OrlopApprovalRule\nmetadata: {name: %q, namespace: orlop-machines}\nspec:\n", name)
	literal(&out, "  ", "rule", s.Text)
	literal(&out, "  ", "signature", s.Signature)
	return out.Bytes(), nil
}
