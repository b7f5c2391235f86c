package apiload

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/backoff"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/vm"
)

// fakeConn answers Version after a pause with the given error, or successfully if err is nil.
type fakeConn struct {
	grpc.ClientConnInterface
	pause time.Duration
	err   error
}

func (c fakeConn) Invoke(ctx context.Context, method string, _, _ any, _ ...grpc.CallOption) error {
	if method != api.Machine_Version_FullMethodName {
		return errors.New("unexpected call: " + method)
	}
	return errors.Join(backoff.Sleep(ctx, c.pause), c.err)
}

// TestMeasure runs in a bubble of synctest, because a busy computer can delay the calls for longer
// than the measurement lasts. Two clients make 100 calls a second each.
func TestMeasure(t *testing.T) { synctest.Test(t, testMeasure) }

func testMeasure(t *testing.T) {
	const pause, long = 10 * time.Millisecond, 200 * time.Millisecond
	c := client.Over(fakeConn{pause: pause})
	p, err := Measure(t.Context(), []*client.Client{c, c}, long)
	if err != nil || p.P50 != 10 || p.P99 != 10 || p.Calls < 190 || p.Calls > 210 {
		t.Errorf("%+v, %v", p, err)
	}
	broken := client.Over(fakeConn{err: errors.New("broken")})
	if _, err := Measure(t.Context(), []*client.Client{c, broken}, long); err == nil || !strings.Contains(err.Error(), "Version with 2 clients: broken") {
		t.Errorf("with a broken client: %v", err)
	}
}

func TestPace(t *testing.T) {
	var all []time.Duration
	for n := range 200 {
		all = append(all, time.Duration(200-n)*time.Millisecond)
	}
	if p, err := pace(all, 10*time.Second); err != nil || p != (Pace{P50: 101, P99: 199, Calls: 20}) {
		t.Errorf("%+v, %v", p, err)
	}
	if _, err := pace(nil, time.Second); err == nil {
		t.Error("pace returns figures without a call")
	}
}

// TestFlood starts a flood against a host that accepts no connection. Stop must count all
// handshakes as rejected.
func TestFlood(t *testing.T) {
	network, err := vm.NewNetwork(vm.NetworkSpec{})
	if err != nil {
		t.Fatal(err)
	}
	defer network.Close()
	var names []string
	f, err := StartFlood(func(name string) (*vm.Host, error) {
		names = append(names, name)
		return network.NewHost(name, netip.Addr{})
	}, network.Gateway().String()+":50000")
	if err != nil {
		t.Fatal(err)
	}
	deadline, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for f.tried.Load() == 0 {
		if err := backoff.Sleep(deadline, time.Millisecond); err != nil {
			t.Error(err)
			break
		}
	}
	if tried, refused := f.Stop(); tried == 0 || refused != tried || len(names) != floodHosts {
		t.Errorf("%d of %d handshakes were rejected, from %q", refused, tried, names)
	}
}
