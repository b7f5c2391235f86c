package nts

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// The types of records (RFC 8915 section 4.1). critical is the bit of a record that its receiver
// must understand.
const (
	recordEnd       = 0
	recordProtocol  = 1
	recordError     = 2
	recordWarning   = 3
	recordAlgorithm = 4
	recordCookie    = 5
	recordServer    = 6
	recordPort      = 7

	critical = 0x8000
)

const (
	protocolNTP  = 0  // NTPv4
	algorithmSIV = 15 // AEAD_AES_SIV_CMAC_256 (RFC 5297)
)

// The limits of a key exchange: its size and the size of a cookie and of a host name, in bytes, and
// the number of cookies. Servers send eight cookies of about 100 bytes.
const (
	maxAnswer  = 16 << 10
	maxCookies = 8
	maxCookie  = 512
	maxHost    = 253
)

// answer is the content of the server's records in a key exchange.
type answer struct {
	cookies [][]byte
	host    string // NTP server; if empty, the server of the key exchange
	port    uint16 // the port of the NTP server
}

// request returns the records of the client in a key exchange.
func request() []byte {
	out := record(nil, critical|recordProtocol, be16(protocolNTP))
	out = record(out, critical|recordAlgorithm, be16(algorithmSIV))
	return record(out, critical|recordEnd, nil)
}

func record(to []byte, kind uint16, body []byte) []byte {
	to = binary.BigEndian.AppendUint16(to, kind)
	to = binary.BigEndian.AppendUint16(to, uint16(len(body)))
	return append(to, body...)
}

func be16(v uint16) []byte { return binary.BigEndian.AppendUint16(nil, v) }

// readAnswer reads the records of the server up to the end record. It fails if a record is wrong or
// a required record is missing.
func readAnswer(from io.Reader) (answer, error) {
	out := answer{port: portNTP}
	limited := &io.LimitedReader{R: from, N: maxAnswer}
	seen := map[uint16]bool{}
	for {
		var head [4]byte
		body, err := readRecord(limited, &head)
		if err != nil {
			if limited.N <= 0 {
				return answer{}, fmt.Errorf("the key exchange has more than %d bytes", maxAnswer)
			}
			return answer{}, fmt.Errorf("the key exchange ends early: %w", err)
		}
		kind := binary.BigEndian.Uint16(head[:])
		if kind&^critical == recordEnd {
			break
		}
		if err := out.add(kind, body, seen[kind&^critical]); err != nil {
			return answer{}, err
		}
		seen[kind&^critical] = true
	}
	switch {
	case !seen[recordProtocol]:
		return answer{}, errors.New("the key exchange names no protocol")
	case !seen[recordAlgorithm]:
		return answer{}, errors.New("the key exchange names no algorithm")
	case len(out.cookies) == 0:
		return answer{}, errors.New("the key exchange has no cookie")
	}
	return out, nil
}

func readRecord(from io.Reader, head *[4]byte) ([]byte, error) {
	if _, err := io.ReadFull(from, head[:]); err != nil {
		return nil, err
	}
	body := make([]byte, binary.BigEndian.Uint16(head[2:]))
	_, err := io.ReadFull(from, body)
	return body, err
}

// add adds the content of a record to the answer. The parameter again is true if a record of this
// type came before. add fails if the record is wrong.
func (a *answer) add(kind uint16, body []byte, again bool) error {
	number := func() int {
		if len(body) != 2 || again {
			return -1
		}
		return int(binary.BigEndian.Uint16(body))
	}
	switch kind &^ critical {
	case recordProtocol:
		if number() != protocolNTP {
			return errors.New("the server does not offer NTPv4")
		}
	case recordAlgorithm:
		if number() != algorithmSIV {
			return errors.New("the server does not offer AES-SIV-CMAC-256")
		}
	case recordError:
		return fmt.Errorf("the server refuses the key exchange: %s", refusal(number()))
	case recordWarning: // RFC 8915 defines no warnings, and an unknown warning ends the exchange.
		return fmt.Errorf("the server warns in the key exchange (code %d)", number())
	case recordCookie:
		if len(body) == 0 || len(body) > maxCookie {
			return fmt.Errorf("a cookie has %d bytes; expected 1 to %d", len(body), maxCookie)
		}
		if len(a.cookies) < maxCookies {
			a.cookies = append(a.cookies, body)
		}
	case recordServer:
		if again || !plainHost(body) {
			return fmt.Errorf("%.60q is not the name or address of an NTP server", body)
		}
		a.host = string(body)
	case recordPort:
		port := number()
		if port <= 0 {
			return errors.New("the port of the NTP server is wrong")
		}
		a.port = uint16(port)
	default:
		if kind&critical != 0 {
			return fmt.Errorf("the server sends an unknown critical record (type %d)", kind&^critical)
		}
	}
	return nil
}

// refusal returns the meaning of an error code (RFC 8915 section 4.1.3).
func refusal(code int) string {
	switch code {
	case 0:
		return "unrecognized critical record"
	case 1:
		return "bad request"
	case 2:
		return "internal server error"
	}
	return fmt.Sprintf("code %d", code)
}

// plainHost reports whether text is not too long and has only the characters of host names and
// addresses.
func plainHost(text []byte) bool {
	for _, c := range text {
		if (c|0x20 < 'a' || c|0x20 > 'z') && (c < '0' || c > '9') && c != '.' && c != '-' && c != ':' {
			return false
		}
	}
	return len(text) > 0 && len(text) <= maxHost
}
