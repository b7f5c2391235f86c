package capture

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/bpf"
)

// passes runs a filter as the machine does and reports whether it passes the packet.
func passes(t *testing.T, link LinkType, filter []bpf.RawInstruction, packet []byte) bool {
	t.Helper()
	program, err := Program(link, filter)
	if err != nil {
		t.Fatal(err)
	}
	instructions, whole := bpf.Disassemble(program)
	if !whole {
		t.Fatalf("the program cannot be disassembled: %v", instructions)
	}
	vm, err := bpf.NewVM(instructions)
	if err != nil {
		t.Fatal(err)
	}
	n, err := vm.Run(packet)
	if err != nil {
		t.Fatal(err)
	}
	return n > 0
}

func compile(t *testing.T, expression string) []bpf.RawInstruction {
	t.Helper()
	filter, err := Compile(expression)
	if err != nil {
		t.Fatal(err)
	}
	return filter
}

// TestCases checks which frames each filter passes, with and without a VLAN tag, and on a link with
// packets that begin with an IP header.
func TestCases(t *testing.T) {
	for _, c := range cases {
		filter := compile(t, c.filter)
		var plain, vlan, ip, wantIP []string
		for _, f := range frames(t) {
			if passes(t, Ethernet, filter, f.data) {
				plain = append(plain, f.name)
			}
			if passes(t, Ethernet, filter, tagged(f.data)) {
				vlan = append(vlan, f.name)
			}
			if f.name == "arp" || f.name == "other" {
				continue // such a link has only IP packets
			}
			if passes(t, IP, filter, f.data[14:]) {
				ip = append(ip, f.name)
			}
			if slices.Contains(strings.Fields(c.frames), f.name) {
				wantIP = append(wantIP, f.name)
			}
		}
		for on, got := range map[string][]string{"Ethernet": plain, "a VLAN": vlan} {
			if got := strings.Join(got, " "); got != c.frames {
				t.Errorf("%q on %s passes %q, want %q", c.filter, on, got, c.frames)
			}
		}
		if !slices.Equal(ip, wantIP) {
			t.Errorf("%q on a tunnel passes %q, want %q", c.filter, ip, wantIP)
		}
	}
}

// TestOwnPortIsLeftOut checks that no filter passes packets with TCP port 50000, the port of the
// management API, because these packets carry the results of the capture. UDP packets with this
// port (dns4) pass.
func TestOwnPortIsLeftOut(t *testing.T) {
	for _, f := range frames(t) {
		// offset of the ports
		at := map[string]int{"web4": 34, "web6": 54, "options": 38, "dns4": 34}[f.name]
		if at == 0 {
			continue
		}
		for _, port := range []int{at, at + 2} {
			own := bytes.Clone(f.data)
			own[port], own[port+1] = 50000>>8, 50000&0xff
			for _, c := range []struct {
				link   LinkType
				packet []byte
			}{{Ethernet, own}, {Ethernet, tagged(own)}, {IP, own[14:]}} {
				for _, filter := range []string{"", "ip or ip6"} {
					if got, want := passes(t, c.link, compile(t, filter), c.packet), f.name == "dns4"; got != want {
						t.Errorf("%s with port 50000 on a link of type %d, filter %q: passed %v, want %v", f.name, c.link, filter, got, want)
					}
				}
			}
		}
	}
}

// TestShortPackets checks that a filter passes no packet that is shorter than the Ethernet header,
// and that it runs without an error on truncated packets of a tunnel.
func TestShortPackets(t *testing.T) {
	filter := compile(t, "port 80 or net 2001:db8::/32")
	for _, f := range frames(t) {
		for n := range f.data {
			if n < 14 && passes(t, Ethernet, filter, f.data[:n]) {
				t.Errorf("the filter passes the first %d bytes of %s", n, f.name)
			}
			if n > 0 {
				passes(t, IP, filter, f.data[:n])
			}
		}
	}
}

func TestRefused(t *testing.T) {
	for expression, want := range map[string]string{
		"tcp and port 80 or udp":        `filter "tcp and port 80 or udp": and is combined with or: add parentheses`,
		"(tcp":                          `a closing parenthesis is missing`,
		"tcp)":                          `unexpected ")"; expected and, or, or the end`,
		"tcp udp":                       `unexpected "udp"`,
		"port 80 443":                   `unexpected "443"`,
		"not":                           `it is incomplete`,
		"tcp and":                       `it is incomplete`,
		"10.0.0.1":                      `"10.0.0.1" is not known; expected a protocol, host, net, port, src, dst, not or a parenthesis`,
		"ether host 02:00:00:00:00:01":  `"ether" is not known`,
		"port http":                     `port "http": expected a number from 0 to 65535`,
		"port 65536":                    `port "65536": expected a number`,
		"port":                          `port "": expected a number`,
		"icmp port 1":                   `icmp has no ports`,
		"host example.com":              `host "example.com": expected an address; names are not looked up`,
		"host fe80::1%eth0":             `host "fe80::1%eth0": expected an address`,
		"host ::ffff:10.0.0.1":          `host "::ffff:10.0.0.1": expected an address`,
		"src or dst port 80":            `host "or": expected an address`,
		"net 10.0.0.0":                  `net "10.0.0.0": expected an address with a prefix length`,
		"net 10.0.0.1/8":                `net 10.0.0.1/8: bits are set after the first 8; the network is 10.0.0.0/8`,
		"tcp host 10.0.0.1":             `tcp is not permitted before host: write "tcp and host …"`,
		"ip host ::1":                   `ip has no addresses such as ::1`,
		"ip6 net 10.0.0.0/8":            `ip6 has no addresses such as 10.0.0.0`,
		strings.Repeat("not ", 9) + "x": `"x" is not known`,
		anyOf("host 2001:db8::1", 100):  `at most`,
	} {
		filter, err := Compile(expression)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %d instructions, %v; want %q", expression, len(filter), err, want)
		}
	}
	if _, err := Program(Ethernet, make([]bpf.RawInstruction, maxProgram)); err == nil {
		t.Error("Program returns a program that is longer than the kernel permits")
	}
}

// anyOf joins n copies by "or".
func anyOf(what string, n int) string { return strings.Repeat(what+" or ", n-1) + what }

func TestCodec(t *testing.T) {
	filter := compile(t, "tcp port 80")
	text, err := Encode(filter)
	if err != nil || len(text) != 8*len(filter) {
		t.Fatalf("%d bytes for %d instructions, %v", len(text), len(filter), err)
	}
	if again, err := Decode(text); err != nil || !slices.Equal(again, filter) {
		t.Errorf("%v, %v; want %v", again, err, filter)
	}
	if empty, err := Decode(nil); err != nil || len(empty) != 0 {
		t.Errorf("an empty text is decoded as %v, %v", empty, err)
	}
	for _, bad := range [][]byte{text[1:], make([]byte, 8*maxProgram+8)} {
		if _, err := Decode(bad); err == nil {
			t.Errorf("Decode accepts %d bytes", len(bad))
		}
	}
}
