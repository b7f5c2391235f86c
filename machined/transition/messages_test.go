package transition

import (
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/pki"
)

// TestMessages checks the message of each rule as its caller reads it. Only the first rule with
// problems appears in the message.
func TestMessages(t *testing.T) {
	const fixed = " on a machine that is part of a cluster; reset it first (orlopctl reset --wipe all)"
	made, err := pki.NewCA("another", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := config.ParseCertificate(string(made.CertPEM()))
	if err != nil {
		t.Fatal(err)
	}
	mode := func(m api.ApplyRequest_Mode) func(*Facts) {
		return func(f *Facts) { f.Request.Mode = m }
	}
	for name, c := range map[string]struct {
		change func(*config.Config)
		facts  func(*Facts)
		want   string
	}{
		"no change":               {nil, nil, ""},
		"role":                    {func(c *config.Config) { c.Machine.Spec.Role = config.RoleWorker }, nil, "Machine.spec.role: cannot change from controlplane to worker" + fixed},
		"domain":                  {func(c *config.Config) { c.Cluster.Spec.Networks.Domain = "other.local" }, nil, "Cluster.spec.networks.domain: cannot change from cluster.example to other.local" + fixed},
		"another name, in memory": {func(c *config.Config) { c.Machine.Metadata.Name = "other" }, func(f *Facts) { f.Machine.InMemory = true }, ""},
		"two CAs": {func(c *config.Config) { c.Cluster.Spec.PKI.Etcd.Cert, c.Cluster.Spec.PKI.Machine.Cert = ca, ca }, nil,
			"Cluster.spec.pki.etcd: cannot change in one step to a CA that was not accepted before, or from a CA that is not accepted afterwards; `orlopctl trust rotate-ca` does it step by step (Cluster.spec.pki.accepted.etcd); " +
				"Cluster.spec.pki.machine: cannot change in one step to a CA that was not accepted before, or from a CA that is not accepted afterwards; `orlopctl trust rotate-ca` does it step by step (Cluster.spec.pki.accepted.machine)"},
		"memory":   {nil, func(f *Facts) { f.Machine.Memory = 512 << 20 }, "memory: 512 MiB are too little for Kubernetes; give the machine at least 1400 MiB"},
		"reserved": {nil, func(f *Facts) { f.Machine.CPUs = 0 }, "Machine.spec.reserved.cpu: 500m are all of the machine's 0 processors; reserve less"},
		"CA keys":  {nil, func(f *Facts) { f.Machine.CAs = errors.New("Cluster.spec.pki.etcd: no key") }, "Cluster.spec.pki.etcd: no key"},
		"storage":  {func(c *config.Config) { c.Machine.Spec.Disk.WipeForeign = false }, func(f *Facts) { f.Machine.NoStorage = "no disk" }, "no disk to store it on: no disk"},
		"lockout": {nil, func(f *Facts) { f.Caller.CA = "sha256:1" },
			"the CA of your certificate is neither in Machine.spec.trust.operatorCAs nor Cluster.spec.pki.client, so this machine would lock you out; add it, or apply with a certificate of a listed CA"},
		"a patch of a trial": {nil, func(f *Facts) { f.Request.Patch, f.OnTrial = true, true },
			"the configuration to be changed is on trial, and would stay with the change; confirm it first (`orlopctl confirm-config`), apply a complete configuration, or use mode try"},
		"a time without a trial": {nil, func(f *Facts) { f.Request.TrialDuration = durationpb.New(time.Minute) }, "a trial time is given without a trial; use mode try"},
		"a trial and no trial":   {nil, func(f *Facts) { f.Request.NoTrial, f.Request.Mode = true, api.ApplyRequest_MODE_TRY }, "a trial and no trial are both requested; omit one of them"},
		"a long name":            {nil, func(f *Facts) { f.Request.TrialName = strings.Repeat("a", 65) }, "the name of the trial has 65 bytes; the limit is 64"},
		"a short trial": {nil, func(f *Facts) {
			f.Request.Mode, f.Request.TrialDuration = api.ApplyRequest_MODE_TRY, durationpb.New(time.Second)
		}, "a trial of 1s is not between 10s and 1h0m0s"},
		"a pod network without a reboot": {func(c *config.Config) {
			c.Cluster.Spec.External = []config.ExternalComponent{config.PartNetwork}
		}, mode(api.ApplyRequest_MODE_NO_REBOOT),
			"Cluster.spec.external: a replacement of the pod network needs a reboot; use mode auto or reboot"},
		"an installation without a reboot": {nil, func(f *Facts) { f.Request.Mode, f.Machine.InMemory = api.ApplyRequest_MODE_NO_REBOOT, true }, "an installation ends with a reboot; use mode auto"},
		"a missing link": {nil, func(f *Facts) {
			f.Hardware = Hardware{MissingLinks: []string{"eth0"}, PresentLinks: []string{"eth1"}, Unusable: []string{"kernelModules[0]: this system has no module x"}}
		}, "Network.spec.links[0]: this machine has no link eth0; it has eth1; Machine.spec.kernelModules[0]: this system has no module x; correct it, or apply it with --force if this comes later"},
		"a missing module, with force": {nil, func(f *Facts) { f.Request.Force, f.Hardware.Unusable = true, []string{"kernelModules[0]: x"} }, ""},
	} {
		before, next := patchedBy(t, "")
		cluster := *next.Cluster
		if next.Cluster = &cluster; c.change != nil {
			c.change(next)
		}
		f := Facts{Request: &api.ApplyRequest{}, Now: time.Now(), Machine: Machine{Memory: 8 << 30, CPUs: 8}}
		if c.facts != nil {
			c.facts(&f)
		}
		f.Trial = PlanTrial(before, next, f.Request)
		got := ""
		if err := Check(before, next, f).Err(); err != nil {
			got = err.Error()
		}
		if c.want != "" {
			c.want = config.Refused + " " + c.want
		}
		if got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", name, got, c.want)
		}
	}
}

