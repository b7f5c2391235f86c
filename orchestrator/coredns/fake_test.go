package coredns

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// waiting is the time limit for operations that take milliseconds on an idle computer.
const waiting = 30 * time.Second

// fakeAPI is the part of an API server that CoreDNS uses: it serves lists, and watches that send no
// events.
type fakeAPI map[string][]runtime.Object

// kinds has, for the path of each list, the kind of the objects in the list.
var kinds = map[string]metav1.TypeMeta{
	"/api/v1/namespaces":                       {APIVersion: "v1", Kind: "Namespace"},
	"/api/v1/services":                         {APIVersion: "v1", Kind: "Service"},
	"/apis/discovery.k8s.io/v1/endpointslices": {APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
}

func (a fakeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	kind, ok := kinds[r.URL.Path]
	if !ok {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	encoder := json.NewEncoder(w)
	if r.URL.Query().Get("watch") == "" {
		items := a[r.URL.Path]
		if items == nil {
			items = []runtime.Object{}
		}
		list := metav1.TypeMeta{APIVersion: kind.APIVersion, Kind: kind.Kind + "List"}
		encoder.Encode(struct {
			metav1.TypeMeta
			Metadata metav1.ListMeta  `json:"metadata"`
			Items    []runtime.Object `json:"items"`
		}{list, metav1.ListMeta{ResourceVersion: "1"}, items})
		return
	}
	// a list as a watch: all objects, and then a bookmark that marks the end of the list
	if r.URL.Query().Get("sendInitialEvents") == "true" {
		for _, o := range a[r.URL.Path] {
			encoder.Encode(map[string]any{"type": "ADDED", "object": o})
		}
		bookmark := metav1.PartialObjectMetadata{TypeMeta: kind, ObjectMeta: metav1.ObjectMeta{
			ResourceVersion: "1", Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"},
		}}
		encoder.Encode(map[string]any{"type": "BOOKMARK", "object": bookmark})
	}
	w.(http.Flusher).Flush()
	<-r.Context().Done()
}

// cluster has a Service of each kind.
func cluster() fakeAPI {
	meta := func(name string) metav1.ObjectMeta {
		labels := map[string]string{discoveryv1.LabelServiceName: name}
		return metav1.ObjectMeta{Name: name, Namespace: "default", UID: "1", ResourceVersion: "1", Labels: labels}
	}
	var services, endpoints []runtime.Object
	service := func(name, port string, number int32, ips ...string) {
		services = append(services, &corev1.Service{
			TypeMeta: kinds["/api/v1/services"], ObjectMeta: meta(name),
			Spec: corev1.ServiceSpec{
				ClusterIP: ips[0], ClusterIPs: ips, Ports: []corev1.ServicePort{{Name: port, Port: number, Protocol: corev1.ProtocolTCP}},
			},
		})
	}
	slice := func(name string, family discoveryv1.AddressType, port string, number int32, list ...discoveryv1.Endpoint) {
		tcp, m := corev1.ProtocolTCP, meta(name)
		m.Name += "-" + strings.ToLower(string(family))
		endpoints = append(endpoints, &discoveryv1.EndpointSlice{
			TypeMeta: kinds["/apis/discovery.k8s.io/v1/endpointslices"], ObjectMeta: m, AddressType: family, Endpoints: list,
			Ports: []discoveryv1.EndpointPort{{Name: &port, Port: &number, Protocol: &tcp}},
		})
	}
	endpoint := func(address, hostname string, ready bool) discoveryv1.Endpoint {
		e := discoveryv1.Endpoint{Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}
		if hostname != "" {
			e.Hostname = &hostname
		}
		return e
	}
	service("kubernetes", "https", 443, "10.96.0.1")
	service("web", "http", 80, "10.96.0.20", "fd00:96::20")
	service("db", "sql", 5432, "None")
	slice("db", discoveryv1.AddressTypeIPv4, "sql", 5432,
		endpoint("10.244.0.5", "db-0", true), endpoint("10.244.0.6", "", true), endpoint("10.244.0.9", "db-9", false))
	slice("db", discoveryv1.AddressTypeIPv6, "sql", 5432, endpoint("fd00:244::5", "db-0", true))
	service("agent", "metrics", 9100, "None") // its pods use the network of their machines
	slice("agent", discoveryv1.AddressTypeIPv4, "metrics", 9100, endpoint("10.0.0.8", "", true))
	service("idle", "http", 80, "None")
	slice("idle", discoveryv1.AddressTypeIPv4, "http", 80) // the controller creates an empty slice
	service("big", "http", 80, "None")
	var many []discoveryv1.Endpoint
	for i := range crowd {
		many = append(many, endpoint(fmt.Sprintf("10.244.1.%d", i+1), "", true))
	}
	slice("big", discoveryv1.AddressTypeIPv4, "http", 80, many...)
	services = append(services, &corev1.Service{
		TypeMeta: kinds["/api/v1/services"], ObjectMeta: meta("out"),
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "db.corp.example"},
	})
	space := &corev1.Namespace{TypeMeta: kinds["/api/v1/namespaces"], ObjectMeta: metav1.ObjectMeta{Name: "default", UID: "1", ResourceVersion: "1"}}
	return fakeAPI{
		"/api/v1/namespaces": {space}, "/api/v1/services": services, "/apis/discovery.k8s.io/v1/endpointslices": endpoints,
	}
}

// crowd is the number of endpoints of the Service big.
const crowd = 120

// resolver is an external resolver with some names.
type resolver struct {
	at    netip.AddrPort
	mutex sync.Mutex
	asked []string
}

// newResolver starts a resolver that runs until the test ends. It answers with the records, and
// with NXDOMAIN for other names.
func newResolver(t *testing.T, records ...string) *resolver {
	t.Helper()
	return newFailing(t, dns.RcodeNameError, records...)
}

// newFailing starts a resolver that runs until the test ends. It answers with the records. For
// other names, it answers with the response code rcode.
func newFailing(t *testing.T, rcode int, records ...string) *resolver {
	t.Helper()
	r := &resolver{at: freePort(t)}
	handler := dns.HandlerFunc(func(w dns.ResponseWriter, question *dns.Msg) {
		q := question.Question[0]
		r.mutex.Lock()
		r.asked = append(r.asked, q.Name)
		r.mutex.Unlock()
		answer := new(dns.Msg)
		answer.SetRcode(question, rcode)
		for _, text := range records {
			rr, err := dns.NewRR(text)
			if err != nil {
				t.Error(err)
				continue
			}
			if strings.EqualFold(rr.Header().Name, q.Name) {
				answer.Rcode = dns.RcodeSuccess
				if rr.Header().Rrtype == q.Qtype {
					answer.Answer = append(answer.Answer, rr)
				}
			}
		}
		// the time for which a client may cache the answer (RFC 2308, 5)
		if answer.Rcode == dns.RcodeNameError {
			soa, err := dns.NewRR(". 300 IN SOA ns.example. hostmaster.example. 1 300 300 300 300")
			if err != nil {
				t.Error(err)
			}
			answer.Ns = append(answer.Ns, soa)
		}
		w.WriteMsg(answer)
	})
	for _, network := range []string{"udp", "tcp"} {
		server, started := &dns.Server{Addr: r.at.String(), Net: network, Handler: handler}, make(chan struct{})
		server.NotifyStartedFunc = func() { close(started) }
		failed := make(chan error, 1)
		go func() { failed <- server.ListenAndServe() }()
		select {
		case <-started:
		case err := <-failed:
			t.Fatal(err)
		}
		t.Cleanup(func() { server.Shutdown() })
	}
	return r
}

// The method about reports whether the resolver has received a query for the name.
func (r *resolver) about(name string) bool { return r.times(name) > 0 }

// The method times returns how many queries for the name the resolver has received.
func (r *resolver) times(name string) (n int) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	for _, asked := range r.asked {
		if asked == name {
			n++
		}
	}
	return n
}

