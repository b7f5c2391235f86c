package netpolicy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/orlop-os/orlop/pkg/kernel/rtnl/rtnltest"
)

const (
	// The constant quiet is the time to wait for an answer if the packet should be dropped. The
	// constant prompt is the time to wait if the packet should pass.
	quiet  = 500 * time.Millisecond
	prompt = 20 * time.Second
)

// testCluster is a node with a bridge, a tunnel, and a link to the outside. Each pod or host that
// the node reaches by them is a network namespace, here called a place, with servers.
type testCluster struct {
	places map[string]*rtnltest.Namespace
}

// newCluster makes the same network as package podnetwork: the pods web, client and idle on the
// node, the pod far behind the tunnel, and the host outside. Each of them answers on the TCP ports
// 80, 8080 and 9090, and on the UDP port 53.
func newCluster(t *testing.T) *testCluster {
	t.Helper()
	runtime.LockOSThread()
	c := &testCluster{places: map[string]*rtnltest.Namespace{}}
	for _, file := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
		must(t, os.WriteFile("/proc/sys/net/"+file, []byte("1"), 0o644))
	}
	for _, file := range []string{"bridge-nf-call-iptables", "bridge-nf-call-ip6tables"} {
		if err := os.WriteFile("/proc/sys/net/bridge/"+file, []byte("1"), 0o644); errors.Is(err, os.ErrNotExist) {
			t.Skip("the kernel of this machine has no br_netfilter; the product's has, and `make kernel` runs the test there")
		} else {
			must(t, err)
		}
	}
	must(t, netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "cni0"}}))
	rtnltest.AddAddresses(t, "cni0", "10.244.1.1/24", "fd00:1::1/64")
	for i, name := range []string{"web", "client", "idle"} {
		rtnltest.Veth(t, name, "port-"+name)
		c.place(t, name, fmt.Sprintf("10.244.1.%d0/24", i+1), fmt.Sprintf("fd00:1::%d0/64", i+1), "10.244.1.1", "fd00:1::1")
		port, err := netlink.LinkByName("port-" + name)
		must(t, err)
		bridge, err := netlink.LinkByName("cni0")
		must(t, err)
		must(t, netlink.LinkSetMaster(port, bridge))
		must(t, netlink.LinkSetHairpin(port, true))
		must(t, netlink.LinkSetUp(port))
	}
	rtnltest.Veth(t, "far", "mesh0")
	rtnltest.AddAddresses(t, "mesh0", "10.244.2.1/24", "fd00:2::1/64")
	c.place(t, "far", "10.244.2.10/24", "fd00:2::10/64", "10.244.2.1", "fd00:2::1")
	rtnltest.Veth(t, "outside", "eth0")
	rtnltest.AddAddresses(t, "eth0", "192.0.2.1/24", "2001:db8::1/64")
	c.place(t, "outside", "192.0.2.10/24", "2001:db8::10/64", "192.0.2.1", "2001:db8::1")
	return c
}

// place creates the network namespace of a pod or host and starts its servers. The list addresses
// has four elements: an address of each family, and then a gateway of each family.
func (c *testCluster) place(t *testing.T, name string, addresses ...string) {
	t.Helper()
	o := rtnltest.NewOther(t)
	c.places[name] = o
	o.MoveLink(t, name)
	o.Do(func() {
		rtnltest.AddAddresses(t, "lo")
		rtnltest.AddAddresses(t, name, addresses[0], addresses[1])
		for _, gateway := range addresses[2:] {
			must(t, netlink.RouteAdd(&netlink.Route{Gw: net.ParseIP(gateway)}))
		}
	})
	for _, port := range []int{80, 8080, 9090} {
		var l net.Listener
		var err error
		o.Do(func() { l, err = net.Listen("tcp", fmt.Sprintf(":%d", port)) })
		must(t, err)
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					defer conn.Close()
					_, _ = io.Copy(conn, conn) // until the client closes
				}()
			}
		}()
	}
	for _, bind := range []string{addresses[0], addresses[1]} {
		var socket *net.UDPConn
		var err error
		at := netip.AddrPortFrom(netip.MustParsePrefix(bind).Addr(), 53)
		o.Do(func() { socket, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at)) })
		must(t, err)
		t.Cleanup(func() { socket.Close() })
		go func() {
			packet := make([]byte, 100)
			for {
				n, from, err := socket.ReadFromUDPAddrPort(packet)
				if err != nil {
					return
				}
				_, _ = socket.WriteToUDPAddrPort(packet[:n], from) // the client repeats its request
			}
		}()
	}
}

