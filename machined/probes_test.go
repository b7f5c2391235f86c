package main

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/orlop-os/orlop/machined/network"
)

// TestFirstGateway checks that a dead gateway does not delay the answer of another gateway.
func TestFirstGateway(t *testing.T) {
	dead, alive := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.1.1")
	ask := func(ctx context.Context, r network.RouteState) error {
		if r.Via == alive {
			return ctx.Err()
		}
		<-ctx.Done()
		return errors.New("gateway " + r.Via.String() + " does not answer")
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
		var routes []network.RouteState
		for _, a := range test.gateways {
			routes = append(routes, network.RouteState{Via: a})
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		if test.want != "" {
			cancel() // the time is up
		}
		err := firstGateway(ctx, routes, ask)
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%v: %v, want %q", test.gateways, err, test.want)
		}
		if ctx.Err() == context.DeadlineExceeded {
			t.Errorf("%v: took all the time there is", test.gateways)
		}
		cancel()
	}
}
