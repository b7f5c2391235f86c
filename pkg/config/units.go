package config

import (
	"fmt"
	"math"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Bytes is an amount of memory or disk space. Its text is an integer with a binary unit: 256MiB,
// 2GiB.
type Bytes int64

const wantBytes = "a whole number followed by KiB, MiB, GiB or TiB, such as 256MiB"

// byteUnits returns the accepted units, the largest first.
func byteUnits() []string { return []string{"TiB", "GiB", "MiB", "KiB"} }

func byteShift(unit string) (uint, bool) {
	switch unit {
	case "KiB":
		return 10, true
	case "MiB":
		return 20, true
	case "GiB":
		return 30, true
	case "TiB":
		return 40, true
	}
	return 0, false
}

// UnmarshalText parses an amount.
func (b *Bytes) UnmarshalText(text []byte) error {
	number, unit := splitNumber(string(text))
	shift, known := byteShift(unit)
	switch {
	case number == "":
		return &wrong{reason: fmt.Sprintf("%s is not an amount", quote(string(text))), expected: wantBytes}
	case !known:
		return &wrong{reason: badUnit(unit), expected: wantBytes, nearest: nearestBytes(number, unit)}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n > math.MaxInt64>>shift {
		return &wrong{reason: fmt.Sprintf("%s is too large", quote(string(text))), expected: "less than 8388608TiB"}
	}
	*b = Bytes(n << shift)
	return nil
}

// String prints the amount with the largest unit in which it is an integer. String prints an amount
// that is not a multiple of a KiB in bytes. UnmarshalText rejects this form, and never returns such
// an amount.
func (b Bytes) String() string {
	for _, unit := range byteUnits() {
		if shift, _ := byteShift(unit); b != 0 && b%(1<<shift) == 0 {
			return strconv.FormatInt(int64(b>>shift), 10) + unit
		}
	}
	if b == 0 {
		return "0KiB"
	}
	return strconv.FormatInt(int64(b), 10) + "B"
}

// MarshalText returns String.
func (b Bytes) MarshalText() ([]byte, error) { return []byte(b.String()), nil }

// nearestBytes guesses the intended amount of a number with an unknown unit. It returns "" if it
// finds none.
func nearestBytes(number, unit string) string {
	if unit == "" || len(number) > 18 {
		return ""
	}
	switch unit[0] {
	case 'k', 'K':
		return number + "KiB"
	case 'm', 'M':
		return number + "MiB"
	case 'g', 'G':
		return number + "GiB"
	case 't', 'T':
		return number + "TiB"
	}
	return ""
}

// MilliCPU is processor time in thousandths of a core. Its text is cores ("2") or thousandths
// ("200m").
type MilliCPU int64

const wantCPU = `whole cores ("2") or thousandths of a core ("200m")`

// UnmarshalText parses an amount of processor time.
func (c *MilliCPU) UnmarshalText(text []byte) error {
	number, unit := splitNumber(string(text))
	n, err := strconv.ParseInt(number, 10, 32)
	switch {
	case number == "":
		return &wrong{reason: fmt.Sprintf("%s is not an amount of processor time", quote(string(text))), expected: wantCPU}
	case unit == "m" && err == nil:
		*c = MilliCPU(n)
	case unit == "" && err == nil:
		*c = MilliCPU(n * 1000)
	case err != nil:
		return &wrong{reason: fmt.Sprintf("%s is too large", quote(string(text))), expected: wantCPU}
	case strings.HasPrefix(unit, "."):
		return &wrong{reason: "a fraction of a core", expected: wantCPU, nearest: nearestCPU(string(text))}
	default:
		return &wrong{reason: badUnit(unit), expected: wantCPU}
	}
	return nil
}

func nearestCPU(text string) string {
	cores, err := strconv.ParseFloat(text, 64)
	if err != nil || cores < 0 || cores > 1e6 {
		return ""
	}
	return strconv.FormatInt(int64(math.Round(cores*1000)), 10) + "m"
}

// String prints whole cores as a number, and other values in thousandths ("200m").
func (c MilliCPU) String() string {
	if c%1000 == 0 {
		return strconv.FormatInt(int64(c/1000), 10)
	}
	return strconv.FormatInt(int64(c), 10) + "m"
}

// MarshalText returns String.
func (c MilliCPU) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// Duration is a duration in whole milliseconds. Its text has units: 10s, 1m30s, 500ms.
type Duration time.Duration

const wantDuration = "whole numbers with the units h, m, s or ms, such as 10s or 1m30s"

// UnmarshalText parses a duration.
func (d *Duration) UnmarshalText(text []byte) error {
	s := string(text)
	v, err := time.ParseDuration(s)
	if err != nil || strings.ContainsAny(s, "+-.") || v%time.Millisecond != 0 {
		w := &wrong{reason: fmt.Sprintf("%s is not a length of time", quote(s)), expected: wantDuration}
		if number, unit := splitNumber(s); number != "" && unit == "" {
			w.reason, w.nearest = "the unit is missing", s+"s"
		}
		return w
	}
	*d = Duration(v)
	return nil
}

// String prints the duration in the units h, m, s and ms, without units with the number 0.
func (d Duration) String() string {
	if d == 0 {
		return "0s"
	}
	var b strings.Builder
	rest := time.Duration(d)
	for _, u := range []struct {
		size time.Duration
		name string
	}{{time.Hour, "h"}, {time.Minute, "m"}, {time.Second, "s"}, {time.Millisecond, "ms"}} {
		if n := rest / u.size; n > 0 {
			b.WriteString(strconv.FormatInt(int64(n), 10) + u.name)
			rest -= n * u.size
		}
	}
	return b.String()
}

// Seconds returns the number of whole seconds.
func (d Duration) Seconds() int64 { return int64(time.Duration(d) / time.Second) }

// MarshalText returns String.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// MAC is an Ethernet hardware address in lower case with colons; "" for none.
type MAC string

// UnmarshalText parses six bytes in hexadecimal with colons.
func (m *MAC) UnmarshalText(text []byte) error {
	s := strings.ToLower(string(text))
	bad := &wrong{reason: fmt.Sprintf("%s is not a hardware address", quote(string(text))), expected: "six bytes in hexadecimal with colons, such as 52:54:00:12:34:56"}
	if len(s) != 17 {
		return bad
	}
	for i := range len(s) {
		isHex := strings.IndexByte("0123456789abcdef", s[i]) >= 0
		if i%3 == 2 && s[i] == '-' {
			bad.nearest = strings.ReplaceAll(s, "-", ":")
			return bad
		}
		if (i%3 == 2) != (s[i] == ':') || (i%3 != 2 && !isHex) {
			return bad
		}
	}
	first, _ := strconv.ParseUint(s[:2], 16, 8)
	if first&1 == 1 || s == "00:00:00:00:00:00" {
		return &wrong{reason: fmt.Sprintf("%s is a group address or empty", quote(s)), expected: "the address of one interface"}
	}
	*m = MAC(s)
	return nil
}

// MarshalText returns the address.
func (m MAC) MarshalText() ([]byte, error) { return []byte(m), nil }

// Endpoint is an HTTPS URL that consists of a host and a port.
type Endpoint struct {
	Host string // DNS name in lower case, or IP address without brackets
	Port uint16 // 1 to 65535
}

// UnmarshalText parses the URL.
func (e *Endpoint) UnmarshalText(text []byte) error {
	return e.read(string(text), "https://host:port, such as https://10.0.0.5:6443", 6443, true)
}

// read parses the URL. If the port is missing, it sets defaultPort; if portRequired is true, it
// returns an error instead.
func (e *Endpoint) read(s, want string, defaultPort uint16, portRequired bool) error {
	u, err := url.Parse(s)
	bad := &wrong{reason: fmt.Sprintf("%s is not an endpoint", quote(s)), expected: want}
	switch {
	case err != nil || (u.Host == "" && !strings.Contains(s, "://")):
		if hostname(s) == nil {
			bad.nearest = Endpoint{Host: s, Port: defaultPort}.String()
		}
		return bad
	case u.Scheme != "https":
		bad.reason = fmt.Sprintf("the scheme is %s", quote(u.Scheme))
		return bad
	case u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || strings.HasSuffix(s, "#") || (u.Path != "" && u.Path != "/"):
		bad.reason = "it contains more than a host and a port"
		return bad
	}
	host := strings.ToLower(u.Hostname())
	if err := hostOrAddr(host); err != nil {
		bad.reason = "the host " + err.Error()
		return bad
	}
	port := uint64(defaultPort)
	if u.Port() != "" {
		port, err = strconv.ParseUint(u.Port(), 10, 16)
	} else if portRequired {
		bad.reason, bad.nearest = "the port is missing", Endpoint{Host: host, Port: defaultPort}.String()
		return bad
	}
	if err != nil || port == 0 {
		bad.reason = fmt.Sprintf("the port %s is not in 1 to 65535", quote(u.Port()))
		return bad
	}
	if a, err := netip.ParseAddr(host); err == nil {
		if a.IsUnspecified() || a.IsMulticast() || a.Is4In6() {
			bad.reason = fmt.Sprintf("%s is not the address of a machine", a)
			return bad
		}
		host = a.String()
	}
	*e = Endpoint{Host: host, Port: uint16(port)}
	return nil
}

// String returns the URL.
func (e Endpoint) String() string {
	if e == (Endpoint{}) {
		return ""
	}
	host := e.Host
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return "https://" + host + ":" + strconv.Itoa(int(e.Port))
}

// MarshalText returns String.
func (e Endpoint) MarshalText() ([]byte, error) { return []byte(e.String()), nil }

// Addr returns the host as an address; it is invalid if the host is a name.
func (e Endpoint) Addr() netip.Addr {
	a, err := netip.ParseAddr(e.Host)
	if err != nil {
		return netip.Addr{}
	}
	return a
}

// splitNumber splits a text into its leading decimal digits and the rest.
func splitNumber(s string) (number, rest string) {
	i := 0
	for i < len(s) && s[i] >= '0' && s[i] <= '9' {
		i++
	}
	return s[:i], s[i:]
}

func badUnit(unit string) string {
	if unit == "" {
		return "the unit is missing"
	}
	return fmt.Sprintf("the unit %s is not known", quote(unit))
}

// quote quotes and shortens a text of the configuration file for a message.
func quote(s string) string {
	const most = 60
	if len(s) > most {
		cut := most
		for cut > 0 && s[cut]&0xc0 == 0x80 { // do not cut within a character
			cut--
		}
		s = s[:cut] + "…"
	}
	return strconv.Quote(s)
}
