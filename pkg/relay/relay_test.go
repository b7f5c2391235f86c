package relay

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/nettest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/api"
)

// between is a machine in the middle that relays to a single address.
type between struct {
	api.UnimplementedMachineServer
	target string
	idle   time.Duration
	ended  chan error // result of each call of Relay
}

func (b *between) Relay(stream grpc.BidiStreamingServer[api.RelayData, api.RelayData]) error {
	conn, err := net.Dial("tcp", b.target)
	if err == nil {
		err = Join(stream, conn, b.idle)
	}
	b.ended <- err
	return err
}

// relayed calls Relay of a machine in the middle, b. It returns the stream of this call, and, as
// other, the target's end of the relayed connection. cancel ends the call and stops the machine.
func relayed(idle time.Duration) (stream grpc.BidiStreamingClient[api.RelayData, api.RelayData], cancel func(), other net.Conn, b *between, err error) {
	target, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, nil, nil, err
	}
	defer target.Close()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, nil, nil, err
	}
	b = &between{target: target.Addr().String(), idle: idle, ended: make(chan error, 1)}
	server := grpc.NewServer()
	api.RegisterMachineServer(server, b)
	go server.Serve(listener)
	c, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, nil, nil, nil, err
	}
	ctx, end := context.WithCancel(context.Background())
	cancel = func() { end(); c.Close(); server.Stop() }
	if stream, err = api.NewMachineClient(c).Relay(ctx); err == nil {
		other, err = target.Accept()
	}
	return stream, cancel, other, b, err
}

// TestConn checks that a Conn behaves like any net.Conn.
func TestConn(t *testing.T) {
	nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
		stream, cancel, other, _, err := relayed(time.Minute)
		if err != nil {
			return nil, nil, nil, err
		}
		near := Conn(stream, func() {})
		return near, other, func() { near.Close(); other.Close(); cancel() }, nil
	})
}

func start(t *testing.T, idle time.Duration) (grpc.BidiStreamingClient[api.RelayData, api.RelayData], func(), net.Conn, *between) {
	t.Helper()
	stream, cancel, other, b, err := relayed(idle)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cancel)
	other.SetDeadline(time.Now().Add(20 * time.Second))
	return stream, cancel, other, b
}

// TestEndOfTheCall checks that the connection to the target ends when the caller disappears. If the
// machine in the middle ends a call, the caller gets its status.
func TestEndOfTheCall(t *testing.T) {
	stream, cancel, other, b := start(t, time.Minute)
	_ = Conn(stream, cancel)
	cancel()
	if _, err := other.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the target reads after the caller has disappeared: %v, want the end of the connection", err)
	}
	if err := <-b.ended; status.Code(err) != codes.Canceled {
		t.Errorf("the call ended with %v", err)
	}

	stream, cancel, _, _ = start(t, 50*time.Millisecond)
	near := Conn(stream, cancel)
	near.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := near.Read(make([]byte, 1)); status.Code(err) != codes.DeadlineExceeded || !strings.Contains(err.Error(), "no data was relayed for 50ms") {
		t.Errorf("error of an idle connection: %v", err)
	}

	stream, _, _, _ = start(t, time.Minute)
	if err := stream.Send(&api.RelayData{Chunk: make([]byte, Chunk+1)}); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a message that is too large: %v", err)
	}
}

// TestLastWords checks that the caller gets the data that the target has sent before it closed the
// connection. After that, writes of the caller fail.
func TestLastWords(t *testing.T) {
	stream, cancel, other, _ := start(t, time.Minute)
	near := Conn(stream, cancel)
	near.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := other.Write([]byte("no")); err != nil {
		t.Fatal(err)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(near); string(got) != "no" || err != nil {
		t.Errorf("read %q, %v", got, err)
	}
	if _, err := near.Write([]byte("but")); err == nil {
		t.Error("Write succeeds after the connection has ended")
	}
}

// TestStall checks that Join ends if the caller reads no data, even while the target writes.
func TestStall(t *testing.T) {
	_, _, other, b := start(t, 200*time.Millisecond)
	go func() {
		for chunk := make([]byte, 1<<20); ; {
			if _, err := other.Write(chunk); err != nil {
				return
			}
		}
	}()
	if err := <-b.ended; status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("Join returned %v", err)
	}
}

func TestParseTarget(t *testing.T) {
	for text, want := range map[string]string{
		"10.0.0.12": "10.0.0.12", "2001:db8::1": "2001:db8::1", "::ffff:10.0.0.12": "10.0.0.12", "fd00::2": "fd00::2",
		"": "", "m1": "", "10.0.0.12:50000": "", "127.0.0.1": "", "::1": "", "0.0.0.0": "", "::": "", "224.0.0.1": "", "169.254.1.1": "", "fe80::1": "",
		"fe80::1%eth0": "", "255.255.255.255": "", "::ffff:127.0.0.1": "", "2001:db8::1%eth0": "",
	} {
		got, err := ParseTarget(text)
		if (err == nil) != (want != "") || err == nil && got.String() != want {
			t.Errorf("%q: %v, %v; want %q", text, got, err, want)
		}
	}
}
