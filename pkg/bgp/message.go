package bgp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/orlop-os/orlop/pkg/sanitize"
)

// Kind is the type of a message (RFC 4271 section 4.1).
type Kind uint8

// The kinds. A session ignores messages of other kinds from a peer.
const (
	OpenMessage         = Kind(bgp.BGP_MSG_OPEN)
	UpdateMessage       = Kind(bgp.BGP_MSG_UPDATE)
	NotificationMessage = Kind(bgp.BGP_MSG_NOTIFICATION)
	KeepaliveMessage    = Kind(bgp.BGP_MSG_KEEPALIVE)
)

// Message is a message. Only the field of its kind is set.
type Message struct {
	Kind         Kind
	Open         Open
	Update       Update
	Notification Notification
}

// Open begins a session.
type Open struct {
	ASN        uint32
	HoldTime   time.Duration // whole seconds
	RouterID   netip.Addr    // IPv4
	FourOctets bool          // the sender knows AS numbers of four octets
	// IPv4 and IPv6 are the families that the sender supports. A peer that states no family has
	// IPv4.
	IPv4, IPv6 bool
}

// Update changes routes of one family. Without routes it is the End-of-RIB marker: all initial
// routes have been sent (RFC 4724).
type Update struct {
	Announced, Withdrawn []netip.Prefix
	NextHop              netip.Addr // of Announced
	Path                 []uint32   // AS path
}

// Notification ends a session.
type Notification struct{ Code, Subcode uint8 }

// Notifications of this package (RFC 4271 section 4.5, RFC 4486).
var (
	badMessage    = Notification{bgp.BGP_ERROR_MESSAGE_HEADER_ERROR, bgp.BGP_ERROR_SUB_BAD_MESSAGE_LENGTH}
	badOpen       = Notification{bgp.BGP_ERROR_OPEN_MESSAGE_ERROR, 0}
	badVersion    = Notification{bgp.BGP_ERROR_OPEN_MESSAGE_ERROR, bgp.BGP_ERROR_SUB_UNSUPPORTED_VERSION_NUMBER}
	badASN        = Notification{bgp.BGP_ERROR_OPEN_MESSAGE_ERROR, bgp.BGP_ERROR_SUB_BAD_PEER_AS}
	badRouterID   = Notification{bgp.BGP_ERROR_OPEN_MESSAGE_ERROR, bgp.BGP_ERROR_SUB_BAD_BGP_IDENTIFIER}
	badHoldTime   = Notification{bgp.BGP_ERROR_OPEN_MESSAGE_ERROR, bgp.BGP_ERROR_SUB_UNACCEPTABLE_HOLD_TIME}
	badUpdate     = Notification{bgp.BGP_ERROR_UPDATE_MESSAGE_ERROR, bgp.BGP_ERROR_SUB_MALFORMED_ATTRIBUTE_LIST}
	holdExpired   = Notification{bgp.BGP_ERROR_HOLD_TIMER_EXPIRED, 0}
	wrongState    = Notification{bgp.BGP_ERROR_FSM_ERROR, 0}
	adminShutdown = Notification{bgp.BGP_ERROR_CEASE, bgp.BGP_ERROR_SUB_ADMINISTRATIVE_SHUTDOWN}
)

// String names the notification as in the RFCs.
func (n Notification) String() string {
	return strings.TrimPrefix(bgp.NewNotificationErrorCode(n.Code, n.Subcode).String(), "code ")
}

// maxMessage is the maximum length of a message with its header.
const maxMessage = bgp.BGP_MAX_MESSAGE_LENGTH

// routesPerMessage is the maximum number of host routes in a message: 200 routes of 17 octets each,
// and their attributes, fit in maxMessage.
const routesPerMessage = 200

// read reads a message. It decodes updates only if receives is true.
func read(r io.Reader, receives, fourOctets bool) (m Message, err error) {
	var header [bgp.BGP_HEADER_LENGTH]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return Message{}, fmt.Errorf("the connection ended: %w", err)
	}
	size, kind := int(binary.BigEndian.Uint16(header[16:])), Kind(header[18])
	if size < len(header) || size > maxMessage || slices.ContainsFunc(header[:16], func(b byte) bool { return b != 0xff }) {
		return Message{}, &failure{badMessage, errors.New("the peer sends no messages of BGP")}
	}
	body := make([]byte, size-len(header))
	if _, err := io.ReadFull(r, body); err != nil {
		return Message{}, fmt.Errorf("the connection ended: %w", err)
	}
	m.Kind = kind
	if kind != OpenMessage && kind != NotificationMessage && (kind != UpdateMessage || !receives) {
		return m, nil
	}
	err = recovered(func() error { return m.decode(body, uint16(size), fourOctets) })
	return m, err
}

