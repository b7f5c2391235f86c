package nts

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/beevik/ntp"
	"github.com/miscreant/miscreant.go"

	"github.com/orlop-os/orlop/machined/timesync/nts/ntstest"
	"github.com/orlop-os/orlop/pkg/pki"
)

var loopback = netip.MustParseAddr("127.0.0.1")

// fixture is a time server with NTS on loopback.
type fixture struct {
	*ntstest.Server
	address string // the address for key exchanges
	config  *tls.Config
}

// start starts a server on loopback. Before that, the function change can change the settings of
// the server. The certificate of the server is for its address.
func start(t *testing.T, change func(*ntstest.Server)) fixture {
	t.Helper()
	ca, err := pki.NewCA("time", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	s, err := ntstest.New(ca, pki.Spec{CN: "time", IPs: []netip.Addr{loopback}, TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	change(s)
	exchanges, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	packets, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); s.Serve(exchanges, packets) }()
	t.Cleanup(func() { exchanges.Close(); packets.Close(); <-done })
	roots := pki.ServerCAs{Own: string(ca.CertPEM())}.Roots()
	return fixture{s, exchanges.Addr().String(), pki.ClientConfig("127.0.0.1", roots, now)}
}

func (f fixture) exchange(t *testing.T) *Session {
	t.Helper()
	s, err := Exchange(t.Context(), f.address, f.config)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func query(s *Session) (*ntp.Response, error) {
	return ntp.QueryWithOptions(s.Address(), ntp.QueryOptions{Timeout: 5 * time.Second, Extensions: []ntp.Extension{s}})
}

// TestSession checks that each request uses another cookie, and that each answer replaces the used
// cookie.
func TestSession(t *testing.T) {
	f := start(t, func(s *ntstest.Server) { s.Now = func() time.Time { return time.Now().Add(time.Hour) } })
	s := f.exchange(t)
	if len(s.Certificates()) != 1 || s.Cookies() != 8 || s.Answered() {
		t.Errorf("%d certificates, %d cookies, answered %t", len(s.Certificates()), s.Cookies(), s.Answered())
	}
	used := map[string]bool{}
	for range 20 {
		used[string(s.cookies[0])] = true
		r, err := query(s)
		if err != nil {
			t.Fatal(err)
		}
		if r.ClockOffset.Round(time.Minute) != time.Hour || !s.Answered() || s.Cookies() != 8 {
			t.Errorf("offset %v, answered %t, %d cookies", r.ClockOffset, s.Answered(), s.Cookies())
		}
	}
	if len(used) != 20 || f.Exchanges.Load() != 1 {
		t.Errorf("%d different cookies in 20 requests, %d exchanges", len(used), f.Exchanges.Load())
	}
}

// TestLostAnswers checks that each lost answer costs a cookie, and that the next answer replaces
// the lost cookies.
func TestLostAnswers(t *testing.T) {
	f := start(t, func(*ntstest.Server) {})
	s := f.exchange(t)
	for want := 7; want >= 0; want-- {
		if err := s.ProcessQuery(bytes.NewBuffer(make([]byte, headerSize))); err != nil || s.Cookies() != want {
			t.Fatalf("%d cookies, want %d: %v", s.Cookies(), want, err)
		}
		if want == 3 {
			if _, err := query(s); err != nil || s.Cookies() < 7 {
				t.Fatalf("%d cookies after an answer: %v", s.Cookies(), err)
			}
			s.cookies = s.cookies[:3]
		}
	}
	if _, err := query(s); !errors.Is(err, ErrNoCookie) || s.Answered() {
		t.Errorf("without a cookie: %v", err)
	}
}

// TestSizes checks that requests stay below maxQuery with cookies of any size, so routers do not
// fragment them.
func TestSizes(t *testing.T) {
	for _, size := range []int{1, 100, 101, maxCookie} {
		f := start(t, func(s *ntstest.Server) {
			s.Records = func([]byte) []byte { return exchangeOf(slices.Repeat([][]byte{make([]byte, size)}, 3)) }
		})
		s := f.exchange(t)
		m := bytes.NewBuffer(make([]byte, headerSize))
		if err := s.ProcessQuery(m); err != nil || m.Len() > maxQuery || m.Len()%4 != 0 {
			t.Errorf("cookies of %d bytes: %d bytes, %v", size, m.Len(), err)
		}
	}
}

// exchangeOf returns the records of a correct key exchange with the given cookies.
func exchangeOf(cookies [][]byte) []byte {
	out := slices.Concat(ntstest.Record(0x8001, 0, 0), ntstest.Record(0x8004, 0, 15))
	for _, c := range cookies {
		out = append(out, ntstest.Record(5, c...)...)
	}
	return append(out, ntstest.Record(0x8000)...)
}

// TestExchangeRefused checks that Exchange rejects records of a server that violate the protocol.
func TestExchangeRefused(t *testing.T) {
	cookie := ntstest.Record(5, 1, 2, 3, 4)
	end := ntstest.Record(0x8000)
	whole := exchangeOf([][]byte{{1, 2, 3, 4}})
	rest := func(records ...[]byte) []byte { return slices.Concat(slices.Concat(records...), cookie, end) }
	protocol, algorithm := ntstest.Record(0x8001, 0, 0), ntstest.Record(0x8004, 0, 15)
	for _, c := range []struct {
		name    string
		records []byte
		says    string
	}{
		{"no protocol", rest(algorithm), "names no protocol"},
		{"an empty protocol", rest(ntstest.Record(0x8001), algorithm), "does not offer NTPv4"},
		{"another protocol", rest(ntstest.Record(0x8001, 0x80, 0), algorithm), "does not offer NTPv4"},
		{"two protocols", rest(protocol, protocol, algorithm), "does not offer NTPv4"},
		{"no algorithm", rest(protocol), "names no algorithm"},
		{"another algorithm", rest(protocol, ntstest.Record(0x8004, 0, 30)), "does not offer AES-SIV-CMAC-256"},
		{"two algorithms", rest(protocol, ntstest.Record(0x8004, 0, 15, 0, 17)), "does not offer AES-SIV-CMAC-256"},
		{"no cookie", slices.Concat(protocol, algorithm, end), "has no cookie"},
		{"an empty cookie", rest(protocol, algorithm, ntstest.Record(5)), "a cookie has 0 bytes"},
		{"an oversized cookie", rest(protocol, algorithm, ntstest.Record(5, make([]byte, maxCookie+1)...)), "a cookie has 513 bytes"},
		{"an oversized record", rest(protocol, ntstest.Record(16000, make([]byte, 65535)...)), "more than 16384 bytes"},
		{"endless records", slices.Repeat(cookie, 10000), "more than 16384 bytes"},
		{"bad request", rest(ntstest.Record(0x8002, 0, 1)), "refuses the key exchange: bad request"},
		{"unknown error", rest(ntstest.Record(0x8002, 9, 1)), "code 2305"},
		{"a warning", rest(protocol, ntstest.Record(0x8003, 0, 7)), "warns in the key exchange (code 7)"},
		{"an unknown critical record", rest(protocol, ntstest.Record(0x8000|999)), "unknown critical record (type 999)"},
		{"a server with a control character", rest(protocol, ntstest.Record(6, []byte("a\x1b[2Jb")...)), `"a\x1b[2Jb" is not the name`},
		{"port 0", rest(protocol, ntstest.Record(7, 0, 0)), "port of the NTP server is wrong"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := start(t, func(s *ntstest.Server) { s.Records = func([]byte) []byte { return c.records } })
			if _, err := Exchange(t.Context(), f.address, f.config); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want %q", err, c.says)
			}
		})
	}
	for n := range whole { // The message is cut off after n bytes.
		if _, err := readAnswer(bytes.NewReader(whole[:n])); err == nil {
			t.Errorf("the first %d of %d bytes are accepted as a key exchange", n, len(whole))
		}
	}
}

