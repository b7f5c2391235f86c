package integration

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"

	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/test/issuer"
	"github.com/orlop-os/orlop/vm"
)

// site is an issuer of OpenID Connect tokens, on a host of the closed network.
type site struct {
	*issuer.Issuer
	url string
	ca  []byte // PEM
}

// newSite starts an issuer on a new host of the network. The issuer ends with the network.
func newSite(network *vm.Network) (*site, error) {
	host, err := network.NewHost("issuer", netip.Addr{})
	if err != nil {
		return nil, err
	}
	s := &site{url: "https://" + host.Addr().String()}
	if s.Issuer, err = issuer.New(s.url); err != nil {
		return nil, err
	}
	handler, err := s.Handler()
	if err != nil {
		return nil, err
	}
	s.ca, err = serveTLS(host, handler)
	return s, err
}

// serveTLS serves HTTPS on a host of the network until the network ends. It returns the CA of the
// server's certificate as PEM.
func serveTLS(host *vm.Host, handler http.Handler) (pem []byte, err error) {
	ca, err := pki.NewCA("story", time.Hour)
	if err != nil {
		return nil, err
	}
	leaf, err := ca.Issue(pki.Spec{CN: "story", Usage: pki.Server, IPs: []netip.Addr{host.Addr()}, TTL: time.Hour})
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(leaf.CertPEM(), leaf.KeyPEM())
	if err != nil {
		return nil, err
	}
	listener, err := host.Listen(443)
	if err != nil {
		return nil, err
	}
	server := &http.Server{Handler: handler, TLSConfig: &tls.Config{Certificates: []tls.Certificate{pair}}, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.ServeTLS(listener, "", "") }() // ends with the network
	return ca.CertPEM(), nil
}

func (s *story) issuerVerb(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 3, 3, "issuer DOCUMENTS EXPRESSION KUBECONFIG")
	if s.issuer == nil {
		var err error
		s.issuer, err = newSite(s.network)
		ts.Check(err)
	}
	const audience = "story"
	edit(ts, args[0], "Cluster", func(document map[string]any) {
		spec, _ := document["spec"].(map[string]any)
		spec["kubernetes"] = map[string]any{"authentication": map[string]any{"jwt": []any{map[string]any{
			"url": s.issuer.url, "ca": string(s.issuer.ca), "audiences": []string{audience}, "username": args[1], "groups": "claims.groups",
		}}}}
	})
	token, err := s.issuer.Token("dora", audience, "sailors")
	ts.Check(err)
	withToken(ts, token, args[2])
	s.note("the issuer %s calls its users %s", s.issuer.url, args[1])
}

// withToken writes a kubeconfig for a client that authenticates with the token. The other fields
// are copied from the kubeconfig of the story.
func withToken(ts *testscript.TestScript, token, file string) {
	own, err := clientcmd.LoadFromFile(ts.Getenv("KUBECONFIG"))
	ts.Check(err)
	for name := range own.AuthInfos {
		own.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: token}
	}
	ts.Check(clientcmd.WriteToFile(*own, ts.MkAbs(file)))
}

// podTokenVerb writes a kubeconfig with a token of a pod on the node. It requests the token in the
// same way as the kubelet. An attacker with access to the machine can read such a token from the
// volume of the pod.
func (s *story) podTokenVerb(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 2, 2, "pod-token NODE KUBECONFIG")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	pod, err := kubectl(ctx, ts, "get", "pods", "--field-selector", "spec.nodeName="+args[0], "-o", "jsonpath={.items[0].metadata.name}").Output()
	ts.Check(err)
	token, err := kubectl(ctx, ts, "create", "token", "default", "--bound-object-kind", "Pod", "--bound-object-name", string(pod)).Output()
	ts.Check(err)
	withToken(ts, strings.TrimSpace(string(token)), args[1])
	s.note("a token of the pod %s on %s", pod, args[0])
}