// errPanic is the error for a message that makes the codec panic.
var errPanic = errors.New("cannot decode a message of the peer: panic")

// recovered returns the error of f, or errPanic if f panics. A panic of the codec must not end the
// process, because the kubelet runs in the same process. Package panics does not recover panics in
// this process.
func recovered(f func() error) (err error) {
	defer func() {
		if fault := recover(); fault != nil {
			err = fmt.Errorf("%w: %s", errPanic, sanitize.Text(fmt.Sprint(fault)))
		}
	}()
	return f()
}

// decode decodes the body.
func (m *Message) decode(body []byte, size uint16, fourOctets bool) error {
	got, err := bgp.ParseBGPBody(&bgp.BGPHeader{Len: size, Type: uint8(m.Kind)}, body, &bgp.MarshallingOption{Use2ByteAS: !fourOctets})
	if err != nil {
		err = fmt.Errorf("cannot decode a message of the peer: %s", sanitize.Text(err.Error()))
		if n, answered := map[Kind]Notification{OpenMessage: badOpen, UpdateMessage: badUpdate}[m.Kind]; answered {
			err = &failure{n, err}
		}
		return err // a bad notification gets no answer (RFC 4271 section 6.4)
	}
	switch b := got.Body.(type) {
	case *bgp.BGPOpen:
		if b.Version != 4 {
			return &failure{badVersion, fmt.Errorf("the peer has BGP version %d, expected 4", b.Version)}
		}
		m.Open = readOpen(b)
	case *bgp.BGPUpdate:
		m.Update = readUpdate(b)
	case *bgp.BGPNotification:
		m.Notification = Notification{b.ErrorCode, b.ErrorSubcode}
	}
	return nil
}

func readOpen(b *bgp.BGPOpen) Open {
	o := Open{ASN: uint32(b.MyAS), HoldTime: time.Duration(b.HoldTime) * time.Second, RouterID: b.ID}
	families := false
	for _, p := range b.OptParams {
		list, ok := p.(*bgp.OptionParameterCapability)
		if !ok {
			continue
		}
		for _, c := range list.Capability {
			switch c := c.(type) {
			case *bgp.CapFourOctetASNumber:
				o.ASN, o.FourOctets = c.CapValue, true
			case *bgp.CapMultiProtocol:
				families = true
				o.IPv4 = o.IPv4 || c.CapValue == bgp.RF_IPv4_UC
				o.IPv6 = o.IPv6 || c.CapValue == bgp.RF_IPv6_UC
			}
		}
	}
	o.IPv4 = o.IPv4 || !families
	return o
}

func readUpdate(b *bgp.BGPUpdate) Update {
	u := Update{Withdrawn: prefixes(b.WithdrawnRoutes), Announced: prefixes(b.NLRI)}
	for _, a := range b.PathAttributes {
		switch a := a.(type) {
		case *bgp.PathAttributeNextHop:
			u.NextHop = a.Value
		case *bgp.PathAttributeAsPath:
			for _, part := range a.Value {
				u.Path = append(u.Path, part.GetAS()...)
			}
		case *bgp.PathAttributeMpReachNLRI:
			u.Announced, u.NextHop = append(u.Announced, prefixes(a.Value)...), a.Nexthop
		case *bgp.PathAttributeMpUnreachNLRI:
			u.Withdrawn = append(u.Withdrawn, prefixes(a.Value)...)
		}
	}
	return u
}

func prefixes(all []bgp.PathNLRI) []netip.Prefix {
	var out []netip.Prefix
	for _, n := range all {
		if p, ok := n.NLRI.(*bgp.IPAddrPrefix); ok {
			out = append(out, p.Prefix)
		}
	}
	return out
}

