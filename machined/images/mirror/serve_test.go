package mirror

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/orlop-os/orlop/pkg/loopback"
)

// serving starts a server with these limits. Its source has a single blob.
func serving(t *testing.T, limits loopback.Limits) (address, blob string) {
	t.Helper()
	blob = digest.FromString("a layer").String()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		ended <- loopback.Serve(l, Handler(shelf{blobs: map[string]string{blob: "a layer"}}, "word"), limits)
	}()
	t.Cleanup(func() {
		l.Close()
		if err := <-ended; !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	})
	return l.Addr().String(), blob
}

func dial(t *testing.T, address string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err == nil {
		err = c.SetDeadline(time.Now().Add(20 * time.Second))
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// pull requests a blob over a connection. It returns the status, and kept is true if the server
// does not close the connection after the answer.
func pull(c net.Conn, blob, token string) (status int, kept bool, err error) {
	if _, err := fmt.Fprintf(c, "GET /v2/a/blobs/%s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n\r\n", blob, token); err != nil {
		return 0, false, err
	}
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0, false, err
	}
	_, err = io.Copy(io.Discard, r.Body)
	return r.StatusCode, !r.Close, errors.Join(err, r.Body.Close())
}

// ended waits until the server closes a connection. It returns false if the connection is still
// open at its deadline.
func ended(c net.Conn) bool {
	_, err := c.Read(make([]byte, 1))
	e := net.Error(nil)
	return err != nil && !(errors.As(err, &e) && e.Timeout())
}

// TestSilentConnections checks that many connections without a request do not block the container
// runtime: it can still use its open connection, and a new connection.
func TestSilentConnections(t *testing.T) {
	address, blob := serving(t, loopback.Limits{Clients: 4, MaxUnauthenticated: 4, Header: time.Hour, Idle: time.Hour})
	first := dial(t, address)
	if status, kept, err := pull(first, blob, "word"); status != http.StatusOK || !kept || err != nil {
		t.Fatalf("%d, kept %t, %v", status, kept, err)
	}
	var silent []net.Conn
	for range 40 {
		silent = append(silent, dial(t, address))
	}
	if status, _, err := pull(first, blob, "word"); status != http.StatusOK || err != nil {
		t.Errorf("over the open connection: %d, %v", status, err)
	}
	second := dial(t, address)
	if status, _, err := pull(second, blob, "word"); status != http.StatusOK || err != nil {
		t.Errorf("over a new connection: %d, %v", status, err)
	}
	// All silent connections must end, except the last four, which are within the limit.
	for i, c := range silent[:36] {
		if !ended(c) {
			t.Errorf("silent connection %d is still open", i)
		}
	}
}

// TestStrangersAreClosed checks that the server answers a single request of a client without the
// token, and then closes the connection. It also checks the limit of clients with the token.
func TestStrangersAreClosed(t *testing.T) {
	address, blob := serving(t, loopback.Limits{Clients: 2, MaxUnauthenticated: 4, Header: time.Hour, Idle: time.Hour})
	stranger := dial(t, address)
	if status, kept, err := pull(stranger, blob, "wrong"); status != http.StatusForbidden || kept || err != nil {
		t.Errorf("%d, kept %t, %v", status, kept, err)
	}
	if !ended(stranger) {
		t.Error("the connection of a client without the token stays open")
	}
	for i, want := range []int{http.StatusOK, http.StatusOK, http.StatusServiceUnavailable} {
		if status, kept, err := pull(dial(t, address), blob, "word"); status != want || kept != (want == http.StatusOK) || err != nil {
			t.Errorf("client %d: %d, kept %t, %v", i, status, kept, err)
		}
	}
}

// TestSlowHeader checks that the connection of a request without a complete header is closed after
// the timeout.
func TestSlowHeader(t *testing.T) {
	address, _ := serving(t, loopback.Limits{Clients: 2, MaxUnauthenticated: 4, Header: time.Millisecond, Idle: time.Hour})
	c := dial(t, address)
	if _, err := io.WriteString(c, "GET /v2/ HTTP/1.1\r\n"); err != nil {
		t.Fatal(err)
	}
	if !ended(c) {
		t.Error("the connection is still open")
	}
}
