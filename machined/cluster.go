package main

import (
	"cmp"
	"context"
	"encoding/base64"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/orlop-os/orlop/machined/membership"
	"github.com/orlop-os/orlop/machined/nodeplan"
	"github.com/orlop-os/orlop/machined/upgrade"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/callerid"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/supervise"
)

type clusterAPI struct {
	api.UnimplementedClusterServer
	m *machine
}

func (a clusterAPI) Health(r *api.HealthRequest, stream grpc.ServerStreamingServer[api.HealthResponse]) error {
	ctx := stream.Context()
	services, configuration, members, rules := a.m.services.Status().Watch(), a.m.config.Watch(), a.m.members.Worker.State.Watch(), a.m.rulesProblem.Watch()
	program, settled, disks, states := a.m.panicState.Watch(), a.m.convergence.Watch(), a.m.disks.Watch(), a.m.networkState.Watch()
	var last *api.HealthResponse
	floor, began := a.m.upgrade.Controller.EpochFloor(), time.Now()
	for {
		list, now, member := services.Current(), configuration.Current(), members.Current()
		health := clusterHealth(now, member, list)
		firewallCheck(health, rules.Current(), now.applied)
		panicCheck(health, program.Current())
		if broken := configurationProblem(now, settled.Current(), states.Current()); broken != "" {
			configurationFails(health, broken)
		}
		upgrade.ReleaseCheck(health, a.m.release, floor, began)
		storageHealth(health, disks.Current().Filesystems)
		var later <-chan time.Time
		if health.Healthy && time.Since(now.applied) < activationTime {
			if waits, err := a.m.servicesWaiting(now.config); err == nil && len(waits) > 0 {
				notActive(health, waits)
				later = time.After(activationPollInterval)
			}
		}
		if last == nil || !proto.Equal(last, health) {
			if err := stream.Send(health); err != nil {
				return err
			}
			last = health
		}
		if r.Once || health.Healthy {
			return nil
		}
		select {
		case <-services.Changed():
		case <-configuration.Changed():
		case <-members.Changed():
		case <-rules.Changed():
		case <-program.Changed():
		case <-settled.Changed():
		case <-disks.Changed():
		case <-states.Changed():
		case <-later:
		case <-ctx.Done():
			return endOfStream(ctx.Err())
		}
	}
}

// activationTime is the time after a configuration change in which its services may not have
// restarted yet; a longer delay is reported elsewhere. activationPollInterval is the interval
// between the checks.
const (
	activationTime         = 30 * time.Second
	activationPollInterval = time.Second
)

// firewallCheck adds to the health why the nftables rules are not active; an empty reason adds
// nothing.
func firewallCheck(health *api.HealthResponse, why string, since time.Time) {
	if why == "" {
		return
	}
	health.Healthy = false
	health.Checks = append(health.Checks, &api.HealthCheck{Name: "firewall", Detail: why, Since: timestamppb.New(since)})
}

// notActive reports in a good health that services have still to restart for the configuration.
func notActive(health *api.HealthResponse, services []string) {
	configurationFails(health, "not active yet: "+strings.Join(services, ", "))
}

// configurationFails sets in a health why the configuration is not active.
func configurationFails(health *api.HealthResponse, why string) {
	health.Healthy = false
	for _, c := range health.Checks {
		if c.Name == "configuration" {
			c.Ok, c.Detail = false, why
		}
	}
}

