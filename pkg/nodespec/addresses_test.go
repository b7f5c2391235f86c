package nodespec

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// TestPublished checks that a machine publishes its reachable addresses, and no pod addresses. The
// number of addresses that ReadPublished returns is limited.
func TestPublished(t *testing.T) {
	pods := []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:244::/48")}
	text := Published(addresses("127.0.0.1", "::1", "fe80::1%eth0", "10.0.1.5", "10.0.0.5", "10.244.1.1", "fd00:244:0:1::1", "2001:db8::5", "10.0.0.5", "169.254.1.1"), pods)
	if text != "10.0.0.5,10.0.1.5,2001:db8::5" {
		t.Errorf("published %q", text)
	}
	if got := ReadPublished(text); !slices.Equal(got, addresses("10.0.0.5", "10.0.1.5", "2001:db8::5")) {
		t.Errorf("read %v", got)
	}
	if got := ReadPublished("x,,127.0.0.1,0.0.0.0, 10.0.0.5,fe80::1%eth0,224.0.0.1"); len(got) != 0 {
		t.Errorf("ReadPublished accepts the invalid addresses %v", got)
	}
	var many []string
	for i := range 300 {
		many = append(many, fmt.Sprintf("10.1.%d.%d", i/200, i%200))
	}
	if got := ReadPublished(strings.Join(many, ",")); len(got) != mostAddresses {
		t.Errorf("ReadPublished returns %d addresses, which is not its limit", len(got))
	}
}
