package config

import (
	"encoding"
	"fmt"
	"reflect"
	"testing"
	"time"
)

// TestUnits parses texts and prints the values. testdata/bad-machine.txtar contains more invalid
// texts; this test covers limits.
func TestUnits(t *testing.T) {
	type unit interface {
		encoding.TextUnmarshaler
		fmt.Stringer
	}
	tests := []struct {
		text    string
		into    unit
		printed string // empty if the text is invalid
	}{
		{"0KiB", new(Bytes), "0KiB"}, {"0GiB", new(Bytes), "0KiB"}, {"1KiB", new(Bytes), "1KiB"}, {"1024KiB", new(Bytes), "1MiB"},
		{"1536MiB", new(Bytes), "1536MiB"}, {"3TiB", new(Bytes), "3TiB"}, {"8388607TiB", new(Bytes), "8388607TiB"},
		{"8388608TiB", new(Bytes), ""}, {"9223372036854775808KiB", new(Bytes), ""}, {"1", new(Bytes), ""}, {"1B", new(Bytes), ""}, {"1GB", new(Bytes), ""},
		{"1gib", new(Bytes), ""}, {" 1GiB", new(Bytes), ""}, {"1 GiB", new(Bytes), ""}, {"1.5GiB", new(Bytes), ""}, {"", new(Bytes), ""}, {"GiB", new(Bytes), ""},
		{">= 100GiB", new(SizeRange), ">= 100GiB"}, {"<=2TiB", new(SizeRange), "<= 2TiB"}, {" <= 2TiB , >=1024MiB", new(SizeRange), ">= 1GiB, <= 2TiB"}, {">= 1GiB, <= 1GiB", new(SizeRange), ">= 1GiB, <= 1GiB"},
		{"", new(SizeRange), ""}, {"100GiB", new(SizeRange), ""}, {"> 1GiB", new(SizeRange), ""}, {">= 1GiB, >= 2GiB", new(SizeRange), ""}, {">= 2GiB, <= 1GiB", new(SizeRange), ""}, {">= 0GiB", new(SizeRange), ""}, {">= 1GB", new(SizeRange), ""}, {">= 1GiB,", new(SizeRange), ""},
		{"Logs.example.com:6514", new(HostPort), "logs.example.com:6514"}, {"[2001:DB8::1]:1", new(HostPort), "[2001:db8::1]:1"}, {"10.0.0.1:65535", new(HostPort), "10.0.0.1:65535"},
		{"", new(HostPort), ""}, {"h", new(HostPort), ""}, {"h:", new(HostPort), ""}, {"h:x", new(HostPort), ""}, {":1", new(HostPort), ""}, {"2001:db8::1:6514", new(HostPort), ""}, {"h_:1", new(HostPort), ""}, {"10.0.0.300:1", new(HostPort), ""}, {"h:65536", new(HostPort), ""},
		{"10.0.0.2", new(NameServer), "10.0.0.2"}, {"10.0.0.2:53", new(NameServer), "10.0.0.2"}, {"10.0.0.2:5353", new(NameServer), "10.0.0.2:5353"},
		{"2001:DB8::2", new(NameServer), "2001:db8::2"}, {"[2001:db8::2]:53", new(NameServer), "2001:db8::2"}, {"[2001:db8::2]:65535", new(NameServer), "[2001:db8::2]:65535"},
		{"", new(NameServer), ""}, {"10.0.0.2:", new(NameServer), ""}, {"10.0.0.2:0", new(NameServer), ""}, {"10.0.0.2:65536", new(NameServer), ""}, {"10.0.0.300", new(NameServer), ""}, {"ns.example:53", new(NameServer), ""}, {"[2001:db8::2]", new(NameServer), ""},
		{"0", new(MilliCPU), "0"}, {"2", new(MilliCPU), "2"}, {"2000m", new(MilliCPU), "2"}, {"1500m", new(MilliCPU), "1500m"}, {"2147483647", new(MilliCPU), "2147483647"},
		{"2147483648", new(MilliCPU), ""}, {"1.5", new(MilliCPU), ""}, {"m", new(MilliCPU), ""}, {"1M", new(MilliCPU), ""}, {"-1", new(MilliCPU), ""},
		{"0s", new(Duration), "0s"}, {"0", new(Duration), "0s"}, {"90s", new(Duration), "1m30s"}, {"1h30m", new(Duration), "1h30m"}, {"1500ms", new(Duration), "1s500ms"}, {"60m", new(Duration), "1h"},
		{"10", new(Duration), ""}, {"1us", new(Duration), ""}, {"1000us", new(Duration), "1ms"}, {"1.5s", new(Duration), ""}, {"-1s", new(Duration), ""}, {"1d", new(Duration), ""}, {"", new(Duration), ""}, {"9999999999h", new(Duration), ""},
		{"https://h:1", new(Endpoint), "https://h:1"}, {"https://H.Example:6443/", new(Endpoint), "https://h.example:6443"}, {"https://[::1]:443", new(Endpoint), "https://[::1]:443"},
		{"https://h:0", new(Endpoint), ""}, {"https://:1", new(Endpoint), ""}, {"https://h:1/x", new(Endpoint), ""}, {"https://h:1?", new(Endpoint), ""}, {"https://h:1#", new(Endpoint), ""},
		{"https://[fe80::1%25eth0]:1", new(Endpoint), ""}, {"h:1", new(Endpoint), ""}, {"", new(Endpoint), ""}, {"https://-h:1", new(Endpoint), ""}, {"https://1.2.3:1", new(Endpoint), ""},
	}
	for _, test := range tests {
		err := test.into.UnmarshalText([]byte(test.text))
		switch {
		case err != nil && test.printed != "":
			t.Errorf("%T %q: %v", test.into, test.text, err)
		case err == nil && test.printed == "":
			t.Errorf("%T %q was read as %s", test.into, test.text, test.into)
		case err == nil && test.into.String() != test.printed:
			t.Errorf("%T %q: printed %s, want %s", test.into, test.text, test.into, test.printed)
		}
	}
}

