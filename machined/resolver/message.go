package resolver

import (
	"encoding/binary"
	"errors"

	"golang.org/x/net/dns/dnsmessage"
)

const (
	headerSize = 12
	// plainSize is the largest answer by UDP for a client without EDNS (RFC 1035, 4.2.1).
	plainSize = 512
	// maxDatagram is the largest answer by UDP to a client with EDNS. The loopback carries it
	// whole.
	maxDatagram = 16 << 10
	maxMessage  = 65535
)

var errNotQuery = errors.New("not a DNS query")

// query is a query of a client.
type query struct {
	message []byte
	size    int // of the largest answer by UDP
}

// parseQuery checks that a message is a query with a single question, and reads its EDNS.
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
		if r.Type == dnsmessage.TypeOPT { // the class of this record is the size (RFC 6891, 6.1.2)
			q.size = min(max(int(r.Class), plainSize), maxDatagram)
		}
		if p.SkipAdditional() != nil {
			return q, nil
		}
	}
}

// id is the ID of a message.
func id(message []byte) uint16 { return binary.BigEndian.Uint16(message) }

// rcode is the lower half of the response code of a message.
func rcode(message []byte) dnsmessage.RCode { return dnsmessage.RCode(message[3] & 0xf) }

// failed reports whether the next resolver should be asked: this one cannot answer.
func failed(answer []byte) bool {
	switch rcode(answer) {
	case dnsmessage.RCodeServerFailure, dnsmessage.RCodeNotImplemented, dnsmessage.RCodeRefused:
		return true
	}
	return false
}

// answers reports whether a message is an answer to the query.
func (q query) answers(message []byte) bool {
	return len(message) >= headerSize && message[2]&0x80 != 0 && id(message) == id(q.message)
}

// failure returns an answer without records: a failure of the server, or an answer that the client
// must repeat by TCP (truncated).
func (q query) failure(code dnsmessage.RCode, truncated bool) []byte {
	var p dnsmessage.Parser
	h, err := p.Start(q.message)
	if err != nil {
		return nil // parseQuery has read it
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

// datagram returns an answer in the form for UDP.
func (q query) datagram(answer []byte) []byte {
	if len(answer) <= q.size {
		return answer
	}
	return q.failure(rcode(answer), true)
}
