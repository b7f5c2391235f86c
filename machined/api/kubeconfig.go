package api

import (
	"cmp"
	"context"
	"encoding/base64"
	"fmt"
	"net/netip"
	"net/url"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/pki"
)

const (
	kubeconfigTTL    = 24 * time.Hour
	kubeconfigMaxTTL = 30 * 24 * time.Hour
	// administrators is the Kubernetes group of the users of a kubeconfig; the orchestrator binds
	// it to cluster-admin. It is not system:masters, which no RBAC rule could restrict.
	administrators = "orlop:cluster-admins"
)

func (s clusterService) Kubeconfig(ctx context.Context, r *api.KubeconfigRequest) (*api.KubeconfigResponse, error) {
	cluster, err := kubeconfigCluster(s.deps.Config())
	if err != nil {
		return nil, err
	}
	server, ttl, err := kubeconfigRequest(cluster, r)
	if err != nil {
		return nil, err
	}
	// The kubeconfig becomes invalid when the caller's certificate or its lineage is revoked.
	by := api.CallerFromContext(ctx)
	text, err := kubeconfig(cluster, server, pki.Spec{
		CN: cmp.Or(by.Name, "operator"), O: []string{administrators}, Usage: pki.Client, TTL: ttl, Lineage: by.Lineage, Root: by.Issuer,
	})
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	s.event("cluster", "operation", fmt.Sprintf("issued a kubeconfig for %v to %s", ttl, by))
	return &api.KubeconfigResponse{Kubeconfig: text}, nil
}

// kubeconfigCluster returns the cluster of a machine that can issue a kubeconfig.
func kubeconfigCluster(c *config.Config) (*config.Cluster, error) {
	if c == nil || c.Cluster == nil {
		return nil, status.Error(codes.FailedPrecondition, "kubeconfig: this machine belongs to no cluster yet; apply a configuration with a Cluster document")
	}
	if c.Cluster.Spec.PKI.Kubernetes.Key.IsZero() {
		return nil, status.Error(codes.FailedPrecondition, "kubeconfig: this machine does not hold the cluster's key; ask a control-plane machine")
	}
	return c.Cluster, nil
}

// kubeconfigRequest returns the URL of the server and the TTL that a request asks for, or their
// defaults.
func kubeconfigRequest(cluster *config.Cluster, r *api.KubeconfigRequest) (server string, ttl time.Duration, err error) {
	ttl = kubeconfigTTL
	if r.Ttl != nil {
		ttl = r.Ttl.AsDuration()
	}
	if ttl < time.Minute || ttl > kubeconfigMaxTTL {
		return "", 0, status.Errorf(codes.InvalidArgument, "kubeconfig: TTL %v: cannot use: expected %v to %v", ttl, time.Minute, kubeconfigMaxTTL)
	}
	server = cmp.Or(r.Server, kubernetesURL(cluster.Spec))
	if u, err := url.Parse(server); err != nil || u.Scheme != "https" || u.Host == "" {
		return "", 0, status.Errorf(codes.InvalidArgument, "kubeconfig: server %q is not a URL such as https://10.0.0.5:6443", server)
	}
	return server, ttl, nil
}

// kubernetesURL is the URL of the Kubernetes API for clients outside the cluster's machines: the
// first virtual address, else the endpoint.
func kubernetesURL(spec config.ClusterSpec) string {
	if len(spec.VirtualAddresses) == 0 {
		return spec.Endpoint.String()
	}
	return "https://" + netip.AddrPortFrom(spec.VirtualAddresses[0], paths.PortKubernetes).String()
}

// kubeconfig issues a client certificate and returns it as a kubeconfig.
func kubeconfig(cluster *config.Cluster, server string, spec pki.Spec) ([]byte, error) {
	own := cluster.Spec.PKI.Kubernetes
	ca, err := pki.ParseCA(own.PEM())
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	leaf, err := ca.Issue(spec)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	trusted := append(config.X509s(cluster.Spec.PKI.Accepted.Kubernetes), own.Cert.X509())
	name, b64 := cluster.Metadata.Name, base64.StdEncoding.EncodeToString
	return fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters:
- name: %[1]s
  cluster:
    server: %[2]s
    certificate-authority-data: %[3]s
users:
- name: admin@%[1]s
  user:
    client-certificate-data: %[4]s
    client-key-data: %[5]s
contexts:
- name: admin@%[1]s
  context:
    cluster: %[1]s
    user: admin@%[1]s
current-context: admin@%[1]s
`, name, server, b64(pki.EncodeCerts(trusted...)), b64(leaf.CertPEM()), b64(leaf.KeyPEM())), nil
}