// encode returns the octets of a message. internal means that the peer has the same AS.
func (m Message) encode(internal, fourOctets bool) ([]byte, error) {
	var out *bgp.BGPMessage
	var err error
	switch m.Kind {
	case OpenMessage:
		out, err = m.Open.message()
	case UpdateMessage:
		out, err = m.Update.message(internal, fourOctets)
	case NotificationMessage:
		out = bgp.NewBGPNotificationMessage(m.Notification.Code, m.Notification.Subcode, nil)
	case KeepaliveMessage:
		out = bgp.NewBGPKeepAliveMessage()
	}
	if err != nil {
		return nil, fmt.Errorf("message of BGP: cannot encode: %w", err)
	}
	return out.Serialize(&bgp.MarshallingOption{Use2ByteAS: !fourOctets})
}

func (o Open) message() (*bgp.BGPMessage, error) {
	// For an AS number above 65535, the field of two octets holds a placeholder (RFC 6793 section
	// 9).
	short := uint16(bgp.AS_TRANS)
	if o.ASN <= 0xffff {
		short = uint16(o.ASN)
	}
	capabilities := []bgp.ParameterCapabilityInterface{bgp.NewCapFourOctetASNumber(o.ASN)}
	if o.IPv4 {
		capabilities = append(capabilities, bgp.NewCapMultiProtocol(bgp.RF_IPv4_UC))
	}
	if o.IPv6 {
		capabilities = append(capabilities, bgp.NewCapMultiProtocol(bgp.RF_IPv6_UC))
	}
	return bgp.NewBGPOpenMessage(short, uint16(o.HoldTime/time.Second), o.RouterID, []bgp.OptionParameterInterface{bgp.NewOptionParameterCapability(capabilities)})
}

func (u Update) message(internal, fourOctets bool) (*bgp.BGPMessage, error) {
	announced, err := paths(u.Announced)
	if err != nil {
		return nil, err
	}
	withdrawn, err := paths(u.Withdrawn)
	if err != nil {
		return nil, err
	}
	ipv6 := slices.ContainsFunc(append(slices.Clone(u.Announced), u.Withdrawn...), func(p netip.Prefix) bool { return p.Addr().Is6() })
	if len(announced) == 0 {
		if !ipv6 {
			return bgp.NewBGPUpdateMessage(withdrawn, nil, nil), nil
		}
		gone, err := bgp.NewPathAttributeMpUnreachNLRI(bgp.RF_IPv6_UC, withdrawn)
		return bgp.NewBGPUpdateMessage(nil, []bgp.PathAttributeInterface{gone}, nil), err
	}
	attributes := []bgp.PathAttributeInterface{bgp.NewPathAttributeOrigin(bgp.BGP_ORIGIN_ATTR_TYPE_IGP), asPath(u.Path, fourOctets)}
	if !ipv6 {
		hop, err := bgp.NewPathAttributeNextHop(u.NextHop)
		if err != nil {
			return nil, err
		}
		attributes = append(attributes, hop)
	}
	if internal { // RFC 4271 section 5.1.5
		attributes = append(attributes, bgp.NewPathAttributeLocalPref(100))
	}
	if !ipv6 {
		return bgp.NewBGPUpdateMessage(withdrawn, attributes, announced), nil
	}
	reach, err := bgp.NewPathAttributeMpReachNLRI(bgp.RF_IPv6_UC, announced, u.NextHop)
	return bgp.NewBGPUpdateMessage(nil, append(attributes, reach), nil), err
}

func asPath(path []uint32, fourOctets bool) bgp.PathAttributeInterface {
	var parts []bgp.AsPathParamInterface
	switch {
	case len(path) == 0:
	case fourOctets:
		parts = append(parts, bgp.NewAs4PathParam(bgp.BGP_ASPATH_ATTR_TYPE_SEQ, path))
	default:
		var short []uint16
		for _, as := range path { // session.check has ensured that the number fits
			short = append(short, uint16(as))
		}
		parts = append(parts, bgp.NewAsPathParam(bgp.BGP_ASPATH_ATTR_TYPE_SEQ, short))
	}
	return bgp.NewPathAttributeAsPath(parts)
}

func paths(all []netip.Prefix) ([]bgp.PathNLRI, error) {
	var out []bgp.PathNLRI
	for _, p := range all {
		n, err := bgp.NewIPAddrPrefix(p)
		if err != nil {
			return nil, err
		}
		out = append(out, bgp.PathNLRI{NLRI: n})
	}
	return out, nil
}
