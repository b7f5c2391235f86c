package membership

import (
	"cmp"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/pki"
)

// Caller is the caller of a method, as apid has authenticated it. A field is empty if apid does not
// know it.
type Caller struct {
	Subject string // subject of the certificate
	Name    string // common name of the certificate
	Role    string // "machine", "join", or a role of pki.Roles
	Serial  string // serial number of the certificate, hexadecimal
	Lineage string // serial number of the first certificate of the lineage
	Issuer  string // fingerprint of the CA of the lineage
	Ticket  string // ticket of a member's certificate
	Key     string // fingerprint of the certificate's key
	Peer    string // source address and port
}

// ID returns an ID of the calling machine that is the same for all its certificates: its ticket, or
// its name if it is a control-plane machine.
func (c Caller) ID() string { return cmp.Or(c.Ticket, c.Name) }

// RequireMachine rejects every caller that is not a machine of the cluster. It also rejects users,
// regardless of their role.
func (c Caller) RequireMachine() error {
	if pki.RolePrefix+c.Role != pki.RoleMachine {
		return status.Error(codes.PermissionDenied, "only machines of the cluster can make this call")
	}
	return nil
}

// requireControlPlane rejects every caller but the control-plane machines of the cluster. Workers
// have certificates of the same CA, but with the name of their ticket. A machine certificate
// without a ticket can come from two sources: the key of the machine CA, which the control-plane
// machines have, or an operator CA. The holder of an operator CA can issue an admin certificate as
// well, and so gains no right here.
func (c Caller) requireControlPlane() error {
	if c.RequireMachine() != nil || c.Ticket != "" {
		return status.Error(codes.PermissionDenied, "only control-plane machines can make this call")
	}
	return nil
}
