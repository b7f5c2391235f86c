package facts

import (
	"crypto/ecdsa"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/orlop-os/orlop/machined/host"
	"github.com/orlop-os/orlop/machined/network"
	"github.com/orlop-os/orlop/machined/nodeplan"
	"github.com/orlop-os/orlop/machined/transition"
	"github.com/orlop-os/orlop/machined/volumes"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/buildinfo"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/extension"
	"github.com/orlop-os/orlop/pkg/pki"
	"github.com/orlop-os/orlop/pkg/trust"
)

// fake implements the parts of a machine from which a Reader reads facts.
type fake struct {
	damaged error    // error of the ledger; nil: the ledger is readable
	links   []string // missing links
	reads   int      // number of reads of the ledger, which is on STATE
}

func (f *fake) Revocations() ([]trust.Revocation, error) {
	f.reads++
	return []trust.Revocation{{Name: "dora"}}, f.damaged
}

func (f *fake) RevocationsForAPIServer(*config.Config) []trust.Revocation {
	return []trust.Revocation{{Name: "emil"}}
}

func (f *fake) MissingLinks(network.Config) (missing, present []string, err error) {
	return f.links, []string{"eth0"}, nil
}

func (f *fake) TakenLinks(network.Config, network.Config) ([]string, error) {
	return nil, errors.New("netlink: closed")
}

func (f *fake) Unusable(host.Config, host.Config) ([]string, error) { return nil, nil }
func (f *fake) PreviousSysctls() map[string]string                  { return nil }
func (f *fake) Parts() map[config.VolumeUse]string                  { return nil }
func (f *fake) Hold(volumes.Config) error                           { return errors.New("volume etcd: not mounted") }
func (f *fake) Swap() uint64                                        { return 7 }

// reader returns the Reader of a fake machine, without storage if problem is not empty.
func (f *fake) reader(problem string) *Reader {
	return New(Deps{
		System: System{
			Release:  func() buildinfo.Release { return buildinfo.Release{Version: "2"} },
			Hardware: func() host.Facts { return host.Facts{Memory: transition.MinMemory - 1, CPUs: 2} },

			StorageProblem: func() string { return problem }, Kernel: f,
		},
		Links: f, Network: func() network.State { return network.State{} }, Volumes: f, Ledger: f,
		Identity:           func() *ecdsa.PrivateKey { return nil },
		Member:             func() nodeplan.Member { return nodeplan.Member{Joined: true} },
		Artifacts:          func() map[string]string { return map[string]string{"sha256:1": "is not fetched yet"} },
		LLDPLabels:         func() map[string]string { return map[string]string{"rack": "r1"} },
		Extensions:         func() []extension.Statement { return nil },
		OpenForwarder:      func() (string, error) { return "", errors.New("forwarder: no port") },
		Undecided:          func() error { return errors.New("version 2 is on trial") },
		AcceptsInventories: func(*config.Config) bool { return true },
	})
}

