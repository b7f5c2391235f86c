package netpolicy

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// tableName is the name of the nftables table of this package. Its family is inet.
const tableName = "orlop_netpolicy"

// fingerprint is the name of a chain that no packet traverses. The comment of its only rule
// contains the fingerprint of the table.
const fingerprint = "fingerprint"

const (
	// chunkSize is the number of set elements in one attribute. An attribute has at most 64 KiB,
	// and an element about 100 bytes.
	chunkSize = 400
	// bufferSize is the size in bytes of the socket's receive and send buffers. They hold a whole
	// batch and the kernel's answers. The kernel doubles the size (socket(7), SO_SNDBUF).
	bufferSize = maxTotalSize
	// timeout bounds the wait for the kernel's answers.
	timeout = 30 * time.Second
)

// kernel reads and writes the table in the network namespace of the calling thread.
type kernel struct{}

func (kernel) conn() (*nftables.Conn, error) {
	conn, err := nftables.New(nftables.WithSockOptions(func(c *netlink.Conn) error {
		return errors.Join(c.SetReadBuffer(bufferSize), c.SetWriteBuffer(bufferSize), c.SetDeadline(time.Now().Add(timeout)))
	}))
	if err != nil {
		return nil, fmt.Errorf("nftables: cannot connect: %w", err)
	}
	return conn, nil
}

// read returns the fingerprint of the table in the kernel. It returns "" if there is no such table,
// or if the numbers of rules in the chains egress and ingress differ from the numbers in the
// comment.
func (k kernel) read() (string, error) {
	conn, err := k.conn()
	if err != nil {
		return "", err
	}
	fail := func(err error) (string, error) {
		return "", fmt.Errorf("nftables table %s: cannot read: %w", tableName, err)
	}
	table, err := conn.ListTableOfFamily(tableName, nftables.TableFamilyINet)
	if errors.Is(err, unix.ENOENT) {
		return "", nil
	}
	if err != nil {
		return fail(err)
	}
	rules, err := conn.GetRules(table, &nftables.Chain{Name: fingerprint})
	if errors.Is(err, unix.ENOENT) || err == nil && len(rules) != 1 {
		return "", nil
	}
	if err != nil {
		return fail(err)
	}
	text, _ := userdata.GetString(rules[0].UserData, userdata.TypeComment)
	sum, counts, _ := bytes.Cut([]byte(text), []byte(" "))
	have := ""
	for _, name := range []string{egress, ingress} {
		rules, err := conn.GetRules(table, &nftables.Chain{Name: name})
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return fail(err)
		}
		have += fmt.Sprint(len(rules), ";")
	}
	if string(counts) != have {
		return "", nil
	}
	return string(sum), nil
}

// comment returns the comment of the rule in the chain fingerprint: the fingerprint of the table,
// and the number of rules in the chains egress and ingress, which read compares.
func comment(t Table) string {
	counts := map[string]int{}
	for _, c := range t.Chains {
		counts[c.Name] = len(c.Rules)
	}
	return fmt.Sprintf("%s %d;%d;", t.Fingerprint(), counts[egress], counts[ingress])
}

