package resolver

import (
	"encoding/binary"
	"errors"

	"golang.org/x/net/dns/dnsmessage"
)

const (
	headerSize = 12
	// plainSize is the largest UDP response for a client without EDNS, in bytes (RFC 1035, 4.2.1).
	plainSize = 512
	// maxDatagram is the largest UDP response for a client with EDNS, in bytes. The loopback
	// interface transports it without fragmentation.
	maxDatagram = 16 << 10
	maxMessage  = 65535
)

var errNotQuery = errors.New("not a DNS query")

// query is a query of a client.
type query struct {
	message []byte
	size    int // largest UDP response that the client accepts, in bytes
}

// parseQuery checks that a message is a query with a single question, and reads from its EDNS
// record the largest response that the client accepts. It returns errNotQuery for all other
// messages.
func parseQuery(message []byte) (query, error) {
	var p dnsmessage.Parser
	h, err := p.Start(message)
	if err != nil || h.Response {
		return query{}, errNotQuery
	}
	if _, err := p.Question(); err != nil {
		return query{}, errNotQuery
	}
	if _, err := p.Question(); !errors.Is(err, dnsmessage.ErrSectionDone) {
		return query{}, errNotQuery
	}
	q := query{message: message, size: plainSize}
	if p.SkipAllAnswers() != nil || p.SkipAllAuthorities() != nil {
		return query{}, errNotQuery
	}
	for {
		r, err := p.AdditionalHeader()
		if err != nil {
			return q, nil
		}
		if r.Type == dnsmessage.TypeOPT { // r.Class is the size (RFC 6891, 6.1.2)
			q.size = min(max(int(r.Class), plainSize), maxDatagram)
		}
		if p.SkipAdditional() != nil {
			return q, nil
		}
	}
}

// id is the ID of a message.
func id(message []byte) uint16 { return binary.BigEndian.Uint16(message) }

// rcode returns the response code in the header of a message. It ignores the upper bits of the code
// in EDNS.
func rcode(message []byte) dnsmessage.RCode { return dnsmessage.RCode(message[3] & 0xf) }

// failed reports whether a response says that the resolver cannot answer the query. The caller then
// queries the next resolver.
func failed(answer []byte) bool {
	switch rcode(answer) {
	case dnsmessage.RCodeServerFailure, dnsmessage.RCodeNotImplemented, dnsmessage.RCodeRefused:
		return true
	}
	return false
}

// answers reports whether a message is a response to the query.
func (q query) answers(message []byte) bool {
	return len(message) >= headerSize && message[2]&0x80 != 0 && id(message) == id(q.message)
}

// failure returns a response without records. It either has the error code of a failure, or it is
// truncated, and the client has to repeat the query by TCP.
func (q query) failure(code dnsmessage.RCode, truncated bool) []byte {
	var p dnsmessage.Parser
	h, err := p.Start(q.message)
	if err != nil {
		return nil // This cannot happen, because parseQuery has read the message.
	}
	question, err := p.Question()
	if err != nil {
		return nil
	}
	m := dnsmessage.Message{
		Header: dnsmessage.Header{
			ID: h.ID, Response: true, OpCode: h.OpCode, RecursionDesired: h.RecursionDesired, RecursionAvailable: true, RCode: code, Truncated: truncated,
		},
		Questions: []dnsmessage.Question{question},
	}
	out, err := m.Pack()
	if err != nil {
		return nil
	}
	return out
}

// datagram returns the UDP form of a response: the response itself, or a truncated response if it
// is larger than the client accepts.
func (q query) datagram(answer []byte) []byte {
	if len(answer) <= q.size {
		return answer
	}
	return q.failure(rcode(answer), true)
}
