package bgp

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Peer is a router.
type Peer struct {
	Address  netip.AddrPort
	Source   netip.Addr // source address of the connection; if invalid, the kernel selects it
	Password string     // for the TCP MD5 signature (RFC 2385), at most 80 bytes; empty: none
	// OneHop accepts only packets of a neighbor on the link (RFC 5082), whose hop limit no other
	// router has decreased. The peer must have the same setting.
	OneHop bool
}

// dialTimeout bounds an attempt to connect.
const dialTimeout = 5 * time.Second

// maxPassword is the maximum length of Password (TCP_MD5SIG_MAXKEYLEN, include/uapi/linux/tcp.h).
const maxPassword = 80

// Dial connects to a peer.
func Dial(ctx context.Context, p Peer) (net.Conn, error) {
	d := net.Dialer{Timeout: dialTimeout, Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		if control := c.Control(func(fd uintptr) { err = p.protect(int(fd)) }); control != nil {
			return control
		}
		return err
	}}
	if p.Source.IsValid() {
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(p.Source, 0))
	}
	conn, err := d.DialContext(ctx, "tcp", p.Address.String())
	if err != nil {
		return nil, fmt.Errorf("cannot connect: %w", err)
	}
	return conn, nil
}

// protect sets the password and the hop limit of a socket.
func (p Peer) protect(fd int) error {
	if len(p.Password) > maxPassword {
		return fmt.Errorf("TCP MD5 signature: the password has %d bytes, expected at most %d", len(p.Password), maxPassword)
	}
	if p.Password != "" {
		if err := unix.SetsockoptTCPMD5Sig(fd, unix.IPPROTO_TCP, unix.TCP_MD5SIG, signature(p.Address.Addr(), p.Password)); err != nil {
			return fmt.Errorf("TCP MD5 signature: cannot set: %w", err)
		}
	}
	if !p.OneHop {
		return nil
	}
	level, limit, least := unix.IPPROTO_IP, unix.IP_TTL, unix.IP_MINTTL
	if p.Address.Addr().Is6() {
		level, limit, least = unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, unix.IPV6_MINHOPCOUNT
	}
	const most = 255
	for _, option := range []int{limit, least} {
		if err := unix.SetsockoptInt(fd, level, option, most); err != nil {
			return fmt.Errorf("hop limit: cannot set: %w", err)
		}
	}
	return nil
}

// signature returns the value of TCP_MD5SIG for packets to and from an address.
func signature(a netip.Addr, password string) *unix.TCPMD5Sig {
	var sig unix.TCPMD5Sig
	sig.Keylen = uint16(copy(sig.Key[:], password))
	// struct sockaddr_in and sockaddr_in6 after the family, from include/uapi/linux/in.h and in6.h
	if a.Is4() {
		sig.Addr.Family = unix.AF_INET
		copy(sig.Addr.Data[2:], a.AsSlice())
	} else {
		sig.Addr.Family = unix.AF_INET6
		copy(sig.Addr.Data[6:], a.AsSlice())
	}
	return &sig
}
