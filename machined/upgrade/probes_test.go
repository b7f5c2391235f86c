package upgrade

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// TestFirstGateway checks that a gateway that does not respond does not delay the success of
// another gateway.
func TestFirstGateway(t *testing.T) {
	dead, alive := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.1.1")
	probe := func(ctx context.Context, via netip.Addr) error {
		if via == alive {
			return ctx.Err()
		}
		<-ctx.Done()
		return errors.New("gateway " + via.String() + " does not answer")
	}
	for _, test := range []struct {
		gateways []netip.Addr
		want     string
	}{
		{[]netip.Addr{dead, alive}, ""},
		{[]netip.Addr{alive, dead}, ""},
		{[]netip.Addr{dead}, "gateway 10.0.0.1 does not answer"},
		{nil, "network: no gateway, but the previous version had one"},
	} {
		var probes []func(context.Context) error
		for _, a := range test.gateways {
			probes = append(probes, func(ctx context.Context) error { return probe(ctx, a) })
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		if test.want != "" {
			cancel() // the deadline has passed
		}
		err := firstGateway(ctx, probes)
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%v: %v, want %q", test.gateways, err, test.want)
		}
		if ctx.Err() == context.DeadlineExceeded {
			t.Errorf("%v: firstGateway returns only at the deadline", test.gateways)
		}
		cancel()
	}
}
