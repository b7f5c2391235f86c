package dhcp6

import (
	"encoding/hex"
	"hash/fnv"
	"net"
	"net/netip"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/iana"
	"github.com/insomniacslk/dhcp/rfc1035label"
)

// Ports of RFC 8415 section 7.2.
const (
	clientPort = 546
	serverPort = 547
)

// maxMessage is the maximum size of a received message, in bytes. The socket truncates a larger
// message, and parse then rejects it.
const maxMessage = 4096

// wanted is the option request option (RFC 8415 section 21.7): the options that the client
// requests.
var wanted = []dhcpv6.OptionCode{
	dhcpv6.OptionDNSRecursiveNameServer,
	dhcpv6.OptionDomainSearchList,
	dhcpv6.OptionNTPServer,
	dhcpv6.OptionSNTPServerList,
	dhcpv6.OptionSolMaxRT,
	dhcpv6.OptionInformationRefreshTime,
}

// DUID returns the DUID for a MAC, which identifies a machine to servers. The type is DUID-LL (RFC
// 8415 section 11.4), because an operator can derive it from the MAC before the first boot.
func DUID(mac net.HardwareAddr) []byte {
	return dhcpv6.DUIDLL{HWType: iana.HWTypeEthernet, LinkLayerAddr: mac}.ToBytes()
}

// IAID returns the identifier of the identity associations of a link, from the key of the link. The
// identifier is the same after each boot.
func IAID(key string) (out [4]byte) {
	h := fnv.New32a()
	h.Write([]byte(key))
	return [4]byte(h.Sum(nil))
}

// kinds has the message types of the client's messages.
var kinds = map[MessageKind]dhcpv6.MessageType{
	Solicit: dhcpv6.MessageTypeSolicit, Request: dhcpv6.MessageTypeRequest, Confirm: dhcpv6.MessageTypeConfirm,
	Renew: dhcpv6.MessageTypeRenew, Rebind: dhcpv6.MessageTypeRebind, ReleaseMessage: dhcpv6.MessageTypeRelease,
	Decline: dhcpv6.MessageTypeDecline, InformationRequest: dhcpv6.MessageTypeInformationRequest,
}

// encode returns the packet for a message.
func encode(m Message, self identity, hostname string) []byte {
	p := dhcpv6.Message{MessageType: kinds[m.Kind], TransactionID: dhcpv6.TransactionID{byte(m.XID >> 16), byte(m.XID >> 8), byte(m.XID)}}
	p.AddOption(&dhcpv6.OptionGeneric{OptionCode: dhcpv6.OptionClientID, OptionData: self.duid})
	if server, err := hex.DecodeString(m.Server); err == nil && len(server) > 0 {
		p.AddOption(&dhcpv6.OptionGeneric{OptionCode: dhcpv6.OptionServerID, OptionData: server})
	}
	p.AddOption(dhcpv6.OptElapsedTime(min(m.Elapsed, 655350*time.Millisecond)))
	switch m.Kind {
	case Decline, ReleaseMessage, Confirm:
	default:
		p.AddOption(dhcpv6.OptRequestedOption(wanted...))
		if hostname != "" {
			// Flag S requests that the server creates the DNS entries (RFC 4704 section 4.1).
			p.AddOption(&dhcpv6.OptFQDN{Flags: 1, DomainName: &rfc1035label.Labels{Labels: []string{hostname}}})
		}
	}
	if m.Kind == Solicit {
		p.AddOption(&dhcpv6.OptionGeneric{OptionCode: dhcpv6.OptionRapidCommit})
	}
	if m.Kind != InformationRequest {
		addAssociations(&p, m, self)
	}
	return p.ToBytes()
}

// addAssociations adds the identity associations that the mode of a message requests, with the
// addresses and prefixes of the lease. It sets their lifetimes to 0, because the server chooses the
// lifetimes (RFC 8415 section 18.2).
func addAssociations(p *dhcpv6.Message, m Message, self identity) {
	l := m.Lease
	if l == nil {
		l = &Lease{}
	}
	request := m.Kind != Decline && m.Kind != ReleaseMessage
	if m.Mode.Addresses && (request || len(l.Addresses) > 0) {
		ia := &dhcpv6.OptIANA{IaId: self.iaid}
		for _, a := range l.Addresses {
			ia.Options.Add(&dhcpv6.OptIAAddress{IPv6Addr: a.Addr.AsSlice()})
		}
		p.AddOption(ia)
	}
	if m.Mode.Prefix != 0 && m.Kind != Confirm && (request || len(l.Prefixes) > 0) {
		ia := &dhcpv6.OptIAPD{IaId: self.iaid}
		for _, d := range l.Prefixes {
			ia.Options.Add(prefixOption(d.Prefix))
		}
		if len(l.Prefixes) == 0 { // a hint for the length of the prefix (RFC 8168 section 3.1)
			ia.Options.Add(prefixOption(netip.PrefixFrom(netip.IPv6Unspecified(), m.Mode.Prefix)))
		}
		p.AddOption(ia)
	}
}

func prefixOption(p netip.Prefix) *dhcpv6.OptIAPrefix {
	return &dhcpv6.OptIAPrefix{Prefix: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), 128)}}
}