// edit changes the document of the given kind in a file with several documents.
func edit(ts *testscript.TestScript, name, kind string, change func(document map[string]any)) {
	documents := strings.Split(ts.ReadFile(name), "\n---\n")
	for i, text := range documents {
		var document map[string]any
		ts.Check(yaml.Unmarshal([]byte(text), &document))
		if document["kind"] != kind {
			continue
		}
		change(document)
		changed, err := yaml.Marshal(document)
		ts.Check(err)
		documents[i] = string(changed)
	}
	ts.Check(os.WriteFile(ts.MkAbs(name), []byte(strings.Join(documents, "\n---\n")), 0o600))
}

// forgeTicketVerb replaces the ticket of a configuration by a ticket that an unknown CA has signed.
func (s *story) forgeTicketVerb(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 2, 2, "forge-ticket DOCUMENTS NAME")
	ca, err := pki.NewCA("orlop client CA", time.Hour)
	ts.Check(err)
	leaf, err := ca.Issue(pki.Spec{CN: args[1], O: []string{pki.RoleJoin}, Usage: pki.Client, TTL: time.Hour})
	ts.Check(err)
	forged := false
	edit(ts, args[0], "Machine", func(document map[string]any) {
		spec, _ := document["spec"].(map[string]any)
		join, _ := spec["join"].(map[string]any)
		if forged = join != nil; forged {
			join["ticket"] = map[string]any{"cert": string(leaf.CertPEM()), "key": string(leaf.KeyPEM())}
		}
	})
	if !forged {
		ts.Fatalf("forge-ticket: %s has no ticket", args[0])
	}
}

// kubeletVerb calls a kubelet until it answers with the expected status. It retries, because a
// kubelet applies a revocation only after a short time.
func (s *story) kubeletVerb(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 3, 4, "kubelet NAME PATH STATUS [KUBECONFIG]")
	config := &rest.Config{}
	if len(args) == 4 {
		var err error
		config, err = clientcmd.BuildConfigFromFlags("", ts.MkAbs(args[3]))
		ts.Check(err)
	}
	addr := s.machine(ts, args[0]).Addr()
	err := until(s.lasts(kubeletTime), func() error {
		status, err := s.askKubelet(addr, args[1], config)
		if err == nil && !strings.HasPrefix(status, args[2]) {
			err = fmt.Errorf("the kubelet answers %s", status)
		}
		return err
	})
	s.note("kubelet %s: %s: %v", args[1], args[2], err == nil)
	if err != nil {
		ts.Fatalf("kubelet: the answer for %s is not %s: %v", args[1], args[2], err)
	}
}

// kubeletTime is the time within which a kubelet must apply a change.
const kubeletTime = 30 * time.Second

// askKubelet requests a path of a kubelet, and returns the HTTP status. The client is on a new host
// of the network, and has the credentials in the parameter as. The certificate of the kubelet is
// not verified.
func (s *story) askKubelet(addr netip.Addr, path string, as *rest.Config) (string, error) {
	host, err := s.network.NewHost("curious", netip.Addr{})
	if err != nil {
		return "", err
	}
	defer host.Close()
	own := &tls.Config{InsecureSkipVerify: true}
	if len(as.CertData) > 0 {
		cert, err := tls.X509KeyPair(as.CertData, as.KeyData)
		if err != nil {
			return "", err
		}
		own.Certificates = []tls.Certificate{cert}
	}
	transport := &http.Transport{
		TLSClientConfig: own,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			return host.DialContext(ctx, network, address)
		},
	}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequest(http.MethodGet, fmt.Sprintf("https://%s:10250%s", addr, path), nil)
	if err != nil {
		return "", err
	}
	if as.BearerToken != "" {
		request.Header.Set("Authorization", "Bearer "+as.BearerToken)
	}
	response, err := (&http.Client{Transport: transport, Timeout: time.Minute}).Do(request)
	if err != nil {
		return "", err
	}
	_, err = io.Copy(io.Discard, response.Body)
	return response.Status, errors.Join(err, response.Body.Close())
}