// TestExchangeNames checks that the server of a key exchange can name another NTP server.
func TestExchangeNames(t *testing.T) {
	a, err := readAnswer(bytes.NewReader(slices.Concat(ntstest.Record(6, []byte("2001:db8::1")...), ntstest.Record(0x8007, 1, 0), ntstest.Record(999, 1), exchangeOf([][]byte{{1}}))))
	if err != nil || a.host != "2001:db8::1" || a.port != 256 {
		t.Errorf("the named NTP server is %+v, %v", a, err)
	}
}

// TestSilentExchange checks that a key exchange with a silent server ends with its context, and at
// the latest after exchangeTimeout.
func TestSilentExchange(t *testing.T) {
	f := start(t, func(s *ntstest.Server) { s.Records = func([]byte) []byte { return nil } })
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	began := time.Now()
	if _, err := Exchange(ctx, f.address, f.config); err == nil || time.Since(began) >= exchangeTimeout {
		t.Errorf("%v after %v", err, time.Since(began))
	}
	var timeout net.Error
	if _, err := Exchange(t.Context(), f.address, f.config); !errors.As(err, &timeout) || !timeout.Timeout() || time.Since(began) > 3*exchangeTimeout {
		t.Errorf("%v after %v", err, time.Since(began))
	}
}

