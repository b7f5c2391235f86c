package network

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/jsimonetti/rtnetlink/v2"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// frActToTable is FR_ACT_TO_TBL of include/uapi/linux/fib_rules.h.
const frActToTable = 1

func ruleMessage(r Rule) *rtnetlink.RuleMessage {
	a := &rtnetlink.RuleAttributes{Priority: &r.Priority, Table: &r.Table, Protocol: new(uint8(Protocol))}
	m := &rtnetlink.RuleMessage{Family: unix.AF_INET, Action: frActToTable, Attributes: a}
	if r.IPv6 {
		m.Family = unix.AF_INET6
	}
	if r.From.IsValid() {
		m.SrcLength, a.Src = uint8(r.From.Bits()), new(net.IP(r.From.Addr().AsSlice()))
	}
	if r.To.IsValid() {
		m.DstLength, a.Dst = uint8(r.To.Bits()), new(net.IP(r.To.Addr().AsSlice()))
	}
	if r.Incoming != "" {
		a.IIFName = &r.Incoming
	}
	if r.Mark != 0 {
		a.FwMark, a.FwMask = &r.Mark, new(^uint32(0))
	}
	return m
}

// addRule adds a rule, unless readRules returns an equal rule. The flag NLM_F_EXCL alone does not
// prevent every second copy, because the kernel also compares attributes that only the kernel sets.
// If it does report EEXIST, the equal rule is that of another component.
func (k *Kernel) addRule(r Rule) error {
	have, err := k.readRules()
	if err != nil || slices.Contains(have, r) {
		return err
	}
	if err := k.route.Rule.Add(ruleMessage(r)); !errors.Is(err, unix.EEXIST) {
		return err
	}
	return fmt.Errorf("another component has this rule: %w", unix.EEXIST)
}

// readRules returns the rules of this package: those with the protocol number Protocol
// (FRA_PROTOCOL). This number is not the firewall mark of a rule.
func (k *Kernel) readRules() (out []Rule, err error) {
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		answers, err := k.addr.Execute(netlink.Message{
			Header: netlink.Header{Type: unix.RTM_GETRULE, Flags: netlink.Request | netlink.Dump},
			Data:   append([]byte{family}, make([]byte, ruleHeader-1)...),
		})
		if err != nil {
			return nil, fmt.Errorf("rules: cannot list: %w", err)
		}
		for _, a := range answers {
			r, own, err := decodeRule(a.Data)
			if err != nil {
				return nil, fmt.Errorf("rules: cannot list: %w", err)
			}
			if own && r.IPv6 == (family == unix.AF_INET6) {
				out = append(out, r)
			}
		}
	}
	return out, nil
}

// ruleHeader is the size in bytes of struct fib_rule_hdr (include/uapi/linux/fib_rules.h).
const ruleHeader = 12

// decodeRule decodes the message of a rule. own is true if the rule has the protocol
// number Protocol. For another rule, decodeRule reads only FRA_PROTOCOL and returns an empty rule:
// the library rejects a rule with an attribute that the library does not know
// (findings/rtnetlink-rules.sh).
func decodeRule(b []byte) (r Rule, own bool, err error) {
	if len(b) < ruleHeader {
		return Rule{}, false, fmt.Errorf("message has %d bytes, at least %d expected", len(b), ruleHeader)
	}
	family := b[0]
	if family != unix.AF_INET && family != unix.AF_INET6 {
		return Rule{}, false, nil
	}
	ad, err := netlink.NewAttributeDecoder(b[ruleHeader:])
	if err != nil {
		return Rule{}, false, err
	}
	for ad.Next() {
		if ad.Type() == unix.FRA_PROTOCOL {
			own = ad.Uint8() == Protocol
		}
	}
	if err := ad.Err(); err != nil || !own {
		return Rule{}, false, err
	}
	var m rtnetlink.RuleMessage
	if err := m.UnmarshalBinary(b); err != nil {
		return Rule{}, false, err
	}
	return Rule{
		IPv6: family == unix.AF_INET6, Priority: value(m.Attributes.Priority), Incoming: value(m.Attributes.IIFName),
		Mark: value(m.Attributes.FwMark), Table: value(m.Attributes.Table),
		From: prefix(m.Attributes.Src, m.SrcLength), To: prefix(m.Attributes.Dst, m.DstLength),
	}, true, nil
}

func prefix(ip *net.IP, bits uint8) netip.Prefix {
	if ip == nil {
		return netip.Prefix{}
	}
	return netip.PrefixFrom(toAddr(*ip), int(bits))
}
