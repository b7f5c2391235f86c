package integration

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/test/apiload"
	"github.com/orlop-os/orlop/vm"
)

// doorFigures is the content of build/api.json: the results of the authorization tests of the
// management API, and the latency of the API in milliseconds.
type doorFigures struct {
	Methods     int `json:"methods"`
	WithoutRole int `json:"methods_without_role"`
	// number of methods that a client without a certificate can call
	CallableWithoutCertificate int `json:"methods_callable_without_certificate"`
	// number of pairs of a method and an unauthorized caller; the machine rejected each of them
	CasesRefused   int          `json:"cases_refused"`
	DecodersFuzzed int          `json:"decoders_fuzzed"`
	FuzzSeconds    int          `json:"fuzz_seconds"`
	ApidAnonMiB    float64      `json:"apid_anon_mib"`
	One            apiload.Pace `json:"clients_1"`
	Many           apiload.Pace `json:"clients_64"`
	Flood          flood        `json:"flood"`
}

// flood holds the latency for an admitted client during a flood, in which other clients open
// handshakes as fast as they can.
type flood struct {
	Tried    int64   `json:"tried"`   // attempted handshakes
	Refused  int64   `json:"refused"` // rejected handshakes
	QuietP99 float64 `json:"quiet_p99"`
	P99      float64 `json:"p99"`
	Ratio    float64 `json:"ratio"`
}

// doorVerb checks that the management API rejects unauthorized calls, and measures the latency of
// authorized calls. It writes all figures to build/api.json. The machine has one processor.
func (s *story) doorVerb(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 1, 1, "door NAME")
	d := doorBed{s: s, ts: ts, to: s.machine(ts, args[0]).Addr().String() + ":50000"}
	var out doorFigures
	d.refusals(&out)
	out.One = d.pace(1)
	out.Many = d.pace(64)
	out.Flood = d.flood()
	out.ApidAnonMiB = d.apidMemory()
	if text, err := os.ReadFile(filepath.Join(*versions, "fuzz.json")); err == nil { // `make fuzz`
		ts.Check(json.Unmarshal(text, &out))
	}
	text, err := json.MarshalIndent(out, "", "  ")
	ts.Check(err)
	ts.Check(os.WriteFile(filepath.Join(*versions, "api.json"), append(text, '\n'), 0o644))
	s.note("api.json: %s", text)
	switch {
	case out.WithoutRole != 0 || out.CallableWithoutCertificate != 0:
		ts.Fatalf("%d methods have no role; a client without a certificate can call %d methods", out.WithoutRole, out.CallableWithoutCertificate)
	case out.Flood.Refused == 0:
		ts.Fatalf("none of %d handshakes of the flood was rejected", out.Flood.Tried)
	}
}

// doorBed has the environment of doorVerb.
type doorBed struct {
	s  *story
	ts *testscript.TestScript
	to string // address and port of the machine's API
}

// host returns a new host of the closed network.
func (d doorBed) host(name string) *vm.Host {
	h, err := d.s.network.NewHost(name, netip.Addr{})
	d.ts.Check(err)
	return h
}

// endpoint returns the endpoint of the machine for a client with the certificate cert on the host
// from.
func (d doorBed) endpoint(from *vm.Host, cert tls.Certificate) client.Endpoint {
	e := d.s.endpoint(d.ts)
	e.Address, e.Cert = d.to, cert
	e.Dialer = func(ctx context.Context, address string) (net.Conn, error) {
		return from.DialContext(ctx, "tcp", address)
	}
	return e
}

func (d doorBed) dial(e client.Endpoint) *client.Client {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := client.Dial(ctx, e)
	d.ts.Check(err)
	return c
}

// cert returns a client certificate of the operator CA, with the organisation as its role. With an
// empty organisation, the certificate has no role.
func (d doorBed) cert(organisation string) tls.Certificate {
	leaf, err := operatorCA(d.ts).Issue(pki.Spec{CN: "door", O: []string{organisation}, Usage: pki.Client, TTL: time.Hour})
	d.ts.Check(err)
	return tls.Certificate{Certificate: [][]byte{leaf.Cert.Raw}, PrivateKey: leaf.Key}
}