// dial opens a TCP connection from a place to an address. If the name of the place is empty, it
// opens the connection from the node.
func (c *testCluster) dial(from, to string, patience time.Duration) (conn net.Conn, err error) {
	if from == "" {
		return net.DialTimeout("tcp", to, patience)
	}
	c.places[from].Do(func() { conn, err = net.DialTimeout("tcp", to, patience) })
	return conn, err
}

// reaches sends a request to a server, and returns nil if an answer arrives within the time
// patience. It uses UDP for port 53, and TCP for all other ports.
func (c *testCluster) reaches(from, to string, patience time.Duration) error {
	if !strings.HasSuffix(to, ":53") {
		conn, err := c.dial(from, to, patience)
		if err != nil {
			return err
		}
		defer conn.Close()
		return talk(conn, patience)
	}
	var conn net.Conn
	var err error
	c.places[from].Do(func() { conn, err = net.Dial("udp", to) })
	if err != nil {
		return err
	}
	defer conn.Close()
	for end := time.Now().Add(patience); time.Now().Before(end); {
		if err = talk(conn, quiet/2); err == nil {
			return nil
		}
	}
	return err
}

// refused sends datagrams to a closed port until the socket reports an error other than a timeout,
// and returns that error. It returns the timeout if no other error occurs within the time prompt.
func (c *testCluster) refused(from, to string) error {
	var conn net.Conn
	var err error
	c.places[from].Do(func() { conn, err = net.Dial("udp", to) })
	if err != nil {
		return err
	}
	defer conn.Close()
	for end := time.Now().Add(prompt); time.Now().Before(end); {
		if err = talk(conn, quiet); !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
	}
	return err
}

// talk sends five bytes and waits for five bytes.
func talk(conn net.Conn, patience time.Duration) error {
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := conn.Write([]byte("hello")); err != nil {
		return err
	}
	_, err := io.ReadFull(conn, make([]byte, 5))
	return err
}

func (c *testCluster) expect(t *testing.T, from, to string, want bool) {
	t.Helper()
	patience := quiet
	if want {
		patience = prompt
	}
	if err := c.reaches(from, to, patience); (err == nil) != want {
		t.Errorf("%s to %s: %v, want an answer: %v", from, to, err, want)
	}
}

