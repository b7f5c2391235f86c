package credentials

import (
	"bytes"
	"crypto/x509"
	"io/fs"
	"net/netip"
	"slices"
	"time"

	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/reconcile"
)

// Have is the actual state of the machine: the files by path, limited to the paths in Want.
type Have struct {
	Dirs   map[string]Owner
	Files  map[string]Found
	Strays []string // files that match a pattern of Want.Strays
	Now    time.Time
}

// Owner is the owner and mode of a file or directory.
type Owner struct {
	UID  uint32
	Mode fs.FileMode
}

// Found is an existing file.
type Found struct {
	Owner
	Content []byte
}

// Diff returns the operations that turn have into want. It is pure: the operation issues the
// certificate.
func Diff(have Have, want Want) []reconcile.Op {
	var ops []reconcile.Op
	for _, f := range want.Dirs {
		if o, ok := have.Dirs[f.Path]; !ok || o.UID != f.UID || o.Mode.Perm() != f.mode() {
			ops = append(ops, makeDir{f})
		}
	}
	for _, f := range want.Files {
		have, ok := have.Files[f.Path]
		if !ok || have.UID != f.UID || have.Mode.Perm() != f.Mode || !bytes.Equal(have.Content, f.Content) {
			ops = append(ops, writeFile{f})
		}
	}
	for _, l := range want.Leaves {
		if why := leafProblem(have, l); why != "" {
			ops = append(ops, issue{l, why})
		}
	}
	for _, path := range have.Strays {
		if !slices.ContainsFunc(want.Files, func(f File) bool { return f.Path == path }) {
			ops = append(ops, removeFile{path})
		}
	}
	return ops
}

// leafProblem returns the reason to issue a leaf, or an empty string.
func leafProblem(have Have, want Leaf) string {
	cert, okCert := have.Files[want.Cert]
	key, okKey := have.Files[want.Key]
	if !okCert || !okKey {
		return "missing"
	}
	if cert.UID != want.UID || key.UID != want.UID || key.Mode.Perm() != 0o400 {
		return "wrong owner or mode"
	}
	leaf, err := pki.ParseLeaf(cert.Content, key.Content)
	if err != nil {
		return "unreadable" // also the result of a power cut between writing key and certificate
	}
	switch c := leaf.Cert; {
	case want.By == nil && !selfSigned(c),
		want.By != nil && c.CheckSignatureFrom(want.By.Cert) != nil:
		return "issued by another CA"
	case want.Spec.Key != nil && !want.Spec.Key.Equal(leaf.Key):
		return "other key"
	case c.Subject.CommonName != want.Spec.CN || !slices.Equal(c.Subject.Organization, want.Spec.O):
		return "other subject"
	case !sameNames(c, want.Spec):
		return "other names or addresses"
	case pki.NeedsRenewal(c, have.Now):
		return "due for renewal"
	}
	return ""
}

// selfSigned reports whether a leaf is signed by its own key. (CheckSignatureFrom requires a CA as
// the issuer.)
func selfSigned(c *x509.Certificate) bool {
	return c.CheckSignature(c.SignatureAlgorithm, c.RawTBSCertificate, c.Signature) == nil
}

func sameNames(c *x509.Certificate, spec pki.Spec) bool {
	var ips []netip.Addr
	for _, ip := range c.IPAddresses {
		a, _ := netip.AddrFromSlice(ip)
		ips = append(ips, a.Unmap())
	}
	return slices.Equal(c.DNSNames, spec.DNS) && slices.Equal(ips, spec.IPs)
}
