package nts

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"slices"
)

// The types of NTP extension fields of NTS (RFC 8915 section 7.5).
const (
	fieldID            = 0x0104
	fieldCookie        = 0x0204
	fieldPlaceholder   = 0x0304
	fieldAuthenticator = 0x0404
)

const (
	headerSize = 48 // the header of an NTP message, in bytes
	idSize     = 32
	nonceSize  = 16
	tagSize    = 16
	// authenticatorSize is the size of the authenticator in a request, in bytes. The authenticator
	// of a request encrypts no fields.
	authenticatorSize = 4 + 4 + nonceSize + tagSize
	// maxQuery is the largest request with placeholders, in bytes. Larger datagrams can be
	// fragmented, and some routers drop fragments.
	maxQuery = 1200
	kissNAK  = "NTSN"
)

// Errors of a session.
var (
	// ErrNAK says that the server cannot use the cookie of the request. Any host on the path can
	// forge this answer.
	ErrNAK = errors.New("the server does not know the key any more (NTS NAK)")
	// ErrNoCookie says that the session has no cookie for a request.
	ErrNoCookie = errors.New("no cookie is left")

	errUnauthenticated = errors.New("the answer is not authenticated")
	errOtherRequest    = errors.New("the answer is for another request")
	errFields          = errors.New("the extension fields of the answer are malformed")
)

// ProcessQuery adds the extension fields of NTS to a request. It uses one cookie. The server sends
// a new cookie for the used cookie and for each placeholder, so ProcessQuery adds as many
// placeholders as further cookies are missing.
func (s *Session) ProcessQuery(message *bytes.Buffer) error {
	s.answered = false
	if len(s.cookies) == 0 {
		return ErrNoCookie
	}
	cookie := s.cookies[0]
	s.cookies = s.cookies[1:]
	s.id = random(idSize)
	message.Write(field(nil, fieldID, s.id))
	message.Write(field(nil, fieldCookie, cookie))
	placeholder := field(nil, fieldPlaceholder, make([]byte, len(cookie)))
	for range maxCookies - len(s.cookies) - 1 {
		if message.Len()+len(placeholder)+authenticatorSize > maxQuery {
			break
		}
		message.Write(placeholder)
	}
	nonce := random(nonceSize)
	sealed, err := s.toServer.Seal(nil, nil, message.Bytes(), nonce)
	if err != nil {
		return err
	}
	message.Write(field(nil, fieldAuthenticator, slices.Concat(be16(nonceSize), be16(uint16(len(sealed))), nonce, sealed)))
	return nil
}

// ProcessResponse returns nil if an answer is authentic, else the reason why it is not. It adds the
// cookies of an authentic answer to the session.
func (s *Session) ProcessResponse(message []byte) error {
	id := s.id
	s.id = nil // The session accepts one answer for each request.
	if len(message) < headerSize || id == nil {
		return errUnauthenticated
	}
	var named bool
	rest := message[headerSize:]
	for len(rest) > 0 {
		kind, body, after, err := nextField(rest)
		if err != nil {
			return err
		}
		switch kind {
		case fieldID:
			if named = bytes.Equal(body, id); !named {
				return errOtherRequest
			}
		case fieldAuthenticator: // It does not authenticate the fields after it.
			if !named {
				return errOtherRequest
			}
			return s.open(message[:len(message)-len(rest)], body)
		}
		rest = after
	}
	if named && message[1] == 0 && string(message[12:16]) == kissNAK {
		return ErrNAK
	}
	return errUnauthenticated
}

// open checks the authenticator of an answer (RFC 8915 section 5.6), and adds the cookies in it to
// the session.
func (s *Session) open(authenticated, body []byte) error {
	if len(body) < 4 {
		return errFields
	}
	nonce, sealed := int(binary.BigEndian.Uint16(body)), int(binary.BigEndian.Uint16(body[2:]))
	body = body[4:]
	if nonce == 0 || len(body) < padded(nonce)+padded(sealed) {
		return errFields
	}
	fields, err := s.toHost.Open(nil, body[padded(nonce):][:sealed], authenticated, body[:nonce])
	if err != nil {
		return errUnauthenticated
	}
	for len(fields) > 0 {
		kind, cookie, after, err := nextField(fields)
		if err != nil {
			return err
		}
		if kind == fieldCookie && len(cookie) > 0 && len(cookie) <= maxCookie && len(s.cookies) < maxCookies {
			s.cookies = append(s.cookies, slices.Clone(cookie))
		}
		fields = after
	}
	s.answered = true
	return nil
}

// nextField reads the first extension field of from (RFC 7822). It returns the field's type and
// body, and the fields after it.
func nextField(from []byte) (kind uint16, body, after []byte, err error) {
	if len(from) < 4 {
		return 0, nil, nil, errFields
	}
	size := int(binary.BigEndian.Uint16(from[2:]))
	if size < 4 || size%4 != 0 || size > len(from) {
		return 0, nil, nil, errFields
	}
	return binary.BigEndian.Uint16(from), from[4:size], from[size:], nil
}

// field appends an extension field with a body to the bytes in the parameter `to`.
func field(to []byte, kind uint16, body []byte) []byte {
	to = binary.BigEndian.AppendUint16(to, kind)
	to = binary.BigEndian.AppendUint16(to, uint16(4+padded(len(body))))
	to = append(to, body...)
	return append(to, make([]byte, padded(len(body))-len(body))...)
}

func padded(n int) int { return (n + 3) &^ 3 }

func random(n int) []byte {
	out := make([]byte, n)
	rand.Read(out) // rand.Read never fails.
	return out
}