func TestTLSRefused(t *testing.T) {
	old := func(s *ntstest.Server) { s.TLS.MinVersion, s.TLS.MaxVersion = tls.VersionTLS12, tls.VersionTLS12 }
	other := func(s *ntstest.Server) { s.TLS.NextProtos = []string{"h2"} }
	none := func(s *ntstest.Server) { s.TLS.NextProtos = nil }
	good := func(*ntstest.Server) {}
	for _, c := range []struct {
		name   string
		change func(*ntstest.Server)
		config *tls.Config // nil for the correct configuration
		says   string
	}{
		{"TLS 1.2", old, nil, "protocol version"},
		{"another application", other, nil, "no application protocol"},
		{"no application", none, nil, "does not offer key exchanges of NTS"},
		{"another CA", good, pki.ClientConfig("127.0.0.1", nil, now), "unknown authority"},
		{"another name", good, pki.ClientConfig("time.example", nil, now), "is not valid for any names"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := start(t, c.change)
			if c.config == nil {
				c.config = f.config
			}
			if _, err := Exchange(t.Context(), f.address, c.config); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want %q", err, c.says)
			}
		})
	}
}

func now() pki.ClockView { return pki.ClockView{Now: time.Now()} }

// TestAnswerRefused checks that the session rejects answers that are not authentic, and accepts the
// next authentic answer.
func TestAnswerRefused(t *testing.T) {
	flip := func(at int) func(_, answer []byte) []byte {
		return func(_, answer []byte) []byte { answer[at] ^= 1; return answer }
	}
	var first []byte
	for _, c := range []struct {
		name   string
		change func(request, answer []byte) []byte
		want   error
	}{
		{"a plain answer", func(_, a []byte) []byte { return a[:headerSize] }, errUnauthenticated},
		{"an identifier alone", func(_, a []byte) []byte { return a[:headerSize+4+idSize] }, errUnauthenticated},
		{"an authenticator alone", func(_, a []byte) []byte { return slices.Concat(a[:headerSize], a[headerSize+4+idSize:]) }, errOtherRequest},
		{"an authenticator before the identifier", func(_, a []byte) []byte {
			id := a[headerSize : headerSize+4+idSize]
			return slices.Concat(a[:headerSize], a[headerSize+4+idSize:], id)
		}, errOtherRequest},
		{"a changed time", flip(43), errUnauthenticated},
		{"a changed stratum", flip(1), errUnauthenticated},
		{"a changed identifier", flip(headerSize + 10), errOtherRequest},
		{"a changed nonce", flip(headerSize + 4 + idSize + 10), errUnauthenticated},
		{"a changed tag", flip(headerSize + 4 + idSize + 4 + 4 + nonceSize), errUnauthenticated},
		{"a changed cookie", func(_, a []byte) []byte { a[len(a)-9] ^= 1; return a }, errUnauthenticated},
		{"another key", func(_, a []byte) []byte { return ntstest.Sign(make([]byte, keySize), a[:headerSize+4+idSize], nil) }, errUnauthenticated},
		{"the request as its answer", func(r, _ []byte) []byte { r[0] = 4<<3 | 4; return r }, errUnauthenticated},
		{"an answer without a nonce", func(_, a []byte) []byte {
			return append(a[:headerSize+4+idSize], ntstest.Field(0x0404, make([]byte, 40))...)
		}, errFields},
		{"a nonce beyond the field", func(_, a []byte) []byte { a[headerSize+4+idSize+4] = 0xff; return a }, errFields},
		{"a text beyond the field", func(_, a []byte) []byte { a[headerSize+4+idSize+6] = 0xff; return a }, errFields},
		{"a short field", func(_, a []byte) []byte { a[headerSize+2], a[headerSize+3] = 0, 3; return a }, errFields},
		{"a field beyond the answer", func(_, a []byte) []byte { a[headerSize+2] = 0xff; return a }, errFields},
		{"half an answer", func(_, a []byte) []byte { return a[:30] }, errUnauthenticated},
		{"a NAK", func(_, a []byte) []byte { a[1] = 0; copy(a[12:], kissNAK); return a[:headerSize+4+idSize] }, ErrNAK},
		{"a NAK for another request", func(_, a []byte) []byte {
			a[1], a[headerSize+9] = 0, a[headerSize+9]^1
			copy(a[12:], kissNAK)
			return a[:headerSize+4+idSize]
		}, errOtherRequest},
		{"a NAK without an identifier", func(_, a []byte) []byte { a[1] = 0; copy(a[12:], kissNAK); return a[:headerSize] }, errUnauthenticated},
		{"another kiss of death", func(_, a []byte) []byte { a[1] = 0; copy(a[12:], "DENY"); return a[:headerSize+4+idSize] }, errUnauthenticated},
		{"the answer of another request", func(_, a []byte) []byte {
			if first == nil {
				first = a
				return nil
			}
			copy(first[24:32], a[24:32])
			return first
		}, errOtherRequest},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := start(t, func(*ntstest.Server) {})
			f.Change(c.change)
			s := f.exchange(t)
			if c.name == "the answer of another request" {
				query(s) // The server stores this answer and sends it for the next request.
			}
			if _, err := query(s); !errors.Is(err, c.want) || s.Answered() {
				t.Errorf("got %v, want %v; answered %t", err, c.want, s.Answered())
			}
			f.Change(nil)
			if _, err := query(s); err != nil || !s.Answered() {
				t.Errorf("the next answer: %v", err)
			}
		})
	}
}

