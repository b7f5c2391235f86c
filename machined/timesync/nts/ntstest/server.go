// Package ntstest implements a time server with NTS (RFC 8915) for tests. It shares no code with
// the client: if both shared an error, a test would not find it.
package ntstest

import (
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miscreant/miscreant.go"

	"github.com/orlop-os/orlop/pkg/pki"
)

const (
	headerSize = 48
	nonceSize  = 16
	cookies    = 8
	keySize    = 32
	timeout    = 10 * time.Second
	// from1900 is the time from the start of NTP's era 0 (1900) to the start of Unix time, in
	// seconds.
	from1900 = 2208988800
)

// Server answers key exchanges and time requests. Tests set its fields before Serve, and change its
// behavior with methods afterwards.
type Server struct {
	TLS *tls.Config
	Now func() time.Time
	// If Records is not nil, it gets the records of a key exchange, and the server sends its result
	// instead. If the result is nil, the server sends nothing and keeps the connection open.
	Records func(records []byte) []byte

	Exchanges, Requests atomic.Int32
	Stratum             atomic.Int32

	mu     sync.Mutex
	key    []byte // encrypts the cookies
	change func(request, answer []byte) []byte
	port   uint16
}

// New returns a server. ca issues its certificate according to spec.
func New(ca *pki.CA, spec pki.Spec) (*Server, error) {
	spec.Usage = pki.Server
	leaf, err := ca.Issue(spec)
	if err != nil {
		return nil, err
	}
	s := &Server{Now: time.Now}
	s.Stratum.Store(1)
	s.TLS = &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{leaf.Cert.Raw}, PrivateKey: leaf.Key}},
		MinVersion:   tls.VersionTLS13, NextProtos: []string{"ntske/1"},
	}
	s.Forget()
	return s, nil
}

// Forget makes the server reject all cookies that it has sent so far. It answers them with a NAK.
func (s *Server) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.key = random(keySize)
}

// Change makes the server send the result of the function change in place of each answer. If the
// result is nil, the server sends nothing.
func (s *Server) Change(change func(request, answer []byte) []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.change = change
}

// Serve answers until both sockets are closed. In a key exchange, clients get the port of packets.
func (s *Server) Serve(exchanges net.Listener, packets net.PacketConn) {
	s.port = uint16(packets.LocalAddr().(*net.UDPAddr).Port)
	var wg sync.WaitGroup
	wg.Go(func() { s.answerAll(packets) })
	for {
		conn, err := exchanges.Accept()
		if err != nil {
			break
		}
		s.Exchanges.Add(1)
		wg.Go(func() {
			defer conn.Close()
			s.exchange(conn)
		})
	}
	wg.Wait()
}

// exchange performs a key exchange with a client. It ignores errors, because the client notices
// them.
func (s *Server) exchange(raw net.Conn) {
	_ = raw.SetDeadline(time.Now().Add(timeout))
	conn := tls.Server(raw, s.TLS)
	if conn.Handshake() != nil {
		return
	}
	for { // skips the records of the client up to the end record
		head := make([]byte, 4)
		if _, err := io.ReadFull(conn, head); err != nil {
			return
		}
		if _, err := io.CopyN(io.Discard, conn, int64(binary.BigEndian.Uint16(head[2:]))); err != nil {
			return
		}
		if binary.BigEndian.Uint16(head) == 0x8000 {
			break
		}
	}
	state := conn.ConnectionState()
	var keys []byte // the key for requests, then the key for answers
	for direction := range 2 {
		key, err := state.ExportKeyingMaterial("EXPORTER-network-time-security", []byte{0, 0, 0, 15, byte(direction)}, keySize)
		if err != nil {
			return
		}
		keys = append(keys, key...)
	}
	records := Record(0x8001, 0, 0)
	records = append(records, Record(0x8004, 0, 15)...)
	records = append(records, Record(7, byte(s.port>>8), byte(s.port))...)
	for range cookies {
		records = append(records, Record(5, s.cookie(keys)...)...)
	}
	records = append(records, Record(0x8000)...)
	if s.Records != nil {
		records = s.Records(records)
	}
	if records == nil {
		_, _ = io.Copy(io.Discard, conn)
		return
	}
	_, _ = conn.Write(records)
}

// Record returns a record of a key exchange.
func Record(kind uint16, body ...byte) []byte {
	return append(binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, kind), uint16(len(body))), body...)
}