func TestMAC(t *testing.T) {
	for text, want := range map[string]MAC{"52:54:00:AB:CD:EF": "52:54:00:ab:cd:ef", "02:00:00:00:00:01": "02:00:00:00:00:01"} {
		var m MAC
		if err := m.UnmarshalText([]byte(text)); err != nil || m != want {
			t.Errorf("%s: %s, %v", text, m, err)
		}
	}
	for _, text := range []string{"", "52:54:00:ab:cd", "52:54:00:ab:cd:ef:00", "5254.00ab.cdef", "ff:ff:ff:ff:ff:ff", "00:00:00:00:00:00", "52:54:00:ab:cd:e:"} {
		var m MAC
		if err := m.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q was read as %s", text, m)
		}
	}
}

// certificateFields returns the number of certificates and bundles in a value whose time CheckTime
// checks. It omits the accepted CAs, which expire without harm, and the ticket, which a worker
// needs only once.
func certificateFields(v reflect.Value) (n int) {
	switch v.Interface().(type) {
	case Accepted, Join:
		return 0
	case Certificate, Bundle:
		if v.IsZero() {
			return 0
		}
		return 1
	}
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			n = certificateFields(v.Elem())
		}
	case reflect.Slice:
		for i := range v.Len() {
			n += certificateFields(v.Index(i))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				n += certificateFields(v.Field(i))
			}
		}
	}
	return n
}

// TestCheckTime checks that CheckTime reports every certificate of the reference, if the time is
// before or after its validity.
func TestCheckTime(t *testing.T) {
	c := example(t)
	at := func(year int) time.Time { return time.Date(year, 7, 1, 0, 0, 0, 0, time.UTC) }
	if problems := c.CheckTime(at(2030)); len(problems) > 0 {
		t.Errorf("in 2030: %v", problems)
	}
	early, late := c.CheckTime(at(1970)), c.CheckTime(at(2200))
	// the reference has all fields (TestReferenceIsComplete)
	if want := certificateFields(reflect.ValueOf(*c)); len(early) != want || len(late) != want {
		t.Fatalf("got %d and %d problems, want %d each:\n%v\n%v", len(early), len(late), want, early, late)
	}
	if got, want := late[0].String(), fmt.Sprintf(`reference.yaml:%d:9: Machine.spec.trust.operatorCAs[0]: "CN=example operator" expired at 2126-01-01T00:00:00Z; expected a certificate that is valid at 2200-07-01T00:00:00Z`, late[0].Line); got != want || late[0].Line == 0 {
		t.Errorf("got %s\nwant %s", got, want)
	}
	if got := early[0].Hint; got != "or the clock is wrong" {
		t.Errorf("got the hint %q", got)
	}
}
