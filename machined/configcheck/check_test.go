package configcheck

import (
	"context"
	"errors"
	"os"
	"testing"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// TestChecks checks for which configurations a Checker runs commands of the orchestrator. If a
// command exits with status 1, its output is the reason for the rejection. Any other failure of a
// command is returned unchanged.
func TestChecks(t *testing.T) {
	c := config.New("m1", config.RoleControlPlane)
	c.Cluster = &config.Cluster{}
	c.Cluster.Spec.Kubernetes = config.DefaultKubernetes()
	if err := errors.Join(Checker{}.Access(t.Context(), config.New("m1", config.RoleWorker)), Checker{}.Settings(t.Context(), config.New("m1", config.RoleWorker))); err != nil {
		t.Errorf("without a cluster: %v", err)
	}
	if err := errors.Join(Checker{}.Access(t.Context(), c), Checker{}.Settings(t.Context(), c)); err != nil {
		t.Errorf("without a setting: %v", err)
	}
	c.Cluster.Spec.Kubernetes.Authentication.JWT = []config.JWTIssuer{{URL: "https://login.example.com"}}
	c.Cluster.Spec.Kubernetes.FeatureGates = map[string]bool{"A": true}
	exit := func(code int) error { return &supervise.ExitError{Exit: supervise.Exit{Code: code}, Output: "log"} }
	for name, test := range map[string]struct {
		output   string
		err      error
		access   string
		settings string
	}{
		"no problem": {"", nil, "", ""},
		"problems": {
			"jwt[0].claimMappings.username.expression: no such key\nA: is unknown\n", exit(1),
			config.Refused + " Cluster.spec.kubernetes.authentication.jwt[0].username: no such key; Cluster.spec.kubernetes.A: is unknown",
			config.Refused + " Cluster.spec.kubernetes: jwt[0].claimMappings.username.expression: no such key; A: is unknown",
		},
		"a crash":    {"jwt[0]: no such key\n", exit(2), exit(2).Error(), exit(2).Error()},
		"no process": {"", errors.New("out of memory"), "out of memory", "out of memory"},
	} {
		var called []string
		k := Checker{Command: func(ctx context.Context, uid uint32, command string, request any, _ ...*os.File) ([]byte, error) {
			if _, bounded := ctx.Deadline(); !bounded || uid != paths.UserAPI || request == nil {
				t.Errorf("%s: %s as %d with %v, deadline %t", name, command, uid, request, bounded)
			}
			called = append(called, command)
			return []byte(test.output), test.err
		}}
		text := func(err error) string {
			if err == nil {
				return ""
			}
			return err.Error()
		}
		if got := text(k.Access(t.Context(), c)); got != test.access {
			t.Errorf("%s: access: %q, want %q", name, got, test.access)
		}
		if got := text(k.Settings(t.Context(), c)); got != test.settings {
			t.Errorf("%s: settings: %q, want %q", name, got, test.settings)
		}
		if len(called) != 2 || called[0] == called[1] {
			t.Errorf("%s: called %q", name, called)
		}
	}
}
