package bgp

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// tableName is a table of this package only, of the family inet. It exists while this machine
// announces an address.
const tableName = "orlop_bgp"

const (
	// chunkSize is the number of elements in one message: an attribute has at most 64 KiB, and an
	// element 28 bytes.
	chunkSize = 1000
	// bufferSize is the size in bytes of the socket's buffers, for all messages of a change and the
	// kernel's answers. It is sufficient for 100,000 addresses.
	bufferSize = 4 << 20
	// timeout bounds the kernel's answer.
	timeout = 30 * time.Second
)

// closeAddresses makes the kernel drop packets to announced addresses instead of forwarding them,
// in the network namespace of the calling thread. The service proxy and package apivip translate
// the packets to the ports in use before the kernel forwards them. Without the rule, a packet to
// another port would return to the router by the default route, and go in circles.
func closeAddresses(routes []netip.Prefix) error {
	conn, err := nftables.New(nftables.WithSockOptions(func(c *netlink.Conn) error {
		return errors.Join(c.SetReadBuffer(bufferSize), c.SetWriteBuffer(bufferSize), c.SetDeadline(time.Now().Add(timeout)))
	}))
	if err != nil {
		return fmt.Errorf("nftables: cannot connect: %w", err)
	}
	table := &nftables.Table{Name: tableName, Family: nftables.TableFamilyINet}
	conn.AddTable(table) // the deletion needs an existing table
	conn.DelTable(table)
	if len(routes) > 0 {
		conn.AddTable(table)
		chain := conn.AddChain(&nftables.Chain{
			Name: "closed", Table: table, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter,
		})
		for _, family := range []struct {
			name    string
			number  byte
			offset  uint32 // of the destination: RFC 791, section 3.1, and RFC 8200, section 3
			key     nftables.SetDatatype
			matches func(netip.Addr) bool
		}{
			{"four", unix.NFPROTO_IPV4, 16, nftables.TypeIPAddr, netip.Addr.Is4},
			{"six", unix.NFPROTO_IPV6, 24, nftables.TypeIP6Addr, netip.Addr.Is6},
		} {
			set := &nftables.Set{Table: table, Name: family.name, KeyType: family.key}
			if err := conn.AddSet(set, nil); err != nil {
				return fmt.Errorf("nftables set %s: cannot describe: %w", family.name, err)
			}
			var elements []nftables.SetElement
			for _, r := range routes {
				if family.matches(r.Addr()) {
					elements = append(elements, nftables.SetElement{Key: r.Addr().AsSlice()})
				}
			}
			for part := range slices.Chunk(elements, chunkSize) {
				if err := conn.SetAddElements(set, part); err != nil {
					return fmt.Errorf("nftables set %s: cannot describe elements: %w", family.name, err)
				}
			}
			conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
				&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: unix.NFT_REG_1},
				&expr.Cmp{Op: expr.CmpOpEq, Register: unix.NFT_REG_1, Data: []byte{family.number}},
				&expr.Payload{DestRegister: unix.NFT_REG_1, Base: expr.PayloadBaseNetworkHeader, Offset: family.offset, Len: family.key.Bytes},
				&expr.Lookup{SourceRegister: unix.NFT_REG_1, SetName: set.Name, SetID: set.ID},
				&expr.Verdict{Kind: expr.VerdictDrop},
			}})
		}
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("nftables table %s: cannot write: %w", tableName, err)
	}
	return nil
}