const kernelWorld = `
kind: Namespace
metadata: {name: shop}
---
kind: Namespace
metadata: {name: other, labels: {team: other}}
---
kind: Pod
metadata: {name: web, namespace: shop, labels: {app: web}}
spec: {nodeName: n1, containers: [{name: c, ports: [{name: http, containerPort: 8080, protocol: TCP}]}]}
status: {podIPs: [{ip: 10.244.1.10}, {ip: "fd00:1::10"}]}
---
kind: Pod
metadata: {name: client, namespace: shop, labels: {app: client}}
spec: {nodeName: n1, containers: []}
status: {podIPs: [{ip: 10.244.1.20}, {ip: "fd00:1::20"}]}
---
kind: Pod
metadata: {name: idle, namespace: other}
spec: {nodeName: n1, containers: []}
status: {podIPs: [{ip: 10.244.1.30}, {ip: "fd00:1::30"}]}
---
kind: Pod
metadata: {name: far, namespace: other, labels: {app: far}}
spec: {nodeName: n2, containers: [{name: c, ports: [{name: http, containerPort: 9090, protocol: TCP}]}]}
status: {podIPs: [{ip: 10.244.2.10}, {ip: "fd00:2::10"}]}
---
kind: NetworkPolicy
metadata: {name: web, namespace: shop}
spec:
  podSelector: {matchLabels: {app: web}}
  ingress:
  - from: [{podSelector: {matchLabels: {app: client}}}]
    ports: [{port: http}, {port: 53, protocol: UDP}]
  - from: [{ipBlock: {cidr: 192.0.2.0/24, except: [192.0.2.128/25]}}, {ipBlock: {cidr: "2001:db8::/32", except: ["2001:db8:1::/48"]}}]
    ports: [{port: 9000, endPort: 9999}]
  - from: [{namespaceSelector: {matchLabels: {team: other}}, podSelector: {matchLabels: {app: far}}}]
---
kind: NetworkPolicy
metadata: {name: client, namespace: shop}
spec:
  podSelector: {matchLabels: {app: client}}
  policyTypes: [Egress]
  egress:
  - to: [{podSelector: {matchLabels: {app: web}}}]
    ports: [{port: 8080}, {port: 80}, {port: 53, protocol: UDP}]
  - to: [{namespaceSelector: {}, podSelector: {matchLabels: {app: far}}}]
    ports: [{port: http}]
`

// TestKernel checks which packets the kernel passes before the policies exist, with the policies,
// and after their removal. The packets are between pods of the node, from and to a pod of another
// node, from and to the outside, and from the node, in both families.
func TestKernel(t *testing.T) {
	if !rtnltest.Isolate(t) {
		return
	}
	c := newCluster(t)
	w := worldOf(t, 1, strings.TrimSpace(kernelWorld))
	for _, hosts := range []map[string]string{
		{"web": "10.244.1.10", "client": "10.244.1.20", "idle": "10.244.1.30", "far": "10.244.2.10", "outside": "192.0.2.10"},
		{"web": "[fd00:1::10]", "client": "[fd00:1::20]", "idle": "[fd00:1::30]", "far": "[fd00:2::10]", "outside": "[2001:db8::10]"},
	} {
		for _, from := range []string{"idle", "far", "outside", ""} {
			if from != "" {
				c.expect(t, from, hosts["web"]+":53", true)
			}
			c.expect(t, from, hosts["web"]+":80", true)
		}
		write(t, compiled(t, w))
		for _, x := range []struct {
			from, to string
			want     bool
		}{
			{"client", "web:8080", true}, {"client", "web:53", true}, {"client", "web:80", false}, {"client", "web:9090", false},
			{"idle", "web:8080", false}, {"idle", "web:53", false},
			{"outside", "web:9090", true}, {"outside", "web:8080", false}, {"outside", "web:53", false},
			{"far", "web:80", true}, {"far", "web:53", true},
			{"", "web:80", true}, {"web", "web:80", true},
			{"client", "far:9090", true}, {"client", "far:8080", false}, {"client", "idle:80", false}, {"client", "outside:80", false},
			{"idle", "client:80", true}, {"web", "outside:80", true}, {"web", "outside:53", true}, {"idle", "far:53", true},
		} {
			name, port, _ := strings.Cut(x.to, ":")
			c.expect(t, x.from, hosts[name]+":"+port, x.want)
		}
		// An ICMP error about a packet of a pod reaches the pod, although its ingress policy does
		// not permit ICMP. The error here is "port unreachable". The error "packet too big", from
		// which a pod learns the MTU of a path, passes the chains in the same way.
		if err := c.refused("web", hosts["outside"]+":9"); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("web to a closed port of the host outside: %v, want the error connection refused", err)
		}
		// The Pod object of idle is removed, so idle is like a pod that the node does not know yet,
		// or a pod that is already deleted. Only the node can connect to such a pod.
		without := w
		without.Pods = append(without.Pods[:2:2], without.Pods[3:]...)
		write(t, compiled(t, without))
		c.expect(t, "idle", hosts["outside"]+":80", false)
		c.expect(t, "outside", hosts["idle"]+":80", false)
		c.expect(t, "", hosts["idle"]+":80", true)
		without.Policies = nil
		write(t, compiled(t, without))
		for _, x := range []string{"web:80", "web:53", "idle:80"} {
			name, port, _ := strings.Cut(x, ":")
			c.expect(t, "outside", hosts[name]+":"+port, true)
		}
	}
}

