package vm

import (
	"encoding/binary"
	"net"
	"sync"
	"time"
)

// ntpEpoch is the time from the start of NTP's era 0 (1900) to the start of Unix time, in seconds
// (RFC 5905, section 6).
const ntpEpoch = 2208988800

// ntpPacket is the size in bytes of an NTP message without extensions (RFC 5905, section 7.3).
const ntpPacket = 48

// SetNTP switches the NTP server of the whole network on or off.
func (n *Network) SetNTP(on bool) { n.control.noNTP.Store(!on) }

// startNTP starts the NTP server of the gateway, which answers with the network's time plus
// NetworkSpec.ClockOffset. The returned function ends it.
func (n *Network) startNTP() (func(), error) {
	conns, err := n.gateway.listenPackets(123)
	if err != nil {
		return nil, err
	}
	var running sync.WaitGroup
	for _, conn := range conns {
		running.Go(func() { serveNTP(n, conn) })
	}
	return func() {
		for _, conn := range conns {
			conn.Close()
		}
		running.Wait()
	}, nil
}

// serveNTP answers NTP requests until conn is closed.
func serveNTP(n *Network, conn net.PacketConn) {
	request := make([]byte, 512)
	for {
		size, from, err := conn.ReadFrom(request)
		if err != nil {
			return
		}
		const client = 3
		if size < ntpPacket || request[0]&7 != client || n.control.noNTP.Load() {
			continue
		}
		// If the answer is lost, the client repeats its request.
		conn.WriteTo(ntpReply(request[:ntpPacket], n.clock.Now().Add(n.spec.ClockOffset)), from)
	}
}

// ntpReply returns the answer of a server at stratum 1. The transmit time of the request becomes
// the origin time of the answer.
func ntpReply(request []byte, now time.Time) []byte {
	const server = 4
	r := make([]byte, ntpPacket)
	r[0] = request[0]&0x38 | server // no leap second, the client's version
	r[1] = 1                        // stratum
	r[2] = request[2]               // poll interval
	r[3] = 0xec                     // precision: 2^-20 s
	binary.BigEndian.PutUint32(r[8:], 1<<6)
	copy(r[12:16], "ORLP")
	stamp := ntpTime(now)
	binary.BigEndian.PutUint64(r[16:], stamp)
	copy(r[24:32], request[40:48])
	binary.BigEndian.PutUint64(r[32:], stamp)
	binary.BigEndian.PutUint64(r[40:], stamp)
	return r
}

// ntpTime returns t as seconds since 1900 (32 bits) and their fraction (32 bits).
func ntpTime(t time.Time) uint64 {
	return uint64(uint32(t.Unix()+ntpEpoch))<<32 | uint64(t.Nanosecond())<<32/uint64(time.Second)
}
