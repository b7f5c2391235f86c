package config

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
)

// MaxFrom is the maximum number of control-plane machines in a ticket.
const MaxFrom = 8

func (v machineValidator) join(path string, m *Machine) {
	j := m.Spec.Join
	if !j.Ticket.IsZero() {
		v.client(path+".ticket", &j.Ticket)
	} else if c := v.cluster; c == nil || !c.Spec.JoinRequests {
		v.on(path+".ticket", wrong{reason: "missing, and Cluster.spec.joinRequests is false", expected: "a ticket of `orlopctl nodes add`"})
	}
	if c := j.Ticket.Cert; !c.IsZero() && c.X509().Subject.CommonName != m.Metadata.Name && m.Metadata.Name != "" {
		v.on(path+".ticket.cert", wrong{
			reason:   fmt.Sprintf("the ticket is for %s, and the name of this machine is %s", quote(c.X509().Subject.CommonName), quote(m.Metadata.Name)),
			expected: "a ticket for this name",
		})
	}
	if len(j.From) == 0 || len(j.From) > MaxFrom {
		v.on(path+".from", wrong{reason: fmt.Sprintf("%d addresses", len(j.From)), expected: fmt.Sprintf("1 to %d", MaxFrom)})
	}
	for i, from := range j.From {
		at := fmt.Sprintf("%s.from[%d]", path, i)
		host := from
		if h, _, err := net.SplitHostPort(from); err == nil {
			host = h
		}
		if a, err := netip.ParseAddr(host); err != nil || !a.IsGlobalUnicast() || a.Zone() != "" {
			v.on(at, wrong{reason: quote(from) + " is not the address of a machine", expected: "an address such as 10.0.0.11"})
		}
		if slices.Contains(j.From[:i], from) {
			v.on(at, wrong{reason: fmt.Sprintf("%s is given twice", quote(from))})
		}
	}
}