// TestSecondAnswer checks that the session accepts an answer once only.
func TestSecondAnswer(t *testing.T) {
	f := start(t, func(*ntstest.Server) {})
	var kept []byte
	f.Change(func(_, a []byte) []byte { kept = slices.Clone(a); return a })
	s := f.exchange(t)
	if _, err := query(s); err != nil {
		t.Fatal(err)
	}
	if err := s.ProcessResponse(kept); !errors.Is(err, errUnauthenticated) || s.Cookies() != maxCookies {
		t.Errorf("the same answer again: %v, %d cookies", err, s.Cookies())
	}
}

// TestNAK checks that a server that has lost the key of its cookies sends a NAK, and that a new key
// exchange is then sufficient.
func TestNAK(t *testing.T) {
	f := start(t, func(*ntstest.Server) {})
	s := f.exchange(t)
	f.Forget()
	if _, err := query(s); !errors.Is(err, ErrNAK) {
		t.Errorf("got %v", err)
	}
	if _, err := query(f.exchange(t)); err != nil {
		t.Errorf("after another exchange: %v", err)
	}
}

// TestCookieLimits checks that the session limits the number and the size of its cookies, so a
// server cannot fill the memory of the client.
func TestCookieLimits(t *testing.T) {
	key, id := bytes.Repeat([]byte{9}, keySize), bytes.Repeat([]byte{3}, idSize)
	cipher, err := miscreant.NewAESCMACSIV(key)
	if err != nil {
		t.Fatal(err)
	}
	message := append(make([]byte, headerSize), ntstest.Field(0x0104, id)...)
	var fields []byte
	for _, size := range []int{0, maxCookie + 4, maxCookie} {
		fields = append(fields, ntstest.Field(0x0204, make([]byte, size))...)
	}
	s := &Session{toHost: cipher, id: id}
	if err := s.ProcessResponse(ntstest.Sign(key, message, fields)); err != nil || s.Cookies() != 1 || len(s.cookies[0]) != maxCookie {
		t.Errorf("%d cookies, %v", s.Cookies(), err)
	}
	s.id = id
	if err := s.ProcessResponse(ntstest.Sign(key, message, bytes.Repeat(ntstest.Field(0x0204, id), 20))); err != nil || s.Cookies() != maxCookies {
		t.Errorf("%d cookies, %v", s.Cookies(), err)
	}
}

