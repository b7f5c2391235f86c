package health

import (
	"testing"
	"time"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/supervise"
)

// TestHealthWaitsForTheConfiguration checks that a machine is not healthy after a change until the
// change is active.
func TestHealthWaitsForTheConfiguration(t *testing.T) {
	health := &api.HealthResponse{Healthy: true, Checks: []*api.HealthCheck{{Name: "configuration", Ok: true, Detail: "story"}, {Name: "etcd", Ok: true}}}
	ConfigurationNotActive(health, "not active yet: orchestrator-api")
	if c := health.Checks[0]; health.Healthy || c.Ok || c.Detail != "not active yet: orchestrator-api" || !health.Checks[1].Ok {
		t.Errorf("%v", health)
	}
}

// TestHealthNamesProblems checks that a problem of a ready component is unhealthy, and is reported.
func TestHealthNamesProblems(t *testing.T) {
	services := []supervise.Status{{Name: "orchestrator-api", State: supervise.Running, Components: []supervise.Component{
		{Name: "etcd", Ready: true, Detail: "serving"}, {Name: "extensions", Ready: true, Detail: "problem: APIService v1.example.org: it cannot be reached"},
	}}}
	health := Of(Machine{Config: &config.Config{Cluster: &config.Cluster{}}, Services: services})
	for _, c := range health.Checks {
		switch want := c.Name != "extensions"; c.Name {
		case "etcd", "extensions":
			if c.Ok != want || c.Detail == "" {
				t.Errorf("%v", c)
			}
		}
	}
	if health.Healthy {
		t.Error("healthy")
	}
}

// TestAdd checks that a failed check makes a machine unhealthy, and that a check without a problem
// adds nothing.
func TestAdd(t *testing.T) {
	health := &api.HealthResponse{Healthy: true}
	if Add(health, Firewall("", time.Time{})); !health.Healthy || len(health.Checks) > 0 {
		t.Errorf("with active rules: %v", health)
	}
	if Add(health, Firewall("no rules", time.Time{})); health.Healthy || len(health.Checks) != 1 || health.Checks[0].Detail != "no rules" {
		t.Errorf("without rules: %v", health)
	}
}