// clustered returns the configuration of a machine in a cluster with a client CA.
func clustered(t *testing.T) *config.Config {
	t.Helper()
	ca, err := pki.NewCA("clients", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	c := config.New("m1", config.RoleWorker)
	c.Cluster = &config.Cluster{}
	if c.Cluster.Spec.PKI.Client, err = config.NewCertKey(string(ca.CertPEM()), string(ca.KeyPEM())); err != nil {
		t.Fatal(err)
	}
	// The tests need an operator CA, but no particular one, so they use the client CA.
	c.Machine.Spec.Trust.OperatorCAs = []config.Certificate{c.Cluster.Spec.PKI.Client.Cert}
	return c
}

// TestPlanWithoutCluster checks that Plan does not read the ledger of a machine without a cluster,
// because STATE may hang.
func TestPlanWithoutCluster(t *testing.T) {
	f := &fake{}
	for _, c := range []*config.Config{nil, config.New("n1", config.RoleWorker)} {
		got := f.reader("").Plan(c, network.State{Hostname: "n1"})
		if f.reads != 0 || got.Services.Refusal != nil || got.Services.Volumes != nil {
			t.Errorf("%d reads, %+v", f.reads, got)
		}
		if got.Release.Version != "2" || got.Network.Hostname != "n1" || !got.Member.Joined || got.LLDPLabels["rack"] != "r1" || len(got.Artifacts) != 1 {
			t.Errorf("%+v", got)
		}
	}
}

// TestPlan checks the facts of a machine in a cluster, with and without storage. The machine has
// too little memory for Kubernetes.
func TestPlan(t *testing.T) {
	f, c := &fake{}, clustered(t)
	got := f.reader("").Plan(c, network.State{})
	if got.Services.Refusal == nil || !strings.Contains(got.Services.Refusal.Error(), "memory") {
		t.Errorf("with too little memory: the refusal is %v", got.Services.Refusal)
	}
	if got.Services.Volumes == nil || got.Swap != 7 {
		t.Errorf("%+v", got.Services)
	}
	if len(got.Trust.Callers.Clients) == 0 || len(got.Trust.Revoked) != 1 || !got.Trust.Callers.Inventory || !strings.Contains(string(got.Trust.Callers.Revoked), "dora") {
		t.Errorf("%+v", got.Trust)
	}
	if got := f.reader("no disk").Plan(c, network.State{}); got.Services.Volumes != nil || got.Swap != 0 {
		t.Errorf("without storage: %+v", got.Services)
	}
}

// TestDamagedLedger checks that the API accepts no issued client certificates while the ledger
// cannot be read, because the list of revocations is then unknown. It still accepts the operator
// CAs.
func TestDamagedLedger(t *testing.T) {
	f := &fake{damaged: errors.New("torn")}
	got := f.reader("").API(clustered(t), network.State{}).Trust
	if got.Problem != nil || len(got.Callers.Clients) != 0 || len(got.Callers.Operators) == 0 {
		t.Errorf("%d bytes of client CAs, %d bytes of operator CAs, %v", len(got.Callers.Clients), len(got.Callers.Operators), got.Problem)
	}
}

// TestTransition checks the facts about a change of the configuration, and that Transition returns
// an error if a fact cannot be read.
func TestTransition(t *testing.T) {
	f, c := &fake{links: []string{"eth1"}}, clustered(t)
	got, err := f.reader("no disk").Transition(t.Context(), Change{OnTrial: true, Request: &api.ApplyRequest{}}, c)
	if err == nil || !strings.Contains(err.Error(), "netlink: closed") {
		t.Errorf("the taken links cannot be read: %v", err)
	}
	if !got.OnTrial || got.Upgrade == nil || got.Machine.NoStorage != "no disk" || got.Machine.CPUs != 2 || !slices.Equal(got.Hardware.MissingLinks, f.links) || got.Caller.CA != "" {
		t.Errorf("%+v", got)
	}
}

// TestCheckLockout checks that a configuration is rejected if it does not trust the CA of its
// caller. It is accepted if this CA is its client CA or one of its operator CAs.
func TestCheckLockout(t *testing.T) {
	client := clustered(t).Cluster.Spec.PKI.Client
	next := clustered(t)
	by := api.Caller{Issuer: pki.Fingerprint(client.Cert.X509())}
	ctx := metadata.NewIncomingContext(t.Context(), by.Metadata())
	check := func() error {
		caller, err := Caller(ctx, next)
		if err != nil {
			t.Fatal(err)
		}
		r := &api.ApplyRequest{}
		return transition.Check(nil, next, transition.Facts{Request: r, Caller: caller, Machine: transition.Machine{Memory: transition.MinMemory, CPUs: 64}}).Err()
	}
	if err := check(); err == nil || !strings.Contains(err.Error(), "would lock you out") {
		t.Error("a configuration that would lock its caller out is accepted")
	}
	next.Cluster.Spec.PKI.Client.Cert = client.Cert
	if err := check(); err != nil {
		t.Error(err)
	}
	next.Cluster.Spec.PKI.Client = config.CertKey{}
	next.Machine.Spec.Trust.OperatorCAs = []config.Certificate{client.Cert}
	if err := check(); err != nil {
		t.Error(err)
	}
}
