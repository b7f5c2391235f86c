package nts

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"slices"
)

// Types of extension fields (RFC 8915 section 7.5).
const (
	fieldID            = 0x0104
	fieldCookie        = 0x0204
	fieldPlaceholder   = 0x0304
	fieldAuthenticator = 0x0404
)

const (
	headerSize = 48 // of an NTP message
	idSize     = 32
	nonceSize  = 16
	tagSize    = 16
	// authenticatorSize is the size of the authenticator of a request, which encrypts nothing.
	authenticatorSize = 4 + 4 + nonceSize + tagSize
	// maxQuery is the largest request with placeholders: routers drop fragments of datagrams.
	maxQuery = 1200
	kissNAK  = "NTSN"
)

// Errors of a session.
var (
	// ErrNAK is the answer of a server that cannot use the cookie. Any host on the path can forge
	// this answer.
	ErrNAK = errors.New("the server does not know the key any more (NTS NAK)")
	// ErrNoCookie means that the session has no cookie for a request.
	ErrNoCookie = errors.New("no cookie is left")

	errUnauthenticated = errors.New("the answer is not authenticated")
	errOtherRequest    = errors.New("the answer is for another request")
	errFields          = errors.New("the extension fields of the answer are malformed")
)

// ProcessQuery adds the extension fields of NTS to a request. It uses up a cookie, and requests as
// many as are missing then.
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

// ProcessResponse returns why an answer is not authentic, or nil. It keeps the cookies of an
// authentic answer.
func (s *Session) ProcessResponse(message []byte) error {
	id := s.id
	s.id = nil // a request has a single answer
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
		case fieldAuthenticator: // fields after it are not authenticated
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

// open checks the authenticator of an answer (RFC 8915 section 5.6), and keeps the encrypted
// cookies.
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

// nextField reads an extension field: its type and body, and the fields after it (RFC 7822).
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

// field appends an extension field.
func field(to []byte, kind uint16, body []byte) []byte {
	to = binary.BigEndian.AppendUint16(to, kind)
	to = binary.BigEndian.AppendUint16(to, uint16(4+padded(len(body))))
	to = append(to, body...)
	return append(to, make([]byte, padded(len(body))-len(body))...)
}

func padded(n int) int { return (n + 3) &^ 3 }

func random(n int) []byte {
	out := make([]byte, n)
	rand.Read(out) // never fails
	return out
}
