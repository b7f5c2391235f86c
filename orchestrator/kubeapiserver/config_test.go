package kubeapiserver

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"
	"k8s.io/kubernetes/pkg/controlplane"
	controlplaneapiserver "k8s.io/kubernetes/pkg/controlplane/apiserver"
	generatedopenapi "k8s.io/kubernetes/pkg/generated/openapi"

	extensions "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/runtime"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/orlop-os/orlop/machined/credentials"
	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/pki"
)

// parsed returns the completed options of an API server with files in a temporary directory,
// and which listens on a free port.
func parsed(t *testing.T) options.CompletedOptions {
	t.Helper()
	dirs := dirs.In(t.TempDir())
	spec := nodespec.Spec{
		Cluster: "c",
		Node:    nodespec.Node{Name: "node-1", ControlPlane: true, IPs: []netip.Addr{netip.MustParseAddr("127.0.0.1")}},
		Network: nodespec.Network{DNSDomain: "cluster.local", ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")}},
		Kubernetes: config.Kubernetes{
			PodEvictionTimeout: config.Duration(5 * time.Minute),
			APIServer:          config.APIServer{EventTTL: config.Duration(time.Hour)},
			PodSecurity:        config.PodSecurity{Default: config.PodSecurityBaseline},
			Audit:              config.Audit{MaxFileSize: 1 << 20, MaxFiles: 1},
		},
	}
	c := Component(spec, dirs)
	if err := c.WriteFiles(); err != nil {
		t.Fatal(err)
	}
	credentialFiles(t, dirs.API)
	opts, err := parse(context.Background(), c.Args, nil)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	opts.SecureServing.Listener = listener
	return opts
}

func credentialFiles(t *testing.T, dir string) {
	t.Helper()
	ca, err := pki.NewCA("test", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := ca.Issue(pki.Spec{CN: "localhost", DNS: []string{"localhost"}, Usage: pki.Both, TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	private, public, err := pki.NewServiceAccountKey()
	if err != nil {
		t.Fatal(err)
	}
	encryption := "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: [secrets]\n  providers:\n  - identity: {}\n"
	files := map[string][]byte{
		nodespec.CA: ca.CertPEM(), nodespec.FrontProxyCA: ca.CertPEM(),
		nodespec.APIServerCert: leaf.CertPEM(), nodespec.APIServerKey: leaf.KeyPEM(),
		nodespec.KubeletClientCert: leaf.CertPEM(), nodespec.KubeletClientKey: leaf.KeyPEM(),
		nodespec.FrontProxyCert: leaf.CertPEM(), nodespec.FrontProxyKey: leaf.KeyPEM(),
		nodespec.ServiceAccountKey: private, nodespec.ServiceAccountPub: public, nodespec.Encryption: []byte(encryption),
	}
	for _, f := range (credentials.Access{}).Files(dir) {
		files[f.Name] = f.Content
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestSameAsUpstream compares our configuration with the result of upstream's own function for the
// same options: both must set the same fields. So the test fails when a new version of Kubernetes
// sets a further field.
func TestSameAsUpstream(t *testing.T) {
	own, _, _, err := genericConfig(parsed(t), func() error { return nil }, &revocations{})
	if err != nil {
		t.Fatal(err)
	}
	upstream, _, _, err := controlplaneapiserver.BuildGenericConfig(parsed(t).CompletedOptions,
		[]*runtime.Scheme{legacyscheme.Scheme, extensions.Scheme, aggregatorscheme.Scheme},
		controlplane.DefaultAPIResourceConfigSource(), generatedopenapi.GetOpenAPIDefinitions, nil)
	if err != nil {
		t.Fatal(err)
	}
	compare(t, "Config", reflect.ValueOf(*own), reflect.ValueOf(*upstream))
	compare(t, "LoopbackClientConfig", reflect.ValueOf(*own.LoopbackClientConfig), reflect.ValueOf(*upstream.LoopbackClientConfig))
	compare(t, "SecureServing", reflect.ValueOf(*own.SecureServing), reflect.ValueOf(*upstream.SecureServing))
	if hooks := own.DisabledPostStartHooks.Difference(upstream.DisabledPostStartHooks); hooks.Len() != 1 {
		t.Errorf("disabled hooks: %v, want only the hook that rights.go replaces", hooks)
	}
	names := func(checks []healthz.HealthChecker) (all []string) {
		for _, c := range checks {
			all = append(all, c.Name())
		}
		slices.Sort(all)
		return all
	}
	without := slices.DeleteFunc(names(upstream.ReadyzChecks), func(name string) bool { return name == kmsCheck })
	if got := names(own.ReadyzChecks); !slices.Equal(got, without) || len(without) != len(upstream.ReadyzChecks)-1 {
		t.Errorf("readiness depends on %q, want upstream's checks without that of the key manager: %q", got, names(upstream.ReadyzChecks))
	}
}

func compare(t *testing.T, name string, own, upstream reflect.Value) {
	t.Helper()
	for i := range own.NumField() {
		field := own.Type().Field(i)
		// Upstream has two further checks: of the expiry of the loopback certificate, which
		// in our case is later than the end of every process, and of the key manager.
		if field.Name == "DisabledPostStartHooks" || field.Name == "HealthzChecks" || field.Name == "LivezChecks" || field.Name == "ReadyzChecks" {
			continue
		}
		a, b := own.Field(i), upstream.Field(i)
		if a.IsZero() != b.IsZero() {
			t.Errorf("%s.%s is set: %t; upstream sets it: %t", name, field.Name, !a.IsZero(), !b.IsZero())
			continue
		}
		if (a.Kind() == reflect.Slice || a.Kind() == reflect.Map) && a.Len() != b.Len() {
			t.Errorf("%s.%s has %d entries, and upstream's has %d", name, field.Name, a.Len(), b.Len())
		}
	}
}

func TestSelfSigned(t *testing.T) {
	const name = genericapiserver.LoopbackClientServerNameOverride
	certPEM, _, err := selfSigned(name)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(certPEM)
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(cert)
	if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, DNSName: name}); err != nil {
		t.Error(err)
	}
	if cert.PublicKeyAlgorithm != x509.ECDSA {
		t.Errorf("the certificate has a key of kind %s, want ECDSA", cert.PublicKeyAlgorithm)
	}
}