// freePort returns a port of loopback that is free in UDP and TCP.
func freePort(t *testing.T) netip.AddrPort {
	t.Helper()
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	udp, err := net.ListenPacket("udp", tcp.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	udp.Close()
	return netip.MustParseAddrPort(tcp.Addr().String())
}

// node is a running CoreDNS with the configuration of a node.
type node struct {
	at   netip.AddrPort
	stop func()
}

// start runs CoreDNS with the API server at the URL api, which may be unavailable. CoreDNS ends
// when the caller calls stop, or at the end of the test.
func start(t *testing.T, spec nodespec.Spec, api string, announce component.Announce) node {
	t.Helper()
	dirs := dirs.In(t.TempDir())
	client := component.KubeconfigPath(dirs.Node, Name)
	if err := os.MkdirAll(filepath.Dir(client), 0o755); err != nil {
		t.Fatal(err)
	}
	const config = "{apiVersion: v1, kind: Config, clusters: [{name: c, cluster: {server: %q}}], " +
		"contexts: [{name: c, context: {cluster: c}}], current-context: c}"
	text := fmt.Sprintf(config, api)
	if err := os.WriteFile(client, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if spec.DNS.TLS != nil {
		if err := os.WriteFile(filepath.Join(filepath.Dir(client), resolverCA), []byte(spec.DNS.TLS.CA), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	n := node{at: freePort(t)}
	before := dnsserver.Port
	dnsserver.Port = fmt.Sprint(n.at.Port())
	addresses := func(context.Context) ([]netip.Addr, error) { return []netip.Addr{n.at.Addr()}, nil }
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- Run(ctx, component.Env{Dir: dirs.Node, Spec: spec, Dirs: dirs, Announce: announce}, addresses)
	}()
	n.stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(waiting):
			t.Errorf("CoreDNS does not end within %v", waiting)
		}
		dnsserver.Port = before
	})
	t.Cleanup(n.stop)
	return n
}

