package apivip

import (
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/pkg/paths"
)

// tableName is a table of this package only, of the family inet. It exists while this machine holds
// an address.
const tableName = "orlop_virtual_address"

// priority is before the chains of the service proxy (dstnat, -100): so no Service can redirect the
// connections to the address.
const priority = -110

// redirect is the redirection of connections from an address of the API to the API server at an
// address of this machine.
type redirect struct{ from, to netip.Addr }

// writeRedirects replaces all redirects in the kernel atomically, in the network namespace of the
// calling thread.
func writeRedirects(all []redirect) error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("nftables: cannot connect: %w", err)
	}
	table := &nftables.Table{Name: tableName, Family: nftables.TableFamilyINet}
	conn.AddTable(table) // the deletion needs an existing table
	conn.DelTable(table)
	if len(all) > 0 {
		conn.AddTable(table)
		// Packets from the network and from pods pass prerouting; packets of this machine's own
		// programs pass output.
		for name, hook := range map[string]*nftables.ChainHook{"incoming": nftables.ChainHookPrerouting, "own": nftables.ChainHookOutput} {
			chain := conn.AddChain(&nftables.Chain{
				Name: name, Table: table, Type: nftables.ChainTypeNAT, Hooknum: hook, Priority: nftables.ChainPriorityRef(priority),
			})
			for _, r := range all {
				conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: r.expressions()})
			}
		}
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("nftables table %s: cannot write: %w", tableName, err)
	}
	return nil
}

// expressions returns the rule: TCP to the address at the API's port is translated.
func (r redirect) expressions() []expr.Any {
	// offset of the destination address in the header: RFC 791, section 3.1
	family, offset := byte(unix.NFPROTO_IPV4), uint32(16)
	if r.from.Is6() {
		family, offset = unix.NFPROTO_IPV6, 24 // RFC 8200, section 3
	}
	port := binaryutil.BigEndian.PutUint16(paths.PortKubernetes)
	const first, second = unix.NFT_REG_1, unix.NFT_REG_2
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: first},
		&expr.Cmp{Op: expr.CmpOpEq, Register: first, Data: []byte{family}},
		&expr.Payload{DestRegister: first, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: uint32(r.from.BitLen() / 8)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: first, Data: r.from.AsSlice()},
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: first},
		&expr.Cmp{Op: expr.CmpOpEq, Register: first, Data: []byte{unix.IPPROTO_TCP}},
		&expr.Payload{DestRegister: first, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: first, Data: port},
		&expr.Immediate{Register: first, Data: r.to.AsSlice()},
		&expr.Immediate{Register: second, Data: port},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(family), RegAddrMin: first, RegProtoMin: second},
	}
}

// staleFlows selects tracked connections to an address of the API that go to an outdated
// destination. If this machine holds the address (here), these are the connections that do not go
// to its own API server; if another machine holds it, the connections that do.
type staleFlows struct {
	redirect
	here bool
}

// MatchConntrackFlow implements netlink.CustomConntrackFilter.
func (m staleFlows) MatchConntrackFlow(f *netlink.ConntrackFlow) bool {
	if f.Forward.Protocol != unix.IPPROTO_TCP || f.Forward.DstPort != paths.PortKubernetes {
		return false
	}
	asked, _ := netip.AddrFromSlice(f.Forward.DstIP)
	answers, _ := netip.AddrFromSlice(f.Reverse.SrcIP)
	return asked.Unmap() == m.from && (answers.Unmap() == m.to) != m.here
}

// dropFlows deletes stale connections from the kernel's connection tracking. The kernel chooses the
// destination of a connection at its first packet only. After the deletion it chooses again at the
// next packet, and the new server rejects the unknown connection. Without the deletion, clients on
// this machine would wait for a server that is gone, because no other machine sees their packets.
// Connections that are not stale stay: they may be newer than the move of the address, and without
// an entry their answers would leave from another address than the client expects.
func dropFlows(m staleFlows) error {
	family := netlink.InetFamily(unix.AF_INET)
	if m.from.Is6() {
		family = unix.AF_INET6
	}
	if _, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, family, m); err != nil {
		return fmt.Errorf("connections to %s: cannot delete from connection tracking: %w", m.from, err)
	}
	return nil
}
