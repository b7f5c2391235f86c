package firewall

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"gotest.tools/v3/golden"
)

func prefixes(texts ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, t := range texts {
		out = append(out, netip.MustParsePrefix(t))
	}
	return out
}

// TestCommands compares all lines and nftables commands of a firewall with golden files.
func TestCommands(t *testing.T) {
	c := &Config{
		Open: []Rule{
			{Protocol: "tcp", Port: 50000},
			{Protocol: "tcp", Port: 10250, From: prefixes("10.0.0.1/32", "2001:db8::1/128")},
			{Protocol: "tcp", Port: 9100, From: prefixes("10.1.0.0/16", "10.0.0.0/8", "::/0", "2001:db8::/32")},
			{Protocol: "udp", Port: 53, From: prefixes("0.0.0.0/0")},
		},
		SystemPorts: []int{50000, 10250, 6443},
	}
	got := strings.Join(c.Lines(), "\n") + "\n\n" + c.Commands("cni0")
	golden.Assert(t, got, "commands.txt")
	golden.Assert(t, APIOnly(50000), "closed.txt")
	var none *Config
	if none.Commands("cni0") != Absent || none.Lines() != nil {
		t.Errorf("without a firewall: %q, %q", none.Commands("cni0"), none.Lines())
	}
}

// TestAllow checks that Allow restricts a port that is open to all networks: it is then open to the
// named networks and the machines of the cluster only. Any other port is opened to the named
// networks, too.
func TestAllow(t *testing.T) {
	own := prefixes("10.0.0.1/32")
	open := []Rule{{Protocol: "tcp", Port: 50000}, {Protocol: "tcp", Port: 10250, From: own}, {Protocol: "udp", Port: 51820}}
	got := Allow(open, []Rule{
		{Protocol: "tcp", Port: 50000, From: prefixes("10.9.0.0/16")},
		{Protocol: "tcp", Port: 10250, From: prefixes("10.8.0.0/16")},
		{Protocol: "tcp", Port: 51820, From: prefixes("10.7.0.0/16")},
	}, own)
	var lines []string
	for _, r := range got {
		lines = append(lines, r.String())
	}
	want := []string{
		"accept tcp port 50000 from 10.9.0.0/16, 10.0.0.1/32",
		"accept tcp port 10250 from 10.8.0.0/16, 10.0.0.1/32",
		"accept udp port 51820 from all networks",
		"accept tcp port 51820 from 10.7.0.0/16",
	}
	if !slices.Equal(lines, want) {
		t.Errorf("got %q, want %q", lines, want)
	}
	if len(open[0].From) != 0 {
		t.Error("Allow has changed its argument")
	}
}