// cookie returns a cookie that contains the keys of a client, encrypted.
func (s *Server) cookie(keys []byte) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	nonce := random(nonceSize)
	return append(nonce, seal(s.key, keys, nonce)...)
}

// open returns the keys in a cookie, or nil if the cookie is not authentic.
func (s *Server) open(cookie []byte) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(cookie) < nonceSize {
		return nil
	}
	return open(s.key, cookie[nonceSize:], cookie[:nonceSize])
}

func (s *Server) answerAll(packets net.PacketConn) {
	buf := make([]byte, 4096)
	for {
		n, from, err := packets.ReadFrom(buf)
		if err != nil {
			return
		}
		s.Requests.Add(1)
		request := append([]byte(nil), buf[:n]...)
		answer := s.answer(request)
		s.mu.Lock()
		change := s.change
		s.mu.Unlock()
		if change != nil {
			answer = change(request, answer)
		}
		if answer != nil {
			_, _ = packets.WriteTo(answer, from)
		}
	}
}

// answer returns the answer to a request: a NAK if the cookie or the request is not authentic. It
// returns nil if the request is malformed or has no authenticator.
func (s *Server) answer(request []byte) []byte {
	if len(request) < headerSize {
		return nil
	}
	var id, cookie, keys []byte
	wanted := 1
	for at := headerSize; at+4 <= len(request); {
		size := int(binary.BigEndian.Uint16(request[at+2:]))
		if size < 4 || at+size > len(request) {
			return nil
		}
		body := request[at+4 : at+size]
		switch binary.BigEndian.Uint16(request[at:]) {
		case 0x0104:
			id = body
		case 0x0204:
			cookie = body
		case 0x0304:
			wanted++
		case 0x0404:
			if keys = s.open(cookie); keys == nil || len(body) < 4+nonceSize || open(keys[:keySize], body[4+nonceSize:], request[:at], body[4:4+nonceSize]) == nil {
				return append(s.header(request, 0, "NTSN"), Field(0x0104, id)...)
			}
		}
		at += size
	}
	if keys == nil {
		return nil
	}
	var fresh []byte
	for range wanted {
		fresh = append(fresh, Field(0x0204, s.cookie(keys))...)
	}
	return Sign(keys[keySize:], append(s.header(request, byte(s.Stratum.Load()), "TEST"), Field(0x0104, id)...), fresh)
}

// Sign returns a message with an authenticator that uses key. The authenticator also contains
// fields, encrypted.
func Sign(key, message, fields []byte) []byte {
	nonce := random(nonceSize)
	sealed := seal(key, fields, message, nonce)
	body := []byte{0, nonceSize, byte(len(sealed) >> 8), byte(len(sealed))}
	return append(message, Field(0x0404, append(append(body, nonce...), sealed...))...)
}

// Field returns an NTP extension field.
func Field(kind uint16, body []byte) []byte {
	for len(body)%4 != 0 {
		body = append(body, 0)
	}
	out := binary.BigEndian.AppendUint16(nil, kind)
	return append(binary.BigEndian.AppendUint16(out, uint16(4+len(body))), body...)
}

// header returns the header of the answer to an NTPv4 request (RFC 5905 section 7.3).
func (s *Server) header(request []byte, stratum byte, reference string) []byte {
	out := make([]byte, headerSize)
	out[0], out[1], out[3] = 4<<3|4, stratum, 0xec // version 4, server; precision 2^-20 s
	copy(out[12:], reference)
	copy(out[24:], request[40:48])
	now := s.Now()
	for _, at := range []int{16, 32, 40} { // reference, receive, transmit
		binary.BigEndian.PutUint64(out[at:], uint64(now.Unix()+from1900)<<32|uint64(now.Nanosecond())<<32/1e9)
	}
	return out
}

func seal(key, plain []byte, data ...[]byte) []byte {
	out, err := aead(key).Seal(nil, plain, data...)
	if err != nil {
		panic(err) // Only too much associated data causes an error.
	}
	return out
}

// open returns the decrypted text, which is not nil, or nil if sealed is not authentic.
func open(key, sealed []byte, data ...[]byte) []byte {
	out, err := aead(key).Open([]byte{}, sealed, data...)
	if err != nil {
		return nil
	}
	return out
}

func aead(key []byte) *miscreant.Cipher {
	c, err := miscreant.NewAESCMACSIV(key)
	if err != nil {
		panic(err) // Only a wrong size of the key causes an error, and the size is constant.
	}
	return c
}

func random(n int) []byte {
	out := make([]byte, n)
	rand.Read(out) // rand.Read never fails.
	return out
}
