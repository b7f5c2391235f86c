package dhcp

import (
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// TestRequestedOptions checks the parameter request list of each encoded message, because a server
// may omit an option that is not in this list. Options 121 and 249 must precede options 3 and 33
// (RFC 3442).
func TestRequestedOptions(t *testing.T) {
	want := []byte{1, 121, 249, 3, 33, 6, 15, 119, 42, 26, 12, 51, 54, 58, 59}
	client := netip.MustParseAddr("192.0.2.5")
	for name, m := range map[string]Message{
		"DISCOVER":          {Discover: true, XID: 1},
		"REQUEST":           {XID: 1, Requested: client, Server: netip.MustParseAddr("192.0.2.1")},
		"REQUEST, renewing": {XID: 1, Client: client, To: netip.MustParseAddr("192.0.2.1")},
	} {
		p, err := encode(m, net.HardwareAddr{2, 0, 0, 0, 0, 1}, "n1")
		if err != nil {
			t.Fatal(err)
		}
		got := overTheWire(t, p).Options.Get(dhcpv4.OptionParameterRequestList)
		if !slices.Equal(got, want) {
			t.Errorf("%s requests the options %d, want %d", name, got, want)
		}
	}
}