// TestKeysOnTrial checks that new encryption keys are rejected in a trial, and while an upgrade is
// on trial.
func TestKeysOnTrial(t *testing.T) {
	const field = config.Refused + " Cluster.spec.secretsEncryptionKey, acceptedEncryptionKeys, kubernetes.apiServer.kms: "
	before, next := patchedBy(t, "")
	cluster := *next.Cluster
	own := cluster.Spec.SecretsEncryptionKey
	cluster.Spec.AcceptedEncryptionKeys = append(cluster.Spec.AcceptedEncryptionKeys, config.NewEncryptionKey([32]byte{7}))
	next.Cluster = &cluster
	for name, c := range map[string]struct {
		facts Facts
		want  string
	}{
		"no trial":             {Facts{}, ""},
		"a requested trial":    {Facts{Request: &api.ApplyRequest{Mode: api.ApplyRequest_MODE_TRY}}, field + "new encryption keys cannot be on trial: Secrets that they encrypt"},
		"a trial of a cut-off": {Facts{Trial: Trial{Duration: time.Minute}}, field + "new encryption keys cannot be on trial, but the rest"},
		"an upgrade on trial":  {Facts{Upgrade: errors.New("version 2 is on trial")}, field + "cannot change now: version 2 is on trial"},
	} {
		if c.facts.Request == nil {
			c.facts.Request = &api.ApplyRequest{}
		}
		c.facts.Machine = Machine{Memory: 8 << 30, CPUs: 8}
		got := ""
		if err := Check(before, next, c.facts).Err(); err != nil {
			got = err.Error()
		}
		if !strings.HasPrefix(got, c.want) || (got == "") != (c.want == "") {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	if own.IsZero() {
		t.Error("the reference has no encryption key")
	}
}

// TestApprovalsOnTrial checks that the rule for approvals stays while an upgrade is on trial. A
// rollback would restore the rule of the other version.
func TestApprovalsOnTrial(t *testing.T) {
	const want = config.Refused + " Machine.spec.trust.approvals: cannot change now: version 2 is on trial"
	before, next := patchedBy(t, "")
	next.Machine.Spec.Trust.Approvals = nil
	f := Facts{Request: &api.ApplyRequest{}, Upgrade: errors.New("version 2 is on trial"), Machine: Machine{Memory: 8 << 30, CPUs: 8}}
	if err := Check(before, next, f).Err(); err == nil || err.Error() != want {
		t.Errorf("a change of the rule: %v, want %s", err, want)
	}
	if err := Check(before, before, f).Err(); err != nil {
		t.Error(err)
	}
}