// write replaces the table in one transaction, so each packet is filtered either by the old or by
// the new table. The connections that the kernel tracks remain.
func (k kernel) write(t Table) error {
	conn, err := k.conn()
	if err != nil {
		return err
	}
	table := &nftables.Table{Name: tableName, Family: nftables.TableFamilyINet}
	conn.AddTable(table) // because the deletion of a missing table fails
	conn.DelTable(table)
	conn.AddTable(table)
	chains := map[string]*nftables.Chain{}
	for _, c := range append(t.Chains, Chain{Name: fingerprint}) {
		chain := &nftables.Chain{Name: c.Name, Table: table}
		if c.Forward {
			accept := nftables.ChainPolicyAccept
			chain.Type, chain.Hooknum, chain.Policy = nftables.ChainTypeFilter, nftables.ChainHookForward, &accept
			chain.Priority = nftables.ChainPriorityRef(nftables.ChainPriority(c.Priority))
		}
		chains[c.Name] = conn.AddChain(chain)
	}
	sets := map[string]*nftables.Set{}
	for _, s := range t.Sets {
		set := netfilterSet(s)
		set.Table = table
		if err := conn.AddSet(set, nil); err != nil {
			return fmt.Errorf("nftables set %s: cannot describe: %w", s.Name, err)
		}
		elements := netfilterElements(s)
		for len(elements) > 0 {
			n := min(chunkSize, len(elements))
			if err := conn.SetAddElements(set, elements[:n]); err != nil {
				return fmt.Errorf("nftables set %s: cannot describe elements: %w", s.Name, err)
			}
			elements = elements[n:]
		}
		sets[s.Name] = set
	}
	for _, c := range t.Chains {
		for _, r := range c.Rules {
			conn.AddRule(&nftables.Rule{Table: table, Chain: chains[c.Name], Exprs: expressions(r, sets)})
		}
	}
	conn.AddRule(&nftables.Rule{
		Table: table, Chain: chains[fingerprint], Exprs: []expr.Any{&expr.Verdict{Kind: expr.VerdictReturn}},
		UserData: userdata.AppendString(nil, userdata.TypeComment, comment(t)),
	})
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("nftables table %s: cannot write: %w", tableName, err)
	}
	return nil
}

func netfilterSet(s Set) *nftables.Set {
	address := nftables.TypeIPAddr
	if s.V6 {
		address = nftables.TypeIP6Addr
	}
	set := &nftables.Set{Name: s.Name, KeyType: address}
	switch s.Kind {
	case Blocks:
		set.Interval = true
	case Pairs:
		set.KeyType, set.Concatenation = nftables.MustConcatSetType(address, address), true
	case Endpoints:
		set.KeyType, set.Concatenation = nftables.MustConcatSetType(address, nftables.TypeInetProto, nftables.TypeInetService), true
	case Verdicts:
		set.IsMap, set.DataType = true, nftables.TypeVerdict
	}
	return set
}

// netfilterElements returns the elements of a set in the format of the kernel. Each part of a key
// fills registers of four bytes. The end of a range is a separate element: the first address after
// the range. A range that ends with the last address of the family has no such element.
func netfilterElements(s Set) []nftables.SetElement {
	var out []nftables.SetElement
	for _, e := range s.Elements {
		key := e.Address.AsSlice()
		switch s.Kind {
		case Blocks:
			out = append(out, nftables.SetElement{Key: key})
			if after := e.Last.Next(); after != (netip.Addr{}) {
				out = append(out, nftables.SetElement{Key: after.AsSlice(), IntervalEnd: true})
			}
		case Pairs:
			out = append(out, nftables.SetElement{Key: append(key, key...)})
		case Endpoints:
			key = append(key, e.Protocol, 0, 0, 0)
			key = append(key, binaryutil.BigEndian.PutUint16(e.Port)...)
			out = append(out, nftables.SetElement{Key: append(key, 0, 0)})
		case Verdicts:
			out = append(out, nftables.SetElement{Key: key, VerdictData: &expr.Verdict{Kind: expr.VerdictGoto, Chain: e.Chain}})
		default:
			out = append(out, nftables.SetElement{Key: key})
		}
	}
	return out
}

// register is the first of the kernel's registers of four bytes (NFT_REG32_00). The parts of a key
// are in consecutive registers.
const register = unix.NFT_REG32_00

// expressions returns the expressions of a rule. sets has the sets of the table by name.
func expressions(r Rule, sets map[string]*nftables.Set) []expr.Any {
	var out []expr.Any
	for i, m := range r.Matches {
		out = append(out, match(m, sets, r.Verdict == GotoReturn && i == len(r.Matches)-1)...)
	}
	switch r.Verdict {
	case Accept:
		return append(out, &expr.Verdict{Kind: expr.VerdictAccept})
	case Drop:
		return append(out, &expr.Verdict{Kind: expr.VerdictDrop})
	case Jump:
		return append(out, &expr.Verdict{Kind: expr.VerdictJump, Chain: r.Chain})
	}
	return out
}

