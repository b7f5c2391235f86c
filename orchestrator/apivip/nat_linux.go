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

// tableName is the table that is ours alone, of the family inet. It is there while this machine
// answers for an address.
const tableName = "orlop_virtual_address"

// before the service proxy's chains (dstnat, -100): no Service may take the address from the API
// server.
const before = -110

// redirect leads connections for an address of the API to the API server at an address of this
// machine.
type redirect struct{ from, to netip.Addr }

// writeRedirects has the kernel make these redirects and no others, all at once, in the network
// namespace of the calling thread.
func writeRedirects(all []redirect) error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("nftables: cannot connect: %w", err)
	}
	table := &nftables.Table{Name: tableName, Family: nftables.TableFamilyINet}
	conn.AddTable(table) // or there may be nothing to delete
	conn.DelTable(table)
	if len(all) > 0 {
		conn.AddTable(table)
		// What comes from the network and from pods is in prerouting, what this machine's own
		// programs send in output.
		for name, hook := range map[string]*nftables.ChainHook{"incoming": nftables.ChainHookPrerouting, "own": nftables.ChainHookOutput} {
			chain := conn.AddChain(&nftables.Chain{
				Name: name, Table: table, Type: nftables.ChainTypeNAT, Hooknum: hook, Priority: nftables.ChainPriorityRef(before),
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

// expressions are the rule: tcp to the address at the API's port, dnat.
func (r redirect) expressions() []expr.Any {
	// of the destination: RFC 791, section 3.1
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

// misled are connections to an address of the API that the kernel leads elsewhere than it would
// lead new ones: where this machine answers (here) those that do not come to its own API server,
// else those that do.
type misled struct {
	redirect
	here bool
}

// MatchConntrackFlow is netlink's.
func (m misled) MatchConntrackFlow(f *netlink.ConntrackFlow) bool {
	if f.Forward.Protocol != unix.IPPROTO_TCP || f.Forward.DstPort != paths.PortKubernetes {
		return false
	}
	asked, _ := netip.AddrFromSlice(f.Forward.DstIP)
	answers, _ := netip.AddrFromSlice(f.Reverse.SrcIP)
	return asked.Unmap() == m.from && (answers.Unmap() == m.to) != m.here
}

// forget drops what the kernel knows of connections that it misleads. It has decided about each
// once, and would go on so: their next packets are decided about anew, and reach a server that does
// not know them and says so. Else clients on this machine, whose packets nobody else's network card
// would answer, would wait for a server that is gone. Others stay: somebody may have connected
// since the address moved, and answers to a connection that the kernel has forgotten leave by
// another address than he asks at.
func forget(m misled) error {
	family := netlink.InetFamily(unix.AF_INET)
	if m.from.Is6() {
		family = unix.AF_INET6
	}
	if _, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, family, m); err != nil {
		return fmt.Errorf("connections to %s: the kernel cannot forget: %w", m.from, err)
	}
	return nil
}
