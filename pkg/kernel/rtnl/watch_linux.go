package rtnl

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// ChangeKind is the kind of a change.
type ChangeKind int

// Kinds of changes. EventsLost means that the kernel has dropped notifications. The receiver must
// then read the whole state again.
const (
	LinkChanged ChangeKind = iota + 1
	AddressChanged
	RouteChanged
	EventsLost
	// AdvertisementChanged means that the flags of the last router advertisement on the link differ
	// from the flags of the advertisement before it.
	AdvertisementChanged
	RouterOption // an option of a router advertisement for user space
)

// Change is a notification of the kernel.
type Change struct {
	Kind     ChangeKind
	Index    int   // index of the link; 0 for a route with several next hops
	Protocol uint8 // origin of the address or the route
	LinkKind string
	Router   netip.Addr // for RouterOption: link-local address of the router; invalid if unknown
	Option   []byte     // for RouterOption: the option with its header (RFC 4861 section 4.6)
}

// groups are the subscribed multicast groups: for links, addresses and routes of both families, the
// flags of router advertisements, and the options of router advertisements for user space.
const groups = unix.RTMGRP_LINK | unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV4_ROUTE |
	unix.RTMGRP_IPV6_IFADDR | unix.RTMGRP_IPV6_ROUTE | unix.RTMGRP_IPV6_IFINFO | 1<<(unix.RTNLGRP_ND_USEROPT-1)

// Watcher is an open subscription.
type Watcher struct{ c *netlink.Conn }

// Subscribe opens a subscription. Run receives all changes since the call of Subscribe.
func Subscribe() (*Watcher, error) {
	c, err := netlink.Dial(unix.NETLINK_ROUTE, &netlink.Config{Groups: groups})
	if err != nil {
		return nil, fmt.Errorf("rtnetlink: cannot subscribe to notifications: %w", err)
	}
	return &Watcher{c}, nil
}

// Run calls f for every change until ctx is done, and closes the subscription. It returns the error
// of ctx, or an earlier error of the socket.
func (w *Watcher) Run(ctx context.Context, f func(Change)) error {
	stop := context.AfterFunc(ctx, func() { w.c.Close() })
	defer stop()
	defer w.c.Close()
	for {
		msgs, err := w.c.Receive()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, unix.ENOBUFS):
			f(Change{Kind: EventsLost})
			continue
		case err != nil:
			return fmt.Errorf("rtnetlink: cannot receive notifications: %w", err)
		}
		for _, m := range msgs {
			if c, ok := parseChange(m); ok {
				f(c)
			}
		}
	}
}

func parseChange(m netlink.Message) (Change, bool) {
	switch m.Header.Type {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		if len(m.Data) < unix.SizeofIfInfomsg {
			return Change{}, false
		}
		c := Change{Kind: LinkChanged, Index: int(binary.NativeEndian.Uint32(m.Data[4:8]))}
		if m.Data[0] == unix.AF_INET6 {
			c.Kind = AdvertisementChanged
			return c, true
		}
		c.LinkKind = linkKind(m.Data[unix.SizeofIfInfomsg:])
		return c, true
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		a, err := parseAddress(m.Data)
		return Change{Kind: AddressChanged, Index: a.Index, Protocol: a.Protocol}, err == nil
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		if len(m.Data) < unix.SizeofRtMsg {
			return Change{}, false
		}
		c := Change{Kind: RouteChanged, Protocol: m.Data[5]}
		if ad, err := netlink.NewAttributeDecoder(m.Data[unix.SizeofRtMsg:]); err == nil {
			for ad.Next() {
				if ad.Type() == unix.RTA_OIF {
					c.Index = int(ad.Uint32())
				}
			}
		}
		return c, true
	case unix.RTM_NEWNDUSEROPT:
		return parseRouterOption(m.Data)
	}
	return Change{}, false
}

// Offsets in struct nduseroptmsg (include/uapi/linux/rtnetlink.h), the length of the structure, and
// the attribute with the address of the router.
const (
	optionLengthAt = 2
	optionIndexAt  = 4
	optionTypeAt   = 8
	optionHeader   = 16
	optionSource   = 1 // NDUSEROPT_SRCADDR

	advertisementType = 134 // ICMPv6 (RFC 4861 section 4.2)
)

// parseRouterOption parses a notification of an option in a router advertisement. The kernel has
// checked the hop limit, the source and the checksum of the advertisement, and the lengths of its
// options (ndisc_router_discovery), but not the content of the option.
func parseRouterOption(b []byte) (Change, bool) {
	if len(b) < optionHeader || b[0] != unix.AF_INET6 || b[optionTypeAt] != advertisementType {
		return Change{}, false
	}
	size := int(binary.NativeEndian.Uint16(b[optionLengthAt:]))
	if size < 8 || len(b) < optionHeader+size {
		return Change{}, false
	}
	c := Change{Kind: RouterOption, Index: int(binary.NativeEndian.Uint32(b[optionIndexAt:])), Option: slices.Clone(b[optionHeader : optionHeader+size])}
	ad, err := netlink.NewAttributeDecoder(b[optionHeader+size:])
	if err != nil {
		return Change{}, false
	}
	for ad.Next() {
		if ad.Type() == optionSource {
			c.Router, _ = netip.AddrFromSlice(ad.Bytes())
		}
	}
	return c, ad.Err() == nil
}

// linkKind returns the kind of a link from its attributes (IFLA_INFO_KIND); an empty string for a
// link without a kind, such as hardware.
func linkKind(attrs []byte) string {
	kind := ""
	ad, err := netlink.NewAttributeDecoder(attrs)
	if err != nil {
		return ""
	}
	for ad.Next() {
		if ad.Type() != unix.IFLA_LINKINFO {
			continue
		}
		ad.Nested(func(nad *netlink.AttributeDecoder) error {
			for nad.Next() {
				if nad.Type() == unix.IFLA_INFO_KIND {
					kind = nad.String()
				}
			}
			return nil
		})
	}
	return kind
}