// clusterHealth returns the machine's view of its cluster: the configuration, its services and
// their components.
func clusterHealth(now applied, member membership.State, services []supervise.Status) *api.HealthResponse {
	out := &api.HealthResponse{Healthy: true}
	add := func(name string, ok bool, detail string, since time.Time) {
		out.Healthy = out.Healthy && ok
		out.Checks = append(out.Checks, &api.HealthCheck{Name: name, Ok: ok, Detail: detail, Since: timestamppb.New(since)})
	}
	switch {
	case now.config == nil:
		add("configuration", false, "none yet: apply one", now.applied)
	case now.config.Cluster == nil:
		add("configuration", false, "no Cluster document: this machine runs without Kubernetes", now.applied)
	default:
		add("configuration", true, now.config.Cluster.Metadata.Name, now.applied)
	}
	if now.config.IsWorker() {
		detail := member.Problem
		if detail == "" && !member.Joined {
			detail = "joining"
		}
		add("membership", member.Joined && !member.Removed, detail, now.applied)
	}
	for _, want := range expectedServices(now.config) {
		if !slices.ContainsFunc(services, func(s supervise.Status) bool { return s.Name == want }) {
			add(want, false, "not started yet", now.applied)
		}
	}
	for _, s := range services {
		if len(s.Components) == 0 || !s.State.Alive() {
			add(s.Name, s.State == supervise.Running, strings.TrimSuffix(string(s.State)+": "+s.Detail, ": "), s.Since)
			continue
		}
		for _, c := range s.Components {
			add(c.Name, c.Ready && !strings.HasPrefix(c.Detail, nodespec.ProblemPrefix), c.Detail, c.Since)
		}
	}
	return out
}

// expectedServices returns the services of a configuration, running or not.
func expectedServices(c *config.Config) []string {
	if c == nil || c.Cluster == nil {
		return nil
	}
	var names []string
	for _, s := range nodeplan.Kubernetes(c.Machine.Spec.Role == config.RoleControlPlane) {
		names = append(names, s.Name)
	}
	return names
}

const (
	kubeconfigTTL    = 24 * time.Hour
	kubeconfigMaxTTL = 30 * 24 * time.Hour
	// administrators is the Kubernetes group of the users of a kubeconfig; the orchestrator binds
	// it to cluster-admin. It is not system:masters, which no RBAC rule could restrict.
	administrators = "orlop:cluster-admins"
)

func (a clusterAPI) Kubeconfig(ctx context.Context, r *api.KubeconfigRequest) (*api.KubeconfigResponse, error) {
	now, _ := a.m.config.Get()
	if now.config == nil || now.config.Cluster == nil {
		return nil, status.Error(codes.FailedPrecondition, "kubeconfig: this machine belongs to no cluster yet; apply a configuration with a Cluster document")
	}
	cluster := now.config.Cluster
	if cluster.Spec.PKI.Kubernetes.Key.IsZero() {
		return nil, status.Error(codes.FailedPrecondition, "kubeconfig: this machine does not hold the cluster's key; ask a control-plane machine")
	}
	ttl := kubeconfigTTL
	if r.Ttl != nil {
		ttl = r.Ttl.AsDuration()
	}
	if ttl <= 0 || ttl > kubeconfigMaxTTL {
		return nil, status.Errorf(codes.InvalidArgument, "kubeconfig: a TTL of %v is not between 0 and %v", ttl, kubeconfigMaxTTL)
	}
	server := r.Server
	if server == "" {
		server = kubernetesURL(cluster.Spec)
	}
	if u, err := url.Parse(server); err != nil || u.Scheme != "https" || u.Host == "" {
		return nil, status.Errorf(codes.InvalidArgument, "kubeconfig: server %q is not a URL such as https://10.0.0.5:6443", server)
	}
	// The kubeconfig becomes invalid when the caller's certificate or its lineage is revoked.
	by := callerid.FromContext(ctx)
	as := pki.Spec{
		CN: cmp.Or(by.Name, "operator"), O: []string{administrators}, Usage: pki.Client, TTL: ttl,
		Lineage: by.Lineage, Root: by.Issuer,
	}
	text, err := kubeconfig(cluster, server, as)
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	a.m.events.add("cluster", "operation", fmt.Sprintf("issued a kubeconfig for %v to %s", ttl, caller(ctx)))
	return &api.KubeconfigResponse{Kubeconfig: text}, nil
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
func kubeconfig(cluster *config.Cluster, server string, as pki.Spec) ([]byte, error) {
	ca, err := nodeplan.CA(cluster.Spec.PKI.Kubernetes)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	leaf, err := ca.Issue(as)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
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
`, name, server, b64(trusted(cluster.Spec.PKI.Kubernetes.Cert, cluster.Spec.PKI.Accepted.Kubernetes)), b64(leaf.CertPEM()), b64(leaf.KeyPEM())), nil
}
