package health

import (
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/orlop-os/orlop/pkg/pki"
)

// TestProberLate checks that the result of a probe is Late if the server accepts the connection and
// sends nothing, but not if the port is closed.
func TestProberLate(t *testing.T) {
	ca, err := pki.NewCA("kubernetes", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(file, ca.CertPEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Prober{CAFile: file, Name: "localhost", Path: "/readyz", Timeout: 200 * time.Millisecond, Idle: time.Second, Dial: (&net.Dialer{}).DialContext}
	defer p.Close()
	if got, want := p.Probe(t.Context(), socket.Addr().String()), (ProbeResult{Late: true, Problem: "does not answer"}); got != want {
		t.Errorf("a silent server: %+v, want %+v", got, want)
	}
	socket.Close()
	if got := p.Probe(t.Context(), socket.Addr().String()); got.Late || got.Reachable || got.Problem == "" {
		t.Errorf("a closed port: %+v, want a problem, but not Late", got)
	}
}
