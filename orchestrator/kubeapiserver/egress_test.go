package kubeapiserver

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/server/egressselector"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/pkg/egress"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
)

// TestEgressConfig checks that upstream accepts the configuration of the egress. The API server
// reaches webhooks and issuers of tokens by the socket of the forwarder, and everything else
// directly.
func TestEgressConfig(t *testing.T) {
	dir := t.TempDir()
	socket, file := filepath.Join(dir, "s"), filepath.Join(dir, "egress.yaml")
	if err := os.WriteFile(file, []byte(strings.Replace(egressConfig, paths.ForwarderSocket, socket, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	config, err := egressselector.ReadEgressSelectorConfiguration(file)
	if err != nil {
		t.Fatal(err)
	}
	if errs := egressselector.ValidateEgressSelectorConfiguration(config); len(errs) > 0 {
		t.Fatal(errs)
	}
	selector, err := egressselector.NewEgressSelector(config)
	if err != nil {
		t.Fatal(err)
	}
	for _, direct := range []egressselector.EgressType{egressselector.Cluster, egressselector.Etcd} {
		if dial, err := selector.Lookup(direct.AsNetworkContext()); dial != nil || err != nil {
			t.Errorf("connections of type %s use the forwarder: %v", direct, err)
		}
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: egress.NewForwarder(func() egress.Config { return egress.Config{} })}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	defer func() {
		if err := errors.Join(server.Close(), <-ended); !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	}()
	issuer, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer issuer.Close()
	go func() {
		conn, err := issuer.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = io.Copy(conn, conn) // the test compares the answer
	}()
	dial, err := selector.Lookup(egressselector.ControlPlane.AsNetworkContext())
	if err != nil {
		t.Fatal(err)
	}
	conn, err := dial(t.Context(), "tcp", issuer.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	echo := make([]byte, 5)
	if _, err := io.WriteString(conn, "hello"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(conn, echo); err != nil || string(echo) != "hello" {
		t.Errorf("the answer through the forwarder is %q, %v; want hello", echo, err)
	}
}

// TestForwarderFlag checks that only a machine that uses the forwarder has the flag and its file.
func TestForwarderFlag(t *testing.T) {
	for _, forwarder := range []bool{false, true} {
		spec := nodespec.Spec{Node: nodespec.Node{IPs: []netip.Addr{netip.MustParseAddr("10.0.0.11")}}, Network: nodespec.Network{Forwarder: forwarder}}
		c := Component(spec, dirs.Dirs{API: "/api"})
		flag := slices.Contains(c.Args, "--egress-selector-config-file=/api/egress.yaml")
		file := slices.ContainsFunc(c.Files, func(f component.File) bool { return f.Path == "/api/egress.yaml" && f.Content == egressConfig })
		if flag != forwarder || file != forwarder {
			t.Errorf("machine uses the forwarder: %t; flag: %t, file: %t", forwarder, flag, file)
		}
	}
}