// match returns expressions that load the fields of a test and compare them. If follow is true, the
// set is a map, and a packet continues with the verdict of the map's element.
func match(m Match, sets map[string]*nftables.Set, follow bool) []expr.Any {
	equal := expr.CmpOpEq
	if m.Not {
		equal = expr.CmpOpNeq
	}
	switch m.Test {
	case Established:
		states := binaryutil.NativeEndian.PutUint32(expr.CtStateBitESTABLISHED | expr.CtStateBitRELATED)
		none := make([]byte, 4)
		return []expr.Any{
			&expr.Ct{Key: expr.CtKeySTATE, Register: register},
			&expr.Bitwise{SourceRegister: register, DestRegister: register, Len: 4, Mask: states, Xor: none},
			&expr.Cmp{Op: expr.CmpOpNeq, Register: register, Data: none},
		}
	case NeighborDiscovery:
		out := append(matchMeta(expr.MetaKeyNFPROTO, expr.CmpOpEq, unix.NFPROTO_IPV6),
			&expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: hopLimit, Len: 1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: register, Data: []byte{255}})
		out = append(out, matchMeta(expr.MetaKeyL4PROTO, expr.CmpOpEq, icmpv6)...)
		return append(out, &expr.Payload{DestRegister: register, Base: expr.PayloadBaseTransportHeader, Len: 1},
			&expr.Cmp{Op: expr.CmpOpGte, Register: register, Data: []byte{135}},
			&expr.Cmp{Op: expr.CmpOpLte, Register: register, Data: []byte{136}})
	case In, Out:
		key := expr.MetaKeyIIFNAME
		if m.Test == Out {
			key = expr.MetaKeyOIFNAME
		}
		link := make([]byte, unix.IFNAMSIZ)
		copy(link, m.Link)
		return matchMeta(key, equal, link...)
	case Ports:
		return matchPorts(m)
	}
	return matchAddress(m, sets[m.Set], follow)
}

// matchMeta returns expressions that compare a property of the packet with data.
func matchMeta(key expr.MetaKey, op expr.CmpOp, data ...byte) []expr.Any {
	return []expr.Any{&expr.Meta{Key: key, Register: register}, &expr.Cmp{Op: op, Register: register, Data: data}}
}

// matchPorts returns expressions that compare the protocol and the destination port. For the range
// of all ports, they compare only the protocol.
func matchPorts(m Match) []expr.Any {
	out := matchMeta(expr.MetaKeyL4PROTO, expr.CmpOpEq, m.Protocol)
	if m.First == 0 && m.Last == 65535 {
		return out
	}
	out = append(out, &expr.Payload{DestRegister: register, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2})
	first, last := binaryutil.BigEndian.PutUint16(m.First), binaryutil.BigEndian.PutUint16(m.Last)
	if m.First == m.Last {
		return append(out, &expr.Cmp{Op: expr.CmpOpEq, Register: register, Data: first})
	}
	return append(out, &expr.Cmp{Op: expr.CmpOpGte, Register: register, Data: first}, &expr.Cmp{Op: expr.CmpOpLte, Register: register, Data: last})
}

// matchAddress returns expressions that look up addresses of the packet in a set. The offsets of
// the addresses are from RFC 791, section 3.1, and RFC 8200, section 3.
func matchAddress(m Match, set *nftables.Set, follow bool) []expr.Any {
	family, length, sender, destination := byte(unix.NFPROTO_IPV4), uint32(4), uint32(12), uint32(16)
	if m.V6 {
		family, length, sender, destination = unix.NFPROTO_IPV6, 16, 8, 24
	}
	out := matchMeta(expr.MetaKeyNFPROTO, expr.CmpOpEq, family)
	next := uint32(register)
	load := func(offset uint32) {
		out = append(out, &expr.Payload{DestRegister: next, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: length})
		next += length / 4
	}
	switch m.Test {
	case Source:
		load(sender)
	case Destination:
		load(destination)
	case Self:
		load(sender)
		load(destination)
	case DestinationEndpoint:
		load(destination)
		out = append(out, &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: next},
			&expr.Payload{DestRegister: next + 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2})
	}
	lookup := &expr.Lookup{SourceRegister: register, SetName: set.Name, SetID: set.ID, Invert: m.Not}
	if follow {
		lookup.IsDestRegSet = true // the verdict goes to register 0
	}
	return append(out, lookup)
}