// TestUnauthenticatedCookie checks that the session ignores cookies outside the authenticator.
func TestUnauthenticatedCookie(t *testing.T) {
	f := start(t, func(*ntstest.Server) {})
	forged := bytes.Repeat([]byte{7}, 100)
	f.Change(func(_, a []byte) []byte { return append(a, ntstest.Field(0x0204, forged)...) })
	s := f.exchange(t)
	if _, err := query(s); err != nil {
		t.Fatal(err)
	}
	if slices.ContainsFunc(s.cookies, func(c []byte) bool { return bytes.Equal(c, forged) }) {
		t.Error("the session has a forged cookie")
	}
}

// TestCipher checks the cipher with the second example of RFC 5297 (appendix A.2), in which the
// nonce is the last associated data.
func TestCipher(t *testing.T) {
	hexed := func(s string) []byte {
		b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	c, err := miscreant.NewAESCMACSIV(hexed("7f7e7d7c 7b7a7978 77767574 73727170 40414243 44454647 48494a4b 4c4d4e4f"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := c.Seal(nil, hexed("74686973 20697320 736f6d65 20706c61 696e7465 78742074 6f20656e 63727970 74207573 696e6720 5349562d 414553"),
		hexed("00112233 44556677 8899aabb ccddeeff deaddada deaddada ffeeddcc bbaa9988 77665544 33221100"),
		hexed("10203040 50607080 90a0"), hexed("09f91102 9d74e35b d84156c5 635688c0"))
	want := "7bdb6e3b432667eb06f4d14bff2fbd0fcb900f2fddbe404326601965c889bf17dba77ceb094fa663b7a3f748ba8af829ea64ad544a272e9c485b62a3fd5c0d"
	if err != nil || hex.EncodeToString(got) != want {
		t.Errorf("the encrypted text is %x, %v", got, err)
	}
}

// FuzzRecords checks that arbitrary records are rejected, or name a server and cookies within the
// limits.
func FuzzRecords(f *testing.F) {
	f.Add(exchangeOf([][]byte{{1, 2, 3, 4}, {5}}))
	f.Add(slices.Concat(ntstest.Record(6, []byte("time.example")...), ntstest.Record(7, 1, 0), exchangeOf([][]byte{{1}})))
	f.Fuzz(func(t *testing.T, records []byte) {
		a, err := readAnswer(bytes.NewReader(records))
		if err != nil {
			return
		}
		if len(a.cookies) == 0 || len(a.cookies) > maxCookies || len(a.host) > maxHost || a.port == 0 {
			t.Errorf("the accepted key exchange is %+v", a)
		}
	})
}

// FuzzFields checks that no answer is authentic if its sender lacks the key.
func FuzzFields(f *testing.F) {
	id := bytes.Repeat([]byte{3}, idSize)
	whole := append(make([]byte, headerSize), ntstest.Field(0x0104, id)...)
	f.Add(whole)
	f.Add(ntstest.Sign(make([]byte, keySize), whole, nil))
	f.Fuzz(func(t *testing.T, message []byte) {
		key, err := miscreant.NewAESCMACSIV(bytes.Repeat([]byte{9}, keySize))
		if err != nil {
			t.Fatal(err)
		}
		s := &Session{toHost: key, id: id}
		if s.ProcessResponse(message) == nil || s.Answered() || s.Cookies() > 0 {
			t.Errorf("the answer %s is accepted", fmt.Sprintf("%x", message))
		}
	})
}
