package scheduler

import (
	"slices"
	"strings"
	"testing"

	schedulerconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// decoded returns a node specification with these profiles, and the configuration that results,
// decoded into upstream's type.
func decoded(t *testing.T, all []config.SchedulerProfile) (nodespec.Spec, *schedulerconfig.KubeSchedulerConfiguration) {
	t.Helper()
	spec := nodespec.Spec{Kubernetes: config.Kubernetes{Scheduler: config.Scheduler{Profiles: all}}}
	object, _, err := scheme.Codecs.UniversalDecoder().Decode([]byte(configuration(spec, "/kubeconfig")), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return spec, object.(*schedulerconfig.KubeSchedulerConfiguration)
}

// TestProfiles checks that upstream accepts the profiles of config.Reference, which has an example
// of each field, and a profile of the test. The plugins must get their settings.
func TestProfiles(t *testing.T) {
	reference, problems := config.Parse("", []byte(config.Reference))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	profiles := append(slices.Clone(reference.Cluster.Spec.Kubernetes.Scheduler.Profiles), config.SchedulerProfile{
		Name: "dense", Scoring: config.Scoring{Strategy: config.MostAllocated},
		Weights: []config.ScoreWeight{{Plugin: "NodeResourcesBalancedAllocation"}, {Plugin: "NodeResourcesFit", Weight: 7}},
	})
	spec, got := decoded(t, profiles)
	if err := Check(spec); err != nil {
		t.Error(err)
	}
	if len(got.Profiles) != 2 || got.Profiles[1].SchedulerName != "dense" {
		t.Fatalf("%+v", got.Profiles)
	}
	dense := got.Profiles[1]
	for _, c := range dense.PluginConfig {
		if args, ok := c.Args.(*schedulerconfig.NodeResourcesFitArgs); ok {
			if s := args.ScoringStrategy; s.Type != schedulerconfig.MostAllocated || len(s.Resources) != 2 {
				t.Errorf("strategy %+v, want MostAllocated with the two default resources of upstream", s)
			}
		}
	}
	if s := dense.Plugins.Score; len(s.Enabled) != 1 || s.Enabled[0].Weight != 7 || len(s.Disabled) != 1 || s.Disabled[0].Name != "NodeResourcesBalancedAllocation" {
		t.Errorf("score plugins %+v", s)
	}
	spec.Kubernetes.Scheduler.Profiles[1].Scoring.Strategy = "Tetris"
	if err := Check(spec); err == nil || !strings.Contains(err.Error(), "Tetris") {
		t.Errorf("Check of an unknown strategy: %v", err)
	}
}

// TestNoProfiles checks that upstream's default profile applies if no profile is configured.
func TestNoProfiles(t *testing.T) {
	spec, got := decoded(t, nil)
	if err := Check(spec); err != nil {
		t.Error(err)
	}
	if len(got.Profiles) != 1 || got.Profiles[0].SchedulerName != config.DefaultScheduler {
		t.Errorf("%+v", got.Profiles)
	}
}
