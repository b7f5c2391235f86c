package api

import (
	"cmp"
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/pki"
)

// The keys of the metadata. The values are printable ASCII of at most 128 bytes.
const (
	MetadataSubject     = "orlop-subject"
	MetadataName        = "orlop-name"
	MetadataRole        = "orlop-role"
	MetadataSerial      = "orlop-serial"
	MetadataLineage     = "orlop-lineage"
	MetadataIssuer      = "orlop-issuer"
	MetadataTicket      = "orlop-ticket"
	MetadataFingerprint = "orlop-key"
	MetadataPeer        = "orlop-peer"
	MetadataAge         = "orlop-age"
)

// Caller is the caller of a method, as apid has authenticated it. apid reads it from the client's
// certificate and sends it to machined as metadata of the call, in place of the client's own
// metadata. A field is empty if apid does not know it.
type Caller struct {
	Subject string // subject of the certificate in the form of RFC 2253: "CN=alice,O=orlop:admin"
	Name    string // common name of the certificate
	Role    string // "machine", "join", or a role of pki.Roles
	Serial  string // serial number of the certificate, hexadecimal
	// serial number of the first certificate of the lineage (pki.LineageOf); equal to Serial before
	// the first renewal
	Lineage string
	// fingerprint (pki.Fingerprint) of the CA of the first certificate of the lineage
	Issuer string
	// serial number of the ticket with which a machine joined (pki.TicketOf); empty for all other
	// callers
	Ticket string
	Key    string // fingerprint of the certificate's key (pki.Fingerprint)
	Peer   string // source address and port
	Age    string // age of the connection at the start of the call, in milliseconds
}

// Metadata returns the metadata with which apid sends the caller.
func (c Caller) Metadata() metadata.MD {
	return metadata.Pairs(
		MetadataSubject, c.Subject,
		MetadataName, c.Name,
		MetadataRole, c.Role,
		MetadataSerial, c.Serial,
		MetadataLineage, c.Lineage,
		MetadataIssuer, c.Issuer,
		MetadataTicket, c.Ticket,
		MetadataFingerprint, c.Key,
		MetadataPeer, c.Peer,
		MetadataAge, c.Age,
	)
}

// CallerFromContext returns the caller of a call from its metadata.
func CallerFromContext(ctx context.Context) Caller {
	md, _ := metadata.FromIncomingContext(ctx)
	get := func(key string) string {
		if v := md.Get(key); len(v) == 1 {
			return v[0]
		}
		return ""
	}
	return Caller{
		Subject: get(MetadataSubject), Name: get(MetadataName), Role: get(MetadataRole), Serial: get(MetadataSerial), Lineage: get(MetadataLineage),
		Issuer: get(MetadataIssuer), Ticket: get(MetadataTicket), Key: get(MetadataFingerprint), Peer: get(MetadataPeer), Age: get(MetadataAge),
	}
}

// String returns the subject and the source address, for events.
func (c Caller) String() string {
	if c.Peer == "" {
		return c.Subject
	}
	return c.Subject + " from " + c.Peer
}

// ID returns an ID that is the same for all certificates of the calling machine: its ticket, or,
// for a control-plane machine, its name.
func (c Caller) ID() string { return cmp.Or(c.Ticket, c.Name) }

// IsAdmin reports whether the caller has the role admin.
func (c Caller) IsAdmin() bool { return pki.RolePrefix+c.Role == pki.RoleAdmin }

// RequireMachine rejects every caller that is not a machine of the cluster. It also rejects users,
// regardless of their role.
func (c Caller) RequireMachine() error {
	if pki.RolePrefix+c.Role != pki.RoleMachine {
		return status.Error(codes.PermissionDenied, "only machines of the cluster can make this call")
	}
	return nil
}

// RequireControlPlane rejects every caller but the control-plane machines of the cluster. The
// certificates of workers are from the same CA, but they name the ticket of the worker
// (Caller.Ticket). Only two CAs can issue a machine certificate without a ticket: the machine CA,
// whose key only control-plane machines have, and an operator CA. The holder of an operator CA can
// also issue an admin certificate, so this call gives such a holder no new right.
func (c Caller) RequireControlPlane() error {
	if c.RequireMachine() != nil || c.Ticket != "" {
		return status.Error(codes.PermissionDenied, "only control-plane machines can make this call")
	}
	return nil
}