// TestService checks that egress policies filter a connection to a Service by the address and port
// of the Service's endpoint.
func TestService(t *testing.T) {
	if !rtnltest.Isolate(t) {
		return
	}
	c := newCluster(t)
	write(t, compiled(t, worldOf(t, 1, strings.TrimSpace(kernelWorld))))
	redirect(t, "10.96.0.1", 1, "10.244.1.10", 8080)
	redirect(t, "10.96.0.2", 80, "10.244.1.30", 80)
	c.expect(t, "client", "10.96.0.1:1", true)
	c.expect(t, "client", "10.96.0.2:80", false)
	c.expect(t, "idle", "10.96.0.1:1", false)
	// A pod that connects to itself through its Service is not blocked.
	redirect(t, "10.96.0.3", 80, "10.244.1.20", 80)
	c.expect(t, "client", "10.96.0.3:80", true)
}

// redirect adds the rules by which the service proxy translates addresses. Before routing, the
// rules replace the address and port of a Service, as the destination of a packet, by the address
// and port of a pod. If the pod connects to itself, they also replace the source by the address of
// the node.
func redirect(t *testing.T, service string, port uint16, pod string, to uint16) {
	t.Helper()
	conn, err := nftables.New()
	must(t, err)
	table := conn.AddTable(&nftables.Table{Name: "service", Family: nftables.TableFamilyIPv4})
	before := conn.AddChain(&nftables.Chain{
		Name: "before", Table: table, Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityNATDest,
	})
	after := conn.AddChain(&nftables.Chain{
		Name: "after", Table: table, Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource,
	})
	address := func(offset uint32, is string) []expr.Any {
		return []expr.Any{
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: 4},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: netip.MustParseAddr(is).AsSlice()},
		}
	}
	conn.AddRule(&nftables.Rule{Table: table, Chain: before, Exprs: append(address(16, service),
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(port)},
		&expr.Immediate{Register: 1, Data: netip.MustParseAddr(pod).AsSlice()},
		&expr.Immediate{Register: 2, Data: binaryutil.BigEndian.PutUint16(to)},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1, RegProtoMin: 2, Specified: true},
	)})
	conn.AddRule(&nftables.Rule{Table: table, Chain: after, Exprs: append(append(address(12, pod), address(16, pod)...), &expr.Masq{})})
	must(t, conn.Flush())
}

// TestReplacement replaces the table repeatedly. During the replacements, every permitted packet
// passes, and no forbidden packet passes. An open connection continues, even after the policy
// forbids new connections.
func TestReplacement(t *testing.T) {
	if !rtnltest.Isolate(t) {
		return
	}
	c := newCluster(t)
	w := worldOf(t, 1, strings.TrimSpace(kernelWorld))
	table := compiled(t, w)
	write(t, table)
	conn, err := c.dial("client", "10.244.1.10:8080", prompt)
	must(t, err)
	defer conn.Close()
	must(t, talk(conn, prompt))
	var asking sync.WaitGroup
	ended := make(chan struct{})
	for from, want := range map[string]bool{"client": true, "idle": false} {
		asking.Go(func() {
			for {
				select {
				case <-ended:
					return
				default:
				}
				patience := quiet / 5
				if want {
					patience = prompt
				}
				for _, to := range []string{"10.244.1.10:8080", "[fd00:1::10]:8080"} {
					if err := c.reaches(from, to, patience); (err == nil) != want {
						t.Errorf("%s to %s: %v, want an answer: %v", from, to, err, want)
					}
				}
			}
		})
	}
	for range 100 {
		if err := (kernel{}).write(table); err != nil {
			t.Fatal(err)
		}
		must(t, talk(conn, prompt))
	}
	close(ended)
	asking.Wait()
	w.Policies[0].Spec.Ingress = nil
	write(t, compiled(t, w))
	must(t, talk(conn, prompt))
	c.expect(t, "client", "10.244.1.10:8080", false)
}

