package main

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/orlop-os/orlop/machined/approvals"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/pki"
)

// withRule returns a configuration with a rule for approvals.
func withRule(keys ...config.KeyFingerprint) *config.Config {
	c := config.New("cp1", config.RoleControlPlane)
	c.Machine.Spec.Trust.Approvals = &config.Approvals{}
	for i, key := range keys {
		c.Machine.Spec.Trust.Approvals.Approvers = append(c.Machine.Spec.Trust.Approvals.Approvers, config.Approver{Name: "abc"[i : i+1], Key: key})
	}
	return c
}

var threeKeys = []config.KeyFingerprint{
	config.KeyFingerprint("sha256:" + strings.Repeat("a", 64)), config.KeyFingerprint("sha256:" + strings.Repeat("b", 64)), config.KeyFingerprint("sha256:" + strings.Repeat("c", 64)),
}

// TestApprove checks that a change of the rule needs an approval by the present rule in every mode
// except a dry run. A dry run shows the changes that need an approval. The first rule needs no
// approval.
func TestApprove(t *testing.T) {
	with, without := withRule(threeKeys...), config.New("cp1", config.RoleControlPlane)
	other := withRule(threeKeys...)
	other.Machine.Spec.Sysctls = map[string]string{"vm.swappiness": "1"}
	for _, c := range []struct {
		name         string
		before, next *config.Config
		rejected     bool
	}{
		{"the rule is removed", with, without, true},
		{"an approver is removed", with, withRule(threeKeys[:2]...), true},
		{"other fields", with, other, false},
		{"the first rule", without, with, false},
		{"the first configuration", nil, with, false},
	} {
		a := &applier{approvals: approvals.New(approvals.Deps{
			Config: func() *config.Config { return c.before }, Key: func() string { return "" }, Floor: func() time.Time { return time.Time{} },
			File: filepath.Join(t.TempDir(), "used"), Event: func(string, string) {},
		})}
		for mode := range api.ApplyRequest_Mode_name {
			r, answer := &api.ApplyRequest{Mode: api.ApplyRequest_Mode(mode)}, &api.ApplyResponse{}
			err := a.approve(t.Context(), c.before, c.next, r, answer)
			if r.Mode == api.ApplyRequest_MODE_DRY_RUN {
				if fields := slices.Collect(maps.Keys(answer.Guarded)); err != nil || slices.Equal(fields, []string{"Machine.spec.trust.approvals"}) != c.rejected {
					t.Errorf("%s: %v, %v", c.name, fields, err)
				}
				continue
			}
			if (err != nil) != c.rejected || c.rejected && !strings.Contains(err.Error(), "the change of Machine.spec.trust.approvals") {
				t.Errorf("%s, %v: %v", c.name, r.Mode, err)
			}
		}
	}
}

// TestKeepsGuarded checks that a rollback needs no approval only if the saved configuration has the
// same rule. A saved configuration without a rule can be of a version that does not know approvals.
func TestKeepsGuarded(t *testing.T) {
	now := withRule(threeKeys...)
	same := withRule(threeKeys...)
	same.Machine.Spec.Sysctls = map[string]string{"vm.swappiness": "1"}
	swapped := withRule(threeKeys[1], threeKeys[0], threeKeys[2])
	for _, c := range []struct {
		name  string
		saved []byte
		want  bool
	}{
		{"the same rule", config.Marshal(same), true},
		{"no rule", config.Marshal(config.New("cp1", config.RoleControlPlane)), false},
		{"another rule", config.Marshal(swapped), false},
		{"no saved configuration", nil, false},
		{"unreadable", []byte("kind: Machine\nspec: {unknown: 1}\n"), false},
	} {
		if got := keepsGuarded(now.Approvals(), now, c.saved); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

// TestCheckReturningCAs checks which rollbacks need force without a rule for approvals: to a
// configuration with an operator CA that was removed since, and to an unreadable one.
func TestCheckReturningCAs(t *testing.T) {
	ca, err := pki.NewCA("former", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	former, err := config.ParseCertificate(string(ca.CertPEM()))
	if err != nil {
		t.Fatal(err)
	}
	now := config.New("cp1", config.RoleControlPlane)
	for _, c := range []struct {
		name  string
		saved []byte
		says  string // part of the error; empty if the rollback is accepted
	}{
		{"no saved documents", nil, ""},
		{"the same configuration", config.Marshal(now), ""},
		{"a removed operator CA", config.Marshal(config.New("cp1", config.RoleControlPlane).WithOperatorCAs(former)), `"former"`},
		{"unreadable", []byte("kind: Machine\nspec: {unknown: 1}\n"), "cannot read the saved configuration"},
	} {
		if err := checkReturningCAs(now, c.saved); (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if err := checkReturningCAs(nil, config.Marshal(now)); err != nil {
		t.Errorf("without a configuration: %v", err)
	}
}