// ask sends a query. size is the largest answer over UDP that the client accepts, in bytes. If size
// is 0, the query has no EDNS, so the limit is 512 bytes (RFC 1035).
func (n node) ask(network, name string, kind uint16, size uint16) (*dns.Msg, error) {
	question := new(dns.Msg)
	question.SetQuestion(name, kind)
	if size > 0 {
		question.SetEdns0(size, false)
	}
	answer, _, err := (&dns.Client{Net: network, Timeout: 5 * time.Second, UDPSize: size}).Exchange(question, n.at.String())
	return answer, err
}

// The method until repeats a query until the answer has the expected response code.
func (n node) until(t *testing.T, name string, kind uint16, rcode int) {
	t.Helper()
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	deadline := time.After(waiting)
	for {
		answer, err := n.ask("udp", name, kind, 0)
		if err == nil && answer.Rcode == rcode {
			return
		}
		select {
		case <-ticker.C:
		case <-deadline:
			t.Fatalf("%s: %v, %v; want %s", name, answer, err, dns.RcodeToString[rcode])
		}
	}
}

// newAPI starts an API server that serves the objects of c until the caller calls die, or the test
// ends.
func newAPI(t *testing.T, c fakeAPI) (url string, die func()) {
	ctx, cancel := context.WithCancel(context.Background())
	server := httptest.NewUnstartedServer(c)
	server.Config.BaseContext = func(net.Listener) context.Context { return ctx }
	server.Start()
	die = sync.OnceFunc(func() {
		cancel() // a client that reconnects before the close would delay the close
		server.CloseClientConnections()
		server.Close()
	})
	t.Cleanup(die)
	return server.URL, die
}