// refusals calls every method with each role that is not authorized for it, and tries to connect
// without a certificate.
func (d doorBed) refusals(out *doorFigures) {
	h := d.host("stranger")
	defer h.Close()
	type method struct {
		name   string
		least  api.Role
		narrow []api.Role
	}
	var methods []method
	services := api.File_orlop_proto.Services()
	for i := range services.Len() {
		list := services.Get(i).Methods()
		for j := range list.Len() {
			m := list.Get(j)
			methods = append(methods, method{fmt.Sprintf("/%s/%s", m.Parent().(protoreflect.ServiceDescriptor).FullName(), m.Name()),
				proto.GetExtension(m.Options(), api.E_Role).(api.Role), proto.GetExtension(m.Options(), api.E_Narrow).([]api.Role)})
		}
	}
	out.Methods = len(methods)
	for _, m := range methods {
		if m.least == api.Role_ROLE_UNSPECIFIED {
			out.WithoutRole++
		}
	}
	// A client without a certificate gets no connection, so it cannot call any method.
	if d.letsNobodyIn(h) {
		out.CasesRefused += len(methods)
	} else {
		out.CallableWithoutCertificate = len(methods)
	}
	for organisation, role := range map[string]api.Role{
		"": api.Role_ROLE_UNSPECIFIED, pki.RoleMachine: api.Role_ROLE_MACHINE, pki.RoleReader: api.Role_ROLE_READER,
		pki.RoleOperator: api.Role_ROLE_OPERATOR, pki.RoleLogReader: api.Role_ROLE_LOG_READER, pki.RoleImageImport: api.Role_ROLE_IMAGE_IMPORT,
		pki.RoleEtcdBackup: api.Role_ROLE_ETCD_BACKUP, pki.RoleJoin: api.Role_ROLE_JOIN,
	} {
		c := d.dial(d.endpoint(h, d.cert(organisation)))
		for _, m := range methods {
			if role <= api.Role_ROLE_ADMIN && role >= m.least || slices.Contains(m.narrow, role) {
				continue
			}
			if err := call(c, m.name); status.Code(err) != codes.PermissionDenied {
				d.ts.Fatalf("the call of %s with role %q returns %v, want PermissionDenied", m.name, organisation, err)
			}
			out.CasesRefused++
		}
		d.ts.Check(c.Close())
	}
}

// letsNobodyIn reports whether the machine rejects a connection without a certificate. Any other
// error of the connection ends the story.
func (d doorBed) letsNobodyIn(h *vm.Host) bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := client.Dial(ctx, d.endpoint(h, tls.Certificate{}))
	if err == nil {
		c.Close()
		return false
	}
	if !errors.Is(err, client.ErrRefused) {
		d.ts.Fatalf("a connection without a certificate failed, but the machine did not reject it: %v", err)
	}
	return true
}

// call sends one empty message to the method and waits for the end of the call.
func call(c *client.Client, method string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	stream, err := c.Conn().NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
	if err != nil {
		return err
	}
	if err := stream.SendMsg(&emptypb.Empty{}); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	for {
		if err := stream.RecvMsg(&emptypb.Empty{}); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// perHost is the number of connections from each host. apid accepts 32 connections from an address.
const perHost = 30

// pace measures Version calls with this number of clients. Each client has its own connection and
// makes one call after the other.
func (d doorBed) pace(clients int) apiload.Pace {
	// Each host has its own certificate, because apid limits the concurrent calls of a certificate.
	var cert tls.Certificate
	var open []*client.Client
	var hosts []*vm.Host
	for i := range clients {
		if i%perHost == 0 {
			cert = d.cert(pki.RoleReader)
			hosts = append(hosts, d.host(fmt.Sprintf("client%d-%d", clients, i/perHost)))
		}
		open = append(open, d.dial(d.endpoint(hosts[i/perHost], cert)))
	}
	defer func() {
		for _, c := range open {
			c.Close()
		}
		for _, h := range hosts {
			h.Close()
		}
	}()
	p, err := apiload.Measure(context.Background(), open, apiload.Measured)
	d.ts.Check(err)
	return p
}

// flood measures the latency for one client, first alone and then while two hosts open handshakes
// without a certificate as fast as they can.
func (d doorBed) flood() flood {
	quiet := d.pace(1)
	load, err := apiload.StartFlood(func(name string) (*vm.Host, error) { return d.s.network.NewHost(name, netip.Addr{}) }, d.to)
	d.ts.Check(err)
	defer load.Stop() // ends the flood if the measurement fails
	loud := d.pace(1)
	tried, refused := load.Stop()
	return flood{Tried: tried, Refused: refused, QuietP99: quiet.P99, P99: loud.P99, Ratio: loud.P99 / quiet.P99}
}

// apidMemory returns the anonymous memory of apid in MiB.
func (d doorBed) apidMemory() float64 {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c := d.s.client(d.ts)
	defer c.Close()
	one, err := service(ctx, c, "apid")
	d.ts.Check(err)
	list, err := c.Machine.Get(ctx, &api.GetRequest{Topic: "processes"})
	d.ts.Check(err)
	for _, p := range list.Value.GetListValue().GetValues() {
		fields := p.GetStructValue().GetFields()
		if int(fields["pid"].GetNumberValue()) == int(one.Pid) {
			return fields["anonymous"].GetNumberValue() / (1 << 20)
		}
	}
	d.ts.Fatalf("apid, process %d, is not among the processes", one.Pid)
	return 0
}