// TestLarge checks that the kernel accepts a set of 20,000 addresses, and that kernel.read returns
// "" after another process has removed rules of the table.
func TestLarge(t *testing.T) {
	if !rtnltest.Isolate(t) {
		return
	}
	runtime.LockOSThread()
	if have, err := (kernel{}).read(); have != "" || err != nil {
		t.Fatalf("the kernel has the table %q before the test, %v", have, err)
	}
	var many []Element
	for a := netip.MustParseAddr("10.0.0.0"); len(many) < 20000; a = a.Next() {
		many = append(many, Element{Address: a})
	}
	write(t, Table{Sets: []Set{{Name: "many", Kind: Addresses, Elements: many}}})
	table := compiled(t, worldOf(t, 1, strings.TrimSpace(kernelWorld)))
	write(t, table)
	conn, err := nftables.New()
	must(t, err)
	conn.FlushChain(&nftables.Chain{Name: ingress, Table: &nftables.Table{Name: tableName, Family: nftables.TableFamilyINet}})
	must(t, conn.Flush())
	if have, err := (kernel{}).read(); have != "" || err != nil {
		t.Errorf("read returns %q, %v after the rules of a chain were removed, want an empty text", have, err)
	}
	write(t, Table{})
	write(t, DenyAll(emptyWorld(1)))
}

// TestListed checks that nft(8) can list the table, because the service proxy runs nft(8).
func TestListed(t *testing.T) {
	nft, err := exec.LookPath("nft")
	if err != nil {
		t.Skip("this machine has no nft(8); the product has, and `make kernel` runs the test there")
	}
	if !rtnltest.Isolate(t) {
		return
	}
	runtime.LockOSThread()
	documents, err := os.ReadFile("testdata/shop.yaml")
	must(t, err)
	write(t, compiled(t, worldOf(t, 1, string(documents))))
	list := exec.Command(nft, "list", "table", "inet", tableName)
	out, err := list.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	// nft(8) reads the names of protocols from /etc/protocols. Without this file it prints their
	// numbers.
	out = bytes.ReplaceAll(out, []byte(" . 6 . "), []byte(" . tcp . "))
	for _, want := range []string{
		"type filter hook forward priority filter - 1; policy accept;",
		"ct state established,related accept",
		`iifname "cni0" ip saddr != @local4 drop`,
		"ip6 saddr vmap @egress-of6",
		"tcp dport 9090 accept",
		"tcp dport 9100-9110 accept",
		"10.244.1.10 . tcp . 8080",
		"192.0.2.0/25, 192.0.2.192/26",
		"10.244.1.10 : goto egress-of-",
		"ip saddr @ingress/shop/web/0/blocks4 ip daddr . meta l4proto . th dport @ingress/shop/web/0/named4 accept",
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the list of nft has no %q:\n%s", want, out)
		}
	}
}

// write writes a table and checks that kernel.read returns the fingerprint of the table.
func write(t *testing.T, table Table) {
	t.Helper()
	err := kernel{}.write(table)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EPROTONOSUPPORT) {
		t.Skip("the kernel of this machine has no nf_tables; the product's has, and `make kernel` runs the test there")
	}
	if errors.Is(err, unix.EMSGSIZE) {
		t.Skip("needs root: only root can enlarge the socket's buffer for this table; `make kernel` runs the test as root")
	}
	must(t, err)
	if have, err := (kernel{}).read(); have != table.Fingerprint() || err != nil {
		t.Fatalf("the fingerprint of the written table is %s, and read returns %q, %v", table.Fingerprint(), have, err)
	}
}
